"""The blocks of examples/gpu/ring_attention.cpp in PyTorch, on one GPU and without communication: scaled_dot_product_attention of
a rank's queries with each rank's keys and values. The partial results are not combined.

    python3 bench/gpu/torch_attention.py [--ranks 2] [--seqlen 65536] [--heads 32] [--head-dim 128] [--causal] [--dtype bf16] [-n 5] [-w 5]

Prints the median of five rounds of `-n` calls, for the rank with the most blocks.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("--ranks", 2), ("--seqlen", 65536), ("--heads", 32), ("--head-dim", 128), ("-n", 5), ("-w", 5)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    args = parser.parse_args()
    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    shape = (1, args.heads, args.seqlen // args.ranks, args.head_dim)
    q, k, v = (torch.empty(shape, dtype=dtype, device="cuda").uniform_(-2, 2) for _ in range(3))

    def blocks():
        for step in range(args.ranks):
            F.scaled_dot_product_attention(q, k, v, is_causal=args.causal and step == 0)

    def timed(calls):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            blocks()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / calls

    timed(args.w)
    seconds = statistics.median(timed(args.n) for _ in range(5))
    operations = 4 * args.seqlen**2 * args.heads * args.head_dim / (2 if args.causal else 1) / args.ranks / 1e12
    print(f"#{'seqlen':>9} {'heads':>6} {'head-dim':>9} {'dtype':>6} {'causal':>7} {'GPUs':>5} {'blocks (ms)':>12} {'TFLOP/s':>8}")
    print(f"{args.seqlen:10d} {args.heads:6d} {args.head_dim:9d} {args.dtype:>6} {'yes' if args.causal else 'no':>7} {args.ranks:5d} "
          f"{seconds * 1e3:12.3f} {operations / seconds:8.1f}")


if __name__ == "__main__":
    main()

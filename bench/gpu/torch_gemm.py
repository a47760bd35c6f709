"""The products of bench/gpu/gemm.cpp in PyTorch: torch.matmul (f8: torch._scaled_mm), and Inductor's max-autotune.

    python3 bench/gpu/torch_gemm.py [--type bf16 | f8] [--rounds 31] [--shapes FILE] [--no-inductor]

Each call runs behind a fill of 64 MiB, and is timed by CUDA's events. Prints medians in us, and the time that Inductor took.
"""

import argparse
import statistics
import time

import torch

LAYERS = (("7b_qkv", 12288, 4096), ("7b_out", 4096, 4096), ("7b_gate_up", 22016, 4096), ("7b_down", 4096, 11008),
          ("70b_qkv", 10240, 8192), ("70b_out", 8192, 8192), ("70b_gate_up", 57344, 8192), ("70b_down", 8192, 28672),
          ("mixtral_expert_up", 28672, 4096), ("mixtral_expert_down", 4096, 14336))


def median_us(call, rounds, cold):
    times = []
    call()
    for _ in range(rounds):
        cold.fill_(1)
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        call()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--type", choices=("bf16", "f8"), default="bf16")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--shapes")
    parser.add_argument("--no-inductor", action="store_true")
    args = parser.parse_args()
    shapes = [(name, m, n, k) for name, m, k in LAYERS for n in (16, 128, 1024, 4096)]
    if args.shapes:
        shapes = [(w[0], int(w[1]), int(w[2]), int(w[3])) for w in map(str.split, open(args.shapes)) if w]
    cold = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    print(f"# PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, {args.type}")
    print(f"{'name':<22} {'m':>6} {'n':>6} {'k':>6} {'matmul us':>11} {'inductor us':>11} {'tuning ms':>10}", flush=True)
    for name, m, n, k in shapes:
        x = torch.rand(n, k, device="cuda", dtype=torch.bfloat16) * 2 - 1
        w = torch.rand(m, k, device="cuda", dtype=torch.bfloat16) * 2 - 1
        if args.type == "f8":
            x, w = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
            one = torch.ones((), device="cuda")

            def product(a, b):
                return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        else:

            def product(a, b):
                return a @ b.t()

        eager = median_us(lambda: product(x, w), args.rounds, cold)
        inductor, took = float("nan"), float("nan")
        if not args.no_inductor:
            torch._dynamo.reset()
            compiled = torch.compile(product, mode="max-autotune-no-cudagraphs", dynamic=False)
            began = time.perf_counter()
            compiled(x, w)
            torch.cuda.synchronize()
            took = (time.perf_counter() - began) * 1e3
            inductor = median_us(lambda: compiled(x, w), args.rounds, cold)
        print(f"{name:<22} {m:>6} {n:>6} {k:>6} {eager:>11.2f} {inductor:>11.2f} {took:>10.0f}", flush=True)


if __name__ == "__main__":
    main()

"""What examples/gpu/all_gather_gemm.cpp measures, in PyTorch over NCCL: an all-gather of rows, then one product.

    torchrun --nproc-per-node 2 bench/gpu/torch_all_gather_gemm.py [--M 8192] [--N 11008] [--K 4096] [--iters 20] [--warmup 5]

Prints the median of nine rounds of `--iters` calls, of rank 0.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("--M", 8192), ("--N", 11008), ("--K", 4096), ("--iters", 20), ("--warmup", 5)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    world = dist.get_world_size()
    whole = {"dtype": torch.bfloat16, "device": "cuda"}
    mine = torch.randint(-2, 3, (args.M // world, args.K), device="cuda").to(torch.bfloat16)
    weights = torch.randint(-2, 3, (args.N // world, args.K), device="cuda").to(torch.bfloat16)
    a = torch.empty((args.M, args.K), **whole)
    c = torch.empty((args.M, args.N // world), **whole)

    def call():
        dist.all_gather_into_tensor(a, mine)
        torch.mm(a, weights.t(), out=c)

    def timed(calls):
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / calls

    timed(args.warmup)
    seconds = statistics.median(timed(args.iters) for _ in range(9))
    if dist.get_rank() == 0:
        operations = 2 * args.M * args.N // world * args.K / 1e12
        print(f"#{'':31} {'time (us)':>12} {'TFLOP/s':>10}")
        print(f"{'PyTorch, all-gather, then GEMM':32} {seconds * 1e6:12.1f} {operations / seconds:10.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Shared by the layers that are measured in PyTorch: options, ranks, numbers, and the median of nine rounds of `--iters` calls."""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist


def arguments(**sizes):
    """The options of examples/gpu/whole_layers.hpp; `sizes` are the defaults of M, N and K."""
    parser = argparse.ArgumentParser()
    for name, default in (*sizes.items(), ("iters", 20), ("warmup", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def join():
    """Makes this process a rank with a GPU; returns the number of ranks."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    return dist.get_world_size()


def numbers(rows, columns):
    return torch.randint(-2, 3, (rows, columns), device="cuda").to(torch.bfloat16)


def empty(rows, columns):
    return torch.empty((rows, columns), dtype=torch.bfloat16, device="cuda")


def measure(name, call, args):
    """Prints rank 0's time per call and leaves the job."""

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
        operations = 2 * args.M * args.N * args.K / dist.get_world_size() / 1e12
        print(f"#{'':35} {'time (us)':>12} {'TFLOP/s':>10}")
        print(f"{name:36} {seconds * 1e6:12.1f} {operations / seconds:10.1f}")
    dist.destroy_process_group()

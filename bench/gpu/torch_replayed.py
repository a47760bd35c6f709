"""The step of examples/gpu/replayed_step.cpp in PyTorch: kernels and an all-reduce in a CUDA graph, and call by call.

    torchrun --nproc-per-node 2 bench/gpu/torch_replayed.py [-b 8] [-e 16777216] [-f 8] [-n 1000] [-w 2000]

Prints the same times. The host waits for the end of each step.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist


def measure(step, warm, timed):
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(timed):
        step()
        torch.cuda.current_stream().synchronize()  # because replayed_step.cpp waits for each step, too
    return (time.perf_counter() - began) / timed * 1e6


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("-b", 8), ("-e", 16 << 20), ("-f", 8), ("-n", 1000), ("-w", 2000)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    rate, term = -float(1 << rank) / 1024, 1.0 / 1024
    if rank == 0:
        print(f"#{'size (B)':>13} {'count':>12} {'replayed (us)':>14} {'call by call (us)':>18}")
    size = args.b
    while size <= args.e:
        weights = torch.ones(max(size // 4, 1), device="cuda")
        gradients = torch.empty_like(weights)

        def step():
            torch.mul(weights, rate, out=gradients)
            gradients.add_(term)
            dist.all_reduce(gradients)
            weights.add_(gradients)

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        replayed = measure(graph.replay, args.w, args.n)
        called = measure(step, args.w, args.n)
        if rank == 0:
            print(f"{weights.numel() * 4:14} {weights.numel():12} {replayed:14.2f} {called:18.2f}", flush=True)
        del graph
        size *= args.f
    dist.destroy_process_group()


main()

"""The all-reduces of examples/gpu/all_reduce.cpp in PyTorch: sums of floats; the host waits for each.

    torchrun --nproc-per-node 2 bench/gpu/torch_all_reduce.py [-b 8] [-e 268435456] [-f 2] [-n 100] [-w 50]

Prints the median of five rounds of `-n` calls each.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("-b", 8), ("-e", 256 << 20), ("-f", 2), ("-n", 100), ("-w", 50)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    if dist.get_rank() == 0:
        print(f"#{'size (B)':>13} {'count':>12} {'time (us)':>10}")
    size = args.b
    while size <= args.e:
        data = torch.zeros(max(size // 4, 1), device="cuda")

        def call():
            dist.all_reduce(data)
            torch.cuda.current_stream().synchronize()

        for _ in range(args.w):
            call()
        rounds = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(args.n):
                call()
            rounds.append((time.perf_counter() - began) / args.n * 1e6)
        if dist.get_rank() == 0:
            print(f"{data.numel() * 4:14} {data.numel():12} {statistics.median(rounds):10.2f}", flush=True)
        size *= args.f
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

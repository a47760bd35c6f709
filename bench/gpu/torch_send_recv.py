#!/usr/bin/env python3
"""PyTorch's send and recv over NCCL between two GPUs, one process per GPU: the median of half a round trip.

    python3 bench/gpu/torch_send_recv.py [REPETITIONS]     prints torch/BYTES NANOSECONDS ns
"""
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank, port, repetitions):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    buffer = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    sizes = sorted({8 << (3 * i) for i in range(9)} | {64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20})
    for size in sizes:
        part = buffer[:size]
        times = []
        for turn in range(-5, repetitions if size <= 16 << 20 else max(repetitions // 8, 5)):
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            if rank == 0:
                dist.send(part, 1)
                dist.recv(part, 1)
            else:
                dist.recv(part, 0)
                dist.send(part, 0)
            torch.cuda.synchronize()
            if turn >= 0:
                times.append((time.perf_counter_ns() - start) / 2)
        if rank == 0:
            print(f"torch/{size} {statistics.median(times):.0f} ns", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(rank_main, args=(port, int(sys.argv[1]) if len(sys.argv) > 1 else 100), nprocs=2)

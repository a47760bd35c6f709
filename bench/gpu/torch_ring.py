"""The two-round ring of examples/gpu/ring_exchange.cpp with PyTorch's batch_isend_irecv over NCCL, one process per GPU.

    torchrun --nproc-per-node 2 bench/gpu/torch_ring.py [-b 8] [-e 67108864] [-f 8] [-n 200] [-w 50]

Prints the same columns.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

C = 1.000244140625


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("-b", 8), ("-e", 64 << 20), ("-f", 8), ("-n", 200), ("-w", 50)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    following, previous = (rank + 1) % world, (rank + world - 1) % world

    def first(r, count):
        return ((17 * r + torch.arange(count, device=device)) % 512).float()

    size = given.b
    while size <= given.e:
        count = max(size // 4, 1)
        x0 = first(rank, count)
        ones = torch.ones_like(x0)
        t0, y0, a, t1, y1, out = (torch.empty_like(x0) for _ in range(6))

        def exchange(send, receive):
            return dist.batch_isend_irecv([dist.P2POp(dist.isend, send, following), dist.P2POp(dist.irecv, receive, previous)])

        def step():
            works = exchange(x0, y0)
            torch.add(ones, x0, alpha=2, out=t0)
            for w in works:
                w.wait()
            torch.add(y0, t0, out=a)
            works = exchange(a, y1)
            torch.mul(a, C, out=t1)
            for w in works:
                w.wait()
            torch.add(y1, t1, out=out)

        for _ in range(given.w):
            step()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(given.n):
            step()
        torch.cuda.synchronize()
        us = (time.perf_counter_ns() - began) / 1e3 / given.n
        before = first((rank + world - 2) % world, count) + (2 * first(previous, count) + 1)
        mine = first(previous, count) + (2 * first(rank, count) + 1)
        wrong = int((out != before + mine * C).sum())
        if rank == 0:
            bandwidth = 2 * count * 4 / us / 1e3
            print(f"{count * 4:14d} {count:12d} {'float':>8s} {'sum':>6s} {-1:6d} {us:12.2f} {bandwidth:10.2f} {bandwidth:10.2f} {wrong:8d}",
                  flush=True)
        size *= given.f
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

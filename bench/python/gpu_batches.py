"""`batch_isend_irecv` between two ranks, by parley or by NCCL. Prints a line for each size.

    torchrun --nproc-per-node 2 bench/python/gpu_batches.py parley host      # two ranks share a GPU, if there is only one
    torchrun --nproc-per-node 2 bench/python/gpu_batches.py parley stream    # `parley.torch.wait_on = "stream"`
    torchrun --nproc-per-node 2 bench/python/gpu_batches.py nccl stream

A step sends a tensor to the other rank and receives one from it, and waits for both, as programs do: `Work.wait`. A row is the time of a
step: the median over rounds of many steps, each of which ends when the GPU has done all of them. With `stream` only the stream waits for
steps, as it always does for those of NCCL. Results are compared. If a size takes longer than a minute, the program prints the stacks of all
threads and ends.
"""

from __future__ import annotations

import faulthandler
import os
import statistics
import sys
import time

if sys.argv[2:3] == ["stream"]:
    os.environ["CUDA_MODULE_LOADING"] = "EAGER"  # see parley.torch

import torch
import torch.distributed as dist

SIZES = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20, 256 << 20]
ROUNDS = 5
LIMIT = float(os.environ.get("LIMIT", "60"))  # seconds for one size


def is_all(tensor: torch.Tensor, value: int) -> bool:
    return bool((tensor == value).all().item())


def main(backend: str, waits: str, largest: int) -> None:
    if backend == "parley":
        import parley.torch
        parley.torch.wait_on = waits  # type: ignore[assignment]
    me = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    # Streams will wait for messages, so all kernels are loaded and all memory is allocated before: see docs/gpu.md.
    kept = torch.zeros(largest, dtype=torch.uint8, device="cuda"), torch.zeros(largest, dtype=torch.uint8, device="cuda")
    for size in SIZES:
        is_all(kept[0][:size].fill_(1), 1)
    dist.init_process_group(backend)
    peer = 1 - me
    for size in [s for s in SIZES if s <= largest]:
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        x, y = kept[0][:size], kept[1][:size]

        def step() -> None:
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]):  # noqa: B023
                work.wait()

        steps = 300 if size <= 1 << 20 else 80
        for i in range(steps):  # parley decides
            x.fill_((i + me) % 251)
            step()
        assert is_all(y, (steps - 1 + peer) % 251), "the data is wrong"
        count = max(4, min(200, (1 << 28) // size))
        rounds = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            rounds.append((time.perf_counter() - began) / count)
        if me == 0:
            median = statistics.median(rounds)
            said = ""
            if backend == "parley":
                now = dist.group.WORLD.decision(peer, size, "cuda")
                said = now.config if now.decided else "(not decided)"
            times = f"{median * 1e6:12.1f} us {size / median / 1e9:9.2f} GB/s  fastest {min(rounds) * 1e6:.1f} us"
            print(f"{backend + '/' + waits:14} {size:12} B {times}  {said}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else SIZES[-1])

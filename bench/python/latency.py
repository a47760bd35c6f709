"""What a call costs from Python: messages of 8 B there and back between two processes, and a decided kernel. Prints a line for each row.

    python -m parley run -n 2 --bind bench/python/latency.py          # parley: blocking, asyncio, without asyncio
    parley run -n 2 --bind build/bench/python_latency                  # the same in C++ (latency.cpp)
    python bench/python/latency.py import                              # what `import parley` takes
    mpirun -n 2 --bind-to core python bench/python/latency.py mpi4py   # the same with mpi4py
    torchrun --nproc-per-node 2 bench/python/latency.py gloo           # the same with torch.distributed over gloo

A row is the median over rounds of the time of one message: half of the time there and back.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

ROUNDS, CALLS = 21, 1000


def report(name: str, seconds: list[float], unit_s: float = 1e-6, unit: str = "us") -> None:
    print(f"{name:32} {statistics.median(seconds) / unit_s:9.3f} {unit}, fastest round {min(seconds) / unit_s:.3f}", flush=True)


def timed(once: Callable[[], None], warm_up: int = 2000) -> list[float]:
    for _ in range(warm_up):
        once()
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            once()
        rounds.append((time.perf_counter() - began) / CALLS)
    return rounds


def with_parley() -> int:
    import parley

    def main(rank: parley.Rank) -> None:
        to = [parley.Transfer(rank, f"to{peer}", edges=[(1 - peer, peer)]) for peer in (0, 1)]
        peer, data = 1 - rank.id, bytearray(8)
        send, receive = to[peer].send, to[rank.id].receive

        def blocking() -> None:
            if rank.id == 0:
                send(data, to=1)
                receive(data, source=1)
            else:
                receive(data, source=0)
                send(data, to=0)

        async def one() -> None:
            if rank.id == 0:
                await to[peer].isend(data, to=1)
                await to[rank.id].ireceive(data, source=1)
            else:
                await to[rank.id].ireceive(data, source=0)
                await to[peer].isend(data, to=0)

        async def awaiting() -> list[float]:
            for _ in range(2000):
                await one()
            rounds = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                for _ in range(CALLS):
                    await one()
                rounds.append((time.perf_counter() - began) / CALLS)
            return rounds

        rows = {"parley_blocking_8B": timed(blocking), "parley_asyncio_8B": asyncio.run(awaiting())}
        own: list[float] = []

        async def keep() -> None:
            own.extend(await awaiting())

        rank.start(keep()).wait()
        rows["parley_own_coroutine_8B"] = own
        if rank.id == 0:
            for name, rounds in rows.items():
                report(name, [r / 2 for r in rounds])
            kernels(rank)

    return parley.run(main)


def kernels(rank: object) -> None:
    import parley

    def nothing(x: object) -> None:
        del x

    assert isinstance(rank, parley.Rank)
    parley.tunable.enable()
    hit = parley.Kernel(rank, "nothing", {"a": nothing, "b": nothing}, key=lambda x: "x")
    without_key = parley.Kernel(rank, "nothing2", {"a": nothing, "b": nothing})
    bare = timed(lambda: nothing(1))
    for name, kernel in (("kernel_hit", without_key), ("kernel_hit_with_key", hit)):
        calls = timed(lambda kernel=kernel: kernel(1))  # type: ignore[misc]
        report(name, [c - b for c, b in zip(calls, bare, strict=True)], 1e-9, "ns")


def with_mpi4py() -> int:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    data = bytearray(8)

    def once() -> None:
        if world.rank == 0:
            world.Send(data, dest=1)
            world.Recv(data, source=1)
        else:
            world.Recv(data, source=0)
            world.Send(data, dest=0)

    rounds = timed(once)
    if world.rank == 0:
        report("mpi4py_blocking_8B", [r / 2 for r in rounds])
    return 0


def with_gloo() -> int:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    data = torch.zeros(2)

    def once() -> None:
        if dist.get_rank() == 0:
            dist.send(data, 1)
            dist.recv(data, 1)
        else:
            dist.recv(data, 0)
            dist.send(data, 0)

    rounds = timed(once)
    if dist.get_rank() == 0:
        report("gloo_blocking_8B", [r / 2 for r in rounds])
    return 0


def imports() -> int:
    """New processes with the import and without, in turn."""
    def run(program: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        return time.perf_counter() - began

    pairs = [(run("import parley"), run("pass")) for _ in range(ROUNDS)]
    report("import_parley", [with_it - without for with_it, without in pairs], 1e-3, "ms")
    return 0


if __name__ == "__main__":
    ways = {"parley": with_parley, "import": imports, "mpi4py": with_mpi4py, "gloo": with_gloo}
    raise SystemExit(ways[sys.argv[1] if len(sys.argv) > 1 else "parley"]())

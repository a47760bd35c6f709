"""The heterogeneous design: an all-reduce among ranks with two kinds of GPU.

    python -m parley run -n 4 examples/python/mixed_cluster.py
    python examples/python/mixed_cluster.py --sim 4

Ranks 0 and 1 play an H100, and have the configs `nccl`, `cuda_graph` and `h100_optimized`; ranks 2 and 3 play an A100, and lack the last
one. The kernels only sleep for their modelled times, so no GPU is needed. All ranks get one list, and a capability check says what each
can run.

What had to change from the way the design writes it, and why:

- The masks alone do not say which configs work together. A config here names its wire class, the way in which it cuts its messages. In
  one wire class each rank may run its own: ranks 0 and 1 `h100_optimized`, ranks 2 and 3 the fastest of theirs. A config of another wire
  class that some rank lacks is left out on all ranks.
- Times of single configs do not say how fast a mixture is. Here the mixture itself is measured, as it will run, and its slowest rank
  counts: `h100_optimized` wins only if it makes the whole call faster.
- Capabilities come from a function of the rank, as in the design. On real GPUs, a config names what it needs in `requirements`, such as
  `sm_90`, and no function is needed.
"""

from __future__ import annotations

import sys

import numpy as np

import parley
from parley import configs

KINDS = ["H100", "H100", "A100", "A100"]
TIMES_MS = {"nccl": {"H100": 10.5, "A100": 8.5}, "cuda_graph": {"H100": 12.3, "A100": 12.3}, "h100_optimized": {"H100": 8.7}}
STEPS, ELEMENTS = 200, 1000


def kind_of(rank: int) -> str:
    return KINDS[rank % len(KINDS)]


def capability_check(rank: int) -> list[bool]:
    return [kind_of(rank) in times for times in TIMES_MS.values()]


class Prepared(configs.GroupConfig):
    """A kernel of this rank prepares the data; then all ranks add it up over a star, whatever their kernels are."""

    kinds, wire_class = ["all_reduce"], "prepared_star"

    def __init__(self, rank: parley.Rank, name: str) -> None:
        self.name, self.rank = name, rank

    async def kernel(self) -> None:
        await self.rank.sleep(TIMES_MS[self.name][kind_of(self.rank.id)] / 1e3)

    async def lead(self, call: configs.GroupCall) -> None:
        await self.kernel()
        n = len(call.data)
        slots = call.scratch(call.size * n)
        for p in range(1, call.size):
            call.receive(p, 0, slots[p * n:(p + 1) * n])
        await call.drain()
        for p in range(1, call.size):
            call.combine(call.data, slots[p * n:(p + 1) * n])
        await call.between()
        for p in range(1, call.size):
            call.send(p, 0, call.data)
        await call.drain()

    async def work(self, call: configs.GroupCall) -> None:
        await self.kernel()
        await call.until_sent(call.send(call.leader, 0, call.data))
        await call.until(call.receive(call.leader, 0, call.data))


async def main(rank: parley.Rank) -> None:
    sums = parley.register_heterogeneous_autotuning(rank, "sums", [Prepared(rank, name) for name in TIMES_MS], capability_check)
    gradients = np.empty(ELEMENTS, np.float32)
    for _ in range(STEPS):
        gradients[:] = rank.id + 1
        await sums.iall_reduce(gradients)
        assert (gradients == rank.world_size * (rank.world_size + 1) / 2).all()
    decision = sums.decision(gradients.nbytes)
    print(f"rank {rank.id} ({kind_of(rank.id)}) runs {decision.here}", flush=True)
    if rank.id == 0:
        print(decision.config, "-", decision.why)
        for each in decision.ranks:
            print(f"  rank {each.rank}: {each.config}")


if __name__ == "__main__":
    raise SystemExit(parley.simulate(main, ranks=int(sys.argv[2])) if sys.argv[1:2] == ["--sim"] else parley.run(main))

"""Example 3 of the asymmetric design: an all-reduce of leaders and workers in groups, and of the leaders among themselves.

    python -m parley run -n 8 examples/python/leaders_and_workers.py
    python examples/python/leaders_and_workers.py --sim 16

Ranks 0, 4, 8, … lead groups of up to four ranks. A group's leader collects and adds the data of its workers, adds it up with the other
leaders, and sends the result back. Each group, and the group of the leaders, finds its own fastest config. One of the candidates is the
program's own.

What had to change from the way the design writes it, and why:

- The design lists configs for leaders and for workers. Here one config has the functions of both, `lead` and `work`, so that no worker runs
  the half of another config than its leader.
- The leaders' exchange is an operation of its own, with configs of its own, which runs between collecting and returning. So a group and the
  leaders choose apart, and no config needs to know the other level.
- Trials need no barrier of all ranks: a group waits only for its own ranks, and a worker computes while the leaders talk.
- Sums are formed in the order of the ranks, so that all ranks have the same bits, with every config and in every run.
"""

from __future__ import annotations

import sys

import numpy as np

import parley
from parley import configs

GROUP, STEPS, ELEMENTS = 4, 100, 70_000


class OwnStar(configs.GroupConfig):
    """The workers send their data to the leader, which adds it and sends the sum back."""

    kinds = ["all_reduce"]

    async def lead(self, call: configs.GroupCall) -> None:
        n = len(call.data)
        slots = call.scratch(call.size * n)
        others = [p for p in range(call.size) if p != call.place]
        for p in others:
            call.receive(p, 0, slots[p * n:(p + 1) * n])
        await call.drain()
        slots[call.place * n:(call.place + 1) * n] = call.data
        call.data[:] = slots[:n]
        for p in range(1, call.size):
            call.combine(call.data, slots[p * n:(p + 1) * n])
        await call.between()  # the leaders among themselves
        for p in others:
            call.send(p, 0, call.data)
        await call.drain()

    async def work(self, call: configs.GroupCall) -> None:
        await call.until_sent(call.send(call.leader, 0, call.data))
        await call.until(call.receive(call.leader, 0, call.data))


async def main(rank: parley.Rank) -> None:
    world = rank.world_size
    groups = [list(range(first, min(first + GROUP, world))) for first in range(0, world, GROUP)]
    inside = parley.Collective(rank, "inside", role=lambda r: "leader" if r % GROUP == 0 else "worker", groups=groups,
                               configs=[configs.star(), configs.chain(65_536), OwnStar])
    leaders = parley.Collective(rank, "leaders", groups=[[group[0] for group in groups]], configs=[configs.star(), configs.two_shot()])

    pattern = (np.arange(ELEMENTS) % 7 + 1).astype(np.float32)
    data, computed = np.empty_like(pattern), 0.0
    for _ in range(STEPS):
        data[:] = (rank.id + 1) * pattern
        if inside.leads:
            await inside.iall_reduce(data, between=lambda combined: leaders.iall_reduce(combined))
        else:
            summing = inside.iall_reduce(data)
            computed += float(pattern @ pattern)  # meanwhile, the leaders talk
            await summing
        assert (data == world * (world + 1) / 2 * pattern).all()
    if inside.leads:
        print(f"group of rank {rank.id}: {inside.decision(data.nbytes).config or 'not decided'}", flush=True)
    if rank.id == 0:
        among = leaders.decision(data.nbytes).config or "not decided"
        print(f"leaders: {among}; each element is {world * (world + 1) // 2} times the pattern")


if __name__ == "__main__":
    raise SystemExit(parley.simulate(main, ranks=int(sys.argv[2])) if sys.argv[1:2] == ["--sim"] else parley.run(main))

"""Example 2 of the asymmetric design: ranks with different roles, each of which chooses among functions of its own.

    python -m parley run -n 3 examples/python/roles.py
    python examples/python/roles.py --sim 3

Rank 0 prepares batches, rank 1 scales them, rank 2 adds them up. Each stage receives, computes and sends. Each rank tries the functions
of its own role on the batches of the program, and then runs the fastest.

What had to change from the way the design writes it, and why:

- The design lists configs per role, without ids, so the places in the lists look as if they belonged together. They do not: the roles have
  different numbers of functions. Each role's list is its own choice, and the operation that is registered for a role is its default.
- A function that receives, computes and sends would be timed with its waits, and a stage that waits for a slow one before it would look
  slow itself. Here waits in calls of other operations are not charged to a function: only its own work counts.
- No rank waits for another to tune, because nothing has to be agreed. `register_coordinated_autotuning` takes the same lists where the
  roles have to choose together, such as the two sides of an exchange in several formats.
- The operation of a role is a function of one buffer; whatever else it needs, such as the transfers, it takes from around it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt

import parley

Batch = npt.NDArray[np.float64]
BATCHES, ROWS, COLUMNS = 400, 40, 25


def by_element(batch: Batch) -> None:
    for row in batch:
        for i in range(len(row)):
            row[i] = 2 * row[i] + 1


def by_row(batch: Batch) -> None:
    for row in batch:
        row[:] = 2 * row + 1


def at_once(batch: Batch) -> None:
    batch *= 2
    batch += 1


def summed_by_row(batch: Batch) -> float:
    return float(sum(row.sum() for row in batch))


async def main(rank: parley.Rank) -> None:
    stages = parley.Transfer(rank, "stages", edges=[(0, 1), (1, 2)])

    async def prepare(batch: Batch) -> None:
        batch[:] = np.arange(COLUMNS)
        await stages.isend(batch, to=1)

    def scale_by(compute: Callable[[Batch], None]) -> Callable[[Batch], Awaitable[None]]:
        async def scale(batch: Batch) -> None:
            await stages.ireceive(batch, source=0)  # this wait is not charged to it
            compute(batch)
            await stages.isend(batch, to=2)

        return scale

    def add_by(compute: Callable[[Batch], float]) -> Callable[[Batch], Awaitable[float]]:
        async def add(batch: Batch) -> float:
            await stages.ireceive(batch, source=1)
            return compute(batch)

        return add

    stage = parley.register_asymmetric_autotuning(
        rank, "stage",
        {"prepare": prepare, "scale": scale_by(by_row), "add": add_by(summed_by_row)},
        {"scale": {"by_element": scale_by(by_element), "at_once": scale_by(at_once)},
         "add": {"at_once": add_by(lambda batch: float(batch.sum()))}},
        lambda r: ["prepare", "scale", "add"][r] if r < 3 else "idle")
    if stage.idle:
        return
    batch = np.zeros((ROWS, COLUMNS))
    for _ in range(BATCHES):
        total = await stage.irun(batch)
        assert total is None or total == ROWS * COLUMNS * COLUMNS  # the sum of 2i + 1
    decision = stage.decision(batch.nbytes)
    print(f"rank {rank.id}, {stage.role}: {decision.config} - {decision.why}")


if __name__ == "__main__":
    raise SystemExit(parley.simulate(main, ranks=int(sys.argv[2])) if sys.argv[1:2] == ["--sim"] else parley.run(main))

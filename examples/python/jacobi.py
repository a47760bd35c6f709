"""Jacobi sweeps over a grid that the ranks share: the interior of each block is computed while its rim moves.

    python -m parley run -n 4 examples/python/jacobi.py [--nx 512] [--ny 512] [--sweeps 100]

The field begins as an eigenvector, so the change of each sweep is known, and the program compares.

What had to change from the usual program with MPI, and why:
- No rank computes neighbours, makes datatypes of columns, or packs. `Halo` has the grid of ranks, and a plan has the arrays, which include
  the rim. Each pair of neighbours finds out how to send rows and columns.
- There are two plans, for the two arrays that take turns, because a plan belongs to its memory. They are swapped with the arrays.
- The interior is a step of a flow that names no buffer. So it runs during the exchange, on another thread, while this thread moves the
  messages. If it named the array, it would wait for the ghosts in it.
"""

import argparse
import math

import numpy as np

import parley

words = argparse.ArgumentParser(description="Jacobi sweeps, the interior computed while the rims move.")
words.add_argument("--nx", type=int, default=512, help="columns of the grid")
words.add_argument("--ny", type=int, default=512, help="rows of the grid")
words.add_argument("--sweeps", type=int, default=100)
options = words.parse_args()


def share(cells: int, parts: int, mine: int) -> tuple[int, int]:
    """This part's number of cells, and its first one."""
    return cells // parts + (mine < cells % parts), mine * (cells // parts) + min(mine, cells % parts)


def sweep(u: np.ndarray, after: np.ndarray, rows: slice, columns: slice) -> float:
    """Computes cells of `after`, counted without the rim. Returns the sum of the squared changes."""
    y, x = range(u.shape[0] - 2)[rows], range(u.shape[1] - 2)[columns]
    if not y or not x:
        return 0.0

    def shifted(down: int, right: int) -> np.ndarray:
        return u[y[0] + 1 + down:y[-1] + 2 + down, x[0] + 1 + right:x[-1] + 2 + right]

    new = 0.25 * (shifted(-1, 0) + shifted(1, 0) + shifted(0, -1) + shifted(0, 1))
    changed = float(np.square(new - shifted(0, 0)).sum())
    after[y[0] + 1:y[-1] + 2, x[0] + 1:x[-1] + 2] = new
    return changed


def sweep_edges(u: np.ndarray, after: np.ndarray) -> float:
    """The cells that need ghosts: two rows, and the rest of two columns."""
    last_row, last_column = u.shape[0] - 3, u.shape[1] - 3
    parts = [(slice(0, 1), slice(None)), (slice(max(last_row, 1), None), slice(None)),
             (slice(1, last_row), slice(0, 1)), (slice(1, last_row), slice(max(last_column, 1), None))]
    return sum(sweep(u, after, *part) for part in parts)


def main(rank: parley.Rank) -> None:
    n = rank.world_size
    down = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    halo = parley.Halo(rank, "rims", ranks=[down, n // down])
    norms = parley.Collective(rank, "norms")
    (rows, first_row), (columns, first_column) = share(options.ny, down, halo.place[0]), share(options.nx, n // down, halo.place[1])

    u, after = np.zeros((rows + 2, columns + 2)), np.zeros((rows + 2, columns + 2))
    along_y = np.sin(math.pi * (first_row + 1 + np.arange(rows)) / (options.ny + 1))
    along_x = np.sin(math.pi * (first_column + 1 + np.arange(columns)) / (options.nx + 1))
    u[1:-1, 1:-1] = np.outer(along_y, along_x)
    ghosts, ghosts_after = halo.plan(u), halo.plan(after)
    eigenvalue = (math.cos(math.pi / (options.ny + 1)) + math.cos(math.pi / (options.nx + 1))) / 2

    changed = np.zeros(1)
    with parley.Dataflow(rank) as flow:
        for k in range(options.sweeps):
            moving = flow.exchange(ghosts)
            inner: list[float] = []
            interior = flow.compute(lambda: inner.append(sweep(u, after, slice(1, -1), slice(1, -1))), name="interior")  # noqa: B023
            moving.wait()
            interior.wait()
            changed[0] = inner[0] + sweep_edges(u, after)
            u, after, ghosts, ghosts_after = after, u, ghosts_after, ghosts
            if k % 50 and k + 1 != options.sweeps:
                continue
            norms.all_reduce(changed)
            norm = math.sqrt(changed[0])
            expected = eigenvalue**k * (1 - eigenvalue) * math.sqrt((options.nx + 1) * (options.ny + 1)) / 2
            if rank.id == 0:
                print(f"sweep {k}: the norm of the change is {norm:.12f}")
            if abs(norm - expected) > 1e-9 * expected:
                raise ValueError(f"the norm of sweep {k} is {norm} instead of {expected}")


if __name__ == "__main__":
    raise SystemExit(parley.run(main))

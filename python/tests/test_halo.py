"""Halo exchanges of arrays in place: grids and meshes, on real and on virtual ranks, and what goes wrong."""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import pytest
from conftest import Job

import parley

SHAPE = (6, 4)  # cells of a block, without the rim


def whole_of(rows: int, columns: int) -> np.ndarray:
    """A grid of blocks, each cell with its own number."""
    cells = np.arange(rows * SHAPE[0] * columns * SHAPE[1], dtype=np.float64)
    return cells.reshape(rows * SHAPE[0], columns * SHAPE[1])


def block_with_rim(grid: np.ndarray, place: list[int], width: int, periodic: bool) -> np.ndarray:
    """What a rank must have after an exchange with corners. Outside of a grid that is not periodic: -1."""
    padded = np.pad(grid, width, mode="wrap") if periodic else np.pad(grid, width, constant_values=-1)
    y, x = place[0] * SHAPE[0], place[1] * SHAPE[1]
    return padded[y:y + SHAPE[0] + 2 * width, x:x + SHAPE[1] + 2 * width]


async def exchange(rank: parley.Rank, width: int, periodic: bool) -> None:
    halo = parley.Halo(rank, "u", ranks=[2, 2], periodic=[periodic, periodic], width=[width, width], reach="corners",
                       configs=["direct", "by_piece", "chunked(chunk_bytes=64)"])
    right = block_with_rim(whole_of(2, 2), halo.place, width, periodic)
    inner = (slice(width, -width), slice(width, -width))
    u = np.full_like(right, -1)
    u[inner] = right[inner]
    points = np.full((*u.shape, 3), -1, dtype=np.int32)  # three numbers for each cell
    points[inner] = right[inner][..., None]
    at = u.ctypes.data
    plan = halo.plan(u, points)
    for _ in range(3):
        await plan.iexchange()
        assert (u == right).all(), (rank.id, u, right)
        assert (points == right[..., None]).all()
        assert u.ctypes.data == at
    assert halo.neighbours == (8 if periodic else 3)
    assert plan.sent_bytes > 0


@pytest.mark.parametrize(("width", "periodic"), [(1, True), (1, False), (2, True), (3, False)])
def test_ghosts_are_the_cells_of_the_neighbours_also_in_bad_weather(width: int, periodic: bool) -> None:
    async def main(rank: parley.Rank) -> None:
        await exchange(rank, width, periodic)

    for seed, faults in ((1, "none"), (2, "weather"), (3, "weather")):
        assert parley.simulate(main, ranks=4, seed=seed, faults=faults, strict=True) == 0
    for seed in range(4, 7):
        with contextlib.suppress(parley.PeerFailed):
            parley.simulate(main, ranks=4, seed=seed, faults="death")


def test_real_ranks_wait_for_their_ghosts(job: Job) -> None:
    made = job("""
import numpy as np
import parley

def main(rank):
    n = rank.world_size
    halo = parley.Halo(rank, "u", ranks=[n, 1], periodic=[True, False], width=[1, 1])
    u = np.full((5, 1002), rank.id, np.float32)
    v = np.full((5, 1002), 10 * rank.id, np.float32)
    plans = [halo.plan(u), halo.plan(v)]
    for step in range(100):
        u[1:-1] = rank.id + step
        assert plans[0].exchange() is None
        assert (u[0, 1:-1] == (rank.id - 1) % n + step).all() and (u[-1, 1:-1] == (rank.id + 1) % n + step).all()
        work = plans[1].iexchange()
        inner = u[1:-1].sum()      # meanwhile
        work.wait()
    assert (v[0, 1:-1] == 10 * ((rank.id - 1) % n)).all()
    assert halo.decision(4000, (rank.id + 1) % n).op.startswith("u ")
    print("well")

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well") == 3, made.stdout + made.stderr


def test_a_mesh_names_its_neighbours_and_its_elements() -> None:
    async def main(rank: parley.Rank) -> None:
        n, me = rank.world_size, rank.id
        left, right = (me - 1) % n, (me + 1) % n
        halo = parley.Halo(rank, "mesh", neighbours=[left, right])
        v = np.zeros(7)
        v[:3] = [me, me + 10, me + 20]
        plan = halo.plan(parley.MeshField(v, send=[[0, 2], [1]], receive=[[3], [4, 6]]))
        await plan.iexchange()
        assert v[3] == left + 10 and v[4] == right and v[6] == right + 20 and v[5] == 0

    assert parley.simulate(main, ranks=4) == 0


def test_what_cannot_be_exchanged_is_refused_before_anything_moves() -> None:
    with parley.join() as rank:
        grid = parley.Halo(rank, "grid", ranks=[1, 1], periodic=[True, True])
        whole = np.zeros((6, 6))
        for field, says in [
            (whole[:, ::2], "its elements do not follow each other"),
            (np.asfortranarray(np.arange(36.0).reshape(6, 6)), "its elements do not follow each other"),
            (bytearray(36), "has no shape"),
            (np.zeros(6), "1 dimensions in a grid of 2"),
            (np.zeros((2, 6)), "the rim alone needs 2"),
            (np.zeros((6, 6, 0)), "its cells are empty"),
            (np.broadcast_to(np.zeros(1), (6, 6)), "read-only|do not follow each other"),
            ([[1.0]], "is no memory"),
            (parley.MeshField(whole, [[0]], [[1]]), "a grid exchanges arrays"),
        ]:
            with pytest.raises(parley.BadArgument, match=says):
                grid.plan(field)
        with pytest.raises(parley.BadArgument):
            grid.plan(whole, whole)  # the ghosts of one field are the cells of the other
        mesh = parley.Halo(rank, "mesh", neighbours=[0])
        with pytest.raises(parley.BadArgument, match="pass MeshField"):
            mesh.plan(whole)
        with pytest.raises(parley.BadArgument):
            mesh.plan(parley.MeshField(np.zeros(3), send=[[7]], receive=[[1]]))
        with pytest.raises(parley.BadArgument, match="faces and corners"):
            parley.Halo(rank, "third", ranks=[1], reach="edges")
        with pytest.raises(parley.BadArgument):
            parley.Halo(rank, "fourth", ranks=[2])  # the world has one rank
        grid.plan(whole).exchange()


@pytest.mark.parametrize(("field", "says"), [("np.zeros((3, 9 + rank.id))", "bytes"),
                                             ("np.zeros((3, 9), [np.float64, np.int64][rank.id])", "type")])
def test_neighbours_with_other_arrays_are_told_both(job: Job, field: str, says: str) -> None:
    made = job(f"""
import numpy as np
import parley

def main(rank):
    halo = parley.Halo(rank, "u", ranks=[2, 1])
    plan = halo.plan({field})
    for again in range(2):
        try:
            plan.exchange()
        except parley.Failure as why:
            print("told", rank.id, why.code, why)

raise SystemExit(parley.run(main))
""")
    for r in (0, 1):
        assert made.stdout.count(f"told {r}") == 2, made.stdout + made.stderr
    assert says in made.stdout, made.stdout


def test_a_killed_neighbour_is_named(job: Job) -> None:
    made = job("""
import os, signal
import numpy as np
import parley

def main(rank):
    halo = parley.Halo(rank, "u", ranks=[3], periodic=[True])
    plan = halo.plan(np.zeros(5))
    plan.exchange()
    if rank.id == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            plan.exchange()
    except parley.Failure as why:
        print("told", rank.id, why.code, why.peer)

raise SystemExit(parley.run(main))
""", ranks=3)
    assert "told 0 peer_failed 1" in made.stdout and "told 2 peer_failed 1" in made.stdout, made.stdout + made.stderr


def test_plans_outlive_arrays_ranks_and_simulations() -> None:
    kept: list[parley.HaloPlan] = []

    async def main(rank: parley.Rank) -> None:
        halo = parley.Halo(rank, "u", ranks=[1], periodic=[True], configs=["direct", "put"])
        plan = halo.plan(np.arange(6.0))
        gc.collect()
        await plan.iexchange()
        kept.append(plan)

    assert parley.simulate(main, ranks=1) == 0
    with parley.join() as rank:
        plan = parley.Halo(rank, "u", ranks=[1], periodic=[True], configs=["direct", "put"]).plan(np.zeros(9))
        plan.exchange()
        kept.append(plan)
    for each in kept:
        with pytest.raises(parley.Failure) as caught:
            each.exchange()
        assert caught.value.code == "closed"
    kept.clear()
    gc.collect()

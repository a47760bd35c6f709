"""Collectives in two levels: inside groups, and between their leaders."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Job

import parley


async def all_calls(rank: parley.Rank, groups: parley.Hierarchy) -> None:
    n = rank.world_size
    pattern = np.arange(100) % 7 + 1
    x = ((rank.id + 1) * pattern).astype(np.float32)
    await groups.iall_reduce(x)
    assert (x == n * (n + 1) // 2 * pattern).all()
    low = np.array([rank.id + 3, -rank.id])
    await groups.iall_reduce(low, by="min")
    assert list(low) == [3, 1 - n]
    several = [np.full(5, rank.id), np.full(100_000, 2 * rank.id), np.full(3, 1)]
    before = groups.copies
    await groups.iall_reduce_each(several)
    total = n * (n - 1) // 2
    assert (several[0] == total).all() and (several[1] == 2 * total).all() and (several[2] == n).all()
    assert groups.copies > before  # the two small ones went together
    news = np.full(4, 7.5 if rank.id == 0 else 0.0)
    await groups.ibroadcast(news)
    assert (news == 7.5).all()
    everything = np.zeros(2 * n, np.int16)
    await groups.iall_gather(np.array([rank.id, 10 * rank.id], np.int16), everything)
    assert (everything.reshape(n, 2) == [[r, 10 * r] for r in range(n)]).all()
    part = np.zeros(2)
    await groups.ireduce_scatter(np.arange(2.0 * n), part)
    assert list(part) == [n * 2 * rank.id, n * (2 * rank.id + 1)]


def test_groups_of_any_size_agree_bit_for_bit_also_in_bad_weather() -> None:
    places: dict[int, tuple[bool, int, int]] = {}

    async def main(rank: parley.Rank) -> None:
        groups = parley.Hierarchy(rank, "sums", leads=lambda r: r % 4 == 0)
        places[rank.id] = (groups.leads, groups.group_size, groups.groups)
        await all_calls(rank, groups)

    assert parley.simulate(main, ranks=1) == 0
    for seed, faults in ((1, "none"), (2, "weather")):
        assert parley.simulate(main, ranks=6, seed=seed, faults=faults) == 0
    assert places == {r: (r % 4 == 0, 4 if r < 4 else 2, 2) for r in range(6)}


def test_ranks_of_one_kind_are_a_group(job: Job) -> None:
    made = job("""
import numpy as np
import parley

async def exchange(rank):
    groups = parley.Hierarchy(rank, "sums", group_by=rank.kind_of)
    x = np.full(1000, rank.id + 1.0)
    for _ in range(3):
        await groups.iall_reduce(x, by="max")
    assert (x == 4).all() and groups.groups == 2 and groups.group_size == 2
    assert len(groups.decision(x.nbytes)) == (2 if groups.leads else 1)
    print("well", rank.id, groups.leads)

import os
with parley.join(kind="odd" if int(os.environ["PARLEY_RANK"]) % 2 else "even") as rank:
    rank.start(exchange(rank)).wait()
""", ranks=4)
    for r in range(4):
        assert f"well {r} {r < 2}" in made.stdout, made.stdout + made.stderr


def test_blocking_calls_of_real_ranks(job: Job) -> None:
    made = job("""
import numpy as np
import parley

def main(rank):
    groups = parley.Hierarchy(rank, "sums", leads=lambda r: r != 1, inside=["star", "chain"], between=["star"])
    x = np.ones(10)
    assert groups.all_reduce(x) is None and (x == 3).all()
    groups.all_reduce_each([x, np.ones(1 << 17)], by="product")
    assert (x == 27).all()
    groups.broadcast(x)
    all_of = np.zeros(30)
    groups.all_gather(x, all_of)
    assert (all_of == 27).all()
    part = np.zeros(10)
    groups.reduce_scatter(all_of, part)
    assert (part == 81).all()
    print("well")

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well") == 3, made.stdout + made.stderr


def test_what_cannot_be_combined_is_refused() -> None:
    with parley.join() as rank:
        groups = parley.Hierarchy(rank, "sums")
        for data, by, says in [(np.zeros((4, 4))[:, 1], "sum", "do not follow each other"), (np.zeros(4, bool), "sum", "truth values"),
                               (np.zeros(4), "mean", "sum, product, min and max"), (b"1234", "sum", "read-only")]:
            with pytest.raises(parley.BadArgument, match=says):
                groups.all_reduce(data, by=by)
        with pytest.raises(parley.BadArgument, match="different types"):
            groups.all_reduce_each([np.zeros(4), np.zeros(4, np.float32)])
        with pytest.raises(parley.BadArgument, match="different types"):
            groups.all_gather(np.zeros(1), np.zeros(1, np.int64))
        with pytest.raises(parley.Failure):
            groups.all_gather(np.zeros(1), np.zeros(3))
        with pytest.raises(parley.BadArgument, match="kind is one of"):
            groups.decision(8, kind="gather")
        with pytest.raises(ZeroDivisionError):
            parley.Hierarchy(rank, "other", leads=lambda r: bool(1 // r))
        with pytest.raises(parley.Failure):
            parley.Hierarchy(rank, "third", leads=lambda r: False)
        groups.all_reduce_each([])
        assert parley.Hierarchy(rank, "numbers", group_by=lambda r: r // 2).groups == 1
        assert parley.Hierarchy(rank, "of numpy", leads=lambda r: np.bool_(r == 0)).leads


def test_other_sizes_and_types_on_another_rank_are_errors_everywhere(job: Job) -> None:
    made = job("""
import numpy as np
import parley

def main(rank):
    for name, mine in (("sizes", np.zeros(4 + rank.id % 2)), ("types", np.zeros(4, [np.float64, np.int64][rank.id % 2]))):
        groups = parley.Hierarchy(rank, name, leads=lambda r: r % 2 == 0, timeout=5)
        try:
            groups.all_reduce(mine)
        except parley.Failure as why:
            print("told", name, rank.id, why.code)
    x = np.ones(2)
    groups.all_reduce(x)
    assert (x == 4).all()

raise SystemExit(parley.run(main))
""", ranks=4)
    for name in ("sizes", "types"):
        for r in range(4):
            assert f"told {name} {r}" in made.stdout, made.stdout + made.stderr
    assert made.returncode == 0, made.stdout + made.stderr

"""Choices that are made on each rank, and must be the same on all: late, skipping, failing and cache-hitting ranks, and a dead one."""

from __future__ import annotations

import asyncio
import math
import random

import numpy as np
import pytest
from conftest import Job

import parley
from parley.agree import decide

answers: dict[int, dict[str, str]] = {}


def of_ranks(said: dict[int, dict[str, float] | None]) -> str | None:
    choice = decide({r: {"times": t} for r, t in said.items()}, [])["choice"]
    return None if choice is None else str(choice)


def test_the_slowest_rank_counts_and_what_failed_somewhere_does_not_win() -> None:
    assert of_ranks({0: {"a": 2.0, "b": 1.0}, 1: {"a": 2.0, "b": 9.0}}) == "a"
    assert of_ranks({0: {"a": 2.0, "b": 1.0}, 1: {"a": 2.0, "b": math.inf}}) == "a"
    assert of_ranks({0: {"a": 2.0, "b": 1.0}, 1: {"b": 1.0}}) == "b"
    assert of_ranks({0: {"a": 1.0}, 1: {"b": 1.0}}) is None
    assert of_ranks({0: {"a": 1.0}, 1: None}) == "a"
    assert decide({2: {"cached": "x"}, 1: {"cached": "y"}}, [0]) == {"choice": "y", "why": "rank 1 has it in its cache; without rank 0"}
    assert decide({1: {"cached": "y"}, 2: {"times": {"x": 1.0}}}, [])["choice"] == "x"


async def noisy(rank: parley.Rank) -> None:
    tuner = parley.Agreement(rank, "tuner", patience=1.0)
    dice = random.Random(rank.id)
    mine = answers.setdefault(rank.id, {})
    keys = [f"key{i}" for i in range(20)]
    dice.shuffle(keys)
    for key in keys:
        await rank.sleep(dice.random() * 0.001)
        mine[key] = await tuner.chosen(key, {f"config{c}": 1.0 + 0.03 * dice.random() for c in range(8)})
        assert tuner.why(key).startswith("its slowest rank takes 1")
    await rank.sleep(2.0)
    await tuner.close()


def test_ranks_that_meet_keys_in_other_orders_and_with_noise_are_unanimous() -> None:
    for seed in range(1, 4):
        answers.clear()
        # In other orders each waits for the others, so all wait for at most the patience.
        assert parley.simulate(noisy, ranks=4, seed=seed) == 0
        assert len(answers) == 4
        assert all(a == answers[0] for a in answers.values()), answers


def test_late_skipping_caching_and_failing_ranks_get_the_same_answer() -> None:
    seen: dict[int, list[str]] = {}

    async def main(rank: parley.Rank) -> None:
        tuner = parley.Agreement(rank, "tuner", patience=0.5)
        times = {"a": 2.0, "b": 1.0}
        mine = seen.setdefault(rank.id, [])
        began = rank.now_ns()
        if rank.id == 3:
            tuner.skip("one")
        else:
            mine.append(await tuner.chosen("one", times if rank.id else {"a": 2.0, "b": math.inf}))
            assert rank.now_ns() - began < 0.1e9
        # Rank 2 has an answer already, which does not count beside what others have measured.
        mine.append(await tuner.chosen("two", cached="a") if rank.id == 2 else await tuner.chosen("two", times))
        # Rank 1 comes late.
        if rank.id == 1:
            await rank.sleep(1.0)
        began = rank.now_ns()
        mine.append(await tuner.chosen("three", {"a": 9.0, "b": 10.0} if rank.id == 1 else times))
        waited = (rank.now_ns() - began) / 1e9
        assert waited < 0.1 if rank.id == 1 else 0.4 < waited < 0.7, (rank.id, waited)
        # Nothing works everywhere.
        mine.append(await tuner.chosen("four", {"a" if rank.id else "b": 1.0}, default="usual"))
        with pytest.raises(parley.Failure) as caught:
            await tuner.chosen("four", times)
        assert caught.value.code == "no_common_config"
        await rank.sleep(2.0)
        await tuner.close()

    assert parley.simulate(main, ranks=4) == 0
    assert seen[0] == seen[1] == seen[2] == ["a", "b", "b", "usual"]
    assert seen[3] == ["b", "b", "usual"]


def test_processes_agree_and_do_not_wait_for_a_dead_one(job: Job) -> None:
    made = job("""
import os, signal, time
import parley

def main(rank):
    tuner = parley.Agreement(rank, "tuner", patience=20)
    times = {"a": 2.0, "b": 1.0 if rank.id else 3.0}
    assert tuner.choose("first", times) == "a"
    assert tuner.choose("first", {"z": 1.0}) == "a"
    if rank.id == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    print(rank.id, tuner.choose("second", times), tuner.why("second"))
    assert time.monotonic() - began < 10
    time.sleep(0.2)

raise SystemExit(parley.run(main))
""", ranks=3)
    for r in (0, 1):
        assert f"{r} a its slowest rank takes 2 s, the least of 2; without rank 2" in made.stdout, made.stdout + made.stderr


def test_what_makes_no_sense_is_refused() -> None:
    with parley.join() as rank:
        tuner = parley.Agreement(rank, "tuner")
        with pytest.raises(parley.BadArgument, match="a rank with neither calls skip"):
            tuner.choose("key")
        assert tuner.choose("key", {"only": 1.0}) == "only"


def test_in_asyncio_and_with_numbers_of_other_types() -> None:
    async def main(rank: parley.Rank) -> str:
        tuner = parley.Agreement(rank, "tuner", patience=3)
        return await tuner.chosen("key", {"a": np.float32(1.0), "b": 2})

    with parley.join() as rank:
        assert asyncio.run(main(rank)) == "a"
        tuner = parley.Agreement(rank, "other")
        with pytest.raises(ValueError, match="slow"):
            tuner.choose("key", {"a": "slow"})  # type: ignore[dict-item]
        assert tuner.choose("key", {"a": 1.0}) == "a"

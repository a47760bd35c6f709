"""Autotuners of other libraries choose the same on all ranks: noise, and late, skipping, cache-hitting and failing ranks."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import Job

import parley

has_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
has_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

# Triton's own Autotuner, with stand-ins for the kernel and for the clock: no GPU is needed.
TRITON = """
import time
import parley
from triton.runtime.autotuner import Autotuner, Config

class Kernel:
    def __init__(self):
        self.ran = []
        self.fn = lambda x, n: None
    def run(self, *args, **meta):
        self.ran.append(meta["TILE"])

def kernel_of(rank, seconds_of, tiles=(16, 32, 64)):
    fn = Kernel()
    def bench(call, quantiles):
        call()
        seconds = seconds_of[fn.ran[-1]]
        if isinstance(seconds, Exception):
            raise seconds
        return [seconds, seconds, seconds]
    return Autotuner(fn, ["x", "n"], [Config({"TILE": tile}) for tile in tiles], ["n"], None, None, do_bench=bench)
"""


@has_triton
def test_noise_late_failing_and_caching_ranks_run_one_config_of_triton(job: Job) -> None:
    made = job(TRITON + """
def main(rank):
    tuner = parley.Agreement(rank, "autotune", patience=20)
    noise = 0.03 * rank.id
    # Each rank alone would choose another one.
    kernel = kernel_of(rank, {16: [1.0, 1.2, 1.1][rank.id], 32: 1.01 + noise, 64: [1.3, 1.0, 1.2][rank.id]})
    if rank.id == 1:
        kernel.run(None, 7)                                    # before it takes part: in its cache
    assert parley.autotuners.triton(tuner, kernel, "kernel") is kernel
    if rank.id == 2:
        time.sleep(0.5)                                        # late
    kernel.run(None, 100)
    print(rank.id, "runs", kernel.best_config.kwargs["TILE"], tuner.why("kernel (100,)"))
    benched = len(kernel.fn.ran)
    kernel.run(None, 100)
    assert len(kernel.fn.ran) == benched + 1
    # Rank 1 has chosen 64 for 7 before; what the others measure counts.
    kernel.run(None, 7)
    print(rank.id, "cached", kernel.best_config.kwargs["TILE"])
    # A candidate fails on one rank.
    failing = kernel_of(rank, {16: RuntimeError("no shared memory") if rank.id == 1 else 0.5, 32: 1.0, 64: 1.1})
    parley.autotuners.triton(tuner, failing, "failing")
    failing.run(None, 1)
    print(rank.id, "without the failing one", failing.best_config.kwargs["TILE"])
    # All fail on one rank: all ranks are told.
    broken = kernel_of(rank, dict.fromkeys((16, 32, 64), ValueError("broken") if rank.id == 2 else 1.0))
    parley.autotuners.triton(tuner, broken, "broken")
    try:
        broken.run(None, 1)
    except parley.Failure as why:
        print(rank.id, "told", why.code)
    tuner.skip("end")

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0, made.stdout + made.stderr
    for r in range(3):
        assert f"{r} runs 32 its slowest rank takes 1.07 s, the least of 3" in made.stdout, made.stdout
        assert f"{r} cached 16" in made.stdout or f"{r} cached 32" in made.stdout, made.stdout
        assert f"{r} without the failing one 32" in made.stdout, made.stdout
        assert f"{r} told no_common_config" in made.stdout, made.stdout
    assert len({line.split("cached")[1] for line in made.stdout.splitlines() if " cached " in line}) == 1, made.stdout
    assert "no shared memory" in made.stderr


@has_triton
def test_a_rank_that_never_runs_the_kernel_costs_the_patience_once(job: Job) -> None:
    made = job(TRITON + """
def main(rank):
    tuner = parley.Agreement(rank, "autotune", patience=0.5)
    kernel = parley.autotuners.triton(tuner, kernel_of(rank, {16: 1.0 + rank.id, 32: 1.5, 64: 9.0}))
    if rank.id == 2:
        time.sleep(1.5)
        kernel.run(None, 1)                                    # gets the answer at once
        print("late rank runs", kernel.best_config.kwargs["TILE"])
        return
    for n in (1, 2):
        began = time.monotonic()
        kernel.run(None, n)
        assert 0.3 < time.monotonic() - began < 1.2, time.monotonic() - began
    began = time.monotonic()
    kernel.run(None, 1)
    assert time.monotonic() - began < 0.1
    print(rank.id, "runs", kernel.best_config.kwargs["TILE"])
    time.sleep(1.0 if rank.id == 0 else 0.0)
    tuner.skip("end")

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0, made.stdout + made.stderr
    for who in ("0", "1", "late rank"):
        assert f"{who} runs 32" in made.stdout, made.stdout


# The shape of FlashInfer's AutoTuner. Two tactics of one kernel take scratch memory of different sizes: ranks that differ hang.
CHOOSE_ONE = """
import time
import numpy as np
import parley

class Runner:
    def __init__(self, tactics):
        self.tactics = tactics

class AutoTuner:
    def __init__(self, milliseconds_of):
        self.cache, self.milliseconds_of, self.profiled = {}, milliseconds_of, 0
    def _profile_single_kernel(self, runner, inputs, tactic, **named):
        self.profiled += 1
        milliseconds = self.milliseconds_of[tactic]
        if isinstance(milliseconds, Exception):
            raise milliseconds
        return milliseconds
    def choose_one(self, op, runners, tuning_config, inputs, **named):
        key = op, inputs[0].shape
        if key not in self.cache:
            times = {}
            for runner in runners:
                for tactic in runner.tactics:
                    times[runner, tactic] = self._profile_single_kernel(runner, inputs, tactic)
            self.cache[key] = min(times, key=times.get)
        return self.cache[key]
"""


def test_a_tuner_with_choose_one_takes_one_tactic_on_all_ranks(job: Job) -> None:
    made = job(CHOOSE_ONE + """
def main(rank):
    tuner = parley.Agreement(rank, "tactics", patience=20)
    runners = [Runner([-1, 8]), Runner([(16, "fast")])]
    # Tile 16 on ranks 1 and 2 and tile 8 on rank 0, for m = 16: within the noise.
    own = AutoTuner({-1: 2.0, 8: 1.00 + 0.02 * rank.id, (16, "fast"): 1.01})
    assert parley.autotuners.choose_one(tuner, own) is own
    x = np.zeros((16, 4), np.float32)
    runner, tactic = own.choose_one("moe", runners, None, [x])
    print(rank.id, "m=16", runners.index(runner), tactic)
    profiled = own.profiled
    assert own.choose_one("moe", runners, None, [x]) == (runner, tactic) and own.profiled == profiled

    # A rank starts with a warm cache: it measures nothing, and the others do.
    y = np.zeros((32, 4), np.float32)
    if rank.id == 0:
        own.cache["moe", y.shape] = runners[0], 8
    if rank.id == 1:
        time.sleep(0.5)
    runner, tactic = own.choose_one("moe", runners, None, [y])
    print(rank.id, "m=32", runners.index(runner), tactic)

    # All ranks have it in their caches, each another one.
    z = np.zeros((64, 4), np.float32)
    own.cache["moe", z.shape] = [(runners[1], (16, "fast")), (runners[0], 8), (runners[0], -1)][rank.id]
    runner, tactic = own.choose_one("moe", runners, None, [z])
    print(rank.id, "m=64", runners.index(runner), tactic)

    # A tactic throws on one rank.
    own.milliseconds_of = {-1: 2.0, 8: 1.0, (16, "fast"): RuntimeError("illegal address") if rank.id == 2 else 0.5}
    runner, tactic = own.choose_one("moe", runners, None, [np.zeros((128, 4), np.float32)])
    print(rank.id, "m=128", runners.index(runner), tactic)

    # One rank skips the operation, and another one's tuner fails as a whole: nobody waits for them.
    began = time.monotonic()
    w = np.zeros((256, 4), np.float32)
    if rank.id == 0:
        runner, tactic = own.choose_one("moe", runners, None, [w])
        print(rank.id, "m=256", runners.index(runner), tactic)
    elif rank.id == 1:
        tuner.skip("moe float32[256, 4]")
    else:
        try:
            own.choose_one("moe", [object()], None, [w])
        except AttributeError:
            print("fails")
    assert time.monotonic() - began < 10
    tuner.choose("end", {"end": 0})

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0, made.stdout + made.stderr
    for r in range(3):
        # The slowest rank takes 1.04 with tile 8.
        assert f"{r} m=16 1 (16, 'fast')" in made.stdout, made.stdout
        assert f"{r} m=32 1 (16, 'fast')" in made.stdout, made.stdout
        assert f"{r} m=64 1 (16, 'fast')" in made.stdout, made.stdout
        assert f"{r} m=128 0 8" in made.stdout, made.stdout
    assert "0 m=256" in made.stdout and "fails" in made.stdout
    assert "illegal address" in made.stderr


@has_torch
def test_inductor_takes_the_choice_of_all_ranks(job: Job) -> None:
    made = job("""
import math
import torch
import parley
from torch._inductor import select_algorithm

class Choice:
    def __init__(self, text):
        self.text = text
    def hash_key(self):
        return self.text

class Node:
    def get_dtype(self):
        return torch.float16
    def get_size(self):
        return [64, 64]

def main(rank):
    tuner = parley.Agreement(rank, "inductor", patience=20)
    parley.autotuners.inductor(tuner)
    choices = [Choice("a"), Choice("b"), Choice("c")]
    timings = dict(zip(choices, [[1.0, 1.1, 3.0], [2.0, 1.2, 0.5]][rank.id]))
    for saver in select_algorithm.get_algorithm_selector_cache().feedback_saver_fns:
        saver(timings, "mm", [Node(), Node()], choices, None, {})
    best = min(timings, key=timings.get)
    print(rank.id, "takes", best.text, [math.isfinite(t) for t in timings.values()])

raise SystemExit(parley.run(main))
""", limit=110)
    assert made.returncode == 0, made.stdout + made.stderr
    for r in range(2):
        assert f"{r} takes b [False, True, False]" in made.stdout, made.stdout


def test_what_is_no_autotuner_is_refused() -> None:
    with parley.join() as rank:
        tuner = parley.Agreement(rank, "tuner")
        with pytest.raises(parley.BadArgument, match="no autotuned kernel of Triton"):
            parley.autotuners.triton(tuner, print)
        with pytest.raises(AttributeError, match="choose_one"):
            parley.autotuners.choose_one(tuner, object())

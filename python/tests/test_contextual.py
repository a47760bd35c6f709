"""Functions that call kernels are tuned as a whole, and all ranks run the same implementations."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from conftest import Job

import parley


def test_two_kernels_take_the_runs_of_the_known_example(tmp_path: Path) -> None:
    ran: list[str] = []

    def kernel(rank: parley.Rank, name: str, configs: int) -> parley.Kernel:
        def of(i: int) -> object:
            return lambda x: ran.append(f"{name}.{i}")
        return parley.Kernel(rank, name, {f"config{i}": of(i) for i in range(configs)}, key=lambda x: {"n": x})  # type: ignore[misc]

    with parley.join() as rank:
        one, two = kernel(rank, "one", 2), kernel(rank, "two", 3)
        layer = parley.Contextual(rank, "layer", iterations=2)

        def step() -> int:
            one(7)
            two(7)
            return len(ran)

        assert layer.run(step) == 14 and layer.runs == 7
        assert [r for r in ran if r.startswith("two")][:6] == ["two.0", "two.0", "two.1", "two.1", "two.2", "two.2"]
        assert layer.run(step) == 16 and layer.runs == 8
        best = layer.best("one", "n=7")
        assert best in ("config0", "config1") and ran[-2] == f"one.{best[-1]}"
        assert layer.decision("one", "n=7").evidence[0].status == "measured"
        assert layer.best("one", "n=8") == "" and not layer.idle
        log = (tmp_path / ".autotune_logs/rank-0.log").read_text()
        assert "func: two | key: {n=7} | config-id: 2" in log


BEGIN = """
import os, signal, threading, time
import numpy as np
import parley

def main(rank):
    sums = parley.Collective(rank, "sums")
    def taking(**seconds):
        def of(s):
            def run(*words):
                if s is None:
                    raise OSError("out of memory")
                time.sleep(s)
            return run
        return {name: of(s[rank.id % len(s)] if isinstance(s, list) else s) for name, s in seconds.items()}
"""


def test_the_slowest_rank_counts_and_blocking_calls_are_part_of_the_function(job: Job) -> None:
    made = job(BEGIN + """
    one = parley.Kernel(rank, "one", taking(usual=0.03, skewed=[0.0, 0.04], good=0.01), key=lambda x: {"n": len(x)})
    two = parley.Kernel(rank, "two", taking(usual=0.02, fails=[0.0, None], good=0.0), key=lambda x: {"n": len(x)})

    @parley.contextual_autotune(is_dist=True, n_repeat=2, n_warmup=1)
    def layer(x, scale):
        y = x * scale
        sums.all_reduce(y)
        one(x)
        two(x)
        return y

    x = np.ones(4)
    for again in range(2):
        assert (layer(x, scale=2) == 2 * rank.world_size).all()
    print([r[:3] for r in parley.tunable.get_results()])
    began = time.monotonic()
    layer(x, 1)
    assert time.monotonic() - began < 0.25  # one run
    assert layer.__name__ == "layer"

raise SystemExit(parley.run(main))
""", ranks=2)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.count("[('main_layer/one', 'n=4', 'good'), ('main_layer/two', 'n=4', 'good')]") == 2, made.stdout + made.stderr


def test_ranks_agree_for_each_key_in_whatever_order_they_meet_them(job: Job) -> None:
    made = job(BEGIN + """
    kernel = parley.Kernel(rank, "kernel", taking(a=[0.0, 0.03], b=0.01), key=lambda n: {"n": n})
    layer = parley.Contextual(rank, "layer", iterations=2)

    def f():
        for n in ((1, 2, 3) if rank.id else (3, 1, 2)):
            kernel(n)

    layer.run(f)
    print(rank.id, [layer.best("kernel", f"n={n}") for n in (1, 2, 3)], layer.decision("kernel", "n=2").ranks[1].config)

raise SystemExit(parley.run(main))
""")
    for r in (0, 1):
        assert f"{r} ['b', 'b', 'b'] b" in made.stdout, made.stdout + made.stderr


def test_what_fails_on_a_rank_is_left_out_and_nothing_left_is_an_error_everywhere(job: Job) -> None:
    made = job(BEGIN + """
    half = parley.Kernel(rank, "half", taking(slow=0.02, broken=[None, 0.0], right=0.0))
    none = parley.Kernel(rank, "none", taking(broken=[None, 0.0], other=[0.0, None]))
    layer = parley.Contextual(rank, "layer", iterations=1)
    assert layer.run(lambda: half()) is None
    print("best", rank.id, layer.best("half"), [e.status for e in layer.decision("half").evidence])
    try:
        layer.run(lambda: none())
    except parley.Failure as why:
        print("told", rank.id, why.code, why)
    layer.run(lambda: half())

raise SystemExit(parley.run(main))
""")
    for r in (0, 1):
        assert f"best {r} right" in made.stdout and f"told {r} config_failed" in made.stdout, made.stdout + made.stderr
        assert "cannot find valid config" in made.stdout
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("blocking", [True, False])
def test_an_exception_of_the_function_ends_the_call_on_all_ranks(job: Job, blocking: bool) -> None:
    call = "layer.run(f)" if blocking else "layer.irun(f).wait()"
    made = job(BEGIN + f"""
    kernel = parley.Kernel(rank, "kernel", taking(a=0.0, b=0.0))
    layer = parley.Contextual(rank, "layer", timeout=20)
    count = 0

    def f():
        nonlocal count
        count += 1
        kernel()
        if rank.id == 1 and count == 3:
            raise KeyError("lost")

    try:
        {call}
    except KeyError as why:
        print("own", rank.id, why)
    except parley.Failure as why:
        print("told", rank.id, why.code, why.peer, why)
    count = 5
    {call}
    print("best", layer.best("kernel") != "")

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0 and "own 1 'lost'" in made.stdout and made.stdout.count("best True") == 3, made.stdout + made.stderr
    for r in (0, 2):
        assert f"told {r} " in made.stdout and "KeyError: 'lost'" in made.stdout, made.stdout


def test_alike_ranks_share_the_work(job: Job) -> None:
    made = job(BEGIN + """
    tried = set()

    def of(name):
        def run():
            tried.add(name)
            time.sleep(0.001 if name == "c" else 0.01)
        return run

    parley.tunable.set_max_tuning_iterations(2)
    kernel = parley.Kernel(rank, "kernel", {name: of(name) for name in "abcdefgh"})
    layer = parley.Contextual(rank, "layer", share=True)
    layer.run(lambda: kernel())
    print("shares", rank.id, len(tried), layer.best("kernel"))

raise SystemExit(parley.run(main))
""")
    said = sorted(line.split("shares ")[1] for line in made.stdout.splitlines() if "shares" in line)
    assert len(said) == 2 and all(each.endswith(" c") for each in said), made.stdout + made.stderr
    assert all(int(each.split()[1]) < 8 for each in said), said


def test_a_killed_rank_ends_the_call(job: Job) -> None:
    made = job(BEGIN + """
    kernel = parley.Kernel(rank, "kernel", taking(a=0.0, b=0.0))
    layer = parley.Contextual(rank, "layer", timeout=20)
    count = 0

    def dies():
        nonlocal count
        count += 1
        kernel()
        if rank.id == 0 and count == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        layer.run(dies)
    except parley.Failure as why:
        print("told", rank.id, why.code, why.peer)

raise SystemExit(parley.run(main))
""", ranks=3)
    assert "told 1 peer_failed 0" in made.stdout and "told 2 peer_failed 0" in made.stdout, made.stdout + made.stderr


def test_ctrl_c_ends_the_call_on_all_ranks_and_the_next_one_runs(job: Job) -> None:
    made = job(BEGIN + """
    kernel = parley.Kernel(rank, "kernel", taking(a=0.0, b=0.0))
    layer = parley.Contextual(rank, "layer", timeout=20)
    asks = True

    def f():
        sums.all_reduce(np.ones(1))
        kernel()
        if rank.id == 0 and asks:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    try:
        layer.run(f)
    except KeyboardInterrupt:
        print("interrupted", rank.id)
    except parley.Failure as why:
        print("ended", rank.id, why.code)
    sums = parley.Collective(rank, "others")
    asks = False
    layer.run(f)
    print("best", layer.best("kernel") != "")

raise SystemExit(parley.run(main))
""", ranks=3)
    assert "interrupted 0" in made.stdout and "ended 1" in made.stdout and "ended 2" in made.stdout, made.stdout + made.stderr
    assert made.stdout.count("best True") == 3, made.stdout + made.stderr


def test_virtual_ranks_tune_coroutines() -> None:
    runs: dict[int, list[int]] = {}

    async def main(rank: parley.Rank) -> None:
        sums = parley.Collective(rank, "sums")
        kernel = parley.Kernel(rank, "kernel", {"a": lambda x: None, "b": lambda x: None, "c": lambda x: None}, key=lambda x: {"n": x})
        layer = parley.Contextual(rank, "layer", iterations=2, log_folder="")

        async def f() -> float:
            x = np.ones(1)
            await sums.iall_reduce(x)
            kernel(3)
            return float(x[0])

        for _ in range(2):
            assert await layer.irun(f) == 4.0
        assert await layer.irun(lambda: 5) == 5
        runs.setdefault(layer.runs, []).append(rank.id)
        assert layer.best("kernel", "n=3") != ""

    for seed, faults in ((1, "none"), (2, "weather")):
        runs.clear()
        assert parley.simulate(main, ranks=4, seed=seed, faults=faults) == 0
        assert list(runs) == [9]


def test_decorated_functions_in_each_other_in_asyncio_and_for_one_rank() -> None:
    tried: list[str] = []

    @parley.contextual_autotune(n_repeat=1, n_warmup=0)
    def inner(kernel: parley.Kernel) -> str:
        kernel()
        return "inner"

    @parley.contextual_autotune(is_dist=True, n_repeat=1, n_warmup=0)
    def outer(kernel: parley.Kernel) -> str:
        return inner(kernel) + " and outer"

    @parley.contextual_autotune(is_dist=True, n_repeat=1, n_warmup=0)
    async def later(rank: parley.Rank, kernel: parley.Kernel) -> str:
        await rank.sleep(0.001)
        kernel()
        return "later"

    with pytest.raises(RuntimeError, match="in no job"):
        inner(None)  # type: ignore[arg-type]
    for _ in range(2):
        with parley.join() as rank:
            tried.clear()
            kernel = parley.Kernel(rank, "kernel", {"a": lambda: tried.append("a"), "b": lambda: tried.append("b")})
            assert outer(kernel) == "inner and outer"
            assert tried[:2] == ["a", "b"] and len(tried) == 3
            tried.clear()
            assert inner(kernel) == "inner" and len(tried) == 3
            tried.clear()
            assert asyncio.run(later(rank, kernel)) == "later" and len(tried) == 3
            with pytest.raises(parley.BadArgument, match="cannot be called"):
                parley.Contextual(rank, "other").run(3)  # type: ignore[arg-type]
            with pytest.raises(parley.BadArgument, match="grouped and interleaved"):
                parley.Contextual(rank, "third", order="any")
            with pytest.raises(parley.BadArgument):
                parley.Contextual(rank, "fourth", iterations=0)
            with pytest.raises(parley.BadArgument, match="before it decorates"):
                parley.contextual_autotune(lambda: None)  # type: ignore[arg-type]

            async def inside(rank: parley.Rank) -> int:
                with pytest.raises(parley.BadArgument, match="await"):
                    parley.Contextual(rank, "fifth").run(lambda: None)
                return 7

            assert rank.start(inside(rank)).wait() == 7


def test_ranks_that_ask_for_other_runs_are_told(job: Job) -> None:
    made = job(BEGIN + """
    kernel = parley.Kernel(rank, "kernel", taking(a=0.0, b=0.0))
    layer = parley.Contextual(rank, "layer", iterations=2 + rank.id, timeout=5)
    try:
        layer.run(lambda: kernel())
    except parley.Failure as why:
        print("told", rank.id, why.code)

raise SystemExit(parley.run(main))
""")
    assert "told 0 declaration_mismatch" in made.stdout and "told 1 declaration_mismatch" in made.stdout, made.stdout + made.stderr

"""Pipelines whose stages are functions of the program, forward alone and with gradients, and stages with several implementations."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import Job

import parley

WIDTH, BATCH, MICROBATCHES = 8, 4, 6


def weight_of(stage: int) -> np.ndarray:
    return np.random.default_rng(stage).standard_normal((WIDTH, WIDTH)) / WIDTH


def input_of(microbatch: int) -> np.ndarray:
    return np.random.default_rng(100 + microbatch).standard_normal((BATCH, WIDTH))


class Layers:
    """Stage s computes tanh(x w_s). The loss is half the sum of the squares of the last stage's output."""

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self.weights = [weight_of(s) for s in range(stages)]
        self.gradients = [np.zeros((WIDTH, WIDTH)) for _ in range(stages)]

    def forward(self, stage: int, microbatch: int, x: np.ndarray | None, out: np.ndarray) -> None:
        np.tanh((input_of(microbatch) if x is None else x) @ self.weights[stage], out=out)

    def backward(self, stage: int, microbatch: int, x: np.ndarray | None, out: np.ndarray, gradient_out: np.ndarray | None,
                 gradient_in: np.ndarray | None) -> None:
        inside = (out if gradient_out is None else gradient_out) * (1 - out * out)
        self.gradients[stage] += (input_of(microbatch) if x is None else x).T @ inside
        if gradient_in is not None:
            np.matmul(inside, self.weights[stage].T, out=gradient_in)


def gradients_alone(stages: int) -> list[np.ndarray]:
    """The same as one process computes it."""
    layers = Layers(stages)
    for microbatch in range(MICROBATCHES):
        acts: list[np.ndarray | None] = [None]
        for s in range(stages):
            out = np.zeros((BATCH, WIDTH))
            layers.forward(s, microbatch, acts[s], out)
            acts.append(out)
        gradient: np.ndarray | None = None
        for s in reversed(range(stages)):
            out_of_s = acts[s + 1]
            assert out_of_s is not None
            before = np.zeros((BATCH, WIDTH)) if s else None
            layers.backward(s, microbatch, acts[s], out_of_s, gradient, before)
            gradient = before
    return layers.gradients


FOLDED = "0F0,3F0,0F1,3F1,3B0,0B0,3B1,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n"  # stages 0 and 3 on rank 0


def schedules(ranks: int) -> list[parley.Schedule]:
    return [parley.Schedule.gpipe(ranks, MICROBATCHES), parley.Schedule.one_forward_one_backward(ranks, MICROBATCHES),
            parley.Schedule.interleaved(ranks, MICROBATCHES, 2)]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradients_are_those_of_one_process_in_any_weather(which: int) -> None:
    async def main(rank: parley.Rank) -> None:
        schedule = schedules(rank.world_size)[which]
        layers = Layers(schedule.stages)
        right = gradients_alone(schedule.stages)
        pipe = parley.TrainingPipeline(rank, "layers", schedule, shape=(BATCH, WIDTH), dtype=np.float64)
        mine = [s for s in range(schedule.stages) if schedule.rank_of(s) == rank.id]
        for _ in range(2):
            layers.gradients = [np.zeros((WIDTH, WIDTH)) for _ in range(schedule.stages)]
            report = await pipe.irun(layers.forward, layers.backward)
            for s in mine:
                assert (layers.gradients[s] == right[s]).all(), (rank.id, s)
            assert report.sent > 0 and 0 <= report.ideal_idle_share < 1

    for seed, faults in ((1, "none"), (2, "weather")):
        assert parley.simulate(main, ranks=3, seed=seed, faults=faults, strict=True) == 0
    for seed in range(3, 6):
        try:
            parley.simulate(main, ranks=3, seed=seed, faults="death")
        except parley.Failure as why:
            assert why.code in ("peer_failed", "closed"), why


def test_own_schedules_and_their_estimates() -> None:
    p4 = parley.Schedule.one_forward_one_backward(4, 8)
    estimate = p4.estimate()
    assert estimate.makespan == 33 and abs(estimate.idle_share - 3 / 11) < 1e-9 and estimate.alive == [4, 3, 2, 1]
    assert p4.messages == 48 and p4.stages == 4 and p4.ranks == 4 and p4.microbatches == 8
    assert parley.Schedule.interleaved(4, 8, 4).estimate(forward=0.25, backward=0.5).makespan == 26.25
    assert parley.Schedule.parse(str(p4)) == p4 and p4 != parley.Schedule.gpipe(4, 8)
    folded = parley.Schedule.parse(FOLDED)
    assert [folded.rank_of(s) for s in range(4)] == [0, 1, 1, 0]
    for text, says in [("0F0\n", "0B0 is missing"), ("0F0,\n", "missing"), ("0F0,0B0,0F0\n", "0F0"),
                       ("0B0,0F0\n", "0"), ("hello\n", "schedule:1:1"), ("", "empty|no ")]:
        with pytest.raises(parley.Failure, match=says):
            parley.Schedule.parse(text)
    with pytest.raises(parley.BadArgument):
        parley.Schedule.interleaved(4, 6, 2)


def test_real_ranks_train_with_an_own_list_of_actions(job: Job) -> None:
    made = job(f"""
import sys
sys.path.insert(0, {str(__import__("pathlib").Path(__file__).parent)!r})
import numpy as np
import parley
import test_pipelines as t

def main(rank):
    schedule = parley.Schedule.parse(t.FOLDED)
    t.MICROBATCHES = schedule.microbatches
    layers = t.Layers(4)
    right = t.gradients_alone(4)
    shapes = lambda stage: (t.BATCH, t.WIDTH)
    pipe = parley.TrainingPipeline(rank, "layers", schedule, shape=shapes, dtype="float64")
    report = pipe.run(layers.forward, layers.backward)
    for s in range(4):
        if schedule.rank_of(s) == rank.id:
            assert (layers.gradients[s] == right[s]).all()
    print("well", rank.id, report.sent, report.most_alive)

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


FORWARD = """
import os, signal, threading, time
import numpy as np
import parley

def main(rank):
    pipe = parley.Pipeline(rank, "pipe", configs=["direct", "chunked(chunk_bytes=64KiB)"])
    results = []
    here = threading.get_ident()

    def stage(microbatch, x):
        assert threading.get_ident() != here
        if pipe.first:
            x[:] = microbatch
        x += rank.id + 1
        if pipe.last:
            results.append(x.copy())
"""


def test_stages_change_arrays_in_place(job: Job) -> None:
    made = job(FORWARD + """
    shapes = [(2, 3), (4,), 5, (100, 200)]
    pipe.run(shapes, stage)
    n = rank.world_size

    async def slow(microbatch, x):
        assert threading.get_ident() == here
        await rank.sleep(0.001)
        if pipe.first:
            x[:] = microbatch
        x += rank.id + 1
        if pipe.last:
            results.append(x.copy())

    pipe.irun(shapes, slow).wait()
    if pipe.last:
        assert [r.shape for r in results[:4]] == [(2, 3), (4,), (5,), (100, 200)]
        assert len(results) == 8 and all((r == i % 4 + n * (n + 1) // 2).all() for i, r in enumerate(results))
        assert results[0].dtype == np.float32
    assert pipe.stage == rank.id and pipe.stages == n
    print("well", pipe.decision(80_000).op)

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well") == 3, made.stdout + made.stderr


def test_functions_on_worker_threads_may_call_the_rank(job: Job) -> None:
    made = job(FORWARD + """
    sums = parley.Collective(rank, "sums")
    kernel = parley.Kernel(rank, "kernel", {"one": lambda x: x.__iadd__(0), "two": lambda x: x.__iadd__(0)})
    parley.tunable.enable()

    def calls(microbatch, x):
        stage(microbatch, x)
        kernel(x)
        rank.sleep(0.001).wait()

    layer = parley.Contextual(rank, "layer", iterations=1)
    with parley.Dataflow(rank) as flow:
        flow.compute(lambda: sums.all_reduce(np.ones(2)))
    pipe.run([1 << 16] * 5, calls)
    assert layer.run(lambda: pipe.run([10] * 2, calls)) is None
    print("well", layer.best("kernel") != "")

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well True") == 3, made.stdout + made.stderr


@pytest.mark.parametrize(("fault", "says"), [
    ("raise KeyError('lost')", "KeyError: 'lost'"),
    ("globals().setdefault('kept', []).append(x[:3])", "keep a copy"),
    ("return asyncio.sleep(1)", "pass the `async def` itself"),
])
def test_a_stage_that_fails_on_one_rank_is_told_to_all(job: Job, fault: str, says: str) -> None:
    made = job(FORWARD.replace("import os,", "import asyncio, os,") + f"""
    def broken(microbatch, x):
        if rank.id == 1 and microbatch == 2:
            {fault}
        return stage(microbatch, x)

    for again in range(2):
        try:
            pipe.run([1 << 18] * 6, broken)
            print("ended", rank.id)
        except Exception as why:
            print("told", rank.id, type(why).__name__, why)

raise SystemExit(parley.run(main))
""", ranks=3)
    for r in (0, 1, 2):
        assert f"told {r} " in made.stdout, made.stdout + made.stderr
    assert says in made.stdout, made.stdout
    if "KeyError" in says:
        assert "told 1 KeyError" in made.stdout
        assert all(line.count("rank 1") for line in made.stdout.splitlines() if "told 0" in line or "told 2" in line), made.stdout


def test_a_killed_stage_is_named(job: Job) -> None:
    made = job(FORWARD + """
    def dies(microbatch, x):
        if rank.id == 1 and microbatch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return stage(microbatch, x)

    try:
        pipe.run([1 << 18] * 50, dies)
    except parley.Failure as why:
        print("told", rank.id, why.code, why.peer)

raise SystemExit(parley.run(main))
""", ranks=3)
    assert "told 0 peer_failed 1" in made.stdout and "told 2 peer_failed 1" in made.stdout, made.stdout + made.stderr


def test_ctrl_c_in_a_stage_ends_the_run(job: Job) -> None:
    made = job(FORWARD + """
    def slow(microbatch, x):
        if rank.id == 0:
            time.sleep(0.05)
        return stage(microbatch, x)

    if rank.id == 0:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        pipe.run([1 << 18] * 200, slow)
    except KeyboardInterrupt:
        print("interrupted", rank.id)
    except parley.Failure as why:
        print("told", rank.id, why.code)

raise SystemExit(parley.run(main))
""")
    assert "interrupted 0" in made.stdout and "told 1" in made.stdout, made.stdout + made.stderr


@pytest.mark.parametrize("fault", ["raise KeyError('lost')", "os.kill(os.getpid(), signal.SIGKILL)", "kept.append(out)"])
def test_a_fault_in_a_training_pass_is_told_to_all(job: Job, fault: str) -> None:
    made = job(f"""
import os, signal
import parley

kept = []

def main(rank):
    pipe = parley.TrainingPipeline(rank, "layers", parley.Schedule.one_forward_one_backward(3, 4), shape=1000)

    def forward(stage, microbatch, x, out):
        out[:] = 1

    def backward(stage, microbatch, x, out, gradient_out, gradient_in):
        if stage == 1 and microbatch == 1:
            {fault}

    for again in range(2):
        try:
            pipe.run(forward, backward)
        except Exception as why:
            print("told", rank.id, type(why).__name__, why)

raise SystemExit(parley.run(main))
""", ranks=3)
    for r in (0, 2) if "kill" in fault else (0, 1, 2):
        assert made.stdout.count(f"told {r} ") == 2, made.stdout + made.stderr
    if "KeyError" in fault:
        assert "told 1 KeyError 'lost'" in made.stdout, made.stdout


def test_ranks_with_other_schedules_or_shapes_are_told(job: Job) -> None:
    made = job("""
import parley

def main(rank):
    def forward(stage, microbatch, x, out):
        out[:] = 1
    def backward(stage, microbatch, x, out, gradient_out, gradient_in):
        pass
    one = parley.Schedule.gpipe(2, 4)
    for name, schedule, shape in (("schedules", [one, parley.Schedule.gpipe(2, 3)][rank.id], 5), ("shapes", one, 5 + rank.id)):
        try:
            parley.TrainingPipeline(rank, name, schedule, shape, timeout=5).run(forward, backward)
        except parley.Failure as why:
            print("told", name, rank.id, why.code)
    pipe = parley.Pipeline(rank, "forward", timeout=5)
    try:
        pipe.run([(1 << 20) + rank.id], lambda microbatch, x: None)
    except parley.Failure as why:
        print("told", "sizes", rank.id, why.code)

raise SystemExit(parley.run(main))
""")
    for name in ("schedules", "shapes", "sizes"):
        for r in (0, 1):
            assert f"told {name} {r}" in made.stdout, made.stdout + made.stderr


def test_the_memory_of_arrays_and_other_bad_input() -> None:
    seen: list[np.ndarray] = []

    class Cycle:
        def __init__(self, x: np.ndarray) -> None:
            self.x, self.me = x, self

    with parley.join() as rank:
        pipe = parley.Pipeline(rank, "pipe", dtype="int16")

        def keeps(microbatch: int, x: np.ndarray) -> None:
            seen.append(x[1:])

        with pytest.raises(parley.BadArgument, match="keeps has kept an array"):
            pipe.run([4], keeps)
        seen.clear()

        def in_a_cycle(microbatch: int, x: np.ndarray) -> None:
            Cycle(x)

        def raises(microbatch: int, x: np.ndarray) -> None:
            raise LookupError(str(x.dtype))

        for n, (stage, error, says) in enumerate([(raises, LookupError, "int16"), (3, parley.BadArgument, "cannot be called")]):
            with pytest.raises(error, match=says) as caught:
                parley.Pipeline(rank, f"pipe{n}", dtype="int16").run([4], stage)  # type: ignore[arg-type]
            if error is LookupError:
                assert "x" not in caught.traceback[-1].frame.f_locals  # its memory is not the program's any more
        parley.Pipeline(rank, "cycle").run([(2, 2)], in_a_cycle)
        parley.Pipeline(rank, "none").run([], in_a_cycle)
        for dtype, says in (("complex64", "no type of numbers"), (">f4", "of this machine"), ("U5", "no type of numbers")):
            with pytest.raises(parley.BadArgument, match=says):
                parley.Pipeline(rank, "types", dtype=dtype)
        with pytest.raises(TypeError):
            parley.Pipeline(rank, "types", dtype="nonsense")
        with pytest.raises(parley.BadArgument, match="does not fit into any memory"):
            parley.Pipeline(rank, "huge").run([(1 << 40, 1 << 40)], in_a_cycle)
        for empty in (0, (0, 3)):
            parley.Pipeline(rank, f"empty{empty}").run([empty], in_a_cycle)
        for shape in ("4", (2, -1), None):
            with pytest.raises(parley.BadArgument, match="is no shape"):
                parley.Pipeline(rank, f"shapes{shape}").run([shape], in_a_cycle)  # type: ignore[list-item]
        train = parley.TrainingPipeline(rank, "train", parley.Schedule.gpipe(1, 1), shape=3)
        with pytest.raises(parley.BadArgument, match="backward"):
            train.run(lambda *arrays: None)


def slowly(microbatch: int, x: np.ndarray) -> None:
    time.sleep(0.004)
    x += 1


def quickly(microbatch: int, x: np.ndarray) -> None:
    x += 1


def test_the_faster_way_to_compute_a_stage_is_found() -> None:
    with parley.join() as rank:
        tuned = parley.TunedStage(rank, "layers", {"slow": slowly, "quick": quickly})
        pipe = parley.Pipeline(rank, "pipe")
        for _ in range(60):
            pipe.run([1000] * 4, tuned)
        decision = tuned.decision(4000)
        assert decision.decided and decision.config == "quick", decision
        assert {e.config for e in decision.evidence} == {"slow", "quick"}

        seen: set[str] = set()

        def backward(x: str) -> object:
            def run(stage: int, microbatch: int, *arrays: np.ndarray | None) -> None:
                seen.add(x)
                time.sleep(0.003 if x == "slow" else 0)
            return run

        def forward(stage: int, microbatch: int, x: np.ndarray | None, out: np.ndarray) -> None:
            seen.add("forward")

        ways: dict[str, Any] = {x: (forward, backward(x)) for x in ("slow", "quick")}
        both = parley.TunedStages(rank, "stages", ways)
        train = parley.TrainingPipeline(rank, "train", parley.Schedule.gpipe(1, 4), shape=1000)
        for _ in range(60):
            train.run(both)
        assert both.decision_backward(4000).config == "quick", both.decision_backward(4000)
        assert both.decision_forward(4000).op != both.decision_backward(4000).op
        assert seen == {"slow", "quick", "forward"}
        others: list[tuple[dict[str, Any], str]] = [({}, "no way"), ({"a": 3}, "cannot be called")]
        for ways, says in others:
            with pytest.raises(parley.BadArgument, match=says):
                parley.TunedStage(rank, "others", ways)
        with pytest.raises(parley.BadArgument, match="a pair of functions"):
            parley.TunedStages(rank, "others", {"a": forward})  # type: ignore[dict-item]
        with pytest.raises(parley.BadArgument):
            parley.TunedStage(rank, "layers", {"a": quickly})


def test_cycles_through_tuned_stages_are_collected() -> None:
    class Model:
        def forward(self, microbatch: int, x: np.ndarray) -> None:
            pass

        def train(self, stage: int, microbatch: int, *arrays: np.ndarray | None) -> None:
            pass

    with parley.join() as rank:
        model = Model()
        model.one = parley.TunedStage(rank, "one", {"a": model.forward})  # type: ignore[attr-defined]
        model.both = parley.TunedStages(rank, "both", {"a": (model.train, model.train)})  # type: ignore[attr-defined]
        parley.Pipeline(rank, "pipe").run([3], model.one)  # type: ignore[attr-defined]
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None


def test_waits_of_a_stage_do_not_count_against_its_ways(job: Job) -> None:
    made = job("""
import time
import numpy as np
import parley

def main(rank):
    pipe = parley.Pipeline(rank, "pipe")
    if rank.id == 0:
        def stage(microbatch, x):
            time.sleep(0.01 * (microbatch % 3))      # late, and not always
        mine = stage
    else:
        def slow(microbatch, x):
            time.sleep(0.0015)
        def quick(microbatch, x):
            time.sleep(0.0001)
        mine = parley.TunedStage(rank, "layers", {"slow": slow, "quick": quick})
    for _ in range(40):
        pipe.run([100] * 6, mine)
    if rank.id == 1:
        decision = mine.decision(400)
        print(decision, [(e.config, e.time_ns) for e in decision.evidence])
        assert decision.config == "quick"
        assert all(e.time_ns < 6e6 for e in decision.evidence), decision.evidence
        print("well")

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0 and "well" in made.stdout, made.stdout + made.stderr

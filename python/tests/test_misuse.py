"""What a hostile or careless program does: wrong arguments, cycles, cancelled coroutines, forks and ends in the midst of calls."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Job

import parley
from parley import tunable


def refusal(f: Any, *args: Any, **named: Any) -> str:
    with pytest.raises(TypeError) as caught:
        f(*args, **named)
    return str(caught.value)


def test_wrong_arguments_are_named_with_what_was_given_and_what_is_taken() -> None:
    with parley.join() as rank:
        p = parley.P2P(rank, "p")
        takes = ("the call is P2P.start(batch: Sequence[P2POperation], timeout: float | None = None, "
                 "stream: object | None = None)")
        assert refusal(p.start, None) == f"P2P.start: `batch` takes Sequence[P2POperation], not None; {takes}"
        assert refusal(p.start, [], timeout="soon") == f"P2P.start: `timeout` takes float | None, not a str; {takes}"
        assert refusal(p.start) == f"P2P.start: the argument `batch` is missing; {takes}"
        assert refusal(p.start, [], 1.0, None, 2) == f"P2P.start: 4 arguments are too many; {takes}"
        assert refusal(p.start, [], when=1) == f"P2P.start: there is no argument `when`; {takes}"
        assert "the value of `batch` does not fit" in refusal(p.start, [3])
        assert "P2P: `rank` takes Rank, not an int" in refusal(parley.P2P, 3, "q")
        assert "`name` takes str, not a bytes" in refusal(parley.P2P, rank, b"q")
        assert "the value of `to` does not fit" in refusal(parley.P2P.isend, b"x", to=-1)
        assert "isend: `to` takes int, not a float" in refusal(parley.P2P.isend, b"x", to=1.5)
        assert "tunables: `rank` takes Rank, not None" in refusal(parley.tunables, None)
        with pytest.raises(parley.BadArgument, match="takes a coroutine"):
            rank.start(3)
        with pytest.raises(parley.BadArgument, match="implementation a is no function"):
            parley.Kernel(rank, "k", {"a": 1})  # type: ignore[dict-item]


def test_kernels_take_named_arguments_and_pass_them_to_all_their_functions() -> None:
    seen: dict[str, Any] = {}

    def key(x: int, *, scale: int) -> dict[str, object]:
        seen["key"] = (x, scale)
        return {"x": x, "scale": scale}

    def one(x: int, *, scale: int) -> None:
        seen["one"] = (x, scale)

    with parley.join() as rank:
        tunable.enable()
        kernel = parley.Kernel(rank, "named", {"one": one}, key=key)
        kernel(3, scale=4)
        assert seen == {"key": (3, 4), "one": (3, 4)}
        assert kernel.runs(3, scale=4) == "one"
        with pytest.raises(TypeError, match="scale"):
            kernel(3)


def test_cycles_through_the_functions_of_a_kernel_are_collected() -> None:
    class Model:
        kernel: parley.Kernel

        def forward(self, x: int) -> None:
            pass

    with parley.join() as rank:
        tunable.enable()
        model = Model()
        model.kernel = parley.Kernel(rank, "forward", {"plain": model.forward}, key=lambda x, m=model: {"x": x}, outputs=lambda x, m=model: [])
        model.kernel(1)
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None


def test_a_work_lets_go_of_its_buffer_and_its_error_once_its_result_is_taken() -> None:
    class Memory(bytearray):
        pass

    with parley.join() as rank:
        p = parley.P2P(rank, "p")
        memory = Memory(b"12345678")
        sent = p.start([p.isend(memory, to=0), p.irecv(bytearray(8), source=0)])
        sent.wait()
        gone = weakref.ref(memory)
        del memory
        assert gone() is None

        async def fails() -> None:
            await rank.sleep(0.001)
            raise KeyError(work)

        work = rank.start(fails())
        with pytest.raises(KeyError):
            work.wait()
        there = sys.getrefcount(work)
        del p
        gc.collect()
        assert sys.getrefcount(work) <= there


def test_a_leader_broadcasts_what_is_read_only(job: Job) -> None:
    made = job("""
import parley

def main(rank):
    news = parley.Collective(rank, "news", kind="broadcast")
    if news.leads:
        news.broadcast(b"headline")
    else:
        into = bytearray(8)
        news.broadcast(into)
        assert into == b"headline", into
        try:
            news.broadcast(b"headline")
        except parley.BadArgument as why:
            print("refused:", why)
    all_of = parley.Collective(rank, "all", kind="gather")
    into = bytearray(2) if all_of.leads else None
    all_of.gather(bytes([65 + rank.id]), into)
    assert into in (None, b"AB")

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "refused: bad_argument: data: this bytes is read-only" in made.stdout, made.stdout


def test_results_that_cannot_be_written_where_they_should_are_no_success(tmp_path: Path) -> None:
    with parley.join() as rank:
        tunable.enable()
        assert tunable.write_file(str(tmp_path / "none.csv")) is False  # there are no results yet
        parley.Kernel(rank, "k", {"a": lambda: None, "b": lambda: None})()
        assert tunable.write_file(str(tmp_path / "missing" / "kernels.csv")) is False
        assert not (tmp_path / "missing").exists()
        assert tunable.write_file(str(tmp_path / "kernels.csv")) is True
        assert (tmp_path / "kernels.csv").read_text().count("k,") == 1


def test_a_cancelled_coroutine_that_goes_on_all_the_same_is_ended(job: Job) -> None:
    made = job("""
import parley

async def stubborn(rank, p, ends, calls):
    try:
        while True:
            calls.append(1)
            try:
                if ends:
                    await p.start([p.isend(b"x", to=rank.id), p.irecv(bytearray(1), source=rank.id)])
                else:
                    await rank.sleep(10)
            except parley.Failure:
                pass
    finally:
        calls.append("closed")

async def main(rank):
    p = parley.P2P(rank, "p")
    for ends in (True, False):
        calls = []
        work = rank.start(stubborn(rank, p, ends, calls))
        await rank.sleep(0.05)
        work.cancel()
        try:
            await work
            raise AssertionError("it cannot have returned")
        except parley.Failure as why:
            assert why.code == "cancelled", why
        assert calls[-1] == "closed" and len(calls) >= 100, len(calls)

    async def tidy():
        try:
            await rank.sleep(10)
        except parley.Failure as why:
            return              # as it should
    work = rank.start(tidy())
    work.cancel()
    await work

raise SystemExit(parley.run(main))
""", ranks=1)
    assert made.returncode == 0, made.stdout + made.stderr


def test_agreements_on_reports_of_any_size(job: Job) -> None:
    made = job("""
import tracemalloc
import parley

def main(rank):
    tuner = parley.Agreement(rank, "tuner")
    tracemalloc.start()
    assert tuner.choose("small", {"a": 1.0}) == "a"
    assert tracemalloc.get_traced_memory()[1] < 1 << 19, tracemalloc.get_traced_memory()
    many = {f"config{i:05}" + "x" * 100: float(i + 1) for i in range(15_000)}
    assert tuner.choose("large", many).startswith("config00000")
    try:
        tuner.choose("x" * (1 << 24), {"a": 1.0})
    except parley.BadArgument as why:
        assert "is too long" in str(why)[-200:]
    tuner.choose("last", {"a": 1.0})

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0, made.stdout + made.stderr[-3000:]


def test_virtual_ranks_that_die_close_their_coroutines_and_are_named() -> None:
    seen: dict[str, int] = {}

    def count(what: str) -> None:
        seen[what] = seen.get(what, 0) + 1

    async def beside(rank: parley.Rank, p: parley.P2P) -> None:
        try:
            while True:
                await p.start([p.irecv(bytearray(10), source=(rank.id + 1) % 3, tag=3)])
        finally:
            count("closed")
            with pytest.raises(parley.Failure):
                await p.start([p.irecv(bytearray(10), source=(rank.id + 1) % 3, tag=3)])

    kept: list[object] = []

    async def main(rank: parley.Rank) -> None:
        p = parley.P2P(rank, "ring")
        kept.append(rank.start(beside(rank, p)))
        p.start([p.irecv(bytearray(99), source=0, tag=9)])
        try:
            for _ in range(20):
                mine, theirs = bytearray(1000), bytearray(1000)
                await p.start([p.isend(mine, to=(rank.id + 1) % 3), p.irecv(theirs, source=(rank.id - 1) % 3)])
        except parley.PeerFailed as why:
            assert why.peer is not None
            count("peer failed")
            raise
        except parley.Failure as why:
            count(why.code)
        finally:
            count("over")

    for seed in range(1, 11):
        assert parley.simulate(main, ranks=3, seed=seed, faults="death") == 0
    # Each seed is run without a death, and with one.
    assert seen["closed"] == seen["over"] == 60, seen
    assert seen["peer failed"] >= 10, seen
    for work in kept:
        assert isinstance(work, parley.Work)
        with pytest.raises(parley.Failure):
            work.wait()
    with pytest.raises(parley.BadArgument, match="none, weather and death"):
        parley.simulate(main, faults="deaths")


def test_ctrl_c_ends_leaving(job: Job) -> None:
    # A message that the other rank does not take keeps this one for the second that leaving may last.
    made = job("""
import os, signal, threading, time
import parley

joined = parley.join()
rank = joined.rank
p = parley.P2P(rank, "p", timeout=60)
if rank.id == 1:
    time.sleep(3)
    os._exit(0)
p.start([p.isend(bytes(1 << 22), to=1)])
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    rank.leave()
    print("left after", time.monotonic() - began)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began < 0.8)
try:
    rank.now_ns()
except parley.Failure as why:
    print(why.code, flush=True)
os._exit(0)
""")
    assert "interrupted True" in made.stdout and "closed" in made.stdout, made.stdout + made.stderr


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "raise KeyError(1)", "os.kill(os.getpid(), 9)", "return"])
def test_ends_of_a_process_with_calls_under_way_crash_nothing(job: Job, end: str) -> None:
    made = job(f"""
import asyncio, os, sys, threading
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    peer = 1 - rank.id
    keep = [p.start([p.irecv(bytearray(1 << 20), source=peer, tag=i)]) for i in range(5)]
    async def forever():
        while True:
            await p.start([p.irecv(bytearray(8), source=peer, tag=99)])
    keep.append(rank.start(forever()))
    threading.Thread(target=lambda: keep[0].wait(), daemon=True).start()
    globals()["kept"] = keep
    if rank.id == 0:
        {end}
    else:
        try:
            p.exchange([p.irecv(bytearray(8), source=0, tag=50)])
        except parley.Failure as why:
            print("the other rank", why.code, flush=True)

raise SystemExit(parley.run(main))
""", limit=40)
    assert "the other rank " in made.stdout, made.stdout + made.stderr
    for crash in ("Segmentation", "Abort", "signal 11", "signal 6", "terminate called", "Fatal Python error"):
        assert crash not in made.stderr, made.stderr


def test_a_second_join_of_a_launched_process_is_refused(job: Job) -> None:
    made = job("""
import parley

with parley.join() as rank:
    pass
try:
    parley.join()
except parley.BadArgument as why:
    print("again:", why)
""")
    assert made.returncode == 0 and made.stdout.count("joins once") == 2, made.stdout + made.stderr


def test_fork_after_the_import_and_a_join_in_the_child() -> None:
    program = """
import os, parley
child = os.fork()
with parley.join() as rank:
    p = parley.P2P(rank, "p")
    into = bytearray(1)
    p.exchange([p.isend(b"x", to=0), p.irecv(into, source=0)])
    assert into == b"x"
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr


def test_a_child_of_fork_is_refused_by_everything_and_ends_in_peace(job: Job) -> None:
    made = job("""
import os
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    left = p.start([p.irecv(bytearray(8), source=1 - rank.id, tag=7)])
    for how in ("os._exit", "return"):
        if (child := os.fork()) == 0:
            codes = []
            for call in (lambda: p.start([]), left.wait, left.test, lambda: rank.sleep(1), rank.leave, lambda: parley.P2P(rank, "q"),
                         lambda: parley.tunables(rank).enable()):
                try:
                    call()
                    codes.append("none")
                except parley.Failure as why:
                    codes.append(why.code)
            print("child", set(codes), flush=True)
            del left, p
            if how == "return":
                raise SystemExit(0)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    p.exchange([p.isend(bytes(8), to=1 - rank.id, tag=7)])
    left.wait()

if __name__ == "__main__":
    raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.count("child {'bad_argument'}") == 4, made.stdout + made.stderr


def test_asyncio_goes_on_with_calls_that_nobody_awaits_yet(job: Job) -> None:
    made = job("""
import asyncio, time
import parley

async def main(rank):
    p = parley.P2P(rank, "p")
    peer = 1 - rank.id
    into = bytearray(1 << 20)
    works = [p.start([p.irecv(into, source=peer)]), p.start([p.isend(bytes([7]) * (1 << 20), to=peer)])]
    ended = time.monotonic() + 20
    while not all(w.done() for w in works):      # `done` does not drive the loop
        assert time.monotonic() < ended
        await asyncio.sleep(0.01)
    assert into[-1] == 7
    # A second asyncio loop of the same rank takes over.

with parley.join() as rank:
    asyncio.run(main(rank))
    async def again():
        p = parley.P2P(rank, "again")
        works = [p.start([p.irecv(bytearray(8), source=1 - rank.id)]), p.start([p.isend(bytes(8), to=1 - rank.id)])]
        while not all(w.done() for w in works):
            await asyncio.sleep(0.01)
    asyncio.run(again())
""")
    assert made.returncode == 0, made.stdout + made.stderr


def test_awaiting_calls_that_end_at_once_does_not_starve_asyncio(job: Job) -> None:
    made = job("""
import asyncio, time
import parley

async def main(rank):
    p = parley.P2P(rank, "p")
    ticks, over = 0, False

    async def count():
        nonlocal ticks
        while not over:
            await asyncio.sleep(0)
            ticks += 1

    beside = asyncio.create_task(count())
    began = time.monotonic()
    for i in range(2000):
        await p.start([p.isend(b"x", to=rank.id), p.irecv(bytearray(1), source=rank.id)])
    over = True
    await beside
    assert ticks >= 20, ticks

with parley.join() as rank:
    asyncio.run(main(rank))
""", ranks=1)
    assert made.returncode == 0, made.stdout + made.stderr

"""What hostile values, ends of the interpreter, and Ctrl-C at a bad moment must not do: crash, hang, or hide who is to blame."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import Job

import parley
from parley import _native

crashes = ("Segmentation", "Abort", "signal 11", "signal 6", "terminate called", "Fatal Python error")


def alone(program: str, *words: str, limit: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=limit, check=False)


def refused(f: Any, *args: Any, **named: Any) -> str:
    with pytest.raises(parley.BadArgument) as caught:
        f(*args, **named)
    return str(caught.value)


def test_memory_with_pointers_in_it_is_refused() -> None:
    for memory in (np.empty(4, object), np.zeros(2, [("number", "i4"), ("thing", object)]), (ctypes.py_object * 2)(),
                   (ctypes.c_char_p * 2)(), (ctypes.POINTER(ctypes.c_int) * 2)()):
        assert "Python objects or pointers as elements" in refused(parley.P2P.irecv, memory, source=0)
        assert "Python objects or pointers as elements" in refused(parley.P2P.isend, memory, to=0)
    for memory in (np.zeros(2, complex), np.zeros(2, [("Out", "i4"), ("Price", "f8")]), np.array(["ab"])):
        parley.P2P.isend(memory, to=0)


def test_memory_that_cannot_be_shared_says_why() -> None:
    assert "cannot include dtype 'M' in a buffer" in refused(parley.P2P.isend, np.zeros(2, "M8[s]"), to=0)
    view = memoryview(bytearray(3))
    view.release()
    assert "released memoryview" in refused(parley.P2P.isend, view, to=0)


def test_objects_that_no_constructor_has_made_are_named() -> None:
    class Careless(parley.P2P):
        def __init__(self) -> None:
            pass

    with pytest.raises(TypeError, match="a program cannot make a parley._native.Rank"):
        parley.Rank()
    with pytest.warns(RuntimeWarning), pytest.raises(TypeError, match=r"this attribute was asked of a Careless that .* super\(\).__init__"):
        Careless().copied_bytes  # noqa: B018
    with pytest.raises(TypeError, match="was asked of an int that is no object of its class"):
        parley.Work.cancel(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`name` does not fit: texts have a form in UTF-8"), parley.join() as rank:
        parley.P2P(rank, "\udcff")


def test_no_class_answers_wrong_arguments_with_the_raw_text_of_its_bindings() -> None:
    class Weird:
        pass

    weird = Weird()
    for name, kind in vars(_native).items():
        functions = [kind] if callable(kind) and not name.startswith("_") else []
        if isinstance(kind, type):
            functions += [f for word, f in vars(kind).items() if callable(f) and not word.startswith("__")]
        for function in functions:
            for words in ([weird], [weird] * 20):
                try:
                    function(*words, unknown=weird)
                except (TypeError, parley.Failure) as why:
                    for raw in ("incompatible function arguments", "no constructor defined", "the value of  does"):
                        assert raw not in str(why), (name, function, why)


@pytest.mark.parametrize("raises", ["FileNotFoundError('a\\udcff')", "Silent()", "ValueError('€' * 600)"])
def test_an_exception_with_a_text_that_is_hard_to_read_is_still_told_to_the_others(job: Job, raises: str) -> None:
    kind = raises.partition("(")[0]
    made = job(f"""
import parley

class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def main(rank):
    t = parley.Transfer(rank, "t", edges=[(0, 1)])
    if rank.id == 0:
        raise {raises}
    try:
        t.receive(bytearray(8), source=0)
    except parley.PeerFailed as why:
        print("told", why.peer, "{kind}" in why.began_with)

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 1 and "told 0 True" in made.stdout, made.stdout + made.stderr
    assert "bad_cast" not in made.stderr and kind in made.stderr, made.stderr


def test_values_that_no_program_can_mean_are_refused_by_name() -> None:
    class Lies(np.ndarray[Any, Any]):
        shape = (-1, 4)  # type: ignore[override]

    lies = np.zeros((4, 4), np.float32).view(Lies)
    with parley.join() as rank:
        assert "a: its shape is (-1, 4), which is no tuple of sizes" in refused(parley.Gemm(rank), lies, lies, np.zeros((4, 4), np.float32))
        assert "a field: its shape" in refused(parley.Halo(rank, "grid", ranks=[1, 1]).plan, lies)
        assert "more places than the world of 1" in refused(parley.Halo, rank, "large", ranks=[2**32 - 1])
        assert "buffer_size: " in refused(parley.tunables(rank).set_rotating_buffer_size, 2**63)
        parley.Hierarchy(rank, "any text", group_by=lambda _: "\udcff")
        parley.tunable.enable()
        parley.Kernel(rank, "any key", {"one": lambda: None, "two": lambda: None}, key=lambda: {"file": "\udcff"})()
        tuner = parley.Agreement(rank, "tuner")
        for times in ({"a": "soon"}, {"a": None}, [("a", 1.0)]):
            assert "times are seconds by candidate" in refused(tuner.choose, "key", times)
        for patience in (0, -1.0, float("nan"), None, "long", True):
            assert "patience is a number of seconds above 0" in refused(parley.Agreement, rank, "other", patience=patience)
    for answer in (["text"], [bytearray(8)], [None]):
        assert "returns a list with the bytes of each rank" in refused(parley.join, through=(0, 1, lambda _, a=answer: a))


def test_a_function_that_waits_for_its_own_operation_is_told_instead_of_waiting_for_ever() -> None:
    with parley.join() as rank:
        line = parley.Pipeline(rank, "line")
        async def own(m: int, x: Any) -> None:
            await line.irun([4], own)

        assert "waits for a call of the same operation" in refused(line.run, [4], lambda m, x: line.irun([4], own).wait())

        assert "waits for a call of the same operation" in refused(line.run, [4], own)
        with parley.Dataflow(rank) as flow:
            step = flow.compute(lambda: flow.join())
            assert "waits for a call of the same operation" in refused(step.wait)

        def nested() -> None:
            with parley.Dataflow(rank) as inner:
                inner.compute(lambda: None)

        with parley.Dataflow(rank) as flow:
            assert "would run on the worker thread" in refused(flow.compute(nested).wait)

        async def sleeps() -> None:
            await rank.sleep(0.001)

        def nested_coroutine() -> None:
            with parley.Dataflow(rank) as inner:
                inner.compute(sleeps)

        with parley.Dataflow(rank) as flow:
            flow.compute(nested_coroutine)


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise KeyError(1)", "return", "threading.Thread(target=flow.join, daemon=True).start()"])
@pytest.mark.parametrize("function", ["for_ever", "asleep"])
def test_the_interpreter_ends_well_while_a_function_of_the_program_runs_on_another_thread(function: str, end: str) -> None:
    made = alone(f"""
import sys, threading, time
import parley

def for_ever():
    while True:
        time.sleep(0.0001)
def asleep():
    time.sleep(60)

def main(rank):
    global flow
    flow = parley.Dataflow(rank)
    flow.compute({function})
    rank.sleep(0.2).wait()
    {end}

raise SystemExit(parley.run(main))
""")
    assert made.returncode == {"s": 3, "r": 0, "t": 0}[end[0]] if not end.startswith("raise") else made.returncode == 1, made
    assert not any(crash in made.stderr for crash in crashes), made.stderr


def test_ctrl_c_ends_the_wait_for_ranks_that_do_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as place:  # nobody listens there
        place.bind(("127.0.0.1", 0))
        made = alone(f"""
import os, signal, threading, time
os.environ |= {{"PARLEY_RANK": "1", "PARLEY_WORLD": "2", "PARLEY_RENDEZVOUS": "127.0.0.1:{place.getsockname()[1]}"}}
import parley
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    parley.join(timeout=20)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began < 2)
""")
    assert "interrupted True" in made.stdout, made.stdout + made.stderr


def test_ctrl_c_in_a_coroutine_that_nobody_waits_for_ends_the_programs_own_wait() -> None:
    made = alone("""
import os, signal, threading, time
import parley
signal.signal(signal.SIGINT, signal.default_int_handler)

def main(rank):
    async def beside():
        while True:
            await rank.sleep(0.0001)     # Python looks for signals mostly here
    for _ in range(5):
        work = rank.start(beside())
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            rank.sleep(10).wait()
            raise AssertionError("lost")
        except KeyboardInterrupt:
            assert time.monotonic() - began < 2
        work.cancel()
        try:
            work.wait()
        except BaseException as why:
            assert isinstance(why, (parley.Failure, KeyboardInterrupt)), why
    print("well")

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0 and "well" in made.stdout, made.stdout + made.stderr


def test_leaving_by_oneself_before_the_end_of_the_block_is_no_error() -> None:
    with parley.join() as rank:
        assert rank.leave() == "in_peace"
    with pytest.raises(KeyError, match="mine"), parley.join() as rank:
        rank.leave()
        raise KeyError("mine")


def test_an_exception_of_a_coroutine_that_nobody_waits_for_is_shown() -> None:
    made = alone("""
import parley

def main(rank):
    async def fails(how):
        await rank.sleep(0.001)
        raise how
    rank.start(fails(KeyError("lost")))
    rank.start(fails(parley.PeerFailed("told elsewhere")))
    seen = rank.start(fails(ValueError("seen")))
    rank.sleep(0.1).wait()
    try:
        seen.wait()
    except ValueError:
        pass

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0 and "KeyError: 'lost'" in made.stderr and "nobody has waited for" in made.stderr, made.stderr
    assert "told elsewhere" not in made.stderr and "seen" not in made.stderr.replace("was seen", ""), made.stderr

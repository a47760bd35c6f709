"""What goes wrong: each error is an exception with its facts, on every rank, and no rank hangs."""

from __future__ import annotations

import ctypes

import pytest
from conftest import Job

import parley


@pytest.mark.parametrize(("make", "says"), [
    ("np.zeros((4, 4))[:, ::2]", "its elements do not follow each other in memory"),
    ("np.zeros(4, '>f8')", "has another byte order than this machine"),
    ("b'bytes'", "is read-only"),
    ("[1, 2, 3]", "type list is no memory"),
    ("np.broadcast_to(np.zeros(1), (4,))", "its elements do not follow each other in memory"),
    ("np.frombuffer(b'12345678')", "is read-only"),
])
def test_memory_that_cannot_be_received_into_is_refused_by_name(job: Job, make: str, says: str) -> None:
    made = job(f"""
import numpy as np
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    try:
        p.irecv({make}, source=0)
    except parley.BadArgument as why:
        assert why.code == "bad_argument"
        assert "into: " in str(why) and "{says}" in str(why), why
        print("refused")

raise SystemExit(parley.run(main))
""", ranks=1)
    assert made.stdout.count("refused") == 1, made.stdout + made.stderr


def test_an_error_of_parley_that_nobody_catches_names_the_line_of_the_program(job: Job) -> None:
    made = job("""
import parley

def exchange(p):
    p.exchange([p.isend([1, 2], to=0)])

def main(rank):
    exchange(parley.P2P(rank, "p"))

raise SystemExit(parley.run(main))
""", ranks=1)
    assert made.returncode == 1 and "is no memory" in made.stderr and "(program.py:5, in exchange)" in made.stderr, made.stderr


def test_an_exception_of_one_rank_ends_the_others_with_a_cause(job: Job) -> None:
    made = job("""
import parley

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
    if rank.id == 0:
        raise KeyError("lost")
    try:
        t.receive(bytearray(8), source=0)
    except parley.PeerFailed as why:
        print("peer", why.peer, "op", why.op, "began with", why.began_with_rank, why.began_with)
        raise

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 1
    assert "peer 0 op t 0->1 began with 0" in made.stdout, made.stdout + made.stderr
    assert "KeyError: 'lost'" in made.stdout
    assert "KeyError: 'lost'" in made.stderr


def test_a_killed_rank_is_named(job: Job) -> None:
    made = job("""
import os, signal
import parley

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
    if rank.id == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        t.receive(bytearray(8), source=0)
    except parley.Failure as why:
        print(why.code, why.peer)

raise SystemExit(parley.run(main))
""")
    assert "peer_failed 0" in made.stdout, made.stdout + made.stderr


def test_ctrl_c_ends_a_wait(job: Job) -> None:
    made = job("""
import os, signal, threading, time
import parley

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
    if rank.id == 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            t.receive(bytearray(8), source=0)
        except KeyboardInterrupt:
            assert time.monotonic() - began < 2
            print("interrupted")
    t.send(bytearray(8), to=1, tag=1) if rank.id == 0 else t.receive(bytearray(8), source=0, tag=1)

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0 and "interrupted" in made.stdout, made.stdout + made.stderr


def test_other_threads_run_and_may_call_while_a_call_waits(job: Job) -> None:
    made = job("""
import threading, time
import parley

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
    go = parley.Transfer(rank, "go", role=lambda r: "sender" if r == 1 else "receiver")
    counted = []
    def beside():
        counted.append(t.decision(8).op)
        for _ in range(20):
            time.sleep(0.005)
            counted.append(1)
        go.send(bytearray(8), to=0)
    if rank.id == 0:
        go.receive(bytearray(8), source=1)
        return t.send(bytearray(8), to=1)
    thread = threading.Thread(target=beside)
    thread.start()
    t.receive(bytearray(8), source=0)
    assert len(counted) == 21, counted
    assert counted[0].startswith("t"), counted
    thread.join()

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0, made.stdout + made.stderr


def test_calls_under_way_at_the_end_of_the_interpreter_do_not_crash_it(job: Job) -> None:
    made = job("""
import parley

joined = parley.join()
rank = joined.rank
p = parley.P2P(rank, "p")
left = p.start([p.irecv(bytearray(100), source=1 - rank.id)])
print("at the end")
""")
    assert made.stdout.count("at the end") == 2
    assert made.returncode in (0, 1), made.stderr


def test_a_rank_that_has_left_refuses_calls() -> None:
    with parley.join() as rank:
        p = parley.P2P(rank, "p")
        mine, theirs = bytearray(b"abc"), bytearray(3)
        p.exchange([p.isend(mine, to=0), p.irecv(theirs, source=0)])
        assert theirs == b"abc"
    with pytest.raises(parley.Failure, match="has left") as caught:
        p.exchange([])
    assert caught.value.code == "closed"


def test_impossible_declarations_are_refused() -> None:
    with parley.join() as rank:
        with pytest.raises(parley.BadArgument, match="roles are sender, receiver, leader, worker and idle"):
            parley.Transfer(rank, "t", role=lambda _: "boss")
        with pytest.raises(parley.BadArgument, match="chunky"):
            parley.Transfer(rank, "t", edges=[], configs=["chunky"])
        with pytest.raises(parley.BadArgument, match="one of all_reduce"):
            parley.Collective(rank, "c", kind="all_to_all")
        with pytest.raises(ZeroDivisionError):
            parley.Transfer(rank, "t", role=lambda _: str(1 // 0))


def test_a_buffer_that_the_program_drops_stays_until_its_call_has_ended(job: Job) -> None:
    made = job("""
import gc
import numpy as np
import parley

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
    if rank.id == 0:
        works = [t.isend(np.full(1 << 18, i, np.int64), to=1) for i in range(8)]
        gc.collect()
        junk = [np.full(1 << 18, 99, np.int64) for _ in range(8)]
        [w.wait() for w in works]
    else:
        for i in range(8):
            into = np.zeros(1 << 18, np.int64)
            t.receive(into, source=0)
            assert (into == i).all()

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0, made.stdout + made.stderr


def test_a_work_that_the_program_drops_goes_on_and_its_buffer_stays(job: Job) -> None:
    made = job("""
import gc
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    peer = 1 - rank.id
    for i in range(20):
        p.start([p.irecv(bytearray(1 << 20), source=peer, tag=5)])
        p.start([p.isend(bytes([i]) * (1 << 20), to=peer, tag=6)])
        gc.collect()
    for i in range(20):
        into = bytearray(1 << 20)
        p.exchange([p.irecv(into, source=peer, tag=6)])
        assert into == bytes([i]) * (1 << 20)

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0, made.stdout + made.stderr


def test_memory_under_a_call_cannot_be_resized_and_none_is_no_operation() -> None:
    with parley.join() as rank:
        p = parley.P2P(rank, "p")
        into = bytearray(100)
        work = p.start([p.irecv(into, source=0)])
        with pytest.raises(BufferError):
            into.clear()
        p.exchange([p.isend((ctypes.c_int * 25)(*range(25)), to=0)])
        work.wait()
        assert into[4] == 1
        del work
        into.clear()
        with pytest.raises(parley.BadArgument, match="one entry is None"):
            p.exchange([None])  # type: ignore[list-item]
        with pytest.raises(parley.BadArgument, match="no memory"):
            p.irecv(object(), source=0)


def test_what_is_kept_from_a_simulation_refuses_calls() -> None:
    kept: list[object] = []

    async def main(rank: parley.Rank) -> None:
        p = parley.P2P(rank, "p")
        kept.extend([rank, p, p.start([p.irecv(bytearray(1), source=0)])])

    assert parley.simulate(main, ranks=1) == 0
    rank, p, work = kept
    assert isinstance(rank, parley.Rank) and isinstance(p, parley.P2P) and isinstance(work, parley.Work)
    assert rank.id == 0
    for use in (lambda: rank.now_ns(), lambda: p.copied_bytes, lambda: work.wait()):
        with pytest.raises(parley.Failure):
            use()
    with pytest.raises(parley.BadArgument):
        parley.simulate(main, ranks=0)
    assert parley.simulate(main, ranks=1) == 0


def test_other_types_and_sizes_are_refused_at_both_ends(job: Job) -> None:
    made = job("""
import numpy as np
import parley

def main(rank):
    n = 1 << 20      # a short send may end before it is refused
    for name, mine, into in (("types", np.zeros(n, np.float32), np.zeros(n, np.int32)),
                             ("sizes", np.zeros(2 * n, np.int32), np.zeros(n, np.int32))):
        t = parley.Transfer(rank, name, role=lambda r: "sender" if r == 0 else "receiver")
        try:
            t.send(mine, to=1) if rank.id == 0 else t.receive(into, source=0)
        except parley.Failure as why:
            print("refused", name, rank.id, why.code, flush=True)

raise SystemExit(parley.run(main))
""")
    for what in ("types", "sizes"):
        for r in (0, 1):
            assert f"refused {what} {r}" in made.stdout, made.stdout + made.stderr


def test_a_child_of_fork_may_not_call_and_does_no_harm(job: Job) -> None:
    made = job("""
import os
import parley

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
    if rank.id == 0 and os.fork() == 0:
        try:
            t.send(bytearray(8), to=1)
        except parley.BadArgument as why:
            print("child:", why, flush=True)
        os._exit(0)
    if rank.id == 0:
        os.wait()
        t.send(bytearray(b"parent!!"), to=1)
    else:
        into = bytearray(8)
        t.receive(into, source=0)
        assert into == b"parent!!"

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "child: bad_argument" in made.stdout

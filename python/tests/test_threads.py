"""Calls of one rank from several threads: one at a time uses the loop, and all of them end."""

from __future__ import annotations

from conftest import Job


def ended_well(made: object) -> None:
    assert made.returncode == 0, made.stdout + made.stderr  # type: ignore[attr-defined]


def test_threads_that_wait_at_the_same_time_all_get_their_messages(job: Job) -> None:
    ended_well(job("""
import threading
import parley

COUNT, THREADS = 300, 4

def main(rank):
    p = parley.P2P(rank, "p")
    to = [parley.Transfer(rank, f"to{peer}", edges=[(1 - peer, peer)]) for peer in (0, 1)]
    peer, wrong = 1 - rank.id, []

    def ping(tag):
        mine, theirs = bytearray(8), bytearray(8)
        try:
            for i in range(COUNT):
                mine[:] = i.to_bytes(8, "little")
                if tag % 2:
                    p.exchange([p.isend(mine, to=peer, tag=tag), p.irecv(theirs, source=peer, tag=tag)])
                else:
                    sent = to[peer].isend(mine, to=peer, tag=tag)
                    to[rank.id].receive(theirs, source=peer, tag=tag)
                    sent.wait()
                if theirs != mine:
                    wrong.append((tag, i, bytes(theirs)))
        except BaseException as why:
            wrong.append(why)

    threads = [threading.Thread(target=ping, args=(tag,)) for tag in range(THREADS)]
    [t.start() for t in threads]
    ping(THREADS)
    [t.join() for t in threads]
    assert not wrong, wrong

raise SystemExit(parley.run(main))
""", limit=90))


def test_a_thread_that_waits_does_not_keep_others_from_calling(job: Job) -> None:
    ended_well(job("""
import threading, time
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    peer = 1 - rank.id
    got = bytearray(1)
    late = threading.Thread(target=lambda: p.exchange([p.irecv(got, source=peer, tag=1)]))
    late.start()
    time.sleep(0.3)     # now that thread sleeps in the loop
    began = time.monotonic()
    for i in range(20):
        assert p.decision(8, peer) is not None
        theirs = bytearray(1)
        p.exchange([p.isend(b"x", to=peer), p.irecv(theirs, source=peer)])
        assert theirs == b"x"
    assert time.monotonic() - began < 5
    p.exchange([p.isend(b"y", to=peer, tag=1)])
    late.join()
    assert got == b"y"

raise SystemExit(parley.run(main))
"""))


def test_the_end_of_one_threads_wait_hands_the_loop_to_another(job: Job) -> None:
    ended_well(job("""
import threading, time
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    peer = 1 - rank.id
    if rank.id == 1:
        for tag in (1, 2):
            time.sleep(0.3)
            p.exchange([p.isend(b"x", to=0, tag=tag)])
        return
    ended = {}
    def receive(tag):
        p.exchange([p.irecv(bytearray(1), source=1, tag=tag)])
        ended[tag] = time.monotonic()
    # The thread that begins to wait first turns the loop, and its message comes first in one case, last in the other.
    threads = [threading.Thread(target=receive, args=(tag,)) for tag in (1, 2)]
    for t in threads:
        t.start()
        time.sleep(0.05)
    [t.join(20) for t in threads]
    assert set(ended) == {1, 2} and ended[1] < ended[2], ended

raise SystemExit(parley.run(main))
"""))


def test_a_thread_that_outlives_the_job_gets_a_named_error(job: Job) -> None:
    made = job("""
import threading, time
import parley

seen = []
def main(rank):
    p = parley.P2P(rank, "p")
    def beside():
        try:
            p.exchange([p.irecv(bytearray(1), source=1 - rank.id)])
        except parley.Failure as why:
            seen.append(why.code)
        try:
            p.exchange([p.irecv(bytearray(1), source=1 - rank.id)])
        except parley.Failure as why:
            seen.append(why.code)
    global thread
    thread = threading.Thread(target=beside)
    thread.start()
    time.sleep(0.2)

status = parley.run(main)
thread.join(20)
assert not thread.is_alive()
print("seen", seen)
raise SystemExit(status)
""")
    ended_well(made)
    assert made.stdout.count("'closed']") == 2, made.stdout + made.stderr


def test_asyncio_wakes_up_when_another_thread_has_driven_the_loop(job: Job) -> None:
    ended_well(job("""
import asyncio, threading, time
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    peer = 1 - rank.id

    async def go(tag):
        for i in range(30):
            if rank.id == 1:
                await asyncio.sleep(0.01)
            mine, theirs = bytes([i]), bytearray(1)
            await p.start([p.isend(mine, to=peer, tag=tag), p.irecv(theirs, source=peer, tag=tag)])
            assert theirs == mine

    def waits():
        p.exchange([p.isend(b"x", to=peer, tag=9), p.irecv(bytearray(1), source=peer, tag=9)])

    for debug in (False, True):
        beside = [threading.Thread(target=lambda t=t: asyncio.run(go(t), debug=debug)) for t in (1, 2)]
        beside.append(threading.Thread(target=waits if rank.id == 0 else lambda: (time.sleep(0.5), waits())))
        [t.start() for t in beside]
        asyncio.run(go(0), debug=debug)
        [t.join() for t in beside]

raise SystemExit(parley.run(main))
"""))

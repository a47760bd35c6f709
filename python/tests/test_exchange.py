"""Sends, receives, batches and collectives of real ranks."""

from __future__ import annotations

from conftest import Job

TRANSFER = """
import sys
import numpy as np
import parley

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver",
                        configs=["direct", "chunked(chunk_bytes=64KiB)"])
"""


def ended_well(made: object) -> None:
    assert made.returncode == 0, made.stdout + made.stderr  # type: ignore[attr-defined]


def test_arrays_arrive_in_place_and_the_ends_agree_on_a_config(job: Job) -> None:
    made = job(TRANSFER + """
    data = np.zeros(100_000, dtype=np.float32)
    for i in range(6000):
        decided = i >= 600 and t.decision(data.nbytes).decided
        if rank.id == 0:
            data[:] = -1 if decided else i
            assert t.send(data, to=1) is None
        else:
            assert t.receive(data, source=0) == data.nbytes
            assert (data == (-1 if data[0] == -1 else i)).all()
        if data[0] == -1:
            break
    d = t.decision(data.nbytes)
    print(rank.id, d.decided, d.config, len(d.evidence), t.copied_bytes)
    both = {"direct", "chunked(chunk_bytes=65536 in_flight=2)"}
    assert d.decided and d.config in both, d
    assert {e.config for e in d.evidence} == both
    assert all(e.status == "measured" and e.ranks for e in d.evidence)

raise SystemExit(parley.run(main))
""")
    ended_well(made)
    assert "0 True" in made.stdout and "1 True" in made.stdout


def test_a_work_can_be_tested_waited_for_and_started_several_times(job: Job) -> None:
    ended_well(job(TRANSFER + """
    if rank.id == 0:
        works = [t.isend(np.full(1000, i, np.int32), to=1, tag=i) for i in range(8)]
        while not all(w.test() for w in works):
            pass
        [w.wait() for w in works]
    else:
        into = [np.zeros(1000, np.int32) for _ in range(8)]
        works = [t.ireceive(into[i], source=0, tag=i) for i in range(8)]
        assert [w.wait() for w in works] == [4000] * 8
        assert all((into[i] == i).all() for i in range(8))

raise SystemExit(parley.run(main))
"""))


def test_asyncio_awaits_calls_in_its_own_loop(job: Job) -> None:
    ended_well(job("""
import asyncio
import parley

async def exchange(rank):
    p = parley.P2P(rank, "p")
    peer = 1 - rank.id
    ticks = 0

    async def count():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    beside = asyncio.create_task(count())
    for i in range(200):
        mine, theirs = bytearray([i]) * 10_000, bytearray(10_000)
        await p.start([p.isend(mine, to=peer), p.irecv(theirs, source=peer)])
        assert theirs == mine
    await rank.sleep(0.05)
    late = p.start([p.irecv(bytearray(1), source=peer, tag=9)])
    try:
        await asyncio.wait_for(late, 0.05)
        raise AssertionError("nobody has sent this")
    except TimeoutError:
        pass
    beside.cancel()
    assert ticks > 10, ticks

with parley.join() as rank:
    asyncio.run(exchange(rank))
"""))


def test_a_coroutine_runs_without_asyncio(job: Job) -> None:
    ended_well(job("""
import parley

async def main(rank):
    sums = parley.Collective(rank, "sums", configs=["star", "chain"])
    import numpy as np
    for dtype in (np.float32, np.float64, np.int64, np.uint8):
        x = np.arange(10, dtype=dtype)
        await sums.iall_reduce(x)
        assert (x == np.arange(10, dtype=dtype) * rank.world_size).all()
        y = np.full(3, rank.id + 1, dtype=dtype)
        await sums.iall_reduce(y, by="max")
        assert (y == rank.world_size).all()

raise SystemExit(parley.run(main))
""", ranks=3))


def test_broadcast_and_gather(job: Job) -> None:
    ended_well(job("""
import numpy as np
import parley

def main(rank):
    news = parley.Collective(rank, "news", kind="broadcast")
    x = np.full(5, 7 if news.leads else 0)
    news.broadcast(x)
    assert (x == 7).all()
    all_of = parley.Collective(rank, "all", kind="gather")
    mine = np.full(2, rank.id)
    into = np.zeros(2 * rank.world_size, dtype=mine.dtype) if all_of.leads else None
    all_of.gather(mine, into)
    if into is not None:
        assert (into == np.repeat(np.arange(rank.world_size), 2)).all()

raise SystemExit(parley.run(main))
""", ranks=3))

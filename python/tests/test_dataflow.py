"""Steps that name their buffers: the order follows from the names, on real and on virtual ranks."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from conftest import Job

import parley

C = 1.000244140625


class Buffers:
    """Of the two-round ring."""

    def __init__(self, rank: int, elements: int = 4) -> None:
        self.x0 = np.full(elements, rank, np.float32)
        self.t0, self.y0, self.a, self.t1, self.y1, self.out = (np.zeros(elements, np.float32) for _ in range(6))


def two_rounds(flow: parley.Dataflow, ring: parley.P2P, rank: parley.Rank, k: Buffers) -> parley.FlowStep:
    right, left = (rank.id + 1) % rank.world_size, (rank.id - 1) % rank.world_size
    flow.exchange(ring, [ring.isend(k.x0, to=right), ring.irecv(k.y0, source=left)])
    flow.compute(lambda: np.add(k.x0 * 2, 1, out=k.t0), reads=[k.x0], writes=[k.t0])
    flow.compute(lambda: np.add(k.y0, k.t0, out=k.a), reads=[k.y0, k.t0], writes=[k.a])
    flow.exchange(ring, [ring.isend(k.a, to=right), ring.irecv(k.y1, source=left)])
    flow.compute(lambda: np.multiply(k.a, np.float32(C), out=k.t1), reads=[k.a], writes=[k.t1])
    return flow.compute(lambda: np.add(k.y1, k.t1, out=k.out), reads=[k.y1, k.t1], writes=[k.out], name="sum")


RIGHT = {4: [13.0009765625, 7.000732421875, 9.00146484375, 15.002197265625], 2: [5.00048828125, 5.000732421875]}


def test_a_ring_of_two_rounds_gives_the_exact_numbers_in_any_weather() -> None:
    async def main(rank: parley.Rank) -> None:
        ring = parley.P2P(rank, "ring")
        k = Buffers(rank.id)
        at = k.y0.ctypes.data
        for _ in range(3):
            async with parley.Dataflow(rank) as flow:
                await rank.sleep(0.05 * (rank.id == 1))
                result = two_rounds(flow, ring, rank, k)
                await result
                assert result.done()
                assert rank.world_size == 3 or (k.out == np.float32(RIGHT[rank.world_size][rank.id])).all()
        assert k.y0.ctypes.data == at and ring.copied_bytes <= 3 * 2 * k.x0.nbytes

    for ranks in (2, 4):
        for seed, faults in ((1, "none"), (2, "weather"), (3, "weather")):
            assert parley.simulate(main, ranks=ranks, seed=seed, faults=faults, strict=True) == 0
    for seed in range(4, 9):
        with contextlib.suppress(parley.PeerFailed):
            parley.simulate(main, ranks=3, seed=seed, faults="death")


def test_real_ranks_join_a_flow_again_and_again(job: Job) -> None:
    made = job("""
import numpy as np
import parley

def main(rank):
    ring = parley.P2P(rank, "ring")
    halo = parley.Halo(rank, "u", ranks=[rank.world_size], periodic=[True])
    u, sums, total = np.zeros(1 << 16), np.zeros(1), np.zeros(1)
    ghosts = halo.plan(u)
    with parley.Dataflow(rank) as flow:
        for step in range(20):
            flow.compute(lambda: u.__setitem__(slice(1, -1), rank.id + step), updates=[u])
            flow.exchange(ghosts)
            flow.compute(lambda: sums.__setitem__(0, u[0] + u[-1]), reads=[u], writes=[sums])
            flow.join()
            assert sums[0] == (rank.id - 1) % rank.world_size + (rank.id + 1) % rank.world_size + 2 * step
        order = []
        for i in range(10):
            flow.compute(lambda i=i: order.append(i), updates=[total])
    assert order == list(range(10))
    try:
        flow.compute(lambda: None)
    except parley.Failure as why:
        assert why.code == "closed"
        print("well")

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0 and made.stdout.count("well") == 3, made.stdout + made.stderr


def test_coroutines_are_steps_too_and_computations_run_at_the_same_time(job: Job) -> None:
    made = job("""
import threading, time
import numpy as np
import parley

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
    x, y = np.full(8, 5.0), np.zeros(8)
    threads = set()

    async def moves():
        threads.add(threading.get_ident())
        await (t.isend(x, to=1) if rank.id == 0 else t.ireceive(x, source=0))

    def computes():
        threads.add(threading.get_ident())
        np.add(x, 1, out=y)

    if rank.id == 1:
        x[:] = 0
    with parley.Dataflow(rank) as flow:
        flow.compute(moves, updates=[x])
        flow.compute(computes, reads=[x], writes=[y])
    assert (y == 6).all()
    assert len(threads) == 2 and threading.get_ident() in threads, threads
    print("well")

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0 and made.stdout.count("well") == 2, made.stdout + made.stderr


def test_an_exception_of_a_step_comes_out_once_and_names_what_it_stopped() -> None:
    def fails() -> None:
        raise OSError("disk")

    ran: list[str] = []
    x, y, z = np.zeros(4), np.zeros(4), np.zeros(4)
    with parley.join() as rank:
        flow = parley.Dataflow(rank)
        first = flow.compute(fails, writes=[x], name="reading")
        second = flow.compute(lambda: ran.append("needs it"), reads=[x], writes=[y], name="doubling")
        third = flow.compute(lambda: ran.append("does not"), writes=[z])
        third.wait()
        with pytest.raises(OSError, match="disk"):
            first.wait()
        with pytest.raises(parley.Failure, match="reading"):
            second.wait()
        flow.join()
        assert ran == ["does not"]
        flow.compute(fails)
        with pytest.raises(OSError, match="disk"):
            flow.join()
        flow.join()
        with pytest.raises(KeyError), parley.Dataflow(rank) as other:
            other.compute(fails)
            raise KeyError("the block's own")


def test_what_is_no_step_is_refused() -> None:
    with parley.join() as rank:
        flow = parley.Dataflow(rank)
        for f, named, says in [(3, {}, "cannot be called"), (print, {"reads": [[1]]}, "is no memory"),
                               (print, {"writes": [b"x"]}, "read-only"),
                               (print, {"updates": [np.zeros((4, 4))[:, 0]]}, "do not follow each other")]:
            with pytest.raises(parley.BadArgument, match=says):
                flow.compute(f, **named)  # type: ignore[arg-type]
        ring = parley.P2P(rank, "ring")
        with pytest.raises(parley.BadArgument, match="one entry is None"):
            flow.exchange(ring, [None])  # type: ignore[list-item]

        async def coroutine() -> None:
            pass

        flow.compute(lambda: coroutine())
        with pytest.raises(parley.BadArgument, match="pass the `async def` itself"):
            flow.join()
        flow.join()


def test_flows_that_are_dropped_and_left_under_way_do_no_harm(job: Job) -> None:
    made = job("""
import gc, sys
import numpy as np
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    for i in range(5):
        flow = parley.Dataflow(rank)
        into = np.zeros(1000)
        flow.exchange(p, [p.isend(np.full(1000, float(i)), to=1 - rank.id), p.irecv(into, source=1 - rank.id)])
        step = flow.compute(lambda into=into: None, reads=[into])
        del flow
        gc.collect()
    step.wait()
    left = parley.Dataflow(rank)
    left.exchange(p, [p.irecv(np.zeros(10), source=1 - rank.id, tag=3)])
    left.compute(lambda: sum(range(3_000_000)))
    print("at the end", flush=True)
    if rank.id == 1:
        sys.exit(0)

raise SystemExit(parley.run(main))
""")
    assert made.stdout.count("at the end") == 2, made.stdout + made.stderr
    assert made.returncode in (0, 1) and "Fatal" not in made.stderr, made.stderr


def test_a_killed_rank_ends_the_flows_of_the_others(job: Job) -> None:
    made = job("""
import os, signal
import numpy as np
import parley

def main(rank):
    p = parley.P2P(rank, "p")
    x, y = np.zeros(10), np.zeros(10)
    if rank.id == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        with parley.Dataflow(rank) as flow:
            flow.exchange(p, [p.irecv(x, source=1)])
            flow.compute(lambda: np.add(x, 1, out=y), reads=[x], writes=[y])
    except parley.Failure as why:
        print("told", rank.id, why.code, why.peer)

raise SystemExit(parley.run(main))
""", ranks=3)
    assert "told 0 peer_failed 1" in made.stdout and "told 2 peer_failed 1" in made.stdout, made.stdout + made.stderr

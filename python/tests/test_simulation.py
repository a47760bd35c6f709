"""Virtual ranks, in this process."""

from __future__ import annotations

import pytest

import parley

seen: list[tuple[int, int]] = []


async def ring(rank: parley.Rank) -> None:
    p = parley.P2P(rank, "ring")
    n = rank.world_size
    mine, theirs = bytearray([rank.id]) * 1000, bytearray(1000)
    await rank.sleep(0.001 * rank.id)
    for i in range(20):
        await p.start([p.isend(mine, to=(rank.id + 1) % n), p.irecv(theirs, source=(rank.id - 1) % n)])
        assert theirs == bytearray([(rank.id - 1 - i) % n]) * 1000
        mine, theirs = theirs, mine
    seen.append((rank.id, rank.now_ns()))


def test_equal_seeds_give_equal_runs() -> None:
    runs = []
    for seed in (3, 3, 4):
        seen.clear()
        assert parley.simulate(ring, ranks=5, seed=seed) == 0
        runs.append(list(seen))
    assert len(runs[0]) == 5
    assert runs[0] == runs[1]


def test_a_program_survives_bad_weather() -> None:
    for seed in range(1, 6):
        seen.clear()
        assert parley.simulate(ring, ranks=4, seed=seed, faults="weather") == 0
        assert len(seen) == 4


def test_an_exception_of_a_virtual_rank_comes_out() -> None:
    async def main(rank: parley.Rank) -> None:
        p = parley.P2P(rank, "p")
        if rank.id == 1:
            raise KeyError("lost")
        with pytest.raises(parley.PeerFailed) as caught:
            await p.start([p.irecv(bytearray(1), source=1)])
        assert caught.value.peer == 1

    with pytest.raises(KeyError, match="lost"):
        parley.simulate(main, ranks=2)


def test_what_cannot_run_on_virtual_ranks_is_refused() -> None:
    def plain(rank: parley.Rank) -> None:
        del rank

    with pytest.raises(parley.BadArgument, match="async def"):
        parley.simulate(plain)  # type: ignore[arg-type]

    async def waits(rank: parley.Rank) -> None:
        p = parley.P2P(rank, "p")
        p.exchange([p.isend(b"x", to=rank.id), p.irecv(bytearray(1), source=rank.id)])

    with pytest.raises(parley.BadArgument, match="co_await|await"):
        parley.simulate(waits, ranks=1)


def test_messages_that_nobody_receives_are_a_status() -> None:
    async def main(rank: parley.Rank) -> None:
        t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
        if rank.id == 0:
            await t.isend(b"12345678", to=1)

    assert parley.simulate(main, ranks=2, strict=True) == 3

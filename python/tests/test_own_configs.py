"""Configs that a program writes itself, for transfers, batches and collectives, on real and on virtual ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest
from conftest import Job

import parley
from parley import configs

Halves = tuple[Callable[..., Any], Callable[..., Any]]
SIZE = 40_000


async def send_whole(out: configs.PartSender, data: memoryview) -> None:
    await out.send(0, data)


async def receive_whole(parts: configs.PartReceiver, data: memoryview) -> None:
    await parts.receive(0, data)


class FarHalfFirst(configs.PairedConfig):
    """The second half first, both at once."""

    wire_class = "halves"

    async def send(self, out: configs.PartSender, data: memoryview) -> None:
        middle = len(data) // 2
        out.keep_in_flight(2)
        await out.send(middle, data[middle:])
        if middle:
            await out.send(0, data[:middle])
        await out.drain()

    def receive(self, parts: configs.PartReceiver, data: memoryview) -> Generator[Any, Any, None]:
        middle = len(data) // 2
        parts.keep_in_flight(2)
        yield parts.receive(middle, data[middle:])
        if middle:
            yield parts.receive(0, data[:middle])
        yield parts.drain()


def cut(chunk_bytes: int) -> configs.PairedConfig:
    """One pair of functions, which finds its parameter with the call."""

    async def send(out: configs.PartSender, data: memoryview) -> None:
        step = out.parameters["chunk_bytes"]
        assert isinstance(step, int)
        for at in range(0, len(data), step):
            await out.send(at, data[at:at + step])

    async def receive(parts: configs.PartReceiver, data: memoryview) -> None:
        step = parts.parameters["chunk_bytes"]
        assert isinstance(step, int)
        for at in range(0, len(data), step):
            await parts.receive(at, data[at:at + step])

    return configs.paired("cut", send, receive, parameters={"chunk_bytes": chunk_bytes})


def pair(rank: parley.Rank, *candidates: configs.Transferring, timeout: float = 5.0, **more: Any) -> parley.Transfer:
    return parley.Transfer(rank, "t", role=lambda r: {0: "sender", 1: "receiver"}.get(r, "idle"), configs=["direct", *candidates],
                           timeout=timeout, **more)


async def move(rank: parley.Rank, t: parley.Transfer, size: int = SIZE) -> None:
    data = bytearray(i * 7 % 251 for i in range(size))
    into = bytearray(size)
    if rank.id == 0:
        await t.isend(data, to=1)
    else:
        assert await t.ireceive(into, source=0) == size
        assert into == data


async def decided(rank: parley.Rank, t: parley.Transfer, size: int = SIZE) -> parley.Decision:
    for _ in range(100):
        await t.tune([size])
        made = t.decision(size)
        if made.decided:
            return made
        await rank.sleep(1)
    raise AssertionError(f"not decided: {made.why}")


# ---- what works


def test_own_configs_are_candidates_like_built_in_ones_and_the_fastest_runs() -> None:
    seen: dict[int, parley.Decision] = {}

    async def main(rank: parley.Rank) -> None:
        class Slow(FarHalfFirst):
            wire_class = "slow"

            async def send(self, out: configs.PartSender, data: memoryview) -> None:
                await rank.sleep(0.001)
                await FarHalfFirst.send(self, out, data)

        t = pair(rank, FarHalfFirst, Slow(), cut(10_000), configs.paired("plain", lambda o, d: o.send(0, d), lambda p, d: p.receive(0, d)))
        for size in (1, 2, 3, 9_999, 10_001, SIZE):
            await move(rank, t, size)
        await decided(rank, t)
        for size in (1, 2, 3, 9_999, 10_001, SIZE):
            await move(rank, t, size)
        seen[rank.id] = t.decision(SIZE)
        assert rank.warnings == []

    assert parley.simulate(main) == 0
    assert seen[0].config == seen[1].config
    times = {e.config: e.time_ns for e in seen[0].evidence}
    assert set(times) == {"direct", "FarHalfFirst", "Slow", "cut(chunk_bytes=10000)", "plain"}
    assert all(e.status == "measured" for e in seen[0].evidence)
    assert times["Slow"] > times["FarHalfFirst"] + 900_000


def test_real_ranks_run_an_own_config_in_the_programs_own_memory(job: Job) -> None:
    made = job("""
import numpy as np
import parley
from parley import configs

def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data

class Thirds(configs.PairedConfig):
    name, wire_class = "thirds(n=3)", "thirds"
    places = []

    def cuts(self, parts, data):
        n = parts.parameters["n"]
        step = -(-len(data) // n)
        self.places.append((address(data), data.readonly, len(data) == parts.total_bytes))
        return [(at, data[at:at + step]) for at in range(0, len(data), step)]

    async def send(self, out, data):
        for at, part in self.cuts(out, data):
            await out.send(at, part)

    async def receive(self, parts, data):
        for at, part in self.cuts(parts, data):
            await parts.receive(at, part)

def main(rank):
    own = Thirds()
    p = parley.P2P(rank, "p", configs=[own])
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver", configs=[own, "direct"])
    x = np.zeros(100_000, np.int32)
    for i in range(30):
        own.places.clear()
        if rank.id == 0:
            x[:] = i
            t.send(x, to=1)
            p.exchange([p.isend(x, to=1)])
        else:
            t.receive(x, source=0)
            assert (x == i).all()
            p.exchange([p.irecv(x, source=0)])
        assert (x.ctypes.data, rank.id == 0, True) in own.places, (own.places, x.ctypes.data)
    t.tune([x.nbytes]).wait()
    d = t.decision(x.nbytes)
    assert {e.config for e in d.evidence} == {"thirds(n=3)", "direct"}, d
    print("decided", d.config)

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.count("decided") == 2


def test_parts_may_lie_in_memory_of_the_config_which_stays_until_they_have_ended() -> None:
    async def send(out: configs.PartSender, data: memoryview) -> None:
        out.keep_in_flight(8)
        for at in range(0, len(data), 1000):
            await out.send(at, bytes(data[at:at + 1000]))  # nobody else has this copy

    async def receive(parts: configs.PartReceiver, data: memoryview) -> None:
        for at in range(0, len(data), 1000):
            into = bytearray(min(1000, len(data) - at))
            await parts.receive(at, into)
            await parts.drain()
            data[at:at + 1000] = into

    async def main(rank: parley.Rank) -> None:
        t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver", configs=[configs.paired("copies", send, receive)])
        for size in (1, 1000, SIZE, SIZE + 1):
            await move(rank, t, size)

    for seed in range(1, 4):
        assert parley.simulate(main, seed=seed) == 0


def test_a_config_may_call_other_operations_and_sleep() -> None:
    async def main(rank: parley.Rank) -> None:
        lengths = pair(rank)
        said = []

        async def send(out: configs.PartSender, data: memoryview) -> None:
            await lengths.isend(len(data).to_bytes(8, "little"), to=1, tag=5)
            await out.send(0, data)

        async def receive(parts: configs.PartReceiver, data: memoryview) -> None:
            length = bytearray(8)
            await lengths.ireceive(length, source=0, tag=5)
            said.append(int.from_bytes(length, "little"))
            await rank.sleep(0.001)
            await parts.receive(0, data)

        t = parley.Transfer(rank, "asks", edges=[(0, 1)], configs=[configs.paired("asks", send, receive)])
        await move(rank, t, 777)
        assert said == ([777] if rank.id == 1 else [])

    assert parley.simulate(main) == 0


def test_small_payloads_go_whole_without_the_functions() -> None:
    ran: list[int] = []

    class Counted(configs.PairedConfig):
        whole_up_to = 1000

        async def send(self, out: configs.PartSender, data: memoryview) -> None:
            ran.append(len(data))
            await out.send(0, data)

        async def receive(self, parts: configs.PartReceiver, data: memoryview) -> None:
            await parts.receive(0, data)

    async def main(rank: parley.Rank) -> None:
        t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver", configs=[Counted])
        for size in (1000, 1001):
            await move(rank, t, size)

    assert parley.simulate(main) == 0
    assert 1001 in ran and 1000 not in ran


def test_ranks_may_list_other_configs_and_agree_on_what_both_have() -> None:
    seen: dict[int, parley.Decision] = {}

    async def main(rank: parley.Rank) -> None:
        own: list[configs.Transferring] = [cut(5000)] if rank.id == 0 else [FarHalfFirst(), cut(5000)]
        t = pair(rank, *own)
        seen[rank.id] = await decided(rank, t)
        await move(rank, t)

    assert parley.simulate(main) == 0
    assert {e.config for e in seen[0].evidence if e.status == "measured"} == {"direct", "cut(chunk_bytes=5000)"}


def test_a_rank_that_cannot_run_a_config_says_why_and_runs_another_of_its_wire_class() -> None:
    seen: dict[int, parley.Decision] = {}

    class Needy(configs.PairedConfig):
        def __init__(self, rank: parley.Rank, wire_class: str) -> None:
            self.rank, self.wire_class, self.name = rank, wire_class, f"needy_{wire_class or 'alone'}"

        def available(self) -> str | None:
            return "this rank has no such card" if self.rank.id == 1 else None

        async def send(self, out: configs.PartSender, data: memoryview) -> None:
            await out.send(0, data)

        async def receive(self, parts: configs.PartReceiver, data: memoryview) -> None:
            await parts.receive(0, data)

    async def main(rank: parley.Rank) -> None:
        t = pair(rank, Needy(rank, ""), Needy(rank, "whole"))
        seen[rank.id] = await decided(rank, t)
        await move(rank, t)

    assert parley.simulate(main) == 0
    of = {e.config: e for e in seen[0].evidence}
    assert of["needy_alone"].status == "lacking" and "no such card" in of["needy_alone"].detail
    assert of["needy_whole"].status == "measured"


def test_can_run_decides_instead_and_constraints_leave_configs_out() -> None:
    seen: dict[int, parley.Decision] = {}

    class Hungry(FarHalfFirst):
        wire_class = ""
        memory_per_byte = 2.0

    async def main(rank: parley.Rank) -> None:
        t = pair(rank, cut(5000), Hungry, can_run=lambda r: [True, r == 0, True], constraints=parley.Constraints(memory_bytes=1000))
        seen[rank.id] = await decided(rank, t)

    assert parley.simulate(main) == 0
    assert seen[0].config == "direct"
    of = {e.config: e for e in seen[0].evidence}
    assert of["cut(chunk_bytes=5000)"].status == "lacking"
    assert of["Hungry"].status != "measured" and "memory" in of["Hungry"].detail


def test_the_functions_of_built_in_configs_write_what_parley_reads() -> None:
    async def main(rank: parley.Rank) -> None:
        t = pair(rank, configs.chunked(), configs.chunked(1000, 3), configs.put(), configs.put(4096, 2, streams=2),
                 configs.get(kernel_blocks=4), configs.by_piece(2), configs.nccl(), configs.ucx(), configs.ucx(4096))
        assert configs.direct() == "direct"
        await move(rank, t)
        c = parley.Collective(rank, "c", configs=[configs.star(), configs.star(1000), configs.chain(), configs.tree(), configs.one_shot(),
                                                  configs.two_shot(), configs.two_shot(1000)])
        await sum_up(rank, c)

    assert parley.simulate(main) == 0
    assert configs.chunked(1 << 20, 4) == "chunked(chunk_bytes=1048576 in_flight=4)"
    assert configs.put() == "put" and configs.put(4096) == "put(chunk_bytes=4096 in_flight=4)"
    assert configs.star() == "star" and configs.two_shot(1000) == "two_shot(chunk_bytes=1000)"


# ---- what goes wrong in a rehearsal: the config is left out by name, and the calls go on


async def raises(out: configs.PartSender, data: memoryview) -> None:
    await out.send(0, data)
    raise KeyError("lost")


async def receives_and_raises(parts: configs.PartReceiver, data: memoryview) -> None:
    await parts.receive(0, data)
    raise KeyError("lost")


async def sends_swapped(out: configs.PartSender, data: memoryview) -> None:
    middle = len(data) // 2
    await out.send(0, data[middle:])
    await out.send(len(data) - middle, data[:middle])


async def receives_halves(parts: configs.PartReceiver, data: memoryview) -> None:
    middle = len(data) // 2
    await parts.receive(0, data[:middle])
    await parts.receive(middle, data[middle:])


async def sends_many(out: configs.PartSender, data: memoryview) -> None:
    for at in range(0, len(data), 1000):
        await out.send(at, data[at:at + 1000])


async def sends_twice(out: configs.PartSender, data: memoryview) -> None:
    await out.send(0, data)
    await out.send(0, data)


async def sends_beyond(out: configs.PartSender, data: memoryview) -> None:
    await out.send(1, data)


async def sends_nothing(out: configs.PartSender, data: memoryview) -> None:
    await out.send(0, data[:0])


async def forgets_to_await(out: configs.PartSender, data: memoryview) -> None:
    out.send(0, data)


async def awaits_others(out: configs.PartSender, data: memoryview) -> None:
    await asyncio.sleep(0)


def is_plain(out: configs.PartSender, data: memoryview) -> None:
    out.send(0, data)


async def writes(out: configs.PartSender, data: memoryview) -> None:
    data[0] = 1
    await out.send(0, data)


async def sends_no_memory(out: configs.PartSender, data: memoryview) -> None:
    await out.send(0, [1, 2, 3])


async def receives_nothing(parts: configs.PartReceiver, data: memoryview) -> None:
    del parts, data


async def receives_read_only(parts: configs.PartReceiver, data: memoryview) -> None:
    await parts.receive(0, bytes(data))


kept: list[Any] = []


async def keeps_a_view(parts: configs.PartReceiver, data: memoryview) -> None:
    await parts.receive(0, data)
    kept.append(data[10:20])


async def keeps_the_parts(out: configs.PartSender, data: memoryview) -> None:
    kept.append(out)
    raise ValueError("later")


@pytest.mark.parametrize(("send", "receive", "says"), [
    (raises, receive_whole, "`send` of config odd: KeyError: 'lost' (test_own_configs.py:"),
    (send_whole, receives_and_raises, "`receive` of config odd: KeyError: 'lost'"),
    (sends_swapped, receives_halves, "wrong data at byte 0"),
    (sends_many, receive_whole, "its sender and receiver halves do not match"),
    (send_whole, receives_halves, "its sender and receiver halves do not match"),
    (sends_twice, receive_whole, "overlaps one that was sent before"),
    (sends_beyond, receive_whole, "ends behind the payload"),
    (sends_nothing, receive_whole, "a part of 0 bytes"),
    (forgets_to_await, receive_whole, "sent 0 of"),
    (awaits_others, receive_whole, "calls of parley only"),
    (is_plain, receive_whole, "is no coroutine function"),
    (writes, receive_whole, "TypeError: cannot modify read-only memory"),
    (sends_no_memory, receive_whole, "an object of type list is no memory"),
    (send_whole, receives_nothing, "wrong data at byte 0"),
    (send_whole, receives_read_only, "is read-only"),
    (send_whole, keeps_a_view, "keeps a view of its call's memory"),
    (keeps_the_parts, receive_whole, "ValueError: later"),
])
def test_a_config_whose_rehearsal_fails_is_left_out_by_name(send: Any, receive: Any, says: str) -> None:
    kept.clear()
    seen: dict[int, parley.Decision] = {}
    warned: list[str] = []

    async def main(rank: parley.Rank) -> None:
        t = pair(rank, configs.paired("odd", send, receive), configs.paired("good", send_whole, receive_whole))
        seen[rank.id] = await decided(rank, t)
        await move(rank, t)
        warned.extend(rank.warnings)

    assert parley.simulate(main) == 0
    assert len(warned) == 1 and "config odd" in warned[0] and says in warned[0], warned
    for d in seen.values():
        assert {e.config for e in d.evidence if e.status == "measured"} == {"direct", "good"}
    for each in kept:
        if isinstance(each, memoryview):
            assert len(bytes(each)) == 10  # the memory of a rehearsal stays with its views
        else:
            with pytest.raises(parley.BadArgument, match="has ended"):
                each.send(0, b"late")


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("ignores", [False, True])
def test_a_config_that_hangs_is_ended_in_its_rehearsal(at: int, ignores: bool) -> None:
    warned: list[str] = []

    async def main(rank: parley.Rank) -> None:
        async def hang() -> None:
            while rank.id == at:
                try:
                    await rank.sleep(3600)
                except parley.Failure:
                    if not ignores:
                        raise

        async def send(out: configs.PartSender, data: memoryview) -> None:
            await hang()
            await out.send(0, data)

        async def receive(parts: configs.PartReceiver, data: memoryview) -> None:
            await hang()
            await parts.receive(0, data)

        t = pair(rank, configs.paired("hangs", send, receive))
        for _ in range(3):
            await move(rank, t)
        d = await decided(rank, t)
        assert d.config == "direct"
        warned.extend(rank.warnings)

    assert parley.simulate(main) == 0
    # A sender that waits for a hanging receiver has waited too long, too.
    assert len(warned) == 1 + at and all("config hangs" in w and "rehearsal failed" in w for w in warned), warned


def test_a_config_that_tries_a_failed_part_again_for_ever_is_ended() -> None:
    warned: list[str] = []

    async def main(rank: parley.Rank) -> None:
        async def send(out: configs.PartSender, data: memoryview) -> None:
            while True:
                try:
                    await out.send(0, data)
                except parley.Failure:
                    pass

        t = pair(rank, configs.paired("again", send, receive_whole))
        assert (await decided(rank, t)).config == "direct"
        warned.extend(rank.warnings)

    assert parley.simulate(main) == 0
    assert len(warned) == 1 and "config again: bad_argument" in warned[0], warned


def test_a_config_that_calls_its_own_operation_is_left_out() -> None:
    warned: list[str] = []

    async def main(rank: parley.Rank) -> None:
        made: list[parley.Transfer] = []

        async def send(out: configs.PartSender, data: memoryview) -> None:
            await made[0].isend(data, to=1)

        made.append(pair(rank, configs.paired("itself", send, receive_whole)))
        assert (await decided(rank, made[0])).config == "direct"
        await move(rank, made[0])
        warned.extend(rank.warnings)

    assert parley.simulate(main) == 0
    assert len(warned) == 1 and "called by its own implementation itself" in warned[0], warned


def test_a_part_that_another_coroutine_awaits_is_refused() -> None:
    warned: list[str] = []

    async def main(rank: parley.Rank) -> None:
        async def one(part: configs.Part) -> None:
            await part

        async def send(out: configs.PartSender, data: memoryview) -> None:
            await rank.start(one(out.send(0, data)))

        t = pair(rank, configs.paired("elsewhere", send, receive_whole))
        await decided(rank, t)
        warned.extend(rank.warnings)

    assert parley.simulate(main) == 0
    assert len(warned) == 1 and "another coroutine than the config's function" in warned[0], warned


# ---- what goes wrong in a call


@pytest.mark.parametrize("at", [0, 1])
def test_a_config_that_fails_later_ends_its_call_by_name_and_does_not_run_again(at: int) -> None:
    seen: dict[int, list[str]] = {0: [], 1: []}

    async def main(rank: parley.Rank) -> None:
        is_broken = False

        async def send(out: configs.PartSender, data: memoryview) -> None:
            await out.send(0, data[:100])
            if is_broken and rank.id == at:
                raise RuntimeError("the card is on fire")
            await out.send(100, data[100:])

        async def receive(parts: configs.PartReceiver, data: memoryview) -> None:
            await parts.receive(0, data[:100])
            if is_broken and rank.id == at:
                raise RuntimeError("the card is on fire")
            await parts.receive(100, data[100:])

        async def slow_send(out: configs.PartSender, data: memoryview) -> None:
            await rank.sleep(0.01)
            await out.send(0, data)

        t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver", timeout=5,
                            configs=[configs.paired("slow", slow_send, receive_whole), configs.paired("quick", send, receive)])
        d = await decided(rank, t)
        assert d.config == "quick", d
        is_broken = True
        try:
            await move(rank, t)
        except parley.Failure as why:
            assert why.code == "config_failed" and why.config == "quick" and why.op == "t 0->1", why
            seen[rank.id].append(str(why))
        await rank.sleep(1)
        for _ in range(3):
            await move(rank, t)  # by the default
        assert t.decision(SIZE).config == "slow"
        assert "quick" in t.decision(SIZE).why

    assert parley.simulate(main) == 0
    assert any("RuntimeError: the card is on fire (test_own_configs.py:" in text for text in seen[at])


def test_a_default_that_fails_does_so_by_name_in_each_call() -> None:
    async def main(rank: parley.Rank) -> None:
        t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver", timeout=5,
                            configs=[configs.paired("odd", raises, receive_whole)])
        for _ in range(2):
            if rank.id == 0:
                with pytest.raises(parley.Failure, match="KeyError: 'lost'") as caught:
                    await t.isend(bytes(100), to=1)
                assert caught.value.code == "config_failed"
            else:
                with pytest.raises(parley.Failure) as caught:
                    await t.ireceive(bytearray(100), source=0)

    assert parley.simulate(main) == 0


def test_bad_weather_loses_nothing_in_own_configs() -> None:
    async def main(rank: parley.Rank) -> None:
        t = pair(rank, FarHalfFirst, cut(7000), timeout=30)
        for size in (1, 100, SIZE) * 10:
            await move(rank, t, size)

    for seed in range(1, 6):
        assert parley.simulate(main, seed=seed, faults="weather") == 0


def test_a_rank_that_dies_inside_an_own_config_is_named(job: Job) -> None:
    made = job("""
import os, signal
import parley
from parley import configs

class Dies(configs.PairedConfig):
    async def send(self, out, data):
        await out.send(0, data[:100])
        os.kill(os.getpid(), signal.SIGKILL)
        await out.send(100, data[100:])

    async def receive(self, parts, data):
        await parts.receive(0, data[:100])
        await parts.receive(100, data[100:])

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver", configs=[Dies])
    try:
        t.send(bytes(1000), to=1) if rank.id == 0 else t.receive(bytearray(1000), source=0)
    except parley.Failure as why:
        print(why.code, why.peer, why.op)

raise SystemExit(parley.run(main))
""")
    assert "peer_failed 0 t 0->1" in made.stdout, made.stdout + made.stderr


def test_own_configs_run_in_a_program_of_asyncio(job: Job) -> None:
    made = job("""
import asyncio
import parley
from parley import configs

class Halves(configs.PairedConfig):
    def __init__(self, rank):
        self.rank = rank

    async def send(self, out, data):
        await out.send(0, data[:len(data) // 2])
        await self.rank.sleep(0.001)
        await out.send(len(data) // 2, data[len(data) // 2:])

    async def receive(self, parts, data):
        await parts.receive(0, data[:len(data) // 2])
        await parts.receive(len(data) // 2, data[len(data) // 2:])

async def exchange(rank):
    p = parley.P2P(rank, "p", configs=[Halves(rank)])
    peer, ticks = 1 - rank.id, 0

    async def count():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    beside = asyncio.create_task(count())
    for i in range(50):
        theirs = bytearray(10_000)
        await p.start([p.isend(bytes([i]) * 10_000, to=peer), p.irecv(theirs, source=peer)])
        assert theirs == bytes([i]) * 10_000
    beside.cancel()
    assert ticks > 10, ticks
    print("done")

with parley.join() as rank:
    asyncio.run(exchange(rank))
""")
    assert made.returncode == 0 and made.stdout.count("done") == 2, made.stdout + made.stderr


def test_a_rank_that_dies_in_a_group_config_is_named(job: Job) -> None:
    made = job("""
import os, signal
import parley
from parley import configs

class Dies(configs.GroupConfig):
    async def lead(self, call):
        call.receive(1, 0, call.scratch(len(call.data)))
        call.receive(2, 0, call.scratch(len(call.data)))
        await call.drain()

    async def work(self, call):
        if call.place == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        call.send(call.leader, 0, call.data)
        call.receive(call.leader, 0, call.data)
        await call.drain()

def main(rank):
    c = parley.Collective(rank, "sums", configs=[Dies])
    try:
        c.all_reduce(memoryview(bytearray(4000)).cast("i"))
    except parley.Failure as why:
        print(why.code, why.peer)

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.stdout.count("peer_failed 2") == 2, made.stdout + made.stderr


def test_ctrl_c_in_an_own_config_is_the_programs(job: Job) -> None:
    made = job("""
import signal, time
import parley
from parley import configs

class Slow(configs.PairedConfig):
    async def send(self, out, data):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.01)
        await out.send(0, data)

    async def receive(self, parts, data):
        await parts.receive(0, data)

def main(rank):
    t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver", configs=[Slow])
    if rank.id == 0:
        try:
            t.send(bytes(1000), to=1)
        except KeyboardInterrupt:
            print("interrupted")
    else:
        try:
            t.receive(bytearray(1000), source=0)
        except parley.Failure as why:
            print("receiver:", why.code)

raise SystemExit(parley.run(main))
""")
    assert "interrupted" in made.stdout, made.stdout + made.stderr
    assert "receiver: " in made.stdout and "config_failed" not in made.stdout, made.stdout + made.stderr


def test_a_rank_that_leaves_lets_go_of_its_configs(job: Job) -> None:
    made = job("""
import gc, weakref
import parley
from parley import configs

class Holds(configs.PairedConfig):
    def __init__(self, rank):
        self.rank = rank

    async def send(self, out, data):
        await out.send(0, data)

    async def receive(self, parts, data):
        await parts.receive(0, data)

def use():
    with parley.join() as rank:
        own = Holds(rank)
        t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver", configs=[own])
        t.send(bytes(1000), to=1) if rank.id == 0 else t.receive(bytearray(1000), source=0)
        return weakref.ref(own)

held = use()
gc.collect()
assert held() is None
print("gone")
""")
    assert made.stdout.count("gone") == 2, made.stdout + made.stderr


def test_impossible_configs_are_refused() -> None:
    class NoReceive:
        def send(self, out: configs.PartSender, data: memoryview) -> None: ...

    def named(**attributes: Any) -> Any:
        return type("Odd", (configs.PairedConfig,), attributes)

    with parley.join() as rank:
        for number, (given, says) in enumerate([
            (NoReceive(), "has no `receive`"),
            (7, "7 has no `send`"),
            (named(wire_class=3), "`wire_class` is a text, not 3"),
            (named(parameters={"chunk": 1.5}), "whole numbers and words"),
            (named(name="a b c("), "a b c\\("),
            (named(name="x" * 100), "64"),
            (named(requirements=3), "`requirements` is a list of texts"),
        ]):
            with pytest.raises(parley.BadArgument, match=says):
                parley.Transfer(rank, f"t{number}", role=lambda _: "idle", configs=["direct", given])
        with pytest.raises(parley.BadArgument, match="no function for `receive`"):
            configs.paired("x", send_whole, None)  # type: ignore[arg-type]
        with pytest.raises(parley.BadArgument, match="`lead` and `work`"):
            parley.Collective(rank, "c", configs=["star", FarHalfFirst])  # type: ignore[list-item]
        with pytest.raises(ZeroDivisionError):
            parley.Transfer(rank, "z", role=lambda _: "idle", configs=[named(__init__=lambda _: 1 // 0)])


def test_answers_that_make_no_sense_leave_configs_out_on_that_rank() -> None:
    warned: list[str] = []

    async def main(rank: parley.Rank) -> None:
        def can_run(r: int) -> list[bool]:
            if r == 1:
                raise LookupError("no such card")
            return [True, True]

        t = pair(rank, cut(5000), can_run=can_run)
        assert (await decided(rank, t)).config == "direct"
        warned.extend(rank.warnings)

    assert parley.simulate(main) == 0
    assert len(warned) == 1 and "LookupError: no such card (test_own_configs.py:" in warned[0], warned

    async def number(rank: parley.Rank) -> None:
        with pytest.raises(parley.Failure):
            t = pair(rank, cut(5000), can_run=lambda _: [True])
            await move(rank, t)

    parley.simulate(number)


# ---- collectives


class Star(configs.GroupConfig):
    """The leader collects, combines in the order of the places, and sends the result back."""

    kinds = ["all_reduce"]

    def collect(self, call: configs.GroupCall) -> memoryview:
        n = len(call.data)
        slots = call.scratch(call.size * n)
        for p in range(call.size):
            if p != call.place:
                call.receive(p, 0, slots[p * n:(p + 1) * n])
        return slots

    def fold(self, call: configs.GroupCall, slots: memoryview) -> None:
        n = len(call.data)
        slots[call.place * n:(call.place + 1) * n] = call.data
        call.data[:] = slots[:n]
        for p in range(1, call.size):
            call.combine(call.data, slots[p * n:(p + 1) * n])

    async def lead(self, call: configs.GroupCall) -> None:
        slots = self.collect(call)
        await call.drain()
        self.fold(call, slots)
        await call.between()
        for p in range(call.size):
            if p != call.place:
                call.send(p, 0, call.data)
        await call.drain()

    async def work(self, call: configs.GroupCall) -> None:
        await call.until_sent(call.send(call.leader, 0, call.data))
        await call.until(call.receive(call.leader, 0, call.data))


class Raises(Star):
    async def work(self, call: configs.GroupCall) -> None:
        call.send(call.leader, 0, call.data)
        call.receive(call.leader, 0, call.data)
        raise KeyError("lost")


class Short(Star):
    async def work(self, call: configs.GroupCall) -> None:
        call.send(call.leader, 0, call.data[:-8])
        await call.drain()


class Unordered(Star):
    def fold(self, call: configs.GroupCall, slots: memoryview) -> None:
        n = len(call.data)
        slots[call.place * n:(call.place + 1) * n] = call.data
        call.data[:] = slots[(call.size - 1) * n:]
        for p in range(call.size - 2, -1, -1):
            call.combine(call.data, slots[p * n:(p + 1) * n])


class OddPieces(Star):
    def fold(self, call: configs.GroupCall, slots: memoryview) -> None:
        call.combine(call.data[1:9], slots[1:9])


class Elsewhere(Star):
    def collect(self, call: configs.GroupCall) -> memoryview:
        call.receive(1 - call.place, 0, bytearray(len(call.data)))
        raise AssertionError


class ToItself(Star):
    async def lead(self, call: configs.GroupCall) -> None:
        call.send(call.place, 0, call.data)


class Keeps(Star):
    async def work(self, call: configs.GroupCall) -> None:
        await Star.work(self, call)
        kept.append(call.data[:5])


class Hangs(Star):
    async def lead(self, call: configs.GroupCall) -> None:
        self.collect(call)
        call.receive(1, 8, call.scratch(8))
        await call.drain()


async def sum_up(rank: parley.Rank, c: parley.Collective, n: int = 1000) -> None:
    data = memoryview(bytearray(4 * n)).cast("i")
    for i in range(n):
        data[i] = (rank.id + 1) * (i % 7)
    await c.iall_reduce(data)
    total = rank.world_size * (rank.world_size + 1) // 2
    assert all(data[i] == total * (i % 7) for i in range(n))


def test_own_group_configs_are_candidates_and_those_that_fail_are_left_out_by_name() -> None:
    kept.clear()
    bad: dict[type[Star], str] = {Raises: "`work` of config Raises: KeyError: 'lost'", Short: "config Short",
                                  Unordered: "in the order of the places", OddPieces: "whole elements", Elsewhere: "is not of the call",
                                  ToItself: "is no other place",
                                  Keeps: "keeps a view", Hangs: "config Hangs"}
    seen: dict[int, parley.Decision] = {}
    warned: list[str] = []

    async def main(rank: parley.Rank) -> None:
        c = parley.Collective(rank, "sums", configs=["star", Star, *bad], timeout=5)
        for _ in range(500):
            await sum_up(rank, c, 100)
            await rank.sleep(0.1)
        seen[rank.id] = c.decision(400)
        warned.extend(rank.warnings)

    assert parley.simulate(main, ranks=3) == 0
    assert seen[0].decided and seen[0].config == seen[2].config
    assert {e.config for e in seen[0].evidence if e.status == "measured"} == {"star", "Star"}
    for kind, says in bad.items():
        assert any(f"config {kind.__name__}:" in w and says in w for w in warned), (kind, warned)


def test_real_ranks_reduce_with_an_own_config_alone(job: Job) -> None:
    made = job("""
import numpy as np
import parley
from parley import configs

class AllToAll(configs.GroupConfig):
    kinds, returns_later = ["all_reduce"], False

    def sum(self, call):
        n = len(call.data)
        slots = call.scratch(call.size * n)
        for p in range(call.size):
            if p != call.place:
                call.receive(p, 0, slots[p * n:(p + 1) * n])
                call.send(p, 0, call.data)
        yield call.drain()
        slots[call.place * n:(call.place + 1) * n] = call.data
        parts = np.frombuffer(slots, np.float32).reshape(call.size, -1)
        np.frombuffer(call.data, np.float32)[:] = np.add.reduce(parts, axis=0)

    lead = work = sum

def main(rank):
    c = parley.Collective(rank, "sums", configs=[AllToAll])
    x = np.zeros(10_000, np.float32)
    for i in range(50):
        x[:] = rank.id + i
        c.all_reduce(x)
        assert (x == 3 * i + 3).all(), x
    try:
        c.all_reduce(x, between=lambda data: None)
    except parley.BadArgument as why:
        print("refused", why)

raise SystemExit(parley.run(main))
""", ranks=3)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.count("refused") == 3


def test_the_leaders_own_work_runs_between_and_its_exception_comes_out() -> None:
    async def main(rank: parley.Rank) -> None:
        inside = parley.Collective(rank, "inside", groups=[[0, 1], [2, 3]], configs=[Star], timeout=5)
        among = parley.Collective(rank, "among", groups=[[0, 2]], timeout=5)
        data = memoryview(bytearray(8)).cast("d")

        def leaders_sum(combined: object) -> Coroutine[Any, Any, None]:
            async def both() -> None:
                assert combined is data
                await among.iall_reduce(combined)

            return both()

        for _ in range(3):
            data[0] = rank.id + 1
            await inside.iall_reduce(data, between=leaders_sum if inside.leads else None)
            assert data[0] == 10

        def fails(combined: object) -> None:
            del combined
            raise ZeroDivisionError("between")

        if inside.leads:
            with pytest.raises(ZeroDivisionError, match="between"):
                await inside.iall_reduce(data, between=fails)
        else:
            with pytest.raises(parley.Failure):
                await inside.iall_reduce(data)

    assert parley.simulate(main, ranks=4) == 0


def test_a_virtual_rank_that_dies_inside_own_configs_does_no_harm() -> None:
    async def main(rank: parley.Rank) -> None:
        async def send(out: configs.PartSender, data: memoryview) -> None:
            out.keep_in_flight(4)
            for at in range(0, len(data), 5000):
                await out.send(at, bytes(data[at:at + 5000]))

        async def receive(parts: configs.PartReceiver, data: memoryview) -> None:
            for at in range(0, len(data), 5000):
                into = bytearray(min(5000, len(data) - at))
                await parts.receive(at, into)
                await rank.sleep(1e-5)
                data[at:at + 5000] = into

        t = pair(rank, configs.paired("copies", send, receive), FarHalfFirst, timeout=30)
        c = parley.Collective(rank, "sums", configs=[Star], timeout=30)
        for _ in range(40):
            await move(rank, t)
            await sum_up(rank, c, 50)

    for seed in range(1, 9):
        assert parley.simulate(main, seed=seed, faults="death") == 0


def test_own_configs_run_in_hierarchies_and_halos() -> None:
    ran: set[str] = set()

    class NamedStar(Star):
        async def lead(self, call: configs.GroupCall) -> None:
            ran.add("star")
            await Star.lead(self, call)

    class NamedHalves(FarHalfFirst):
        async def send(self, out: configs.PartSender, data: memoryview) -> None:
            ran.add("halves")
            await FarHalfFirst.send(self, out, data)

    async def main(rank: parley.Rank) -> None:
        h = parley.Hierarchy(rank, "sums", leads=lambda r: r % 2 == 0, inside=[NamedStar], between=["star"])
        data = memoryview(bytearray(400)).cast("i")
        data[3] = rank.id + 1
        await h.iall_reduce(data)
        assert data[3] == 10
        numpy = pytest.importorskip("numpy")
        ghosts = parley.Halo(rank, "ghosts", ranks=[4], configs=[NamedHalves])
        field = numpy.full((6, 5), float(rank.id))
        await ghosts.plan(field).iexchange()
        if rank.id < 3:
            assert (field[-1] == rank.id + 1).all(), field

    assert parley.simulate(main, ranks=4) == 0
    assert ran == {"star", "halves"}

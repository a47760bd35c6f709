"""The designs' names: functions that are registered for roles, on virtual and on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from conftest import Job

import parley
from parley import PairedOpConfig, RoleFunction, configs

SIZE = 10_000


async def send_whole(out: configs.PartSender, data: memoryview) -> None:
    await out.send(0, data)


async def receive_whole(parts: configs.PartReceiver, data: memoryview) -> None:
    await parts.receive(0, data)


async def send_cut(out: configs.PartSender, data: memoryview) -> None:
    step = int(out.parameters.get("chunk_bytes", len(data) // 2))
    for at in range(0, len(data), step):
        await out.send(at, data[at:at + step])


async def receive_cut(parts: configs.PartReceiver, data: memoryview) -> None:
    step = int(parts.parameters.get("chunk_bytes", len(data) // 2))
    for at in range(0, len(data), step):
        await parts.receive(at, data[at:at + step])


def to_the_next(rank: int) -> str:
    return "send" if rank % 2 == 0 else "receive"


async def until_decided(rank: parley.Rank, call: Callable[[], Coroutine[Any, Any, None]],
                        decision: Callable[[], parley.Decision]) -> parley.Decision:
    """All ranks make as many calls."""
    for _ in range(300):
        await call()
        await rank.sleep(0.01)
    made = decision()
    assert made.decided, made.why
    return made


# ---- paired


def test_halves_meet_by_their_ids_and_an_id_that_a_role_lacks_is_named_and_never_runs() -> None:
    seen: dict[int, tuple[list[str], parley.Decision]] = {}

    async def main(rank: parley.Rank) -> None:
        made = parley.register_paired_op_autotuning(rank, "send", "receive", [
            PairedOpConfig("whole", send_whole),
            PairedOpConfig("only_received", None, receive_cut),
            PairedOpConfig("cut(chunk_bytes=3000)", send_cut),
            PairedOpConfig("whole", None, receive_whole),
            PairedOpConfig("cut(chunk_bytes=3000)", None, receive_cut),
        ], to_the_next)
        data = bytearray([rank.id] * SIZE)

        async def call() -> None:
            if rank.id % 2 == 0:
                await made.op.isend(data, to=rank.id + 1)
            else:
                assert await made.op.ireceive(data, source=rank.id - 1) == SIZE
                assert data == bytearray([rank.id - 1] * SIZE)

        for _ in range(20):
            await call()
        await made.op.tune([SIZE])
        seen[rank.id] = made.left_out, made.op.decision(SIZE)

    assert parley.simulate(main, ranks=4) == 0
    for left_out, d in seen.values():
        assert left_out == ["only_received: the sender has no function for it"]
        assert d.decided and [e.config for e in d.evidence] == ["whole", "cut(chunk_bytes=3000)"]


def test_pairs_that_cannot_work_are_refused_by_name() -> None:
    def code_of(rank: parley.Rank, entries: list[PairedOpConfig], role: Callable[[int], Any] = to_the_next) -> tuple[str, str]:
        with pytest.raises(parley.Failure) as caught:
            parley.register_paired_op_autotuning(rank, "send", "receive", entries, role)
        return caught.value.code, str(caught.value)

    async def main(rank: parley.Rank) -> None:
        whole = PairedOpConfig("whole", send_whole, receive_whole)
        assert code_of(rank, [PairedOpConfig("x", send_whole), PairedOpConfig("y", None, receive_whole)])[0] == "no_common_config"
        assert code_of(rank, []) == ("no_common_config", "no_common_config: op send+receive has no config that both roles have; give one "
                                     "config_id a send and a receive function")
        assert code_of(rank, [whole, PairedOpConfig("whole", send_cut)])[0] == "bad_argument"
        code, text = code_of(rank, [whole], lambda r: "send" if r % 3 == 0 else "receive" if r % 3 == 1 else "idle")
        assert code == "role_conflict" and "senders are 0, 3 and the receivers 1" in text
        with pytest.raises(ZeroDivisionError):
            parley.register_paired_op_autotuning(rank, "send", "receive", [whole], lambda r: str(r // 0))

    assert parley.simulate(main, ranks=4) == 0


def test_a_role_function_that_raises_on_one_rank_ends_the_others_with_a_cause(job: Job) -> None:
    made = job("""
import parley
from parley import PairedOpConfig

def role(rank):
    return {"0": "send", "1": "receive"}[str(rank)] if me == 0 else cards[rank]

cards = {}
def main(rank):
    global me
    me = rank.id
    pair = parley.register_paired_op_autotuning(rank, "send", "receive", [
        PairedOpConfig("whole", lambda out, data: out.send(0, data), lambda parts, data: parts.receive(0, data))], role)
    try:
        while True:
            pair.op.send(bytes(1 << 20), to=1)  # a message to a rank that leaves may still be taken
    except parley.PeerFailed as why:
        print("peer", why.peer, why.began_with)
        raise

raise SystemExit(parley.run(main))
""")
    assert made.returncode == 1
    assert "KeyError: 0" in made.stderr and "peer 1" in made.stdout, made.stdout + made.stderr


# ---- per role


def test_each_role_chooses_among_its_own_functions_and_the_registered_one_is_its_default() -> None:
    seen: dict[int, Any] = {}

    async def main(rank: parley.Rank) -> None:
        def taking(name: str, seconds: float) -> Callable[[Any], Coroutine[Any, Any, str]]:
            async def run(data: Any) -> str:
                assert data is passed
                await rank.sleep(seconds)
                if name == "broken":
                    raise LookupError("no such instruction")
                return name

            return run

        passed = bytearray(SIZE)
        stage = parley.register_asymmetric_autotuning(
            rank, "stage", {"produce": taking("slow", 0.002), "consume": taking("default", 0.001)},
            {"produce": {"fast": taking("fast", 0.001)}, "consume": {"slower": taking("slower", 0.003), "broken": taking("broken", 1e-6)}},
            lambda r: ["produce", "consume", "idle"][r])
        if rank.id == 2:
            assert stage.idle
            with pytest.raises(parley.BadArgument):
                await stage.irun(passed)
            return
        assert stage.role == ["produce", "consume"][rank.id]
        ran: list[str] = []
        for _ in range(300):
            try:
                ran.append(await stage.irun(passed))
            except LookupError as why:
                assert str(why) == "no such instruction"  # the program's own exception, unchanged
                ran.append("broken")
        assert ran[0] == ("slow" if rank.id == 0 else "default")
        seen[rank.id] = stage.decision(SIZE), set(ran), ran[-1], ran.count("broken")

    assert parley.simulate(main, ranks=3) == 0
    assert seen[0][0].config == "fast" and seen[0][1] == {"slow", "fast"} and seen[0][2] == "fast"
    assert seen[1][0].config == "operation" and seen[1][1] == {"default", "slower", "broken"} and seen[1][2] == "default"
    assert seen[1][3] == 1  # it never runs again


def test_waits_in_calls_of_other_operations_are_not_charged_to_a_function() -> None:
    """The candidate works for half as long as the default, and waits for a message for 20 times as long."""
    seen: list[parley.Decision] = []

    async def main(rank: parley.Rank) -> None:
        t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
        if rank.id == 0:
            for _ in range(200):
                await rank.sleep(0.01)
                await t.isend(bytes(8), to=1)
            return

        async def plain(data: bytearray) -> None:
            await t.ireceive(data, source=0)
            await rank.sleep(0.001)

        async def quick(data: bytearray) -> None:
            await t.ireceive(data, source=0)
            await rank.sleep(0.0005)

        stage = parley.register_asymmetric_autotuning(rank, "stage", {"stage": plain}, {"stage": {"quick": quick}},
                                                      lambda r: "stage" if r == 1 else "idle")
        for _ in range(200):
            await stage.irun(bytearray(8))
        seen.append(stage.decision(8))

    assert parley.simulate(main) == 0
    assert seen[0].config == "quick"
    times = {e.config: e.time_ns for e in seen[0].evidence}
    assert 900_000 < times["operation"] < 1_100_000 and 450_000 < times["quick"] < 550_000, times


def test_a_function_is_not_to_blame_for_a_late_peer_or_a_cancelled_call() -> None:
    seen: list[tuple[parley.Decision, set[str]]] = []

    async def main(rank: parley.Rank) -> None:
        t = parley.Transfer(rank, "t", role=lambda r: "sender" if r == 0 else "receiver")
        if rank.id == 0:
            return
        late: set[str] = set()

        def taking(name: str, seconds: float) -> Callable[[Any], Coroutine[Any, Any, None]]:
            async def run(data: bytearray) -> None:
                await rank.sleep(seconds)
                if name == "quick" and name not in late:
                    late.add(name)
                    await t.ireceive(bytearray(1), source=0, tag=9, timeout=0.01)  # nobody sends it
                if name == "slow" and name not in late:
                    late.add(name)
                    await rank.sleep(3600)

            return run

        stage = parley.register_asymmetric_autotuning(rank, "stage", {"stage": taking("plain", 0.002)}, {
            "stage": {"quick": taking("quick", 0.001), "slow": taking("slow", 0.003)}}, lambda r: "stage" if r == 1 else "idle")
        for _ in range(300):
            call = stage.irun(bytearray(8))
            waits = rank.sleep(1)
            await waits
            if not call.done():
                call.cancel()
            try:
                await call
            except parley.Failure as why:
                assert why.code in ("timeout", "cancelled", "peer_failed"), why
        seen.append((stage.decision(8), late))

    parley.simulate(main)
    d, late = seen[0]
    assert late == {"quick", "slow"}
    assert d.config == "quick", d
    assert {e.config for e in d.evidence if e.status == "measured"} == {"operation", "quick", "slow"}


def test_ctrl_c_in_a_registered_function_is_the_programs(job: Job) -> None:
    made = job("""
import signal
import parley

def main(rank):
    asked = []

    def work(data):
        if not asked:
            asked.append(1)
            signal.raise_signal(signal.SIGINT)

    stage = parley.register_asymmetric_autotuning(rank, "stage", {"a": work}, {}, lambda r: "a")
    try:
        stage.run(bytes(8))
    except KeyboardInterrupt:
        print("interrupted")
    stage.run(bytes(8))
    print("goes on")

raise SystemExit(parley.run(main))
""", ranks=1)
    assert made.returncode == 0 and "interrupted" in made.stdout and "goes on" in made.stdout, made.stdout + made.stderr


def test_plain_functions_are_roles_and_several_calls_keep_their_own_objects(job: Job) -> None:
    made = job("""
import time
import parley

def main(rank):
    def double(x):
        time.sleep(0.002)
        x[:] = [2 * v % 256 for v in x]
        return len(x)

    def quick(x):
        x[:] = bytes(2 * v % 256 for v in x)
        return len(x)

    stage = parley.register_asymmetric_autotuning(rank, "stage", {"a": double}, {"a": {"quick": quick}}, lambda r: "a")
    for i in range(20):
        many = [bytearray([k]) * 50 for k in range(5)]
        works = [stage.irun(x) for x in many]
        assert [w.wait() for w in works] == [50] * 5
        assert many == [bytearray([2 * k]) * 50 for k in range(5)]
    for i in range(300):
        assert stage.run(bytearray(6000)) == 6000
    nothing = parley.register_asymmetric_autotuning(rank, "nothing", {"a": lambda data: data}, {}, lambda r: "a")
    assert nothing.run() is None
    print(stage.decision(6000).config)  # calls at once are timed with each other

raise SystemExit(parley.run(main))
""", ranks=1)
    assert made.returncode == 0 and "quick" in made.stdout, made.stdout + made.stderr


def test_lists_that_cannot_work_are_refused() -> None:
    with parley.join() as rank:
        def register(operations: Any, further: Any, role: Callable[[int], Any] = lambda _: "a", name: str = "op") -> str:
            with pytest.raises(parley.Failure) as caught:
                parley.register_asymmetric_autotuning(rank, name, operations, further, role)
            return str(caught.value)

        assert "which has no operation" in register({"a": print}, {"b": {"x": print}})
        assert "rank 0 has the role boss" in register({"a": print}, {}, lambda _: "boss")
        assert "the operation of role a is null" in register({"a": None}, {})
        assert "a role function returns a text" in register({"a": print}, {}, lambda _: 3)
        assert "Default" in register({"a": print}, {"a": {"Default": print}}, name="named")
        with pytest.raises(ZeroDivisionError):
            parley.register_asymmetric_autotuning(rank, "z", {"a": print}, {}, lambda _: str(1 // 0))
        rough = RoleFunction(print, relative_error=0.1)
        limited = parley.register_asymmetric_autotuning(rank, "limited", {"a": print}, {"a": {"rough": rough}},
                                                        lambda _: "a", allowed=parley.Constraints(relative_error=1e-3))
        limited.run(b"once")
        assert limited.decision(4).config == "operation"


# ---- roles together


def coordinated(fits: bool) -> dict[int, parley.Decision]:
    seen: dict[int, parley.Decision] = {}
    ran: dict[int, list[str]] = {0: [], 1: []}

    async def main(rank: parley.Rank) -> None:
        wire = parley.Transfer(rank, "wire", edges=[(0, 1)])

        def producing(form: str, seconds: float) -> Callable[[Any], Coroutine[Any, Any, None]]:
            async def run(data: Any) -> None:
                ran[0].append(form)
                await rank.sleep(seconds)
                await wire.isend(form.encode().ljust(8), to=1)

            return run

        def consuming(form: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
            async def run(data: Any) -> None:
                ran[1].append(form)
                made = bytearray(8)
                await wire.ireceive(made, source=0)
                await rank.sleep(0.001 if made.decode().strip() == form else 0.004)

            return run

        def of(run: Any, word: str) -> RoleFunction:
            return RoleFunction(run, fits=word if fits else "")

        step = parley.register_coordinated_autotuning(
            rank, "step", {"produce": of(producing("rows", 0.002), "rows"), "consume": of(consuming("rows"), "rows")},
            {"produce": {"columns(width=8)": of(producing("columns", 0.0005), "columns")},
             "consume": {"columns(width=8)": of(consuming("columns"), "columns"), "blocks": of(consuming("blocks"), "blocks")}},
            lambda r: ["produce", "consume", "idle"][r])
        if rank.id == 2:
            assert step.idle
            return
        data = bytearray(1000)

        async def call() -> None:
            await step.irun(data)

        seen[rank.id] = await until_decided(rank, call, lambda: step.decision(1000))

    assert parley.simulate(main, ranks=3) == 0
    if fits:
        assert ran[0] == ran[1] and set(ran[0]) == {"rows", "columns"}
    return seen


@pytest.mark.parametrize(("fits", "combinations"), [(False, 6), (True, 2)])
def test_coordinated_roles_find_the_combination_that_is_fastest_as_a_whole(fits: bool, combinations: int) -> None:
    for d in coordinated(fits).values():
        assert d.config == "together(consume=columns[width:8] produce=columns[width:8])"
        assert len(d.evidence) == combinations


def test_coordinated_roles_need_the_functions_of_their_own_role_only() -> None:
    with parley.join() as rank:
        def register(operations: Any, further: Any) -> str:
            with pytest.raises(parley.Failure) as caught:
                parley.register_coordinated_autotuning(rank, "step", operations, further, lambda _: "a")
            return str(caught.value)

        assert "the operation of role a is null" in register({"a": None, "b": print}, {})
        assert "more than 128 combinations" in register({"a": print}, {"a": {f"n{i}": print for i in range(200)}})
        assert "do not fit" in register({"a": RoleFunction(print, "rows"), "b": RoleFunction(None, "columns")}, {})
        step = parley.register_coordinated_autotuning(rank, "step", {"a": len, "b": None}, {"b": {"x": None}}, lambda _: "a")
        assert step.run(b"abc") == 3


def test_an_exception_of_one_rank_in_a_coordinated_call_comes_out_there() -> None:
    async def main(rank: parley.Rank) -> None:
        async def work(data: Any) -> None:
            if rank.id == 1:
                raise KeyError("lost")

        step = parley.register_coordinated_autotuning(rank, "step", {"all": work}, {}, lambda _: "all")
        if rank.id == 1:
            with pytest.raises(KeyError, match="lost"):
                await step.irun(bytearray(8))
        else:
            await step.irun(bytearray(8))

    assert parley.simulate(main) == 0


# ---- mixed machines


class Kernel(configs.GroupConfig):
    """A star that first computes for some time, which depends on the rank."""

    kinds = ["all_reduce"]

    def __init__(self, name: str, rank: parley.Rank, seconds: float, wire_class: str, ran: list[str]) -> None:
        self.name, self.rank, self.seconds, self.wire_class, self.ran = name, rank, seconds, wire_class, ran

    async def lead(self, call: configs.GroupCall) -> None:
        self.ran.append(self.name)
        await self.rank.sleep(self.seconds)
        n = len(call.data)
        slots = call.scratch(call.size * n)
        for p in range(call.size):
            if p != call.place:
                call.receive(p, 0, slots[p * n:(p + 1) * n])
        await call.drain()
        slots[call.place * n:(call.place + 1) * n] = call.data
        call.data[:] = slots[:n]
        for p in range(1, call.size):
            call.combine(call.data, slots[p * n:(p + 1) * n])
        await call.between()
        for p in range(call.size):
            if p != call.place:
                call.send(p, 0, call.data)
        await call.drain()

    async def work(self, call: configs.GroupCall) -> None:
        self.ran.append(self.name)
        await self.rank.sleep(self.seconds)
        call.send(call.leader, 0, call.data)
        call.receive(call.leader, 0, call.data)
        await call.drain()


@pytest.mark.parametrize("one_wire", [True, False])
def test_unequal_ranks_run_a_mixture_of_one_wire_class_or_what_all_have(one_wire: bool) -> None:
    last: dict[int, str] = {}
    seen: dict[int, parley.Decision] = {}

    async def main(rank: parley.Rank) -> None:
        ran: list[str] = []
        newer = rank.id < 2
        both = [Kernel("nccl", rank, 0.0105 if newer else 0.0085, "ring", ran),
                Kernel("cuda_graph", rank, 0.0123, "ring", ran),
                Kernel("h100_optimized", rank, 0.0087, "ring" if one_wire else "tree", ran)]
        sums = parley.register_heterogeneous_autotuning(rank, "sums", both, lambda r: [True, True, r < 2])
        data = memoryview(bytearray(4000)).cast("i")

        async def call() -> None:
            data[5] = 1
            await sums.iall_reduce(data)
            assert data[5] == 4

        await until_decided(rank, call, lambda: sums.decision(4000))
        await rank.sleep(1)
        await call()
        seen[rank.id], last[rank.id] = sums.decision(4000), ran[-1]

    assert parley.simulate(main, ranks=4) == 0
    assert seen[0].config == ("h100_optimized" if one_wire else "nccl")
    assert last == ({0: "h100_optimized", 1: "h100_optimized", 2: "nccl", 3: "nccl"} if one_wire else dict.fromkeys(range(4), "nccl"))
    if not one_wire:
        assert any(e.config == "h100_optimized" and e.status == "lacking" for e in seen[0].evidence)


def test_transfers_can_be_heterogeneous_and_the_default_must_run_everywhere() -> None:
    async def main(rank: parley.Rank) -> None:
        t = parley.register_heterogeneous_autotuning(rank, "t", ["direct", "chunked(chunk_bytes=4KiB)"], lambda r: [True, r == 0],
                                                     parley.Transfer, role=to_the_next_transfer)
        if rank.id == 0:
            await t.isend(bytes(SIZE), to=1)
        else:
            await t.ireceive(bytearray(SIZE), source=0)
        await t.tune([SIZE])
        assert t.decision(SIZE).config == "direct"
        with pytest.raises(parley.BadArgument, match="star"):
            parley.register_heterogeneous_autotuning(rank, "none", ["star", "tree"], lambda r: [False, True])
        with pytest.raises(parley.BadArgument):
            parley.register_heterogeneous_autotuning(rank, "few", ["star", "tree"], lambda r: [True])

    def to_the_next_transfer(rank: int) -> str:
        return "sender" if rank == 0 else "receiver"

    assert parley.simulate(main) == 0

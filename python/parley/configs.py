"""Configs: ways to move a payload, or to do a collective. The ranks of an operation find out which of its configs is the fastest.

    configs=[configs.direct(), configs.chunked(1 << 20), FarHalfFirst()]        # the first one is the default

A built-in config is its text, `chunked(chunk_bytes=1048576 in_flight=2)`; the functions here write it. A config of your own is an object
with one function per role:

    class FarHalfFirst(configs.PairedConfig):
        wire_class = "halves"

        async def send(self, out, data):
            middle = len(data) // 2
            await out.send(middle, data[middle:])
            if middle:
                await out.send(0, data[:middle])

        async def receive(self, parts, data):
            middle = len(data) // 2
            await parts.receive(middle, data[middle:])
            if middle:
                await parts.receive(0, data[:middle])

Both functions decide from the config's parameters and `len(data)` alone how the payload is cut. parley rehearses a config on scratch
memory before it runs in a call; only the default may run earlier. A config whose functions do not fit, that raises, hangs, or brings wrong
bytes, is left out by name, and `rank.warnings` says why, on the rank that is to blame. A config that fails later, in a call, ends that call
with the code `config_failed`, and does not run again.

Rules for all functions of configs:

- They are coroutine functions, or generators that `yield` what a coroutine awaits. They await parts, sleeps of their rank and calls of
  other operations, but not of their own operation. They run on the rank's thread, so all else on that rank waits while they compute.
- `data` is a `memoryview` of bytes, in place: the program's own buffer. `numpy.frombuffer(data, dtype)` reads it without a copy. Do not
  keep it, or a view of it: the call fails by name if one is left when the function ends.
- Memory of their own that they send from, or receive into, stays until the parts have ended.
- They raise an exception to give up.
- One object serves all calls, several at once, so it keeps no state of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from ._native import Constraints, GroupCall, Part, PartReceiver, PartSender
from .errors import BadArgument

__all__ = ["Constraints", "GroupCall", "GroupConfig", "Grouping", "PairedConfig", "Part", "PartReceiver", "PartSender", "Role",
           "Transferring", "by_piece", "chain", "chunked", "direct", "get", "grouped", "nccl", "one_shot", "paired", "put", "star", "tree",
           "two_shot", "ucx"]

# What a function of a config returns: a coroutine, a generator, or an awaitable.
Role: TypeAlias = Any
Parameters: TypeAlias = Mapping[str, int | str]
Sending: TypeAlias = Callable[[PartSender, memoryview], Role]
Receiving: TypeAlias = Callable[[PartReceiver, memoryview], Role]
Acting: TypeAlias = Callable[[GroupCall], Role]


class _HasHalves(Protocol):
    def send(self, out: PartSender, data: memoryview, /) -> Role: ...
    def receive(self, parts: PartReceiver, data: memoryview, /) -> Role: ...


class _HasRoles(Protocol):
    def lead(self, call: GroupCall, /) -> Role: ...
    def work(self, call: GroupCall, /) -> Role: ...


# What `configs` of Transfer and P2P, and of Collective, is a list of. A class stands for its instance.
Transferring: TypeAlias = "str | _HasHalves | type[PairedConfig]"
Grouping: TypeAlias = "str | _HasRoles | type[GroupConfig]"


class _Described:
    """What parley reads of a config of your own, once, when an operation is declared. All of it has defaults.

    `name`: in decisions and results; the class's name without one. It may have parameters: `cut(chunk_bytes=4096)`.
    `parameters`: whole numbers and words. They belong to the config's identity; the functions find them in their first argument.
    `wire_class`: names how the payload is cut. Two ranks may run different configs of one wire class in one call. Empty: of no other.
    `abi`: a number to raise when the cut changes and the name does not.
    `requirements`: capabilities of the machine, such as `sm_90`.
    `relative_error`, `memory_bytes`, `memory_per_byte`: what it demands, for `Constraints`.
    """

    name: str
    parameters: Parameters = {}
    wire_class: str = ""
    abi: int = 1
    requirements: Sequence[str] = ()
    relative_error: float = 0.0
    memory_bytes: int = 0
    memory_per_byte: float = 0.0

    def available(self) -> str | bool | None:
        """Why this rank cannot run the config, as a text or False; None or True: it can. The default must be able to run everywhere."""
        return None


class PairedConfig(_Described):
    """A config of your own for Transfer and P2P; see the module. Any object with `send` and `receive` will do, too.

    `whole_up_to`: payloads of up to so many bytes go as one part at offset 0, without your functions.
    """

    whole_up_to: int = 0

    def send(self, out: PartSender, data: memoryview) -> Role:
        """Sends all of `data` with `await out.send(offset, part)`."""
        raise NotImplementedError

    def receive(self, parts: PartReceiver, data: memoryview) -> Role:
        """Receives the same parts with `await parts.receive(offset, into)`."""
        raise NotImplementedError


class GroupConfig(_Described):
    """A config of your own for Collective: `lead` runs on the leader, `work` on the others. Any object with both will do, too.

        class Star(configs.GroupConfig):
            kinds = ["all_reduce"]

            async def lead(self, call):
                slots = call.scratch(call.size * len(call.data))
                …

    `call.send` and `call.receive` start parts, and `await call.until(part)` or `await call.drain()` waits for them. Parts lie in
    `call.data` or in memory of `call.scratch(bytes)`. Reductions combine in the order of the places, own data included: a rehearsal looks.

    `kinds`: all_reduce, broadcast, gather; empty: all three. `returns_later`: False if some rank gets a result before the leader has
    combined all data; then there can be no `between`.
    """

    kinds: Sequence[str] = ()
    returns_later: bool = True

    def lead(self, call: GroupCall) -> Role:
        """The leader's part of a call."""
        raise NotImplementedError

    def work(self, call: GroupCall) -> Role:
        """The part of every other rank."""
        raise NotImplementedError


class _Paired(PairedConfig):
    def __init__(self, name: str, send: Sending, receive: Receiving, parameters: Parameters, wire_class: str) -> None:
        self.name, self._send, self._receive, self.parameters, self.wire_class = name, send, receive, parameters, wire_class

    def send(self, out: PartSender, data: memoryview) -> Role:
        return self._send(out, data)

    def receive(self, parts: PartReceiver, data: memoryview) -> Role:
        return self._receive(parts, data)


class _Grouped(GroupConfig):
    def __init__(self, name: str, lead: Acting, work: Acting, parameters: Parameters, wire_class: str) -> None:
        self.name, self._lead, self._work, self.parameters, self.wire_class = name, lead, work, parameters, wire_class

    def lead(self, call: GroupCall) -> Role:
        return self._lead(call)

    def work(self, call: GroupCall) -> Role:
        return self._work(call)


def _check(name: str, **functions: object) -> None:
    for role, function in functions.items():
        if not callable(function):
            raise BadArgument(f"config {name} has no function for `{role}`, but {function!r}; it needs one for each role")


def paired(name: str, send: Sending, receive: Receiving, *, parameters: Parameters | None = None, wire_class: str = "") -> PairedConfig:
    """A config of two functions, which find its parameters in `out.parameters` and `parts.parameters`."""
    _check(name, send=send, receive=receive)
    return _Paired(name, send, receive, parameters or {}, wire_class)


def grouped(name: str, lead: Acting, work: Acting, *, parameters: Parameters | None = None, wire_class: str = "") -> GroupConfig:
    """A group config of two functions, which find its parameters in `call.parameters`."""
    _check(name, lead=lead, work=work)
    return _Grouped(name, lead, work, parameters or {}, wire_class)


def _text(name: str, **parameters: int) -> str:
    words = " ".join(f"{key}={value}" for key, value in parameters.items() if value)
    return f"{name}({words})" if words else name


def _cut(name: str, chunk_bytes: int, in_flight: int, **more: int) -> str:
    return _text(name, chunk_bytes=chunk_bytes, in_flight=in_flight if chunk_bytes else 0, **more)


# ---- for Transfer and P2P


def direct() -> str:
    """The whole payload in one message. UCX chooses between eager and rendezvous."""
    return "direct"


def chunked(chunk_bytes: int = 1 << 20, in_flight: int = 2) -> str:
    """The payload in pieces of `chunk_bytes`, `in_flight` (1 to 4096) of them at a time."""
    return f"chunked(chunk_bytes={chunk_bytes} in_flight={in_flight})"


def put(chunk_bytes: int = 0, in_flight: int = 4, *, kernel_blocks: int = 0, streams: int = 0) -> str:
    """The sender writes into the receiver's registered memory, in pieces of `chunk_bytes` (0: whole). `kernel_blocks`, `streams`: how a GPU
    copies."""
    return _cut("put", chunk_bytes, in_flight, kernel_blocks=kernel_blocks, streams=streams)


def get(chunk_bytes: int = 0, in_flight: int = 4, *, kernel_blocks: int = 0, streams: int = 0) -> str:
    """The receiver reads from the sender's registered memory, with the parameters of `put`."""
    return _cut("get", chunk_bytes, in_flight, kernel_blocks=kernel_blocks, streams=streams)


def by_piece(in_flight: int = 4) -> str:
    """Each piece of a payload in pieces goes from its place to its place, `in_flight` at a time."""
    return f"by_piece(in_flight={in_flight})"


def nccl() -> str:
    """NCCL sends from GPU to GPU."""
    return "nccl"


def ucx(chunk_bytes: int = 0, in_flight: int = 4) -> str:
    """UCX moves the payload from GPU to GPU, in pieces of `chunk_bytes` (0: whole)."""
    return _cut("ucx", chunk_bytes, in_flight)


# ---- for Collective


def star(chunk_bytes: int = 0) -> str:
    """Each worker exchanges its data with the leader, in pieces of `chunk_bytes` (0: whole)."""
    return _text("star", chunk_bytes=chunk_bytes)


def chain(chunk_bytes: int = 65_536) -> str:
    """A partial sum travels from place to place, in pieces of `chunk_bytes`, and the result back. Not for gather."""
    return f"chain(chunk_bytes={chunk_bytes})"


def tree() -> str:
    """The data travels along a binomial tree whose root is the leader. For up to 1,024 places."""
    return "tree"


def one_shot() -> str:
    """Each rank sends its data to all others and sums by itself. Only all_reduce, without `between`."""
    return "one_shot"


def two_shot(chunk_bytes: int = 0) -> str:
    """Each place sums one share of the data, in pieces of `chunk_bytes` (0: whole). Only all_reduce, without `between`."""
    return _text("two_shot", chunk_bytes=chunk_bytes)

"""Operations by the names of designs that register functions for roles. Each registration makes one of parley's operations.

    pair  = register_paired_op_autotuning(rank, "send", "receive", [PairedOpConfig("whole", send_whole, receive_whole), …], role_fn)
    stage = register_asymmetric_autotuning(rank, "stage", {"stage0": forward, "stage1": back}, {"stage0": {"tiled": tiled}}, role_fn)
    step  = register_coordinated_autotuning(rank, "step", …the same…)                          # the roles choose together
    sums  = register_heterogeneous_autotuning(rank, "sums", [nccl, cuda_graph, h100_optimized], capability_check)

All ranks register, with the same lists. `role_fn(rank)` returns the role of a rank, a text; a rank with the role `idle` takes no part.

- The two halves of a pair meet by their `config_id`, never by their places in a list. An id that one role lacks is left out and reported.
- A config counts by its slowest rank. A config that fails on one rank is left out on all, and the default, the first one, goes on.
- Functions that are listed per role are choices that each rank makes for itself (asymmetric), or that all make together (coordinated).
- Ranks with different capabilities run a mixture of one wire class, and that mixture is what is measured.

What cannot work is an error when it is registered: `BadArgument`; `Failure` with the code `role_conflict` if the roles make no pairs, or
`no_common_config` if no entry of a pair has both halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

from . import _native
from .configs import Receiving, Sending, paired
from .errors import BadArgument, failure

__all__ = ["Function", "PairedOpConfig", "RegisteredPair", "RoleFunction", "register_asymmetric_autotuning",
           "register_coordinated_autotuning", "register_heterogeneous_autotuning", "register_paired_op_autotuning"]

RoleOf: TypeAlias = Callable[[int], str]
# The work of a role: a plain function or a coroutine function of the data of a call.
Function: TypeAlias = Callable[[Any], Any]
CapabilityCheck: TypeAlias = Callable[[int], Sequence[bool]]
T = TypeVar("T")


# ---- paired


class PairedOpConfig(NamedTuple):
    """One config of a paired operation, or one role's half of it. Entries with one `config_id` are merged, at any place of the list.

    `config_id`: `fast`, `cut(chunk_bytes=4096)`; the functions find its parameters in their first argument. `send` and `receive` are
    functions of a config (parley.configs).
    """

    config_id: str
    send: Sending | None = None
    receive: Receiving | None = None


class RegisteredPair(NamedTuple):
    """`op` sends and receives; `left_out` says which ids have no function for a role: `chunked: the receiver has no function for it`."""

    op: _native.Transfer
    left_out: list[str]


def _merged(title: str, entries: Sequence[PairedOpConfig]) -> dict[str, PairedOpConfig]:
    merged: dict[str, PairedOpConfig] = {}
    for entry in entries:
        known = merged.get(entry.config_id, PairedOpConfig(entry.config_id))
        if (entry.send and known.send) or (entry.receive and known.receive):
            raise BadArgument(f"{title}: config {entry.config_id} has two functions for one role")
        merged[entry.config_id] = PairedOpConfig(entry.config_id, entry.send or known.send, entry.receive or known.receive)
    return merged


def register_paired_op_autotuning(rank: _native.Rank, send_op: str, recv_op: str, paired_configs: Sequence[PairedOpConfig], role_fn: RoleOf,
                                  *, timeout: float | None = None) -> RegisteredPair:
    """A `Transfer` between ranks that send and ranks that receive. `role_fn` returns `send_op` or `sender`, `recv_op` or `receiver`; ranks
    with any other role are idle. The first id that has both halves is the default. `timeout`: seconds of one call."""
    title = f"op {send_op}+{recv_op}"
    whole, left_out = [], []
    for entry in _merged(title, paired_configs).values():
        if entry.send is not None and entry.receive is not None:
            whole.append(paired(entry.config_id, entry.send, entry.receive))
        else:
            left_out.append(f"{entry.config_id}: the {'sender' if entry.send is None else 'receiver'} has no function for it")
    if not whole:
        raise failure("no_common_config", f"no_common_config: {title} has no config that both roles have; give one config_id a send and a "
                      "receive function", {})

    def role(of: int) -> str:
        its = role_fn(of)
        return "sender" if its in (send_op, "sender") else "receiver" if its in (recv_op, "receiver") else "idle"

    return RegisteredPair(_native.Transfer(rank, f"{send_op}+{recv_op}", role=role, configs=whole, timeout=timeout), left_out)


# ---- per role


class RoleFunction(NamedTuple):
    """A function of a role, with what parley cannot know of it.

    `fits`: for coordinated roles; functions with different words never run together, such as the two sides of an exchange in other formats.
    `relative_error`, `memory_bytes`, `memory_per_byte`: what it demands, which is compared with `allowed`.
    """

    run: Function | None
    fits: str = ""
    relative_error: float = 0.0
    memory_bytes: int = 0
    memory_per_byte: float = 0.0


Operations: TypeAlias = Mapping[str, Function | RoleFunction | None]
RoleConfigs: TypeAlias = Mapping[str, Mapping[str, Function | RoleFunction | None]]


def _full(given: Function | RoleFunction | None) -> RoleFunction:
    return given if isinstance(given, RoleFunction) else RoleFunction(given)


def _rows(operations: Operations, configs: RoleConfigs) -> tuple[list[tuple[str, Function | None, str]],
                                                                list[tuple[str, str, Function | None, str, float, int, float]]]:
    of_roles = [(role, f.run, f.fits) for role, f in ((role, _full(given)) for role, given in operations.items())]
    further = [(role, name, f.run, f.fits, f.relative_error, f.memory_bytes, f.memory_per_byte)
               for role, named in configs.items() for name, f in ((name, _full(given)) for name, given in named.items())]
    return of_roles, further


def register_asymmetric_autotuning(rank: _native.Rank, name: str, operations: Operations, configs: RoleConfigs, role_fn: RoleOf, *,
                                   allowed: _native.Constraints | None = None) -> _native.RoleOp:
    """The work of each role, which each rank does in the way that is fastest for it alone. No rank waits for another.

    `operations`: a function for each role, its default, which decisions call `operation`. `configs`: for each role further functions by
    their names, `tiled` or `tiled(rows=64)`. `stage.run(data)` runs the function of this rank's role, and returns what it returns. Waits in
    calls of other operations are not charged to a function. A role without an operation must be `idle`.
    """
    return _native.register_asymmetric(rank, name, *_rows(operations, configs), role_fn, allowed)


def register_coordinated_autotuning(rank: _native.Rank, name: str, operations: Operations, configs: RoleConfigs, role_fn: RoleOf, *,
                                    allowed: _native.Constraints | None = None) -> _native.CoordinatedOp:
    """Like `register_asymmetric_autotuning`, but the roles choose together: each combination of one function per role is a config, such as
    `together(consume=tiled produce=operation)`, and the time of the whole call on its slowest rank counts.

    A call of `step.run(data)` on all ranks that are not idle is one invocation; all make the same calls, with data of the same size. The
    functions may be None for roles that this rank does not have. At most 128 combinations are tried; `RoleFunction.fits` leaves some out.
    Combinations are tried on the calls themselves. A function that never awaits must be short, because the ranks agree meanwhile.
    """
    return _native.register_coordinated(rank, name, *_rows(operations, configs), role_fn, allowed)


# ---- mixed machines


@overload
def register_heterogeneous_autotuning(rank: _native.Rank, name: str, configs: Sequence[Any], capability_check: CapabilityCheck,
                                      **options: Any) -> _native.Collective: ...
@overload
def register_heterogeneous_autotuning(rank: _native.Rank, name: str, configs: Sequence[Any], capability_check: CapabilityCheck,
                                      make: Callable[..., T], **options: Any) -> T: ...
def register_heterogeneous_autotuning(rank: _native.Rank, name: str, configs: Sequence[Any], capability_check: CapabilityCheck,
                                      make: Callable[..., Any] = _native.Collective, **options: Any) -> Any:
    """An operation whose ranks can run different configs of one list. `capability_check(rank)` returns for each of `configs`, in their
    order, whether that rank can run it; the first one is the default, and every rank must be able to run it. It is asked about this rank
    only.

    A rank that lacks a config runs another one of the same wire class in its place: at first the first of its list, later the fastest.
    Without one, the config is left out on all ranks. `make`: Collective, Transfer or P2P; `options` are its others, such as `role=`.
    """
    return make(rank, name, configs=configs, can_run=capability_check, **options)

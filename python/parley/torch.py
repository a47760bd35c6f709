"""A backend of torch.distributed: `import parley.torch`, then `init_process_group("parley")`. Tensors on the host.

Sends and receives between each pair of ranks, and the all-reduce of each group, run the config that their ranks have agreed on. Calls start
at once and in their order; `Work.wait` waits. A group may be used by the thread that made it.
"""

from __future__ import annotations

import atexit
import itertools
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import parley

configs = ["direct", "chunked(chunk_bytes=256KiB)", "chunked(chunk_bytes=1MiB in_flight=4)", "put", "get"]
sum_configs = ["star", "chain", "tree", "two_shot"]

_by = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "sum", dist.ReduceOp.PRODUCT: "product", dist.ReduceOp.MIN: "min",
       dist.ReduceOp.MAX: "max"}


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


class Work(dist.Work):
    """What a call of torch.distributed returns."""

    def __init__(self, works: Sequence[parley.Work], results: list[torch.Tensor], then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._works, self._results, self._then = list(works), results, then
        self._is_over = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        del timeout  # each call has the time-out of its group
        for work in self._works:
            work.wait()
        self._works = []
        if not self._is_over:
            self._is_over = True
            self._then()
        return True

    def is_completed(self) -> bool:
        if not all(work.test() for work in self._works):
            return False
        return self.wait()

    def pending(self) -> list[parley.Work]:
        return list(self._works)

    def is_success(self) -> bool:
        return self._is_over

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> Any:
        self.wait()
        made: Any = torch.futures.Future()
        made.set_result(self._results)
        return made


class ProcessGroup(dist.ProcessGroup):
    """The ranks of a group, by their places in it."""

    def __init__(self, rank: parley.Rank, members: list[int], name: str, timeout: float) -> None:
        super().__init__(members.index(rank.id), len(members))
        self._rank, self._members, self._name, self._timeout = rank, members, name, timeout
        self._me = members.index(rank.id)
        self._group_name = name
        self._pairs = parley.P2P(rank, f"{name}", ranks=members, configs=configs, timeout=timeout)
        self._inner = parley.P2P(rank, f"{name}.inner", ranks=members, configs=configs, timeout=timeout)
        self._sums = self._collective("sums", members[0], "all_reduce")
        self._news: dict[int, parley.Collective] = {}

    def _collective(self, suffix: str, leader: int, kind: str) -> parley.Collective:
        members = set(self._members)
        role = {r: "worker" for r in members} | {leader: "leader"}
        return parley.Collective(self._rank, f"{self._name}.{suffix}", role=lambda r: role.get(r, "idle"), kind=kind, timeout=self._timeout,
                                 configs=sum_configs if kind == "all_reduce" else ["star", "chain", "tree"])

    def getBackendName(self) -> str:  # noqa: N802: torch's name
        return "parley"

    # torch asks its C++ class for these, which has none.
    supports_coalescing = False

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        del device
        return self

    @property
    def group_name(self) -> str:
        return self._group_name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    # ---- between two ranks

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Work:
        return Work([self._pairs.start([self._pairs.isend(_memory(t), to=self._members[dst], tag=tag)]) for t in tensors], tensors)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Work:
        return Work([self._pairs.start([self._pairs.irecv(_memory(t), source=self._members[src], tag=tag)]) for t in tensors], tensors)

    def _exchange(self, to: dict[int, torch.Tensor], source: dict[int, torch.Tensor]) -> list[parley.Work]:
        """By places. A rank's message to itself is a copy."""
        if self._me in to and self._me in source:
            _memory(source[self._me]).copy_(_memory(to[self._me]))
        batch = [self._inner.isend(_memory(t), to=self._members[p]) for p, t in to.items() if p != self._me]
        batch += [self._inner.irecv(_memory(t), source=self._members[p]) for p, t in source.items() if p != self._me]
        return [self._inner.start(batch)] if batch else []

    # ---- all together

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        by = next((name for known, name in _by.items() if op == known), None)
        if by is None:
            raise ValueError(f"parley has no all-reduce by {op}; it has SUM, AVG, PRODUCT, MIN and MAX")

        def finish() -> None:
            if op == dist.ReduceOp.AVG:
                for t in tensors:
                    _memory(t).div_(self.size(), rounding_mode=None if t.is_floating_point() else "floor")

        return Work([self._sums.iall_reduce(_memory(t), by=by) for t in tensors], tensors, finish)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        root = opts.rootRank if opts is not None else 0
        if root not in self._news:
            self._news[root] = self._collective(f"news{root}", self._members[root], "broadcast")
        return Work([self._news[root].ibroadcast(_memory(t)) for t in tensors], tensors)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        # All ranks get the sum; torch leaves open what the others hold.
        return self.allreduce(tensors, opts)

    def barrier(self, opts: Any = None) -> Work:
        del opts
        token = torch.zeros(1, dtype=torch.uint8)
        return self.allreduce([token])

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        del opts
        works = []
        for out, mine in zip(outputs, inputs, strict=True):
            works += self._exchange(dict.fromkeys(range(self.size()), mine), dict(enumerate(out)))
        return Work(works, [t for out in outputs for t in out])

    def _allgather_base(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> Work:
        return self.allgather([list(_memory(output).view(-1).chunk(self.size()))], [_memory(mine).view(-1)], opts)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        root = opts.rootRank if opts is not None else 0
        source = dict(enumerate(outputs[0])) if self._me == root else {}
        return Work(self._exchange({root: inputs[0]}, source), outputs[0] if outputs else [])

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        root = opts.rootRank if opts is not None else 0
        to = dict(enumerate(inputs[0])) if self._me == root else {}
        return Work(self._exchange(to, {root: outputs[0]}), outputs)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        del opts
        return Work(self._exchange(dict(enumerate(inputs)), dict(enumerate(outputs))), outputs)

    def alltoall_base(self, output: torch.Tensor, mine: torch.Tensor, out_sizes: list[int], in_sizes: list[int], opts: Any = None) -> Work:
        split = [(o.split(sizes) if sizes else o.chunk(self.size())) for o, sizes in ((_memory(output), out_sizes), (_memory(mine), in_sizes))]
        return self.alltoall(list(split[0]), list(split[1]), opts)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        whole = torch.cat([_memory(t).reshape(-1) for t in inputs[0]])
        at = sum(t.numel() for t in inputs[0][:self._me])

        summed = self.allreduce([whole], opts)

        def finish() -> None:
            summed.wait()
            _memory(outputs[0]).copy_(whole[at:at + outputs[0].numel()].view_as(outputs[0]))

        return Work(summed.pending(), outputs, finish)

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter([output], [list(_memory(whole).view(-1).chunk(self.size()))], opts)

    # The names of newer versions of torch.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base

    def decision(self, peer: int, bytes_: int) -> parley.Decision:
        """What this rank and the one at place `peer` have agreed on for messages of that size."""
        return self._pairs.decision(bytes_, self._members[peer])


_joined: parley.join | None = None
_worlds = 0  # default groups so far; parley's names are for ever, and torch uses its own again after destroy_process_group


def _through(store: Any, rank: int, size: int) -> tuple[int, int, parley.AllGather]:
    rounds = itertools.count()

    def all_gather(mine: bytes) -> list[bytes]:
        key = f"parley/{next(rounds)}"
        store.set(f"{key}/{rank}", mine)
        return [bytes(store.get(f"{key}/{r}")) for r in range(size)]

    return rank, size, all_gather


def _leave() -> None:
    global _joined
    if _joined is not None:
        joined, _joined = _joined, None
        thrown = getattr(sys, "last_value", None)  # what ends the program
        joined.__exit__(type(thrown) if thrown else None, thrown, None)


def _create(of: Any, options: Any = None) -> ProcessGroup:
    """Called on the members of a new group. The first group is of all ranks, which join a job through torch's store."""
    global _joined, _worlds
    del options
    if not dist.is_initialized():
        _worlds += 1
    if _joined is None:
        _joined = parley.join(timeout=of.timeout.total_seconds(), through=_through(of.store, of.group_rank, of.group_size))
        atexit.register(_leave)
    members = list(of.global_ranks_in_group) or list(range(of.group_size))
    name = f"torch{_worlds}.{of.group_id}"
    return ProcessGroup(_joined.rank, members, name, of.timeout.total_seconds())


dist.Backend.register_backend("parley", _create, extended_api=True, devices=["cpu"])

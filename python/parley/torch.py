"""A backend of torch.distributed: `init_process_group("parley")`. Tensors on the host, and on this rank's GPU.

Sends and receives between each pair of ranks, and the all-reduces and broadcasts of each group, run the config that their ranks have agreed
on. Calls start at once and in their order; `Work.wait` waits. A thread of this module moves them on while the program computes.

torch needs two objects for a group. `Backend` does the work; the operators of torch, DistributedDataParallel, FSDP and DTensor reach it
through torch's C++ classes. These give Python a `Work` that never says that it is complete, so `Group` takes the calls that come from
Python straight to the `Backend`. Before torch 2.15 Python could make no `Backend`: then only calls from Python reach parley.

On a GPU, a call reads and writes its tensors after the work that the current stream has when it starts. Work that is enqueued after
`Work.wait` finds the results. The rank's GPU is the current device when the default group is made (`torch.cuda.set_device` before), or
`device_id`.

`Work.wait` waits on the host. After `parley.torch.wait_on = "stream"`, which holds for groups that are made later, it lets the current
stream wait for sends, receives and batches of tensors on GPUs, and a thread of parley's keeps the messages moving. At most 64 messages are
then in flight; `Work.wait` of a further one also waits on the host. It needs the variable CUDA_MODULE_LOADING=EAGER, set before CUDA
starts: otherwise CUDA loads a kernel when it is first launched, and for that waits until all streams are at rest. Free no device memory
meanwhile (docs/gpu.md has all rules). A later call raises what such a message has failed with.
"""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing.util
import os
import select
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

import parley
from parley._progress import Progress

configs = ["direct", "chunked(chunk_bytes=256KiB)", "chunked(chunk_bytes=1MiB in_flight=4)", "put", "get"]
gpu_configs = [*configs, "nccl"]
sum_configs = ["star", "chain", "tree", "two_shot"]
news_configs = ["star", "chain", "tree"]

wait_on: Literal["host", "stream"] = "host"  # what waits in `Work.wait` of sends and receives on GPUs


class _PlainBackend:
    """What a `Backend` inherits where torch has no class for Python."""

    supports_splitting = False

    def __init__(self, place: int, size: int) -> None:
        self._numbers = place, size

    def rank(self) -> int:
        return self._numbers[0]

    def size(self) -> int:
        return self._numbers[1]


def _base() -> Any:
    class Probe(torch._C._distributed_c10d.Backend):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(0, 1)

    try:
        Probe()
    except TypeError:
        return _PlainBackend
    return torch._C._distributed_c10d.Backend


_BackendBase: Any = _base()
_has_backends = _BackendBase is not _PlainBackend
_Op = dist.ReduceOp
# The reductions of parley's all-reduce, and how torch combines two tensors: for the others, and for types that parley does not reduce.
_native = {_Op.SUM: "sum", _Op.AVG: "sum", _Op.PREMUL_SUM: "sum", _Op.PRODUCT: "product", _Op.MIN: "min", _Op.MAX: "max"}
_combine: dict[Any, Callable[..., torch.Tensor]] = {
    _Op.SUM: torch.add, _Op.AVG: torch.add, _Op.PREMUL_SUM: torch.add, _Op.PRODUCT: torch.mul,
    _Op.MIN: torch.minimum, _Op.MAX: torch.maximum, _Op.BAND: torch.bitwise_and, _Op.BOR: torch.bitwise_or, _Op.BXOR: torch.bitwise_xor}
_reduced_by_parley = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32,
                      torch.int64, torch.uint16, torch.uint32, torch.uint64}


def _is_reduced_by_parley(numbers: torch.Tensor, kind: Any) -> bool:
    """On GPUs parley sums only."""
    return kind in _native and numbers.dtype in _reduced_by_parley and (not numbers.is_cuda or _native[kind] == "sum")


def _is_plain(tensor: torch.Tensor) -> bool:
    """True if the memory of the tensor is its elements, one after the other."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _to_read(tensor: torch.Tensor) -> torch.Tensor:
    """Memory to send from; a copy if the tensor has gaps."""
    if tensor.layout != torch.strided:
        raise ValueError(f"parley exchanges dense tensors; this one is {tensor.layout}; call its to_dense()")
    data = tensor.detach()
    return data if _is_plain(data) else data.contiguous().resolve_conj().resolve_neg()


def _to_write(tensor: torch.Tensor, then: list[Callable[[], object]]) -> torch.Tensor:
    """Memory to receive into. A tensor with gaps gets a copy of it at the end of the call, when the functions of `then` run."""
    if tensor.layout != torch.strided:
        raise ValueError(f"parley exchanges dense tensors; this one is {tensor.layout}; call its to_dense()")
    data = tensor.detach()
    if _is_plain(data):
        return data
    copy = torch.empty(data.shape, dtype=data.dtype, device=data.device).copy_(data)
    then.append(lambda: data.copy_(copy))
    return copy


def _kind(op: Any) -> Any:
    """The kind of a ReduceOp, without its factor."""
    for known in _combine:
        if op == known:
            return known
    raise ValueError(f"parley cannot reduce by {op}; it has {', '.join(str(known).rpartition('.')[2] for known in _combine)}")


def _factor(op: Any) -> Any:
    """What each rank multiplies its elements with before a PREMUL_SUM."""
    return op.__getstate__()[1]


def _drive(rank: parley.Rank, is_met: Callable[[], bool], seconds: float = math.inf, otherwise: str = "") -> None:
    """Runs the loop of the rank until something is met."""
    deadline = time.monotonic() + seconds
    ready = select.poll()
    ready.register(rank.fileno(), select.POLLIN)
    while not is_met():
        left = deadline - time.monotonic()
        if left <= 0:
            raise parley.Timeout(f"timeout: {otherwise} ({seconds:g} s)")
        if rank.poll():
            ready.poll(min(1000 * left, 20))


class Work(dist.Work):
    """What a call of torch.distributed returns. Several threads may wait for it; one of them finishes it."""

    def __init__(self, progress: _Progress, works: Iterable[parley.Work], results: list[torch.Tensor],
                 then: Iterable[Callable[[], object]] = (), in_streams: deque[parley.Work] | None = None) -> None:
        """`in_streams`: the current stream waits for the works, which then go to this list."""
        super().__init__()
        self._in_streams = in_streams
        self._progress, self._works, self._results, self._then = progress, list(works), results, list(then)
        self._lock = threading.RLock()
        self._is_over = False
        self._error: BaseException | None = None
        self._futures: list[Any] = []

    def begin(self, works: list[parley.Work], results: list[torch.Tensor], then: list[Callable[[], object]],
              in_streams: deque[parley.Work] | None) -> None:
        """Of a batch, whose sends and receives are collected before they start."""
        self._works, self._results, self._then, self._in_streams = works, results, then, in_streams

    def with_results(self, results: list[torch.Tensor], then: Iterable[Callable[[], object]] = ()) -> Work:
        """`then`: what else happens at the end."""
        self._results = results
        self._then += then
        return self

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raises what went wrong. `timeout`: of this wait, beside that of the group."""
        if timeout:
            _drive(self._progress.rank, self.is_completed, timeout.total_seconds(), "a Work has not ended within the timeout of its wait")
        with self._lock:
            if not self._is_over and self._in_streams is not None and not timeout:
                self._wait_in_stream(self._in_streams)
            elif not self._is_over:
                self._finish()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        if not self._is_over and self._lock.acquire(blocking=False):  # else another thread waits for it
            try:
                if not self._is_over and self._has_arrived():
                    self._finish()
            finally:
                self._lock.release()
        return self._is_over

    def _has_arrived(self) -> bool:
        return all(work.test() for work in self._works)

    def _wait_in_stream(self, after: deque[parley.Work]) -> None:
        """The current stream waits, and what `then` enqueues comes after that."""
        stream = torch.cuda.current_stream()
        for work in self._works:
            work.wait_stream(stream)
        after += self._works
        self._works = []
        self._finish()

    def _finish(self) -> None:
        """Waits for the end. An error is kept."""
        try:
            with self._progress.not_needed():
                for work in self._works:
                    work.wait()
            for step in self._then:
                step()
        except BaseException as why:
            self._error = why
            if not isinstance(why, Exception):
                raise
        finally:
            self._works, self._then = [], []
            self._is_over = True
            for future in self._futures:
                future.set_result(None)

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is None:
            return self._results
        raise self._error if isinstance(self._error, Exception) else RuntimeError(repr(self._error))

    def is_success(self) -> bool:
        return self._is_over and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self._results

    def source_rank(self) -> int:
        raise ValueError("only a receive from any rank has a source rank")

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """A future of the results.

        It follows another one, because `Future.set_exception` is an error for Python alone: DistributedDataParallel, which is C++, would
        take the exception for tensors, and crash."""
        future: Any = torch.futures.Future(devices=sorted({t.device for t in self._results if t.is_cuda}, key=str))
        with self._lock:
            if self._is_over:
                future.set_result(None)
            else:
                self._futures.append(future)
                self._progress.watch(self)
        return future.then(self._outcome)


class _Progress(Progress):
    """Also ends the futures of works."""

    def __init__(self, rank: parley.Rank) -> None:
        self._watched: list[Work] = []
        super().__init__(rank)

    def watch(self, work: Work) -> None:
        self._watched.append(work)

    def after_turn(self) -> bool:
        for work in [work for work in self._watched if work.is_completed()]:
            self._watched.remove(work)
        return bool(self._watched)


class _Arrival:
    """A receive that stands for a receive from any rank."""

    def __init__(self, work: parley.Work, data: torch.Tensor) -> None:
        self.work, self.data = work, data
        self.error: parley.Failure | None = None

    def has_come(self) -> bool:
        if self.error is not None or not self.work.test():
            return False
        try:
            self.work.wait()
        except parley.Failure as why:
            self.error = why
        return self.error is None


class _AnySource:
    """Receives of one tag from whichever rank sends first: one receive stands for each rank. What comes later than the first waits for the
    next receive, from any rank or from its rank."""

    def __init__(self, post: Callable[[int, torch.Tensor], parley.Work], places: list[int]) -> None:
        self._post, self._places = post, places
        self._standing: dict[int, _Arrival] = {}
        self.waiting: list[_FromAny] = []
        self._lock = threading.RLock()

    def serve(self) -> None:
        """Gives what has come to the receives, in their order."""
        with self._lock:
            while self.waiting:
                first = self.waiting[0]
                for place in self._places:
                    self._stand(place, first.tensor)
                come = next((p for p in self._places if self._standing[p].has_come()), None)
                if come is not None:
                    self.waiting.pop(0).take(come, self._standing.pop(come).data)
                    continue
                errors = [self._standing[p].error for p in self._places]
                if all(errors):
                    self.waiting.pop(0).fail(errors[0])
                    continue
                return

    def _stand(self, place: int, tensor: torch.Tensor) -> None:
        standing = self._standing.get(place)
        if standing is not None:
            if standing.error is not None or (standing.data.nbytes == tensor.nbytes and standing.data.dtype == tensor.dtype):
                return
            standing.work.cancel()  # nothing has come that fits it, or else its call would have ended
        data = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        self._standing[place] = _Arrival(self._post(place, data), data)

    def adopt(self, place: int, tensor: torch.Tensor) -> _Arrival | None:
        """What stands for a receive from that rank."""
        with self._lock:
            if self.waiting:
                raise ValueError("while a receive from any rank waits, a receive from one rank needs another tag")
            if place not in self._standing:
                return None
            self._stand(place, tensor)
            return self._standing.pop(place)

    def cancel(self) -> None:
        with self._lock:
            for arrival in self._standing.values():
                arrival.work.cancel()


class _FromAny(Work):
    """A receive from whichever rank sends first."""

    def __init__(self, progress: _Progress, source: _AnySource, tensor: torch.Tensor) -> None:
        super().__init__(progress, (), [tensor])
        self.tensor, self._from = tensor, source
        self._place: int | None = None
        source.waiting.append(self)
        source.serve()

    def take(self, place: int, data: torch.Tensor) -> None:
        self._place = place
        self._then = [lambda: self.tensor.detach().copy_(data.view(self.tensor.shape))]

    def fail(self, why: parley.Failure | None) -> None:
        self._place, self._error = -1, why

    def _has_arrived(self) -> bool:
        if self._place is None:
            self._from.serve()
        return self._place is not None

    def _finish(self) -> None:
        with self._progress.not_needed():
            _drive(self._progress.rank, self._has_arrived)
        super()._finish()

    def source_rank(self) -> int:
        return -1 if self._place is None else self._place


_Posted = tuple[torch.Tensor, parley.P2POperation]  # with the tensor, or one where it is


class _Batch:
    """Sends and receives between `_start_coalescing` and `_end_coalescing`."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.works: list[parley.Work] = []
        self.operations: list[_Posted] = []
        self.then: list[Callable[[], object]] = []
        self.results: list[torch.Tensor] = []


class _Operations:
    """A group's operations for tensors of one kind of device."""

    def __init__(self, rank: parley.Rank, members: list[int], name: str, device: str) -> None:
        self._rank, self._members, self._name, self._device = rank, members, name, device
        known = gpu_configs if device == "cuda" else configs
        self.pairs = parley.P2P(rank, name, ranks=members, configs=known, device=device)
        self.inner = parley.P2P(rank, f"{name}.inner", ranks=members, configs=known, device=device)
        self.sums = self._collective("sums", members[0], "all_reduce", sum_configs)
        self._news: dict[int, parley.Collective] = {}

    def start(self, pairs: parley.P2P, batch: list[parley.P2POperation]) -> parley.Work:
        """In the order of the current stream, on a GPU."""
        return pairs.start(batch, stream=torch.cuda.current_stream() if self._device == "cuda" else None)

    def news_of(self, root: int) -> parley.Collective:
        """The broadcasts of a rank."""
        if root not in self._news:
            self._news[root] = self._collective(f"news{root}", root, "broadcast", news_configs)
        return self._news[root]

    def _collective(self, suffix: str, leader: int, kind: str, of: list[str]) -> parley.Collective:
        role = dict.fromkeys(self._members, "worker") | {leader: "leader"}
        return parley.Collective(self._rank, f"{self._name}.{suffix}", role=lambda r: role.get(r, "idle"), kind=kind, configs=of,
                                 device=self._device)


class Backend(_BackendBase):  # type: ignore[misc]
    """The ranks of a group, by their places in it. Its methods have the names and arguments of torch's class."""

    supports_coalescing = _has_backends

    def __init__(self, progress: _Progress, members: list[int], name: str, timeout: float, own: _Job | None) -> None:
        self._me, self._size = members.index(progress.rank.id), len(members)
        super().__init__(self._me, self._size)
        self._progress, self._members, self._timeout, self._own = progress, members, timeout, own
        self._name = name
        self._on_host = _Operations(progress.rank, members, name, "cpu")
        self._on_gpu: _Operations | None = None  # made at its first use
        self._in_streams: deque[parley.Work] = deque()  # streams wait for them, and nobody has looked at their outcomes
        self._waits_in_streams = _waits_in_streams() and progress.rank.gpu is not None
        if self._waits_in_streams:
            progress.rank.start_progress()
        self._any: dict[int, _AnySource] = {}  # by tag
        self._batch: _Batch | None = None
        self._barriers = itertools.count(1)

    def _of(self, tensor: torch.Tensor) -> _Operations:
        """The operations for tensors where this one is."""
        if tensor.device.type == "cpu":
            return self._on_host
        if tensor.device.type != "cuda":
            raise ValueError(f"parley moves tensors on the host and on GPUs of CUDA; this one is on {tensor.device}")
        if self._on_gpu is None:
            if self._progress.rank.gpu is None:
                why = parley.cuda.why_not() or "the default group was made before this process could use its GPU"
                raise ValueError(f"parley cannot move a tensor on {tensor.device}: {why}")
            self._on_gpu = _Operations(self._progress.rank, self._members, f"{self._name}.cuda", "cuda")
        return self._on_gpu

    def _start(self, posted: list[_Posted], inner: bool = False) -> list[parley.Work]:
        """One batch for each kind of memory."""
        works = []
        for kind in dict.fromkeys(tensor.device.type for tensor, _ in posted):
            mine = [(tensor, operation) for tensor, operation in posted if tensor.device.type == kind]
            by = self._of(mine[0][0])
            works.append(by.start(by.inner if inner else by.pairs, [operation for _, operation in mine]))
        return works

    def _streams_for(self, tensors: list[torch.Tensor]) -> deque[parley.Work] | None:
        """Where works go that streams wait for; None: the host waits. Raises what an earlier one has failed with."""
        if not self._waits_in_streams or not tensors or not all(t.is_cuda for t in tensors):
            return None
        while self._in_streams and self._in_streams[0].done():
            self._in_streams.popleft().take()
        return self._in_streams

    def getBackendName(self) -> str:  # noqa: N802: torch's name
        return "parley"

    @property
    def has_gpu(self) -> bool:
        return self._progress.rank.gpu is not None

    @property
    def options(self) -> Any:
        return _BackendBase.Options("parley", timedelta(seconds=self._timeout))

    def set_timeout(self, timeout: timedelta) -> None:
        """Of the calls that begin from now on."""
        self._timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        """torch calls it in destroy_process_group. With the default group, the process leaves its job."""
        for source in self._any.values():
            source.cancel()
        self._any.clear()
        try:
            while self._in_streams:
                self._in_streams.popleft().wait()
        finally:
            if self._own is not None:
                self._own.leave()

    abort = shutdown

    def decision(self, peer: int, bytes_: int, device: str = "cpu") -> parley.Decision:
        """What this rank and the one at place `peer` have agreed on for messages of that size, between tensors of that kind of device."""
        by = self._of(torch.empty(0, device=device))
        return by.pairs.decision(bytes_, self._rank_at(peer))

    def _seconds(self, opts: Any) -> float:
        given = getattr(opts, "timeout", None)
        return given.total_seconds() if given is not None and given > timedelta(0) else self._timeout

    def _work(self, works: Iterable[parley.Work], results: list[torch.Tensor], then: Iterable[Callable[[], object]] = ()) -> Work:
        return Work(self._progress, works, results, then)

    # ---- between two ranks

    def _rank_at(self, place: int) -> int:
        if not 0 <= place < self._size:
            raise ValueError(f"a group of {self._size} ranks has no rank {place}")
        return self._members[place]

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Work:
        to = self._rank_at(dst)
        return self._post(tensors, [(t, parley.P2P.isend(_to_read(t), to=to, tag=tag, timeout=self._timeout)) for t in tensors], [])

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Work:
        then: list[Callable[[], object]] = []
        source = self._rank_at(src)
        if tag in self._any:
            (tensor,) = tensors
            arrival = self._any[tag].adopt(src, tensor)
            if arrival is not None:
                then.append(lambda: tensor.detach().copy_(arrival.data.view(tensor.shape)))
                return self._post(tensors, [], then, [arrival.work])
        operations = [(t, parley.P2P.irecv(_to_write(t, then), source=source, tag=tag, timeout=self._timeout)) for t in tensors]
        return self._post(tensors, operations, then)

    def _post(self, tensors: list[torch.Tensor], operations: list[_Posted], then: list[Callable[[], object]],
              started: Iterable[parley.Work] = ()) -> Work:
        if self._batch is None:
            in_streams = None if started else self._streams_for(tensors)
            return Work(self._progress, [*started, *self._start(operations)], tensors, then, in_streams)
        self._batch.works += started
        self._batch.operations += operations
        self._batch.then += then
        self._batch.results += tensors
        return self._batch.work

    def start_coalescing(self) -> None:
        self._batch = _Batch(Work(self._progress, (), []))

    def end_coalescing(self) -> Work:
        batch, self._batch = self._batch, None
        if batch is None:
            raise ValueError("no batch of sends and receives was begun")
        in_streams = None if batch.works else self._streams_for(batch.results)
        batch.work.begin([*batch.works, *self._start(batch.operations)], batch.results, batch.then, in_streams)
        return batch.work

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Work:
        (tensor,) = tensors

        def post(place: int, data: torch.Tensor) -> parley.Work:
            return self._start([(data, parley.P2P.irecv(data, source=self._members[place], tag=tag, timeout=self._timeout))])[0]

        source = self._any.setdefault(tag, _AnySource(post, [p for p in range(self._size) if p != self._me]))
        return _FromAny(self._progress, source, tensor)

    def _exchange(self, to: dict[int, torch.Tensor], source: dict[int, torch.Tensor], then: list[Callable[[], object]],
                  seconds: float) -> list[parley.Work]:
        """By places. A rank's message to itself is a copy."""
        if self._me in to and self._me in source:
            source[self._me].detach().copy_(to[self._me].detach().reshape(source[self._me].shape))
        batch = [(t, parley.P2P.isend(_to_read(t), to=self._members[p], timeout=seconds)) for p, t in to.items() if p != self._me]
        batch += [(t, parley.P2P.irecv(_to_write(t, then), source=self._members[p], timeout=seconds))
                  for p, t in source.items() if p != self._me]
        return self._start(batch, inner=True)

    # ---- reductions

    def _prepare(self, tensor: torch.Tensor, op: Any) -> None:
        """In place, before the elements of the ranks are combined."""
        if _kind(op) == _Op.PREMUL_SUM:
            tensor.mul_(_factor(op))

    def _average(self, tensor: torch.Tensor, op: Any) -> None:
        """In place, after that."""
        if _kind(op) == _Op.AVG:
            tensor.div_(self._size, rounding_mode="floor" if not tensor.is_floating_point() and not tensor.is_complex() else None)

    def _all_reduce(self, tensor: torch.Tensor, op: Any, seconds: float, then: list[Callable[[], object]]) -> list[parley.Work]:
        """Begins; `then` finishes."""
        kind = _kind(op)
        memory = _to_write(tensor, then)
        self._prepare(memory, op)
        # What `_to_write` does comes last.
        then.insert(0, lambda: self._average(memory, op))
        numbers = torch.view_as_real(memory) if memory.is_complex() and kind in (_Op.SUM, _Op.AVG, _Op.PREMUL_SUM) else memory
        if numbers.numel() == 0:
            return []
        if _is_reduced_by_parley(numbers, kind):
            return [self._of(numbers).sums.iall_reduce(numbers, by=_native[kind], timeout=seconds)]
        mine = memory.clone()
        parts = [mine if p == self._me else torch.empty_like(mine) for p in range(self._size)]
        then.insert(0, lambda: memory.copy_(functools.reduce(_combine[kind], parts)))
        places = [p for p in range(self._size) if p != self._me]
        return self._exchange(dict.fromkeys(places, mine), {p: parts[p] for p in places}, [], seconds)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        op = opts.reduceOp if opts is not None else _Op.SUM
        works: list[parley.Work] = []
        then: list[Callable[[], object]] = []
        for tensor in tensors:
            steps: list[Callable[[], object]] = []
            works += self._all_reduce(tensor, op, self._seconds(opts), steps)
            then += steps
        return self._work(works, tensors, then)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """Only the root's tensors change."""
        root = opts.rootRank if opts is not None else 0
        made = self.allreduce(tensors if root == self._me else [t.detach().clone() for t in tensors], opts)
        return made.with_results(tensors)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        op = opts.reduceOp if opts is not None else _Op.SUM
        combine = _combine[_kind(op)]
        works: list[parley.Work] = []
        then: list[Callable[[], object]] = []
        for output, parts_of_mine in zip(outputs, inputs, strict=True):
            if _kind(op) == _Op.PREMUL_SUM:
                parts_of_mine = [p * _factor(op) for p in parts_of_mine]
            mine = parts_of_mine[self._me].detach()
            parts = [mine if p == self._me else torch.empty(mine.shape, dtype=mine.dtype, device=mine.device) for p in range(self._size)]

            def combined(output: torch.Tensor = output, parts: list[torch.Tensor] = parts) -> None:
                memory = output.detach()
                memory.copy_(functools.reduce(combine, parts).view(memory.shape))
                self._average(memory, op)

            places = [p for p in range(self._size) if p != self._me]
            works += self._exchange({p: parts_of_mine[p] for p in places}, {p: parts[p] for p in places}, then, self._seconds(opts))
            then.append(combined)
        return self._work(works, outputs, then)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter([output], [self._shares(whole)], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], wholes: list[torch.Tensor], opts: Any = None) -> Work:
        return self.reduce_scatter(outputs, [self._shares(whole) for whole in wholes], opts)

    def _shares(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """One equal part for each rank."""
        if whole.numel() % self._size != 0:
            raise ValueError(f"a tensor of {whole.numel()} elements cannot be shared by {self._size} ranks")
        return list(_to_read(whole).view(self._size, -1).unbind())

    # ---- copies

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        root = opts.rootRank if opts is not None else 0
        leader = self._rank_at(root)
        then: list[Callable[[], object]] = []
        memories = [_to_write(t, then) for t in tensors]
        works = [self._of(m).news_of(leader).ibroadcast(m, timeout=self._seconds(opts)) for m in memories if m.numel()]
        return self._work(works, tensors, then)

    def barrier(self, opts: Any = None) -> Work:
        token = torch.zeros(1, dtype=torch.uint8)
        return self._work([self._of(token).sums.iall_reduce(token, timeout=self._seconds(opts))], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come. The errors have the words that gloo's have, because programs look for them."""
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        if seconds <= 0:
            raise RuntimeError(f"Rank {self._me} timed out in monitoredBarrier after {round(1000 * seconds)} ms")
        tag = next(self._barriers)
        if self._me == 0:
            self._await_all(tag, seconds, wait_all_ranks)
            return
        root = self._members[0]
        try:
            self._on_host.inner.start([parley.P2P.isend(b"here", to=root, tag=tag, timeout=seconds)]).wait()
            self._on_host.inner.start([parley.P2P.irecv(bytearray(4), source=root, tag=tag, timeout=seconds)]).wait()
        except parley.Failure as why:
            raise RuntimeError(f"Rank {self._me} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                               f"from rank 0. Please check rank 0 logs for faulty rank.") from why

    def _await_all(self, tag: int, seconds: float, wait_all_ranks: bool) -> None:
        tokens = {p: self._on_host.inner.start([parley.P2P.irecv(bytearray(4), source=self._members[p], tag=tag, timeout=seconds)])
                  for p in range(1, self._size)}
        missing: dict[int, parley.Failure] = {}
        for place, token in tokens.items():
            try:
                token.wait()
            except parley.Failure as why:
                missing[place] = why
                if not wait_all_ranks:
                    break
        if missing:
            who = f"Rank {next(iter(missing))}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
            raise RuntimeError(f"{who} failed to pass monitoredBarrier in {round(1000 * seconds)} ms") from next(iter(missing.values()))
        self._on_host.inner.start([parley.P2P.isend(b"here", to=self._members[p], tag=tag, timeout=seconds) for p in tokens]).wait()

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        works: list[parley.Work] = []
        then: list[Callable[[], object]] = []
        for out, mine in zip(outputs, inputs, strict=True):
            works += self._exchange(dict.fromkeys(range(self._size), mine), dict(enumerate(out)), then, self._seconds(opts))
        return self._work(works, [t for out in outputs for t in out], then)

    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """`outputs`: a list for each rank, with its tensors."""
        return self.allgather([list(of_ranks) for of_ranks in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [mine], opts)

    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        then: list[Callable[[], object]] = []
        shares = [self._shares(_to_write(output, then)) for output in outputs]
        return self.allgather(shares, [_to_read(mine).view(-1) for mine in inputs], opts).with_results(outputs, then)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        root = opts.rootRank if opts is not None else 0
        then: list[Callable[[], object]] = []
        source = dict(enumerate(outputs[0])) if self._me == root else {}
        return self._work(self._exchange({root: inputs[0]}, source, then, self._seconds(opts)), outputs[0] if outputs else [], then)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        root = opts.rootRank if opts is not None else 0
        then: list[Callable[[], object]] = []
        to = dict(enumerate(inputs[0])) if self._me == root else {}
        return self._work(self._exchange(to, {root: outputs[0]}, then, self._seconds(opts)), outputs, then)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        then: list[Callable[[], object]] = []
        return self._work(self._exchange(dict(enumerate(inputs)), dict(enumerate(outputs)), then, self._seconds(opts)), outputs, then)

    def all_to_all_single(self, output: torch.Tensor, mine: torch.Tensor, out_sizes: list[int], in_sizes: list[int],
                          opts: Any = None) -> Work:
        """The sizes are of the first dimension; empty: equal parts."""
        then: list[Callable[[], object]] = []
        memory, data = _to_write(output, then), _to_read(mine)
        into = list(torch.split(memory, out_sizes)) if out_sizes else self._shares(memory)
        parts = list(torch.split(data, in_sizes)) if in_sizes else self._shares(data)
        return self.alltoall(into, parts, opts).with_results([output], then)


class Group(dist.ProcessGroup):
    """torch's group of one `Backend`."""

    def __init__(self, backend: Backend, store: Any) -> None:
        if _has_backends:
            super().__init__(store, backend.rank(), backend.size())
        else:
            super().__init__(backend.rank(), backend.size())
        self._backend = backend
        if _has_backends:
            custom = dist.ProcessGroup.BackendType.CUSTOM
            self._set_default_backend(custom)
            for device in ("cpu", "cuda") if backend.has_gpu else ("cpu",):
                self._register_backend(torch.device(device), custom, backend)

    def getBackendName(self) -> str:  # noqa: N802: torch's name
        return "parley"

    def _start_coalescing(self, device: torch.device) -> None:
        del device
        self._backend.start_coalescing()

    def _end_coalescing(self, device: torch.device) -> Work:
        del device
        return self._backend.end_coalescing()

    def decision(self, peer: int, bytes_: int, device: str = "cpu") -> parley.Decision:
        """What this rank and the one at place `peer` have agreed on for messages of that size, between tensors of that kind of device."""
        return self._backend.decision(peer, bytes_, device)


def _straight(name: str) -> Callable[..., Any]:
    """The method of a `Group` that calls the `Backend`. torch's class brings other forms of arguments into the one that a backend has."""
    of_torch = getattr(dist.ProcessGroup, name, None)

    @functools.wraps(getattr(Backend, name))
    def call(self: Group, *words: Any, **named: Any) -> Any:
        if of_torch is not None and words and isinstance(words[0], torch.Tensor) and name in _of_lists:
            return of_torch(self, *words, **named)
        return getattr(self._backend, name)(*words, **named)

    return call


_of_lists = {"broadcast", "allreduce", "reduce", "allgather", "gather", "scatter", "reduce_scatter"}
for _name in [*_of_lists, "send", "recv", "recv_anysource", "barrier", "monitored_barrier", "allreduce_coalesced", "reduce_scatter_single",
              "reduce_scatter_single_coalesced", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced", "alltoall",
              "all_to_all_single"]:
    setattr(Group, _name, _straight(_name))

# What Python calls before torch 2.15, whose C++ classes have no group of Python's.
_earlier = {"_allgather_base": "all_gather_single", "_reduce_scatter_base": "reduce_scatter_single", "alltoall_base": "all_to_all_single",
            "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
            "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced", "shutdown": "shutdown", "abort": "abort",
            "set_timeout": "set_timeout"}
if not _has_backends:
    for _name, _its in _earlier.items():
        setattr(Group, _name, _straight(_its))
    _group: Any = Group
    _group._get_backend = lambda self, device: self._backend
    _group._set_group_name = lambda self, name: setattr(self, "_name", name)
    _group.group_name = property(lambda self: self._name)


class _Job:
    """The job of a group that has its own, and of the groups of parley within it."""

    def __init__(self, of: Any) -> None:
        self._joined = parley.join(timeout=of.timeout.total_seconds(), through=_through(of.store, of.group_rank, of.group_size),
                                   device=_gpu_of(of))
        self.progress = _Progress(self._joined.rank)
        self.made: Counter[str] = Counter()  # groups by torch's name; parley's names are for ever, and torch uses its own again
        # Also in the processes of torch.multiprocessing, which do not run the functions of atexit.
        self._at_exit = multiprocessing.util.Finalize(None, self._leave, exitpriority=0)

    def leave(self) -> None:
        self._at_exit()

    def _leave(self) -> None:
        self.progress.end()
        thrown = getattr(sys, "last_value", None)  # what ends the program
        self._joined.__exit__(type(thrown) if thrown else None, thrown, None)


_world: _Job | None = None  # if the default group is one of parley


def _through(store: Any, rank: int, size: int) -> tuple[int, int, parley.AllGather]:
    rounds = itertools.count()

    def all_gather(mine: bytes) -> list[bytes]:
        key = f"parley/{next(rounds)}"
        store.set(f"{key}/{rank}", mine)
        return [bytes(store.get(f"{key}/{r}")) for r in range(size)]

    return rank, size, all_gather


def _gpu_of(of: Any) -> str:
    """The device of a group's job."""
    if not torch.cuda.is_available() or not parley.cuda.is_available():
        return "cpu"
    bound = getattr(getattr(of, "process_group", None), "bound_device_id", None)
    if bound is not None and bound.index is not None:
        return f"cuda:{bound.index}"
    cuda: Any = torch.cuda
    return f"cuda:{cuda.current_device()}" if cuda.is_initialized() else "cuda"


def _waits_in_streams() -> bool:
    if wait_on not in ("host", "stream"):
        raise ValueError(f'parley.torch.wait_on is "host" or "stream", and not {wait_on!r}')
    if wait_on == "stream" and os.environ.get("CUDA_MODULE_LOADING") != "EAGER":
        raise RuntimeError('parley.torch.wait_on = "stream" needs CUDA_MODULE_LOADING=EAGER, set before CUDA starts: otherwise the first '
                           "launch of a kernel waits for all streams, and they for messages that the program then cannot move")
    return wait_on == "stream"


def _create(of: Any, options: Any = None) -> Backend | Group:
    """Called on the members of a new group. Those of a world that is another backend's join a job for each group."""
    global _world
    del options
    is_world = not dist.is_initialized()
    members = list(range(of.group_size))
    if is_world or _world is None:
        job = own = _Job(of)
        _world = job if is_world else None
    else:
        job, own = _world, None
        members = list(of.global_ranks_in_group) or members
    job.made[of.group_id] += 1
    backend = Backend(job.progress, members, f"torch.{of.group_id}.{job.made[of.group_id]}", of.timeout.total_seconds(), own)
    # A group with another backend for other devices stays torch's own.
    is_alone = not _has_backends or (not of.process_group._device_types and of.process_group._get_backend_name() == "custom")
    return Group(backend, of.store) if is_alone else backend


def register() -> None:
    """Makes "parley" a backend. torch finds this function by the package's entry point, so a program need not import this module."""
    dist.Backend.register_backend("parley", _create, extended_api=True, devices=["cpu", "cuda"])


register()

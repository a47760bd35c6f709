"""Ranks that agree on the fastest way to exchange their data, while the program runs.

    import parley

    def main(rank):
        numbers = parley.Transfer(rank, "numbers", role=lambda r: "sender" if r == 0 else "receiver",
                                  configs=["direct", "chunked(chunk_bytes=1MiB in_flight=4)"])
        data = bytearray(4 << 20)
        for _ in range(500):
            numbers.send(data, to=1) if rank.id == 0 else numbers.receive(data, source=0)
        print(numbers.decision(len(data)))

    if __name__ == "__main__":
        raise SystemExit(parley.run(main))

`python -m parley run -n 2 program.py` starts two ranks of it; mpirun, srun and torchrun do, too. Buffers are whatever has DLPack or the
buffer protocol, in place: NumPy arrays, torch tensors, bytearrays. For memory on GPUs see parley.cuda.

Each call has two forms: `send` waits for its end, and `isend` returns a `Work`, which one can test, wait for, or await: in asyncio, or in a
coroutine that parley runs itself (`parley.run` and `parley.simulate` with an `async def`).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

# While it is loaded, UCX patches the process's memory functions, which takes 0.4 s and which parley does not need.
os.environ.setdefault("UCX_MEM_MMAP_HOOK_MODE", "none")

from . import _native  # noqa: E402
from ._native import (  # noqa: E402
    P2P,
    Collective,
    Constraints,
    Contextual,
    CoordinatedOp,
    Decision,
    Estimate,
    Evidence,
    ExpectedTime,
    FlowStep,
    Gemm,
    Halo,
    HaloPlan,
    Hierarchy,
    Kernel,
    Loop,
    MeshField,
    P2POperation,
    Pipeline,
    PipelineReport,
    Rank,
    RankEstimate,
    RankPart,
    RankTime,
    RingAttention,
    RoleOp,
    Schedule,
    TrainingPipeline,
    Transfer,
    Tunables,
    TunedStage,
    TunedStages,
    Work,
    tunables,
)
from .errors import BadArgument, Failure, PeerFailed, Timeout, place_of  # noqa: E402

if TYPE_CHECKING:
    from . import autotuners as autotuners
    from . import configs as configs
    from . import cuda as cuda
    from . import registration as registration
    from .agree import Agreement
    from .contextual import contextual_autotune
    from .dataflow import Dataflow
    from .registration import (
        PairedOpConfig,
        RegisteredPair,
        RoleFunction,
        register_asymmetric_autotuning,
        register_coordinated_autotuning,
        register_heterogeneous_autotuning,
        register_paired_op_autotuning,
    )

__version__: str = _native.version
has_cuda: bool = _native.has_cuda
__all__ = ["Agreement", "BadArgument", "Collective", "Constraints", "Contextual", "CoordinatedOp", "Dataflow", "Decision", "Estimate",
           "Evidence", "ExpectedTime", "Failure", "FlowStep", "Gemm", "Halo", "HaloPlan", "Hierarchy", "Kernel", "Loop", "MeshField",
           "P2P", "P2POperation", "PairedOpConfig", "PeerFailed", "Pipeline", "PipelineReport", "Rank", "RankEstimate", "RankPart",
           "RankTime", "RegisteredPair", "RingAttention", "RoleFunction", "RoleOp", "Schedule", "Timeout", "TrainingPipeline", "Transfer",
           "Tunables", "TunedStage", "TunedStages", "Work", "autotuners", "configs", "contextual_autotune", "cuda", "current", "has_cuda",
           "join", "register_asymmetric_autotuning", "register_coordinated_autotuning",
           "register_heterogeneous_autotuning", "register_paired_op_autotuning", "registration", "run", "simulate", "tunable", "tunables"]

Main = Callable[[Rank], Coroutine[Any, Any, None] | None]
AllGather = Callable[[bytes], Sequence[bytes]]
_current: Rank | None = None
_was_launched = False

# What few programs use, and what takes long to load, is loaded when it is first used: names by their modules.
_modules = {"Agreement": "agree", "Dataflow": "dataflow", "autotuners": "autotuners", "configs": "configs", "contextual_autotune": "contextual",
            "cuda": "cuda", **dict.fromkeys(["PairedOpConfig", "RegisteredPair", "RoleFunction", "register_asymmetric_autotuning",
                             "register_coordinated_autotuning", "register_heterogeneous_autotuning", "register_paired_op_autotuning",
                             "registration"], "registration")}


def __getattr__(name: str) -> Any:
    if name not in _modules:
        raise AttributeError(f"module parley has no attribute {name}")
    import importlib  # noqa: PLC0415

    module = importlib.import_module(f".{_modules[name]}", __name__)
    return module if name == _modules[name] else getattr(module, name)


class join:  # noqa: N801: a function with an end
    """Joins the job that the environment describes, for a `with` block:

        with parley.join() as rank:
            ...

    Alone, a process is a world of one rank. At the end of the block the rank leaves; an exception is told to the other ranks. `timeout`:
    seconds to wait for the other ranks. `strict`: messages that no rank has received are an error. `kind`: this rank's hardware, for
    `Rank.kind_of`. `through`: (rank, world size, all_gather), for a program that can exchange bytes among its ranks already:
    `all_gather(mine)` returns the bytes of all ranks. It is called twice, and replaces a launcher's environment. `device`: `cuda` gives
    the rank a GPU, for operations on its memory (parley.cuda). The ranks of a host take its GPUs in turn; `cuda:1` names one.
    """

    def __init__(self, timeout: float | None = None, strict: bool = False, kind: str = "",
                 through: tuple[int, int, AllGather] | None = None, device: str = "cpu") -> None:
        global _current, _was_launched
        if _was_launched:
            raise BadArgument("this process has joined its job before; a process that a launcher has started joins once")
        _was_launched = through is None and any(name in os.environ for name in ("PARLEY_RANK", "PARLEY_WORLD"))
        if device != "cpu":
            from . import cuda  # noqa: PLC0415: few programs need it

            cuda.load_libraries()
        self.rank: Rank = _native.join(timeout, strict, kind, through, device)
        self.parting = ""
        self._process = os.getpid()
        _current = self.rank

    def __enter__(self) -> Rank:
        return self.rank

    def __exit__(self, kind: type[BaseException] | None, thrown: BaseException | None, trace: TracebackType | None) -> None:
        global _current
        _current = None
        if awaits := sys.modules.get("parley._await"):
            awaits.end_pumps()
        if os.getpid() != self._process:
            self.parting = "in_peace"  # a child of fork is no rank
            return
        try:
            if thrown is None or (isinstance(thrown, SystemExit) and thrown.code in (None, 0)):
                self.parting = self.rank.leave()
            else:
                self.rank.leave_after(thrown)
        except Failure as why:
            if why.code != "closed":
                raise
            self.parting = "in_peace"  # the program has called `rank.leave` itself


def current() -> Rank:
    """The rank of this process, while it is in a job."""
    if _current is None:
        raise RuntimeError("this process is in no job; call this inside of parley.run or `with parley.join()`")
    return _current


def run(main: Main, *, timeout: float | None = None, strict: bool = False, device: str = "cpu") -> int:
    """Joins the job, calls `main(rank)` and leaves. Returns the exit status: 0; 1 after an error, which is printed; 3 if messages were not
    received and `strict` is set. An `async def` may await calls of its rank, without asyncio. `device`: see `join`."""
    try:
        joined = join(timeout, strict, device=device)
    except Failure as why:
        print(f"parley: {why}", file=sys.stderr)
        return 1
    try:
        with joined as rank:
            ran = main(rank)
            if isinstance(ran, Coroutine):
                rank.start(ran).wait()
    except KeyboardInterrupt:
        raise
    except Failure as why:
        print(f"[rank {joined.rank.id}] parley: {why}{place_of(why.__traceback__)}", file=sys.stderr)
        return 1
    except Exception:
        print(f"[rank {joined.rank.id}] parley: the program has failed:", file=sys.stderr)
        import traceback  # noqa: PLC0415: a program without errors need not load it

        traceback.print_exc()
        return 1
    return {"in_peace": 0, "refused": 1, "undelivered": 3}[joined.parting]


def simulate(main: Callable[[Rank], Coroutine[Any, Any, None]], *, ranks: int = 2, seed: int = 1, faults: str = "none",
             strict: bool = False) -> int:
    """Runs `main(rank)`, an `async def`, on virtual ranks in this process, in virtual time: equal seeds give equal runs. `faults`: `none`;
    `weather`: late, lost and doubled messages, and stopped ranks; `death`: `main` runs twice, and in the second run a rank dies at a moment
    chosen by the seed; its coroutines are closed where they wait, and the others' errors about it are no failure. Returns the status that the
    real ranks would have; an exception of the program comes out. Standard error gets the findings of the checkers of parley's protocol."""
    import inspect  # noqa: PLC0415: it takes as long as all of parley

    if not inspect.iscoroutinefunction(main):
        raise BadArgument("simulate needs an `async def`: virtual ranks share one thread, so a function that waits would stop them all")
    gc.collect()  # what is left of earlier ranks ends now: the simulation counts what ends in it
    return _native.simulate(main, ranks, seed, faults, strict)


from . import tunable as tunable  # noqa: E402: it uses `current`

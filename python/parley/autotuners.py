"""Makes the autotuners of other libraries choose the same on all ranks, through an `Agreement` (agree.py) and without a barrier.

    tuner = parley.Agreement(rank, "autotune")                    # on all ranks
    matmul = parley.autotuners.triton(tuner, matmul)              # a kernel with @triton.autotune
    parley.autotuners.choose_one(tuner, AutoTuner.get())          # FlashInfer's, or one like it
    parley.autotuners.inductor(tuner)                             # torch.compile(mode="max-autotune")

Each autotuner still measures on its rank. All ranks run the candidate whose slowest rank is the fastest; one that failed on some rank wins
nowhere. A rank may come late or have the answer in its cache. A rank that never runs an operation costs the others the patience of the
agreement once, unless it calls `tuner.skip`.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .agree import Agreement
from .errors import BadArgument

__all__ = ["choose_one", "inductor", "triton"]


class _Times:
    """The times that were measured since the last choice. An exception counts as a time without end, `never`."""

    def __init__(self, measure: Callable[..., Any], name_of: Callable[..., str], never: Any = math.inf) -> None:
        self._measure, self._name_of, self._never = measure, name_of, never
        self._seconds: dict[str, float] = {}

    def __call__(self, *words: Any, **named: Any) -> Any:
        candidate = self._name_of(*words, **named)
        try:
            measured = self._measure(*words, **named)
        except Exception as why:
            warnings.warn(f"{candidate} fails on this rank, so no rank runs it: {type(why).__name__}: {why}", stacklevel=2)
            measured = self._never
        first = measured[0] if isinstance(measured, Sequence) else measured
        self._seconds[candidate] = float(first)
        return measured

    def taken(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, {}
        return seconds


class _Cache(dict[Any, Any]):
    """The cache of a Triton autotuner: what it is given is this rank's choice, what it holds is that of all ranks."""

    def __init__(self, agreement: Agreement, name: str, configs: Mapping[str, Any], times: _Times, before: Mapping[Any, Any]) -> None:
        super().__init__()
        self._agreement, self._name, self._configs, self._times, self._before = agreement, name, configs, times, dict(before)

    def __contains__(self, key: object) -> bool:
        if key in self._before:  # chosen before this rank took part
            self[key] = self._before.pop(key)
        return super().__contains__(key)

    def __setitem__(self, key: Any, config: Any) -> None:
        seconds = self._times.taken()
        own = None if seconds else str(config)
        chosen = self._agreement.choose(f"{self._name} {key}", seconds or None, cached=own)
        if chosen not in self._configs:
            raise BadArgument(f"{self._name}, key {key}: the ranks have agreed on `{chosen}`, which this rank does not have; "
                              "give all ranks the same configs")
        super().__setitem__(key, self._configs[chosen])


def triton(agreement: Agreement, kernel: Any, name: str = "") -> Any:
    """Makes a kernel with `@triton.autotune` choose with the other ranks. Changes the kernel, and returns it. Choices that are in its cache
    already, or on the disk, count as `cached`. `name` must be equal on all ranks; default: that of the function."""
    if not (hasattr(kernel, "configs") and hasattr(kernel, "_bench") and hasattr(kernel, "cache")):
        raise BadArgument(f"an object of type {type(kernel).__name__} is no autotuned kernel of Triton; pass what @triton.autotune returns")
    configs = {str(config): config for config in kernel.configs}
    title = name or kernel.base_fn.__name__
    if len(configs) != len(kernel.configs):
        raise BadArgument(f"{title}: two of its configs have the same text, so the ranks could not tell them apart")
    times = _Times(kernel._bench, lambda *words, config, **named: str(config), [math.inf] * 3)
    kernel._bench = times
    kernel.cache = _Cache(agreement, title, configs, times, kernel.cache)
    return kernel


def choose_one(agreement: Agreement, tuner: Any) -> Any:
    """Makes a tuner with `choose_one(op, runners, tuning_config, inputs, **named) -> (runner, tactic)`, as FlashInfer's and TensorRT-LLM's
    AutoTuner have, choose with the other ranks. Changes the tuner, and returns it.

    If one call measures one set of shapes, by `_profile_single_kernel(runner, inputs, tactic, ...)`, its times decide. Otherwise the choice
    of the first rank decides: after a call that was a hit in a cache, for instance, or that tuned several sizes. All ranks have the same
    runners, in one order; tactics are numbers, texts, or tuples of these.
    """
    of_rank = tuner.choose_one
    runners_of_call: list[Any] = []
    shapes_of_call: set[str] = set()
    agreed: dict[str, tuple[int, Any]] = {}

    def candidate(runner: Any, inputs: Any, tactic: Any, *words: Any, **named: Any) -> str:
        shapes_of_call.add(_shapes(inputs))
        return f"{_place(runners_of_call, runner)} {tactic!r}"

    times = _Times(getattr(tuner, "_profile_single_kernel", lambda *words, **named: math.inf), candidate)
    if hasattr(tuner, "_profile_single_kernel"):
        tuner._profile_single_kernel = times

    def choose(op: str, runners: Sequence[Any], tuning_config: Any, inputs: Sequence[Any], **named: Any) -> tuple[Any, Any]:
        key = f"{op} {_shapes(inputs)}"
        if key not in agreed:
            runners_of_call[:] = runners
            shapes_of_call.clear()
            try:
                runner, tactic = of_rank(op, runners, tuning_config, inputs, **named)
            except Exception:
                times.taken()
                agreement.skip(key)
                raise
            seconds = times.taken()
            measured = seconds if len(shapes_of_call) == 1 else None
            own = None if measured else f"{_place(runners, runner)} {tactic!r}"
            place, _, text = agreement.choose(key, measured, cached=own).partition(" ")
            agreed[key] = int(place), ast.literal_eval(text)
        place_of_runner, agreed_tactic = agreed[key]
        return runners[place_of_runner], agreed_tactic

    tuner.choose_one = choose
    return tuner


def _place(runners: Sequence[Any], runner: Any) -> int:
    return next(i for i, each in enumerate(runners) if each is runner)


def _shapes(inputs: Sequence[Any]) -> str:
    return " ".join(f"{getattr(x, 'dtype', type(x).__name__)}{list(getattr(x, 'shape', ()))}" for x in inputs)


def inductor(agreement: Agreement) -> None:
    """Makes the choices of `torch.compile(mode="max-autotune")` with the other ranks. It uses `add_feedback_saver` of
    torch._inductor.select_algorithm, which is not part of torch's public interface: tried with torch 2.15. Without it, torch's own
    `torch._inductor.config.distributed_max_autotune_gemm` has all ranks compile the same graph in step.
    """
    from torch._inductor import select_algorithm  # noqa: PLC0415: torch need not be installed

    def agree(timings: dict[Any, float], name: str, input_nodes: Sequence[Any], *rest: Any) -> None:
        del rest
        of_text = {choice.hash_key(): choice for choice in timings}
        inputs = " ".join(f"{node.get_dtype()}{[str(s) for s in node.get_size()]}" for node in input_nodes)
        chosen = agreement.choose(f"{name} {inputs}", {text: timings[choice] / 1000 for text, choice in of_text.items()})
        for text, choice in of_text.items():
            if text != chosen:
                timings[choice] = math.inf

    select_algorithm.add_feedback_saver(agree)

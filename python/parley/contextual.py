"""Tunes whole functions that call kernels, by the name of Triton-distributed's decorator.

    multiply = parley.Kernel(rank, "multiply", {"rows": by_rows, "blocks": in_blocks}, key=lambda a, b, c: {"n": len(a)})

    @parley.contextual_autotune(is_dist=True)
    def ag_gemm(mine, weights):
        gather.all_gather(mine, everything)              # waits for the other ranks, as in production
        multiply(everything, weights, product)           # tries one implementation in each run
        return product

The first call runs the function again and again, until each kernel that it calls has tried all of its implementations. All ranks then run
the same implementation, and later calls run the function once. parley.Contextual is the same as an object, for one rank.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from . import _native, current
from .errors import BadArgument

P = ParamSpec("P")
T = TypeVar("T")


def contextual_autotune(is_dist: bool = False, n_repeat: int = 5, n_warmup: int = 3, *,
                        name: str | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function, or an `async def`, that calls `Kernel`s and gives the same result each time it runs.

    `is_dist`: all ranks call it, and agree for each kernel and key: the implementation whose average on the slowest rank is the shortest.
    Without it, each rank decides for itself. An implementation that raises on a rank is left out; if none is left, all ranks get a Failure
    with the code `config_failed`. Each implementation is measured in `n_repeat` runs, after `n_warmup` that are not measured. `name` tells
    functions apart that have the same name. It belongs to the rank of this process, `parley.current()`."""

    if callable(is_dist):
        raise BadArgument("contextual_autotune is called before it decorates: @parley.contextual_autotune(is_dist=True)")

    def decorate(f: Callable[P, T]) -> Callable[P, T]:
        title = name or re.sub(r"\W+", "_", f.__qualname__.replace("<locals>.", ""))
        made: list[tuple[_native.Rank, _native.Contextual]] = []

        def of_rank() -> _native.Contextual:
            rank = current()
            if not made or made[0][0] is not rank:
                ranks = [] if is_dist else [rank.id]
                made[:] = [(rank, _native.Contextual(rank, title, ranks=ranks, iterations=n_repeat, warm_ups=n_warmup))]
            return made[0][1]

        if inspect.iscoroutinefunction(f):
            @functools.wraps(f)
            async def awaits(*words: P.args, **named: P.kwargs) -> Any:
                return await of_rank().irun(functools.partial(f, *words, **named))

            return cast(Callable[P, T], awaits)

        @functools.wraps(f)
        def runs(*words: P.args, **named: P.kwargs) -> T:
            return cast(T, of_rank().run(functools.partial(f, *words, **named)))

        return runs

    return decorate

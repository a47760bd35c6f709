"""Actors of Ray join a job. They meet through one more actor, so no launcher and no environment is needed:

    meeting = parley.ray.meeting(ranks=2)

    @ray.remote
    class Worker:
        def __init__(self, meeting, rank):
            self.joined = parley.ray.join(meeting, rank)
            self.pairs = parley.P2P(self.joined.rank, "pairs")

        def leave(self):
            self.joined.leave()

    workers = [Worker.remote(meeting, r) for r in range(2)]
"""

from __future__ import annotations

import asyncio
import itertools
from types import TracebackType
from typing import Any

import ray

import parley
from parley._progress import Progress


class _Meeting:
    """An actor with coroutines: all of them wait in it for the last one."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._said: dict[int, dict[int, bytes]] = {}
        self._changed = asyncio.Condition()

    async def size(self) -> int:
        return self._ranks

    async def all_gather(self, number: int, rank: int, mine: bytes) -> list[bytes]:
        async with self._changed:
            said = self._said.setdefault(number, {})
            if rank in said:
                raise ValueError(f"two actors have joined as rank {rank}; give each actor its own rank and each job its own meeting")
            said[rank] = mine
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(said) == self._ranks)
            return [said[r] for r in range(self._ranks)]


def meeting(ranks: int, **options: Any) -> Any:
    """The actor through which the actors of one job meet. `options`: of Ray, such as a name."""
    return ray.remote(_Meeting).options(num_cpus=0, max_concurrency=max(ranks, 1), **options).remote(ranks)


class join(parley.join):  # noqa: N801: as parley.join
    """Joins in an actor: as `parley.join`, for a `with` block or, with `leave`, for the life of the actor. `timeout`: seconds to wait for
    the other actors; then `ray.exceptions.GetTimeoutError` says that one has not come. Calls go on between the calls of the actor's methods."""

    def __init__(self, meeting: Any, rank: int, timeout: float = 60.0, strict: bool = False, kind: str = "") -> None:
        size: int = ray.get(meeting.size.remote(), timeout=timeout)
        if not 0 <= rank < size:
            raise parley.BadArgument(f"rank {rank} is none of the {size} ranks of this meeting, which are 0 to {size - 1}")
        numbers = itertools.count()

        def all_gather(mine: bytes) -> list[bytes]:
            everything: list[bytes] = ray.get(meeting.all_gather.remote(next(numbers), rank, mine), timeout=timeout)
            return everything

        super().__init__(timeout, strict, kind, through=(rank, size, all_gather))
        self._progress = Progress(self.rank)

    def leave(self) -> str:
        """Returns `in_peace`, `refused` or `undelivered`."""
        self.__exit__(None, None, None)
        return self.parting

    def __exit__(self, kind: type[BaseException] | None, thrown: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.end()
        super().__exit__(kind, thrown, trace)

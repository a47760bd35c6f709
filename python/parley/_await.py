"""What `await work` does: in an asyncio loop, and in a coroutine that parley runs itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any

from . import _native


class _Pump:
    """Gives a rank's loop its turns in an asyncio loop, without a thread."""

    turns_at_once = 64

    def __init__(self, rank_loop: _native.Loop, loop: asyncio.AbstractEventLoop) -> None:
        self.rank_loop, self.loop = rank_loop, loop
        self.is_due = self.has_ended = False
        self.descriptor = rank_loop.fileno()
        loop.add_reader(self.descriptor, self.kick)

    def kick(self) -> None:
        if not self.is_due:
            self.is_due = True
            self.loop.call_soon(self.run)

    def run(self) -> None:
        self.is_due = False
        if self.has_ended:
            return
        for _ in range(self.turns_at_once):
            if self.rank_loop.poll():
                return  # the reader says when there is more to do
        self.kick()

    def end(self) -> None:
        self.has_ended = True
        if not self.loop.is_closed():
            self.loop.remove_reader(self.descriptor)


_pumps: dict[tuple[int, int], _Pump] = {}


def _pump_of(rank_loop: _native.Loop, loop: asyncio.AbstractEventLoop) -> _Pump:
    key = (rank_loop.fileno(), id(loop))
    found = _pumps.get(key)
    if found is None or found.loop.is_closed() or found.loop is not loop:
        for old in [k for k, p in _pumps.items() if p.loop.is_closed()]:
            del _pumps[old]
        found = _pumps[key] = _Pump(rank_loop, loop)
    return found


def end_pumps() -> None:
    """The rank of this process leaves."""
    for pump in _pumps.values():
        pump.end()
    _pumps.clear()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    if _native.is_driven():
        return None  # parley runs this coroutine, also if its turn came in asyncio
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def steps(work: _native.Work) -> Generator[Any, None, Any]:
    """The iterator of `await work`."""
    if not work.done():
        loop = _running_loop()
        if loop is None:
            yield work  # parley itself runs this coroutine
            return work.take()
        ended: asyncio.Future[None] = loop.create_future()
        work.on_end(lambda: None if ended.done() else ended.set_result(None))
        _pump_of(work.loop, loop).kick()
        try:
            yield from ended
        except asyncio.CancelledError:
            work.cancel()
            raise
    return work.take()


async def run_awaitable(awaitable: Awaitable[Any]) -> Any:
    """Makes a coroutine of what a plain function has returned, such as `lambda out, data: out.send(0, data)`."""
    return await awaitable


async def run_generator(generator: Generator[Any, Any, Any]) -> Any:
    """Awaits what a generator yields. A `yield` returns the result, or raises the error, of what it has yielded."""
    try:
        awaitable = next(generator)
        while True:
            try:
                result = await awaitable
            except Exception as why:
                awaitable = generator.throw(why)
            else:
                awaitable = generator.send(result)
    except StopIteration as end:
        return end.value
    finally:
        generator.close()

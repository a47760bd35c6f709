"""What `await work` does: in an asyncio loop, and in a coroutine that parley runs itself."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    import asyncio  # a program that does not use it need not load it


class _Pump:
    """Gives a rank's loop its turns in an asyncio loop, without a thread."""

    def __init__(self, rank_loop: _native.Loop, loop: asyncio.AbstractEventLoop) -> None:
        self.rank_loop, self.loop = rank_loop, loop
        self.is_due = self.has_ended = False
        self.awaited = 0  # calls for which coroutines wait
        self.descriptor = rank_loop.fileno()
        loop.add_reader(self.descriptor, self.kick)

    def kick(self) -> None:
        if not self.is_due:
            self.is_due = True
            self.loop.call_soon(self.run)

    def run(self) -> None:
        self.is_due = False
        if not self.has_ended and not self.rank_loop.poll(self.awaited > 0, self.loop):
            self.kick()  # otherwise the reader says when there is more to do

    def end(self) -> None:
        self.has_ended = True
        if not self.loop.is_closed():
            self.loop.remove_reader(self.descriptor)


_pumps: dict[tuple[int, int], _Pump] = {}


def attend(rank_loop: _native.Loop, loop: asyncio.AbstractEventLoop) -> _Pump:
    """Lets the calls of this rank go on while the asyncio loop runs. The extension calls this when a call has begun."""
    key = (rank_loop.fileno(), id(loop))
    found = _pumps.get(key)
    if found is None or found.loop.is_closed() or found.loop is not loop:
        for old in [k for k, p in list(_pumps.items()) if p.loop.is_closed()]:
            _pumps.pop(old, None)
        found = _pumps[key] = _Pump(rank_loop, loop)
    found.kick()
    return found


def end_pumps() -> None:
    """The rank of this process leaves."""
    for pump in list(_pumps.values()):
        pump.end()
    _pumps.clear()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    events = sys.modules.get("asyncio.events")
    found: asyncio.AbstractEventLoop | None = None if events is None else events._get_running_loop()
    return found


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _settle_from_afar(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, ended)


def steps(work: _native.Work) -> Generator[Any, None, Any]:
    """The iterator of `await work`."""
    if not work.ends_at_once():
        loop = None if _native.is_driven() else _running_loop()
        if loop is None:
            yield work  # parley runs this coroutine, also if its turn came in asyncio
        elif work.done():
            yield  # asyncio's other callbacks have their turn
        else:
            ended: asyncio.Future[None] = loop.create_future()
            own = get_ident()
            # Another thread may drive the rank's loop, and then asyncio may sleep.
            work.on_end(lambda: _settle(ended) if get_ident() == own else _settle_from_afar(loop, ended))
            pump = attend(work.loop, loop)
            pump.awaited += 1
            try:
                yield from ended
            except BaseException:
                work.cancel()
                raise
            finally:
                pump.awaited -= 1
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

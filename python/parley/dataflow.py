"""Steps of a batch, in the order that their buffers require (parley/dataflow.hpp).

    with parley.Dataflow(rank) as flow:
        flow.exchange(ring, [ring.isend(x, to=right), ring.irecv(y, source=left)])
        flow.compute(lambda: np.multiply(x, 2, out=t), reads=[x], writes=[t])               # during the exchange
        flow.compute(lambda: np.add(y, t, out=out), reads=[y, t], writes=[out])             # once y and t are ready

A step begins when its inputs are ready, and when no earlier step still uses what it overwrites. At the end of the block all steps have
ended; an exception in the block cancels them. In coroutines: `async with`.
"""

from __future__ import annotations

from types import TracebackType

from . import _native


class Dataflow(_native.Dataflow):
    """A flow of one rank: see parley.dataflow."""

    def __enter__(self) -> Dataflow:
        return self

    def __exit__(self, kind: type[BaseException] | None, thrown: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if thrown is not None:
                self.cancel()
            self.join()
        except Exception:
            if thrown is None:
                raise
        finally:
            self.close()

    async def __aenter__(self) -> Dataflow:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, thrown: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if thrown is not None:
                self.cancel()
            if not isinstance(thrown, GeneratorExit):  # a coroutine that is closed cannot wait any more
                await self.ijoin()
        except Exception:
            if thrown is None:
                raise
        finally:
            self.close()

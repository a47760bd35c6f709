"""Makes a choice that each rank would make for itself the same on all ranks, without a barrier.

Autotuners time their candidates on each rank, and noise makes them choose differently; ranks that then run other kernels than their partners
are slow, or hang. An `Agreement` collects the times that ranks have measured, and all get one answer:

    tuner = parley.Agreement(rank, "autotune")                # on all ranks; the first one leads
    best = tuner.choose("m=4096 n=16", {"tile=64": 1.2e-3, "tile=128": 1.1e-3})

The answer is the candidate whose slowest rank is the fastest. A candidate that a rank has not measured, or that failed there (infinity),
does not win. `choose` waits until all ranks have said something about the key, at most `patience` seconds from the first one on; a rank that comes
later gets the answer at once. So a rank that never meets the key costs the others that wait once. Such a rank can call `skip`, and a rank that
has an answer in its cache passes `cached`: then nobody waits for it.

The leader answers while its program is in any call of parley. If it is not for longer than `patience`, `choose` raises `Timeout`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, SupportsFloat

from . import _native
from .errors import BadArgument, Failure

_largest = 1 << 24  # of a report, in bytes: longer ones are a mistake
_reports = 0  # the tag of all reports; an answer has the number of its question, and a report without a question has this one


def _written(what: Mapping[str, Any]) -> bytes:
    return json.dumps(what).encode()


class _Question:
    """On the leader: what the ranks have said about one key."""

    def __init__(self) -> None:
        self.said: dict[int, dict[str, Any]] = {}
        self.waiting: list[tuple[int, int]] = []  # rank and tag
        self.answer: dict[str, Any] | None = None


def decide(said: Mapping[int, Mapping[str, Any]], silent: Sequence[int]) -> dict[str, Any]:
    """The answer to a question, from what each rank has said: `times`, `cached` or nothing. Pure: equal reports give equal answers."""
    measured = {r: s["times"] for r, s in sorted(said.items()) if s.get("times") is not None}
    without = f"; without {', '.join(f'rank {r}' for r in sorted(silent))}" if silent else ""
    if measured:
        # In the order of the first rank's list.
        slowest: dict[str, float] = {}
        for candidate in next(iter(measured.values())):
            times = [of_rank.get(candidate) for of_rank in measured.values()]
            if all(t is not None and math.isfinite(t) for t in times):
                slowest[candidate] = max(t for t in times if t is not None)
        if slowest:
            best = min(slowest, key=lambda candidate: slowest[candidate])
            return {"choice": best, "why": f"its slowest rank takes {slowest[best]:.3g} s, the least of {len(slowest)}{without}"}
        return {"choice": None, "why": f"no candidate was measured on all of {', '.join(f'rank {r}' for r in measured)}{without}"}
    for r, s in sorted(said.items()):
        if s.get("cached") is not None:
            return {"choice": s["cached"], "why": f"rank {r} has it in its cache{without}"}
    return {"choice": None, "why": f"no rank has measured anything{without}"}


class Agreement:
    """All ranks of `ranks` (default: all of the job) make one, with equal names. The first one leads."""

    def __init__(self, rank: _native.Rank, name: str, *, ranks: Sequence[int] = (), patience: float = 30.0) -> None:
        if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not patience > 0:
            raise BadArgument(f"{name}: patience is a number of seconds above 0, not {patience!r}")
        self._rank, self._name, self._patience = rank, name, patience
        self._members = list(ranks) or list(range(rank.world_size))
        self._leader = self._members[0]
        self._pairs = _native.P2P(rank, name, ranks=self._members,
                                  edges=[pair for r in self._members for pair in {(r, self._leader), (self._leader, r)}])
        self._known: dict[str, dict[str, Any]] = {}
        self._asked = _reports
        self._questions: dict[str, _Question] = {}
        self._gone: set[int] = set()
        self._works: list[_native.Work] = []
        if rank.id == self._leader:
            for r in self._members:
                self._run_beside(self._serve(r))

    # ---- for the program

    def choose(self, key: str, times: Mapping[str, SupportsFloat] | None = None, *, cached: str | None = None, default: str | None = None) -> str:
        """The candidate that all ranks run for this key. `times`: seconds by candidate; infinity: it failed. If no candidate works everywhere:
        `default`; without one, `Failure` with the code `no_common_config`."""
        if key not in self._known:
            self._rank.start(self._ask(key, times, cached)).wait()
        return self._of(key, self._known[key], default)

    async def chosen(self, key: str, times: Mapping[str, SupportsFloat] | None = None, *, cached: str | None = None,
                     default: str | None = None) -> str:
        """Like `choose`, for coroutines."""
        await self._ask(key, times, cached)
        return self._of(key, self._known[key], default)

    def skip(self, key: str) -> None:
        """Says that this rank will not choose for this key for now, so that nobody waits for it. Does not wait itself."""
        self._run_beside(self._say(key, {}, _reports))

    def why(self, key: str) -> str:
        """Why the answer is what it is; empty if this rank does not know one."""
        return str(self._known.get(key, {}).get("why", ""))

    async def close(self) -> None:
        """Ends what runs for others. `parley.run` and `with parley.join()` need no call of it; a program of `parley.simulate` awaits it at its
        end."""
        for work in self._works:
            work.cancel()
        for work in self._works:
            try:
                await work
            except Failure:
                pass  # that it was cancelled
        self._works = []

    def _run_beside(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._works = [w for w in self._works if not w.done()]
        self._works.append(self._rank.start(coroutine))

    # ---- this rank asks

    def _of(self, key: str, answer: dict[str, Any], default: str | None) -> str:
        choice = answer["choice"] if answer["choice"] is not None else default
        if choice is None:
            made = Failure(f"no_common_config: {self._name}, key {key}: {answer['why']}; pass a default that works everywhere")
            made.code = "no_common_config"
            raise made
        return str(choice)

    async def _ask(self, key: str, times: Mapping[str, SupportsFloat] | None, cached: str | None) -> None:
        if key in self._known:
            return
        if times is None and cached is None:
            raise BadArgument(f"{self._name}, key {key}: pass the times that were measured, or what is cached; a rank with neither calls skip")
        try:
            measured = None if times is None else {str(candidate): float(seconds) for candidate, seconds in times.items()}
        except (AttributeError, TypeError, ValueError) as why:
            raise BadArgument(f"{self._name}, key {key}: times are seconds by candidate, as in {{'tile=64': 1.2e-3}}: {why}") from None
        self._asked += 1
        tag = self._asked
        await self._say(key, {"times": measured, "cached": cached}, tag)
        # The leader itself may wait for others so long.
        self._known[key] = await self._receive(self._leader, tag, 2 * self._patience)

    async def _say(self, key: str, what: dict[str, Any], tag: int) -> None:
        report = {"key": key, "tag": tag, **what}
        if (size := len(_written(report))) > _largest:
            raise BadArgument(f"{self._name}, key {key}: a report of {size} bytes is too long; at most {_largest} fit")
        await self._send(report, self._leader, _reports, 2 * self._patience)

    # A message is its size and its text, in this order.
    async def _send(self, what: Mapping[str, Any], to: int, tag: int, timeout: float | None = None) -> None:
        text = _written(what)
        size = len(text).to_bytes(8, "little")
        await self._pairs.start([self._pairs.isend(each, to=to, tag=tag, timeout=timeout) for each in (size, text)])

    async def _receive(self, source: int, tag: int, timeout: float) -> dict[str, Any]:
        size = bytearray(8)
        await self._pairs.start([self._pairs.irecv(size, source=source, tag=tag, timeout=timeout)])
        text = bytearray(int.from_bytes(size, "little"))
        await self._pairs.start([self._pairs.irecv(text, source=source, tag=tag, timeout=timeout)])
        read: dict[str, Any] = json.loads(text)
        return read

    # ---- the leader answers

    async def _serve(self, member: int) -> None:
        while True:
            try:
                said = await self._receive(member, _reports, timeout=1e8)
            except Failure as why:
                if why.code in ("cancelled", "closed"):
                    return
                self._gone.add(member)  # it is dead: nobody waits for it any more
                for question in self._questions.values():
                    await self._answer_if_all(question)
                return
            try:
                await self._hear(member, said.pop("key"), said.pop("tag"), said)
            except Exception as why:  # a report that makes no sense is no reason to leave the others without answers
                if isinstance(why, Failure) and why.code in ("cancelled", "closed"):
                    return
                warnings.warn(f"{self._name}: a report of rank {member} was not understood: {why}", stacklevel=2)

    async def _hear(self, member: int, key: str, tag: int, said: dict[str, Any]) -> None:
        is_new = key not in self._questions
        question = self._questions.setdefault(key, _Question())
        question.said.setdefault(member, said)
        if tag != _reports:
            question.waiting.append((member, tag))
        if question.answer is not None:
            await self._reply(question)
            return
        if is_new:
            self._run_beside(self._expire(question))
        await self._answer_if_all(question)

    async def _expire(self, question: _Question) -> None:
        await self._rank.sleep(self._patience)
        await self._answer(question)

    async def _answer_if_all(self, question: _Question) -> None:
        if all(r in question.said or r in self._gone for r in self._members):
            await self._answer(question)

    async def _answer(self, question: _Question) -> None:
        if question.answer is None:
            question.answer = decide(question.said, [r for r in self._members if r not in question.said])
        await self._reply(question)

    async def _reply(self, question: _Question) -> None:
        answer = question.answer or {}
        while question.waiting:
            member, tag = question.waiting.pop()
            if member in self._gone:
                continue
            try:
                await self._send(answer, member, tag)
            except Failure:
                self._gone.add(member)


"""A thread that moves calls on while the program does other things, as users of torch.distributed and of Ray expect."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Iterator

from . import _native
from .errors import Failure


class Progress:
    """Looks every millisecond, and less often after a while without calls."""

    shortest_s, longest_s = 0.001, 0.02
    between_looks_s = 0.0001  # while a GPU copies, which wakes nobody; the threads of the program have the GIL meanwhile

    def __init__(self, rank: _native.Rank) -> None:
        self.rank = rank
        self._waiting: list[None] = []  # an entry for each thread that drives the loop itself
        self._used = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="parley", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def not_needed(self) -> Iterator[None]:
        """While this thread drives the loop."""
        self._used += 1
        self._waiting.append(None)
        try:
            yield
        finally:
            self._waiting.pop()

    def end(self) -> None:
        self._is_over = True
        if self._thread is not threading.current_thread():
            self._thread.join()

    def after_turn(self) -> bool:
        """For what is to be done from the thread. True: there is more of it soon."""
        return False

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self.rank.fileno(), select.POLLIN)
        pause_s, used, has_more = self.shortest_s, 0, False
        while not self._is_over:
            pause_s = self.shortest_s if has_more or used != self._used else min(2 * pause_s, self.longest_s)
            used = self._used
            if self._waiting:
                time.sleep(pause_s)
                continue
            try:
                has_nothing_to_do = self.rank.poll()
            except Failure:
                return  # the rank has left
            has_more = self.after_turn()
            if has_nothing_to_do:
                ready.poll(1000 * pause_s)
            elif self.rank.gpu is not None:
                time.sleep(self.between_looks_s)

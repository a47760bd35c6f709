"""Actors of Ray join a job. Runs where Ray is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

PROGRAM = """
import os
import ray
import parley
import parley.ray

@ray.remote(num_cpus=0.1)
class Worker:
    def __init__(self, meeting, rank, timeout=60.0):
        self.joined = parley.ray.join(meeting, rank, timeout=timeout)
        self.rank = self.joined.rank
        self.pairs = parley.P2P(self.rank, "pairs")
        self.sums = parley.Collective(self.rank, "sums")

    def ring(self, text):
        theirs, n = bytearray(8), self.rank.world_size
        self.pairs.exchange([self.pairs.isend(text, to=(self.rank.id + 1) % n), self.pairs.irecv(theirs, source=(self.rank.id - 1) % n)])
        return bytes(theirs)

    def total(self):
        import array
        mine = array.array("q", [self.rank.id + 1])
        self.sums.all_reduce(mine)
        return mine[0]

    def receive(self, source):
        try:
            self.pairs.exchange([self.pairs.irecv(bytearray(1), source=source)])
        except parley.Failure as why:
            return why.code, why.peer

    def die(self):
        os._exit(1)

    def leave(self):
        return self.joined.leave()

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
"""


def ran(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + textwrap.dedent(script))
    paths = os.pathsep.join([str(Path(__file__).parents[0]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=110, cwd=tmp_path, check=False,
                          env={**os.environ, "PYTHONPATH": paths, "PARLEY_RESULTS": ""})


def test_actors_exchange_and_leave_and_meet_again(tmp_path: Path) -> None:
    made = ran(tmp_path, """
    for _ in range(2):
        meeting = parley.ray.meeting(3)
        workers = [Worker.remote(meeting, r) for r in range(3)]
        texts = ray.get([w.ring.remote(b"rank %d!!" % r) for r, w in enumerate(workers)])
        assert texts == [b"rank 2!!", b"rank 0!!", b"rank 1!!"], texts
        assert ray.get([w.total.remote() for w in workers]) == [6, 6, 6]
        assert ray.get([w.leave.remote() for w in workers]) == ["in_peace"] * 3
    print("well")
    """)
    assert made.returncode == 0 and "well" in made.stdout, made.stdout + made.stderr


def test_an_actor_that_dies_or_never_comes_is_an_error(tmp_path: Path) -> None:
    made = ran(tmp_path, """
    meeting = parley.ray.meeting(2)
    workers = [Worker.remote(meeting, r) for r in range(2)]
    waits = workers[0].receive.remote(1)
    workers[1].die.remote()
    assert ray.get(waits) == ("peer_failed", 1)
    for rank, text in ((0, "GetTimeoutError"), (5, "ranks of this meeting")):
        try:
            parley.ray.join(parley.ray.meeting(2), rank, timeout=5.0)
            raise AssertionError
        except (ray.exceptions.GetTimeoutError, parley.BadArgument) as why:
            assert text in repr(why), why
    print("well")
    """)
    assert made.returncode == 0 and "well" in made.stdout, made.stdout + made.stderr

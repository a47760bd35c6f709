"""Runs scripts as ranks of a job, as a user would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

# A shell that starts this in the background has it ignore Ctrl-C, and the ranks would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Job = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank in this process writes, such as results, goes there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """`job(script, ranks=2)`: the output of `python -m parley run`; no results are kept."""

    def run(script: str, ranks: int = 2, limit: int = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(script))
        command = [sys.executable, "-m", "parley", "run", "-n", str(ranks), "--time-limit", str(limit), str(program)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False,
                              env={**os.environ, "PARLEY_RESULTS": "", **environment})

    return run

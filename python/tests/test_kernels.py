"""Kernels with several implementations, by the names of torch.cuda.tunable."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from conftest import Job

import parley
from parley import tunable


def slowly(x: np.ndarray, y: np.ndarray) -> None:
    time.sleep(0.002)
    np.multiply(x, 2, out=y)


def quickly(x: np.ndarray, y: np.ndarray) -> None:
    np.multiply(x, 2, out=y)


def wrongly(x: np.ndarray, y: np.ndarray) -> None:
    y[:] = 3


def test_the_fastest_right_implementation_wins_and_is_remembered(tmp_path: Path) -> None:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    for again in (False, True):
        with parley.join() as rank:
            tunable.enable()
            tunable.set_max_tuning_duration(20)
            tunable.set_numerical_check_tolerances(True)
            tunable.set_filename(str(tmp_path / "kernels.csv"))
            if again:
                assert tunable.read_file()
            scale = parley.Kernel(rank, "scale", {"slow": slowly, "quick": quickly, "wrong": wrongly},
                                  key=lambda x, y: {"n": len(x), "dtype": str(x.dtype)}, outputs=lambda x, y: y)
            scale(x, y)
            assert (y == 2).all()
            assert scale.runs(x, y) == "quick"
            assert (scale.why(x, y) == "remembered") == again
            assert [r[:3] for r in tunable.get_results() if r[0] == "scale"] == [("scale", "dtype=float32 n=64", "quick")]
            assert tunable.write_file()


def test_exceptions_of_kernels_and_keys_come_out() -> None:
    def fails(x: object) -> None:
        raise OSError(x)

    with parley.join() as rank:
        tunable.enable()
        with pytest.raises(OSError, match="7"):
            parley.Kernel(rank, "one", {"fails": fails})(7)
        assert parley.Kernel(rank, "two", {"right": lambda x: None, "fails": fails})(7) is None
        with pytest.raises(parley.BadArgument, match="a comma"):
            parley.Kernel(rank, "three", {"a": fails, "b": fails}, key=lambda x: {"x": "1,2"})(7)
        first = parley.Kernel(rank, "four", {"a": fails})
        with pytest.raises(parley.BadArgument, match="four"):
            parley.Kernel(rank, "four", {"a": fails})
        del first
        assert tunable.get_validators()


def test_outputs_that_are_copies_and_an_interrupted_candidate() -> None:
    def interrupted(x: np.ndarray) -> None:
        raise KeyboardInterrupt

    with parley.join() as rank:
        tunable.enable()
        tunable.set_numerical_check_tolerances(True)
        x = np.ones(1 << 16)
        copies = parley.Kernel(rank, "copies", {"a": lambda x: None, "b": lambda x: None}, outputs=lambda x: x.copy())
        with pytest.raises(parley.BadArgument, match="returns copies"):
            copies(x)
        stopped = parley.Kernel(rank, "stopped", {"a": lambda x: None, "b": interrupted}, outputs=lambda x: x)
        with pytest.raises(KeyboardInterrupt):
            stopped(x)


def test_without_a_job_the_functions_say_so() -> None:
    with pytest.raises(RuntimeError, match="in no job"):
        tunable.enable()


def test_an_implementation_that_is_left_out_is_named_in_the_warnings_and_at_the_end(job: Job) -> None:
    made = job("""
import numpy as np
import parley

def double(x, y):
    np.multiply(x, 2, out=y)
def wrong(x, y):
    y[0] = 1
def broken(x, y):
    raise ValueError("no such card")

def main(rank):
    parley.tunable.enable()
    parley.tunable.set_numerical_check_tolerances(True)
    scale = parley.Kernel(rank, "scale", {"double": double, "wrong": wrong, "broken": broken}, key=lambda x, y: {"n": len(x)}, outputs=lambda x, y: y)
    scale(np.ones(100), np.empty(100))
    said = "".join(rank.warnings)
    assert "wrong is left out: wrong numbers" in said and "broken is left out: it throws" in said and "no such card" in said, said

raise SystemExit(parley.run(main))
""", ranks=1)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "wrong is left out: wrong numbers" in made.stderr and "no such card" in made.stderr, made.stderr

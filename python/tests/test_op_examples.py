"""The examples run with real processes, and find what is wrong by themselves."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/python"


def run_example(folder: Path, name: str, *words: str, ranks: int, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parley", "run", "-n", str(ranks), "--time-limit", "100", str(EXAMPLES / name), *words]
    # Ranks that share processors must not each compute on all of them.
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False,
                          env={**os.environ, "PARLEY_RESULTS": "", "OPENBLAS_NUM_THREADS": "1", **environment})


def ended_well(made: subprocess.CompletedProcess[str]) -> str:
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ring_has_the_known_sum(tmp_path: Path, ranks: int) -> None:
    out = ended_well(run_example(tmp_path, "ring_exchange.py", "--rounds", "2", ranks=ranks))
    assert out.count("out sums to 1609760640") == ranks, out


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_jacobi_has_the_known_norms(tmp_path: Path, ranks: int) -> None:
    out = ended_well(run_example(tmp_path, "jacobi.py", "--nx", "62", "--ny", "62", ranks=ranks))
    assert "sweep 0: the norm of the change is 0.039156981604" in out and "sweep 99: the norm of the change is 0.034620201974" in out, out


def test_jacobi_sweeps_blocks_of_one_row(tmp_path: Path) -> None:
    ended_well(run_example(tmp_path, "jacobi.py", "--nx", "5", "--ny", "2", "--sweeps", "7", ranks=4))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "FILE"])
def test_training_learns_with_every_schedule(tmp_path: Path, schedule: str) -> None:
    (tmp_path / "own").write_text("0F0,3F0,0F1,3F1,3B0,0B0,3B1,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n")
    words = ["--schedule", str(tmp_path / "own") if schedule == "FILE" else schedule, "--microbatches", "4", "--steps", "5"]
    out = ended_well(run_example(tmp_path, "training.py", *words, ranks=2))
    assert "the loss has fallen" in out and out.count("messages a pass") == 2, out


def test_ag_gemm_runs_one_implementation_on_all_ranks(tmp_path: Path) -> None:
    out = ended_well(run_example(tmp_path, "ag_gemm.py", "--rows", "64", ranks=3))
    lines = {line.split("main_ag_gemm/multiply, ")[1] for line in out.splitlines() if "main_ag_gemm/multiply, k=256 m=64 n=256: " in line}
    assert len(lines) == 1 and out.count("main_ag_gemm/multiply") == 3, out
    log = (tmp_path / ".autotune_logs/rank-2.log").read_text()
    assert all(name in log for name in ("{whole}", "{blocks(rows=16)}", "{blocks(rows=64)}")), log


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_of_triton_are_implementations_too(tmp_path: Path) -> None:
    size = ["--rows", "40", "--inner", "40", "--columns", "40"]
    ended_well(run_example(tmp_path, "ag_gemm.py", *size, ranks=2, TRITON_INTERPRET="1"))
    log = (tmp_path / ".autotune_logs/rank-0.log").read_text()
    assert "{triton(tile=32)} | measure-iter: 2" in log and "{triton(tile=64)} | measure-iter: 2" in log, log

"""The programs of examples/python, as their first lines say to start them: with real processes, and on virtual ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples/python"


def run(folder: Path, *words: str) -> str:
    """Returns what the program has printed; fails if it has failed."""
    made = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder, check=False, timeout=100,
                          env={**os.environ, "PARLEY_RESULTS": ""})
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def both_ways(tmp_path: Path, program: str, ranks: int) -> list[str]:
    path = str(FOLDER / program)
    return [run(tmp_path, path, "--sim", str(ranks)),
            run(tmp_path, "-m", "parley", "run", "-n", str(ranks), "--time-limit", "90", path)]


def test_every_program_begins_with_what_it_shows_and_what_had_to_change() -> None:
    programs = ["leaders_and_workers.py", "mixed_cluster.py", "paired_transfer.py", "roles.py"]
    for program in programs:
        text = (FOLDER / program).read_text()
        assert "parley run -n" in text and "What had to change from the way the design writes it, and why:" in text
        assert len(text.splitlines()) < 130


def test_example_1_pairs_halves_by_their_ids(tmp_path: Path) -> None:
    virtual, real = both_ways(tmp_path, "paired_transfer.py", 2)
    for printed in (virtual, real):
        assert "left out: compressed: the receiver has no function for it" in printed
    assert "chunked(chunk_bytes=262144 in_flight=4) - " in virtual  # on real ranks, the load of the machine decides how soon


def test_example_1_leaves_a_third_rank_alone(tmp_path: Path) -> None:
    assert "left out" in run(tmp_path, str(FOLDER / "paired_transfer.py"), "--sim", "3")


def test_example_2_lets_each_role_choose(tmp_path: Path) -> None:
    for printed in both_ways(tmp_path, "roles.py", 3):
        for rank, role in enumerate(["prepare", "scale", "add"]):
            assert f"rank {rank}, {role}: " in printed, printed
        assert "rank 0, prepare: operation" in printed


@pytest.mark.parametrize("ranks", [4, 6])
def test_example_3_adds_up_in_groups_and_among_leaders(tmp_path: Path, ranks: int) -> None:
    for printed in both_ways(tmp_path, "leaders_and_workers.py", ranks):
        assert f"each element is {ranks * (ranks + 1) // 2} times the pattern" in printed, printed
        assert printed.count("group of rank") == (ranks + 3) // 4


def test_example_3_sums_16_virtual_ranks_to_136(tmp_path: Path) -> None:
    assert "each element is 136 times" in run(tmp_path, str(FOLDER / "leaders_and_workers.py"), "--sim", "16")


def test_the_heterogeneous_all_reduce_runs_a_mixture(tmp_path: Path) -> None:
    virtual, real = both_ways(tmp_path, "mixed_cluster.py", 4)
    for rank, (kind, runs) in enumerate([("H100", "h100_optimized")] * 2 + [("A100", "nccl")] * 2):
        assert f"rank {rank} ({kind}) runs {runs}" in virtual, virtual
        assert f"rank {rank} ({kind}) runs " in real, real
    for rank in (2, 3):
        assert f"rank {rank} (A100) runs h100_optimized" not in real  # it cannot

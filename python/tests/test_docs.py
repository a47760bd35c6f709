"""Runs the Python of the pages. A comment before each block says how, and no reader sees it:

    <!-- python: parley run -n 2 -->                  as two ranks of the command parley
    <!-- python: torchrun 2; needs: torch -->         as two ranks of torchrun
    <!-- python: alone -->  <!-- python: ray -->      as one process

`needs: gpu` skips the block where there is none. `status: any` allows an error at the end. Further lines of the comment are code that the block takes for granted.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_torch import launched

import parley

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"(?:<!-- python: ([^\n]*?)(?: -->|\n(.*?)-->)\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted(DOCS.glob("python*.md"))
SNIPPETS = [pytest.param(page, found, id=f"{page.stem}-{page.read_text()[:found.start()].count(chr(10)) + 1}")
            for page in PAGES for found in BLOCK.finditer(page.read_text())]


@pytest.mark.skipif(not PAGES, reason="the pages are not here")
def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 10


@pytest.mark.parametrize(("page", "found"), SNIPPETS)
def test_a_snippet_runs(page: Path, found: re.Match[str], tmp_path: Path) -> None:
    how, before, code = found.groups()
    assert how, f"{page.name}: a block of Python without a comment that says how to run it"
    way, *rest = how.split("; ")
    said = dict(part.split(": ") for part in rest)
    needs = re.findall(r"^import (numpy|torch|ray)\b", code, re.MULTILINE) + [n for n in [said.get("needs")] if n]
    if "gpu" in needs:
        needs.remove("gpu")
        if why := parley.cuda.why_not():
            pytest.skip(f"needs a GPU: {why}")
    for module in needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    script = (before or "") + code
    if way.startswith("torchrun"):
        made = launched(tmp_path, script, int(way.split()[1]))
    else:
        program = tmp_path / "program.py"
        program.write_text(script)
        command = [sys.executable, *(["-m", *way.split()] if way.startswith("parley") else []), str(program)]
        made = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=110,
                              env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})
    assert made.returncode == 0 or said.get("status") == "any", made.stdout + made.stderr
    # What the page says that the program prints.
    for shown in re.findall(r"print\(.*# (.*)$", code, re.MULTILINE):
        assert all(part.strip() in made.stdout for part in shown.split("…")), made.stdout + made.stderr

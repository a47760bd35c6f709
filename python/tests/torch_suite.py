"""Runs PyTorch's own tests of torch.distributed against the backend "parley", on the host, and prints which pass.

    python torch_suite.py                          # the tests of what parley has, with 3 ranks
    python torch_suite.py --ranks 2 --filter send  # those whose names have "send" in them
    python torch_suite.py --backend gloo           # the same with another backend, to compare

The tests come with torch, in torch.testing._internal.distributed.distributed_test; they need the packages expecttest and hypothesis. They
are those that torch runs for gloo, its backend for the host, and those of all-to-all. Each rank is a process. The status is 1 if a test
fails that is not named in KNOWN.
"""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

# What the names of the tests begin with, after "test_".
CHOSEN = ("get_rank", "get_backend", "destroy", "Backend_enum", "new_subgroups", "batch_isend_irecv", "send_recv", "isend", "irecv",
          "broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather", "all_to_all", "barrier", "monitored_barrier",
          "sparse_all_reduce", "get_future", "DistributedDataParallelCPU", "ddp_", "average_parameters", "accumulate_gradients", "static_graph",
          "nccl_backend_bool", "coalescing", "undefined_grad", "different_graph", "verify_model", "post_localSGD", "SyncBatchNorm")
# Failures that parley does not mend, and why.
KNOWN = {
    "test_barrier_timeout_full_group": "the error is parley's, in other words than gloo's",
    "test_barrier_timeout_global": "the error is parley's, in other words than gloo's",
    "test_barrier_timeout_group": "the error is parley's, in other words than gloo's",
    "test_sparse_all_reduce_sum": "parley exchanges dense tensors",
}


class Table(unittest.TestResult):
    """A line for each test."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, int] = {}
        self.unknown: list[str] = []
        self.began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802: unittest's name
        super().startTest(test)
        self.began = time.monotonic()

    def row(self, test: unittest.TestCase, verdict: str, why: str = "") -> None:
        self.rows[verdict] = self.rows.get(verdict, 0) + 1
        name, took_s = test.id().rpartition(".")[2], time.monotonic() - self.began
        print(f"{verdict:8} {name:60} {took_s:6.1f} s  {why}", file=sys.__stdout__, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.row(test, "passes")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.row(test, "skipped", reason.splitlines()[0] if reason else "")

    def failed(self, test: unittest.TestCase, text: str) -> None:
        name = test.id().rpartition(".")[2]
        if name in KNOWN:
            self.row(test, "known", KNOWN[name])
            return
        self.unknown.append(name)
        errors = re.findall(r"^\w[\w.]*(?:Error|Exception|Failure|Failed|Argument|Timeout)\b.*$", text, re.MULTILINE)
        inner = [e for e in errors if "exited with error code" not in e and "Process" not in e[:40]]
        self.row(test, "FAILS", (inner or errors or [""])[-1][:160])
        if os.environ.get("VERBOSE"):
            print(text, file=sys.__stdout__)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.failed(test, self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.failed(test, self._exc_info_to_string(err, test))  # type: ignore[attr-defined]


def suite(backend: str, pattern: str) -> unittest.TestSuite:
    """The tests, whose ranks are forked: torch is imported once."""
    os.environ["BACKEND"] = "gloo"  # the decorators of the tests choose by this name
    from torch.testing._internal.distributed import distributed_test as of_torch

    if backend == "parley":
        import parley.torch  # noqa: F401
    of_torch.BACKEND = backend

    class Tests(of_torch.TestDistBackend, of_torch.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._fork_processes()

        def _fork_processes(self) -> None:
            import torch

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def run_test(self, test_name: str, parent_pipe: Any) -> None:
            if test_name.startswith("test_accumulate_gradients"):
                of_torch.BACKEND = "gloo"  # which these tests read to choose the host
            super().run_test(test_name, parent_pipe)

    # On the host, torch runs these for MPI only, and those of groups with few ranks, too.
    for name in dir(Tests):
        if name.startswith("test_all_to_all") and "cuda" not in name:
            getattr(Tests, name).__unittest_skip__ = False
    os.environ["BACKEND"] = "mpi"
    names = [n for n in unittest.TestLoader().getTestCaseNames(Tests)
             if n.removeprefix("test_").startswith(CHOSEN) and pattern in n and "cuda" not in n and "_nccl" not in n]
    return unittest.TestSuite(Tests(n) for n in names)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=3)
    options.add_argument("--filter", default="")
    options.add_argument("--backend", default="parley")
    chosen = options.parse_args()
    os.environ.update(WORLD_SIZE=str(chosen.ranks), OMP_NUM_THREADS="1", PARLEY_RESULTS="")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        for name in ("barrier", "init_dir", "test_dir"):
            Path(folder, name).mkdir()
        table = Table()
        with contextlib.redirect_stdout(io.StringIO()):
            suite(chosen.backend, chosen.filter).run(table)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(table.rows.items())))
    if table.unknown:
        print("fail:", " ".join(table.unknown))
    return 1 if table.unknown else 0


if __name__ == "__main__":
    sys.exit(main())

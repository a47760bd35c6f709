"""The functions of torch.cuda.tunable, for the kernels of this process's rank (`parley.current()`)."""

from __future__ import annotations

import os
from typing import Any

from . import current, tunables
from .errors import Failure


def enable(val: bool = True) -> None:
    """Switches tunable operations on or off."""
    tunables(current()).enable(val)


def is_enabled() -> bool:
    return tunables(current()).is_enabled()


def tuning_enable(val: bool = True) -> None:
    """Off: remembered results are used, and nothing is tried."""
    tunables(current()).tuning_enable(val)


def tuning_is_enabled() -> bool:
    return tunables(current()).tuning_is_enabled()


def record_untuned_enable(val: bool = True) -> None:
    """On: keys that run their default because tuning is off are listed in a file."""
    tunables(current()).record_untuned_enable(val)


def record_untuned_is_enabled() -> bool:
    return tunables(current()).record_untuned_is_enabled()


def set_max_tuning_duration(duration: int) -> None:
    """In milliseconds, for each implementation; 0: no limit."""
    tunables(current()).set_max_tuning_duration(duration)


def get_max_tuning_duration() -> int:
    return tunables(current()).get_max_tuning_duration()


def set_max_tuning_iterations(iterations: int) -> None:
    tunables(current()).set_max_tuning_iterations(iterations)


def get_max_tuning_iterations() -> int:
    return tunables(current()).get_max_tuning_iterations()


def set_filename(filename: str, insert_device_ordinal: bool = False) -> None:
    """The file of results. `insert_device_ordinal`: inserts the rank's number into its name."""
    tunables(current()).set_filename(filename, insert_device_ordinal)


def get_filename() -> str:
    return tunables(current()).get_filename()


def get_results() -> list[Any]:
    """Tuples of kernel, key, implementation and milliseconds."""
    return tunables(current()).get_results()


def get_validators() -> list[Any]:
    return tunables(current()).get_validators()


def write_file_on_exit(val: bool) -> None:
    tunables(current()).write_file_on_exit(val)


def write_file(filename: str | None = None) -> bool:
    """Writes all known results. False: there are none, or they could not be written there. Then a copy lies in a spare folder, and a warning
    says which."""
    its = tunables(current())
    asked = filename or its.get_filename()
    try:
        written = its.write_file(asked)
    except Failure as why:
        if why.code not in ("unavailable", "io"):
            raise
        return False
    return os.path.dirname(os.path.abspath(written)) == os.path.dirname(os.path.abspath(asked))


def read_file(filename: str | None = None) -> bool:
    """Adds the results of a file. False: there is none, or it is of another machine."""
    try:
        tunables(current()).read_file(filename or "")
    except Failure as why:
        if why.code not in ("unavailable", "malformed", "bad_argument"):
            raise
        return False
    return True


def set_rotating_buffer_size(buffer_size: int) -> None:
    """In MiB: so much other data is written before each timed run. 0: none."""
    tunables(current()).set_rotating_buffer_size(buffer_size)


def get_rotating_buffer_size() -> int:
    return tunables(current()).get_rotating_buffer_size()


def set_numerical_check_tolerances(enable: bool, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """On: an implementation whose outputs differ from the default's by more never wins."""
    tunables(current()).set_numerical_check_tolerances(enable, atol, rtol)


def tune_gemm_in_file(filename: str) -> dict[str, Any]:
    """Tunes the multiplications that a file lists. Returns how many were tuned and known, and what was left out."""
    return tunables(current()).tune_gemm_in_file(filename)

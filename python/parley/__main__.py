"""`python -m parley …` is the command parley. `run` starts Python programs with this interpreter."""

from __future__ import annotations

import os
import pathlib
import sys


def command_line(words: list[str]) -> list[str]:
    """The words for the command: a program that ends in .py is run by this interpreter."""
    if words[:1] != ["run"]:
        return words
    takes_value = {"-n", "--ranks", "--restarts", "--hosts", "--host", "--rendezvous", "--hostfile", "--ssh", "--time-limit", "--output"}
    at = 1
    while at < len(words) and words[at] != "--" and words[at].startswith("-"):
        at += 2 if words[at] in takes_value else 1
    options = words[:at]
    rest = words[at + 1:] if words[at:at + 1] == ["--"] else words[at:]
    if rest and rest[0].endswith(".py"):
        rest = [sys.executable, *rest]
    return [*options, "--", *rest]


def main() -> None:
    command = pathlib.Path(__file__).parent / "bin" / "parley"
    # The command finds UCX where the extension does.
    import libucx  # noqa: PLC0415

    folder = pathlib.Path(libucx.__file__).parent / "lib"
    known = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{known}" if known else str(folder)
    os.environ.setdefault("UCX_MEM_MMAP_HOOK_MODE", "none")
    os.execv(command, [str(command), *command_line(sys.argv[1:])])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compiles the C++ of README.md and docs/*.md, so that what they show is today's interface.

    snippets.py --build build/release      with the options that the build compiles examples/send_recv.cpp with

A block that begins ```cpp is a program or part of one; includes of parley are put before it. Code that is no declaration stands in the body
of a rank's function, where `self` is the rank. What a block takes for granted, such as functions of the reader's own, stands in a comment before it, which no reader
sees: <!-- code: void interior(std::vector<double>&); -->. A block with the sign … is not compiled.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

from compile_options import options_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:<!-- code: (.*?) -->\s*)?^```cpp\n(.*?)^```", re.MULTILINE | re.DOTALL)
BEFORE = """#include <parley/parley.hpp>
#include <parley/program.hpp>
#include <cstdio>
#include <span>
#include <string>
#include <vector>
using namespace parley::literals;
"""
DECLARATIONS = re.compile(r"\bint main\(|^(struct|class|parley::task<>) ", re.MULTILINE)


def unit_of(pages):
    """One source for all blocks, each in a namespace of its own, so that parley's headers are read once; and how many there are. The
    compiler names page and line."""
    includes, blocks = [], []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            given, code = found.groups()
            if "…" in code:
                continue
            includes += re.findall(r"^#include .*", code, re.MULTILINE)
            code = re.sub(r"^#include .*", "", code, flags=re.MULTILINE)
            before = given or ""
            after = ""
            if not DECLARATIONS.search(code):
                before += "\nparley::task<> snippet(parley::rank& self) { static_cast<void>(self);"
                after = "co_return; }\n"
            line = text.count("\n", 0, found.start(2)) + 1
            blocks.append(f'namespace snippet_{len(blocks)} {{\n{before}\n#line {line} "{page}"\n{code}{after}}}\n')
    return "\n".join([BEFORE, *includes, *blocks]), len(blocks)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", required=True, type=pathlib.Path)
    arguments.add_argument("pages", nargs="*", type=pathlib.Path, help="none: README.md and docs/*.md")
    chosen = arguments.parse_args()
    unit, count = unit_of(chosen.pages or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    found = options_of(chosen.build, "examples/send_recv.cpp")
    if found is None:
        print(f"{chosen.build} does not compile examples/send_recv.cpp, whose options are needed: configure it with examples")
        return 1
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
        file.write(unit)
        file.flush()
        status = subprocess.run([*found[0], "-w", "-fsyntax-only", file.name]).returncode
    print(f"{count} snippets were compiled")
    return 1 if status != 0 or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

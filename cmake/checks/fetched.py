#!/usr/bin/env python3
"""Builds a project that takes these sources by FetchContent, as docs/embedding.md says, and runs its program in one process and on virtual ranks."""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
add_executable(program program.cpp)
{lines}
"""


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", required=True, type=pathlib.Path)
    options.add_argument("--more", nargs="*", default=[], help="options of CMake")
    arguments = options.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    page = (ROOT / "docs/embedding.md").read_text(encoding="utf-8")
    lines = next(block for block in re.findall(r"^```cmake\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if "FetchContent" in block)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "program.cpp").write_text(re.search(r"^```cpp\n(.*?)^```", readme, re.DOTALL | re.MULTILINE).group(1))
    (folder / "CMakeLists.txt").write_text(PROJECT.format(lines=lines))
    build = folder / "build"
    # The page names a repository; it is these files here. They are another project's part, whose warnings end no build of it.
    subprocess.run(["cmake", "-G", "Ninja", "-S", folder, "-B", build, f"-DFETCHCONTENT_SOURCE_DIR_PARLEY={ROOT}",
                    "-DCMAKE_BUILD_TYPE=Release", *arguments.more], check=True)
    subprocess.run(["cmake", "--build", build, "--target", "program"], check=True)
    said = subprocess.run([build / "program", "--sim", "2"], check=True, text=True, stdout=subprocess.PIPE).stdout
    print(said, end="")
    if "activations 0->1 4MiB: direct" not in said:
        print("the program has not decided what the README shows")
        return 1
    print("a project that fetches parley was built and run")
    return 0


if __name__ == "__main__":
    sys.exit(main())

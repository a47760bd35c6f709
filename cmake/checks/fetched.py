#!/usr/bin/env python3
"""Builds a project that takes these sources by FetchContent, as docs/embedding.md says, and runs the README's program on two virtual ranks."""

import argparse
import pathlib
import subprocess
import sys

from page_blocks import ROOT, first_block

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
add_executable(program program.cpp)
{lines}
"""


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", required=True, type=pathlib.Path)
    arguments = options.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.cpp").write_text(first_block("README.md", "cpp"))
    (folder / "CMakeLists.txt").write_text(PROJECT.format(lines=first_block("docs/embedding.md", "cmake", holding="FetchContent")))
    build = folder / "build"
    # The page names a repository. CMake takes these files in its place.
    subprocess.run(["cmake", "-G", "Ninja", "-S", folder, "-B", build, f"-DFETCHCONTENT_SOURCE_DIR_PARLEY={ROOT}",
                    "-DCMAKE_BUILD_TYPE=Release"], check=True)
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

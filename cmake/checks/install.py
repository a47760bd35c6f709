#!/usr/bin/env python3
"""Installs a build into an empty folder, and builds and runs a program there that knows only find_package(parley)."""

import argparse
import pathlib
import subprocess
import sys
import tempfile

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(parley REQUIRED)
add_executable(consumer consumer.cpp)
target_link_libraries(consumer PRIVATE parley::parley)
"""

PROGRAM = """
#include <parley/runtime/error.hpp>
#include <cstdio>
int main() {
  const parley::runtime::error late{parley::runtime::errc::timeout, "rank 1 sent nothing; is it running?"};
  std::puts(late.what().c_str());
}
"""

EXPECTED = "timeout: rank 1 sent nothing; is it running?\n"


def run(*command):
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", required=True, type=pathlib.Path)
    options.add_argument("--compiler", default="c++")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "CMakeLists.txt").write_text(PROJECT)
        (root / "consumer.cpp").write_text(PROGRAM)
        run("cmake", "--install", arguments.build, "--prefix", root / "prefix")
        run("cmake", "-G", "Ninja", "-S", root, "-B", root / "build", f"-DCMAKE_PREFIX_PATH={root}/prefix",
            f"-DCMAKE_CXX_COMPILER={arguments.compiler}")
        run("cmake", "--build", root / "build")
        output = subprocess.run([root / "build/consumer"], check=True, capture_output=True, text=True).stdout
    if output != EXPECTED:
        print(f"the consumer printed {output!r}, expected {EXPECTED!r}")
        return 1
    print("an installed parley was found, linked and run")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Installs the Debian package on a clean Debian 12 and there builds and runs the README's program, found by CMake and by pkg-config: on virtual
ranks, and in two processes. Needs root, debootstrap and a mirror of Debian. What debootstrap has made stays in FOLDER for the next time."""

import argparse
import pathlib
import shutil
import subprocess
import sys

from page_blocks import first_block

TOOLS = "g++ cmake ninja-build pkg-config"
FOUND = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
{lines}
"""
WORDS = """
set -eux
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends /trial/*.deb {tools}
cd /trial
cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -S . -B build
cmake --build build
g++ -std=c++20 -O2 program.cpp $(pkg-config --cflags --libs parley) -o by_pkg_config
for program in build/program ./by_pkg_config; do
  $program --sim 2 | tee simulated
  grep -q 'activations 0->1 4MiB: direct' simulated
  parley run -n 2 $program | tee real
  grep -q 'activations 0->1 4MiB' real
done
parley doctor
"""


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--package", required=True, type=pathlib.Path)
    options.add_argument("--folder", required=True, type=pathlib.Path)
    options.add_argument("--suite", default="bookworm")
    arguments = options.parse_args()
    made, fresh = arguments.folder / arguments.suite, arguments.folder / "trial"
    if not (made / "made").exists():
        shutil.rmtree(made, ignore_errors=True)
        made.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["debootstrap", "--variant=minbase", arguments.suite, made], check=True)
        (made / "made").touch()
    shutil.rmtree(fresh, ignore_errors=True)
    subprocess.run(["cp", "-a", made, fresh], check=True)
    trial = fresh / "trial"
    trial.mkdir()
    (trial / "program.cpp").write_text(first_block("README.md", "cpp"))
    (trial / "CMakeLists.txt").write_text(FOUND.format(
        lines=first_block("README.md", "cmake").replace("target_link_libraries", "add_executable(program program.cpp)\ntarget_link_libraries")))
    (trial / "run.sh").write_text(WORDS.format(tools=TOOLS))
    shutil.copy(arguments.package, trial)
    # What is mounted goes with the namespace.
    inside = "mount --rbind /dev $0/dev && mount -t proc proc $0/proc && exec chroot $0 bash /trial/run.sh"
    subprocess.run(["unshare", "--mount", "bash", "-c", inside, fresh], check=True)
    shutil.rmtree(fresh)
    print(f"{arguments.package.name} was installed on a clean Debian ({arguments.suite}), and the README's program was built and run")
    return 0


if __name__ == "__main__":
    sys.exit(main())

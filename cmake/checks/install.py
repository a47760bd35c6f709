#!/usr/bin/env python3
"""Installs a build twice, moves it elsewhere, and uses it as a stranger would: the command tunes, and two ranks of a program that
knows only find_package(parley), or only pkg-config, send each other a message. All must load the UCX that the build was made with. Headers
beside include/parley are installed only where those include them."""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
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
#include <parley/parley.hpp>
#include <cstdio>
#include <vector>

parley::task<> rank_main(parley::rank& self) {
  parley::transfer numbers(self, {
      .name = "numbers",
      .role = [](parley::rank_id r) { return r == 0 ? parley::role::sender : parley::role::receiver; },
      .configs = {parley::configs::direct()}});
  std::vector<int> some(1000, self.id() == 0 ? 42 : 0);
  if (self.id() == 0) {
    co_await numbers.send(some, {.to = 1});
  } else {
    co_await numbers.receive(some, {.from = 0});
    std::printf("rank 1 of %u has %d\\n", self.world_size(), some.back());
  }
}

int main(int argc, char** argv) { return parley::run(argc, argv, rank_main); }
"""

EXPECTED = "rank 1 of 2 has 42\n"
SPEC = pathlib.Path(__file__).resolve().parents[2] / "examples/specs/send-recv.json"
# Nothing may help the installed files to find UCX.
PLAIN = {name: value for name, value in os.environ.items() if name not in ("UCX_ROOT", "LD_LIBRARY_PATH")}


def run(*command):
    print("+", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, env=PLAIN, text=True, stdout=subprocess.PIPE).stdout


def tree(folder):
    """Each file's mode and content, and each link's target, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        what = os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, what)
    return found


def ucx_of(parley):
    found = {each["name"]: each["value"] for each in json.loads(run(parley, "doctor", "--json"))["validators"]}
    return found["PARLEY_UCX"]


def prefix_has_ucx(prefix):
    return any(prefix.rglob("libucp.so"))


def missing_headers(include):
    """Includes of installed headers that lead nowhere, and headers that no public one leads to."""
    headers = {str(path.relative_to(include)): path.read_text(encoding="utf-8") for path in include.rglob("*.hpp")}
    included = {name: re.findall(r"^#include <(parley/.*)>$", text, re.MULTILINE) for name, text in headers.items()}
    wanted = {target for targets in included.values() for target in targets}
    public = {name for name in headers if name.count("/") == 1}
    return sorted(wanted - headers.keys()), sorted(headers.keys() - wanted - public)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", required=True, type=pathlib.Path)
    options.add_argument("--compiler", default="c++")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "CMakeLists.txt").write_text(PROJECT)
        (root / "consumer.cpp").write_text(PROGRAM)
        run("cmake", "--install", arguments.build, "--prefix", root / "first")
        once = tree(root / "first")
        run("cmake", "--install", arguments.build, "--prefix", root / "first")
        if tree(root / "first") != once:
            print("the second installation differs from the first one")
            return 1
        (root / "first").rename(root / "prefix")
        missing, needless = missing_headers(root / "prefix/include")
        if missing or needless:
            print(f"not installed, and included by what is: {missing}; installed, and included by nothing: {needless}")
            return 1
        parley = root / "prefix/bin/parley"
        expected, found = ucx_of(arguments.build / "cli/parley"), ucx_of(parley)
        if found != expected:
            print(f"the installed command loads UCX {found}, and it was built with {expected}")
            return 1
        tuned = json.loads(run(parley, "tune", SPEC, "--no-results", "--budget", "1", "--microbatches", "2000", "--json"))
        if not tuned["ok"]:
            print("the installed command could not tune", SPEC)
            return 1
        run("cmake", "-G", "Ninja", "-S", root, "-B", root / "build", f"-DCMAKE_PREFIX_PATH={root}/prefix",
            f"-DCMAKE_CXX_COMPILER={arguments.compiler}")
        run("cmake", "--build", root / "build")
        consumers = [root / "build/consumer"]
        if shutil.which("pkg-config"):
            place = next((root / "prefix").rglob("parley.pc")).parent
            words = shlex.split(run("env", f"PKG_CONFIG_PATH={place}", "pkg-config", "--cflags", "--libs", "parley"))
            run(arguments.compiler, "-std=c++20", root / "consumer.cpp", *words, "-o", root / "by_pkg_config")
            consumers.append(root / "by_pkg_config")
        else:
            print("pkg-config is not installed: nothing was built with it")
        for consumer in consumers:
            output = run(parley, "run", "-n", "2", "--no-prefix", consumer)
            if output != EXPECTED:
                print(f"{consumer.name} printed {output!r}, expected {EXPECTED!r}")
                return 1
            ucx = re.findall(r"libucp\.so\S* => (\S+)", run("ldd", consumer))
            if not ucx or (prefix_has_ucx(root / "prefix") and not ucx[0].startswith(str(root))):
                print(f"{consumer.name} loads UCX from {ucx}")
                return 1
    print("an installed parley was found, linked and run")
    return 0


if __name__ == "__main__":
    sys.exit(main())

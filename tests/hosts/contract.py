#!/usr/bin/env python3
"""Runs the contract of links (tests/links) on UCX over TCP between two network namespaces. A forwarder delays, drops and reorders
their packets.

    contract.py TEST_LINKS FORWARDER [SEED]

Exits with 77, which CTest shows as skipped, if the machine does not permit it.
"""

import os
import subprocess
import sys

import hosts

WEATHER = ("--delay_us", "100", "--jitter_us", "200", "--drop", "2", "--reorder", "20")


def main(test_links, forwarder, seed="1"):
    try:
        with hosts.two() as spaces, hosts.joined_by(forwarder, spaces, *WEATHER, "--seed", seed):
            return subprocess.run([test_links, "--test-case=UCX between two hosts*", "--no-skip"],
                                  env=os.environ | {"PARLEY_TEST_HOSTS": ",".join(spaces)}).returncode
    except hosts.Missing as why:
        print(f"skipped: {why}", file=sys.stderr)
        return hosts.SKIPPED


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))

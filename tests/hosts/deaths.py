#!/usr/bin/env python3
"""Measures how soon ranks hear of the death of a rank on another host. Two network namespaces with two and three ranks are the hosts.

    deaths.py TEST_FIRE [killed|stopped|cut|told|standing|headless]...

Ranks 0 and 1 are on the first host, ranks 2 to 4 on the second. Rank 0 sends to rank 3 and rank 1 to rank 2 without end; rank 4 is idle.

    killed      rank 2 is killed
    stopped     rank 2 is stopped
    cut         the cable between the hosts is cut
    told        the cable is cut just before rank 1 is killed, so rank 0 cannot tell the other host of that death
    standing    rank 0, which hosts the rendezvous, is stopped; when all know of it, rank 2 is stopped
    headless    the same, but rank 0 is killed

Exits with 77, which CTest shows as skipped, if the machine does not permit it.
"""

import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

import hosts

HOST_OF = (0, 0, 1, 1, 1)
RANKS = len(HOST_OF)
JOINED_LIMIT_S = 60
WITHIN_S = 15  # TCP gives a host up after 10 s; the rest is for a busy machine


def start(spaces, folder, program):
    common = os.environ | hosts.job_variables(folder) | {
        "PARLEY_WORLD": str(RANKS), "PARLEY_TEST_SCENARIO": "pairs"}
    for rank, host in enumerate(HOST_OF):
        shared = pathlib.Path(folder, f"shared{host}")  # memory that the ranks of one host share
        shared.mkdir(exist_ok=True)
        here = ["sh", "-c", 'mount --bind "$0" /dev/shm; exec "$@"', str(shared), program]
        yield subprocess.Popen(hosts.on_host(spaces, host, [*here, "-tc=this program as one rank", "-ns"]),
                               env=common | {"PARLEY_RANK": str(rank), "PARLEY_LOCAL_SIZE": str(HOST_OF.count(host)),
                                             "PARLEY_LOCAL_RANK": str(rank - HOST_OF.index(host))},
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Listener:
    """The output of the ranks so far."""

    def __init__(self, ranks):
        self.files = {rank.stdout.fileno(): number for number, rank in enumerate(ranks)}
        self.said = [[] for _ in ranks]

    def until(self, limit_s, done):
        """Reads output until `done()` holds or `limit_s` seconds have passed; returns whether it holds."""
        until = time.monotonic() + limit_s
        while not done() and time.monotonic() < until:
            for fd in select.select(list(self.files), [], [], 0.02)[0]:
                text = os.read(fd, 1 << 16).decode(errors="replace")
                self.said[self.files[fd]].append(text)
                if not text:
                    del self.files[fd]
        return done()

    def says(self, rank, *words):
        return any(all(word in line for word in words) for line in "".join(self.said[rank]).splitlines())


def cut(spaces, ranks):
    hosts.ip("-n", spaces[0], "link", "set", "pa", "down")


def signalled(rank, what):
    return lambda spaces, ranks: ranks[rank].send_signal(what)


# Per fault, in order: what happens, and which rank must then hear of which. When a pair over the cable is cut, each end hears that the
# other one is gone.
FAULTS = {
    "killed": [(signalled(2, signal.SIGKILL), {1: "rank 2"})],
    "stopped": [(signalled(2, signal.SIGSTOP), {1: "rank 2"})],
    "cut": [(cut, {1: "rank 2", 0: "rank 3", 3: "rank 0"})],
    "told": [(lambda *both: (cut(*both), signalled(1, signal.SIGKILL)(*both)), {0: "rank 3", 3: "rank 0"})],
    "standing": [(signalled(0, signal.SIGSTOP), {3: "rank 0"}), (signalled(2, signal.SIGSTOP), {1: "rank 2"})],
    "headless": [(signalled(0, signal.SIGKILL), {3: "rank 0"}), (signalled(2, signal.SIGSTOP), {1: "rank 2"})],
}


def try_one(fault, program):
    with tempfile.TemporaryDirectory() as folder, hosts.two() as spaces:
        hosts.join_by_cable(spaces)
        ranks = list(start(spaces, folder, program))
        try:
            heard = Listener(ranks)
            fine = heard.until(JOINED_LIMIT_S, lambda: all(heard.says(r, f"here is rank {r}") for r in range(RANKS)))
            heard.until(1, lambda: False)  # lets messages flow for 1 s
            for strike, survivors in FAULTS[fault]:
                began = time.monotonic()
                strike(spaces, ranks)
                fine = fine and heard.until(WITHIN_S, lambda: all(
                    heard.says(r, "peer_failed", f"on rank {r}", f"{who} is gone") for r, who in survivors.items()))
                print(f"{fault}: {'noticed' if fine else 'NOT noticed'} after {time.monotonic() - began:.1f} s", flush=True)
            if not fine:
                for rank, said in enumerate(heard.said):
                    print(f"--- rank {rank}\n{''.join(said)}", file=sys.stderr)
            return fine
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def main(program, *faults):
    try:
        return 0 if all([try_one(fault, program) for fault in faults or FAULTS]) else 1
    except hosts.Missing as why:
        print(f"skipped: {why}", file=sys.stderr)
        return hosts.SKIPPED


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))

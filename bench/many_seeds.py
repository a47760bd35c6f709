#!/usr/bin/env python3
"""Runs a campaign of the simulator on all cores of a machine, in parts that need not all be run at once.

    python3 bench/many_seeds.py --sim build/release/parley_sim --seeds 40000 --ledger seeds.csv
    python3 bench/many_seeds.py --sim build/release/parley_sim --seeds 40000 --ledger seeds.csv --for 500   # what is left, 500 s of it

Every scenario of simulation/scenarios gets that many seeds, from 1. The ledger says for each part that has ended: scenario,
first seed, seeds, status of parley_sim, seconds of one core. What parley_sim says of a failed part lies beside the ledger, in
SCENARIO-FIRST.txt, and the smaller run that it found in SCENARIO-FIRST.json; what all parts together have covered, in
LEDGER.coverage. Exit status: 1 when a part failed, or nothing is left and something was never covered; 3 when some are left to be run.
"""

import argparse
import concurrent.futures
import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def options():
    o = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    o.add_argument("--sim", type=pathlib.Path, required=True, help="parley_sim, of a Release build")
    o.add_argument("--scenarios", type=pathlib.Path, default=ROOT / "simulation/scenarios")
    o.add_argument("--seeds", type=int, required=True, help="of each scenario")
    o.add_argument("--part", type=int, default=200, help="seeds that one process runs")
    o.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    o.add_argument("--for", dest="seconds", type=float, default=float("inf"), help="begin no part after so many seconds")
    o.add_argument("--ledger", type=pathlib.Path, required=True)
    return o.parse_args()


def read(ledger):
    if not ledger.exists():
        return {}
    with ledger.open(newline="") as file:
        return {(row[0], int(row[1])): (int(row[2]), int(row[3]), float(row[4])) for row in csv.reader(file)}


class coverage:
    """How often what became of messages, summed over all parts: lines of `parley_sim --counts`."""

    def __init__(self, path):
        self.path, self.counts, self.lock = path, {}, threading.Lock()
        if path.exists():
            self.read(path.read_text())

    def read(self, text):
        for line in text.splitlines():
            kind, state, *counts = line.split(",")
            before = self.counts.get((kind, state), [0] * len(counts))
            self.counts[kind, state] = [a + int(b) for a, b in zip(before, counts)]

    def add(self, text):
        with self.lock:
            self.read(text)
            fresh = self.path.with_name(self.path.name + ".new")
            fresh.write_text("".join(f"{kind},{state},{','.join(map(str, counts))}\n"
                                     for (kind, state), counts in sorted(self.counts.items())))
            fresh.replace(self.path)


def main():
    o = options()
    began = time.monotonic()
    done = read(o.ledger)
    covered = coverage(o.ledger.with_name(o.ledger.name + ".coverage"))
    # Every scenario in turn, so that a campaign which is not whole has seen as much of each.
    parts = [(file, first) for first in range(1, o.seeds + 1, o.part) for file in sorted(o.scenarios.glob("*.json"))
             if (file.stem, first) not in done]

    def run(part):
        file, first = part
        if time.monotonic() - began > o.seconds:
            return None
        beside = o.ledger.parent / f"{file.stem}-{first}"
        seeds = min(o.part, o.seeds + 1 - first)
        start = time.monotonic()
        with tempfile.NamedTemporaryFile() as counts:
            ended = subprocess.run([o.sim, "--scenario", file, "--first", str(first), "--seeds", str(seeds), "--no-coverage",
                                    "--counts", counts.name, "--save", beside.with_suffix(".json")],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            covered.add(pathlib.Path(counts.name).read_text())
        if ended.returncode != 0:
            beside.with_suffix(".txt").write_bytes(ended.stdout)
        return file.stem, first, seeds, ended.returncode, round(time.monotonic() - start, 3)

    with o.ledger.open("a", newline="") as file, concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        rows = csv.writer(file)
        for row in pool.map(run, parts):
            if row is not None:
                rows.writerow(row)
                done[row[0], row[1]] = row[2:]
    failed = sorted(part for part, (_, status, _) in done.items() if status != 0)
    left = len(parts) - sum((file.stem, first) in done for file, first in parts)
    print(f"{sum(seeds for seeds, _, _ in done.values())} seeds of {len({name for name, _ in done})} scenarios, "
          f"{sum(spent for _, _, spent in done.values()):.0f} s of one core, {time.monotonic() - began:.0f} s this time; "
          f"{len(failed)} parts failed, {left} are left")
    for name, first in failed:
        print(f"  {name}, from seed {first}: {o.ledger.parent / f'{name}-{first}.txt'}")
    if failed or left:
        return 1 if failed else 3
    return subprocess.run([o.sim, "--sum", covered.path]).returncode


if __name__ == "__main__":
    sys.exit(main())

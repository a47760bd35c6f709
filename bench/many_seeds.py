#!/usr/bin/env python3
"""Runs many seeds of the simulator on all cores of a machine, in parts. The parts need not all run on one day.

    python3 bench/many_seeds.py --sim build/release/parley_sim --seeds 1000000 --ledger seeds.csv
    python3 bench/many_seeds.py --sim build/release/parley_sim --seeds 1000000 --ledger seeds.csv --for 500   # seeds that are left, for 500 s

`--seeds` counts the seeds of all scenarios together. Each scenario in simulation/scenarios begins with its first seed and gets about the
same time. The ledger has a line for each part that has ended: scenario, first seed, seeds, status of parley_sim, seconds of one core. If a
part fails, the output of parley_sim lies beside the ledger in SCENARIO-FIRST.txt, and the smaller run that it found in SCENARIO-FIRST.json.
LEDGER.coverage holds the coverage of all parts together. Exit status: 1 if a part failed, or no seeds are left and there is a gap in the
coverage; 3 if seeds are left.
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
    o.add_argument("--seeds", type=int, required=True, help="of all scenarios together")
    o.add_argument("--part", type=float, default=10, help="seconds that one process runs, about")
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
    """Counts of what happened to messages, summed over all parts, from the lines of `parley_sim --counts`."""

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


class seeds_left:
    """Chooses the next seeds: those of the scenario that has had the least time so far."""

    first_part = 20  # seeds, for a scenario that has not run yet
    longest_part = 2000

    def __init__(self, o, done):
        self.part_s, self.lock = o.part, threading.Lock()
        self.spent, self.next, self.known = {}, {}, {}  # seconds, including running parts; next seed; (seeds, seconds)
        self.files = {file.stem: file for file in sorted(o.scenarios.glob("*.json"))}
        for name in self.files:
            parts = [(first, *rest) for (of, first), rest in done.items() if of == name]
            self.next[name] = max((first + seeds for first, seeds, _, _ in parts), default=1)
            self.known[name] = (sum(p[1] for p in parts), sum(p[3] for p in parts))
            self.spent[name] = self.known[name][1]
        self.left = o.seeds - sum(seeds for seeds, _, _ in done.values())

    def take(self):
        """Returns a file, the first seed, the number of seeds and the expected seconds, or None if no seeds are left."""
        with self.lock:
            if self.left <= 0:
                return None
            name = min(self.spent, key=self.spent.get)
            ran, took = self.known[name]
            seeds = int(self.part_s * ran / took) if ran else self.first_part
            seeds = min(max(seeds, 1), self.longest_part, self.left)
            first = self.next[name]
            self.next[name] += seeds
            self.left -= seeds
            foreseen = seeds * took / ran if ran else self.part_s
            self.spent[name] += foreseen
            return self.files[name], first, seeds, foreseen

    def ended(self, name, seeds, took, foreseen):
        with self.lock:
            self.spent[name] += took - foreseen
            ran, before = self.known[name]
            self.known[name] = (ran + seeds, before + took)


def main():
    o = options()
    began = time.monotonic()
    done = read(o.ledger)
    covered = coverage(o.ledger.with_name(o.ledger.name + ".coverage"))
    plan = seeds_left(o, done)
    lock = threading.Lock()

    def run(file, first, seeds):
        beside = o.ledger.parent / f"{file.stem}-{first}"
        start = time.monotonic()
        with tempfile.NamedTemporaryFile() as counts:
            ended = subprocess.run([o.sim, "--scenario", file, "--first", str(first), "--seeds", str(seeds), "--no-coverage",
                                    "--keep-going", "--counts", counts.name, "--save", beside.with_suffix(".json")],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            covered.add(pathlib.Path(counts.name).read_text())
        if ended.returncode != 0:
            beside.with_suffix(".txt").write_bytes(ended.stdout)
        return ended.returncode, round(time.monotonic() - start, 3)

    with o.ledger.open("a", newline="") as ledger:
        rows = csv.writer(ledger)

        def work():
            while time.monotonic() - began < o.seconds and (part := plan.take()) is not None:
                file, first, seeds, foreseen = part
                status, took = run(file, first, seeds)
                plan.ended(file.stem, seeds, took, foreseen)
                with lock:
                    rows.writerow((file.stem, first, seeds, status, took))
                    ledger.flush()
                    done[file.stem, first] = (seeds, status, took)

        with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
            for each in [pool.submit(work) for _ in range(o.jobs)]:
                each.result()
    failed = sorted(part for part, (_, status, _) in done.items() if status != 0)
    made = sum(seeds for seeds, _, _ in done.values())
    print(f"{made} seeds of {len({name for name, _ in done})} scenarios, "
          f"{sum(spent for _, _, spent in done.values()):.0f} s of one core, {time.monotonic() - began:.0f} s this time; "
          f"{len(failed)} parts failed, {max(o.seeds - made, 0)} seeds are left")
    for name, first in failed:
        print(f"  {name}, from seed {first}: {o.ledger.parent / f'{name}-{first}.txt'}")
    if failed or made < o.seeds:
        return 1 if failed else 3
    return subprocess.run([o.sim, "--sum", covered.path]).returncode


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Prints the figures of compare.sh as one table: python3 bench/gpu/table.py FILE...

The files hold lines NAME/BYTES NANOSECONDS ns. Times are medians. `agreed by best` is the time of the agreed config divided by that
of parley's best config on its own, chosen in hindsight.
"""
import sys


def read(paths):
    rows = {}
    for path in paths:
        for line in open(path):
            words = line.split()
            if len(words) < 2 or "/" not in words[0]:
                continue
            name, size = words[0].rsplit("/", 1)
            if size.isdigit():
                rows.setdefault(int(size), {})[name] = float(words[1])
    return rows


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def time_text(ns):
    if ns is None:
        return "-"
    for unit, name in ((1e6, "ms"), (1e3, "us")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns:.0f} ns"


def main():
    rows = read(sys.argv[1:])
    others = ["peer_in_turns", "peer_copy", "kernel_16", "kernel_64", "nccl_raw", "torch", "ucx_perftest"]
    names = []
    for row in rows.values():
        names += [n for n in row if n not in names and n not in others and n != "agreed"]
    print("| size | " + " | ".join(["agreed", *names, "agreed by best", *others]) + " |")
    print("|---|" + "---|" * (len(names) + len(others) + 2))
    for size, row in sorted(rows.items()):
        own = [row[n] for n in names if n in row]
        regret = f"{100 * (row['agreed'] / min(own) - 1):+.1f} %" if own and "agreed" in row else "-"
        cells = [time_text(row.get(n)) for n in ["agreed", *names]] + [regret]
        print("| " + " | ".join([size_text(size), *cells, *(time_text(row.get(n)) for n in others)]) + " |")


if __name__ == "__main__":
    main()

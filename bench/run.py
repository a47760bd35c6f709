#!/usr/bin/env python3
"""Measures parley and its peers side by side: `./dev bench [--filter NAME] [--json FILE]`.

The programs of a row run in turns (A B A B ...). Each figure is the median of its runs; the ratio is parley's figure divided by
the peer's. Exit status: 0 if every row was measured, 1 if a row failed (with --strict also if one missed its target), 2 if the
command line is wrong.
"""

import argparse
import json
import sys

from harness import Failed, Missing, Ratios, interleave
from rows import ROWS, show

HEAD = ("row", "value", "peer", "peer value", "ratio", "runs", "target", "")


def measure_row(row, build, runs, peers_only):
    """Returns the row's results as (dict for JSON, dict for people); raises Missing or Failed."""
    own = [] if peers_only else [row.value]
    everyone = [*own, *row.peers, *row.beside]
    for measurement in everyone:
        measurement.prepare(build)
    medians = interleave(everyone, runs)
    value = None if peers_only else medians[0]
    others = list(zip([*row.peers, *row.beside], medians[len(own):]))
    best = min(others[:len(row.peers)], key=lambda other: other[1])
    results = [(row.name, *best)] + [(f"{row.name}/{peer.label}", peer, figure) for peer, figure in others[len(row.peers):]]
    return [{"name": name, "value": value, "unit": row.unit, "peer": peer.label, "peer_value": figure,
             "ratio": value / figure if value is not None and figure else None, "runs": runs}
            for name, peer, figure in results]


def table_line(row, result, judged):
    value, ratio = result["value"], result["ratio"]
    verdict = ""
    if judged and value is not None:
        verdict = "ok" if row.reached(value, ratio or 0) else "missed"
    return (result["name"], "-" if value is None else show(value, row.unit), result["peer"],
            show(result["peer_value"], row.unit), "-" if ratio is None else f"{ratio:.3f}", str(result["runs"]),
            row.target() if judged else "", verdict)


def print_table(lines):
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description="Measure parley and its peers side by side.")
    parser.add_argument("--build", required=True, metavar="DIR", help="the build folder, a Release one")
    parser.add_argument("--filter", default="", metavar="NAME", help="only rows whose name contains NAME")
    parser.add_argument("--json", metavar="FILE", help="also write the rows there")
    parser.add_argument("--runs", type=int, metavar="N", help="runs of each program instead of the row's own number")
    parser.add_argument("--columns", action="store_true",
                        help="also print what rows against MPI measured as OSU's benchmarks and LLNL's Comb print it")
    parser.add_argument("--strict", action="store_true", help="a missed target fails too")
    parser.add_argument("--peers-only", action="store_true", help="measure the peers alone")
    parser.add_argument("--exact", action="store_true",
                        help="only rows on a virtual clock, whose figures are the same on every machine")
    options = parser.parse_args()
    chosen = [row for row in ROWS if options.filter in row.name and (row.exact or not options.exact)]
    if not chosen:
        parser.error(f"no row's name contains {options.filter!r}; the rows are {', '.join(row.name for row in ROWS)}")

    lines, tables, shown, results, failures, missed = [HEAD], [], [], [], [], 0
    for row in chosen:
        print(f"measuring {row.name} ...", file=sys.stderr, flush=True)
        try:
            found = measure_row(row, options.build, row.runs if row.runs == 1 else options.runs or row.runs, options.peers_only)
        except (Missing, Failed) as problem:
            failures.append(f"{row.name} failed: {problem}")
            results.append({"name": row.name, "value": None, "unit": row.unit, "peer": row.peers[0].label, "peer_value": None,
                            "ratio": None, "runs": 0, "failed": str(problem)})
            lines.append((row.name, "failed", "", "", "", "", row.target(), "failed"))
            continue
        results += found
        if options.columns and isinstance(row.value, Ratios) and row.value.sweep not in shown:
            shown.append(row.value.sweep)
            tables += [f"# {row.name}: {table}" for table in row.value.sweep.tables()]
        for position, result in enumerate(found):
            lines.append(table_line(row, result, judged=position == 0))
            missed += lines[-1][-1] == "missed"
    print_table(lines)
    for table in tables:
        print(f"\n{table}")
    for failure in failures:
        print(failure, file=sys.stderr)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": results}, file, indent=2)
            file.write("\n")
    return 1 if failures or (options.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())

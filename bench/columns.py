"""Prints the figures of ranks in the columns of OSU's micro-benchmarks and LLNL's Comb, for people who know them.

Programs print the figures as NAME_SIZE/RANK/PHASE/KIND, where the kind is num, avg, min or max, and times are in ns (steps.hpp).
Each function takes the figures of one program and returns text.
"""

import collections


def by_size(figures):
    """size -> phase -> [{kind: value} of each rank], sizes ascending."""
    ranks = collections.defaultdict(dict)
    for name, value in figures.items():
        if "/" in name:
            what, rank, phase, kind = name.split("/")
            ranks[int(what.rsplit("_", 1)[1]), phase, int(rank)][kind] = value
    sizes = {}
    for (size, phase, _), kinds in sorted(ranks.items(), key=lambda item: (item[0][0], item[0][2])):
        sizes.setdefault(size, {}).setdefault(phase, []).append(kinds)
    return sizes


def averages_us(ranks):
    return [kinds["avg"] / 1e3 for kinds in ranks]


def osu_bibw(_, figures, window=1):
    """Like osu_bibw with that window of messages, plus the time of a window in both directions."""
    lines = [f"{'# Size':<10}{'Avg Latency(us)':>20}{'Bandwidth (MB/s)':>20}"]
    for size, phases in by_size(figures).items():
        of_ranks = averages_us(phases["step"])
        us = sum(of_ranks) / len(of_ranks)
        lines.append(f"{size:<10}{us:>20.2f}{2 * window * size / us:>20.2f}")
    return "\n".join(lines)


def osu_allreduce(_, figures):
    """Like osu_allreduce -f: the mean, minimum and maximum over the ranks' averages."""
    lines = [f"{'# Size':<10}{'Avg Latency(us)':>20}{'Min Latency(us)':>20}{'Max Latency(us)':>20}{'Iterations':>12}"]
    for size, phases in by_size(figures).items():
        of_ranks = averages_us(phases["step"])
        us = (sum(of_ranks) / len(of_ranks), min(of_ranks), max(of_ranks))
        lines.append(f"{size:<10}" + "".join(f"{each:>20.2f}" for each in us) + f"{phases['step'][0]['num']:>12.0f}")
    return "\n".join(lines)


def comb(library, figures):
    """Like Comb's summaries: a line per phase over all steps of all ranks, and one for the whole benchmark, with one value per rank.
    post-send includes posting the receives, wait-recv includes waiting for the sends. MPI's neighbourhood collective has no phases."""
    lines = []
    for size, phases in by_size(figures).items():
        lines.append(f"Comm {library.replace(' ', '_')} Mesh seq Host Buffers seq Host seq Host, {size} x {size} a rank")
        for phase in ("post-send", "wait-recv"):
            if phase in phases:
                lines.append(comb_line(phase, phases[phase]))
        whole = [kinds["num"] * kinds["avg"] for kinds in phases["step"]]
        lines.append(comb_line("bench-comm", [{"num": 1, "avg": ns, "min": ns, "max": ns} for ns in whole]))
    return "\n".join(lines)


def comb_line(phase, ranks):
    num = sum(kinds["num"] for kinds in ranks)
    avg = sum(kinds["num"] * kinds["avg"] for kinds in ranks) / num
    least, most = min(kinds["min"] for kinds in ranks), max(kinds["max"] for kinds in ranks)
    return (f"{phase + ':':<11} num {num:.0f} avg {avg / 1e9:.9f} s min {least / 1e9:.9f} s max {most / 1e9:.9f} s")

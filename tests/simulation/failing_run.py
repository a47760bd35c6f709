#!/usr/bin/env python3
"""What parley_sim says of a seed that fails is enough to see it again.

    failing_run.py PROGRAM SCENARIOS      PROGRAM is parley_sim, SCENARIOS the folder of its scenarios

A receiver that ignores stamps breaks S2 in pair.json. The command that the failure names fails in the same way; so does the smaller run that
was saved, and without the broken receiver that one holds; all of that in a folder with a space in its name, too. A file of hashes in which one is
wrong, or is missing, is noticed. What cannot run is refused before anything runs.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

MUTANT = "stamp-ignored"
INVARIANT = "S2"
AGAIN = re.compile(r"^(.+), seed (\d+) fails; again: (.*)$", re.MULTILINE)
SMALLER = re.compile(rf"^  a smaller run that breaks {INVARIANT} \(after \d+ runs\): (.*)$", re.MULTILINE)
FOUND = re.compile(r"^  (?:\w+: .*|\d+ violations in all)$", re.MULTILINE)  # a line for each checker, and how many in all


class Wrong(Exception):
    """What is not as it has to be."""


def expect(holds, what, ended=None):
    if holds:
        return
    said = f"; status {ended.returncode} and\n{ended.stdout}{ended.stderr}" if ended else ""
    raise Wrong(what + said)


def one(pattern, ended, what):
    found = pattern.findall(ended.stdout)
    expect(len(found) == 1, f"{len(found)} lines, not one, say {what}", ended)
    return found[0]


def found_by(ended):
    """What each checker said, of which INVARIANT's is the first."""
    found = FOUND.findall(ended.stdout)
    expect(found and found[0].startswith(f"  {INVARIANT}: "), f"{INVARIANT} is not named first", ended)
    return found


class Simulator:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *words):
        return subprocess.run([self.program, *map(str, words)], cwd=self.folder, capture_output=True, text=True)

    def repeat(self, command):
        """Runs a command that was printed: `./dev sim` builds parley_sim and gives it the other words."""
        words = shlex.split(command)
        expect(words[:2] == ["./dev", "sim"], f"`{command}` is no command of ./dev")
        return self.run(*words[2:])


def check_failure(sim, scenarios, saved):
    failed = sim.run("--mutant", MUTANT, "--scenarios", scenarios, "--save", saved)
    expect(failed.returncode == 1, "a failing seed does not end with 1", failed)
    scenario, seed, again = one(AGAIN, failed, "how to run the seed again")
    expect(pathlib.Path(scenario) == scenarios / "pair.json", "the scenario is not named", failed)
    found = found_by(failed)
    for word in (scenario, seed, MUTANT):
        expect(word in shlex.split(again), f"`{again}` does not name {word}", failed)

    repeated = sim.repeat(again)
    expect(repeated.returncode == 1, f"`{again}` does not end with 1", repeated)
    expect(found_by(repeated) == found, f"`{again}` does not fail in the same way, which was {found}", repeated)
    expect((sim.folder / "failing-pair.json").is_file(), "a run without --save saves nothing")
    check_smaller_run(sim, saved, one(SMALLER, failed, "how to run a smaller one"))
    sound = sim.run("--scenario", scenario, "--seed", seed)
    expect(sound.returncode == 0, "the same seed without the mutant does not hold", sound)


def check_smaller_run(sim, saved, command):
    expect(saved.is_file(), "nothing was saved where --save says")
    expect("tape" in json.loads(saved.read_text()), "what was saved has no tape of its faults")
    words = shlex.split(command)
    expect(str(saved) in words, f"`{command}` does not name what was saved")
    smaller = sim.repeat(command)
    expect(smaller.returncode == 1, "what was saved does not fail", smaller)
    found_by(smaller)
    mutant = words.index("--mutant")
    sound = sim.run(*words[2:mutant], *words[mutant + 2:])
    expect(sound.returncode == 0, "what was saved fails without the mutant", sound)


def check_hashes(sim, scenarios):
    few = sim.folder / "few"
    few.mkdir()
    (few / "pair.json").write_text((scenarios / "pair.json").read_text())
    golden = sim.folder / "hashes.txt"
    expect(sim.run("--scenarios", few, "--golden", golden, "--renew").returncode == 0, "no file of hashes was written")
    lines = golden.read_text().splitlines()
    expect(lines and all(re.fullmatch(r"pair \d+ [0-9a-f]{16}", line) for line in lines), f"{lines} are no hashes")
    same = sim.run("--scenarios", few, "--golden", golden)
    expect(same.returncode == 0, "hashes are not those of the file that was just written", same)

    other = lines[0][:-1] + ("1" if lines[0][-1] == "0" else "0")
    for what, text in (("a wrong hash", [other, *lines[1:]]), ("a missing hash", lines[1:]), ("a hash too many", [*lines, other])):
        golden.write_text("".join(f"{line}\n" for line in text))
        told = sim.run("--scenarios", few, "--golden", golden)
        expect(told.returncode == 1, f"{what} in the file does not end with 1", told)
        words = {"a wrong hash": "another hash", "a missing hash": "no hash yet", "a hash too many": None}
        for word in ("another hash", "no hash yet"):
            expect((f"{word}: {lines[0]}\n" in told.stdout) == (word == words[what]), f"{what} is told wrongly", told)
        expect("./dev hashes --renew" in told.stdout, f"of {what} is not told what to do", told)


def check_refusals(sim, scenarios):
    pair = scenarios / "pair.json"
    missing = sim.run("--scenario", pair, sim.folder / "none.json", "--seeds", "1")
    expect(missing.returncode == 2 and "none.json is not a file" in missing.stderr, "a missing scenario is not named", missing)
    expect(missing.stdout == "", "a scenario ran though another one is missing", missing)
    empty = sim.folder / "empty"
    empty.mkdir()
    (empty / "README").write_text("none here")
    told = sim.run("--scenarios", empty)
    expect(told.returncode == 2 and "empty has no scenario (*.json)" in told.stderr, "an empty folder is no error", told)


def check_twice(sim, scenarios):
    told = sim.run("--scenario", scenarios / "pair.json", "--seeds", "3", "--twice")
    expect(told.returncode == 0, "few seeds that are run twice do not end with 0", told)
    expect("3 of them did the same twice" in told.stdout, "that hashes agree is not said", told)


def main():
    scenarios = pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        spaced = pathlib.Path(folder) / "it's a folder"
        spaced.mkdir()
        (spaced / "pair.json").write_text((scenarios / "pair.json").read_text())
        sim = Simulator(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(folder))
        try:
            check_failure(sim, scenarios, sim.folder / "saved.json")
            check_failure(sim, spaced, spaced / "saved.json")
            check_hashes(sim, scenarios)
            check_refusals(sim, scenarios)
            check_twice(sim, scenarios)
        except Wrong as what:
            print(what)
            return 1
    print("a failure can be seen again")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env bash
# Four processes run a pipeline and agree on configs while it runs. A second run starts from the results of the first. A third
# run has a deliberate fault, which must be noticed.
#     examples/demo.sh BUILD_FOLDER      (./dev demo builds first)
set -euo pipefail
build=${1:?usage: examples/demo.sh BUILD_FOLDER}
parley=$(realpath "$build")/cli/parley
spec=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/specs/llama2-7b-pipeline.json
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Every key must be decided when the run ends. The drift watch is off, so that no key is searched again when the machine
# becomes busier. The larger budget lets trials continue after an expensive one instead of waiting for more run time.
export PARLEY_TUNING_DRIFT=0
budget=0.5

fail() {
  echo "demo: FAILED: $*" >&2
  exit 1
}

echo "== 1. Four stages hand on microbatches and agree meanwhile, edge by edge and size by size =="
"$parley" tune "$spec" --budget $budget --results results.csv --json >first.json || fail "the first run ended with status $?"
echo
echo "== 2. The same again, with the results file of the first run: no trials, same decisions =="
"$parley" tune "$spec" --results results.csv --json >second.json || fail "the second run ended with status $?"
python3 - first.json second.json <<'PYTHON' || fail "the second run did not do what the first one learned"
import json, sys

first, second = (json.load(open(name)) for name in sys.argv[1:])
faults = []


def check(holds, text):
    print(("  ok    " if holds else "  FAULT ") + text)
    if not holds:
        faults.append(text)


def name(a):
    return a["op"], a["sender"], a["receiver"], a["key"]


# Decisions that are based on few trials are searched again, ten seconds after the second run begins.
thin = {name(a) for a in first["agreements"] if a["confidence"] == "thin"}
but = f", but for {len(thin)} of 15 keys, which rest on few" if thin else ""


def decisions(run):
    return {name(a): a["decision"] for a in run["agreements"] if name(a) not in thin}


for which, run in (("first run", first), ("second run", second)):
    check(run["mismatches"] == 0, f"{which}: {run['mismatches']} mismatches in {run['invocations']} invocations")
    check(run["outputs_match"], f"{which}: the last stage's output equals a single process's, bit for bit")
    check(run["unpaired"] == 0, f"{which}: every invocation is known from both of its ends")
    check(run["control_messages_to_outsiders"] == 0 and run["barriers"] == 0,
          f"{which}: no message to a rank outside an edge, no barrier")
open_keys = [a["key"] for a in first["agreements"] if not a["decided"]]
check(len(first["agreements"]) == 15 and not open_keys, "first run: 3 edges x 5 sizes, all agreed")
def has_choice(agreement):
    # For a small message, all configs may send a single message, and then there is nothing to try.
    return any(c["status"] != "same" for c in agreement["candidates"][1:])


tried = [a for a in first["agreements"] if has_choice(a)]
check(len(tried) >= 9 and all(a["trials"] > 0 for a in tried), f"first run: trials for the {len(tried)} keys with a choice")
check(all(a["trials"] == 0 and (a["from_results"] or not has_choice(a)) for a in second["agreements"] if name(a) not in thin),
      f"second run: no trials{but}")
check(all(a["decided"] for a in second["agreements"]), "second run: all agreed")
check(decisions(first) == decisions(second), f"second run: the same {len(decisions(first))} decisions")
cost = sum(a["cost_ns"] for a in first["agreements"])
print(f"  first run {first['wall_ns'] / 1e9:.2f} s, of which trials cost {cost / 1e6:.1f} ms "
      f"over 3 edges; second run {second['wall_ns'] / 1e9:.2f} s")
sys.exit(1 if faults else 0)
PYTHON

echo
echo "== 3. The check must be able to fail: a receiver that ignores the stamp =="
status=0
"$parley" tune "$spec" --no-results --microbatches 200 --budget $budget --mutant ignore_stamp --json >mutant.json 2>mutant.log || status=$?
found=$(python3 -c 'import json; print(json.load(open("mutant.json"))["mismatches"])' || echo none)
[[ $status == 1 && $found =~ ^[1-9] ]] || { cat mutant.log >&2; fail "the mutant was not noticed: status $status, mismatches $found"; }
echo "  ok    the mutant is caught: $found mismatched, status 1"
echo
echo "demo: all is well"

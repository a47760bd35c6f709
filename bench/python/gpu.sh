#!/usr/bin/env bash
# usage: gpu.sh PACKAGES [OUTPUT_FOLDER]   the Python package's tests and times on this machine's GPUs.
# PACKAGES: a folder with parley, for PYTHONPATH. PYTHON: the interpreter, which has torch and pytest. Each step has a log in OUTPUT_FOLDER
# and a limit; the last line says how many failed. Times of NCCL beside parley's need two GPUs.
set -uo pipefail
here=$(realpath "$(dirname "$0")/../..")
packages=$(realpath "$1")
out=$(mkdir -p "${2:-gpu-logs}" && realpath "${2:-gpu-logs}")
python=${PYTHON:-python3}
export PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NCCL_NVLS_ENABLE=0 PARLEY_RESULTS=
scratch=$(mktemp -d)
cd "$scratch" || exit
trap 'rm -rf "$scratch"' EXIT
failed=0

# step NAME SECONDS COMMAND...: prints the end of its output.
step() {
  local name=$1 limit=$2 began=$SECONDS
  shift 2
  if timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1; then
    echo "$name: ok, $((SECONDS - began)) s"
  else
    echo "$name: FAILED with status $?, $((SECONDS - began)) s; see $out/$name.log"
    failed=$((failed + 1))
  fi
  tail -n "${LINES_OF_STEP:-12}" "$out/$name.log" | cut -c1-300 | sed 's/^/    | /'
}

gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
step versions 40 "$python" -c 'import sys, torch, parley
print(sys.version, "torch", torch.__version__, "CUDA", torch.version.cuda, "parley", parley.__version__, parley.has_cuda)
why = parley.cuda.why_not()
print("no GPU, because", why) if why else print(parley.cuda.device_count(), "GPUs")
with parley.join(device="cpu" if why else "cuda") as rank: print("rank", rank.id, "on GPU", rank.gpu)'
# Several tests at a time, where pytest-xdist is there: most of their time is the start of processes.
at_once=$("$python" -c 'import xdist; print("-n 4")' 2>/dev/null)
# shellcheck disable=SC2086
LINES_OF_STEP=60 step tests 190 "$python" -m pytest -q -p no:cacheprovider $at_once --timeout 70 --maxfail 10 -ra --durations=5 \
  "$here/python/tests/test_gpu.py" "$here/python/tests/test_gpu_memory.py"
batches=("$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$here/bench/python/gpu_batches.py")
if [ "${gpus:-0}" -ge 1 ]; then
  step batches-parley-host 45 "${batches[@]}" parley host
  step batches-parley-stream 45 "${batches[@]}" parley stream
else
  echo "batches: skipped, because this machine has no GPU"
fi
if [ "${gpus:-0}" -ge 2 ]; then
  step batches-nccl 40 "${batches[@]}" nccl stream
else
  echo "batches-nccl: skipped, because NCCL needs two GPUs and this machine has ${gpus:-0}"
fi
echo "gpu: $failed steps failed; logs in $out"
[ "$failed" = 0 ]

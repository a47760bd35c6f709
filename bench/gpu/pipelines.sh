#!/usr/bin/env bash
# A pipeline forward and backward on this machine's GPUs, with one process and one stage per GPU. In turns: kernels that are enqueued
# when their input has arrived, kernels that are enqueued ahead (each with all configs, and with only `put` and the default), and
# torch.distributed.pipelining.
#     bash bench/gpu/pipelines.sh BUILD [RANKS] [ROUNDS] [further options of gpu_pipeline, such as --num-microbatches 32]
# BUILD holds cli/parley and examples/gpu_pipeline. Prints a line per run, followed by its figures.
set -u
build=${1:?usage: pipelines.sh BUILD [RANKS] [ROUNDS] [OPTIONS]}
ranks=${2:-2}
rounds=${3:-3}
shift $(($# < 3 ? $# : 3))
here=$(cd "$(dirname "$0")" && pwd)
export NCCL_NVLS_ENABLE=0
program=$build/examples/gpu_pipeline
out=$(mktemp)

one() {
  local name=$1
  shift
  if timeout 100 "$@" >"$out" 2>&1; then
    printf '%-24s' "$name"
    sed 's/^\[rank [0-9]*\] //' "$out" | awk '
      $1 ~ /^(default_pass|pass_while_tuning|pass_when_decided|torch_pass)$/ { printf "  %s %.3f ms", $1, $2 / 1e6 }
      $1 ~ /^(tuning_cost|idle_when_decided|torch_idle)$/ { printf "  %s %.1f %%", $1, $2 }'
    printf '\n'
    sed 's/^\[rank [0-9]*\] //' "$out" | grep -E '^rank|median' | sort | sed 's/^/    /'
  else
    printf '%-24s FAILED with status %d\n' "$name" "$?"
    tail -n 5 "$out" | sed 's/^/    | /'
  fi
}

echo "machine: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | xargs), $(nproc) cores, $(date -u +%F)"
for round in $(seq "$rounds"); do
  for ahead in 0 1; do
    one "ahead=$ahead all" "$build/cli/parley" run -n "$ranks" -- "$program" --ahead "$ahead" "$@"
    one "ahead=$ahead put" "$build/cli/parley" run -n "$ranks" -- "$program" --ahead "$ahead" --only put "$@"
  done
  one "torch" torchrun --nproc-per-node "$ranks" "$here/torch_pipeline.py" "$@"
done
rm -f "$out"

#!/usr/bin/env bash
# Matrix products of language models on this machine's first GPU, and then by PyTorch.
#     bash bench/gpu/gemm.sh BUILD [bf16|f8] [INDUCTORS_SHAPES]
# BUILD holds bench/gpu_gemm. INDUCTORS_SHAPES is a file of shapes for Inductor's max-autotune, which takes seconds for each: a name,
# m, n and k on each line; without it Inductor is left out.
set -u
build=${1:?usage: gemm.sh BUILD [bf16|f8] [INDUCTORS_SHAPES]}
type=${2:-bf16}
here=$(cd "$(dirname "$0")" && pwd)
echo "machine: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | xargs), $(nproc) cores, $(date -u +%F)"
echo "== parley"
"$build/bench/gpu_gemm" --type "$type"
echo "== PyTorch"
python3 "$here/torch_gemm.py" --type "$type" --no-inductor
if [ -n "${3:-}" ]; then
  echo "== the shapes of Inductor: parley"
  "$build/bench/gpu_gemm" --type "$type" --shapes "$3"
  echo "== the shapes of Inductor: PyTorch and Inductor"
  python3 "$here/torch_gemm.py" --type "$type" --shapes "$3"
fi

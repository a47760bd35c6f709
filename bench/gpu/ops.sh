#!/usr/bin/env bash
# Ops on this machine's GPUs, one process per GPU, in turns with their counterparts:
# - the two-round ring with all configs, with only `put` and the default, and with PyTorch's batch_isend_irecv; up to 16 MiB, and at 64
#   and 256 MiB, which the steps from size to size skip;
# - training steps in CUDA graphs, and PyTorch's;
# - sums, and PyTorch's, up to 128 MiB and at 64 and 256 MiB; sums in two levels;
# - ring attention over 65,536 rows, and PyTorch's attention over the same blocks;
# - all-gather + GEMM and GEMM + reduce-scatter, and PyTorch's;
# - Jacobi, and the Jacobi of NVIDIA's multi-GPU programming models.
#     bash bench/gpu/ops.sh BUILD [RANKS] [ROUNDS] [NVIDIAS_JACOBI]
# BUILD holds cli/parley and the programs of examples/gpu. NVIDIAS_JACOBI is the program from NVIDIA's folder nccl_overlap.
set -u
build=${1:?usage: ops.sh BUILD [RANKS] [ROUNDS] [NVIDIAS_JACOBI]}
ranks=${2:-2}
rounds=${3:-3}
nvidia=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
export NCCL_NVLS_ENABLE=0

one() {
  local name=$1 status
  shift
  echo "== $name"
  timeout 100 "$@" 2>&1 | grep -v 'distributed/run.py' | sed 's/^\[rank [0-9]*\] //'
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || echo "FAILED with status $status"
}

# Sizes that a sweep from 8 bytes on skips. They need fewer calls.
large=(-b $((64 << 20)) -e $((256 << 20)) -f 4)

echo "machine: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | xargs), $(nproc) cores, $(date -u +%F)"
for round in $(seq "$rounds"); do
  one "ring, all configs" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_ring_exchange" -n 500 -w 4000
  one "ring, put beside the default" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_ring_exchange" -n 500 -w 4000 --only put
  one "ring, PyTorch" torchrun --nproc-per-node "$ranks" "$here/torch_ring.py" -n 500
  one "ring of 64 and 256 MiB, all configs" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_ring_exchange" "${large[@]}" -n 100 -w 1000
  one "ring of 64 and 256 MiB, put beside the default" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_ring_exchange" "${large[@]}" \
    -n 100 -w 1000 --only put
  one "ring of 64 and 256 MiB, PyTorch" torchrun --nproc-per-node "$ranks" "$here/torch_ring.py" "${large[@]}" -n 100
  one "steps, replayed" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_replayed_step" -w 40000
  one "steps, PyTorch" torchrun --nproc-per-node "$ranks" "$here/torch_replayed.py"
  one "sums" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_all_reduce" -f 4 -w 30000
  one "sums, PyTorch" torchrun --nproc-per-node "$ranks" "$here/torch_all_reduce.py" -f 4
  one "sums of 64 and 256 MiB" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_all_reduce" "${large[@]}" -w 6000
  one "sums of 64 and 256 MiB, PyTorch" torchrun --nproc-per-node "$ranks" "$here/torch_all_reduce.py" "${large[@]}"
  one "sums in two levels" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_gradients" -f 32 -e 8M
  for mask in "" --causal; do
    one "attention $mask" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_ring_attention" $mask -w 20
    one "attention $mask, put beside the default" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_ring_attention" $mask -w 20 --only put
    one "attention $mask, PyTorch, blocks on one GPU" python3 "$here/torch_attention.py" --ranks "$ranks" $mask
  done
  one "all-gather + GEMM" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_all_gather_gemm"
  one "all-gather + GEMM, PyTorch" torchrun --nproc-per-node "$ranks" "$here/torch_all_gather_gemm.py"
  one "GEMM + reduce-scatter" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_gemm_reduce_scatter"
  one "GEMM + reduce-scatter, PyTorch" torchrun --nproc-per-node "$ranks" "$here/torch_gemm_reduce_scatter.py"
  one "jacobi" "$build/cli/parley" run -n "$ranks" -- "$build/examples/gpu_jacobi" -niter 1000 -nccheck 100 -csv
  [ -z "$nvidia" ] || one "jacobi, NVIDIA's nccl_overlap" mpirun --allow-run-as-root -np "$ranks" "$nvidia" -niter 1000 -nccheck 100 -csv
done

#!/usr/bin/env bash
# Time from send to end of receive between two GPUs of this machine, 8 B to 256 MiB, in one run: each of parley's configs on its own,
# the agreed config, raw peer copies, NCCL, UCX and PyTorch.
#     bash bench/gpu/compare.sh BUILD [OUTPUT_FOLDER]
# BUILD holds bench/sweep and bench/gpu_raw, built with the CUDA toolkit. UCX's ucx_perftest and PyTorch are used if they are found.
# Prints one table and writes logs to OUTPUT_FOLDER. PARLEY_UCX_CUDA=0 leaves config `ucx` out. The script never changes a GPU's
# settings, and keeps NVLink multicast off.
set -u
build=${1:?usage: compare.sh BUILD [OUTPUT_FOLDER]}
out=${2:-$(mktemp -d)}
here=$(cd "$(dirname "$0")" && pwd)
repetitions=${REPETITIONS:-200}
export NCCL_NVLS_ENABLE=0
mkdir -p "$out"

PARLEY_UCX_CUDA=${PARLEY_UCX_CUDA:-1} timeout 400 "$build/bench/sweep" --only gpu --repetitions "$repetitions" >"$out/parley.txt" \
  2>"$out/parley.log" ||
  { echo "parley's sweep failed:"; tail -n 5 "$out/parley.log"; }
timeout 60 "$build/bench/gpu_raw" --repetitions "$repetitions" >"$out/raw.txt" 2>"$out/raw.log" ||
  { echo "gpu_raw failed:"; tail -n 5 "$out/raw.log"; }
timeout 100 python3 "$here/torch_send_recv.py" >"$out/torch.txt" 2>"$out/torch.log" ||
  { echo "PyTorch's send and recv did not run:"; tail -n 3 "$out/torch.log"; }

# UCX's tag messages between device buffers of two processes, each on its own GPU: half a round trip.
perftest=${UCX_PERFTEST:-$(command -v ucx_perftest)}
: >"$out/ucx.txt"
port=13400
for bytes in 8 64 512 4096 32768 65536 262144 1048576 2097152 16777216 67108864 134217728 268435456; do
  [ -n "$perftest" ] || break
  port=$((port + 1))
  common=(-t tag_lat -m cuda -s "$bytes" -n $((bytes > 1048576 ? 50 : 500)) -w 20 -f -p "$port")
  timeout 20 "$perftest" "${common[@]}" >>"$out/ucx.log" 2>&1 &
  server=$!
  for _ in 1 2 3 4 5 6 7 8 9 10; do  # until the server listens
    sleep 0.3
    timeout 20 "$perftest" 127.0.0.1 "${common[@]}" >"$out/ucx.one" 2>&1 && break
  done
  wait "$server" || break
  cat "$out/ucx.one" >>"$out/ucx.log"
  awk -v bytes="$bytes" '$1 ~ /^[0-9]+$/ && NF >= 6 { last = $2 } END { if (last) printf "ucx_perftest/%d %.0f ns\n", bytes, 1000 * last }' \
    "$out/ucx.one" >>"$out/ucx.txt"
done
[ -s "$out/ucx.txt" ] || { echo "UCX's ucx_perftest did not run:"; tail -n 3 "$out/ucx.log" 2>/dev/null; }
rm -f "$out/ucx.one"

echo "machine: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | xargs), $(nproc) cores, $(date -u +%F)"
python3 "$here/table.py" "$out/parley.txt" "$out/raw.txt" "$out/torch.txt" "$out/ucx.txt"

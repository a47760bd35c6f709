#!/usr/bin/env bash
# What has to be seen on real GPUs, in one go: bash tests/gpu/run.sh BUILD [OUTPUT_FOLDER]
# BUILD holds cli/parley, examples/gpu_*, bench/gpu_sums, tests/test_gpu and tests/gpu_own_communicator; checks of what was not built do not
# run. Prints one line per check and a summary, which also says what did not run and why; logs go to OUTPUT_FOLDER. ONLY=REGEX: the checks whose
# names have it; MICROBATCHES=N: of pipelines, which with few of them come to no agreement and fail. Uses GPU 0 for what is about one GPU, and
# else two of them, or four where there are so many. Never changes a GPU's settings; NVLink multicast stays off.
set -u
build=${1:?usage: run.sh BUILD [OUTPUT_FOLDER]}
out=${2:-$(mktemp -d)}
here=$(cd "$(dirname "$0")/../.." && pwd)
parley=$build/cli/parley
spec=$here/examples/specs/llama2-7b-pipeline.json
export NCCL_NVLS_ENABLE=0
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ -z "${CUDA_VISIBLE_DEVICES:-}" ] || gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
first_gpu=${CUDA_VISIBLE_DEVICES:-0}
one_gpu=(env "CUDA_VISIBLE_DEVICES=${first_gpu%%,*}")
ranks=$((gpus >= 4 ? 4 : 2))
microbatches=${MICROBATCHES:-3000}
passed=0 failed=0 left_out=0
mkdir -p "$out"

# wanted NAME...: whether one of them is to run.
wanted() { printf '%s\n' "$@" | grep -qE -e "${ONLY:-.}"; }
# leave_out WHY NAME...: checks that do not run here.
leave_out() {
  local why=$1 name
  shift
  for name in "$@"; do
    wanted "$name" || continue
    left_out=$((left_out + 1))
    printf '%-44s did not run: %s\n' "$name" "$why"
  done
}
# lines_of NAME COMMAND...: what that makes of what a check has said, if it ran.
lines_of() { ! wanted "$1" || "${@:2}" "$out/$1.log"; }
last() { lines_of "$2" tail -n "$1"; }
# built PROGRAM CHECKS...: whether it is there; else those checks are left out.
built() {
  local program=$1
  shift
  [ -x "$program" ] && return
  leave_out "$program was not built" "$@"
  return 1
}
# several CHECKS...: whether there are GPUs enough for NCCL, which takes no two ranks on one.
several() {
  [ "$gpus" -ge 2 ] && return
  leave_out "NCCL between ranks needs two GPUs, and there is one" "$@"
  return 1
}

# check NAME SECONDS COMMAND...: runs it, keeps its output, says how it went.
check() {
  local name=$1 limit=$2 began ended
  shift 2
  wanted "$name" || return
  began=$(date +%s%N)
  if timeout "$limit" "$@" >"$out/$name.log" 2>&1; then
    ended="ok" passed=$((passed + 1))
  else
    ended="FAILED with status $?, see $out/$name.log" failed=$((failed + 1))
  fi
  printf '%-44s %6d ms  %s\n' "$name" $((($(date +%s%N) - began) / 1000000)) "$ended"
  [ "$ended" = ok ] || tail -n 25 "$out/$name.log" | sed 's/^/    | /'
}

echo "machine: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | xargs), $(nproc) cores"
check doctor 60 "$parley" doctor
lines_of "doctor" grep -E '^(CUDA|GPU|plane)'

# agreed NAME SPEC OPTIONS...: that spec is run, outputs equal a single process's, and something is agreed on, of several configs that were timed,
# for four of five sizes or more that have several to choose from: a search among configs that are equally fast may need more messages than
# there are.
agreed() {
  local name=$1
  shift
  "$parley" tune "$@" --device cuda --no-results --budget 1 --json >"$out/$name.json" &&
    python3 -c 'import json, sys
of_spec = json.load(open(sys.argv[1]))["agreements"]
all = [a for a in of_spec if sum(c["status"] != "same" for c in a["candidates"]) > 1]
decided = [a for a in all if a["decided"] and sum(c["status"] == "measured" for c in a["candidates"]) > 1]
others = sorted({a["decision"] for a in decided if a["decision"] != a["candidates"][0]["config"]})
print("{} of {} sizes were agreed on; configs other than the default: {}".format(len(decided), len(all), ", ".join(others) or "none"))
if len(all) < len(of_spec): print("{} more sizes have one config to choose from".format(len(of_spec) - len(all)))
for a in all:
  if a not in decided: print("not agreed on: {op} {sender}->{receiver} {key}".format(**a))
sys.exit(not all or 5 * len(decided) < 4 * len(all))' "$out/$name.json"
}
export -f agreed
export parley here out
# check_agreed NAME SECONDS [PREFIX...] -- SPEC OPTIONS...
check_agreed() {
  local name=$1 limit=$2 prefix=()
  shift 2
  while [ "$1" != -- ]; do prefix+=("$1") && shift; done
  shift
  check "$name" "$limit" "${prefix[@]}" bash -c 'agreed "$@"' - "$name" "$@"
}

# Many ranks on one GPU: the demo's pipeline, whose outputs must equal a single process's bit for bit.
check_agreed one-process-8-ranks 300 "${one_gpu[@]}" -- "$spec" -n 8 --one-process --microbatches "$microbatches"
last 5 "one-process-8-ranks"
check_agreed one-process-2-ranks 120 "${one_gpu[@]}" -- "$here/examples/specs/send-recv.json" --one-process --microbatches 1800
last 2 "one-process-2-ranks"
# The same on as many GPUs as there are.
if [ "$gpus" -ge 2 ]; then
  check_agreed one-process-all-gpus 300 -- "$spec" -n 8 --one-process --microbatches "$microbatches"
  last 5 "one-process-all-gpus"
else
  leave_out "there is one GPU" one-process-all-gpus
fi
# A process per rank: staged through pinned memory, and from GPU to GPU.
check_agreed processes-2-ranks 180 -- "$here/tests/gpu/planes.json"
last 45 "processes-2-ranks"
check_agreed processes-pipeline 250 -- "$here/tests/gpu/pipeline.json" --microbatches $((2 * microbatches))
last 5 "processes-pipeline"

# The worked cases of all ops, which CTest runs without a GPU: all ranks in one process on one GPU, or on several, and a process each. Every
# config that a link of theirs can run must have run.
cases=$build/tests/test_gpu
if built "$cases" worked-cases-processes worked-cases-processes-beside-others worked-cases-one-process worked-cases-all-gpus; then
  check worked-cases-processes 180 "$cases" --test-case='*process for each rank*'
  # With a program that only counts on each core ranks are late, NCCL's first kernel is launched while a stream waits for a message, and
  # what was given up has its memory freed then.
  check worked-cases-processes-beside-others 240 bash -c '
    for core in $(seq "$(nproc)"); do timeout 240 sh -c "while :; do :; done" & done
    "$@"
    status=$?
    kill $(jobs -p)
    exit $status' beside-others "$cases" --test-case='*process for each rank*'
  check worked-cases-one-process 180 "${one_gpu[@]}" "$cases" --test-case='*many ranks of one process*'
  if [ "$gpus" -ge 2 ]; then
    check worked-cases-all-gpus 180 "$cases" --test-case='*many ranks of one process*'
  else
    leave_out "there is one GPU" worked-cases-all-gpus
  fi
fi

# Copy engines need no processor of the GPUs: a kernel holds all of them, and messages come.
if [ "$gpus" -ge 2 ]; then
  ! built "$cases" held-processors || check held-processors 90 "$cases" --test-case='*hold all processors*'
else
  leave_out "there is one GPU" held-processors
fi
# Buffers that no op can use, as CUDA itself knows of them, and errors that it keeps for a thread.
if built "$cases" wrong-buffers wrong-buffers-all-gpus; then
  of_buffers='*copies cannot use*,*has an error left*,*no error behind*'
  check wrong-buffers 60 "${one_gpu[@]}" "$cases" --test-case="$of_buffers"
  if [ "$gpus" -ge 2 ]; then
    check wrong-buffers-all-gpus 60 "$cases" --test-case="$of_buffers"
  else
    leave_out "there is one GPU" wrong-buffers-all-gpus
  fi
fi
# Streams are made, as NCCL makes some for each communicator, while another one waits.
! built "$cases" room-for-streams || check room-for-streams 60 "${one_gpu[@]}" "$cases" --test-case='*are made while one waits*'
# The program captures a graph meanwhile, as many do.
! built "$cases" beside-captures || check beside-captures 60 "${one_gpu[@]}" "$cases" --test-case='*captures *goes on*'

# Products by cuBLAS and cuBLASLt in all types; and a program's sizes are recorded, tuned without it, and used.
if built "$cases" products; then
  check products 240 "${one_gpu[@]}" "$cases" --test-case='*products*,*captured product*,*timed on the GPU*,*tf32*,*streams multiply*'
fi
record_tune_use() {
  cd "$1" && rm -f tunableop_* && export PARLEY_TUNABLEOP_ENABLED=1 && "${@:3}" --tokens 16 --hidden 1024 >tuned.txt &&
    rm -f tunableop_results* && PARLEY_TUNABLEOP_TUNING=0 PARLEY_TUNABLEOP_RECORD_UNTUNED=1 "${@:3}" --tokens 16 --hidden 1024 >recorded.txt &&
    [ "$(grep -c '^GemmTunableOp_BFloat16_TN' tunableop_untuned0.csv)" = 4 ] && "$2" tune --untuned tunableop_untuned0.csv --device cuda &&
    PARLEY_TUNABLEOP_TUNING=0 "${@:3}" --tokens 16 --hidden 1024 >used.txt && cat used.txt &&
    while IFS=, read -r op key solution _; do
      case $op in Gemm*) grep -F "$key " used.txt | grep -qF " $solution" || { echo "not used: $key $solution" && return 1; } ;; esac
    done <tunableop_results.csv
}
export -f record_tune_use
if built "$build/examples/gpu_gemm" record-tune-use; then
  mkdir -p "$out/record-tune-use"
  check record-tune-use 120 "${one_gpu[@]}" bash -c 'record_tune_use "$@"' - "$out/record-tune-use" "$(realpath "$parley")" \
    "$(realpath "$build/examples/gpu_gemm")"
fi
# What NCCL, and UCX, do for transfers, each by itself: the same messages with only it beside the default. It must have been timed.
# What UCX does when it first meets a GPU takes 0.75 s, which the budget would pay back too late for these messages.
is_timed() {
  "$parley" tune "$here/tests/gpu/$1.json" --device cuda --no-results --json "${@:2}" >"$out/processes-$1.json" &&
    python3 -c 'import json, sys
timed = [c for a in json.load(open(sys.argv[1]))["agreements"] for c in a["candidates"] if c["config"].startswith(sys.argv[2]) and c["status"] == "measured"]
print(f"{sys.argv[2]} was timed {len(timed)} times")
sys.exit(not timed)' "$out/processes-$1.json" "$1"
}
export -f is_timed
if several processes-nccl; then
  check processes-nccl 120 bash -c "is_timed nccl"
  last 12 "processes-nccl"
fi
if [ "$gpus" -ge 2 ]; then
  check processes-ucx 120 env PARLEY_UCX_CUDA=1 bash -c "is_timed ucx --budget 1"
  last 12 "processes-ucx"
else
  leave_out "UCX's way from GPU to GPU needs two, and there is one" processes-ucx
fi
# The demo's pipeline on virtual ranks, which compute for as long as the kernels take here.
is_simulated_from_measured() {
  "$parley" tune "$spec" --device cuda --sim --microbatches 400 --budget 1 --json >"$out/simulated.json" &&
    python3 -c 'import json, sys
seen = json.load(open(sys.argv[1]))["simulated"]["measured_on"]
kernels = [k["time_ns"] for k in seen["kernels"]]
print("{}: {} kernels of {} to {} ns, copies from {} to {}".format(seen["name"], len(kernels), min(kernels), max(kernels), seen["copies"]["from_device"], seen["device"]))
sys.exit(min(kernels) <= 0 or seen["copies"]["ns"] <= 0)' "$out/simulated.json"
}
export -f is_simulated_from_measured
export spec
check simulated-from-measured 120 bash -c is_simulated_from_measured
last 1 "simulated-from-measured"
# says TEXT COMMAND...: it ends well, and has said that.
says() {
  local text=$1 said status
  shift
  said=$("$@")
  status=$?
  printf '%s\n' "$said"
  [ "$status" = 0 ] && grep -qE "$text" <<<"$said"
}
export -f says
# On equal GPUs some ranks are told to do without what others have: something is agreed on, and they have no part in it.
is_without() {
  "$parley" tune "$here/tests/gpu/planes.json" --device cuda --no-results --budget 1 --json --mask 1:ipc --mask 0:nccl >"$out/masked.json" &&
    python3 -c 'import json, sys
all = json.load(open(sys.argv[1]))["agreements"]
lacking = [c["config"] for a in all for c in a["candidates"] if c["config"].startswith(("put", "get", "nccl"))]
decided = sum(a["decided"] and a["trials"] > 0 for a in all)
print(f"{decided} of {len(all)} sizes were agreed on; candidates that a rank is to do without: {len(lacking)}")
sys.exit(bool(lacking) or not decided)' "$out/masked.json"
}
export -f is_without
check masked 120 bash -c is_without

# has_all TEXTS FILE: a line for each of TEXTS, which are lines, too.
has_all() {
  local text
  while IFS= read -r text; do grep -qE -e "$text" "$2" || return; done <<<"$1"
}
# fails_as NAME SECONDS TEXTS COMMAND...: it ends in time, with a status of its own (137 is that of a rank that was killed), and says TEXTS, and
# nothing that is like $never.
fails_as() {
  local name=$1 limit=$2 texts=$3 status began
  shift 3
  wanted "$name" || return
  began=$(date +%s%N)
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  if [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && has_all "$texts" "$out/$name.log" &&
    ! { [ -n "${never:-}" ] && grep -qE -e "$never" "$out/$name.log"; }; then
    passed=$((passed + 1)) status="ok, status $status: $(grep -E -e "${texts%%$'\n'*}" "$out/$name.log" | head -n 1 | cut -c1-200)"
  else
    failed=$((failed + 1)) status="FAILED with status $status, see $out/$name.log"
  fi
  printf '%-44s %6d ms  %s\n' "$name" $((($(date +%s%N) - began) / 1000000)) "$status"
  [ "${status%%[, ]*}" = ok ] || tail -n 25 "$out/$name.log" | sed 's/^/    | /'
}
# After 400 messages, and in the midst of NCCL's first trial, while the communicator is made, and of its third.
if several nccl-rank-{0,1}-dies{,-in-trial-1,-in-trial-3}; then
  for rank in 0 1; do
    fails_as "nccl-rank-$rank-dies" 60 "rank $rank is gone" "$parley" tune "$here/tests/gpu/nccl.json" --device cuda --no-results \
      --kill "$rank@400"
    for trial in 1 3; do
      fails_as "nccl-rank-$rank-dies-in-trial-$trial" 60 "rank $rank is gone" "$parley" tune "$here/tests/gpu/nccl.json" --device cuda \
        --no-results --budget 1 --kill "$rank@nccl:$trial"
    done
  done
fi
# fill GPU...: another program takes all memory but 2 GiB of these; `give_back` ends it.
fill() {
  python3 -c 'import sys, time, torch
taken = [torch.empty(torch.cuda.mem_get_info(d)[0] - (2 << 30), dtype=torch.uint8, device=d) for d in map(int, sys.argv[1:])]
print("filled", flush=True)
time.sleep(90)' "$@" >"$out/filler.log" 2>&1 &
  filler=$!
  for _ in $(seq 100); do grep -q filled "$out/filler.log" && break; sleep 0.2; done
}
give_back() { kill "$filler" && wait "$filler" 2>/dev/null; }
if wanted out-of-memory; then
  fill $(seq 0 $((gpus - 1)))
  fails_as out-of-memory 60 "cudaErrorMemoryAllocation" "$parley" tune "$here/tests/gpu/filled.json" --device cuda --no-results
  give_back
fi
# The heterogeneous all-reduce, each result compared: NCCL, and kernels of parley's own that a rank may lack. On one GPU, or in one process, sums
# that are gathered are what is left, and one rank lacks one of them.
sums=$build/bench/gpu_sums
checks_of_sums="sums-4096 sums-65536 sums-1048576 sums-16777216 sums-masked sums-rank-dies sums-kernel-faults"
if built "$sums" $checks_of_sums sums-one-process-{2,4,8} sums-one-process-{masked,kernel-faults,all-gpus} sums-shared-gpu; then
  for bytes in 4096 65536 1048576 16777216; do
    check "sums-$bytes" 180 "$parley" run -n "$ranks" -- "$sums" --bytes "$bytes" --calls "$((bytes > 100000 ? 400 : 2000))"
    last 8 "sums-$bytes"
  done
  check sums-masked 60 bash -c 'says "agreed on (nccl|gathered)" "$@"' - "$parley" run -n "$ranks" -- "$sums" --mask 1
  last 8 "sums-masked"
  fails_as sums-rank-dies 60 "rank 1 is gone" "$parley" run -n "$ranks" -- "$sums" --kill 1
  fails_as sums-kernel-faults 60 "device_failed.*cudaErrorIllegalAddress" "$parley" run -n "$ranks" -- "$sums" --fault 1
  for housed in 2 4 8; do
    check "sums-one-process-$housed" 60 "${one_gpu[@]}" "$sums" --one-process $housed --calls 400
    last 8 "sums-one-process-$housed"
  done
  check sums-one-process-masked 60 "${one_gpu[@]}" "$sums" --one-process 4 --calls 400 --mask 3
  last 8 "sums-one-process-masked"
  fails_as sums-one-process-kernel-faults 60 "device_failed.*cudaErrorIllegalAddress" "${one_gpu[@]}" "$sums" --one-process 4 --fault 3 \
    --calls 400
  if [ "$gpus" -ge 2 ]; then
    check sums-one-process-all-gpus 60 "$sums" --one-process 4 --calls 400
    last 8 "sums-one-process-all-gpus"
  else
    leave_out "there is one GPU" sums-one-process-all-gpus
  fi
  # More ranks than GPUs.
  check sums-shared-gpu 90 "$parley" run -n "$((gpus < 8 ? gpus + 1 : 8))" -- "$sums" --calls 400
  last 8 "sums-shared-gpu"
fi
# A communicator of the program's own, with sums under way while parley rehearses and tries NCCL beside it.
own=$build/tests/gpu_own_communicator
if several own-communicator && built "$own" own-communicator; then
  check own-communicator 120 "$parley" run -n "$ranks" -- "$own" --steps 40000
  last 2 "own-communicator"
fi
# goes_wrong NAME PROGRAM OPTIONS...: in the midst of it rank 1 dies, and a kernel there faults (examples/gpu/mishap.hpp): it says what
# happened, the others name it, and all end. Rank 0 is as good as ever.
goes_wrong() {
  local name=$1 never="rank 0 died"
  shift
  fails_as "$name-rank-dies" 60 "rank 0: .*(rank 1 is gone|to rank 1 failed)" env PARLEY_TEST_MISHAP=1:dies@4 "$parley" run -n "$ranks" -- "$@"
  fails_as "$name-kernel-faults" 60 "rank 1: .*(cudaErrorIllegalAddress|illegal memory access)"$'\n'"rank 0: .*rank 1[^0-9]" \
    env PARLEY_TEST_MISHAP=1:kernel_faults@4 "$parley" run -n "$ranks" -- "$@"
}
# Batches and halos in the order of streams; both programs compare every element.
for op in ring_exchange jacobi; do
  program=$build/examples/gpu_$op
  built "$program" "$op" "$op"-{rank-dies,kernel-faults} || continue
  [ $op = jacobi ] && short="-nx 2048 -ny 2048 -niter 500" endless="-nx 2048 -ny 2048 -niter 2000000 -unchecked" || short="-n 100 -w 300" endless="-e 8 -n 100000000"
  check "$op" 60 "$parley" run -n "$ranks" -- "$program" $short
  last 2 "$op"
  goes_wrong "$op" "$program" $endless
done
# On the GPU of rank 1 there is room for the first sizes, and not for the later ones. Where all ranks share it any of them may be the first to find out.
program=$build/examples/gpu_ring_exchange
if built "$program" ring_exchange-memory-full && wanted ring_exchange-memory-full; then
  fill $((gpus >= 2 ? 1 : 0))
  says="rank [0-9]+: .*cudaErrorMemoryAllocation"
  [ "$gpus" -ge 2 ] && says="rank 1: .*cudaErrorMemoryAllocation"$'\n'"rank 0: .*rank 1[^0-9]"
  fails_as ring_exchange-memory-full 60 "$says" "$parley" run -n "$ranks" -- "$program" -e 1G -w 100 -n 20
  give_back
fi
# A pipeline forward and backward, and gradients summed in two levels; both look at every element. What no program knows is an error.
program=$build/examples/gpu_pipeline
if built "$program" pipeline-{1F1B,Interleaved1F1B,rank-dies,kernel-faults}; then
  for schedule in 1F1B Interleaved1F1B; do
    check "pipeline-$schedule" 60 "$parley" run -n "$ranks" -- "$program" --schedule $schedule --train-iters 60 --compute-us 200
    last 3 "pipeline-$schedule"
  done
  goes_wrong pipeline "$program" --train-iters 10000000 --compute-us 200
fi
program=$build/examples/gpu_gradients
if built "$program" gradients{,-rank-dies,-kernel-faults}; then
  check gradients 90 "$parley" run -n 4 -- "$program" -e 1M
  last 2 "gradients"
  goes_wrong gradients "$program" -e 8 -n 100000000
fi
for program in "$build"/examples/gpu_*; do
  fails_as "$(basename "$program")-options" 30 "there is no option --no-such-thing" "$program" --no-such-thing
done
# Attention around a ring, compared with a simple kernel in double precision: the worked case, and sequences that fill no tile.
program=$build/examples/gpu_ring_attention
if built "$program" attention-{fp32,bf16}{,--causal}-{64,5000} attention-{4-ranks,rank-dies,kernel-faults}; then
  for dtype in fp32 bf16; do
    for mask in "" --causal; do
      check "attention-$dtype$mask-64" 60 "$parley" run -n "$ranks" -- "$program" --dtype $dtype $mask --seqlen 64 --heads 2 --head-dim 16 -n 20
      check "attention-$dtype$mask-5000" 60 "$parley" run -n "$ranks" -- "$program" --dtype $dtype $mask --seqlen 5000 --heads 4 --head-dim 128 -n 20
      last 1 "attention-$dtype$mask-5000"
    done
  done
  check attention-4-ranks 60 "$parley" run -n 4 -- "$program" --seqlen 8192 --heads 4 --head-dim 64 --causal -n 20
  last 1 "attention-4-ranks"
  goes_wrong attention "$program" --seqlen 8192 --heads 4 -w 10000000
fi
# All-gather + GEMM and GEMM + reduce-scatter, every element of every config's result compared; cuBLASLt is looked for as NCCL is, where
# LD_LIBRARY_PATH says. On one GPU without NCCL.
for layer in all_gather_gemm gemm_reduce_scatter; do
  program=$build/examples/gpu_$layer
  built "$program" $layer{,-rank-dies,-kernel-faults} || continue
  check $layer 120 "$parley" run -n "$ranks" -- "$program" --M 2048 --N 2048 --K 1024
  last 6 "$layer"
  goes_wrong $layer "$program" --M 2048 --N 2048 --K 1024 --iters 100000000
done
# A step with a sum of all ranks in it, replayed from a CUDA graph, which is captured anew when another config is agreed on: with the default first,
# and with one that is so slow for the largest size that another one must be agreed on, and steps be captured twice.
is_captured_anew() {
  local said
  said=$("$@") || return
  printf '%s\n' "$said"
  python3 -c 'import sys
rows = [line.replace("(not yet)", "-").split()[2:] for line in sys.argv[1].splitlines() if line.startswith("[rank 0] ") and "#" not in line]
largest = rows[-1]
print("the largest size: agreed on {}, captured {} times".format(largest[4], largest[8]))
sys.exit(largest[4] in ("-", "kernel_sum(blocks=1)") or int(largest[8]) < 2)' "$said"
}
export -f is_captured_anew
program=$build/examples/gpu_replayed_step
parts="replayed_step replayed_step-captured-anew replayed_step-rank-dies replayed_step-kernel-faults"
if several $parts && built "$program" $parts; then
  check replayed_step 90 bash -c 'says "] +[0-9]+ +[0-9]+ +[0-9.]+ +0 +(nccl|kernel)_sum" "$@"' - "$parley" run -n "$ranks" -- "$program" \
    -e 300000
  last 8 "replayed_step"
  check replayed_step-captured-anew 90 bash -c 'is_captured_anew "$@"' - "$parley" run -n "$ranks" -- "$program" -b 4096 -e 2M -f 512 \
    --slow-first
  last 4 "replayed_step-captured-anew"
  goes_wrong replayed_step "$program" -e 8 -n 100000000
fi
# The GPUs are as good as before.
check_agreed processes-after-faults 180 -- "$here/tests/gpu/planes.json"
last 2 "processes-after-faults"

[ "${SANITIZE:-yes}" = no ] || sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /opt/nvidia/*/compute-sanitizer 2>/dev/null | head -n 1)
if [ -n "${sanitizer:-}" ]; then
  export PARLEY_PATIENCE=10 # NCCL's kernels alone are loaded for longer under it than calls have
  # So few microbatches decide nothing, and parley tune then ends with status 3.
  undecided=(bash -c '"$@" || [ $? = 3 ]' -)
  for tool in memcheck racecheck; do
    check "$tool-one-process" 400 "${undecided[@]}" "${one_gpu[@]}" "$sanitizer" --tool $tool --error-exitcode 9 "$parley" tune "$spec" -n 8 \
      --device cuda --one-process --no-results --microbatches 12
    lines_of "$tool-one-process" grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY'
  done
  # UCX asks CUDA for a context before there is one, which is an error that it expects: calls are not judged here.
  check memcheck-processes 200 "${undecided[@]}" "$sanitizer" --tool memcheck --report-api-errors no --target-processes all \
    --error-exitcode 9 "$parley" tune "$here/tests/gpu/planes.json" --device cuda --no-results --microbatches 6
  lines_of "memcheck-processes" grep -h 'ERROR SUMMARY'
  # All ops in two processes and in one, with all the time that they need under it.
  if built "$cases" {memcheck,racecheck}-worked-cases-{processes,one-process-{2,4,8}}; then
    export PARLEY_TEST_SLOWER=4 PARLEY_TEST_RANKS=2
    for tool in memcheck racecheck; do
      of_cases=("$sanitizer" --tool $tool --report-api-errors no --target-processes all --error-exitcode 9 "$cases")
      # racecheck follows each access of NCCL's kernels to shared memory, and the first case then takes more than five minutes. Two ranks on
      # one GPU run without NCCL.
      on=(env)
      [ $tool = memcheck ] || on=("${one_gpu[@]}")
      check "$tool-worked-cases-processes" 360 "${on[@]}" "${of_cases[@]}" --test-case='*process for each rank*'
      lines_of "$tool-worked-cases-processes" grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY'
      for housed in 2 4 8; do
        check "$tool-worked-cases-one-process-$housed" 360 "${one_gpu[@]}" PARLEY_TEST_RANKS=$housed "${of_cases[@]}" --test-case='*many ranks of one process*'
        lines_of "$tool-worked-cases-one-process-$housed" grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY'
      done
    done
    unset PARLEY_TEST_SLOWER PARLEY_TEST_RANKS
  fi
  # What packs the pieces of halos, adds up sums, multiplies blocks of attention, and adds up parts of products.
  sanitized() {
    local name=$1 tool
    shift
    built "$1" {memcheck,racecheck}-"$name" || return
    for tool in ${tools:-memcheck racecheck}; do
      check "$tool-$name" 300 "$sanitizer" --tool $tool --report-api-errors no --target-processes all --error-exitcode 9 \
        "$parley" run -n 2 -- "$@"
      lines_of "$tool-$name" grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY'
    done
  }
  sanitized jacobi "$build/examples/gpu_jacobi" -nx 256 -ny 256 -niter 60
  sanitized ring_exchange "$build/examples/gpu_ring_exchange" -e 4096 -n 20 -w 20
  sanitized gradients "$build/examples/gpu_gradients" -e 4096 -n 5 -w 5
  sanitized pipeline "$build/examples/gpu_pipeline" --train-iters 5 --compute-us 100
  sanitized attention "$build/examples/gpu_ring_attention" --seqlen 64 --heads 2 --head-dim 16 -n 2
  for layer in all_gather_gemm gemm_reduce_scatter; do
    # Under racecheck a rank is killed for want of memory, among cuBLASLt's kernels.
    tools=memcheck sanitized $layer "$build/examples/gpu_$layer" --M 256 --N 256 --K 256 --iters 1 --warmup 1
  done
  PARLEY_TUNABLEOP_MAX_SEARCH_DURATION_MS=100 tools=memcheck sanitized gemm "$build/examples/gpu_gemm" --tokens 16 --hidden 64 --repeat 2
  sanitized sums "$sums" --bytes 4096 --calls 300
  if built "$sums" {memcheck,racecheck}-sums-one-process; then
    for tool in memcheck racecheck; do
      check "$tool-sums-one-process" 300 "${one_gpu[@]}" "$sanitizer" --tool $tool --report-api-errors no --error-exitcode 9 "$sums" --one-process 4 --bytes 4096 --calls 100
    done
  fi
  if several {memcheck,racecheck}-replayed_step; then
    sanitized replayed_step "$build/examples/gpu_replayed_step" -e 64 -n 20 -w 300  # a step takes 4 ms under it
  fi
else
  leave_out "compute-sanitizer was not found, or SANITIZE=no" memcheck racecheck
fi

echo "gpu: $gpus GPUs, $((passed + failed)) checks: $passed passed, $failed failed; $left_out more did not run; logs in $out"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]

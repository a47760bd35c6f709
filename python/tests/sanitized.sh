#!/usr/bin/env bash
# Tests with AddressSanitizer in the extension, after `./dev python`. Without arguments: all tests except those of torch and Ray.
#     python/tests/sanitized.sh
#     python/tests/sanitized.sh python/tests/test_faults.py -k fork                # the arguments are pytest's
#     LEAKS=1 python/tests/sanitized.sh python/tests/test_kernels.py               # also finds leaks that have a frame of the extension
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(ls -d "$PWD"/build/python/venv-*/bin/python | head -1)} installed=${INSTALLED:-$PWD/build/python/parley}
folder=$PWD/build/python/asan
# The installed library is not sanitized, so both must pool coroutine frames in one way: see runtime/coroutines/frame_pool.hpp.
flags="-fsanitize=address -U__SANITIZE_ADDRESS__ -fno-omit-frame-pointer -g1"
cmake -G Ninja -S python -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS="$flags" \
  -DCMAKE_PREFIX_PATH="$installed" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" -DPython_EXECUTABLE="$python" \
  -DSKBUILD_PROJECT_VERSION=0.1.0 > /dev/null
cmake --build "$folder/build" --target _native
mkdir -p "$folder/parley/bin"
cp -r python/parley/. "$folder"/build/_native*.so "$folder/parley"
ln -sf "$installed/bin/parley" "$folder/parley/bin/parley"

rm -rf "$folder/found" && mkdir "$folder/found"
if [ -n "${LEAKS:-}" ]; then leaks="detect_leaks=1:exitcode=0:fast_unwind_on_malloc=0"; else leaks="detect_leaks=0:exitcode=86"; fi
LD_LIBRARY_PATH=$("$python" -c 'import libucx, os; print(os.path.dirname(libucx.__file__))')/lib
export LD_LIBRARY_PATH PYTHONPATH=$folder PYTHONMALLOC=malloc ASAN_OPTIONS=$leaks:log_path=$folder/found/process
[ $# -gt 0 ] || set -- python/tests --ignore=python/tests/test_torch.py --ignore=python/tests/test_ray.py
status=0
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)" \
  "$python" -m pytest -q -p no:cacheprovider --timeout 400 "$@" || status=$?
# The paragraph of a leak counts if the extension's frame is closer to the allocation than Python code. What Python keeps of imports, and
# UCX of its mappings, does not.
find "$folder/found" -type f -exec awk -v RS= '
  function ours() { own = index($0, "_native"); code = index($0, "_PyEval_EvalFrame"); return own && (!code || own < code) }
  /ERROR: AddressSanitizer/ || (/leak of/ && ours() && !/import_find_and_load|LoadDynamicModule|PyModule_ExecDef|uct_/)
' {} + > "$folder/findings"
cat "$folder/findings"
[ ! -s "$folder/findings" ] && exit "$status"
exit 86

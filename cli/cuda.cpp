#include <parley/cli/cuda.hpp>

#ifdef PARLEY_WITH_CUDA
#include <parley/transports/cuda_runtime.hpp>
#endif

namespace parley::cli {

runtime::result<transports::cuda_driver*> find_cuda() {
#ifdef PARLEY_WITH_CUDA
  return transports::cuda_runtime();
#else
  return runtime::error{runtime::errc::unavailable,
                        "this build has no GPU planes; build with the CUDA toolkit installed (cmake --preset cuda)"};
#endif
}

}  // namespace parley::cli

#pragma once
// CUDA calls in tests, which must succeed.
#include <parley/error.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace parley::tests {

inline void must(cudaError_t e, const char* what) {
  if (e != cudaSuccess)
    runtime::raise({runtime::errc::device_failed, std::string(what) + ": " + cudaGetErrorString(e)});
}

}  // namespace parley::tests

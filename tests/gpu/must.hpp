#pragma once
// Calls of CUDA's in tests, which go well.
#include <parley/error.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace parley::tests {

inline void must(cudaError_t e, const char* what) {
  if (e != cudaSuccess)
    runtime::raise({runtime::errc::device_failed, std::string(what) + ": " + cudaGetErrorString(e)});
}

}  // namespace parley::tests

#pragma once
// CUDA's own notion of a device, for code that nvcc does not compile.
#include <cuda_runtime_api.h>

namespace parley::transports {

// CUDA keeps a device per thread; what is made here belongs to the device that is asked for.
class on_device {
 public:
  explicit on_device(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = -1;
    if (device != before_) outcome_ = cudaSetDevice(device);
  }
  ~on_device() {
    int now = before_;
    if (before_ >= 0 && cudaGetDevice(&now) == cudaSuccess && now != before_) cudaSetDevice(before_);
  }
  on_device(const on_device&) = delete;
  on_device& operator=(const on_device&) = delete;
  cudaError_t outcome() const noexcept { return outcome_; }

 private:
  int before_ = -1;
  cudaError_t outcome_ = cudaSuccess;
};

}  // namespace parley::transports

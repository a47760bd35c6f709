#pragma once
// CUDA's own notions of a thread, for code that nvcc does not compile: its device, and what it may do while graphs are captured.
#include <cuda_runtime_api.h>

namespace parley::transports {

// Calls that CUDA calls unsafe, such as those that make or free memory, or ask an event, fail while this thread captures a graph, or another
// one does in CUDA's global mode, and break that capture off, unless the thread that makes them is relaxed about it. What is done here has to
// do with no capture of the program's.
class beside_captures {
 public:
  beside_captures() noexcept { exchange(); }
  ~beside_captures() { exchange(); }
  beside_captures(const beside_captures&) = delete;
  beside_captures& operator=(const beside_captures&) = delete;

 private:
  void exchange() noexcept {
    if (cudaThreadExchangeStreamCaptureMode(&other_) != cudaSuccess) cudaGetLastError();
  }
  cudaStreamCaptureMode other_ = cudaStreamCaptureModeRelaxed;
};

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

#pragma once
// Settings that CUDA keeps per thread, for code that nvcc does not compile: the current device, and what calls are allowed while a graph is
// captured.
#include <cuda_runtime_api.h>

namespace parley::transports {

// Makes this thread's capture mode relaxed while the object lives, because parley's own calls have nothing to do with the program's
// captures. Otherwise, while this thread captures a graph, or another thread does in CUDA's global mode, calls that CUDA considers unsafe
// would fail and break off the capture. Such calls are allocating or freeing memory, and querying an event.
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

// Makes `device` this thread's current CUDA device while the object lives: CUDA creates streams, events and memory on the current device.
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

#pragma once
// A word that streams wait for, for what looks at them with nothing but CUDA.
#include <cuda_runtime_api.h>
#include <parley/bench/measure.hpp>

#include <atomic>
#include <string>

namespace parley::bench {

inline void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) give_up(std::string(what) + ": " + cudaGetErrorString(e));
}

/// In the processor's memory, and written by it.
class flag {
 public:
  flag() {
    check(cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof *word_, cudaHostAllocPortable), "cudaHostAlloc");
    *word_ = 0;
    cudaDriverEntryPointQueryResult how{};
    void* found = nullptr;
    check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &how),
          "cuStreamWaitValue32");
    wait_ = reinterpret_cast<function>(found);
  }
  /// What `s` gets from here on waits until `value` has been written, or more.
  void hold(cudaStream_t s, unsigned value) const {
    if (wait_(s, reinterpret_cast<unsigned long long>(word_), value, 0) != 0)
      give_up("cuStreamWaitValue32 was refused");
  }
  void write(unsigned value) const { std::atomic_ref(*word_).store(value, std::memory_order_release); }

 private:
  using function = int (*)(cudaStream_t, unsigned long long, unsigned, unsigned);
  unsigned* word_ = nullptr;
  function wait_ = nullptr;
};

}  // namespace parley::bench

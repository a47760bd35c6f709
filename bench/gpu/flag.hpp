#pragma once
// A word that streams wait for, for programs that test CUDA alone.
#include <cuda_runtime_api.h>
#include <parley/bench/measure.hpp>

#include <atomic>
#include <string>

namespace parley::bench {

inline void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) give_up(std::string(what) + ": " + cudaGetErrorString(e));
}

/// The word lies in host memory, and the host writes it.
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
  /// Later work in `s` waits until the word is at least `value`.
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

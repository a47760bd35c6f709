#pragma once
// Shared by the examples of this folder: a rank with a GPU, and CUDA errors as exceptions.
#include "kernels.hpp"
#include "mishap.hpp"
#include "options.hpp"

#include <parley/cuda_runtime.hpp>
#include <parley/cuda_space.hpp>
#include <parley/parley.hpp>

#include <cstdio>
#include <memory>
#include <span>
#include <string>

namespace examples {

inline void must(cudaError_t e, const char* what) {
  if (e != cudaSuccess)
    parley::runtime::raise({parley::errc::device_failed, std::string(what) + ": " + cudaGetErrorString(e)});
}

/// An owned array in GPU memory.
template <class T>
class device_array {
 public:
  device_array(parley::transports::cuda_space& space, std::size_t count) : block_(space.make(count * sizeof(T))) {}
  T* data() const noexcept { return reinterpret_cast<T*>(block_->bytes().data()); }
  std::size_t size() const noexcept { return block_->bytes().size() / sizeof(T); }
  std::span<T> all() const noexcept { return {data(), size()}; }
  std::span<std::byte> bytes() const noexcept { return block_->bytes(); }

 private:
  std::unique_ptr<parley::runtime::memory_space::block> block_;
};

class stream {
 public:
  stream() { must(cudaStreamCreateWithFlags(&s_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream() { cudaStreamDestroy(s_); }
  operator cudaStream_t() const noexcept { return s_; }  // NOLINT(google-explicit-constructor): it is one

 private:
  cudaStream_t s_ = nullptr;
};

class event {
 public:
  event() { must(cudaEventCreateWithFlags(&e_, cudaEventDisableTiming), "cudaEventCreate"); }
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  ~event() { cudaEventDestroy(e_); }
  bool happened() const {
    const cudaError_t seen = cudaEventQuery(e_);
    if (seen != cudaErrorNotReady) must(seen, "cudaEventQuery");
    return seen == cudaSuccess;
  }
  void record(cudaStream_t s) { must(cudaEventRecord(e_, s), "cudaEventRecord"); }
  void before(cudaStream_t s) { must(cudaStreamWaitEvent(s, e_, 0), "cudaStreamWaitEvent"); }

 private:
  cudaEvent_t e_ = nullptr;
};

/// Runs `rank_main(job, space)`. The ranks of a host get its GPUs in turn.
template <class RankMain>
int run_on_gpus(RankMain rank_main, parley::job_options options = {}) {
  const auto gpu = parley::transports::cuda_runtime();
  if (!gpu) {
    std::fprintf(stderr, "%s\n", gpu.reason().what().c_str());
    return 1;
  }
  options.gpu = *gpu;
  return parley::run(
      [&](parley::job& here) {
        must(cudaSetDevice(here.gpu()->device()), "cudaSetDevice");
        must(load_kernels(), "loading kernels");
        const mishap later(here.self().id(), here.gpu()->device());
        parley::runtime::run(here.loop(), rank_main(here, *here.gpu_memory()));
      },
      options);
}

}  // namespace examples

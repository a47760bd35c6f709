// Tests whether the first launch of a kernel blocks work that is enqueued after it, while a stream with a kernel in it
// waits. Also tests other calls that may make CUDA wait for the device. Uses only CUDA and one GPU.
//
//     gpu_first_launches      prints a line per step: its own duration, and the kinds of work that it blocked
//
// If a step blocks its own caller, the stream is released after 5 s.
//
// Background: transports/cuda/device/runtime.cpp launches each of parley's kernels once when a process first uses a
// device. Before it did so, the tests with several ranks in one process hung under compute-sanitizer's memcheck,
// which makes kernels need more memory.
#include "../../examples/gpu/kernels.hpp"

#include <parley/bench/gpu/flag.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace parley::bench;
using examples::launch_add;
using examples::launch_scale;

constexpr std::size_t bytes = 300'000;
constexpr std::size_t elements = 1'000;
constexpr std::int64_t long_enough_ns = 100'000'000;
constexpr std::int64_t let_go_after_ns = 5'000'000'000;

struct place {
  place() {
    check(cudaMalloc(reinterpret_cast<void**>(&device), bytes), "cudaMalloc");
    check(cudaMalloc(reinterpret_cast<void**>(&other), bytes), "cudaMalloc");
    check(cudaHostAlloc(reinterpret_cast<void**>(&pinned), bytes, cudaHostAllocPortable), "cudaHostAlloc");
  }
  float* device = nullptr;
  float* other = nullptr;
  float* pinned = nullptr;
  std::vector<char> paged = std::vector<char>(bytes);
};

cudaStream_t make_stream() {
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return made;
}

void copy(void* to, const void* from, cudaStream_t s) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s), "cudaMemcpyAsync");
}

struct work {
  const char* name;
  std::function<void(cudaStream_t)> enqueue;
  cudaStream_t stream = make_stream();
};

bool ends(cudaStream_t s, std::int64_t within_ns) {
  cudaEvent_t end = nullptr;
  check(cudaEventCreateWithFlags(&end, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  check(cudaEventRecord(end, s), "cudaEventRecord");
  const std::int64_t start = now_ns();
  cudaError_t seen = cudaErrorNotReady;
  while (seen == cudaErrorNotReady && now_ns() - start < within_ns) seen = cudaEventQuery(end);
  static_cast<void>(cudaGetLastError());
  check(cudaEventDestroy(end), "cudaEventDestroy");
  return seen == cudaSuccess;
}

}  // namespace

int main() {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  place at;
  const flag released;
  const cudaStream_t held = make_stream();
  const cudaStream_t beside = make_stream();
  const auto known = [&](cudaStream_t s) {
    check(launch_add(at.device, at.device, at.other, elements, s), "launch_add");
  };
  const std::array<work, 5> all{
      {{"kernels", known},
       {"copies within the GPU", [&](cudaStream_t s) { copy(at.other, at.device, s); }},
       {"copies to the host", [&](cudaStream_t s) { copy(at.pinned, at.device, s); }},
       {"copies from the host", [&](cudaStream_t s) { copy(at.device, at.pinned, s); }},
       {"copies from paged memory", [&](cudaStream_t s) { copy(at.device, at.paged.data(), s); }}}};
  for (const cudaStream_t s : {held, beside}) known(s);
  for (const work& w : all) w.enqueue(w.stream);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

  struct step {
    const char* name;
    std::function<void()> take;
  };
  void* made = nullptr;
  cudaEvent_t event = nullptr;
  const std::array<step, 7> steps{{
      {"nothing", [] {}},
      {"memory of the GPU made", [&] { check(cudaMalloc(&made, bytes), "cudaMalloc"); }},
      {"pinned memory made", [&] { check(cudaHostAlloc(&made, bytes, cudaHostAllocPortable), "cudaHostAlloc"); }},
      {"an event made", [&] { check(cudaEventCreate(&event), "cudaEventCreate"); }},
      {"a stream made", [&] { static_cast<void>(make_stream()); }},
      {"a kernel launched that was launched before", [&] { known(beside); }},
      {"a kernel's first launch",
       [&] { check(launch_scale(at.device, at.device, 2, 0, elements, beside), "launch_scale"); }},
  }};
  unsigned round = 0;
  for (const step& one : steps) {
    released.hold(held, ++round);
    known(held);
    const std::jthread let_go([&, round](const std::stop_token& over) {
      const std::int64_t until = now_ns() + let_go_after_ns;
      while (!over.stop_requested() && now_ns() < until) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      released.write(round);
    });
    const std::int64_t began = now_ns();
    one.take();
    const double took_ms = static_cast<double>(now_ns() - began) / 1e6;
    std::string late;
    for (const work& w : all) {
      w.enqueue(w.stream);
      if (!ends(w.stream, long_enough_ns)) late += std::string(late.empty() ? "" : ", ") + w.name;
    }
    std::printf("a stream waits with a kernel; then %s, %.1f ms. Held up: %s\n", one.name, took_ms,
                late.empty() ? "nothing" : late.c_str());
    std::fflush(stdout);
    released.write(round);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  return 0;
}

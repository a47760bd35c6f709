// How many streams can CUDA make for a device while a stream waits there, before making the next one blocks? Uses
// only CUDA, one GPU, and one process per line. Each process first makes BEFORE streams at the same time and destroys
// them.
//
//     gpu_streams [BEFORE...]      default: 0 64 256 512
//
// Background: transports/cuda/device/runtime.cpp makes and destroys streams in this way when a process first uses a
// device, because NCCL makes streams for each communicator.
#include <cuda_runtime_api.h>
#include <parley/bench/measure.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace parley::bench;

constexpr std::size_t most = 1'200;
constexpr int let_go_after_ms = 2'000;
constexpr std::int64_t held_ns = 100'000'000;

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) give_up(std::string(what) + ": " + cudaGetErrorString(e));
}

cudaStream_t make() {
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return made;
}

std::size_t free_bytes() {
  std::size_t left = 0;
  std::size_t all = 0;
  check(cudaMemGetInfo(&left, &all), "cudaMemGetInfo");
  return left;
}

void hold(cudaStream_t s, const unsigned* word) {
  using function = int (*)(cudaStream_t, unsigned long long, unsigned, unsigned);
  cudaDriverEntryPointQueryResult how{};
  void* found = nullptr;
  check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &how),
        "cuStreamWaitValue32");
  if (reinterpret_cast<function>(found)(s, reinterpret_cast<unsigned long long>(word), 1, 0) != 0)
    give_up("cuStreamWaitValue32 was refused");
}

void look(std::size_t before) {
  const cudaStream_t waits = make();
  unsigned* word = nullptr;
  check(cudaHostAlloc(reinterpret_cast<void**>(&word), sizeof *word, cudaHostAllocPortable), "cudaHostAlloc");
  *word = 0;
  const std::size_t free_at_first = free_bytes();
  const std::int64_t began = now_ns();
  std::vector<cudaStream_t> gone(before);
  for (cudaStream_t& s : gone) s = make();
  for (const cudaStream_t s : gone) check(cudaStreamDestroy(s), "cudaStreamDestroy");
  const std::int64_t took_ns = now_ns() - began;
  const std::size_t taken = free_at_first - free_bytes();
  hold(waits, word);
  std::atomic<bool> over = false;
  std::thread lets_go([&] {
    for (int i = 0; i < let_go_after_ms && !over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic_ref(*word).store(1);
  });
  std::size_t made = 0;
  for (; made < most; ++made) {
    const std::int64_t start = now_ns();
    make();
    if (now_ns() - start > held_ns) break;
  }
  over = true;
  lets_go.join();
  std::printf("%8zu %12.1f %12.1f %12s\n", before, static_cast<double>(took_ns) / 1e6,
              static_cast<double>(taken) / 1'048'576, made == most ? "none" : std::to_string(made + 1).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  std::vector<std::size_t> all;
  for (int i = 1; i < argc; ++i) all.push_back(std::strtoul(argv[i], nullptr, 10));
  if (all.empty()) all = {0, 64, 256, 512};
  std::printf("%8s %12s %12s %12s\n", "before", "took (ms)", "took (MiB)", "first held");
  std::fflush(stdout);
  for (const std::size_t before : all) {
    const pid_t child = ::fork();  // CUDA has not been called before
    if (child == 0) {
      look(before);
      std::fflush(stdout);
      ::_exit(0);
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) give_up("a process of its own ended otherwise");
  }
  return 0;
}

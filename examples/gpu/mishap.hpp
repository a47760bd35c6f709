#pragma once
// Injects a fault into a rank while an example of this folder runs, for the checks of tests/gpu/run.sh:
//
//     PARLEY_TEST_MISHAP=1:kernel_faults@3 parley run -n 2 -- gpu_ring_exchange
//
// This affects rank 1, 3 s after the ranks have met. `dies` kills its process; `kernel_faults` launches a kernel that
// reads an invalid address.
#include "kernels.hpp"

#include <parley/error.hpp>
#include <parley/number_text.hpp>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace examples {

class mishap {
 public:
  /// Does nothing unless the environment names a mishap for this rank.
  mishap(std::uint32_t rank, int device) {
    const char* const told = std::getenv("PARLEY_TEST_MISHAP");
    if (told == nullptr) return;
    const std::string_view all(told);
    const auto colon = all.find(':');
    const auto at = all.find('@', colon);
    if (at == std::string_view::npos) refuse(all);
    const auto what = all.substr(colon + 1, at - colon - 1);
    void (*const befall)() = what == "dies" ? &die : what == "kernel_faults" ? &launch_faulty_kernel : nullptr;
    if (befall == nullptr) refuse(all);
    if (number(all.substr(0, colon), all) != rank) return;
    const std::chrono::seconds after(number(all.substr(at + 1), all));
    waiting_ = std::jthread([this, befall, after, device](const std::stop_token& over) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, over, after, [] { return false; });
      if (over.stop_requested() || cudaSetDevice(device) != cudaSuccess) return;
      befall();
    });
  }

 private:
  [[noreturn]] static void refuse(std::string_view all) {
    parley::runtime::raise(
        {parley::runtime::errc::bad_argument,
         "PARLEY_TEST_MISHAP is " + std::string(all) + ", and should be such as 1:dies@3, with dies or kernel_faults"});
  }
  static std::uint32_t number(std::string_view text, std::string_view all) {
    constexpr std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
    const auto n = parley::runtime::read_number<std::uint32_t>(text, {0, most});
    if (!n) refuse(all);
    return *n;
  }
  static void die() { std::raise(SIGKILL); }
  static void launch_faulty_kernel() {
    auto* const nowhere = reinterpret_cast<float*>(0x1000);  // NOLINT(performance-no-int-to-ptr): that is the fault
    cudaStream_t s = nullptr;
    if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess)
      static_cast<void>(launch_add(nowhere, nowhere, nowhere, 64, s));
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread waiting_;  // the last member, so that it ends before the mutex is destroyed
};

}  // namespace examples

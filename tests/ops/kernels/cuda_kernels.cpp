// Before each trial of a kernel on a GPU the caches are filled with other data, and the caches of instructions with other code.
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <parley/cuda_kernels.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::uint64_t l2_bytes = 40'000;

std::vector<transports::cuda_device> one_device() {
  return {{.name = "fake",
           .compute_capability = 90,
           .memory_bytes = 1U << 30U,
           .multiprocessors = 1,
           .l2_bytes = l2_bytes,
           .uuid = "GPU-fake-0"}};
}

/// A kernel with two implementations on a fake GPU. It is tuned at the first call with each number.
struct bench {
  /// A run of the kernel, with what the GPU did between the run before it and this one.
  struct seen_run {
    std::uint64_t filled_bytes = 0;
    std::uint64_t flushes = 0;
    friend bool operator==(const seen_run&, const seen_run&) = default;
  };
  bench() {
    kernels.enable_tunable_op(true);
    kernels.set_max_tuning_iterations(3);
  }
  /// Makes one call, and returns its runs. The last one is the caller's.
  std::vector<seen_run> call(std::uint64_t number) {
    runs.clear();
    kernel(number);
    CHECK(gpu_work.why_not_now().empty());  // the stream is empty
    return runs;
  }
  /// What the GPU did before each trial of a call, which must be the same for all. Before the caller's run it must do nothing.
  seen_run before_each_trial(std::uint64_t number) {
    const std::vector<seen_run> all = call(number);
    REQUIRE(all.size() >= 2 * (3 + 3) + 1);
    CHECK(all.back() == seen_run{});
    for (std::size_t i = 0; i + 1 < all.size(); ++i) CHECK(all[i] == all[0]);
    return all[0];
  }
  void launch(std::uint64_t ticks) {
    runs.push_back({.flushes = gpu.instruction_flushes - std::exchange(flushes_before, gpu.instruction_flushes)});
    gpu.launch(stream, ticks, [this, mine = runs.size() - 1] {
      runs[mine].filled_bytes = gpu.filled_bytes - std::exchange(filled_before, gpu.filled_bytes);
    });
  }

  virtual_time clock;
  fake_cuda gpu{one_device()};
  transports::cuda_stream stream = gpu.make_stream(0);
  cuda_kernels gpu_work{clock, gpu, 0, stream};
  tunable_context kernels{clock, nullptr, {}};
  std::vector<seen_run> runs;
  std::uint64_t flushes_before = 0, filled_before = 0;
  tunable_op<void(std::uint64_t)> kernel{
      kernels,
      {.name = "on_gpu",
       .key = [](std::uint64_t number) { return tuning::kernel_key{{"number", number}}; },
       .implementations = {{"plain", [this](std::uint64_t) { launch(40); }},
                           {"fast", [this](std::uint64_t) { launch(30); }}},
       .device = &gpu_work}};
};

}  // namespace

TEST_CASE("before each trial on a GPU as many bytes are filled as the program says, and before other runs none") {
  bench on;
  std::uint64_t number = 0;
  for (const std::uint64_t bytes : {std::uint64_t{4'096}, std::uint64_t{100'000}, std::uint64_t{512}}) {
    on.kernels.set_rotating_buffer_size(bytes);
    CHECK(on.before_each_trial(++number).filled_bytes == bytes);
  }
  on.kernels.set_rotating_buffer_size(0);
  CHECK(on.before_each_trial(++number).filled_bytes == 0);
  CHECK(on.call(number) == std::vector<bench::seen_run>(1));  // it is tuned
}

TEST_CASE("if the program sets no size, as many bytes as the L2 cache has are filled before each trial on a GPU") {
  bench on;
  CHECK(on.before_each_trial(1).filled_bytes == l2_bytes);
}

TEST_CASE(
    "the caches of instructions are flushed once before each trial on a GPU, unless the program switches that off") {
  bench on;
  CHECK(on.before_each_trial(1).flushes == 1);
  on.kernels.enable_icache_flush(false);
  CHECK(on.before_each_trial(2).flushes == 0);
  on.kernels.enable_icache_flush(true);
  CHECK(on.before_each_trial(3).flushes == 1);
}

TEST_CASE("what is filled before a run on a GPU is no part of the run's time") {
  bench on;
  on.gpu.ticks_per_copy = 1'000;  // of a fill, too
  for (const std::uint64_t number : {1U, 2U}) {
    on.kernels.set_rotating_buffer_size(number == 1 ? 4'096 : 0);
    static_cast<void>(on.before_each_trial(number));
  }
  REQUIRE(on.kernels.learned().size() == 2);
  CHECK(on.kernels.learned()[0].solution == "fast");
  CHECK(on.kernels.learned()[0].time_ms < 40 * fake_cuda::ns_per_tick / 1e6);
  CHECK(on.kernels.learned()[0].time_ms == on.kernels.learned()[1].time_ms);
}

TEST_CASE("if a GPU has no memory left, the memory of earlier fills is filled, or none, and kernels are still tuned") {
  bench on;
  on.gpu.memory_left = 5'000;
  CHECK(on.before_each_trial(1).filled_bytes == 0);  // the L2 cache is larger
  on.kernels.set_rotating_buffer_size(4'096);
  CHECK(on.before_each_trial(2).filled_bytes == 4'096);
  on.kernels.set_rotating_buffer_size(100'000);
  CHECK(on.before_each_trial(3).filled_bytes == 4'096);
  CHECK(on.kernels.learned().size() == 3);
}

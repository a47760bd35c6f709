// The whole sentences of errors from ops on devices. Other tests check structured facts, so that a sentence can be improved here and in the
// code alone.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/wording.hpp>

#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/ring_attention.hpp>

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using transports::cuda_memory;

constexpr std::size_t bytes = 4'096;

std::span<float> floats(const cuda_memory& m) {
  return {reinterpret_cast<float*>(m.bytes().data()), m.bytes().size() / sizeof(float)};
}

/// The errors of rank 0, on the first device, about buffers. `AT` replaces the address.
struct buffers {
  std::string of(std::span<std::byte> memory) {
    std::string text = sentence_of(w.copies[0]->check(memory, alignof(float)));
    const std::string at = fmt::format("{}", fmt::ptr(memory.data()));
    return text.replace(text.find(at), at.size(), "AT");
  }
  std::string of_other_device() { return of(theirs.bytes()); }
  std::string of_other_context() {
    return of({static_cast<std::byte*>(gpu.allocate_in_other_context(0, bytes)), bytes});
  }
  std::string of_host_memory() { return of(here); }
  std::string of_freed_memory() {
    auto* const freed = static_cast<std::byte*>(gpu.allocate(0, bytes));
    gpu.release(freed, transports::memory_place::kind::device);
    return of({freed, bytes});
  }
  std::string of_unaligned() { return of(mine.bytes().subspan(2, bytes - 4)); }

  fake_cuda gpu{2};
  two_ranks w{gpu, {direct()}};
  cuda_memory mine = cuda_memory::on_device(gpu, 0, bytes);
  cuda_memory theirs = cuda_memory::on_device(gpu, 1, bytes);
  std::vector<std::byte> here = std::vector<std::byte>(bytes);
};

std::string of_other_sum() {
  struct larger {
    float operator()(float a, float b) const { return std::max(a, b); }
  };
  fake_cuda gpu;
  two_ranks w(gpu, {direct()});
  collective_options op = led_by(0, {star()});
  op.memory = w.spaces[0].get();
  const collective group(*w.ranks[0], op);
  const auto memory = cuda_memory::on_device(gpu, 0, bytes);
  const auto call = [](collective g, std::span<float> x) -> task<result<>> {
    auto how = co_await attempt(g.all_reduce<larger>(x));
    co_return how;
  };
  return sentence_of(runtime::run(w.loop, call(group, floats(memory))));
}

/// The error of a call without a stream whose queries are `cut` elements too short.
std::string of_attention(std::size_t cut) {
  fake_cuda gpu;
  two_ranks w(gpu, {direct()});
  const ring_attention ring(*w.ranks[0], {.name = "attention", .configs = {direct()}, .memory = w.spaces[0].get()});
  attention_plan plan = ring.plan<float>({.heads = 1, .rows = 16, .dimensions = 4});
  const auto memory = cuda_memory::on_device(gpu, 0, 64 * sizeof(float));
  const std::span<float> x = floats(memory);
  const device_attention_block<float> kernel = [](const device_block<float>&) {};
  const auto call = [&]() -> task<result<>> {
    auto how = co_await attempt(plan.forward<float>(x.subspan(cut), x, x, x, nullptr, kernel));
    co_return how;
  };
  return sentence_of(runtime::run(w.loop, call()));
}

std::string of_missing_nccl() {
  fake_cuda gpu;
  two_ranks w(gpu, {direct(), nccl()});
  const auto from = cuda_memory::on_device(gpu, 0, bytes);
  const auto to = cuda_memory::on_device(gpu, 0, bytes);
  const auto missing = [&] { return w.ranks[0]->agreements().front().no_common_config; };
  for (const deadline limit; missing().empty() && !limit.is_over();) w.move(from.bytes(), to.bytes(), 10);
  return missing();
}

}  // namespace

TEST_CASE("errors of ops on devices have exactly the expected sentences") {
  buffers b;
  check_sentences({
      {b.of_other_device(), "bad_argument: 4096 bytes at AT, for an op whose buffers lie on device 0, lie on device 1; "
                            "copy them, or use that device's rank"},
      {b.of_other_context(), "bad_argument: 4096 bytes at AT, for an op whose buffers lie on device 0, belong to "
                             "another context; allocate them by cudaMalloc, or in the device's primary context"},
      {b.of_host_memory(), "bad_argument: 4096 bytes at AT, for an op whose buffers lie on device 0, are not in memory "
                           "known to CUDA: they lie in host memory, or were freed"},
      {b.of_freed_memory(), "bad_argument: 4096 bytes at AT, for an op whose buffers lie on device 0, are not in "
                            "memory known to CUDA: they lie in host memory, or were freed"},
      {b.of_unaligned(), "bad_argument: 4092 bytes at AT, for an op whose buffers lie on device 0, do not begin at a "
                         "multiple of 4, as numbers of this type must"},
      {of_other_sum(), "bad_argument: gradients 0->1: a device adds up integers, float, double, f16, bf16 and complex "
                       "numbers (std::plus); for other elements and functions declare an op on host memory"},
      {of_attention(1),
       "bad_argument: op attention, rank 0: q, k, v and out have 63, 64, 64, 64 elements where the shape has 64"},
      {of_attention(0),
       "bad_argument: op attention, rank 0: its arrays lie on a device; say in which stream kernels work on them"},
      {of_missing_nccl(), "no config beyond the default is available on every rank, so the default stays: rank 0 "
                          "(sender) has direct; rank 1 (receiver) has direct; rank 0 cannot run nccl: no NCCL was "
                          "given to this rank's link; rank 1 cannot run nccl: no NCCL was given to this rank's link"},
  });
}

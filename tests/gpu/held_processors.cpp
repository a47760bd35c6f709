// Messages from GPU to GPU while a kernel holds all processors of both: what copy engines move comes all the same, and what a kernel would
// have to move comes once they are free.
#include "kernels_on_gpu.hpp"

#include "../support/processes.hpp"

#include <parley/ops/run.hpp>
#include <parley/runtime/run.hpp>
#include <parley/transports/cuda_runtime.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t bytes = 1U << 20U;
constexpr int messages = 100;
constexpr const char* rank_test = "this program as one of two ranks whose processors are held";

void must(cudaError_t e, const char* what) {
  if (e != cudaSuccess) raise({errc::device_failed, std::string(what) + ": " + cudaGetErrorString(e)});
}

config_ptr by_kernel() { return put(0, 4, {.kernel_blocks = 16}); }

// A kernel that holds all processors of this rank's GPU until it is let go.
class holding {
 public:
  explicit holding(int device) {
    must(cudaHostAlloc(reinterpret_cast<void**>(&words_), 2 * sizeof(unsigned), cudaHostAllocMapped), "cudaHostAlloc");
    words_[0] = words_[1] = 0;
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    must(hold_all_processors(device, words_, words_ + 1, &blocks_, stream_), "a kernel");
  }
  holding(const holding&) = delete;
  holding& operator=(const holding&) = delete;
  ~holding() {
    let_go();
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
    cudaFreeHost(words_);
  }
  // All of its blocks run at one time, as none ends.
  bool holds() const { return std::atomic_ref(words_[1]).load() == blocks_; }
  void let_go() { std::atomic_ref(words_[0]).store(1); }

 private:
  unsigned* words_ = nullptr;
  unsigned blocks_ = 0;
  cudaStream_t stream_ = nullptr;
};

struct ends {
  rank& self;
  transfer by_engine;
  transfer by_kernel;
  transfer met;  // in host memory
  std::span<std::byte> buffer;
  int device;

  task<> one(transfer& t) {
    if (self.id() == 0) {
      co_await t.send(buffer, {.to = 1});
    } else {
      co_await t.receive(buffer, {.from = 0});
    }
  }
  // Both ranks have come so far.
  task<> meet() {
    const std::array<int, 1> out{};
    std::array<int, 1> in{};
    scope& here = co_await this_scope;
    scope both(here);
    both.spawn([](ends* e, std::span<const int> o) -> task<> { co_await e->met.send(o, {.to = 1 - e->self.id()}); }(
                                                       this, out));
    co_await met.receive(in, {.from = 1 - self.id()});
    co_await both.join();
  }
};

task<> late_one(ends* e, bool* is_over) {
  co_await e->one(e->by_kernel);
  *is_over = true;
}

task<> while_held(ends* e) {
  const std::array<transfer*, 2> both{&e->by_engine, &e->by_kernel};
  const std::vector<std::uint64_t> sizes(1, bytes);
  for (transfer* const t : both) {
    co_await t->tune(sizes);
    for (int i = 0; i < 20; ++i) co_await e->one(*t);  // its memory is mapped, and each kernel loaded
  }
  CHECK(e->by_engine.decision(bytes).config == put()->id());
  CHECK(e->by_kernel.decision(bytes).config == by_kernel()->id());
  holding held(e->device);
  while (!held.holds()) co_await yield;
  co_await e->meet();
  for (int i = 0; i < messages; ++i) co_await e->one(e->by_engine);
  co_await e->meet();
  scope& here = co_await this_scope;
  scope later(here);
  bool is_over = false;
  later.spawn(late_one(e, &is_over));
  auto woken = co_await sleep_until(here.where().now() + 300'000'000);
  woken.value();
  CHECK_FALSE(is_over);  // which shows that they are held
  held.let_go();
  co_await later.join();
}

}  // namespace

TEST_CASE("this program as one of two ranks whose processors are held" * doctest::skip()) {
  if (std::getenv(scenario_variable) == nullptr) return;
  job_options o;
  o.gpu = transports::cuda_runtime().value();
  const int status = ops::run(
      [&](job& j) {
        must(cudaSetDevice(j.gpu()->device()), "cudaSetDevice");
        must(load_case_kernels(), "loading kernels");
        const auto block = j.gpu_memory()->make(bytes);
        const auto op = [&](const char* name, config_ptr config) {
          return j.self().declare(paired_transfer{
              .name = name, .configs = {direct(), std::move(config)}, .edges = {{0, 1}}, .memory = j.gpu_memory()});
        };
        ends e{j.self(),
               op("by_engine", put()),
               op("by_kernel", by_kernel()),
               j.self().declare(paired_transfer{.name = "met", .edges = {{0, 1}, {1, 0}}}),
               block->bytes(),
               j.gpu()->device()};
        const std::array known{e.by_engine.registered(e.buffer), e.by_kernel.registered(e.buffer)};
        run(j.loop(), while_held(&e));
      },
      o);
  REQUIRE(status == 0);
}

TEST_CASE("messages that copy engines move come while kernels hold all processors of both GPUs") {
  if (transports::cuda_runtime().value()->devices().size() < 2) {
    MESSAGE("there is one GPU, on which a kernel moves what stays there: not looked at");
    return;
  }
  const job_run run(rank_test, "held processors", 2);
  CHECK_MESSAGE(run.fine(), run.all);
}

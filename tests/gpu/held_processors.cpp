// Messages between GPUs while a kernel holds all processors of both. Messages that copy engines move must arrive meanwhile. A message that
// a kernel has to move arrives once the processors are free.
#include <parley/tests/gpu/kernels_on_gpu.hpp>
#include <parley/tests/gpu/must.hpp>

#include <parley/tests/support/processes.hpp>

#include <parley/config.hpp>
#include <parley/cuda_runtime.hpp>
#include <parley/cuda_space.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

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
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t bytes = 1U << 20U;
constexpr int messages = 100;
constexpr int most_before = 2'000;
constexpr const char* rank_test = "this program as one of two ranks whose processors are held";

config_ptr by_kernel() { return put(0, 4, {.kernel_blocks = 16}); }

// A kernel that holds all processors of this rank's GPU until it is released.
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
  // No block ends before the release, so all of them run at the same time once all have begun.
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
  transfer met;  // synchronizes the ranks, in host memory
  std::span<std::byte> buffer;
  const transports::cuda_copies& copies;
};

// Waits until both ranks have come here, and returns whether the other rank says yes.
task<> tell(ends* e, const int* word) { co_await e->met.send(std::span(word, 1), {.to = 1 - e->self.id()}); }
task<bool> meet(ends* e, bool mine) {
  const int out = mine ? 1 : 0;
  int in = 0;
  scope& here = co_await this_scope;
  scope both(here);
  both.spawn(tell(e, &out));
  co_await e->met.receive(std::span(&in, 1), {.from = 1 - e->self.id()});
  co_await both.join();
  co_return in != 0;
}

task<> receive(ends* e, transfer* t) { co_await t->receive(e->buffer, {.from = 0}); }

// Moves one message. The receive is posted first, so that the sender has its credit in time; without a credit the default would move the
// message. Returns whether the agreed config ran: the receiver copied nothing, and the sender used a kernel exactly if `t` is `by_kernel`.
task<bool> one(ends* e, transfer* t) {
  const auto before = e->copies.statistics();
  scope& here = co_await this_scope;
  if (e->self.id() == 0) {
    static_cast<void>(co_await meet(e, true));
    auto woken = co_await sleep_until(here.where().deadline_in(1'000'000));
    woken.value();
    co_await t->send(e->buffer, {.to = 1});
  } else {
    scope receiving(here);
    receiving.spawn(receive(e, t));
    co_await yield;
    static_cast<void>(co_await meet(e, true));
    co_await receiving.join();
  }
  const auto& now = e->copies.statistics();
  co_return e->self.id() == 0 ? (now.by_kernel != before.by_kernel) == (t == &e->by_kernel)
                              : now.copies == before.copies;
}

// Runs messages until the agreed config has moved 20 in a row. By then its memory is mapped and each kernel is loaded.
task<> warm(ends* e, transfer* t, const config_ptr* agreed) {
  const std::vector<std::uint64_t> sizes(1, bytes);
  co_await t->tune(sizes);
  CHECK(t->decision(bytes).config == (*agreed)->id());
  for (int in_a_row = 0, left = most_before; in_a_row < 20; --left) {
    const bool mine = co_await one(e, t);
    const bool other = co_await meet(e, mine);
    in_a_row = mine && other ? in_a_row + 1 : 0;
    if (left == 0) raise({errc::timeout, "what was agreed on does not run: " + (*agreed)->id()});
  }
}

task<> late_one(ends* e, bool* as_agreed, bool* is_over) {
  *as_agreed = co_await one(e, &e->by_kernel);
  *is_over = true;
}

task<> while_held(ends* e) {
  const config_ptr engine = put(), kernel = by_kernel();
  co_await warm(e, &e->by_engine, &engine);
  co_await warm(e, &e->by_kernel, &kernel);
  holding held(e->copies.device());
  while (!held.holds()) co_await yield;
  static_cast<void>(co_await meet(e, true));
  int otherwise = 0;
  for (int i = 0; i < messages; ++i) otherwise += co_await one(e, &e->by_engine) ? 0 : 1;
  CHECK(otherwise == 0);
  static_cast<void>(co_await meet(e, true));
  scope& here = co_await this_scope;
  scope later(here);
  bool as_agreed = false;
  bool is_over = false;
  later.spawn(late_one(e, &as_agreed, &is_over));
  auto woken = co_await sleep_until(here.where().deadline_in(300'000'000));
  woken.value();
  CHECK_FALSE(is_over);  // so the kernel really holds the processors
  held.let_go();
  co_await later.join();
  CHECK(as_agreed);
}

}  // namespace

TEST_CASE("this program as one of two ranks whose processors are held" * doctest::skip()) {
  if (std::getenv(scenario_variable) == nullptr) return;
  job_options o;
  o.gpu = transports::cuda_runtime().value();
  const int status = ops::run(
      [&](job& j) {
        must(cudaSetDevice(j.gpu()->device()), "cudaSetDevice");
        must(launch_case_kernels_once(j.gpu()->prompt()), "first launches");
        const auto block = j.gpu_memory()->make(bytes);
        const auto op = [&](const char* name, config_ptr config) {
          return transfer(
              j.self(),
              {.name = name, .edges = {{0, 1}}, .configs = {direct(), std::move(config)}, .memory = j.gpu_memory()});
        };
        ends e{j.self(),
               op("by_engine", put()),
               op("by_kernel", by_kernel()),
               transfer(j.self(), {.name = "met", .edges = {{0, 1}, {1, 0}}}),
               block->bytes(),
               *j.gpu()};
        const std::array known{e.by_engine.registered(e.buffer), e.by_kernel.registered(e.buffer)};
        run(j.loop(), while_held(&e));
      },
      o);
  REQUIRE(status == 0);
}

TEST_CASE("messages that copy engines move arrive while kernels hold all processors of both GPUs") {
  if (transports::cuda_runtime().value()->devices().size() < 2) {
    MESSAGE("there is one GPU, on which a kernel moves what stays there: not looked at");
    return;
  }
  const job_run run(rank_test, "held processors", 2);
  CHECK_MESSAGE(run.fine(), run.all);
}

#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <doctest/doctest.h>
#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/cuda_space.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/pipeline.hpp>
#include <parley/transfer.hpp>

#include <memory>
#include <utility>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

std::vector<config_ptr> all_configs() {
  return {direct(), chunked(8'000, 3), put(), put(16'000, 2), get(), get(20'000, 2)};
}

/// A stage whose kernels run on a stream of its own. Its work ends when the kernels are enqueued; the last stage also checks the result.
struct device_stage final : pipeline_work {
  device_stage(fake_cuda& g, transports::cuda_copies& c, pipeline p)
      : gpu(g), copies(c), pipe(std::move(p)), stream(g.make_stream(0)) {}
  ~device_stage() { gpu.destroy(stream); }
  task<> work(std::uint64_t microbatch, std::span<std::byte> activation) override {
    const bool first = pipe.first();
    gpu.launch(stream, 3, [this, first, microbatch, activation] {
      std::byte* const at = gpu.shadow(activation.data());
      for (std::size_t i = 0; i < activation.size(); ++i) {
        const auto before = first ? static_cast<unsigned>(i + microbatch) : std::to_integer<unsigned>(at[i]);
        at[i] = static_cast<std::byte>(before * 3 + 1);
      }
    });
    CHECK(copies.after(activation, stream) == errc::none);
    if (!pipe.last()) co_return;
    std::vector<std::byte> out(activation.size());
    transports::cuda_space space(copies);
    co_await space.copy(out, activation);
    for (std::size_t i = 0; i < out.size(); ++i) {
      auto right = static_cast<unsigned>(i + microbatch);
      for (std::size_t s = 0; s < pipe.stages(); ++s) right = (right & 255U) * 3 + 1;
      if (out[i] != static_cast<std::byte>(right)) ++wrong;
    }
    ++finished;
  }
  fake_cuda& gpu;
  transports::cuda_copies& copies;
  pipeline pipe;
  transports::cuda_stream stream;
  std::size_t wrong = 0;
  std::size_t finished = 0;
};

task<> run_stage(pipeline p, std::span<const std::uint64_t> bytes, pipeline_work& work) { co_await p.run(bytes, work); }

TEST_CASE("eight ranks of one process run a pipeline on device buffers, and each edge agrees on a config") {
  fake_cuda gpu;
  {
    rank_settings settings;
    settings.plan.budget_fraction = 1e9;
    one_process job({.ranks = 8, .settings = settings, .gpu = &gpu});
    std::vector<std::unique_ptr<transports::cuda_space>> spaces;
    std::vector<std::unique_ptr<device_stage>> stages;
    for (rank_id r = 0; r < job.size(); ++r) {
      spaces.push_back(std::make_unique<transports::cuda_space>(*job.gpu(r)));
      const pipeline p(job[r], {.name = "activations", .configs = all_configs(), .memory = spaces.back().get()});
      stages.push_back(std::make_unique<device_stage>(gpu, *job.gpu(r), p));
    }
    const std::vector<std::uint64_t> sizes(40, 50'000);
    const auto tried = [&](rank_id sender) {
      const actors::search* const c = job[sender].agreements().front().assigned->find(50'000);
      return c != nullptr && c->trials() > 0;
    };
    std::size_t rounds = 0;
    bool all_tried = false;
    for (const deadline limit; !all_tried && !limit.is_over(); ++rounds) {
      job.run([&](rank& self) { return run_stage(stages[self.id()]->pipe, sizes, *stages[self.id()]); });
      all_tried = true;
      for (rank_id r = 0; r + 1 < job.size(); ++r) all_tried = all_tried && tried(r);
    }
    job.settle(1s);
    CHECK(all_tried);
    CHECK(stages.back()->finished == rounds * sizes.size());
    CHECK(stages.back()->wrong == 0);
    for (rank_id r = 0; r + 1 < job.size(); ++r)
      for (const std::string& e : *job[r].agreements().front().warm_errors) FAIL_CHECK(e);
    stages.clear();
  }
  CHECK(gpu.blocks() == 0);
}

struct pair_of_ranks {
  /// The buffers of the first `on_device` ranks lie in GPU memory, and those of the other ranks in host memory.
  explicit pair_of_ranks(fake_cuda* gpu, rank_id on_device = 2) : job({.ranks = 2, .gpu = gpu}) {
    for (rank_id r = 0; r < 2; ++r) {
      const bool there = gpu != nullptr && r < on_device;
      if (there) spaces.push_back(std::make_unique<transports::cuda_space>(*job.gpu(r)));
      ends.push_back(transfer(job[r], {.name = "buffers",
                                       .edges = {{0, 1}},
                                       .configs = all_configs(),
                                       .memory = there ? spaces.back().get() : nullptr,
                                       .timeout = 20s}));
    }
  }
  one_process job;
  std::vector<std::unique_ptr<transports::cuda_space>> spaces;
  std::vector<transfer> ends;
};

struct programs {
  static task<> move(pair_of_ranks& both, rank& self, std::span<std::byte> mine, int times) {
    const auto handle = both.ends[self.id()].registered(mine);
    for (int i = 0; i < times; ++i) {
      if (self.id() == 0) {
        co_await both.ends[0].send(mine, {.to = 1});
      } else {
        const std::uint64_t got = co_await both.ends[1].receive(mine, {.from = 0});
        CHECK(got == mine.size());
      }
    }
  }
  static task<> exchange(pair_of_ranks& both, rank& self, std::span<std::byte> mine, errc& outcome) {
    if (self.id() == 0) {
      auto sent = co_await attempt(both.ends[0].send(mine, {.to = 1}));
      outcome = sent.code();
    } else {
      auto got = co_await attempt(both.ends[1].receive(mine, {.from = 0}));
      outcome = got.code();
    }
  }
};

TEST_CASE("a paired transfer moves device buffers in place") {
  fake_cuda gpu;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1'000}, std::size_t{100'001}}) {
    pair_of_ranks both(&gpu);
    const auto from = transports::cuda_memory::on_device(gpu, 0, bytes);
    const auto to = transports::cuda_memory::on_device(gpu, 0, bytes);
    fill(gpu, from.bytes(), 5);
    both.job.run(
        [&](rank& self) { return programs::move(both, self, self.id() == 0 ? from.bytes() : to.bytes(), 40); });
    CHECK(holds(gpu, to.bytes(), 5));
    both.job.settle(1s);
  }
}

TEST_CASE("ranks of one process also move host buffers") {
  pair_of_ranks both(nullptr);
  std::vector<std::byte> from(100'001, std::byte{7});
  std::vector<std::byte> to(100'001);
  both.job.run([&](rank& self) { return programs::move(both, self, self.id() == 0 ? from : to, 40); });
  CHECK(from == to);
  both.job.settle(1s);
}

TEST_CASE("a transfer moves a device buffer into a host buffer") {
  fake_cuda gpu;
  pair_of_ranks both(&gpu, 1);
  const auto from = transports::cuda_memory::on_device(gpu, 0, 70'000);
  std::vector<std::byte> to(70'000);
  fill(gpu, from.bytes(), 9);
  std::array<errc, 2> outcome{};
  both.job.run([&](rank& self) {
    return programs::exchange(both, self, self.id() == 0 ? from.bytes() : std::span(to), outcome[self.id()]);
  });
  CHECK(outcome == std::array{errc::none, errc::none});
  CHECK(std::memcmp(to.data(), gpu.shadow(from.bytes().data()), to.size()) == 0);
}

TEST_CASE("a device that breaks ends the calls on both sides, and nothing hangs") {
  fake_cuda gpu;
  const auto from = transports::cuda_memory::on_device(gpu, 0, 70'000);
  const auto to = transports::cuda_memory::on_device(gpu, 0, 70'000);
  pair_of_ranks both(&gpu);
  gpu.break_at_copy = 1;
  std::array<errc, 2> outcome{};
  both.job.run([&](rank& self) {
    return programs::exchange(both, self, self.id() == 0 ? from.bytes() : to.bytes(), outcome[self.id()]);
  });
  CHECK(outcome[0] != errc::none);
  CHECK(outcome[1] != errc::none);
}

}  // namespace

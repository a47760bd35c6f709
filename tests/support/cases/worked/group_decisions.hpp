#pragma once
/// Worked cases 6 and 8: decisions of groups in many sizes, and with ranks that lack a config.
#include <parley/tests/support/cases/mixture_case.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/place.hpp>

#include <parley/agreement.hpp>
#include <parley/collective.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/group_config.hpp>
#include <parley/registration.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

inline task<> mixture(here* h, std::string wire_of_optimized) {
  using namespace mixture_case;
  machine_room room;
  collective_options op = led_by(0, {});
  op.name = "mixed with " + wire_of_optimized;
  op.timeout = std::chrono::nanoseconds(h->patience);
  const std::vector<group_config_ptr> configs{
      std::make_shared<timed_star>(room, h->self.where(), "nccl", "wire",
                                   std::vector<time_ns>{10'500_us, 10'500_us, 4'000_us, 4'000_us}),
      std::make_shared<timed_star>(room, h->self.where(), "cuda_graph", "wire", everywhere(12'300_us)),
      std::make_shared<timed_star>(room, h->self.where(), "h100_optimized", wire_of_optimized,
                                   std::vector<time_ns>{2'700_us, 2'500_us, 60_s, 60_s})};
  const auto h100 = [](rank_id r) { return std::vector<bool>{true, true, r < 2}; };
  const collective mixed = register_heterogeneous_autotuning(h->self, op, configs, h100);
  bool enough = false;
  for (const deadline limit; !enough;) {
    for (int i = 0; i < 10; ++i) {
      std::vector<float> x = contribution(h->me, 1000);
      collective by = mixed;
      co_await by.all_reduce(std::span(x));
      CHECK(wrong_sums(x, h->ranks) == 0);
    }
    enough = co_await on_all_ranks(h, mixed.decision(4'000).decided || limit.is_over());
  }
  // If h100_optimized is of the same wire class, ranks 2 and 3 run another config with it; if it is not, no rank runs it.
  const int optimized = room.ran["h100_optimized"][h->me];
  const int own = room.ran["nccl"][h->me];
  const bool shared = wire_of_optimized == "wire";
  CHECK((optimized > 0) == (shared && h->me < 2));
  check_choice(h, mixed.decision(4'000), shared ? "h100_optimized" : "nccl");
  const double all_optimized = co_await total(h, optimized);
  const double of_0 = co_await total(h, h->me == 0 ? own + optimized : 0);
  const double of_2 = co_await total(h, h->me == 2 ? own : 0);
  if (h->is_virtual()) CHECK(of_0 == of_2);
  if (h->me < 2) CHECK(all_optimized == 2 * optimized);
}

/// 20 sizes of one op, with the noise that the machine has: every rank knows every decision, and all know the same.
inline task<> twenty_keys(here* h) {
  collective_options op = led_by(0, {star(), chain(4'096), tree()});
  op.name = "in twenty sizes";
  op.timeout = std::chrono::nanoseconds(h->patience);
  const collective all(h->self, op);
  constexpr std::size_t keys = 20;
  std::vector<float> x(std::size_t{1} << (keys - 1));
  bool enough = false;
  for (const deadline limit; !enough;) {
    bool decided = true;
    for (std::size_t key = 0; key < keys; ++key) {
      const std::span<float> mine = std::span(x).first(std::size_t{1} << key);
      decided = decided && all.decision(mine.size_bytes()).decided;
      for (int i = 0; i < 5; ++i) {
        std::fill(mine.begin(), mine.end(), 1.0F);
        collective by = all;
        co_await by.all_reduce(mine);
        CHECK(mine.back() == static_cast<float>(h->ranks));
      }
    }
    enough = co_await on_all_ranks(h, decided || limit.is_over());
  }
  int unlike = 0;
  for (std::size_t key = 0; key < keys; ++key) {
    const decision d = all.decision(sizeof(float) << key);
    CHECK(d.decided);
    const auto its =
        std::find_if(op.configs.begin(), op.configs.end(), [&](const auto& c) { return c->id() == d.config; });
    const auto place = static_cast<double>(its - op.configs.begin());
    const double sum = co_await total(h, place);
    unlike += sum == place * h->ranks ? 0 : 1;
  }
  CHECK(unlike == 0);
}

/// A sum on GPUs, and then a wait that differs between ranks.
class waiting_sum final : public symmetric_config {
 public:
  waiting_sum(const char* name, gpu_sum::way how, time_ns on_first, time_ns on_others)
      : symmetric_config({.name = name, .wire_class = name}), how_(how), on_first_(on_first), on_others_(on_others) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    ++runs;
    co_await dynamic_cast<gpu_world&>(*call.communicator).run({how_, data, 8});
    co_await wait_here(call.self == 0 ? on_first_ : on_others_);
  }
  mutable int runs = 0;

 private:
  gpu_sum::way how_;
  time_ns on_first_;
  time_ns on_others_;
};

/// Sums until all ranks know the decision, which must be the same one.
inline task<decision> sum_until_decided(here* h, symmetric sums) {
  const array<float> x(h->at, 10'000);
  bool enough = false;
  for (const deadline limit; !enough;) {
    for (int i = 0; i < 5; ++i) {
      const std::vector<float> mine = contribution(h->me, x.size());
      co_await bring(h->at, x, std::span(mine));
      h->at.compute(kernels::linear{h->at.seen(x), h->at.seen(x), nullptr, 2, 0}, x.size());
      h->at.before_messages(x.bytes());
      co_await sums.run(x.bytes());
      std::vector<float> sum = co_await taken(h->at, x);
      for (float& s : sum) s /= 2;
      CHECK(wrong_sums(sum, h->ranks) == 0);
    }
    enough = co_await on_all_ranks(h, sums.decision(x.bytes().size()).decided || limit.is_over());
  }
  const decision d = sums.decision(x.bytes().size());
  CHECK(d.decided);
  const auto mine = static_cast<double>(d.digest % 1'000'003);
  const double all = co_await total(h, mine);
  CHECK(all == mine * h->ranks);
  co_return d;
}

inline task<> heterogeneous_sums(here* h) {
  gpu_world_source::options with = h->gpu_sums.with;
  with.kernel_bytes = 10'000 * sizeof(float);
  const auto source = std::make_shared<gpu_world_source>(h->self, "on GPUs", *h->gpu_sums.copies, with);
  const std::shared_ptr<communicator> world = co_await source->connect_all();
  symmetric_options op;
  op.name = "on GPUs";
  op.communicator = world;
  op.rehearse = source;
  op.timeout = std::chrono::nanoseconds(h->patience);
  op.memory = h->at.memory();
  op.configs = default_first(*world, {nccl_sum(), nccl_graph_sum(), kernel_sum(), gathered_sum(8), gathered_sum(32)});
  const symmetric every_way(h->self, op);
  const decision d = co_await sum_until_decided(h, every_way);
  // A config that some member lacks is excluded on all ranks, which know the reason.
  CHECK(d.evidence.size() == op.configs.size());
  for (const auto& e : d.evidence) {
    const auto its = std::ranges::find(op.configs, e.config, [](const auto& c) { return c->id(); });
    REQUIRE(its != op.configs.end());
    const auto works = (*its)->works_over(world.get());
    CAPTURE(e.config);
    CHECK_MESSAGE((works || (e.status != "measured" && e.detail.find(works.reason().text()) != std::string::npos)),
                  e.detail);
  }
  // Half of the ranks lack the fastest config, and the longest time of all ranks counts.
  const auto how = dynamic_cast<gpu_world&>(*world).lacks(gpu_sum::way::gathered).empty() ? gpu_sum::way::gathered
                                                                                          : gpu_sum::way::nccl;
  const auto optimized = std::make_shared<waiting_sum>("h100_optimized", how, 100_us, 100_us);
  op.name = "with half of an H100";
  op.configs = {std::make_shared<waiting_sum>("nccl", how, 12_ms, 12_ms),
                std::make_shared<waiting_sum>("cuda_graph", how, 6_ms, 6_ms),
                std::make_shared<waiting_sum>("uneven", how, 100_us, 20_ms), optimized};
  op.can_run = [half = h->ranks / 2](rank_id r) { return std::vector<bool>{true, true, true, r < half}; };
  const symmetric mixed(h->self, op);
  const decision agreed = co_await sum_until_decided(h, mixed);
  CHECK(agreed.config == "cuda_graph");
  CHECK(optimized->runs == 0);
}

}  // namespace parley::tests::worked_cases

// Four ranks on a virtual clock: a pipeline whose three edges tune themselves, compared with the usual scheme on the
// same executor and links. The usual scheme stops all ranks, tries each config behind a barrier, and agrees by an
// all-reduce.
//
//     tuning_virtual --only parley|barriers [--bytes N] [--configs 8] [--warm_ups 1] [--repetitions 5]
//                    [--microbatches 200] [--compute_us 5000]
//
// The clock is exact, so one run is enough. trial_costs.hpp and peers/mpi_tuning.cpp define what counts as lost.
#include <parley/bench/measure.hpp>
#include <parley/bench/modelled_link.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/bench/trial_costs.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/parley.hpp>
#include <parley/runtime/time/virtual_time.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::runtime;

constexpr rank_id ranks = 4;

struct world {
  explicit world(const parley::ops::rank_settings& settings) : links(clock, ranks) {
    for (rank_id r = 0; r < ranks; ++r)
      all.push_back(std::make_unique<parley::rank>(
          parley::ops::rank_foundation{clock, links[r], nullptr, {{1, 2, 3, 4}}, {}}, settings));
  }
  virtual_time clock;
  modelled_world links;
  std::vector<std::unique_ptr<parley::rank>> all;
};

// ---- parley: trials inside the stream of microbatches

class modelled_stage final : public parley::pipeline_stage {
 public:
  explicit modelled_stage(time_ns compute_ns) : compute_ns_(compute_ns) {}
  void forward(std::uint64_t, std::span<std::byte>) override {}
  time_ns modelled_ns(std::uint64_t, std::size_t) const override { return compute_ns_; }

 private:
  time_ns compute_ns_;
};

void run_parley(const arguments& given) {
  world w({});
  const auto configs = catalogue(std::size_t(given.number("configs", 8)));
  const std::vector<std::uint64_t> sizes(std::size_t(given.number("microbatches", 200)),
                                         std::uint64_t(given.number("bytes", 16 << 20)));
  modelled_stage stage(given.number("compute_us", 5000) * 1000);
  scope working(w.clock);
  std::vector<parley::pipeline> pipes;
  for (auto& r : w.all)
    pipes.push_back(parley::pipeline(*r, {.name = "activations", .stages = {}, .configs = configs}));
  for (auto& p : pipes) working.spawn(p.run(sizes, stage));
  const time_ns start = w.clock.now();
  run_until(w.clock, [&] { return working.running() == 0; });
  const auto wall = double(w.clock.now() - start);
  trial_costs sum;
  for (const auto& r : w.all) sum += costs_of(*r);
  report("virtual_tuning_time_lost", sum.lost_ns(), "ns");
  report("virtual_tuning_cost", 100 * sum.lost_ns() / wall, "percent");
  report("trials_lost", sum.trials_ns, "ns");
  report("rehearsals_lost", sum.rehearsals_ns, "ns");
  report("control_messages", sum.messages, "in_all");
  report("trials", sum.trials, "in_all");
  report("undecided", sum.undecided, "in_all");
}

// ---- the usual scheme

// A barrier combined with a MAX all-reduce: each rank waits until all have arrived, and gets the largest of their
// values. `meet` adds the time of a barrier of log2(4) rounds over these links.
class barrier {
 public:
  class arriving : public waiter {
   public:
    arriving(barrier& at, double value) noexcept : waiter(&on_cancelled), at_(at), value_(value) {}
    bool await_ready() const noexcept { return false; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (!enter(caller)) return false;
      at_.arrive(*this);
      return true;
    }
    double await_resume() const noexcept { return value_; }

   private:
    friend barrier;
    static void on_cancelled(waiter& self, errc why) noexcept { self.wake(why); }
    barrier& at_;
    double value_;
  };
  arriving reach(double value) noexcept { return {*this, value}; }

 private:
  void arrive(arriving& one) {
    here_.push_back(&one);
    if (here_.size() < ranks) return;
    double largest = 0;
    for (const arriving* a : here_) largest = std::max(largest, a->value_);
    for (arriving* a : here_) {
      a->value_ = largest;
      a->wake(errc::none);
    }
    here_.clear();
  }
  std::vector<arriving*> here_;
};
constexpr time_ns barrier_ns = 2 * 4'000;  // two rounds of one message each: latency plus the cost of starting it

struct scheme {
  std::vector<std::vector<parley::transfer>> of_config;  // by config, then by rank
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  barrier all;
};

task<> meet(scheme& s, double value, double& largest) {
  largest = co_await s.all.reach(value);
  scope& here = co_await this_scope;
  auto woken = co_await sleep_until(here.where().deadline_in(barrier_ns));
  if (!woken) give_up("the barrier was cancelled");
}

// One transfer on every edge: each rank sends to the next and receives from the previous one.
task<> step_out(scheme& s, std::size_t config, rank_id me) {
  co_await s.of_config[config][me].send(s.sent[me], {.to = me + 1});
}
task<> step_in(scheme& s, std::size_t config, rank_id me) {
  co_await s.of_config[config][me].receive(s.received[me], {.from = me - 1});
}
task<> step(scheme& s, std::size_t config, rank_id me) {
  scope both(co_await this_scope);
  if (me + 1 < ranks) both.spawn(step_out(s, config, me));
  if (me > 0) both.spawn(step_in(s, config, me));
  co_await both.join();
}

task<> tune(scheme& s, rank_id me, std::int64_t warm_ups, std::int64_t repetitions, std::size_t& best) {
  scope& here = co_await this_scope;
  double ignored = 0;
  double best_ns = std::numeric_limits<double>::infinity();
  co_await meet(s, 0, ignored);  // gathers the lists of configs
  for (std::size_t config = 0; config < s.of_config.size(); ++config) {
    co_await meet(s, 0, ignored);
    for (std::int64_t n = 0; n < warm_ups; ++n) co_await step(s, config, me);
    std::vector<double> times;
    for (std::int64_t n = 0; n < repetitions; ++n) {
      const time_ns start = here.where().now();
      co_await step(s, config, me);
      times.push_back(double(here.where().now() - start));
    }
    double slowest = 0;
    const double mine = median(std::move(times));
    co_await meet(s, mine, slowest);
    if (slowest < best_ns) {
      best_ns = slowest;
      best = config;
    }
  }
}

void run_barriers(const arguments& given) {
  world w({});
  scheme s;
  const auto bytes = std::size_t(given.number("bytes", 16 << 20));
  for (rank_id r = 0; r < ranks; ++r) {
    s.sent.emplace_back(bytes);
    s.received.emplace_back(bytes);
  }
  const auto configs = catalogue(std::size_t(given.number("configs", 8)));
  for (std::size_t c = 0; c < configs.size(); ++c) {
    auto& transfers = s.of_config.emplace_back();
    for (auto& r : w.all)
      transfers.push_back(parley::transfer(*r, {.name = "edges with config " + std::to_string(c),
                                                .role = {},
                                                .edges = {{0, 1}, {1, 2}, {2, 3}},
                                                .configs = {configs[c]}}));
  }
  // The ranks exchange their declarations of the ops before the scheme starts.
  scope settling(w.clock);
  for (auto& r : w.all) settling.spawn(r->settle(10s));
  run_until(w.clock, [&] { return settling.running() == 0; });

  std::array<std::size_t, ranks> best{};
  scope working(w.clock);
  const time_ns start = w.clock.now();
  for (rank_id r = 0; r < ranks; ++r)
    working.spawn(tune(s, r, given.number("warm_ups", 1), given.number("repetitions", 5), best[r]));
  run_until(w.clock, [&] { return working.running() == 0; });
  report("virtual_barriers_time_lost", double(w.clock.now() - start), "ns");
  report("virtual_barriers_winner", double(best[0]), "index");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "parley");
  if (only == "parley")
    run_parley(given);
  else if (only == "barriers")
    run_barriers(given);
  else
    give_up("--only takes parley or barriers, not " + only);
}

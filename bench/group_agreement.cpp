// A leader and its workers (three by default) on a virtual clock, with links of fixed latency. Measures how many
// round trips their agreement waits for, apart from the rehearsals and trials themselves, and how many control
// messages the leader handles.
//
//     group_agreement --only agreement|barriers [--bytes N] [--latency_us 50] [--ranks 4]
//
// Three intervals count: from the offers to merge and warm-up; from the last rank's rehearsals to the first trial
// that may be stamped; from the end of the last rank's last trial until every rank knows the winner. The usual scheme
// gathers the lists of configs, then needs a barrier before and an all-reduce after each config.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/bench/measure.hpp>
#include <parley/bench/modelled_link.hpp>
#include <parley/ops/groups/group.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/parley.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/runtime/wire/router.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::runtime;

constexpr unsigned timed_flag = 1;
constexpr unsigned rehearsal_flag = 4;

struct world {
  world(rank_id ranks, time_ns latency_ns)
      : links(clock, ranks, {.latency_ns = latency_ns, .per_part_ns = 0, .ns_per_byte = 0.001, .eager_bytes = 8192}) {
    parley::ops::rank_settings settings;
    settings.plan.budget_fraction = 1e9;  // no limit: agree as fast as possible
    std::vector<std::uint64_t> incarnations;
    for (rank_id r = 0; r < ranks; ++r) incarnations.push_back(r + 1);
    for (rank_id r = 0; r < ranks; ++r)
      all.push_back(std::make_unique<parley::rank>(
          parley::ops::rank_foundation{clock, links[r], nullptr, incarnations, {}}, settings));
  }
  std::vector<parley::collective> declare(const std::vector<parley::group_config_ptr>& configs) {
    parley::collective_options op;
    op.name = "gradients";
    op.role = [](rank_id r) { return r == 0 ? parley::role::leader : parley::role::worker; };
    op.configs = configs;
    std::vector<parley::collective> groups;
    for (auto& r : all) groups.emplace_back(*r, op);
    return groups;
  }
  template <class Condition>
  void go_until(const Condition& reached) {
    run_until(clock, reached);
  }
  double messages() const {
    double sum = 0;
    for (const auto& r : all) sum += double(r->mail().statistics().sent);
    return sum;
  }
  virtual_time clock;
  modelled_world links;
  std::vector<std::unique_ptr<parley::rank>> all;
};

std::vector<parley::group_config_ptr> catalogue() {
  using namespace parley::literals;
  return {parley::configs::star(), parley::configs::star(16_KiB), parley::configs::star(64_KiB),
          parley::configs::chain(16_KiB)};
}

task<> reduce_for_ever(parley::collective group, std::uint64_t bytes, const bool& over, std::uint64_t& calls) {
  std::vector<float> data(bytes / sizeof(float));
  while (!over) {
    co_await group.all_reduce(std::span(data));
    ++calls;
  }
}

task<> reduce_times(parley::collective group, std::int64_t times) {
  std::vector<float> data(2);
  for (std::int64_t i = 0; i < times; ++i) co_await group.all_reduce(std::span(data));
}

void run_agreement(rank_id ranks, std::uint64_t bytes, time_ns latency_ns) {
  world w(ranks, latency_ns);
  const time_ns declared = w.clock.now();
  const auto groups = w.declare(catalogue());
  const auto& assigned = *groups[0].details()->assigned();
  scope working(w.clock);
  w.go_until([&] { return assigned.opened(); });
  const time_ns opened = w.clock.now();
  time_ns rehearsed_from = opened;
  time_ns rehearsed_until = declared;
  for (const auto& r : w.all) {
    for (const auto& f : r->flight().in_order()) {
      if ((f.flags & rehearsal_flag) == 0) continue;
      if (r->id() != 0) rehearsed_from = std::min(rehearsed_from, f.began_ns);  // the leader has to wait for the others
      rehearsed_until = std::max(rehearsed_until, f.ended_ns);
    }
  }
  bool over = false;
  std::uint64_t calls = 0;
  for (const auto& g : groups) working.spawn(reduce_for_ever(g, bytes, over, calls));
  const auto known_everywhere = [&] {
    return std::all_of(groups.begin(), groups.end(),
                       [](const auto& g) { return !g.details()->participant().decisions.empty(); });
  };
  w.go_until(known_everywhere);
  const time_ns known = w.clock.now();
  const double messages = w.messages();
  time_ns last_trial = 0;
  for (const auto& r : w.all) {
    for (const auto& f : r->flight().in_order()) {
      if ((f.flags & timed_flag) != 0) last_trial = std::max(last_trial, f.ended_ns);
    }
  }
  const double round_trip = 2.0 * double(latency_ns);
  const double joining = double(opened - declared - (rehearsed_until - rehearsed_from)) / round_trip;
  const double deciding = double(known - last_trial) / round_trip;
  report("group_agreement", joining + deciding, "round_trips");
  report("group_agreement_joining", joining, "round_trips");
  report("group_agreement_deciding", deciding, "round_trips");
  report("group_agreement_rehearsing", double(rehearsed_until - rehearsed_from) / round_trip, "round_trips");
  report("group_agreement_messages", messages, "in_all");
  report("group_agreement_leader", double(w.all[0]->mail().statistics().received) / double(ranks - 1), "per_worker");
  report("group_agreement_invocations", double(calls) / ranks, "in_all");
  over = true;
}

void run_barriers(rank_id ranks, time_ns latency_ns) {
  world w(ranks, latency_ns);
  const auto groups = w.declare({parley::configs::star()});
  w.go_until([&] { return groups[0].details()->assigned()->opened(); });
  const auto exchanges = 1 + 2 * std::int64_t(catalogue().size());
  scope working(w.clock);
  const time_ns start = w.clock.now();
  for (const auto& g : groups) working.spawn(reduce_times(g, exchanges));
  w.go_until([&] { return working.running() == 0; });
  report("group_barriers", double(w.clock.now() - start) / (2.0 * double(latency_ns)), "round_trips");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "agreement");
  const time_ns latency_ns = given.number("latency_us", 50) * 1000;
  const auto ranks = rank_id(given.number("ranks", 4));
  if (only == "agreement")
    run_agreement(ranks, std::uint64_t(given.number("bytes", 200'000)), latency_ns);
  else if (only == "barriers")
    run_barriers(ranks, latency_ns);
  else
    give_up("--only takes agreement or barriers, not " + only);
}

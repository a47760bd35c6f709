#pragma once
/// A job in virtual time whose ranks call one op without headers again and again, for tests of leases.
///
///     job_of job(3);
///     job.start(4000, {5'000, 3'000});   // calls of each member
///     job.finish();
///     expect_ring(job);
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/error.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/random.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::symmetric_jobs {

using namespace parley::ops;
using namespace parley::runtime;

inline std::vector<symmetric_config_ptr> three() {
  return {takes("library", 40'000), takes("ring", 20'000), takes("tree", 30'000)};
}

struct member_log {
  std::vector<result<>> outcomes;
  std::size_t failed() const {
    return static_cast<std::size_t>(std::count_if(outcomes.begin(), outcomes.end(), [](const auto& o) { return !o; }));
  }
};

struct pace {
  time_ns between_ns = 5'000;
  std::uint64_t jitter_ns = 0;
};

inline task<> call_often(symmetric op, executor& ex, std::vector<std::size_t> sizes, std::size_t times, pace p,
                         random_stream dice, member_log& log) {
  std::vector<std::byte> data(1 << 16);
  for (std::size_t i = 0; i < times; ++i) {
    const auto extra = static_cast<time_ns>(p.jitter_ns == 0 ? 0 : dice.below(p.jitter_ns));
    auto slept = co_await sleep_until(ex.deadline_in(p.between_ns + extra));
    if (!slept) co_return;
    auto part = std::span(data).first(sizes[i % sizes.size()]);
    auto outcome = co_await attempt(op.run(part));
    log.outcomes.push_back(outcome);
    if (!outcome && outcome.code() != errc::config_failed && outcome.code() != errc::timeout) co_return;
  }
}

/// A trial budget so large that no trial has to wait for it.
inline rank_settings roomy() {
  rank_settings s;
  s.plan.budget_fraction = 100;
  return s;
}

enum class trials { rehearsed, between_calls, on_calls };

/// A job of `n` ranks that call one op.
struct job_of : world {
  explicit job_of(rank_id n, const std::vector<symmetric_config_ptr>& configs = three(), trials how = trials::rehearsed,
                  const rank_settings& settings = {}, memory_link_options o = {}, const std::string& results = {},
                  time_ns timeout_ns = 30'000'000'000, const machines& of = {})
      : world(n, settings, std::move(o), of), lib(clock, n), logs(n) {
    for (rank_id r = 0; r < n && !results.empty(); ++r) {
      disk[r].files[settings.results_path] = results;
      ranks[r].reset();
      ranks[r] = std::make_unique<rank>(
          rank_foundation{clock, links[r], &disk[r], std::vector<std::uint64_t>(n, 1000), {}}, settings);
    }
    const auto users = lib.make();
    for (rank_id r = 0; r < n; ++r) {
      symmetric_options op;
      op.name = "gradients";
      op.configs = configs;
      op.timeout = std::chrono::nanoseconds(timeout_ns);
      if (settings.constraints.compare_trials) op.dtype = "f32";
      op.communicator = std::make_shared<library_communicator>(users);
      sources.push_back(std::make_shared<library_source>(lib));
      sources.back()->beside = how == trials::rehearsed;
      if (how != trials::on_calls) op.rehearse = sources.back();
      handles.emplace_back(*ranks[r], op);
    }
    calls.emplace(clock);
  }
  ~job_of() { calls.reset(); }

  void start(std::size_t times, pace p = {}, const std::vector<std::size_t>& sizes = {4096}) {
    for (rank_id r = 0; r < handles.size(); ++r) start_on(r, times, p, sizes);
  }
  void start_on(rank_id r, std::size_t times, pace p = {}, std::vector<std::size_t> sizes = {4096}) {
    calls->spawn(call_often(handles[r], clock, std::move(sizes), times, p, random_stream(7, r), logs[r]));
  }
  void finish() {
    const auto all = [](scope& s) -> task<> { co_await s.join(); };
    runtime::run(clock, all(*calls));
  }
  void pass(time_ns span) {
    const auto sleep = [](time_ns until) -> task<> {
      auto woken = co_await sleep_until(until);
      static_cast<void>(woken);
    };
    runtime::run(clock, sleep(clock.deadline_in(span)));
  }
  symmetric_end& end(rank_id r) { return handles[r].end(); }
  const actors::search* campaign(std::uint64_t bytes = 4096) { return end(0).assigned()->find(bytes); }
  std::string winner(std::uint64_t bytes = 4096) {
    const auto* c = campaign(bytes);
    return c == nullptr || !c->is_decided() ? "" : c->chosen().config;
  }
  /// The config that runs after the last entry of the leader's log.
  std::string steady(std::uint64_t bytes = 4096) {
    const auto* log = end(0).lease_coordinator()->log_of(bytes);
    if (log == nullptr) return "";
    const auto index = end(0).participant().configs.find(log->tail());
    return end(0).participant().configs[*index].id;
  }
  std::uint64_t gates_met() {
    std::uint64_t n = 0;
    for (rank_id r = 0; r < handles.size(); ++r) n += end(r).leases().statistics().gates_met;
    return n;
  }
  std::size_t failed() const {
    std::size_t n = 0;
    for (const auto& l : logs) n += l.failed();
    return n;
  }
  std::size_t done() const {
    std::size_t n = 0;
    for (const auto& l : logs) n += l.outcomes.size();
    return n;
  }

  library lib;
  std::vector<std::shared_ptr<library_source>> sources;
  std::vector<symmetric> handles;
  std::vector<member_log> logs;
  std::optional<scope> calls;
};

/// The digests of all configs that ran on a communicator.
inline std::set<std::uint64_t> ran_on(const meeting_place& place) {
  std::set<std::uint64_t> all;
  for (const auto& [at, m] : place.meetings()) all.insert(m.digests.begin(), m.digests.end());
  return all;
}

/// All calls succeeded, every member ran the same config in each call, and the fastest candidate runs from now on.
inline void expect_ring(job_of& job) {
  CHECK(job.failed() == 0);
  CHECK(job.winner() == "ring");
  CHECK(job.steady() == "ring");
  CHECK(job.lib.mismatches() == 0);
}

}  // namespace parley::tests::symmetric_jobs

// The whole sentences of errors from ops without headers and from tuned thunks. Other tests check structured facts, so that a sentence
// can be improved here and in the code alone.
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/wording.hpp>

#include <parley/contextual.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/symmetric.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns second = 1'000'000'000;

// ---- calls without headers --------------------------------------------------------------------------------------------

/// Ranks 0 and 1 have the op, whose default is `library` unless the test names another.
struct two_members : world {
  explicit two_members(const symmetric_config_ptr& config = takes("library", 40'000)) : world(2), calls(clock) {
    library lib(clock, 2);
    const auto over = lib.make();
    for (rank_id r = 0; r < 2; ++r) {
      symmetric_options op{.name = "gradients", .configs = {config}};
      op.communicator = std::make_shared<library_communicator>(over);
      op.timeout = std::chrono::nanoseconds(second);
      handles.emplace_back(*ranks[r], op);
    }
  }
  void call(rank_id r) {
    const auto one = [](symmetric op, std::span<std::byte> of_it, result<>& into) -> task<> {
      auto outcome = co_await attempt(op.run(of_it));
      into = outcome;
    };
    calls.spawn(one(handles[r], data, outcomes[r]));
  }
  std::string of_rank(rank_id r) {
    pass(*this, 3 * second);
    return sentence_of(outcomes[r]);
  }
  std::vector<std::byte> data = std::vector<std::byte>(4096);
  std::vector<symmetric> handles;
  std::vector<result<>> outcomes{2, result<>(errc::pending)};
  scope calls;
};

std::string of_call_alone() {
  two_members w;
  w.call(0);
  return w.of_rank(0);
}
std::string of_lost_member(bool before) {
  two_members w;
  const auto lose = [&] { w[0].on_lost(1, "killed by signal 9"); };
  if (before) lose();
  w.call(0);
  pass(w, second / 10);
  if (!before) lose();
  return w.of_rank(0);
}
std::string of_failing_config() {
  two_members w(std::make_shared<algorithm>("library", algorithm_traits{.fails_on = 1, .fails_from_call = 0}));
  w.call(0);
  w.call(1);
  return w.of_rank(1);
}
std::string of_ended_generation() {
  two_members w;
  w.handles[0].end().lease_coordinator()->end_generation("the coordinator has lost its log");
  pass(w, second / 10);
  w.call(1);
  return w.of_rank(1);
}
std::string of_other_default() {
  world w(2);
  library lib(w.clock, 2);
  const auto over = lib.make();
  std::vector<symmetric> handles;
  for (rank_id r = 0; r < 2; ++r) {
    symmetric_options op{.name = "gradients", .configs = {takes("library", 1'000), takes("ring", 1'000)}};
    if (r == 0) std::swap(op.configs[0], op.configs[1]);
    op.communicator = std::make_shared<library_communicator>(over);
    handles.emplace_back(w[r], op);
  }
  pass(w, second);
  std::vector<std::byte> data(4096);
  return thrown_by([&] { run(w.clock, handles[1].run(data)); }).reason().what();
}
std::string of_declaration(const std::function<void(symmetric_options&)>& change) {
  world w(2);
  symmetric_options op{.name = "gradients", .configs = {takes("library", 1'000)}};
  change(op);
  return thrown_by([&] { symmetric(w[0], op); }).reason().what();
}

// ---- tuned thunks -----------------------------------------------------------------------------------------------------

using plain_kernel = tunable_op<task<>(std::uint64_t)>;

/// Ranks 0 and 1 have a thunk with one kernel of two configs.
struct two_thunks : world {
  explicit two_thunks(const std::function<void(rank_id)>& in_config = {}, int iterations_of_1 = 2)
      : world(2), calls(clock) {
    for (rank_id r = 0; r < 2; ++r) {
      plain_kernel::options o;
      o.name = "kernel";
      o.key = [](std::uint64_t n) { return tuning::kernel_key{{"n", n}}; };
      for (const char* config : {"config_0", "config_1"})
        o.implementations.push_back({config, [in_config, r](std::uint64_t) -> task<> {
                                       if (in_config) in_config(r);
                                       return compute_for(1'000);
                                     }});
      kernels.push_back(std::make_unique<plain_kernel>(ranks[r]->kernels(), o));
      contextual_options op;
      op.name = "layer";
      op.iterations = r == 1 ? iterations_of_1 : 2;
      op.timeout = std::chrono::nanoseconds(second);
      layers.emplace_back(*ranks[r], op);
    }
  }
  static task<> compute_for(time_ns span) {
    co_await compute([] {}, span);
  }
  static task<> run_once(two_thunks* w, rank_id r, time_ns takes) {
    co_await (*w->kernels[r])(8);
    auto slept = co_await sleep_for(std::chrono::nanoseconds(takes));
    if (!slept) raise(slept.reason());
  }
  static task<> tuned(two_thunks* w, rank_id r, time_ns takes) {
    const auto thunk = [w, r, takes] { return run_once(w, r, takes); };
    auto outcome = co_await attempt(w->layers[r].run(thunk));
    w->outcomes[r] = outcome;
  }
  void call(rank_id r, time_ns takes = 1'000) { calls.spawn(tuned(this, r, takes)); }
  std::string of_rank(rank_id r) {
    pass(*this, 3 * second);
    return sentence_of(outcomes[r]);
  }
  std::vector<std::unique_ptr<plain_kernel>> kernels;
  std::vector<contextual> layers;
  std::vector<result<>> outcomes{2, result<>(errc::pending)};
  scope calls;
};

std::string of_thunk_alone(rank_id on) {
  two_thunks w;
  w.call(on);
  return w.of_rank(on);
}
std::string of_late_rank() {
  two_thunks w;
  w.call(0);
  static_cast<void>(w.of_rank(0));
  return w[0].kernels().warnings().back();
}
std::string of_thunk_with_lost_rank() {
  two_thunks w;
  w.call(0);
  pass(w, second / 10);
  w[0].on_lost(1, "killed by signal 9");
  return w.of_rank(0);
}
std::string of_long_run(rank_id on) {
  two_thunks w;
  w.call(0);
  w.call(1, 10 * second);
  return w.of_rank(on);
}
std::string of_no_config(rank_id on) {
  two_thunks w([](rank_id r) {
    if (r == 1) throw std::runtime_error("no such card");
  });
  w.call(0);
  w.call(1);
  return w.of_rank(on);
}
std::string of_other_thunk() {
  two_thunks w({}, 3);
  w.call(0);
  w.call(1);
  return w.of_rank(1);
}
std::string of_undecided_key() {
  two_thunks w;
  const auto wait = [](two_thunks* all) -> task<> {
    auto d = co_await attempt(all->layers[0].decided("kernel", "n=8", {.timeout = std::chrono::nanoseconds(second)}));
    all->outcomes[0] = d ? result<>() : result<>(d.reason());
  };
  w.calls.spawn(wait(&w));
  return w.of_rank(0);
}

}  // namespace

TEST_CASE("errors of calls without headers and of tuned thunks have exactly these sentences") {
  check_sentences({
      {of_call_alone(),
       "timeout: gradients 0->1, invocation 0, on rank 0: config library: timeout; rank 1 has made 0 calls of it of "
       "that size; it is not waiting in any call"},
      {of_lost_member(true),
       "peer_failed: gradients 0->1, on rank 0: rank 1 is gone: killed by signal 9; restart the job to continue; "
       "invocation 0 was in flight"},
      {of_lost_member(false),
       "peer_failed: gradients 0->1, on rank 0: rank 1 is gone: killed by signal 9; restart the job to continue; "
       "invocation 0 was in flight"},
      {of_failing_config(),
       "config_failed: gradients 0->1, invocation 0, on rank 1: config library: unavailable: out of registers"},
      {of_ended_generation(),
       "closed: gradients 0->1, on rank 1: its generation has ended, the coordinator has lost its log; recover as "
       "after a lost communicator, then call rejoin on every member; invocation 0 was in flight"},
      {of_other_default(),
       "declaration_mismatch: gradients 0->1: rank 1 declares default library, the leader rank 0 declares default "
       "ring; declare the op alike on all its ranks; invocation 0 was in flight"},
      {of_declaration([](symmetric_options& op) { op.configs.clear(); }),
       "bad_argument: op gradients has an empty catalogue; list at least its default config"},
      {of_declaration([](symmetric_options& op) { op.configs.push_back(nullptr); }),
       "bad_argument: op gradients: config 1 of its catalogue is null"},
      {of_declaration([](symmetric_options& op) { op.ranks = {0, 3}; }),
       "bad_argument: op gradients: member 3 is outside the world of 2 or listed twice"},
      {of_declaration([](symmetric_options& op) { op.ranks = {0, 0}; }),
       "bad_argument: op gradients: member 0 is outside the world of 2 or listed twice"},
      {of_late_rank(),
       "layer 0->1, on rank 0: nothing is decided in this call, and the next one tunes again, because rank 1 did not "
       "finish this invocation in time; rank 1 has made 0 calls of it; it is not waiting in any call; rank 0 also "
       "waits "
       "in: call of layer 0->1, call 0, 0 bytes: waits for rank 1 (reports on the runs of other ranks) since 1.0 s"},
      {of_thunk_alone(1),
       "timeout: layer 0->1, invocation 0, on rank 1: rank 0, the leader, has not answered in time; rank 0 has made "
       "0 calls of it; it is not waiting in any call; rank 1 also waits in: call of layer 0->1, call 0, 0 bytes: waits "
       "for rank "
       "0 (reports on the runs of other ranks) since 1.1 s"},
      {of_thunk_with_lost_rank(),
       "peer_failed: layer 0->1, invocation 0, on rank 0: layer 0->1, on rank 0: rank 1 is gone: killed by signal 9; "
       "restart the job to continue"},
      {of_long_run(0),
       "timeout: layer 0->1, invocation 0, on rank 0: rank 1: a run took longer than 1000 ms; see what holds it up, "
       "or allow more time"},
      {of_long_run(1),
       "timeout: layer 0->1, invocation 0, on rank 1: a run took longer than 1000 ms; see what holds it up, or allow "
       "more time"},
      {of_no_config(0),
       "config_failed: layer 0->1, invocation 0, on rank 0: rank 1: cannot find valid config: func kernel, key {n=8}; "
       "config-0 (config_0): throws: exception: no such card; config-1 (config_1): throws: exception: no such card"},
      {of_no_config(1),
       "config_failed: layer 0->1, invocation 0, on rank 1: cannot find valid config: func kernel, key {n=8}; "
       "config-0 (config_0): throws: exception: no such card; config-1 (config_1): throws: exception: no such card"},
      {of_other_thunk(),
       "declaration_mismatch: layer 0->1, invocation 0, on rank 1: rank 0 has declared it with 2 iterations, 0 "
       "warm-ups, grouped, rank 1 with 3 iterations, 0 warm-ups, grouped; declare it alike on all ranks"},
      {of_undecided_key(),
       "timeout: layer 0->1, on rank 0: there is no decision for key {n=8}: no call of this rank has met this kernel "
       "and key while it was tuned"},
  });
}

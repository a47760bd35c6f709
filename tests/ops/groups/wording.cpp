// The whole sentences of the errors of groups. Tests elsewhere compare facts, so a better sentence is changed only here and in the code.
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/wording.hpp>

#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <list>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns second = 1'000'000'000;

/// A star that throws on rank 1.
struct failing_star final : group_config {
  failing_star() : group_config({.name = "failing", .parameters = {}, .wire_class = "failing"}) {}
  task<> lead(group_call& g) const override { return star_->lead(g); }
  task<> work(group_call& g) const override {
    if (g.self() == 1) throw std::runtime_error("no such card");
    return star_->work(g);
  }

 private:
  group_config_ptr star_ = star();
};

/// Rank 0 leads ranks 1 and 2.
struct three_ranks : world {
  explicit three_ranks(const std::vector<group_config_ptr>& configs = {star()}) : world(3), calls(clock) {
    for (rank_id r = 0; r < 3; ++r) {
      auto op = led_by(0, configs);
      op.timeout = std::chrono::nanoseconds(second);
      if (r == 1 && configs.size() > 1) std::swap(op.configs[0], op.configs[1]);
      groups.emplace_back(*ranks[r], op);
    }
  }
  template <class T>
  static task<> sum(collective g, std::span<T> of_it, result<>& into) {
    auto outcome = co_await attempt(g.all_reduce(of_it));
    into = outcome;
  }
  template <class T = float>
  void call(rank_id r, std::vector<T>& of_it) {
    calls.spawn(sum<T>(groups[r], of_it, outcomes[r]));
  }
  void call(rank_id r, std::size_t count = 100) { call(r, data[r] = std::vector<float>(count)); }
  std::string of_rank(rank_id r) {
    wait_a_while(*this, 3 * second);
    return sentence_of(outcomes[r]);
  }
  std::vector<collective> groups;
  std::vector<std::vector<float>> data{3};
  std::vector<result<>> outcomes{3, result<>(errc::pending)};
  scope calls;
};

std::string of_late_rank(rank_id late, rank_id on) {
  three_ranks w;
  for (rank_id r = 0; r < 3; ++r) {
    if (r != late) w.call(r);
  }
  return w.of_rank(on);
}
std::string of_lost_rank(bool before) {
  three_ranks w;
  const auto lose = [&] { w[1].on_lost(0, "killed by signal 9"); };
  if (before) lose();
  w.call(1);
  wait_a_while(w, second / 10);
  if (!before) lose();
  return w.of_rank(1);
}
std::string of_call_given_up() {
  three_ranks w;
  scope quitting(w.clock);
  w.data[1].resize(50'000);
  quitting.spawn(three_ranks::sum<float>(w.groups[1], w.data[1], w.outcomes[1]));
  w.call(0, 50'000);
  w.call(2, 50'000);
  w.clock.turn();
  quitting.cancel();
  return w.of_rank(0);
}
std::string of_failed_config(rank_id on) {
  three_ranks w({std::make_shared<failing_star>()});
  for (rank_id r = 0; r < 3; ++r) w.call(r);
  return w.of_rank(on);
}
std::string of_other_size(rank_id on) {
  three_ranks w;
  for (rank_id r = 0; r < 3; ++r) w.call(r, r == 1 ? 99 : 100);
  return w.of_rank(on);
}
std::string of_other_type(rank_id on) {
  three_ranks w;
  std::vector<int> integers(100);
  w.call(1, integers);
  w.call(0);
  w.call(2);
  return w.of_rank(on);
}
std::string of_other_default(rank_id on) {
  three_ranks w({star(), chain(64)});
  for (rank_id r = 0; r < 3; ++r) w.call(r);
  return w.of_rank(on);
}
std::string of_parts_ahead(rank_id on) {
  world w(2);
  auto op = led_by(0, {star(64)});
  op.kind = collective_kind::broadcast;
  std::vector<collective> groups{collective(w[0], op), collective(w[1], op)};
  std::vector<float> data(1'250'000);
  result<> outcome = errc::pending;
  const auto give = [](collective g, std::span<float> what, result<>& into) -> task<> {
    auto how = co_await attempt(g.broadcast(what));
    into = how;
  };
  result<> first = errc::pending;
  scope calls(w.clock);
  calls.spawn(give(groups[0], data, first));
  wait_a_while(w, second);
  calls.spawn(give(groups[on], data, outcome));
  wait_a_while(w, second);
  return sentence_of(outcome);
}
std::string of_wrong_call(const std::function<task<>(collective)>& call, rank_id on = 0) {
  world w(3);
  auto op = led_by(0, {star()});
  op.role = nullptr;
  op.groups = {{0, 1}};
  op.kind = collective_kind::gather;
  const collective group(w[on], op);
  return thrown_by([&] { run(w.clock, call(group)); }).reason().what();
}
std::string of_declaration(const std::function<void(collective_options&)>& change) {
  world w(4);
  collective_options op = led_by(0, {star()});
  change(op);
  return thrown_by([&] { collective(w[0], op); }).reason().what();
}

}  // namespace

TEST_CASE("the errors of groups have exactly the listed sentences") {
  static std::vector<float> some(5);
  static std::vector<float> two(2);
  const auto gather = [](collective g) -> task<> { return g.gather(std::span(two), std::span(some)); };
  const auto sum = [](collective g) -> task<> { return g.all_reduce(std::span(some)); };
  const auto roles = [](role even, role odd) {
    return [=](collective_options& op) { op.role = [=](rank_id r) { return r % 2 == 0 ? even : odd; }; };
  };
  check_sentences({
      {of_late_rank(1, 0), "timeout: gradients 0->1->2, invocation 0, on rank 0 (leader): rank 1 did not join the call "
                           "in time; see what holds it "
                           "up, or allow more time; rank 1 has made 0 calls of it; it is not waiting in any call"},
      {of_late_rank(1, 2), "timeout: gradients 0->1->2, invocation 0, on rank 2 (worker): rank 1 did not join the call "
                           "in time; see what holds it "
                           "up, or allow more time"},
      {of_late_rank(0, 2), "timeout: gradients 0->1->2, invocation 0, on rank 2 (worker): rank 0 did not join the call "
                           "in time; see what holds it "
                           "up, or allow more time; rank 0 has made 0 calls of it; it is not waiting in any call"},
      {of_lost_rank(true),
       "peer_failed: gradients 0->1->2, on rank 1: rank 0 is gone: killed by signal 9; restart the job to continue; "
       "invocation 0 was in flight"},
      {of_lost_rank(false),
       "peer_failed: gradients 0->1->2, on rank 1: rank 0 is gone: killed by signal 9; restart the job to continue; "
       "invocation 0 was in flight"},
      {of_call_given_up(), "cancelled: gradients 0->1->2, invocation 0, on rank 0 (leader): rank 1 gave up the call"},
      {of_failed_config(1),
       "config_failed: gradients 0->1->2, invocation 0, on rank 1 (worker): config failing failed on rank 1; "
       "exception: no such card"},
      {of_failed_config(2),
       "config_failed: gradients 0->1->2, invocation 0, on rank 2 (worker): config failing failed on rank 1"},
      {of_other_size(0),
       "bad_argument: gradients 0->1->2, invocation 0, on rank 0 (leader): rank 1 called with another size than the "
       "others, 396 bytes; this rank has 400 bytes"},
      {of_other_size(1),
       "bad_argument: gradients 0->1->2, invocation 0, on rank 1 (worker): this rank called with another size than "
       "the others; this rank has 396 bytes"},
      {of_other_size(2),
       "bad_argument: gradients 0->1->2, invocation 0, on rank 2 (worker): rank 1 called with another size than the "
       "others, 396 bytes; this rank has 400 bytes"},
      {of_other_type(0),
       "declaration_mismatch: gradients 0->1->2, invocation 0, on rank 0 (leader): rank 1 calls with i32 elements "
       "combined by plus where another rank has f32 elements combined by plus; give all ranks the same type and the "
       "same function that combines"},
      {of_other_type(1),
       "declaration_mismatch: gradients 0->1->2, invocation 0, on rank 1 (worker): rank 1 calls with i32 elements "
       "combined by plus where another rank has f32 elements combined by plus; give all ranks the same type and the "
       "same function that combines"},
      {of_other_default(0),
       "declaration_mismatch: gradients 0->1->2: rank 1 declares default chain(chunk_bytes=64), the leader rank 0 "
       "declares default star; declare the op alike on all its ranks; invocation 0 was in flight"},
      {of_other_default(1),
       "declaration_mismatch: gradients 0->1->2: rank 1 declares default chain(chunk_bytes=64), the leader rank 0 "
       "declares default star; declare the op alike on all its ranks; invocation 0 was in flight"},
      {of_parts_ahead(0), "full: gradients 0->1, on rank 1 (worker): more than 65536 parts, or 268435456 bytes, "
                          "arrived for calls that this rank has not begun; begin the calls earlier, or send less, or "
                          "fewer and larger parts, ahead; invocation 1 was "
                          "in flight"},
      {of_parts_ahead(1), "full: gradients 0->1, on rank 1 (worker): more than 65536 parts, or 268435456 bytes, "
                          "arrived for calls that this rank has not begun; begin the calls earlier, or send less, or "
                          "fewer and larger parts, ahead; invocation 0 was "
                          "in flight"},
      {of_wrong_call(gather), "bad_argument: op gradients: the leader gathers 2 times 8 bytes into a buffer of 20"},
      {of_wrong_call(sum), "bad_argument: op gradients: rank 0 calls all_reduce, but the op was declared to gather; "
                           "set `.kind` in its options"},
      {of_wrong_call(sum, 2),
       "bad_argument: op gradients: rank 2 is in no group of it; check the role function and the groups"},
      {of_declaration(roles(role::leader, role::leader)),
       "role_conflict: op gradients: ranks 0, 1, 2, 3 all claim to lead the group of ranks 0, 1, 2, 3; give exactly "
       "one of them the role leader, or list the groups"},
      {of_declaration(roles(role::worker, role::worker)),
       "role_conflict: op gradients: no rank leads the group of ranks 0, 1, 2, 3; give exactly one of them the role "
       "leader, or list the groups"},
      {of_declaration(roles(role::leader, role::sender)),
       "bad_argument: op gradients: rank 1 has the role \"sender\"; roles are leader, worker and idle"},
      {of_declaration([](collective_options& op) { op.groups = {{0, 1}, {1, 2}}; }),
       "role_conflict: op gradients: rank 1 is in two groups"},
      {of_declaration([](collective_options& op) { op.depth = 0; }),
       "bad_argument: op gradients: a depth of 0 is impossible for all_reduce; take 1 to 256, or 0 for broadcast, "
       "whose first message is the leader's"},
      {of_declaration([](collective_options& op) { op.configs.clear(); }),
       "bad_argument: op gradients has an empty catalogue; list at least its default config"},
  });
}

// Explores every interleaving of a leader and its workers at small scope, with the values that the actors use. The network is a set of
// sent messages. Each may be delivered at any time, in any order, any number of times, or never.
#include <parley/actors/agreement/look_ahead.hpp>

#include <doctest/doctest.h>

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

using namespace parley::actors;

namespace {

constexpr std::uint64_t c0 = 10;
constexpr std::uint64_t other = 11;

enum class worker_rule { waits_for_stamp, does_not_wait };

struct worker {
  explicit worker(std::uint64_t depth) : learned(depth, c0) {}
  std::uint64_t next = 0;
  ahead_reader learned;
  std::vector<std::uint64_t> ran;
};

struct state {
  state(std::size_t workers, std::uint64_t depth) : log(depth, c0), all(workers, worker(depth)) {}
  ahead_writer log;
  std::uint64_t returned = 0;
  std::vector<worker> all;
  std::set<std::tuple<std::size_t, std::uint64_t>> up;                     // worker, invocation
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> down;  // n, its config, the config of n + d

  std::string text() const {
    std::string t = std::to_string(returned) + ":";
    for (const auto& [n, a, b] : down) t += std::to_string(n) + "," + std::to_string(a) + "," + std::to_string(b) + ";";
    for (const worker& w : all) {
      t += "|" + std::to_string(w.next);
      for (const std::uint64_t r : w.ran) t += "," + std::to_string(r);
      t += "?";
      for (std::uint64_t n = 0; n < 8; ++n) t += std::to_string(w.learned.config_of(n).value_or(0)) + ",";
    }
    return t;
  }
};

struct verdict {
  std::size_t states = 0;
  std::size_t finished = 0;                // states in which every worker has run all invocations
  std::optional<std::string> two_configs;  // a state that breaks S2
};

// S1, S2: every worker runs the configs that the leader assigned, so no two workers can differ.
bool agreed(const state& s) {
  for (const worker& w : s.all) {
    for (std::uint64_t n = 0; n < w.ran.size(); ++n) {
      const auto assigned = s.log.config_of(n);
      if (!assigned || *assigned != w.ran[n]) return false;
    }
  }
  return true;
}

verdict explore(std::size_t workers, std::uint64_t depth, std::uint64_t invocations, worker_rule rule) {
  verdict v;
  std::set<std::string> seen;
  std::deque<state> open;
  const auto visit = [&](state s) {
    if (!seen.insert(s.text()).second) return;
    if (!agreed(s) && !v.two_configs) v.two_configs = s.text();
    bool done = true;
    for (const worker& w : s.all) done = done && w.next == invocations;
    v.finished += done ? 1 : 0;
    open.push_back(std::move(s));
  };
  visit(state(workers, depth));
  while (!open.empty() && !v.two_configs) {
    const state s = std::move(open.front());
    open.pop_front();
    ++v.states;
    bool all_here = s.returned < invocations;
    for (std::size_t w = 0; w < workers; ++w) {
      const worker& me = s.all[w];
      auto digest = me.learned.config_of(me.next);
      if (!digest && rule == worker_rule::does_not_wait) digest = c0;
      if (me.next < invocations && digest) {  // the worker runs its next invocation
        state t = s;
        t.all[w].ran.push_back(*digest);
        t.up.emplace(w, t.all[w].next++);
        visit(std::move(t));
      }
      for (const auto& [n, mine, ahead] : s.down) {  // a stamp from the leader arrives
        state t = s;
        REQUIRE(t.all[w].learned.learn(n, mine, ahead));
        visit(std::move(t));
      }
      all_here = all_here && s.up.count({w, s.returned}) != 0;
    }
    if (!all_here) continue;
    // the leader returns, and assigns any config to the invocation d ahead
    for (const std::uint64_t choice : {c0, other}) {
      state t = s;
      REQUIRE(t.log.write(choice));
      const std::uint64_t n = t.returned++;
      t.down.emplace(n, *t.log.config_of(n), *t.log.config_of(n + depth));
      visit(std::move(t));
    }
  }
  return v;
}

}  // namespace

TEST_CASE("with look-ahead 1 and 2 no interleaving lets two participants run one invocation with different configs") {
  for (const auto& [workers, depth, invocations] :
       {std::tuple{std::size_t{2}, std::uint64_t{1}, std::uint64_t{4}}, {2, 2, 4}, {3, 1, 2}, {3, 2, 3}, {1, 1, 5}}) {
    CAPTURE(workers);
    CAPTURE(depth);
    const verdict v = explore(workers, depth, invocations, worker_rule::waits_for_stamp);
    CHECK_FALSE(v.two_configs);
    CHECK(v.states > 50);
    CHECK(v.finished > 0);
  }
}

TEST_CASE("the exploration finds a worker that does not wait for the stamp of n - d") {
  for (const std::uint64_t depth : {1U, 2U}) {
    const verdict v = explore(2, depth, depth + 2, worker_rule::does_not_wait);
    CHECK(v.two_configs);
  }
}

TEST_CASE("the leader knows the configs of the first d invocations, and writes those of later invocations in order") {
  ahead_writer log(2, c0);
  CHECK(*log.config_of(0) == c0);
  CHECK(*log.config_of(1) == c0);
  CHECK_FALSE(log.config_of(2));
  CHECK(log.write(other));
  CHECK(*log.config_of(2) == other);
  CHECK(log.unwritten() == 3);
  log.drop_below(3);
  CHECK_FALSE(log.config_of(2));
}

TEST_CASE("a stamp that contradicts an earlier stamp is refused, and one that repeats it is accepted") {
  ahead_reader seen(1, c0);
  CHECK(seen.learn(0, c0, other));
  CHECK(seen.learn(0, c0, other));
  CHECK(*seen.config_of(1) == other);
  CHECK_FALSE(seen.learn(0, c0, c0));
  CHECK_FALSE(seen.learn(1, c0, c0));
  CHECK_FALSE(seen.learn(0, other, other));  // the first d invocations run c0
  CHECK(*seen.config_of(1) == other);
}

TEST_CASE("a stamp that leaves a later config unknown is accepted, and a second stamp may supply that config") {
  ahead_reader seen(2, c0);
  CHECK(seen.learn(2, other, 0));
  CHECK_FALSE(seen.config_of(4));
  CHECK(seen.learn(2, other, c0));
  CHECK(*seen.config_of(4) == c0);
}

TEST_CASE("a stamp of an invocation far beyond all others is refused") {
  ahead_reader seen(1, c0);
  CHECK_FALSE(seen.learn(1'000'000'000, c0, c0));
  CHECK(seen.learn(invocation_log<int>::most - 2, other, c0));
}

TEST_CASE("the size of a later invocation is predicted from the sizes that followed the present size before") {
  size_history h(2);
  const std::uint64_t pattern[] = {100, 1'000'000, 5'000, 100, 1'000'000, 5'000, 100};
  for (std::uint64_t n = 0; n < 7; ++n) h.begun(n, pattern[n]);
  CHECK(h.expected(6) == 100);
  CHECK(h.expected(7) == 1'000'000);
  CHECK(h.expected(8) == 5'000);
  size_history fresh(1);
  CHECK_FALSE(fresh.expected(1).has_value());
  fresh.begun(0, 64);
  CHECK(fresh.expected(1) == 64);
}

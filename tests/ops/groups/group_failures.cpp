#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/guarded.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/warnings.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <list>
#include <optional>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

/// Makes `failing_star` fail on one rank while `on` is set. `runs` counts the runs on all ranks.
struct fault {
  rank_id rank = 0;
  bool on = false;
  int runs = 0;
};
class failing_star final : public group_config {
 public:
  failing_star(fault& f, std::shared_ptr<const group_config> real)
      : group_config({.name = "failing", .wire_class = "failing"}), fault_(f), real_(std::move(real)) {}
  task<> lead(group_call& g) const override { return run(g); }
  task<> work(group_call& g) const override { return run(g); }

 private:
  task<> run(group_call& g) const {
    ++fault_.runs;
    if (fault_.on && g.self() == fault_.rank) throw std::runtime_error("the kernel has failed");
    if (g.self() == g.leader()) {
      co_await real_->lead(g);
    } else {
      co_await real_->work(g);
    }
  }
  fault& fault_;
  std::shared_ptr<const group_config> real_;
};

/// A star that on rank 1 writes behind the data.
class greedy_star final : public group_config {
 public:
  greedy_star() : group_config({.name = "greedy", .wire_class = "greedy"}) {}
  task<> lead(group_call& g) const override { return real_->lead(g); }
  task<> work(group_call& g) const override {
    co_await real_->work(g);
    if (g.self() == 1) g.data().data()[g.data().size()] = std::byte{1};
  }

 private:
  std::shared_ptr<const group_config> real_ = star();
};

/// A star that on rank 1 spoils its result.
class spoiling_star final : public group_config {
 public:
  spoiling_star() : group_config({.name = "spoiling", .wire_class = "spoiling"}) {}
  task<> lead(group_call& g) const override { return real_->lead(g); }
  task<> work(group_call& g) const override {
    co_await real_->work(g);
    if (g.self() == 1) g.data()[8] ^= std::byte{1};
  }

 private:
  std::shared_ptr<const group_config> real_ = star();
};

/// A star that on one rank waits forever, before or after the rank's own part.
class hanging_star final : public group_config {
 public:
  hanging_star(rank_id where, bool at_first)
      : group_config({.name = "hanging", .wire_class = "hanging"}), where_(where), at_first_(at_first) {}
  task<> lead(group_call& g) const override {
    co_await wait(g, at_first_);
    co_await real_->lead(g);
    co_await wait(g, !at_first_);
  }
  task<> work(group_call& g) const override {
    co_await wait(g, at_first_);
    co_await real_->work(g);
    co_await wait(g, !at_first_);
  }

 private:
  task<> wait(const group_call& g, bool now) const {
    if (g.self() != where_ || !now) co_return;
    auto slept = co_await sleep_until(never);
    if (!slept) raise(slept.reason());
  }
  rank_id where_;
  bool at_first_;
  group_config_ptr real_ = star();
};

/// A star whose roles spawn a task that does all of the work, and return. The task of rank `broken`, if given, throws.
class spawning_star final : public group_config {
 public:
  explicit spawning_star(std::optional<rank_id> broken)
      : group_config({.name = "spawning", .wire_class = "spawning"}), broken_(broken) {}
  task<> lead(group_call& g) const override { return spawn(g); }
  task<> work(group_call& g) const override { return spawn(g); }

 private:
  task<> spawn(group_call& g) const {
    scope& here = co_await this_scope;
    here.spawn(all_of_it(g));
  }
  task<> all_of_it(group_call& g) const {
    if (g.self() == g.leader()) {
      co_await real_->lead(g);
    } else {
      co_await real_->work(g);
    }
    if (g.self() != broken_) co_return;
    // Wait until the others' calls are over: a leader whose sends were still in flight would hear of the failure.
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(1_ms));
    static_cast<void>(slept);
    throw std::runtime_error("the kernel has failed");
  }
  std::optional<rank_id> broken_;
  group_config_ptr real_ = star();
};

/// A star in which two coroutines of one rank wait for parts of one call.
class twice_waiting_star final : public group_config {
 public:
  explicit twice_waiting_star(rank_id where)
      : group_config({.name = "twice_waiting", .wire_class = "star"}), where_(where) {}
  task<> lead(group_call& g) const override { co_await real_->lead(g); }
  task<> work(group_call& g) const override {
    if (g.self() != where_) {
      co_await real_->work(g);
      co_return;
    }
    scope& here = co_await this_scope;
    scope both(here);
    both.spawn(real_->work(g));
    both.spawn(drained(&g));
    co_await both.join();
  }

 private:
  static task<> drained(group_call* g) { co_await g->drain(); }
  rank_id where_;
  group_config_ptr real_ = star();
};

/// A star whose leader waits 1 ms first.
class slow_star final : public group_config {
 public:
  explicit slow_star(executor& ex) : group_config({.name = "slow", .wire_class = "slow"}), executor_(ex) {}
  task<> lead(group_call& g) const override {
    auto woken = co_await sleep_until(executor_.deadline_in(1_ms));
    static_cast<void>(woken);
    co_await real_->lead(g);
  }
  task<> work(group_call& g) const override { return real_->work(g); }

 private:
  executor& executor_;
  group_config_ptr real_ = star();
};

/// Makes one call on each of the given ranks; the other ranks do not call.
group_outcomes reduce_some(world& w, const std::vector<collective>& groups, const std::vector<rank_id>& who,
                           std::size_t count = 100) {
  group_outcomes all;
  all.of_rank.resize(w.ranks.size());
  scope working(w.clock);
  for (const rank_id r : who) working.spawn(reduce_each(groups[r], r, w.ranks.size(), {count}, 1, all));
  run_until(w.clock, [&] { return working.running() == 0; });
  return all;
}

task<> broadcast_one(collective g, std::vector<float>& x, result<>& outcome) {
  outcome = co_await attempt(g.broadcast(std::span(x)));
}

}  // namespace

TEST_CASE("when a worker or the leader dies every survivor gets peer_failed with op, rank and invocation") {
  for (const rank_id dead : {0U, 2U}) {
    CAPTURE(dead);
    world w(4);
    const auto groups = declare_all(w, led_by(0, {star()}));
    CHECK(reduce_all(w, groups, {10, 10}).failed() == 0);
    group_outcomes all;
    all.of_rank.resize(4);
    scope working(w.clock);
    for (rank_id r = 0; r < 4; ++r) {
      if (r != dead) working.spawn(reduce_each(groups[r], r, 4, {100, 100}, 1, all));
    }
    wait_a_while(w, 1_ms);
    const time_ns began = w.clock.now();
    for (rank_id r = 0; r < 4; ++r) {
      if (r != dead) w[r].on_lost(dead, "it was killed");
    }
    run_until(w.clock, [&] { return working.running() == 0; });
    CHECK(w.clock.now() - began < 10_ms);
    for (rank_id r = 0; r < 4; ++r) {
      if (r == dead) continue;
      REQUIRE(all.of_rank[r].size() == 2);
      for (std::size_t i = 0; i < 2; ++i)
        CHECK(is(all.of_rank[r][i], {.code = errc::peer_failed,
                                     .op = "gradients 0->1->2->3",
                                     .rank = r,
                                     .invocation = 2 + i,
                                     .peer = dead,
                                     .culprit = dead}));
    }
  }
}

TEST_CASE("a late rank is named on all other ranks, its call fails on all, and the next call succeeds") {
  for (const rank_id late : {0U, 3U}) {
    CAPTURE(late);
    world w(4);
    auto op = led_by(0, {star()});
    op.timeout = 100ms;
    const auto groups = declare_all(w, op);
    CHECK(reduce_all(w, groups, {10}).failed() == 0);
    std::vector<rank_id> others;
    for (rank_id r = 0; r < 4; ++r) {
      if (r != late) others.push_back(r);
    }
    const auto all = reduce_some(w, groups, others);
    for (const rank_id r : others) {
      CHECK(is(all.of_rank[r][0], {.code = errc::timeout, .peer = late, .unmet = awaited::members}));
    }
    wait_a_while(w, 1_ms);
    // The late rank calls at last, and learns that the call is over.
    const auto at_last = reduce_some(w, groups, {late});
    CHECK_FALSE(at_last.of_rank[late][0]);
    const auto again = reduce_all(w, groups, {10, 1000, 10});
    CHECK(again.failed() == 0);
    CHECK(again.wrong == 0);
  }
}

TEST_CASE("a first call that fails before its turn starts no search for its size") {
  world w(3, eager_trials());
  auto op = led_by(0, {star(), chain()});
  op.timeout = 100ms;
  op.depth = 2;
  const auto groups = declare_all(w, op);
  for (const auto& outcomes : reduce_some(w, groups, {1, 2}).of_rank) {
    for (const auto& outcome : outcomes) CHECK(outcome.code() == errc::timeout);
  }
  wait_a_while(w, 1_ms);
  CHECK_FALSE(reduce_some(w, groups, {0}).of_rank[0][0]);  // the workers have given up this call
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(100, 1000)).failed() == 0);
  wait_a_while(w, 1_s);
  const auto agreed = w[0].agreements();
  REQUIRE(agreed.size() == 1);
  REQUIRE(agreed.front().assigned->searches().size() == 1);
  CHECK(agreed.front().assigned->searches().front()->is_decided());
}

TEST_CASE("a call that one rank cancels fails with cancelled on all ranks, and the next calls succeed") {
  for (const rank_id quitter : {0U, 1U}) {
    world w(3);
    const auto groups = declare_all(w, led_by(0, {star()}));
    group_outcomes all;
    all.of_rank.resize(3);
    scope working(w.clock);
    scope quitting(w.clock);
    for (rank_id r = 0; r < 2; ++r)
      (r == quitter ? quitting : working).spawn(reduce_each(groups[r], r, 3, {50'000}, 1, all));
    wait_a_while(w, 1_ms);
    quitting.cancel();
    wait_a_while(w, 1_ms);
    working.spawn(reduce_each(groups[2], 2, 3, {50'000}, 1, all));
    run_until(w.clock, [&] { return working.running() == 0 && quitting.running() == 0; });
    for (rank_id r = 0; r < 3; ++r) CHECK(all.of_rank[r][0].code() == errc::cancelled);
    const auto again = reduce_all(w, groups, {10, 50'000});
    CHECK(again.failed() == 0);
    CHECK(again.wrong == 0);
  }
}

TEST_CASE(
    "a worker's cancelled call ends the call of the worker that reads its payload, though the leader has returned") {
  memory_link_options wires;
  wires.takes_back = true;
  wires.ns_per_byte = 10;
  world w(3, {}, std::move(wires));
  auto op = led_by(0, {chain(1_MiB)});
  op.kind = collective_kind::broadcast;
  const auto groups = declare_all(w, op);
  std::vector<std::vector<float>> x(3, std::vector<float>(50'000));
  std::vector<result<>> ended(3);
  std::list<scope> each;
  for (rank_id r = 0; r < 3; ++r) each.emplace_back(w.clock).spawn(broadcast_one(groups[r], x[r], ended[r]));
  run_until(w.clock, [&] { return each.front().running() == 0; });
  wait_a_while(w, 1_ms);
  std::next(each.begin())->cancel();
  const time_ns began = w.clock.now();
  run_until(w.clock, [&] { return each.back().running() == 0; });
  CHECK(w.clock.now() - began < 10_ms);
  CHECK(ended[0]);
  CHECK(ended[1].code() == errc::cancelled);
  CHECK(is(ended[2], {.code = errc::cancelled, .rank = 2, .peer = 1}));
}

TEST_CASE("a config that fails on one rank gives config_failed on all, is quarantined, and the default runs next") {
  for (const rank_id broken : {0U, 2U}) {
    CAPTURE(broken);
    fault f{broken, false, 0};
    world w(3, eager_trials());
    const auto groups =
        declare_all(w, led_by(0, {std::make_shared<slow_star>(w.clock), std::make_shared<failing_star>(f, star())}));
    for (int round = 0; round < 20; ++round) {
      CHECK(reduce_all(w, groups, std::vector<std::size_t>(20, 5000)).failed() == 0);
      wait_a_while(w, 100_ms);
    }
    const auto* c = w[0].agreements().front().assigned->find(20'000);
    REQUIRE(c->is_decided());
    REQUIRE(c->chosen().config == "failing");
    f.on = true;
    const auto all = reduce_all(w, groups, {5000, 5000, 5000, 5000});
    CHECK(all.wrong == 0);
    for (rank_id r = 0; r < 3; ++r) {
      CHECK(is(all.of_rank[r][0], {.code = errc::config_failed, .peer = broken, .config = "failing"}));
      CHECK(says(all.of_rank[r][0], "the kernel has failed") == (r == broken));
      // Calls that were assigned ahead keep the failing config. Calls that are assigned after the failure run the default.
      CHECK(all.of_rank[r].back());
    }
    CHECK(c->chosen().config == "slow");
    CHECK(join_group_flights(w).mismatches == 0);
  }
}

TEST_CASE("a group call waits for the tasks that its config spawns, and fails if one of them throws") {
  for (const std::optional<rank_id> broken : {std::optional<rank_id>(), std::optional<rank_id>(1)}) {
    world w(3);
    const auto all = reduce_all(w, declare_all(w, led_by(0, {std::make_shared<spawning_star>(broken)})), {50'000});
    CHECK(all.wrong == 0);
    for (rank_id r = 0; r < 3; ++r) {
      CAPTURE(r);
      CHECK(all.of_rank[r][0].code() == (r == broken ? errc::config_failed : errc::none));
      CHECK(says(all.of_rank[r][0], "the kernel has failed") == (r == broken));
    }
  }
}

TEST_CASE("a group config fails by name if two of its coroutines wait on one rank, and its call fails on all ranks") {
  world w(4);
  auto op = led_by(0, {std::make_shared<twice_waiting_star>(2)});
  op.timeout = 1s;
  const auto all = reduce_all(w, declare_all(w, op), {1'000});
  for (rank_id r = 0; r < 4; ++r) CHECK(all.of_rank[r][0].code() == errc::config_failed);
  CHECK(says(all.of_rank[2][0], "two coroutines wait for parts of one call"));
  CHECK(w.clock.now() < 900'000'000);
}

TEST_CASE("a group config that waits forever is ended at the deadline of its call, whichever rank waits") {
  for (rank_id hangs = 0; hangs < 3; ++hangs) {
    for (const bool at_first : {true, false}) {
      CAPTURE(hangs);
      CAPTURE(at_first);
      world w(3);
      auto op = led_by(0, {std::make_shared<hanging_star>(hangs, at_first)});
      op.timeout = 2s;
      const auto groups = declare_all(w, op);
      const time_ns began = w.clock.now();
      const auto all = reduce_all(w, groups, {50'000});
      CHECK(w.clock.now() - began < 3'000'000'000);
      for (rank_id r = 0; r < 3; ++r) {
        CAPTURE(r);
        const bool done = !at_first && r != hangs;  // the hanging rank had sent all that the others need
        CHECK(all.of_rank[r][0].code() == (done ? errc::none : errc::timeout));
      }
    }
  }
}

TEST_CASE("a call that is cancelled while its config waits forever ends with cancelled and not with config_failed") {
  for (rank_id quitter = 0; quitter < 3; ++quitter) {
    CAPTURE(quitter);
    world w(3);
    const auto groups = declare_all(w, led_by(0, {std::make_shared<hanging_star>(quitter, true)}));
    group_outcomes all;
    all.of_rank.resize(3);
    scope working(w.clock);
    scope quitting(w.clock);
    for (rank_id r = 0; r < 3; ++r)
      (r == quitter ? quitting : working).spawn(reduce_each(groups[r], r, 3, {50'000}, 1, all));
    wait_a_while(w, 1_ms);
    quitting.cancel();
    run_until(w.clock, [&] { return working.running() == 0 && quitting.running() == 0; });
    for (rank_id r = 0; r < 3; ++r) CHECK(all.of_rank[r][0].code() == errc::cancelled);
  }
}

TEST_CASE("a config that fails in its rehearsal is no candidate") {
  fault f{1, true, 0};
  world w(3, eager_trials());
  const auto groups = declare_all(w, led_by(0, {star(), std::make_shared<failing_star>(f, star()), chain()}));
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(50, 5000)).failed() == 0);
  wait_a_while(w, 20_s);
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(50, 5000)).failed() == 0);
  const auto agreed = w[0].agreements();
  const auto& ids = agreed.front().assigned->ids();
  CHECK(std::find(ids.begin(), ids.end(), "failing") == ids.end());
  CHECK(ids.size() == 2);
  REQUIRE(agreed.front().warm_errors->size() >= 1);
  CHECK(agreed.front().warm_errors->front().find("failing") != std::string::npos);
}

TEST_CASE("a rank that finds wrong data in a config's rehearsal warns of it, and the config is no candidate") {
  world w(3, eager_trials());
  const auto groups = declare_all(w, led_by(0, {star(), std::make_shared<spoiling_star>(), chain()}));
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(50, 5000)).failed() == 0);
  wait_a_while(w, 20_s);
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(50, 5000)).wrong == 0);
  CHECK(w[0].agreements().front().assigned->ids() == std::vector<std::string>{"star", chain()->id()});
  const auto& told = w[1].warnings();
  CHECK(std::any_of(told.begin(), told.end(), [](const std::string& text) {
    return text.find("config spoiling") != std::string::npos &&
           text.find("the rehearsal brought wrong data at element 2") != std::string::npos;
  }));
  CHECK(w[2].warnings().empty());
}

namespace {

/// Makes calls, lets the candidates be rehearsed, and makes calls again. No call may fail, and the later sums must be right.
void check_calls_around_rehearsals(world& w, const std::vector<collective>& groups) {
  const std::vector<std::size_t> sizes(50, 5000);
  CHECK(reduce_all(w, groups, sizes).failed() == 0);
  wait_a_while(w, 20_s);
  const auto all = reduce_all(w, groups, sizes);
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
}

/// Each rank gets the data of all others and combines it: in the order of the places, or its own data first.
class exchange_all final : public group_config {
 public:
  enum class adds : std::uint8_t { floats, by_combine };
  exchange_all(const char* name, adds how, bool own_first)
      : group_config({.name = name, .wire_class = "exchange_all"}), how_(how), own_first_(own_first) {}
  bool does(collective_kind kind) const noexcept override { return kind == collective_kind::all_reduce; }
  bool returns_later() const noexcept override { return false; }
  task<> lead(group_call& g) const override { return exchange(g); }
  task<> work(group_call& g) const override { return exchange(g); }

 private:
  task<> exchange(group_call& g) const {
    const std::size_t bytes = g.data().size();
    const std::span<std::byte> all = g.scratch(bytes * g.size());
    const auto of = [&](std::size_t place) { return all.subspan(place * bytes, bytes); };
    for (std::size_t p = 0; p < g.size(); ++p) {
      if (p == g.self()) continue;
      g.receive(p, 0, of(p));
      g.send(p, 0, g.data());
    }
    co_await g.drain();
    g.copy(of(g.self()), g.data());
    const std::size_t first = own_first_ ? g.self() : 0;
    g.copy(g.data(), of(first));
    for (std::size_t p = 0; p < g.size(); ++p) {
      if (p != first) add(g, of(p));
    }
  }
  void add(group_call& g, std::span<const std::byte> from) const {
    if (how_ == adds::by_combine) return g.combine(g.data(), from);
    for (std::size_t at = 0; at < from.size(); at += sizeof(float)) {
      float sum = 0;
      float other = 0;
      std::memcpy(&sum, g.data().data() + at, sizeof sum);
      std::memcpy(&other, from.data() + at, sizeof other);
      sum += other;
      std::memcpy(g.data().data() + at, &sum, sizeof sum);
    }
  }
  adds how_;
  bool own_first_;
};

}  // namespace

TEST_CASE("a config of floats may add them itself, and one that does not combine in the order of the places is no "
          "candidate") {
  using adds = exchange_all::adds;
  world w(3, eager_trials());
  const auto groups =
      declare_all(w, led_by(0, {star(), std::make_shared<exchange_all>("adds_floats", adds::floats, false),
                                std::make_shared<exchange_all>("combines", adds::by_combine, false),
                                std::make_shared<exchange_all>("adds_its_own_first", adds::floats, true),
                                std::make_shared<exchange_all>("combines_its_own_first", adds::by_combine, true)}));
  check_calls_around_rehearsals(w, groups);
  const auto& ids = w[0].agreements().front().assigned->ids();
  CHECK(ids == std::vector<std::string>{"star", "adds_floats", "combines"});
  CHECK(warned(w[2], {"config combines_its_own_first", "in the order of the places"}));  // a + b is b + a for rank 1
}

TEST_CASE("a config that writes behind the data in its rehearsal is no candidate, and its rank says why") {
  world w(3, eager_trials());
  const auto groups = declare_all(w, led_by(0, {star(), std::make_shared<greedy_star>(), chain()}));
  check_calls_around_rehearsals(w, groups);
  const auto& ids = w[0].agreements().front().assigned->ids();
  CHECK(ids == std::vector<std::string>{"star", chain()->id()});
  const auto& told = w[1].warnings();
  CHECK(std::any_of(told.begin(), told.end(), [](const std::string& text) {
    return text.find("config greedy") != std::string::npos &&
           text.find("the rehearsal wrote beyond its buffer of 80000 bytes, at byte 80000") != std::string::npos;
  }));
}

namespace {

struct larger {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct smaller {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

constexpr std::size_t usual_count = 100;
const std::vector<group_config_ptr> ways{star(), star(64), chain(64), tree(), one_shot(), two_shot(), two_shot(64)};

template <class Combine, class T>
task<> sum_in_place(collective g, const array<T>* x, result<>* outcome) {
  *outcome = co_await attempt(g.all_reduce<Combine>(std::span<T>(x->data(), x->size())));
}

// Rank `odd` calls with `count` elements of type T and with Combine, the other ranks with floats and a sum. Then all ranks call once with
// floats and a sum. Returns how the first call ended on each rank: it must find the difference before it writes anything, and within 1 ms
// (the timeout is 30 s).
template <class T, class Combine = std::plus<>>
std::vector<result<>> with_one_that_differs(const group_config_ptr& config, rank_id odd,
                                            std::size_t count = usual_count) {
  world w(4);
  const auto groups = declare_all(w, led_by(0, {config}));
  std::vector<result<>> outcomes(4);
  std::vector<result<>> again(4);
  guarded_place at;
  std::vector<array<float>> x;
  for (rank_id r = 0; r < 4; ++r) {
    const std::vector<float> mine = contribution(r, usual_count);
    std::copy(mine.begin(), mine.end(), x.emplace_back(at, mine.size()).begin());
  }
  const array<T> other(at, count);
  std::fill(other.begin(), other.end(), T{7});
  const auto before = at.contents();
  scope working(w.clock);
  for (rank_id r = 0; r < 4; ++r) {
    if (r == odd) {
      working.spawn(sum_in_place<Combine>(groups[r], &other, &outcomes[r]));
    } else {
      working.spawn(sum_in_place<std::plus<>>(groups[r], &x[r], &outcomes[r]));
    }
  }
  run_until(w.clock, [&] { return working.running() == 0; });
  CHECK(w.clock.now() < 1_ms);
  CHECK(at.contents() == before);
  for (rank_id r = 0; r < 4; ++r)
    CHECK(is(outcomes[r], {.op = "gradients 0->1->2->3",
                           .rank = r,
                           .role = r == 0 ? "leader" : "worker",
                           .invocation = 0,
                           .begun = true}));
  for (rank_id r = 0; r < 4; ++r) working.spawn(sum_in_place<std::plus<>>(groups[r], &x[r], &again[r]));
  run_until(w.clock, [&] { return working.running() == 0; });
  for (rank_id r = 0; r < 4; ++r) {
    CHECK(again[r]);
    CHECK(wrong_sums(std::vector<float>(x[r].begin(), x[r].end()), 4) == 0);
  }
  CHECK(at.clean());
  return outcomes;
}

}  // namespace

TEST_CASE("if one rank calls with another size all ranks get bad_argument, before anything is written") {
  for (const auto& config : ways) {
    for (const rank_id odd : {0U, 2U, 3U}) {
      for (const std::size_t count : {usual_count - 1, usual_count + 1}) {
        CAPTURE(config->id());
        CAPTURE(odd);
        CAPTURE(count);
        const auto outcomes = with_one_that_differs<float>(config, odd, count);
        for (rank_id r = 0; r < 4; ++r) {
          const std::size_t bytes = (r == odd ? count : usual_count) * sizeof(float);
          CHECK(is(outcomes[r], {.code = errc::bad_argument, .own_bytes = bytes, .quotes = "another size"}));
        }
      }
    }
  }
}

TEST_CASE("if one rank calls with another type or combining function, all ranks get declaration_mismatch with both") {
  for (const auto& config : ways) {
    for (const rank_id odd : {0U, 2U}) {
      CAPTURE(config->id());
      CAPTURE(odd);
      const auto both = [](const std::vector<result<>>& outcomes, const std::string& one, const std::string& other) {
        for (const auto& o : outcomes) {
          for (const std::string& type : {one, other})
            CHECK(is(o, {.code = errc::declaration_mismatch, .quotes = type}));
        }
      };
      const std::string floats = words_of(call_type_of<float, std::plus<>>());
      both(with_one_that_differs<std::int32_t, std::plus<>>(config, odd), floats,
           words_of(call_type_of<std::int32_t, std::plus<>>()));
      both(with_one_that_differs<double, std::plus<double>>(config, odd), floats,
           words_of(call_type_of<double, std::plus<>>()));
      both(with_one_that_differs<float, std::multiplies<>>(config, odd), floats,
           words_of(call_type_of<float, std::multiplies<>>()));
      both(with_one_that_differs<float, larger>(config, odd), floats, words_of(call_type_of<float, larger>()));
    }
  }
}

TEST_CASE("if one rank lists another default config, all ranks get declaration_mismatch with both configs") {
  for (const rank_id odd : {0U, 2U}) {
    for (const std::uint64_t depth : {1U, 3U}) {
      CAPTURE(odd);
      CAPTURE(depth);
      world w(4);
      std::vector<collective> groups;
      for (rank_id r = 0; r < 4; ++r) {
        const bool other = r == odd;
        auto op = led_by(0, other ? std::vector{chain(64), star()} : std::vector{star(), chain(64)});
        op.depth = depth;
        groups.emplace_back(w[r], op);
      }
      const time_ns began = w.clock.now();
      const auto all = reduce_all(w, groups, {100, 100});
      CHECK(w.clock.now() - began < 2_s);
      for (const auto& rank : all.of_rank) {
        for (const auto& o : rank) {
          for (const std::string& config : {star()->id(), chain(64)->id()})
            CHECK(is(o, {.code = errc::declaration_mismatch, .quotes = "default " + config}));
        }
      }
    }
  }
}

TEST_CASE("equal element types and combining functions have one call type number, whatever their spelling") {
  CHECK(call_type_of<float, std::plus<>>() == call_type_of<float, std::plus<float>>());
  CHECK(call_type_of<long long, larger>() == call_type_of<long, larger>());
  CHECK(call_type_of<float, larger>() != call_type_of<float, smaller>());
  CHECK(call_type_of<float, larger>() != call_type_of<int, larger>());
  CHECK(call_type_of<larger, std::plus<>>() != call_type_of<smaller, std::plus<>>());
  CHECK(call_type_of<int>() != call_type_of<unsigned>());
  CHECK(words_of(call_type_of<int>()) == "i32 elements");
  CHECK(words_of(call_type_of<larger, std::plus<>>()) == "the program's own elements");
}

TEST_CASE("user functions whose names share the tag bits of a stamp have different call type numbers") {
  std::map<std::uint64_t, std::string> by_tag;
  std::set<std::uint64_t> whole;
  std::size_t shared = 0;
  for (int i = 0; i < 1'000; ++i) {
    const std::string name = "own" + std::to_string(i);
    const std::uint64_t number = call_types::own_combination("", name);
    if (!by_tag.emplace(number % (1U << actors::call_type_tag_bits), name).second) ++shared;
    CHECK(whole.insert(number).second);
  }
  CHECK(shared > 0);
  actors::stamp s;
  const auto type = static_cast<actors::call_type>((std::uint64_t{1} << 30U) | 12);
  actors::put_type(type, s);
  CHECK(actors::type_of(s) == type);
  CHECK(words_of(type) == words_of(static_cast<actors::call_type>(12)));
}

TEST_CASE(
    "a broadcast or gather of two element types is refused by the rank that receives it, and nothing is written") {
  guarded_place at;
  const array<float> leads(at, 2);
  const array<std::int32_t> works(at, 1);
  leads[0] = 7;
  leads[1] = 8;
  works[0] = 9;
  const auto before = at.contents();
  // The call of a rank that only sends may have ended before its message is refused.
  std::vector<result<>> outcomes(2);
  for (const collective_kind does : {collective_kind::gather, collective_kind::broadcast}) {
    CAPTURE(name(does));
    world w(2);
    auto op = led_by(0, {star()});
    op.kind = does;
    const auto groups = declare_all(w, op);
    const auto gather = [](collective g, auto mine, auto all, result<>* outcome) -> task<> {
      *outcome = co_await attempt(g.gather(mine, all));
    };
    const auto broadcast = [](collective g, auto mine, result<>* outcome) -> task<> {
      *outcome = co_await attempt(g.broadcast(mine));
    };
    const bool to_leader = does == collective_kind::gather;
    const std::span<float> of_0(leads.data(), 2);
    const std::span<std::int32_t> of_1(works.data(), 1);
    scope working(w.clock);
    if (to_leader) {
      working.spawn(gather(groups[0], of_0.first(1), of_0, &outcomes[0]));
      working.spawn(gather(groups[1], of_1, std::span<std::int32_t>(), &outcomes[1]));
    } else {
      working.spawn(broadcast(groups[0], of_0.first(1), &outcomes[0]));
      working.spawn(broadcast(groups[1], of_1, &outcomes[1]));
    }
    run_until(w.clock, [&] { return working.running() == 0; });
    CHECK(w.clock.now() < 1_ms);
    const rank_id refuses = to_leader ? 0 : 1;
    CHECK(is(outcomes[refuses], {.code = errc::declaration_mismatch,
                                 .op = "gradients 0->1",
                                 .rank = refuses,
                                 .role = to_leader ? "leader" : "worker",
                                 .invocation = 0,
                                 .peer = 1 - refuses,
                                 .quotes = to_leader ? "i32 elements" : "f32 elements"}));
    CHECK(at.contents() == before);
  }
  CHECK(at.clean());
}

TEST_CASE("workers that ignore the stamps cause config_mismatch errors and no wrong sums") {
  rank_settings settings = eager_trials();
  settings.mutant_ignores_stamp = true;
  world w(3, settings);
  const auto groups = declare_all(w, led_by(0, {star(), star(1_KiB), chain()}));
  std::size_t mismatches = 0;
  for (int round = 0; round < 5; ++round) {
    const auto all = reduce_all(w, groups, std::vector<std::size_t>(20, 5000));
    CHECK(all.wrong == 0);
    for (rank_id r = 0; r < 3; ++r) {
      for (const auto& outcome : all.of_rank[r]) mismatches += outcome.code() == errc::config_mismatch ? 1 : 0;
    }
    wait_a_while(w, 100_ms);
  }
  CHECK(mismatches >= 3);
}

TEST_CASE("impossible roles and groups are refused on every rank, with the names of the op and the ranks") {
  world w(4);
  collective_options op;
  op.name = "gradients";
  const auto refused = [&](errc code, std::string_view text) {
    for (rank_id r = 0; r < 4; ++r) {
      CAPTURE(r);
      const auto how = thrown_by([&] { collective(w[r], op); });
      CHECK(how.code() == code);
      CHECK_MESSAGE(says(how, text), (how ? "nothing is thrown" : how.reason().what()));
    }
  };
  op.role = [](rank_id r) { return r % 2 == 0 ? role::leader : role::worker; };
  refused(errc::role_conflict, "op gradients: ranks 0, 2 all claim to lead");
  op.role = [](rank_id) { return role::worker; };
  refused(errc::role_conflict, "op gradients: no rank leads the group of ranks 0, 1, 2, 3");
  op.role = [](rank_id r) { return r == 0 ? role::leader : role::sender; };
  refused(errc::bad_argument, "op gradients: rank 1 has the role \"sender\"");
  op.role = nullptr;
  op.groups = {{0, 1}, {1, 2}};
  refused(errc::role_conflict, "rank 1");
  op.groups = {{0, 7}};
  refused(errc::bad_argument, "rank 7");
  op.groups = {{0, 1, 2, 3}};
  op.depth = 0;
  refused(errc::bad_argument, "a depth of 0 is impossible for all_reduce");
  op.depth = 1;
  op.groups = {{0, 1}, {2, 3}};
  for (rank_id r = 0; r < 4; ++r) CHECK_NOTHROW(collective(w[r], op));
}

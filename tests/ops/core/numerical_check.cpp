// Trials whose received payloads are compared with the sent ones: `constraints::compare_trials`, NUMERICAL_CHECK.
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/groups/group.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/transfer.hpp>
#include <parley/tuning/payload_check.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t size = 100'000;

/// Fast, and correct in its rehearsal, whose payload has another size. In calls it changes a byte.
class careless final : public paired_config {
 public:
  explicit careless(tuning::demands says = {}) : paired_config({.name = "careless"}), says_(says) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    co_await in.receive(0, data);
    auto settled = co_await in.settle();
    static_cast<void>(settled);
    if (data.size() == size) data[size / 2] ^= std::byte{1};
  }
  tuning::demands demands() const override { return says_; }

 private:
  tuning::demands says_;
};

rank_settings checking(bool on = true) {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  s.constraints.compare_trials = on;
  return s;
}

/// Makes one call, waits until `one` is rehearsed, and returns the outcomes of the 600 calls after that.
call_outcomes tuned(world& w, const config_ptr& one) {
  const std::vector<config_ptr> configs{chunked(4096, 1), one, chunked(8192, 2)};
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  move_each(w, out, in, {size});
  pass(w, 1'000'000'000);
  return move_each(w, out, in, std::vector<std::size_t>(600, size));
}

}  // namespace

TEST_CASE("a payload check depends on every bit, on the order and on the length") {
  for (const std::size_t length : {1U, 7U, 8U, 9U, 31U, 32U, 33U, 64U, 100U}) {
    std::vector<std::byte> data = pattern(length, 1);
    const std::uint64_t right = tuning::payload_check(data);
    for (std::size_t bit = 0; bit < 8 * length; ++bit) {
      data[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      CHECK(tuning::payload_check(data) != right);
      data[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
    data.push_back(std::byte{0});
    CHECK(tuning::payload_check(data) != right);
    data.pop_back();
    CHECK(tuning::payload_check(data) == right);
  }
  std::vector<std::byte> swapped = pattern(64, 1);
  const std::uint64_t right = tuning::payload_check(swapped);
  std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + 32);
  CHECK(tuning::payload_check(swapped) != right);
  CHECK(tuning::payload_check({}) == tuning::payload_check({}));
  // The check does not depend on how the payload is cut.
  const std::vector<std::byte> whole = pattern(200, 2);
  for (const std::size_t cut : {1U, 3U, 8U, 31U, 32U, 33U, 100U}) {
    tuning::running_payload_check pieces;
    for (std::size_t at = 0; at < whole.size(); at += cut)
      pieces.add(std::span(whole).subspan(at, std::min(cut, whole.size() - at)));
    CHECK(pieces.value() == tuning::payload_check(whole));
  }
  // A fixed value: the check is sent to other machines, so it must be equal on all of them.
  std::vector<std::byte> known(100);
  for (std::size_t i = 0; i < known.size(); ++i) known[i] = static_cast<std::byte>(i * 31 + 14);
  CHECK(tuning::payload_check(known) == 0x74c7f74a576cd524U);
}

TEST_CASE("a config that delivers wrong bytes ends its first compared trial as config_failed and never wins") {
  world w(2, checking());
  const auto all = tuned(w, std::make_shared<careless>());
  const auto* c = search_of(w, "128KiB");
  REQUIRE(c != nullptr);
  CHECK(c->is_decided());
  CHECK(c->chosen().config.starts_with("chunked"));
  REQUIRE(c->excluded().size() == 1);
  CHECK(c->excluded()[0].kind == actors::exclusion::reason::failed);
  std::size_t failed = 0;
  for (const auto& r : all.received) {
    if (r) continue;
    ++failed;
    CHECK(is(r, {.code = errc::config_failed,
                 .rank = 1,
                 .role = "receiver",
                 .config = "careless",
                 .done_bytes = 100'000,
                 .whole_bytes = 100'000,
                 .quotes = "the bytes differ from those sent"}));
  }
  CHECK(failed == 1);
  CHECK(all.wrong == 0);
  CHECK(w[1].warnings().size() + w[0].warnings().size() == 1);
}

TEST_CASE("trials are compared only if a user asks, and not for a config that says it is not exact") {
  for (const bool asked : {false, true}) {
    CAPTURE(asked);
    const auto config = std::make_shared<careless>(tuning::demands{.relative_error = asked ? 1e-3 : 0});
    world w(2, checking(asked));
    const auto all = tuned(w, config);
    CHECK(all.failed() == 0);
    CHECK(all.wrong >= 1);
    const auto* c = search_of(w, "128KiB");
    REQUIRE(c != nullptr);
    CHECK(c->is_decided());
    CHECK(c->excluded().empty());
  }
}

TEST_CASE("every kind of paired config delivers right data and is tuned, if only one end asks for comparisons") {
  for (const bool sender : {true, false}) {
    CAPTURE(sender);
    world w(2, checking(false));
    auto op = pair_of({direct(), chunked(4096, 1), chunked(16_KiB, 4), put(), get(), get(64_KiB)});
    op.constraints.compare_trials = sender;
    transfer out(w[0], op);
    op.constraints.compare_trials = !sender;
    transfer in(w[1], op);
    std::vector<std::byte> from = pattern(size, 3), into(size);
    const auto here = out.registered(from);
    const auto there = in.registered(into);
    const auto both = [](transfer o, transfer i, std::span<std::byte> a, std::span<std::byte> b, int& wrong) -> task<> {
      for (int n = 0; n < 400; ++n) {
        auto done = co_await when_all(o.send(a, {.to = 1}), i.receive(b, {.from = 0}));
        static_cast<void>(done);
        if (!std::equal(a.begin(), a.end(), b.begin())) ++wrong;
      }
    };
    int wrong = 0;
    run(w.clock, both(out, in, from, into, wrong));
    pass(w, 1'000'000'000);  // enough time for a put that waits for late credits
    run(w.clock, both(out, in, from, into, wrong));
    CHECK(wrong == 0);
    CHECK(join_flights(w).timed > 0);
    const auto* c = search_of(w, "128KiB");
    REQUIRE(c != nullptr);
    CHECK(c->is_decided());
    for (const auto& e : c->excluded()) CHECK(e.kind == actors::exclusion::reason::unmet);
  }
}

TEST_CASE("an op whose trials cannot be compared warns, by name") {
  world w(2, checking());
  auto op = pair_of({direct(), chunked(4096, 1)});
  op.name = "activations";
  op.memory = &host_memory();  // stands for memory of a device
  static_cast<void>(transfer(w[0], op));
  REQUIRE(w[0].warnings().size() == 1);
  CHECK(w[0].warnings()[0].find("activations 0->1: the results of its trials are not compared (NUMERICAL_CHECK)") == 0);
}

// ---- groups -----------------------------------------------------------------------------------------------------------

namespace {

constexpr std::size_t elements = size / sizeof(float);

/// Correct in its rehearsal, whose payload has another size. In calls it leaves the last float of the last member's data out of the sum.
task<> forgetful_lead(group_call& g) {
  std::vector<std::span<std::byte>> parts(g.size());
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p == g.leader()) continue;
    parts[p] = g.scratch(g.data().size());
    g.receive(p, 0, parts[p]);
  }
  co_await g.drain();
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p == g.leader()) continue;
    const bool forgets = p + 1 == g.size() && g.data().size() == size;
    const std::size_t bytes = g.data().size() - (forgets ? sizeof(float) : 0);
    g.combine(g.data().first(bytes), parts[p].first(bytes));
  }
  if (g.has_between()) co_await g.between();
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p != g.leader()) g.send(p, 0, g.data());
  }
  co_await g.drain();
}
task<> forgetful_work(group_call& g) {
  const auto sent = g.send(g.leader(), 0, g.data());
  co_await g.until(sent);
  g.receive(g.leader(), 0, g.data());
  co_await g.drain();
}
group_config_ptr forgetful() {
  return grouped({.name = "forgetful", .wire_class = "forgetful"}, forgetful_lead, forgetful_work);
}

const actors::search* search_of(const collective& leader) { return leader.details()->assigned()->find(size); }

task<> give_each(collective g, bool root, int times, std::size_t& wrong) {
  for (int n = 0; n < times; ++n) {
    std::vector<std::byte> data = root ? pattern(size, static_cast<std::uint64_t>(n)) : std::vector<std::byte>(size);
    co_await g.broadcast(std::span(data));
    if (data != pattern(size, static_cast<std::uint64_t>(n))) ++wrong;
  }
}
task<> gather_each(collective g, rank_id me, std::size_t members, int times, std::size_t& wrong) {
  const std::size_t block = size / members;
  for (int n = 0; n < times; ++n) {
    std::vector<std::byte> mine = pattern(block, me + 10 * static_cast<std::uint64_t>(n));
    std::vector<std::byte> all(g.leads() ? block * members : 0);
    co_await g.gather(std::span(mine), std::span(all));
    for (std::size_t p = 0; p < members && g.leads(); ++p) {
      const auto right = pattern(block, p + 10 * static_cast<std::uint64_t>(n));
      if (!std::equal(right.begin(), right.end(), all.begin() + static_cast<std::ptrdiff_t>(p * block))) ++wrong;
    }
  }
}

task<> nothing() { co_return; }

task<> reduce_between(collective g, rank_id me, int times, int& between, std::size_t& wrong) {
  for (int n = 0; n < times; ++n) {
    std::vector<float> x = contribution(me, elements);
    if (g.leads()) {
      const std::function<task<>(std::span<float>)> twice = [&between](std::span<float> all) {
        ++between;
        for (float& v : all) v *= 2;
        return nothing();
      };
      co_await g.all_reduce(std::span(x), twice);
    } else {
      co_await g.all_reduce(std::span(x));
    }
    for (float& v : x) v /= 2;
    wrong += wrong_sums(x, 3);
  }
}

}  // namespace

TEST_CASE(
    "a group's config with other sums than the default's is excluded on all ranks, and no call returns its sums") {
  for (const rank_id leader : {0U, 1U}) {
    for (const std::size_t at_once : {1U, 2U}) {
      CAPTURE(leader);
      CAPTURE(at_once);
      world w(3, checking());
      const auto wrong = forgetful();
      const auto groups = declare_all(w, led_by(leader, {star(), wrong, chain()}));
      const auto first = reduce_all(w, groups, {elements});
      wait_a_while(w, 1'000'000'000);
      const auto all = reduce_all(w, groups, std::vector<std::size_t>(400, elements), at_once);
      CHECK(first.failed() + all.failed() == 0);
      CHECK(all.wrong == 0);
      const auto* c = search_of(groups[leader]);
      REQUIRE(c != nullptr);
      CHECK(c->is_decided());
      CHECK(c->chosen().config != "forgetful");
      REQUIRE(c->excluded().size() == 1);
      CHECK(c->excluded()[0].why.find("its results differ from the default's: element 24999 is ") != std::string::npos);
      wait_a_while(w, 1'000'000'000);
      for (rank_id r = 0; r < 3; ++r) {
        const auto decisions = w[r].decisions();
        REQUIRE(decisions.size() == 1);
        const auto& evidence = decisions[0].decision.evidence;
        CHECK(std::any_of(evidence.begin(), evidence.end(), [&](const auto& e) {
          return e.digest == wrong->digest() &&
                 e.detail.find("its results differ from the default's") != std::string::npos;
        }));
      }
      CHECK(join_group_flights(w).mismatches == 0);
    }
  }
}

TEST_CASE("the leader's setting decides whether a group's trials are compared") {
  for (const bool leads : {true, false}) {
    CAPTURE(leads);
    world w(3, checking(false));
    std::vector<collective> groups;
    for (rank_id r = 0; r < 3; ++r) {
      auto op = led_by(0, {star(), forgetful()});
      op.constraints.compare_trials = (r == 0) == leads;
      groups.emplace_back(w[r], op);
    }
    static_cast<void>(reduce_all(w, groups, {elements}));
    wait_a_while(w, 1'000'000'000);
    const auto all = reduce_all(w, groups, std::vector<std::size_t>(200, elements));
    CHECK(all.failed() == 0);
    CHECK((all.wrong == 0) == leads);
    CHECK(search_of(groups[0])->excluded().size() == (leads ? 1 : 0));
  }
}

TEST_CASE("every library config passes the comparison in every collective, and every candidate is timed") {
  for (const collective_kind what :
       {collective_kind::all_reduce, collective_kind::broadcast, collective_kind::gather}) {
    CAPTURE(name(what));
    world w(4, checking());
    auto op = led_by(1, {star(), star(16_KiB), tree()});
    if (what != collective_kind::gather) op.configs.push_back(chain());
    op.kind = what;
    const auto groups = declare_all(w, op);
    std::size_t wrong = 0;
    const auto call = [&](int times) {
      scope working(w.clock);
      for (rank_id r = 0; r < 4; ++r) {
        if (what == collective_kind::broadcast) working.spawn(give_each(groups[r], r == 1, times, wrong));
        if (what == collective_kind::gather) working.spawn(gather_each(groups[r], r, 4, times, wrong));
      }
      if (what == collective_kind::all_reduce)
        wrong += reduce_all(w, groups, std::vector<std::size_t>(static_cast<std::size_t>(times), elements)).wrong;
      run_until(w.clock, [&] { return working.running() == 0; });
    };
    call(1);
    wait_a_while(w, 1'000'000'000);
    call(400);
    CHECK(wrong == 0);
    const auto* c = search_of(groups[1]);
    REQUIRE(c != nullptr);
    CHECK(c->is_decided());
    CHECK(c->excluded().empty());
    REQUIRE(c->aggregates().size() == op.configs.size());
    for (const auto& a : c->aggregates()) CHECK(a.count > 0);
    CHECK(join_group_flights(w).mismatches == 0);
  }
}

TEST_CASE("a leader's step in between runs once for both configs, and the candidate's sum from before it is compared") {
  world w(3, checking());
  const auto groups = declare_all(w, led_by(0, {star(), forgetful(), chain()}));
  int between = 0;
  std::size_t wrong = 0;
  const auto call = [&](int times) {
    scope working(w.clock);
    for (rank_id r = 0; r < 3; ++r) working.spawn(reduce_between(groups[r], r, times, between, wrong));
    run_until(w.clock, [&] { return working.running() == 0; });
  };
  call(1);
  wait_a_while(w, 1'000'000'000);
  call(300);
  CHECK(wrong == 0);
  CHECK(between == 301);
  REQUIRE(search_of(groups[0])->excluded().size() == 1);
  CHECK(search_of(groups[0])->excluded()[0].why.find("its results differ from the default's") != std::string::npos);
  CHECK(search_of(groups[0])->chosen().config != "forgetful");
}

// Trials whose payloads are compared with what was sent: `constraints::compare_trials`, NUMERICAL_CHECK.
#include "../support/groups.hpp"
#include "../support/transfers.hpp"

#include <parley/tuning/payload_check.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t size = 100'000;

/// Fast, and right in its rehearsal, whose payload is of another size; afterwards it changes a byte.
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
  s.allowed.compare_trials = on;
  return s;
}

/// Calls beside which `one` is tried, and those that come once it can be.
call_outcomes tuned(world& w, const config_ptr& one) {
  const std::vector<config_ptr> configs{chunked(4096, 1), one, chunked(8192, 2)};
  auto out = w[0].declare(pair_of(configs));
  auto in = w[1].declare(pair_of(configs));
  move_each(w, out, in, {size});
  pass(w, 1'000'000'000);
  return move_each(w, out, in, std::vector<std::size_t>(200, size));
}

}  // namespace

TEST_CASE("a check of a payload sees every bit, every place and the length") {
  for (const std::size_t length : {1U, 7U, 8U, 9U, 31U, 32U, 33U, 64U, 100U}) {
    std::vector<std::byte> data = numbered(length, 1);
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
  std::vector<std::byte> swapped = numbered(64, 1);
  const std::uint64_t right = tuning::payload_check(swapped);
  std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + 32);
  CHECK(tuning::payload_check(swapped) != right);
  CHECK(tuning::payload_check({}) == tuning::payload_check({}));
  // The same number everywhere: it travels.
  CHECK(tuning::payload_check(numbered(100, 2)) == 0x74c7f74a576cd524U);
}

TEST_CASE(
    "a config that brings other bytes than were sent fails its first compared trial on both ranks, and never wins") {
  world w(2, checking());
  const auto all = tuned(w, std::make_shared<careless>());
  const auto* c = campaign_of(w, "128KiB");
  REQUIRE(c != nullptr);
  CHECK(c->where == actors::campaign::stage::decided);
  CHECK(c->winner.starts_with("chunked"));
  REQUIRE(c->excluded.size() == 1);
  CHECK(c->excluded[0].why.find("other bytes than were sent") != std::string::npos);
  std::size_t failed = 0;
  for (const auto& r : all.received) {
    if (r) continue;
    ++failed;
    CHECK(r.code() == errc::config_failed);
    CHECK(says(r, "on rank 1 (receiver): config careless received 100000 of 100000 bytes"));
    CHECK(says(r, "other bytes than were sent"));
  }
  CHECK(failed == 1);
  CHECK(all.wrong == 0);
  CHECK(w[1].warnings().size() + w[0].warnings().size() == 1);
}

TEST_CASE("nothing is compared unless somebody asked, nor of a config that says it is not exact") {
  for (const bool asked : {false, true}) {
    CAPTURE(asked);
    const auto config = std::make_shared<careless>(tuning::demands{.relative_error = asked ? 1e-3 : 0});
    world w(2, checking(asked));
    const auto all = tuned(w, config);
    CHECK(all.failed() == 0);
    CHECK(all.wrong >= 1);
    const auto* c = campaign_of(w, "128KiB");
    REQUIRE(c != nullptr);
    CHECK(c->where == actors::campaign::stage::decided);
    CHECK(c->excluded.empty());
  }
}

TEST_CASE("comparing is fine with every kind of config, and the sender's word decides") {
  for (const bool sender : {true, false}) {
    CAPTURE(sender);
    world w(2, checking(false));
    auto op = pair_of({direct(), chunked(4096, 1), chunked(16_KiB, 4), put(), get(), get(64_KiB)});
    op.allowed.compare_trials = sender;
    auto out = w[0].declare(op);
    op.allowed.compare_trials = !sender;
    auto in = w[1].declare(op);
    std::vector<std::byte> from = numbered(size, 3), into(size);
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
    CHECK(wrong == 0);
    CHECK(join_flights(w).timed > 0);
    const auto* c = campaign_of(w, "128KiB");
    REQUIRE(c != nullptr);
    CHECK(c->where == actors::campaign::stage::decided);
    for (const auto& e : c->excluded) CHECK(e.kind == actors::campaign::exclusion::reason::constraint);
  }
}

TEST_CASE("an op whose trials cannot be compared says so, by name") {
  world w(2, checking());
  auto op = led_by(0, {star(), chain()});
  op.name = "gradients";
  for (rank_id r = 0; r < 2; ++r) {
    w[r].declare(op);
    REQUIRE(w[r].warnings().size() == 1);
    CHECK(w[r].warnings()[0].find("gradients 0->1: what its trials bring is not compared (NUMERICAL_CHECK)") == 0);
  }
}

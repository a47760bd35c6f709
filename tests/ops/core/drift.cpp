// New searches that begin when the times of a decided config drift, on whole ranks in virtual time.
#include <parley/tests/support/cases/schemes.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t bytes = 1 << 20;

/// Sends both halves at once after 100 us of preparation, which pays off only on a slow link.
class prepared_halves final : public paired_config {
 public:
  prepared_halves() : paired_config({.name = "prepared_halves", .wire_class = "halves"}) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(100'000));
    if (!slept) raise(slept.reason());
    out.keep_in_flight(2);
    co_await out.send(0, data.first(data.size() / 2));
    co_await out.send(data.size() / 2, data.subspan(data.size() / 2));
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    in.keep_in_flight(2);
    co_await in.receive(0, data.first(data.size() / 2));
    co_await in.receive(data.size() / 2, data.subspan(data.size() / 2));
  }
};

struct drifting_job : world {
  explicit drifting_job(const rank_settings& s = settings()) : world(2, s) {
    const std::vector<config_ptr> configs{direct(), std::make_shared<prepared_halves>()};
    out = transfer(*ranks[0], pair_of(configs));
    in = transfer(*ranks[1], pair_of(configs));
    move(200);
    REQUIRE(search().where() == actors::search::stage::decided);
    REQUIRE(search().chosen().config == "direct");
  }
  static rank_settings settings() {
    rank_settings s;
    s.plan.budget_fraction = 0.5;
    s.plan.drift.every = 50;
    s.plan.drift.pause_ns = 0;
    return s;
  }
  /// `late`: how long the receiver takes before it posts.
  void move(std::size_t n, time_ns late = 0) {
    const auto all = [](drifting_job& j, std::size_t times, time_ns pause) -> task<> {
      auto done = co_await when_all(send_many(j, times), receive_many(j, times, pause));
      static_cast<void>(done);
    };
    run(clock, all(*this, n, late));
  }
  static task<> send_many(drifting_job& j, std::size_t n) {
    const std::vector<std::byte> data(bytes);
    for (std::size_t i = 0; i < n; ++i) {
      if (j.noise != 0) {
        const auto part = static_cast<double>(j.dice.below(j.noise)) / 100;
        j.links.options().ns_per_byte = 0.1 * (1 + part);
      }
      co_await j.out.send(data, {.to = 1});
    }
  }
  static task<> receive_many(drifting_job& j, std::size_t n, time_ns late) {
    std::vector<std::byte> data(bytes);
    for (std::size_t i = 0; i < n; ++i) {
      if (late != 0) {
        auto slept = co_await sleep_until(j.clock.deadline_in(late));
        if (!slept) raise(slept.reason());
      }
      co_await j.in.receive(data, {.from = 0});
    }
  }
  const actors::search& search() { return *search_of(*this, "1MiB"); }
  transfer out;
  transfer in;
  random_stream dice{5, 1};
  std::uint64_t noise = 0;  // in percent
};

/// A job of any kind of op that checks for drift every 50 calls.
struct watched_job : scheme_job {
  explicit watched_job(scheme s, std::uint64_t look_ahead = 1) : scheme_job(s) {
    depth = look_ahead;
    for (auto& of_rank : settings) {
      of_rank.plan.drift.every = 50;
      of_rank.plan.drift.pause_ns = 0;
    }
  }
  void run_until_decided_on(const std::string& winner) {
    run();
    REQUIRE(running() == winner);
    call(1000);
    REQUIRE(search().number() == 1);
  }
  /// Changes the times of one config for good, and checks that a new search finds `next`.
  void change(std::size_t config, std::array<time_ns, 3> takes_ns, const std::string& next) {
    call(600);  // gives an op without headers the times that it compares later calls with
    const std::uint32_t number = search().number() + 1;
    configs[config].takes_ns = takes_ns;
    for (int i = 0; i < 40 && (search().number() != number || running() != next); ++i) call(100);
    CHECK(search().number() == number);
    CHECK(search().reason().find("its times have drifted: ") == 0);
    CHECK(running() == next);
    CHECK(decision().search == number);  // and all ranks know that decision
    CHECK(failed == 0);
  }
};

}  // namespace

TEST_CASE(
    "a link that becomes slow makes the ranks search again and change the config, and again when the link recovers") {
  drifting_job j;
  j.links.options().ns_per_byte = 1.0;
  j.move(1000);
  CHECK(j.search().number() == 2);
  CHECK(j.search().chosen().config == "prepared_halves");
  CHECK(j.search().reason().find("its times have drifted: ") == 0);
  CHECK(j.ranks[1]->decisions().front().decision.search == 2);  // the receiver knows it too
  j.links.options().ns_per_byte = 0.1;
  pass(j, 20'000'000'000);
  j.move(1500);
  CHECK(j.search().number() == 3);
  CHECK(j.search().chosen().config == "direct");
  for (const auto& flight : {j.ranks[0]->flight().in_order(), j.ranks[1]->flight().in_order()})
    CHECK(flight.size() > 2000);
}

TEST_CASE("noise on the link begins no search") {
  drifting_job j;
  j.noise = 30;
  j.move(4000);
  CHECK(j.search().number() == 1);
}

TEST_CASE("a receiver that becomes late begins no search") {
  drifting_job j;
  j.move(2000, 5'000'000);
  CHECK(j.search().number() == 1);
}

TEST_CASE("with drift checks switched off the ranks time no call after the decision") {
  rank_settings s = drifting_job::settings();
  s.plan.drift.on = false;
  drifting_job j(s);
  j.links.options().ns_per_byte = 1.0;
  j.move(1000);
  CHECK(j.search().number() == 1);
  const auto flight = j.ranks[1]->flight().in_order();
  const auto timed = [](const flight_record& r) { return (r.flags & 1U) != 0; };
  CHECK(std::none_of(flight.end() - 1000, flight.end(), timed));
}

TEST_CASE("for every kind of op, if the winner becomes slow on one rank, all ranks search again, and once more later") {
  for (const auto& [how, depth] : all_variants) {
    CAPTURE(name(how));
    CAPTURE(depth);
    const rank_id size = scheme_job(how).size;
    for (rank_id slow = 0; slow < size; ++slow) {
      CAPTURE(slow);
      watched_job j(how, depth);
      j.run_until_decided_on("fine");
      std::array<time_ns, 3> takes{100'000, 100'000, 100'000};
      takes[slow] = 350'000;
      j.change(scheme_job::fine, takes, "coarse");
      takes[slow] = 900'000;
      j.change(scheme_job::coarse, takes, "fine");
    }
  }
}

TEST_CASE(
    "for every kind of op, a winner that becomes fast starts a search, since another may have become even faster") {
  for (const auto& [how, depth] : all_variants) {
    CAPTURE(name(how));
    CAPTURE(depth);
    watched_job j(how, depth);
    j.run_until_decided_on("fine");
    j.configs[scheme_job::coarse].takes_ns = {20'000, 20'000, 20'000};
    j.change(scheme_job::fine, {50'000, 50'000, 50'000}, "coarse");
  }
}

TEST_CASE("for every kind of op, a mixture is searched again if the config that one rank runs for it becomes slow") {
  for (const auto& [how, depth] : all_variants) {
    for (const bool own : {true, false}) {
      CAPTURE(name(how));
      CAPTURE(depth);
      CAPTURE(own);
      watched_job j(how, depth);
      j.mixed = true;
      const rank_id poor = j.size - 1;
      j.let_all_have(scheme_job::twin);
      j.can[poor][scheme_job::twin] = false;  // it runs `fine` instead, which is slow on the others
      j.configs[scheme_job::fine].takes_ns = {350'000, 350'000, 350'000};
      j.configs[scheme_job::fine].takes_ns[poor] = 100'000;
      j.configs[scheme_job::twin].takes_ns = {90'000, 90'000, 90'000};
      j.run_until_decided_on("twin");
      CHECK(j.configs[scheme_job::twin].runs[poor] == 0);
      if (own) {
        j.change(scheme_job::twin, {500'000, 90'000, 90'000}, "coarse");
      } else {
        std::array<time_ns, 3> takes = j.configs[scheme_job::fine].takes_ns;
        takes[poor] = 500'000;
        j.change(scheme_job::fine, takes, "coarse");
      }
      CHECK(j.configs[scheme_job::twin].runs[poor] == 0);
    }
  }
}

TEST_CASE("in a group a late member, noise, and calls of unpredictable size begin no search") {
  for (const std::uint64_t depth : {1U, 2U}) {
    CAPTURE(depth);
    random_stream dice(9, 2);
    watched_job j(scheme::group, depth);
    j.run_until_decided_on("fine");
    for (int i = 0; i < 1500; ++i) {
      for (auto& t : j.configs[scheme_job::fine].takes_ns) t = 90'000 + static_cast<time_ns>(dice.below(20'000));
      j.late = {0, 0, 1'000'000};
      j.call_meanwhile(1, [] {}, dice.below(3) == 0 ? 400'000 : scheme_job::bytes);
    }
    CHECK(j.failed == 0);
    for (const auto& c : j.assigned().searches()) CHECK(c->number() == 1);
  }
}

#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <list>
#include <memory>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

rank_settings eager() {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  return s;
}

constexpr std::size_t size = 100'000;

/// A pair that makes its calls one by one, with three configs; the last one is the fastest.
struct pair_world : world {
  explicit pair_world(std::vector<config_ptr> configs = {direct(), chunked(50'000, 1), chunked(16_KiB, 8)},
                      rank_settings s = eager())
      : world(2, std::move(s)) {
    out = transfer(*ranks[0], pair_of(configs));
    in = transfer(*ranks[1], pair_of(std::move(configs)));
  }
  call_outcomes move(std::size_t count, std::size_t bytes = size) {
    return move_each(*this, out, in, std::vector<std::size_t>(count, bytes));
  }
  void decide() {
    REQUIRE(move(100).failed() == 0);
    tests::pass(*this, 2'000'000'000);
    REQUIRE(out.decision(size).decided);
    REQUIRE(in.decision(size).decided);
  }
  transfer out, in;
};

/// The result of an awaited decision, once there is one.
struct watched_decision {
  std::optional<result<decision>> ended;
};
task<> watch(agreement with, std::uint64_t bytes, decided_options o, watched_decision& into) {
  auto d = co_await attempt(with.decided(bytes, o));
  into.ended = std::move(d);
}

}  // namespace

TEST_CASE("both ends have the decision as a value, with its key, config, time and evidence") {
  pair_world w;
  CHECK_FALSE(w.out.decision(size).decided);
  CHECK(w.out.decision(size).config == "direct");
  CHECK_FALSE(w.in.decision(size).decided);  // wording.cpp checks the sentence that says why
  w.decide();
  for (const transfer& end : {w.out, w.in}) {
    const decision d = end.decision(size);
    CHECK(d.op == "activations 0->1");
    CHECK(d.key == "128KiB");
    CHECK(d.config == search_of(w, "128KiB")->chosen().config);
    CHECK(d.digest == search_of(w, "128KiB")->chosen().digest);
    CHECK(d.time_ns > 0);
    CHECK(d.search == 1);
    REQUIRE(d.evidence.size() == 3);
    CHECK(d.evidence[0].config == "direct");
    CHECK(d.evidence[0].status == "measured");
    CHECK(d.evidence[0].repetitions > 0);
    CHECK_FALSE(end.decision(8).decided);
  }
}

TEST_CASE("both ends can await a decision, and both get the same one") {
  pair_world w;
  watched_decision at_sender, at_receiver, of_another;
  scope all(w.clock);
  all.spawn(watch(w.out.to(1), size, {.timeout = 5s}, at_sender));
  all.spawn(watch(w.in.from(0), size, {.timeout = 5s}, at_receiver));
  all.spawn(watch(w.in.from(0), 8, {.timeout = 5s}, of_another));
  w.move(100);
  pass(w, 100'000'000);
  REQUIRE(at_sender.ended);
  REQUIRE(at_receiver.ended);
  CHECK((**at_sender.ended).digest == (**at_receiver.ended).digest);
  CHECK_FALSE(of_another.ended);
  pass(w, 5'000'000'000);
  REQUIRE(of_another.ended);
  CHECK(is(*of_another.ended, {.code = errc::timeout, .rank = 1, .own_bytes = 8, .quotes = "8B"}));
}

TEST_CASE("a wait for a decision ends when its scope is cancelled or its peer is lost") {
  pair_world w;
  watched_decision cancelled, orphaned;
  scope first(w.clock), second(w.clock);
  first.spawn(watch(w.in.from(0), size, {.timeout = no_timeout}, cancelled));
  second.spawn(watch(w.in.from(0), size, {.timeout = no_timeout}, orphaned));
  pass(w, 1'000'000);
  first.cancel();
  pass(w, 1'000'000);
  REQUIRE(cancelled.ended);
  CHECK(cancelled.ended->code() == errc::cancelled);
  w[1].on_lost(0, "killed by signal 9");
  pass(w, 1'000'000);
  REQUIRE(orphaned.ended);
  CHECK(orphaned.ended->code() == errc::peer_failed);
}

TEST_CASE("either end may request a new search, and both ends learn its decision") {
  for (const bool by_sender : {true, false}) {
    pair_world w;
    w.decide();
    const auto before = search_of(w, "128KiB")->trials();
    const std::string winner = w.in.decision(size).config;
    if (by_sender) {
      w.out.retune(size, "the link has changed");
    } else {
      w.in.retune(size, "the link has changed");
    }
    pass(w, 10'000'000);
    CHECK(search_of(w, "128KiB")->where() == actors::search::stage::trying);
    CHECK(search_of(w, "128KiB")->reason() ==
          std::string("rank ") + (by_sender ? "0" : "1") + " asked for it: the link has changed");
    CHECK(w.in.decision(size).config == winner);  // it stays in force during the new search
    watched_decision next;
    scope all(w.clock);
    all.spawn(watch(w.in.from(0), size, {.after_search = 1}, next));
    const auto moved = w.move(100);
    CHECK(moved.failed() == 0);
    pass(w, 1'000'000'000);
    REQUIRE(next.ended);
    CHECK((**next.ended).search == 2);
    CHECK(w.out.decision(size).search == 2);
    CHECK(search_of(w, "128KiB")->trials() > before);
    CHECK(join_flights(w).mismatches == 0);
  }
}

TEST_CASE("a search requested before the current one has timed anything is merged into the current one") {
  for (const bool by_sender : {true, false}) {
    pair_world w;
    w.decide();
    for (int i = 0; i < 3; ++i) (by_sender ? w.out : w.in).retune(size, "the link has changed");
    pass(w, 10'000'000);
    (by_sender ? w.in : w.out).retune({}, "so it has");
    pass(w, 10'000'000);
    CHECK(search_of(w, "128KiB")->reason().find("so it has; rank ") != std::string::npos);
    w.move(100);
    pass(w, 2'000'000'000);
    w.move(20);
    CHECK(w.in.decision(size).search == 2);
  }
}

TEST_CASE("giving up a requested search leaves the earlier decision in force") {
  pair_world w;
  w.decide();
  const std::string winner = w.in.decision(size).config;
  CHECK(w[1].retune("activations") == 1);
  CHECK(w[1].retune("something else") == 0);
  pass(w, 10'000'000);
  CHECK(w.move(2).failed() == 0);
  w.out.retune(size, "and once more");
  pass(w, 10'000'000);
  REQUIRE(search_of(w, "128KiB")->is_asked_again());
  w.in.from(0).give_up();
  pass(w, 1'000'000'000);
  w.move(20);
  const decision d = w.in.decision(size);
  CHECK(d.config == winner);
  CHECK(d.search == 2);
  CHECK(d.why.find("the search was given up, rank 1 asked for it") != std::string::npos);
  CHECK(d.source == actors::decision_source::trials);
  w.in.retune(size);
  w.decide();
  w.decide();
  CHECK(w.in.decision(size).search == 3);  // the requests before `give_up` are forgotten
}

TEST_CASE("giving up a search before anything is decided leaves the default, which no file remembers") {
  pair_world w;
  w.move(3);
  pass(w, 500'000'000);
  w.move(2);
  w.out.to(1).give_up(size, "not now");
  pass(w, 1'000'000'000);
  const decision d = w.out.decision(size);
  CHECK(d.decided);
  CHECK(d.config == "direct");
  CHECK(d.source == actors::decision_source::kept);
  CHECK(w[0].results().entries().empty());
}

TEST_CASE("a rank with several edges must name the partner when it asks for a decision") {
  world w(4, eager());
  transfer_options op;
  op.name = "activations";
  op.edges = {{0, 1}, {1, 2}};
  transfer middle(w[1], op);
  static_cast<void>(transfer(w[0], op));
  static_cast<void>(transfer(w[2], op));
  CHECK_THROWS_WITH_AS(
      static_cast<void>(middle.decision(8)),
      doctest::Contains("say which partner of rank 1 is meant; it sends to rank 2 and receives from rank 0"), failure);
  const transfer aside(w[3], op);
  CHECK_THROWS_WITH_AS(static_cast<void>(aside.decision(8)), doctest::Contains("rank 3 has no decisions of this op"),
                       failure);
  CHECK_THROWS_WITH_AS(static_cast<void>(aside.to(1)), doctest::Contains("rank 3 does not send to rank 1"), failure);
  CHECK(middle.to(2).decision(8).op == "activations 1->2");
  CHECK(middle.from(0).decision(8).op == "activations 0->1");
  CHECK(w[1].retune("activations") == 2);
}

TEST_CASE("after a second decision the ranks send no control messages except flow control") {
  pair_world w;
  w.decide();
  w.in.retune();
  w.move(100);
  pass(w, 5'000'000'000);
  REQUIRE(w.in.decision(size).search == 2);
  const auto sent = [&] {
    std::uint64_t count = 0;
    for (auto& r : w.ranks) count += r->mail().statistics().sent - r->flow_messages();
    return count;
  };
  const auto before = sent();
  w.move(300);  // fewer than there are calls between two drift checks
  CHECK(sent() == before);
}

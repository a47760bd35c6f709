#include <parley/tests/support/devices/memory_of_host.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

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

/// How a config's receiving end fails, and until when.
struct illness {
  enum class kind : std::uint8_t { throws, hangs };
  kind what = kind::throws;
  time_ns until_ns = never;
  std::size_t received = 0;  ///< how often it was asked to receive
};

/// Sends two halves, and is the fastest config in these tests. Its receiver fails for a while, or for good.
struct recovering final : paired_config {
  explicit recovering(std::shared_ptr<illness> i, const std::string& name = "recovering")
      : paired_config({.name = name, .wire_class = name}), ill_(std::move(i)) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    const std::size_t half = data.size() / 2;
    out.keep_in_flight(2);
    co_await out.send(0, data.first(half));
    co_await out.send(half, data.subspan(half));
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    const scope& here = co_await this_scope;
    const bool over = here.where().now() >= ill_->until_ns;
    ++ill_->received;
    if (!over && ill_->what == illness::kind::throws) throw std::runtime_error("no card yet");
    const std::size_t half = data.size() / 2;
    in.keep_in_flight(2);
    co_await in.receive(0, data.first(half));
    co_await in.receive(half, data.subspan(half));
    co_await in.drain();
    if (over) co_return;
    auto slept = co_await sleep_until(ill_->until_ns);
    if (!slept) raise(slept.reason());
  }
  std::shared_ptr<illness> ill_;
};

class ill_star final : public group_config {
 public:
  explicit ill_star(const bool& ill) : group_config({.name = "ill", .wire_class = "ill"}), ill_(ill) {}
  task<> lead(group_call& g) const override { return real_->lead(g); }
  task<> work(group_call& g) const override {
    if (ill_ && g.self() == 1) throw std::runtime_error("no card yet");
    co_await real_->work(g);
  }

 private:
  const bool& ill_;
  group_config_ptr real_ = star();
};

/// Host memory that cannot be allocated before `until_ns`.
class scarce_memory final : public parley::tests::memory_of_host {
 public:
  explicit scarce_memory(const executor& ex) : executor_(ex) {}
  std::unique_ptr<block> make(std::size_t bytes) override {
    if (executor_.now() >= until_ns) return host_memory().make(bytes);
    ++refused;
    raise({errc::unavailable, "no memory to be had"});
  }
  time_ns until_ns = never;
  std::size_t refused = 0;

 private:
  const executor& executor_;
};

constexpr std::size_t size = 100'000;

/// A pair whose first search has ended without the config that is ill.
struct pair_world : world {
  explicit pair_world(illness i, std::vector<config_ptr> others = {}, memory_link_options o = {})
      : world(2, eager(), std::move(o)), ill(std::make_shared<illness>(i)) {
    std::vector<config_ptr> configs{direct()};
    configs.insert(configs.end(), others.begin(), others.end());
    configs.push_back(std::make_shared<recovering>(ill));
    out = transfer(*ranks[0], pair_of(configs));
    in = transfer(*ranks[1], pair_of(configs));
    REQUIRE(move(100).failed() == 0);
  }
  call_outcomes move(std::size_t count, std::size_t bytes = size) {
    return move_each(*this, out, in, std::vector<std::size_t>(count, bytes));
  }
  void pass_until(time_ns at) { pass(*this, at - clock.now()); }
  const std::vector<std::string>& ids() { return ranks[0]->agreements().front().assigned->ids(); }
  std::size_t warnings_of(rank_id r) { return ranks[r]->warnings().size(); }
  std::shared_ptr<illness> ill;
  transfer out, in;
};

}  // namespace

TEST_CASE("a requested search includes a config whose rehearsal failed at first and succeeds now") {
  for (const bool by_sender : {true, false}) {
    for (const bool lossy : {false, true}) {
      CAPTURE(lossy);
      memory_link_options o;
      std::size_t sent = 0;
      o.lose = [&](rank_id, rank_id, link::channel on) {
        return lossy && on == link::channel::control && ++sent % 3 == 0;
      };
      pair_world w({.until_ns = 30'000'000'000}, {}, std::move(o));
      w.pass_until(9'000'000'000);
      REQUIRE(w.in.decision(size).search == 1);
      CHECK(w.in.decision(size).why.find("not tried, because their rehearsals failed: recovering") !=
            std::string::npos);
      w.pass_until(31'000'000'000);
      REQUIRE(w.ids() == std::vector<std::string>{"direct"});
      if (by_sender) {
        w.out.retune(size, "the card is here");
      } else {
        w.in.retune(size, "the card is here");
      }
      w.pass_until(45'000'000'000);
      CHECK(w.ids() == std::vector<std::string>{"direct", "recovering"});
      CHECK(search_of(w, "128KiB")->reason() ==
            std::string("rank ") + (by_sender ? "0" : "1") +
                " asked for it: the card is here; now its rehearsal has succeeded: recovering");
      for (int round = 0; round < 10; ++round) {
        CHECK(w.move(20).failed() == 0);
        pass(w, 5'000'000'000);
      }
      for (const transfer& end : {w.out, w.in}) {
        CHECK(end.decision(size).search == 2);
        CHECK(end.decision(size).config == "recovering");
        CHECK(end.decision(size).why.find("not tried") == std::string::npos);
      }
      CHECK(join_flights(w).mismatches == 0);
      CHECK(w.warnings_of(1) == 1);
    }
  }
}

TEST_CASE("a config whose rehearsal succeeds after a while becomes a candidate unasked, and a new search tries it") {
  for (const auto what : {illness::kind::throws, illness::kind::hangs}) {
    const bool hangs = what == illness::kind::hangs;
    CAPTURE(hangs);
    pair_world w({.what = what, .until_ns = 30'000'000'000});
    if (hangs) w.move(100);
    w.pass_until(65'000'000'000);
    CHECK(w.ids() == std::vector<std::string>{"direct", "recovering"});
    CHECK(w.move(100).failed() == 0);
    pass(w, 1'000'000'000);
    for (const transfer& end : {w.out, w.in}) {
      CHECK(end.decision(size).config == "recovering");
      CHECK(end.decision(size).search == 2);
    }
    CHECK(search_of(w, "128KiB")->reason() == "now its rehearsal has succeeded: recovering");
    CHECK(join_flights(w).mismatches == 0);
    CHECK(w.warnings_of(1) == 1);
  }
}

TEST_CASE(
    "a config whose rehearsal keeps failing is rehearsed a few times, with one warning, and changes no decision") {
  pair_world w({}, {chunked(70'000, 2)});
  w.pass_until(5'000'000'000);
  const decision before = w.in.decision(size);
  CHECK(before.search == 1);
  w.pass_until(2'000'000'000'000);
  CHECK(w.ill->received == 4);
  CHECK(w.warnings_of(0) == 0);
  CHECK(w.warnings_of(1) == 1);
  CHECK(w[0].agreements().front().warm_errors->size() == 1);
  CHECK(w.move(100).failed() == 0);
  CHECK(w.in.decision(size).search == 1);
  CHECK(w.in.decision(size).config == before.config);
  w.in.retune();
  pass(w, 1'000'000'000);
  CHECK(w.move(100).failed() == 0);
  pass(w, 1'000'000'000);
  CHECK(w.ill->received == 5);
  CHECK(w.in.decision(size).search == 2);
  CHECK(w.warnings_of(1) == 1);
  CHECK(w.ids().size() == 2);
}

TEST_CASE("while a config hangs in its second rehearsal, other sizes are searched and decided") {
  pair_world w({.what = illness::kind::hangs}, {chunked(70'000, 2)});
  run_until(w.clock, [&] { return w.ill->received == 2; });
  const time_ns began = w.clock.now();
  CHECK(w.move(100, 1'000'000).failed() == 0);
  pass(w, 1'000'000'000);
  CHECK(w.in.decision(1'000'000).decided);
  const auto* c = w[0].agreements().front().assigned->find(1'000'000);
  REQUIRE(c != nullptr);
  CHECK(c->chosen().source == actors::decision_source::trials);
  CHECK(w.clock.now() < began + 5'000'000'000);
  CHECK(w[1].participants().front()->rehearsing == 1);
}

TEST_CASE("a search that is given up while it waits for a rehearsal does not begin") {
  pair_world w({.what = illness::kind::hangs}, {chunked(70'000, 2)});
  w.pass_until(22'000'000'000);
  for (int round = 0; round < 5; ++round) {
    w.move(50);
    pass(w, 200'000'000);
  }
  REQUIRE(w.in.decision(size).search == 1);
  w.in.retune(size);
  pass(w, 1'000'000'000);
  w.in.from(0).give_up();
  w.pass_until(100'000'000'000);
  CHECK(w.in.decision(size).search == 1);
  CHECK(search_of(w, "128KiB")->where() == actors::search::stage::decided);
}

TEST_CASE("a config that failed in a call stays quarantined when another config becomes a candidate again") {
  const auto health = std::make_shared<illness>(illness{.until_ns = 0});
  pair_world w({.until_ns = 30'000'000'000}, {std::make_shared<recovering>(health, "fragile")});
  w.pass_until(5'000'000'000);
  REQUIRE(w.in.decision(size).config == "fragile");
  health->until_ns = never;
  CHECK(w.move(1).failed() != 0);
  health->until_ns = 0;
  const std::size_t runs = health->received;
  w.pass_until(65'000'000'000);
  CHECK(w.move(100).failed() == 0);
  pass(w, 1'000'000'000);
  const decision d = w.in.decision(size);
  CHECK(d.config == "recovering");
  REQUIRE(d.evidence.size() == 3);
  CHECK(d.evidence[1].config == "fragile");
  CHECK(d.evidence[1].status == "quarantined");
  CHECK(health->received == runs);
}

TEST_CASE("a group's config whose rehearsal failed on one rank becomes a candidate again and is measured") {
  world w(3, eager());
  bool ill = true;
  const auto groups = declare_all(w, led_by(0, {star(), std::make_shared<ill_star>(ill), chain()}));
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(50, 5000)).failed() == 0);
  pass(w, 5'000'000'000);
  const auto& ids = w[0].agreements().front().assigned->ids();
  CHECK(ids.size() == 2);
  ill = false;
  pass(w, 10'000'000'000);
  CHECK(ids.size() == 3);
  CHECK(ids.back() == "ill");
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(100, 5000)).failed() == 0);
  pass(w, 1'000'000'000);
  const auto* c = w[0].agreements().front().assigned->find(20'000);
  CHECK(c->number() == 2);
  CHECK(c->is_decided());
  REQUIRE(c->aggregates().size() == 3);
  CHECK(c->aggregates()[2].measured());
}

TEST_CASE("an end that had no memory for the first rehearsals joins the other end in the next ones") {
  for (const rank_id lacks : {0U, 1U}) {
    CAPTURE(lacks);
    world w(2, eager());
    scarce_memory memory(w.clock);
    memory.until_ns = 45'000'000'000;
    const auto health = std::make_shared<illness>(illness{.until_ns = 0});
    auto op = pair_of({direct(), std::make_shared<recovering>(health)});
    std::vector<transfer> ends;
    for (rank_id r = 0; r < 2; ++r) {
      op.memory = r == lacks ? &memory : nullptr;
      ends.emplace_back(w[r], op);
    }
    pass(w, 44'000'000'000);
    CHECK(memory.refused >= 2);
    const auto& ids = w[0].agreements().front().assigned->ids();
    REQUIRE(ids.size() == 1);
    pass(w, 60'000'000'000);  // long enough for the next round of rehearsals
    CHECK(ids.size() == 2);
    const std::vector<std::size_t> sizes(100, size);
    CHECK(move_each(w, ends[0], ends[1], sizes).failed() == 0);
    pass(w, 1'000'000'000);
    CHECK(ends[1].decision(size).config == "recovering");
    CHECK(join_flights(w).mismatches == 0);
  }
}

TEST_CASE("ranks can leave while a config hangs in its second rehearsal") {
  pair_world w({.what = illness::kind::hangs});
  run_until(w.clock, [&] { return w.ill->received == 2; });
  for (rank_id r : {1U, 0U}) {
    run(w.clock, w[r].settle(60s));
    CHECK(w[r].unfinished().undelivered.empty());
  }
  CHECK(w.clock.now() < 60'000'000'000);
}

// Constraints that a user sets on configs. They rule configs out before times are compared.
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

/// Sends the whole payload at once after a delay of `takes_ns`, and demands `price`.
class timed_whole final : public paired_config {
 public:
  timed_whole(const std::string& name, time_ns takes_ns, tuning::demands price)
      : paired_config({.name = name, .wire_class = name}), takes_ns_(takes_ns), price_(price) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    scope& here = co_await this_scope;
    auto woken = co_await sleep_until(here.where().deadline_in(takes_ns_));
    if (!woken) raise(woken.reason());
    co_await out.send(0, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }
  tuning::demands demands() const override { return price_; }

 private:
  time_ns takes_ns_;
  tuning::demands price_;
};

/// Two ranks whose users set different constraints; the pair has decided for both sizes.
struct priced_pair : world {
  priced_pair(tuning::demands price, tuning::constraints sender, tuning::constraints receiver)
      : world(2, eager_trials()) {
    auto op = pair_of({std::make_shared<timed_whole>("slow", 500'000, tuning::demands{}),
                       std::make_shared<timed_whole>("priced", 10'000, price)});
    op.constraints = sender;
    const transfer out(*ranks[0], op);
    op.constraints = receiver;
    const transfer in(*ranks[1], op);
    CHECK(move_each(*this, out, in, std::vector<std::size_t>(100, 16'000)).failed() == 0);
    CHECK(move_each(*this, out, in, std::vector<std::size_t>(100, 100'000)).failed() == 0);
    wait_a_while(*this, 1'000'000'000);
    small = out.decision(16'000);
    large = out.decision(100'000);
    CHECK(in.decision(100'000).digest == large.digest);
  }
  ops::decision small, large;
};

const candidate_evidence* about(const ops::decision& d, std::string_view name) {
  for (const auto& e : d.evidence) {
    if (e.config.find(name) != std::string::npos) return &e;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("without constraints the faster config wins, whatever it demands") {
  const priced_pair w({.relative_error = 1e-2, .memory_per_byte = 2}, {}, {});
  CHECK(w.small.config == "priced");
  CHECK(w.large.config == "priced");
}

TEST_CASE("a config that is less accurate than either end's user allows never runs, and the evidence names the rank") {
  for (const bool sender : {true, false}) {
    const tuning::constraints strict{.relative_error = 1e-3};
    const priced_pair w({.relative_error = 1e-2}, sender ? strict : tuning::constraints{},
                        sender ? tuning::constraints{} : strict);
    CHECK(w.large.config == "slow");
    const auto* e = about(w.large, "priced");
    REQUIRE(e != nullptr);
    CHECK(e->status == "excluded");
    CHECK(e->detail == std::string("priced: rank ") + (sender ? "0" : "1") +
                           ", constraint on accuracy: its results are off by up to 0.01, and 0.001 is allowed");
    CHECK(e->repetitions == 0);
  }
}

TEST_CASE("a config that needs memory runs only for the sizes for which its memory is allowed") {
  const priced_pair w({.memory_per_byte = 2}, {}, {.memory_bytes = 65'536});
  CHECK(w.small.config == "priced");
  CHECK(w.large.config == "slow");
  const auto* e = about(w.large, "priced");
  REQUIRE(e != nullptr);
  CHECK(e->detail == "priced: rank 1, constraint on memory: payloads of more than 32768 bytes need at least 65538 "
                     "bytes of extra memory, and 65536 are allowed");
}

TEST_CASE("in a group one member's constraint counts for all") {
  world w(4, eager_trials());
  auto op = led_by(0, {star(64), star(), chain()});
  std::vector<collective> groups;
  for (rank_id r = 0; r < 4; ++r) {
    // A star of four ranks needs room for four payloads at its leader, a chain for two.
    op.constraints = r == 2 ? tuning::constraints{.memory_bytes = 24'000} : tuning::constraints{};
    groups.emplace_back(w[r], op);
  }
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(100, 2000)).failed() == 0);
  const auto* c = w[0].agreements().front().assigned->find(8000);
  REQUIRE(c->is_decided());
  REQUIRE(c->excluded().size() == 1);
  CHECK(c->excluded()[0].why.find("star: rank 2, constraint on memory: payloads of more than 6000 bytes") == 0);
  CHECK_FALSE(c->aggregates()[1].measured());
  CHECK(c->aggregates()[2].measured());
}

namespace {

/// Three ranks that call an op without headers, whose second config is the faster one. They have decided for both sizes.
struct leased_job : world {
  enum class trials : std::uint8_t { rehearsed, between_calls, on_calls };
  /// `differently` changes rank 1's declaration.
  leased_job(trials how, tuning::demands price, const std::function<void(symmetric_options&)>& differently)
      : world(3, eager_trials()), lib(clock, 3) {
    const auto users = lib.make();
    for (rank_id r = 0; r < 3; ++r) {
      symmetric_options op;
      op.name = "gradients";
      op.configs = {
          takes("library", 40'000),
          std::make_shared<algorithm>(
              "workspace", algorithm_traits{.takes_ns = 10'000, .demands = price, .wire_class = "workspace"})};
      op.communicator = std::make_shared<library_communicator>(users);
      const auto source = std::make_shared<library_source>(lib);
      source->beside = how == trials::rehearsed;
      if (how != trials::on_calls) op.rehearse = source;
      if (r == 1) differently(op);
      ends.emplace_back(*ranks[r], op);
    }
    scope calls(clock);
    for (symmetric& op : ends) calls.spawn(call_often(op, clock, failed));
    run_until(clock, [&] { return calls.running() == 0; });
    CHECK(failed == 0);
    CHECK(lib.mismatches() == 0);
  }
  static task<> call_often(symmetric op, executor& ex, std::size_t& failed) {
    std::vector<std::byte> data(100'000);
    for (std::size_t i = 0; i < 3000; ++i) {
      auto slept = co_await sleep_until(ex.deadline_in(5'000));
      if (!slept) co_return;
      auto outcome = co_await attempt(op.run(std::span(data).first(i % 2 == 0 ? 16'000 : data.size())));
      failed += outcome ? 0 : 1;
    }
  }
  library lib;
  std::vector<symmetric> ends;
  std::size_t failed = 0;
};

}  // namespace

TEST_CASE("in an op without headers a config that exceeds one member's memory for large sizes runs for small ones") {
  using trials = leased_job::trials;
  for (const trials how : {trials::rehearsed, trials::between_calls, trials::on_calls}) {
    CAPTURE(static_cast<int>(how));
    for (const bool enough : {true, false}) {
      const leased_job job(how, {.memory_per_byte = 2}, [&](symmetric_options& op) {
        if (!enough) op.constraints.memory_bytes = 65'536;
      });
      for (const symmetric& op : job.ends) {
        CHECK(op.decision(16'000).config == "workspace");
        const ops::decision large = op.decision(100'000);
        CHECK(large.decided);
        CHECK(large.config == (enough ? "workspace" : "library"));
        const auto* e = about(large, "workspace");
        REQUIRE(e != nullptr);
        CHECK(e->status == (enough ? "measured" : "excluded"));
        CHECK((e->repetitions == 0) == !enough);
        if (enough) continue;
        CHECK(e->detail == "workspace: rank 1, constraint on memory: payloads of more than 32768 bytes need at least "
                           "65538 bytes of extra memory, and 65536 are allowed");
      }
    }
  }
}

TEST_CASE(
    "in an op without headers a config that one member cannot run is excluded, and all decisions say whose and why") {
  const leased_job job(leased_job::trials::rehearsed, {}, [](symmetric_options& op) {
    op.can_run = [](rank_id) -> std::vector<bool> { throw std::runtime_error("the driver does not answer"); };
  });
  for (const symmetric& op : job.ends) {
    const ops::decision d = op.decision(16'000);
    CHECK(d.decided);
    CHECK(d.config == "library");
    CAPTURE(d.why);
    CHECK(d.why.find("rank 1") != std::string::npos);
    CHECK(d.why.find("the driver does not answer") != std::string::npos);
  }
  const auto& faults = job.ends[0].end().coordinator()->warm_errors;
  REQUIRE(faults.size() == 1);
  CHECK(faults.front().find("rank 1: ") != std::string::npos);
  CHECK(faults.front().find("none of its configs but the default will be tried") != std::string::npos);
}

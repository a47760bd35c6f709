#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/evidence.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/p2p.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <set>

using namespace parley;
using namespace parley::tests;

namespace {

const actors::decision_record& learned(world& w, rank_id r) {
  static std::vector<ops::edge_decision> all;
  all = w[r].decisions();
  REQUIRE(all.size() == 1);
  return all[0].decision;
}

const actors::wire_evidence& about(const actors::decision_record& d, const ops::config_ptr& config) {
  const auto at =
      std::find_if(d.evidence.begin(), d.evidence.end(), [&](const auto& e) { return e.digest == config->digest(); });
  REQUIRE(at != d.evidence.end());
  return *at;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a decision says who took part, what each rank measured, who proposed the winner, and why it won") {
  world w(2);
  const auto direct = configs::direct(), fine = configs::chunked(256 * 1024, 4), coarse = configs::chunked(1 << 20, 1);
  // Only the receiver lists `fine` first. The sender also has `fine`, listed after `coarse`.
  const auto moved =
      move_each(w, {direct, coarse, fine}, {direct, fine, coarse}, std::vector<std::size_t>(400, 4 << 20));
  CHECK(moved.failed() == 0);
  pass(w, 1'000'000'000);
  const actors::search& c = *search_of(w, "4MiB");
  REQUIRE(c.is_decided());
  for (rank_id r = 0; r < 2; ++r) {
    const actors::decision_record& d = learned(w, r);
    CHECK(d.digest == fine->digest());
    CHECK(d.participants == std::vector<rank_id>{0, 1});
    CHECK(d.left_out == 0);
    CHECK(d.source == actors::decision_source::trials);
    CHECK(d.proposer == 0);
    CHECK(contains(d.why, "is the fastest; the default takes"));
    CHECK(contains(d.why, "would be noise"));
    REQUIRE(d.evidence.size() == 3);
    CHECK(d.trials == c.trials());
    CHECK(d.cost_ns == c.cost_ns());
    for (const auto& config : {direct, fine, coarse}) {
      const actors::wire_evidence& e = about(d, config);
      CHECK(e.status == "measured");
      CHECK(e.time_ns > 0);
      CHECK(e.clock_error_ns == 0);
      REQUIRE(e.ranks.size() == 2);
      for (rank_id own = 0; own < 2; ++own) {
        CHECK(e.ranks[own].rank == own);
        CHECK(e.ranks[own].repetitions == e.repetitions);
        CHECK(e.ranks[own].status == "measured");
        // A rank's own time includes its waits for its partner; the candidate's time does not.
        CHECK(e.ranks[own].time_ns >= e.time_ns * 0.5);
        CHECK(e.ranks[own].fastest_ns > 0);
        CHECK(e.ranks[own].fastest_ns <= e.ranks[own].time_ns);
      }
    }
  }
  const auto agreed = w[0].agreements();
  REQUIRE(agreed.size() == 1);
  REQUIRE(agreed[0].decisions != nullptr);
  CHECK(agreed[0].decisions->front().digest == fine->digest());
}

TEST_CASE("the evidence lists a config that only one rank has as lacking, and names the rank that does not list it") {
  world w(2);
  const auto direct = configs::direct(), fine = configs::chunked(256 * 1024, 4), other = configs::chunked(1 << 20, 1);
  move_each(w, {direct, other}, {direct, fine, other}, std::vector<std::size_t>(300, 4 << 20));
  pass(w, 1'000'000'000);
  const actors::decision_record& d = learned(w, 1);
  CHECK(d.evidence.size() == 3);
  CHECK(about(d, fine).status == "lacking");
  CHECK(about(d, fine).detail == "rank 0 does not list it");
  CHECK(about(d, other).proposer == 0);
  CHECK(about(d, direct).proposer == 0);
}

TEST_CASE("evidence is bounded: the default, the winner and the fastest stay, and the rest is counted") {
  constexpr std::size_t candidates = 4096;
  actors::assignment assigned(1, "c0", "", {0, 1}, actors::tuning_policy::off, {});
  std::vector<std::uint64_t> digests;
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < candidates; ++i) {
    digests.push_back(i + 1);
    ids.push_back("c" + std::to_string(i));
  }
  assigned.open(digests, ids, {}, 0);
  actors::coordinator_state state;
  state.declaration = actors::declare_edge("edge", 0, 1, "");
  state.assigned = &assigned;
  actors::chosen_config chosen;
  chosen.digest = 4000;
  actors::trial_book book;
  for (std::size_t i = 0; i < candidates; ++i) {
    tuning::aggregate a;
    a.time_ns = 1000.0 + static_cast<double>((i * 7919) % candidates);
    a.status = tuning::aggregate_status::measured;
    a.count = 1;
    a.detail = std::string(10'000, 'x');
    book.aggregates.push_back(a);
    book.repetitions.push_back({i});
    book.rows.push_back({{0, i, i + 1, 0, 1000}, {1, i, i + 1, 0, 1000}});
  }
  actors::decide d;
  actors::add_evidence(d, chosen, book, {}, state);
  CHECK(d.left_out > 0);
  CHECK(d.left_out + d.evidence.size() == candidates);
  std::vector<std::byte> bytes;
  runtime::encode(d, bytes);
  CHECK(bytes.size() <= actors::most_evidence_bytes + 1000);
  CHECK(bytes.size() > actors::most_evidence_bytes / 2);
  CHECK(d.evidence.front().digest == 1);
  std::set<std::uint64_t> kept;
  double slowest_kept = 0;
  for (const auto& e : d.evidence) {
    kept.insert(e.digest);
    if (e.digest != 1 && e.digest != 4000) slowest_kept = std::max(slowest_kept, e.time_ns);
  }
  CHECK(kept.count(4000) == 1);
  for (std::size_t i = 0; i < candidates; ++i) {
    if (kept.count(i + 1) == 0) CHECK(book.aggregates[i].time_ns >= slowest_kept);
  }
}

TEST_CASE("the flight recorders of both ranks hold the steps of an agreement, in their order") {
  world w(2);
  const std::vector<ops::config_ptr> configs{configs::direct(), configs::chunked(256 * 1024, 4)};
  move_each(w, configs, configs, std::vector<std::size_t>(300, 4 << 20));
  pass(w, 1'000'000'000);
  using runtime::flight_event;
  for (rank_id r = 0; r < 2; ++r) {
    std::vector<std::string> steps;  // in the order in which each step happened first
    std::set<std::uint64_t> measured;
    for (const auto& record : w[r].flight().in_order()) {
      if (record.what == flight_event::measured && record.invocation > 0 && record.ended_ns > 0)
        measured.insert(record.digest);
      if (runtime::is_transfer(record.what) || record.what == flight_event::measured) continue;
      const std::string step(runtime::name(record.what));
      if (std::find(steps.begin(), steps.end(), step) == steps.end()) steps.push_back(step);
      if (record.what == flight_event::decided) CHECK(record.digest == configs[1]->digest());
      if (record.what == flight_event::decided) CHECK(record.bytes == 4 << 20);
      if (record.what == flight_event::decided) CHECK(record.tag == 0);  // the rank that proposed it
    }
    // Only the leader compares the candidates, so only the leader records their times.
    CHECK(measured == (r == 0 ? std::set{configs[0]->digest(), configs[1]->digest()} : std::set<std::uint64_t>{}));
    CAPTURE(r);
    CHECK(std::erase(steps, "merged") == 1);  // its place varies, because the message `warm` may overtake it
    std::string all;
    for (const std::string& step : steps) all += step + " ";
    CHECK(all == "offered warmed reported decided ");
  }
}

TEST_CASE("a failed call leaves a flight record on the disk, at most once a second, and only if a folder is set") {
  ops::rank_settings s;
  s.flight_dir = "box";
  world w(2, s);
  transfer out(w[0], pair_of({configs::direct()}));
  transfer in(w[1], pair_of({configs::direct()}));
  const auto miss = [](ops::transfer t) -> runtime::task<> {
    std::vector<std::byte> buffer(10);
    auto outcome = co_await ops::attempt(t.receive(buffer, {.from = 0, .timeout = 1ms}));
    CHECK(outcome.code() == errc::timeout);
  };
  runtime::run(w.clock, miss(in));
  auto& files = w.disk[1].files;
  REQUIRE(files.count("box/parley-flight-1.json") == 1);
  CHECK(contains(files["box/parley-flight-1.json"], "\"why\":\"timeout: activations 0->1"));
  files.clear();
  runtime::run(w.clock, miss(in));
  CHECK(files.empty());
  pass(w, 1'000'000'000);
  runtime::run(w.clock, miss(in));
  CHECK(files.size() == 1);
  CHECK(w.disk[0].files.empty());

  world quiet(2);
  transfer nobody(quiet[1], pair_of({configs::direct()}));
  runtime::run(quiet.clock, miss(nobody));
  CHECK(quiet.disk[1].files.empty());
  CHECK(quiet[1].dump_flight("asked").code() == errc::unavailable);
}

namespace {

/// A world whose flight recorders are written to the folder `box`. `left_by(r)` returns rank r's file.
struct recorded : world {
  explicit recorded(rank_id n) : world(n, to_box()) {}
  static ops::rank_settings to_box() {
    ops::rank_settings s;
    s.flight_dir = "box";
    return s;
  }
  std::string left_by(rank_id r) { return disk[r].files["box/parley-flight-" + std::to_string(r) + ".json"]; }
};

/// Host memory in which every copy fails.
class worn_out_memory final : public runtime::memory_space {
 public:
  std::unique_ptr<block> make(std::size_t bytes) override { return runtime::host_memory().make(bytes); }
  runtime::task<> copy(std::span<std::byte>, std::span<const std::byte>) override {
    runtime::raise({errc::io, "the memory is worn out"});
    co_return;
  }
  void gather(std::span<std::byte>, const runtime::memory_pieces&, runtime::device_stream) override {}
  void scatter(const runtime::memory_pieces&, std::span<const std::byte>, runtime::device_stream) override {}
};

}  // namespace

TEST_CASE("a failed call of a group leaves a flight record on the rank that made the call") {
  recorded w(2);
  auto op = led_by(0, {configs::star()});
  op.timeout = 1ms;
  const auto groups = declare_all(w, op);
  std::vector<float> x(10);
  runtime::result<> outcome;
  runtime::run(w.clock, reduce_one(groups[1], x, outcome));
  CHECK(outcome.code() == errc::timeout);
  CHECK(contains(w.left_by(1), "\"why\":\"timeout: gradients"));
  CHECK(w.left_by(0).empty());
}

TEST_CASE("a failed send or receive of a rank with itself leaves a flight record, whatever the error is") {
  using ops::p2p;
  std::vector<int> sent(3);
  std::vector<int> got(2);
  const auto left_after = [&](const batch_program& batch, runtime::memory_space* memory = nullptr) {
    recorded w(1);
    ops::p2p_options op;
    op.name = "self";
    op.timeout = 1ms;
    op.memory = memory;
    CHECK_FALSE(run_each(w, {batch}, op)[0]);
    return w.left_by(0);
  };
  const batch_program alone = [&](runtime::dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::isend(sent, {.to = 0})}));
  };
  const batch_program too_small = [&](runtime::dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::isend(sent, {.to = 0}), p2p::irecv(got, {.from = 0})}));
  };
  const batch_program fits = [&](runtime::dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::isend(got, {.to = 0}), p2p::irecv(sent, {.from = 0})}));
  };
  CHECK(contains(left_after(alone), "\"why\":\"timeout: self, on rank 0: a send to itself"));
  CHECK(contains(left_after(too_small), "\"why\":\"buffer_too_small: self, on rank 0: a receive from itself"));
  worn_out_memory memory;
  CHECK(contains(left_after(fits, &memory), "the memory is worn out"));
}

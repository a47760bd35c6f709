// Halos whose faces lie in a few long pieces: neighbours agree to send the faces by the piece or packed.
#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/cases/halo_grid.hpp>
#include <parley/tests/support/cases/ring_case.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/halo.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/p2p.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

/// Sends packed payloads, and takes longer than every other config.
class slow final : public paired_config {
 public:
  slow() : paired_config({.name = "slow"}) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(300'000));
    static_cast<void>(slept);
    co_await out.send(0, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }
};

rank_settings eager(bool compare = false) {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  s.constraints.compare_trials = compare;
  return s;
}

halo_options blocks(std::vector<rank_id> ranks, std::vector<config_ptr> configs) {
  halo_options op;
  op.name = "blocks";
  op.ranks = std::move(ranks);
  op.configs = std::move(configs);
  op.by_piece_from = 1024;
  op.timeout = 1s;
  return op;
}

rank_id blocks_of(const halo_options& op) {
  rank_id n = 1;
  for (const rank_id along : op.ranks) n *= along;
  return n;
}

const candidate_evidence* evidence_of(const decision& d, const config_ptr& config) {
  for (const candidate_evidence& e : d.evidence) {
    if (e.config == config->id()) return &e;
  }
  return nullptr;
}

struct layout {
  const char* what;
  halo_options op;
  std::vector<std::uint64_t> cells;
  std::uint64_t padding;
  std::size_t fields;
  std::uint64_t face_bytes;  // of the face towards rank 1
  bool all_by_piece;         // false if corners are packed
};

std::vector<layout> layouts(const std::vector<config_ptr>& configs) {
  auto plane = blocks({2, 1}, configs);
  plane.periodic = {true, false};
  auto corners = blocks({2, 2}, configs);
  corners.reach = halo_reach::corners;
  corners.periodic = {true, true};
  corners.width = {1, 2};
  auto cube = blocks({1, 2, 1}, configs);
  cube.width = {1, 2, 1};
  return {{"two fields whose faces are contiguous", plane, {3, 300}, 0, 2, 2 * 1200, true},
          {"the same with padded rows", plane, {3, 300}, 5, 2, 2 * 1200, true},
          {"rows of three dimensions", cube, {4, 3, 300}, 0, 1, 4 * 2 * 1200, true},
          {"corners beside rows", corners, {4, 300}, 3, 2, 2 * 4 * 2 * 4, false}};
}

}  // namespace

TEST_CASE("an exchange by the piece fills all ghosts correctly, and packs nothing that it sends by the piece") {
  const auto way = by_piece(2);
  for (const bool compare : {false, true}) {
    for (const layout& l : layouts({std::make_shared<slow>(), way})) {
      CAPTURE(l.what);
      CAPTURE(compare);
      world w(blocks_of(l.op), eager(compare));
      grid g(w, l.op, l.cells, l.padding, l.fields);
      for (const auto& outcome : exchange_all(w, g.plans, 60)) CHECK(outcome);
      const std::uint64_t rows = l.all_by_piece ? l.face_bytes : l.fields * 300 * 4;
      const auto with = g.halos[0].to(l.all_by_piece ? 1 : 2).decision(rows);
      CHECK_MESSAGE(with.config == way->id(), with.why);
      CHECK(g.plans[0].packed_bytes() > 0);
      const std::uint64_t before = g.plans[0].packed_so_far_bytes();
      CHECK(before > 0);  // packed until the decision was known
      g.begin();
      CHECK(g.wrong() > 0);
      for (const auto& outcome : exchange_all(w, g.plans)) CHECK(outcome);
      CHECK(g.wrong() == 0);
      const std::uint64_t packed = g.plans[0].packed_so_far_bytes() - before;
      CHECK(packed == (l.all_by_piece ? 0 : g.plans[0].packed_bytes() - 2 * rows));
      CHECK(join_flights(w).mismatches == 0);
    }
  }
}

TEST_CASE("exchanges that run another config than by_piece pack all non-contiguous cells, once for each exchange") {
  for (const auto& configs : {std::vector<config_ptr>{direct()}, {chunked(1000, 3), by_piece()}}) {
    rank_settings s;
    s.policy = actors::tuning_policy::off;
    for (const layout& l : layouts(configs)) {
      CAPTURE(l.what);
      CAPTURE(configs.size());
      world w(blocks_of(l.op), s);
      grid g(w, l.op, l.cells, l.padding, l.fields);
      for (const auto& outcome : exchange_all(w, g.plans, 3)) CHECK(outcome);
      CHECK(g.wrong() == 0);
      CHECK(g.plans[0].packed_so_far_bytes() == 3 * g.plans[0].packed_bytes());
    }
  }
}

TEST_CASE("by_piece loses to packing if a message costs more than its bytes, and both ranks get the measurements") {
  memory_link_options links;
  links.eager_bytes = 1'000;  // the receiver fetches longer messages
  world w(2, eager(), links);
  const auto way = by_piece(2);
  grid g(w, blocks({2, 1, 1}, {direct(), way}), {2, 40, 300}, 0, 1);
  for (const auto& outcome : exchange_all(w, g.plans, 200)) CHECK(outcome);
  const auto with = g.halos[0].to(1).decision(40 * 1200);
  REQUIRE(with.decided);
  CHECK_MESSAGE(with.config == "direct", with.why);
  const auto* packed = evidence_of(with, direct());
  const auto* pieces = evidence_of(with, way);
  REQUIRE(packed != nullptr);
  REQUIRE(pieces != nullptr);
  CHECK(pieces->repetitions > 0);
  CHECK(pieces->time_ns > 5 * packed->time_ns);
  const auto there = w[1].decisions();
  CHECK(std::any_of(there.begin(), there.end(), [&](const edge_decision& d) {
    const auto measured = [&](const auto& e) {
      return e.digest == way->digest() && e.repetitions == pieces->repetitions;
    };
    return d.sender == 0 && d.decision.digest == with.digest &&
           std::any_of(d.decision.evidence.begin(), d.decision.evidence.end(), measured);
  }));
  CHECK(join_flights(w).mismatches == 0);
  CHECK(join_flights(w).timed > 0);
}

TEST_CASE("neighbours whose pieces differ exclude by_piece and exchange packed cells") {
  // Rows without a rim are contiguous unless they are padded. On rank 0, without padding, two rows of a field make one piece.
  for (const std::size_t fields : {1U, 2U}) {
    CAPTURE(fields);
    const auto way = by_piece();
    auto op = blocks({2, 1}, {std::make_shared<slow>(), way});
    op.width = {2, 0};
    world w(2, eager());
    grid g(w, op, {4, 300}, 0, fields, 8);
    for (const auto& outcome : exchange_all(w, g.plans, 60)) CHECK(outcome);
    CHECK(g.wrong() == 0);
    for (rank_id r = 0; r < 2; ++r) {
      const auto with = g.halos[r].to(1 - r).decision(fields * 2 * 1200);
      REQUIRE(with.decided);
      const auto* pieces = evidence_of(with, way);
      REQUIRE(pieces != nullptr);
      CHECK(pieces->status == "excluded");
      const bool contiguous = r == 0 && fields == 1;
      CHECK_MESSAGE(pieces->detail.find(contiguous ? "messages lie in one piece"
                                                   : "receives into other pieces than rank") != std::string::npos,
                    pieces->detail);
    }
  }
}

TEST_CASE(
    "neighbours with different numbers of pieces in flight agree on by_piece, but only if their pieces are alike") {
  for (const std::uint64_t padding : {0, 8}) {
    CAPTURE(padding);
    auto op = blocks({2, 1}, {std::make_shared<slow>(), by_piece(4)});
    op.width = {2, 0};
    auto other = op;
    other.configs = {std::make_shared<slow>(), by_piece(8)};
    world w(2, eager());
    grid g(w, op, {4, 300}, 8, 1, padding, other);
    for (const auto& outcome : exchange_all(w, g.plans, 60)) CHECK(outcome);
    g.begin();
    for (const auto& outcome : exchange_all(w, g.plans)) CHECK(outcome);
    CHECK(g.wrong() == 0);
    for (rank_id r = 0; r < 2; ++r) {
      const auto with = g.halos[r].to(1 - r).decision(2 * 1200);
      CHECK_MESSAGE((with.config.starts_with("by_piece") == (padding == 8)), with.why);
    }
  }
}

TEST_CASE("short pieces, too many pieces, and pieces of a mesh or of a rank next to itself are packed") {
  const auto packed_of = [](const halo_options& op, const std::vector<std::uint64_t>& cells) {
    world w(blocks_of(op), eager());
    grid g(w, op, cells, 0, 2);
    for (const auto& outcome : exchange_all(w, g.plans, 40)) CHECK(outcome);
    CHECK(g.wrong() == 0);
    CHECK(g.plans[0].packed_so_far_bytes() == 40 * g.plans[0].packed_bytes());
  };
  const std::vector<config_ptr> configs{std::make_shared<slow>(), by_piece()};
  packed_of(blocks({2, 1}, configs), {3, 200});
  packed_of(blocks({2, 1, 1}, configs), {2, 33, 300});
  auto alone = blocks({1, 1}, configs);
  alone.periodic = {true, true};
  packed_of(alone, {3, 300});

  constexpr std::size_t each = 1024;  // doubles; of 4 elements, the first two go to the other rank's last two
  world w(2, eager());
  std::vector<std::vector<double>> values;
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 2; ++r) {
    values.emplace_back(4 * each, 1.0 + r);
    auto mesh = blocks({}, configs);
    mesh.neighbours = {1 - r};
    plans.push_back(halo(w[r], mesh)
                        .plan({{.memory = std::as_writable_bytes(std::span(values[r])),
                                .element_bytes = each * sizeof(double),
                                .send = {{0, 1}},
                                .receive = {{2, 3}}}}));
  }
  for (const auto& outcome : exchange_all(w, plans, 40)) CHECK(outcome);
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(values[r][4 * each - 1] == 2.0 - r);
    CHECK(plans[r].packed_so_far_bytes() == 40 * plans[r].packed_bytes());
  }
}

namespace {
struct whole_by_piece final : paired_config {
  whole_by_piece() : paired_config({.name = "whole"}, every_size, needs::like_pieces) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }
};
}  // namespace

TEST_CASE("a config by the piece cannot send whole payloads as well, and a send to oneself cannot have pieces") {
  CHECK_THROWS_WITH_AS(whole_by_piece(), doctest::Contains("config whole sends payloads piece by piece"), failure);
  world w(1);
  std::vector<double> values(4);
  actors::payload_pieces pieces;
  const batch_program alone = [&](dataflow& flow, ops::rank&, p2p& pairs) -> task<> {
    auto o = p2p::isend(values, {.to = 0});
    o.pieces = &pieces;
    return end_of(pairs.start(flow, {o}));
  };
  for (const auto& o : run_each(w, {alone}, ring_case::pairs_named("alone")))
    CHECK(says(o, "pieces are for messages between"));
}

TEST_CASE("the declaration's by_piece_from sets the length from which pieces are not packed") {
  auto op = blocks({2, 1}, {std::make_shared<slow>(), by_piece()});
  op.by_piece_from = 800;
  world w(2, eager());
  grid g(w, op, {3, 200}, 0, 2);
  for (const auto& outcome : exchange_all(w, g.plans, 60)) CHECK(outcome);
  const std::uint64_t before = g.plans[0].packed_so_far_bytes();
  for (const auto& outcome : exchange_all(w, g.plans)) CHECK(outcome);
  CHECK(g.plans[0].packed_so_far_bytes() == before);
}

TEST_CASE("pieces that overtake each other arrive in their places, exchange after exchange") {
  memory_link_options links;
  links.ns_per_byte = 0;
  std::uint64_t next = 1;
  links.delay = [&next](rank_id, rank_id, link::channel) {
    next = next * 6364136223846793005U + 1442695040888963407U;
    return static_cast<time_ns>((next >> 33U) % 50'000);
  };
  world w(4, eager(), links);
  auto op = blocks({2, 2}, {std::make_shared<slow>(), by_piece(8)});
  op.periodic = {true, true};
  grid g(w, op, {3, 300}, 3, 3);
  for (int i = 0; i < 40; ++i) {
    g.begin();
    for (const auto& outcome : exchange_all(w, g.plans, 3)) CHECK(outcome);
    CHECK(g.wrong() == 0);
  }
  CHECK(g.halos[0].to(2).decision(3 * 1200).config == by_piece(8)->id());
  CHECK(join_flights(w).mismatches == 0);
}

namespace {

/// Like `by_piece`, but changes the last byte of the last piece. Its rehearsal is contiguous, has no pieces, and so is correct.
class careless_by_piece final : public paired_config {
 public:
  careless_by_piece() : paired_config({.name = "careless"}, 0, needs::like_pieces) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await right_->send(out, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    co_await right_->receive(in, data);
    auto settled = co_await in.settle();
    static_cast<void>(settled);
    if (in.in_pieces() != nullptr) in.in_pieces()->all.back().back() ^= std::byte{1};
  }

 private:
  config_ptr right_ = by_piece();
};

}  // namespace

TEST_CASE("a comparison of trials finds pieces with wrong bytes, and the op decides for another config") {
  world w(2, eager(true));
  const auto way = std::make_shared<careless_by_piece>();
  grid g(w, blocks({2, 1}, {std::make_shared<slow>(), way}), {3, 300}, 0, 2);
  bool found = false;
  for (int i = 0; i < 60; ++i) {
    for (const auto& outcome : exchange_all(w, g.plans))
      found =
          found ||
          is(outcome, {.code = errc::config_failed, .config = way->id(), .quotes = "the bytes differ from those sent"});
  }
  CHECK(found);
  CHECK(g.halos[0].to(1).decision(2 * 1200).config == "slow");
  g.begin();
  for (const auto& outcome : exchange_all(w, g.plans)) CHECK(outcome);
  CHECK(g.wrong() == 0);
}

TEST_CASE("a restarted neighbour with other pieces gets packed cells, and one with the same pieces gets pieces again") {
  const auto way = by_piece();
  auto op = blocks({2, 1}, {std::make_shared<slow>(), way});
  op.width = {2, 0};
  world w(2, eager());
  grid g(w, op, {4, 300}, 8, 2);
  for (const std::uint64_t padding : {8, 0, 8}) {
    CAPTURE(padding);
    if (w.clock.now() != 0) {
      w.restart(1);
      w.tell_of(1);
      g.halos[1] = halo(w[1], op);
      g.blocks[1] = std::make_unique<halo_case::block>(g.halos[1], halo_case::shape{op, {4, 300}, padding, 2});
      g.plans[1] = std::move(g.blocks[1]->plan());
      CHECK(g.halos[0].rejoin());
    }
    for (const auto& outcome : exchange_all(w, g.plans, 60)) CHECK(outcome);
    g.begin();
    for (const auto& outcome : exchange_all(w, g.plans)) CHECK(outcome);
    CHECK(g.wrong() == 0);
    const auto with = g.halos[0].to(1).decision(4 * 1200);
    CHECK((with.config == way->id()) == (padding == 8));
  }
}

namespace {

constexpr std::size_t columns = 256;
using sheet = std::vector<double>;  // 4 rows, with a ghost row above and below and no ghost columns
std::span<double> row_of(sheet& u, std::size_t row) { return std::span(u).subspan(row * columns, columns); }

task<> until(time_ns at) {
  auto slept = co_await sleep_until(at);
  static_cast<void>(slept);
}

/// Makes an exchange beside two computations. The first one writes a row that the exchange sends, so the exchange waits for it. The other
/// one is slow (500 ms) and uses only rows that do not move, so the exchange does not wait for it.
task<> exchange_beside(dataflow& flow, halo_plan* plan, sheet* u, sheet* v, time_ns* exchanged, double value) {
  scope& here = co_await this_scope;
  const time_ns began = here.where().now();
  auto first = flow.compute({writes(row_of(*u, 1))}, [u, value, began]() -> task<> {
    co_await until(began + 1'000'000);
    for (double& x : row_of(*u, 1)) x = value;
  });
  auto beside =
      flow.compute({updates(row_of(*u, 2)), updates(row_of(*v, 2))}, [began] { return until(began + 500'000'000); });
  auto moving = plan->start(flow);
  auto reader = flow.compute({reads(row_of(*u, 5))}, [u, value] { CHECK(row_of(*u, 5)[7] == 3 - value); },
                             {.where = compute_options::place::actor_thread});
  co_await first;
  co_await moving;
  co_await reader;
  *exchanged = here.where().now() - began;
  co_await beside;
}

}  // namespace

TEST_CASE(
    "an exchange by the piece waits for computations that write its pieces, and not for those between its pieces") {
  for (const auto& configs : {std::vector<config_ptr>{direct(), by_piece()}, {std::make_shared<slow>(), by_piece()}}) {
    world w(2, eager());
    auto op = blocks({2, 1}, configs);
    op.width = {1, 0};
    op.periodic = {true, false};
    std::vector<sheet> u(2, sheet(6 * columns)), v(2, sheet(6 * columns));
    std::vector<halo_plan> plans;
    for (rank_id r = 0; r < 2; ++r)
      plans.push_back(halo(w[r], op).plan({grid_field(u[r], {4, columns}), grid_field(v[r], {4, columns})}));
    for (const double value : {1.0, 2.0}) {
      for (const auto& outcome : exchange_all(w, plans, 40)) CHECK(outcome);
      std::vector<time_ns> exchanged(2);
      scope all(w.clock);
      for (rank_id r = 0; r < 2; ++r)
        all.spawn(with_dataflow(exchange_beside, &plans[r], &u[r], &v[r], &exchanged[r], r == 0 ? value : 3 - value));
      run_until(w.clock, [&] { return all.running() == 0; });
      for (const time_ns took : exchanged) {
        CHECK(took >= 1'000'000);
        CHECK(took < 10'000'000);
      }
    }
  }
}

TEST_CASE("an exchange that is cancelled between its pieces packs nothing and closes the op, and a new op works") {
  memory_link_options links;
  links.eager_bytes = 1'000;  // the receiver fetches longer messages
  world w(2, eager(), links);
  auto op = blocks({2, 1, 1}, {std::make_shared<slow>(), by_piece(1)});
  grid g(w, op, {2, 20, 300}, 0, 1);
  for (const auto& outcome : exchange_all(w, g.plans, 60)) CHECK(outcome);
  REQUIRE(g.halos[0].to(1).decision(20 * 1200).config == by_piece(1)->id());
  g.begin();
  const std::uint64_t before = g.plans[0].packed_so_far_bytes();
  scope all(w.clock);
  const auto give_up = [](dataflow& flow, halo_plan* plan) -> task<> {
    scope& here = co_await this_scope;
    auto moving = plan->start(flow);
    co_await until(here.where().deadline_in(15'000));
    moving.cancel();
    auto outcome = co_await outcome_of(std::move(moving));
    CHECK(outcome.code() == errc::cancelled);
  };
  for (auto& plan : g.plans) all.spawn(with_dataflow(give_up, &plan));
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(g.wrong() > 0);
  CHECK(g.plans[0].packed_so_far_bytes() == before);
  for (const auto& outcome : exchange_all(w, g.plans)) CHECK(outcome.code() == errc::closed);
  op.name = "anew";
  grid again(w, op, {2, 20, 300}, 0, 1);
  for (const auto& outcome : exchange_all(w, again.plans, 60)) CHECK(outcome);
  CHECK(again.wrong() == 0);
}

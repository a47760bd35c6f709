// The short forms for plain cases: one exchange without a flow, the sum of a vector, a decision with one partner.
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/collective.hpp>
#include <parley/halo.hpp>
#include <parley/hierarchy.hpp>
#include <parley/p2p.hpp>
#include <parley/pipeline.hpp>
#include <parley/ring_attention.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <span>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

static_assert(writable_buffer<std::vector<int>&> && writable_buffer<std::span<int>> &&
              writable_buffer<std::array<int, 2>&>);
static_assert(!writable_buffer<const std::vector<int>&> && !writable_buffer<std::span<const int>>,
              "a call that writes takes nothing that is const");
static_assert(!writable_buffer<std::vector<int>>, "nor what is gone before the call has ended");
static_assert(readable_buffer<const std::vector<int>&> && readable_buffer<std::span<const int>>);

template <class B>
concept can_be_sent = requires(transfer t, B&& b) {
  t.send(std::forward<B>(b), send_options{});
  t.start_send(std::forward<B>(b), send_options{});
  p2p::isend(std::forward<B>(b), send_options{});
};
template <class B>
concept can_be_received = requires(transfer t, B&& b) { t.receive(std::forward<B>(b), receive_options{}); } ||
                          requires(B&& b) { p2p::irecv(std::forward<B>(b), receive_options{}); };
static_assert(can_be_sent<const std::vector<int>&> && can_be_sent<std::span<const int>>);
static_assert(!can_be_sent<std::vector<int>>, "what is sent stays until the call has ended");
static_assert(can_be_received<std::vector<int>&> && can_be_received<std::span<int>>);
static_assert(!can_be_received<const std::vector<int>&> && !can_be_received<std::vector<int>>);

namespace {

constexpr rank_id ranks = 4;
rank_id next_of(rank_id r) { return (r + 1) % ranks; }
rank_id previous_of(rank_id r) { return (r + ranks - 1) % ranks; }

/// Runs `program` on every rank, until all have ended.
template <class Program>
void on_all(world& w, const Program& program) {
  std::array<result<>, ranks> outcomes;
  const auto kept = [](const Program* p, rank_id r, result<>* outcome) -> task<> {
    *outcome = co_await attempt((*p)(r));
  };
  scope all(w.clock);
  for (rank_id r = 0; r < ranks; ++r) all.spawn(kept(&program, r, &outcomes[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  for (const result<>& o : outcomes) CHECK_MESSAGE(o, (o ? std::string() : o.reason().what()));
}

}  // namespace

TEST_CASE("ranks exchange a batch of sends and receives without a flow, several times in a row") {
  world w(ranks);
  std::vector<p2p> rings;
  for (rank_id r = 0; r < ranks; ++r) rings.push_back(p2p(w[r], {.name = "ring"}));
  std::vector<std::vector<float>> out(ranks, std::vector<float>(100));
  std::vector<std::vector<float>> in(ranks, std::vector<float>(100));
  const auto program = [](p2p ring, rank_id self, std::vector<float>* mine, std::vector<float>* theirs) -> task<> {
    for (int step = 0; step < 3; ++step) {
      std::fill(mine->begin(), mine->end(), static_cast<float>(10 * step) + static_cast<float>(self));
      co_await ring.exchange(p2p::isend(*mine, {.to = next_of(self)}),
                             p2p::irecv(*theirs, {.from = previous_of(self)}));
      CHECK(theirs->back() == static_cast<float>(10 * step) + static_cast<float>(previous_of(self)));
    }
    std::vector<p2p_operation> list{p2p::isend(*mine, {.to = next_of(self)}),
                                    p2p::irecv(*theirs, {.from = previous_of(self)})};
    co_await ring.exchange_all(std::move(list), {.timeout = 1s});
  };
  on_all(w, [&](rank_id r) { return program(rings[r], r, &out[r], &in[r]); });
  for (rank_id r = 0; r < ranks; ++r) {
    CHECK(rings[r].decision(400, next_of(r)).op == "ring " + std::to_string(r) + "->" + std::to_string(next_of(r)));
    CHECK(thrown_by([&] { static_cast<void>(rings[r].decision(400, r)); }).code() == errc::bad_argument);
  }
}

TEST_CASE("a failed exchange throws its error") {
  world w(2);
  p2p ring(w[0], {.name = "ring", .timeout = 1ms});
  const p2p other(w[1], {.name = "ring"});
  std::vector<float> in(100);
  const auto waits = [](p2p messages, std::vector<float>* into) -> task<> {
    co_await messages.exchange(p2p::irecv(*into, {.from = 1}));
  };
  CHECK(thrown_by([&] { run(w.clock, waits(ring, &in)); }).code() == errc::timeout);
}

TEST_CASE("a halo exchanges its ghosts without a flow") {
  world w(ranks);
  std::vector<halo> halos;
  std::vector<halo_plan> plans;
  std::vector<std::vector<double>> fields(ranks, std::vector<double>(6 * 6));
  for (rank_id r = 0; r < ranks; ++r) {
    halos.push_back(halo(w[r], {.name = "u", .ranks = {2, 2}, .periodic = {true, true}}));
    plans.push_back(halos[r].plan({grid_field(fields[r], {4, 4})}));
    std::fill(fields[r].begin(), fields[r].end(), static_cast<double>(r));
  }
  const auto twice = [](halo_plan* ghosts) -> task<> {
    co_await ghosts->exchange();
    co_await ghosts->exchange();
  };
  on_all(w, [&](rank_id r) { return twice(&plans[r]); });
  for (rank_id r = 0; r < ranks; ++r) {
    const rank_id beside = r ^ 1U;
    const rank_id below = r ^ 2U;
    CHECK(fields[r][6] == beside);  // the ghost left of this rank's first row
    CHECK(fields[r][2 * 6 - 1] == beside);
    CHECK(fields[r][1] == below);
    CHECK(fields[r][5 * 6 + 1] == below);
    CHECK(fields[r][7] == r);
    CHECK(halos[r].decision(4 * sizeof(double), beside).op == "u " + std::to_string(r) + "->" + std::to_string(beside));
  }
}

TEST_CASE(
    "a collective without roles or groups is one group of all ranks that rank 0 leads, for any contiguous range") {
  world w(ranks);
  std::vector<collective> sums;
  std::vector<hierarchy> levels;
  for (rank_id r = 0; r < ranks; ++r) {
    sums.push_back(collective(w[r], {.name = "sums"}));
    levels.push_back(hierarchy(w[r], {.name = "levels", .leads = [](rank_id who) { return who % 2 == 0; }}));
    CHECK(sums[r].leads() == (r == 0));
    CHECK(sums[r].size() == ranks);
  }
  const auto program = [](collective sum, hierarchy both, rank_id self) -> task<> {
    std::vector<double> values(10, self + 1.0);
    co_await sum.all_reduce(values);
    CHECK(values == std::vector<double>(10, 10.0));
    std::array<std::int32_t, 3> few{static_cast<std::int32_t>(self), 1, 2};
    co_await sum.all_reduce(few);
    CHECK(few == std::array<std::int32_t, 3>{6, 4, 8});
    std::vector<float> half(4, 1.0F);
    co_await both.all_reduce(std::span(half).first(2));
    CHECK(half == std::vector<float>{4, 4, 1, 1});
    const std::vector<std::uint64_t> mine(2, self);
    std::vector<std::uint64_t> all(2 * ranks);
    co_await both.all_gather(mine, all);
    CHECK(all == std::vector<std::uint64_t>{0, 0, 1, 1, 2, 2, 3, 3});
    std::vector<std::uint64_t> parts(ranks, self);
    std::array<std::uint64_t, 1> part{};
    co_await both.reduce_scatter(parts, part);
    CHECK(part[0] == 6);
  };
  on_all(w, [&](rank_id r) { return program(sums[r], levels[r], r); });
}

TEST_CASE("a transfer, a pipeline and a ring attention all look up a decision by size and partner") {
  world w(ranks);
  const transfer both_ways(w[0], {.name = "acts", .edges = {{0, 1}, {1, 0}, {2, 0}}});
  CHECK(both_ways.decision(8, 1).op == "acts 0->1");  // rank 0 sends to rank 1 and receives from it: the send counts
  CHECK(both_ways.decision(8, 2).op == "acts 2->0");
  CHECK(thrown_by([&] { static_cast<void>(both_ways.decision(8, 3)); }).code() == errc::bad_argument);
  const pipeline stages(w[1], {.name = "layers"});
  CHECK(stages.decision(8).op == "layers 1->2");
  CHECK(stages.decision(8, 0).op == "layers 0->1");
  CHECK(stages.decision(8, 2).op == "layers 1->2");
  CHECK(is(thrown_by([&] { static_cast<void>(stages.decision(8, 3)); }),
           {.code = errc::bad_argument, .quotes = "layers"}));
  const pipeline last(w[3], {.name = "layers"});
  CHECK(last.decision(8).op == "layers 2->3");
  const ring_attention ring(w[2], {.name = "attention"});
  CHECK(ring.decision(8).op == "attention 2->3");
  CHECK(ring.decision(8, 1).op == "attention 1->2");
}

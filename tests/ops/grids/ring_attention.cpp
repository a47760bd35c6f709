#include <parley/tests/support/cases/attention_case.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/guarded.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/ring_attention.hpp>
#include <parley/runtime/record/flight_recorder.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::attention_case;

namespace {

template <class T>
task<> forward_into(std::span<T> out, ops::ring_attention ring, attention_shape shape, const part<T>* p,
                    result<>* outcome) {
  std::exception_ptr thrown;
  try {
    co_await ring.forward<T>(shape, p->q, p->k, p->v, out);
  } catch (...) {
    thrown = std::current_exception();
  }
  *outcome = thrown ? result<>(describe(thrown)) : result<>();
}
template <class T>
task<> forward(ops::ring_attention ring, attention_shape shape, part<T>* p, result<>* outcome) {
  return forward_into<T>(p->out, std::move(ring), shape, p, outcome);
}

template <class T>
struct in_a_ring {
  in_a_ring(std::uint64_t ranks, bool causal, time_ns block_ns = 0, memory_link_options links = {},
            const problem<T>& p = {})
      : all_of(p), w(static_cast<rank_id>(ranks), {}, std::move(links)), outcomes(ranks) {
    scope all(w.clock);
    for (std::uint64_t r = 0; r < ranks; ++r) parts.push_back(std::make_unique<part<T>>(all_of, ranks, r));
    for (std::uint64_t r = 0; r < ranks; ++r) {
      ring_attention_options op;
      op.name = "attention";
      op.configs = {direct(), chunked(512, 2)};
      const attention_shape shape{heads, sequence / ranks, dimensions, causal, 0, block_ns};
      all.spawn(forward<T>(ring_attention(w[static_cast<rank_id>(r)], op), shape, parts[r].get(), &outcomes[r]));
    }
    run_until(w.clock, [&] { return all.running() == 0; });
    for (const auto& o : outcomes) CHECK(o);
  }
  double farthest_from(const std::vector<double>& right) const {
    double most = 0;
    for (std::uint64_t r = 0; r < parts.size(); ++r)
      most = std::max(most, attention_case::farthest_from(right, *parts[r], r));
    return most;
  }
  problem<T> all_of;
  world w;
  std::vector<result<>> outcomes;
  std::vector<std::unique_ptr<part<T>>> parts;
};

// Counts the messages with user data that all ranks received.
std::size_t received(world& w) {
  std::size_t count = 0;
  for (auto& rank : w.ranks) {
    for (const auto& r : rank->flight().in_order())
      count += r.what == flight_event::received && (r.flags & 4U) == 0 ? 1 : 0;
  }
  return count;
}

}  // namespace

namespace {

template <class T>
void check_in_rings() {
  for (const bool causal : {false, true}) {
    for (const std::uint64_t ranks : {1, 2, 4, 8, 32, 64}) {
      const in_a_ring<T> all(ranks, causal);
      const expected e = attention_case::expect(all.all_of, causal);
      CHECK(all.farthest_from(e.right) <= e.tolerance);
    }
  }
}

}  // namespace

TEST_CASE("ring attention equals the attention of one process within its tolerance, full and causal") {
  check_in_rings<double>();
  check_in_rings<float>();
  check_in_rings<bf16>();
}

namespace {

template <class T>
void check_masked() {
  struct range {
    std::uint64_t from;
    std::uint64_t to;
  };
  for (const bool causal : {false, true}) {
    // Masks a tail that covers all keys of the last ranks; all keys of the first ranks; those in the middle; all but five keys at each end;
    // all keys.
    for (const range masked : {range{40, 64}, range{0, 24}, range{16, 32}, range{5, 59}, range{0, 64}}) {
      problem<T> p;
      p.mask(masked.from, masked.to);
      const expected e = attention_case::expect(p, causal);
      for (const std::uint64_t ranks : {1, 4, 8}) {
        CAPTURE(causal);
        CAPTURE(masked.from);
        CAPTURE(masked.to);
        CAPTURE(ranks);
        const in_a_ring<T> all(ranks, causal, 0, {}, p);
        CHECK(all.farthest_from(e.right) <= e.tolerance);
      }
    }
  }
}

}  // namespace

TEST_CASE("keys that score -inf are ignored, on whichever ranks they lie, and rows without keys give zero") {
  check_masked<double>();
  check_masked<float>();
  check_masked<bf16>();
}

TEST_CASE("a query whose scores are NaN gives NaN and is not treated as a query without keys") {
  problem<float> p;
  p.q[0] = std::numeric_limits<float>::quiet_NaN();
  const in_a_ring<float> all(4, false, 0, {}, p);
  CHECK(std::isnan(all.parts[0]->out[0]));
  CHECK(std::isfinite(all.parts[0]->out[dimensions]));
}

TEST_CASE("each rank receives keys and values P - 1 times, even if it skips blocks") {
  for (const bool causal : {false, true}) {
    in_a_ring<float> four(4, causal);
    CHECK(received(four.w) == 4 * 3 * 2);
    in_a_ring<float> one(1, causal);
    CHECK(received(one.w) == 0);
  }
}

TEST_CASE("ring attention gives identical bits in every run, even if one rank's messages are late") {
  const in_a_ring<float> once(4, true);
  memory_link_options slow;
  slow.delay = [](rank_id from, rank_id, link::channel) { return from == 2 ? 700'000 : 0; };
  const in_a_ring<float> again(4, true, 0, slow);
  for (std::size_t r = 0; r < 4; ++r) CHECK(once.parts[r]->out == again.parts[r]->out);
}

TEST_CASE("moving keys and values is hidden behind blocks that take longer") {
  memory_link_options links;
  links.latency_ns = 300'000;
  const in_a_ring<float> alone(4, false, 0, links);
  const time_ns moving = alone.w.clock.now();
  const in_a_ring<float> both(4, false, 1'000'000, links);
  CHECK(moving >= 3 * 300'000);
  CHECK(both.w.clock.now() >= 4 * 1'000'000);
  CHECK(both.w.clock.now() < 4 * 1'000'000 + moving / 10);
}

TEST_CASE("a user's own block function runs once for each block that counts, in the order of the ring") {
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    constexpr rank_id ranks = 4;
    world w(ranks);
    const problem<float> all;
    const expected e = attention_case::expect(all, causal);
    std::vector<part<float>> parts;
    std::vector<std::vector<std::uint64_t>> seen(ranks);  // the first key of each block that a rank computed, in order
    std::vector<ops::ring_attention> rings;
    for (rank_id r = 0; r < ranks; ++r) {
      parts.emplace_back(all, ranks, r);
      rings.push_back(ring_attention(w[r], {.name = "attention"}));
    }
    const attention_shape shape{heads, sequence / ranks, dimensions, causal};
    const auto call = [&](rank_id r) {
      part<float>& p = parts[r];
      attention_block<float> own = [&seen, r](attention_state<float>& state, auto q, auto k, auto v,
                                              std::uint64_t first_query, std::uint64_t first_key) {
        seen[r].push_back(first_key);
        add_attention_block<float>(state, q, k, v, first_query, first_key);
      };
      return rings[r].forward<float>(shape, p.q, p.k, p.v, std::span(p.out), std::move(own));
    };
    scope together(w.clock);
    for (rank_id r = 0; r < ranks; ++r) together.spawn(call(r));
    run_until(w.clock, [&] { return together.running() == 0; });
    for (rank_id r = 0; r < ranks; ++r) {
      CHECK(attention_case::farthest_from(e.right, parts[r], r) <= e.tolerance);
      std::vector<std::uint64_t> due;
      for (rank_id i = 0; i < ranks; ++i) {
        const rank_id from = (r + ranks - i) % ranks;
        if (!causal || from <= r) due.push_back(from * shape.rows);
      }
      CHECK(seen[r] == due);
    }
  }
}

TEST_CASE("ring attention names shapes that do not fit the buffers or the neighbour") {
  world w(2);
  const problem<float> all;
  part<float> left(all, 2, 0);
  part<float> right(all, 4, 1);
  for (auto* const p : {&left, &right}) std::fill(p->out.begin(), p->out.end(), 9.0F);
  std::vector<result<>> outcomes(2);
  const auto declared = [&](rank_id r) {
    ring_attention_options op;
    op.name = "attention";
    op.timeout = 100ms;
    return ring_attention(w[r], op);
  };
  scope both(w.clock);
  both.spawn(forward<float>(declared(0), {heads, 32, dimensions}, &left, &outcomes[0]));
  both.spawn(forward<float>(declared(1), {heads, 16, dimensions}, &right, &outcomes[1]));
  run_until(w.clock, [&] { return both.running() == 0; });
  CHECK(is(
      outcomes[0],
      {.code = errc::bad_argument, .op = "attention", .rank = 0, .peer = 1, .whole_bytes = 2048, .own_bytes = 4096}));
  CHECK(is(outcomes[1], {.code = errc::buffer_too_small}));
  for (auto* const p : {&left, &right}) CHECK(p->out == std::vector<float>(p->out.size(), 9.0F));

  scope again(w.clock);
  ring_attention_options other;
  other.name = "other";
  again.spawn(forward<float>(ring_attention(w[0], other), {heads, 16, dimensions}, &left, &outcomes[0]));
  run_until(w.clock, [&] { return again.running() == 0; });
  CHECK(says(outcomes[0],
             "op other, rank 0: q, k, v and out have 1024, 1024, 1024, 1024 elements where the shape has 512"));
}

namespace {

// Makes `calls_before` calls with one shape on all ranks, then a call in which the last rank has the shape `odd` and elements of type T.
// Returns how each rank's last call ended.
template <class T>
std::vector<result<>> with_one_that_differs(rank_id ranks, const attention_shape& odd, int calls_before = 0) {
  world w(ranks);
  const problem<float> all;
  std::vector<part<float>> parts;
  std::vector<result<>> outcomes(ranks);
  std::vector<ops::ring_attention> rings;
  attention_shape shape{heads, sequence / ranks, dimensions};
  for (rank_id r = 0; r < ranks; ++r) {
    parts.emplace_back(all, ranks, r);
    ring_attention_options op;
    op.name = "attention";
    op.timeout = 10s;
    rings.emplace_back(w[r], op);
  }
  for (int i = 0; i < calls_before; ++i) {
    scope together(w.clock);
    for (rank_id r = 0; r < ranks; ++r) together.spawn(forward<float>(rings[r], shape, &parts[r], &outcomes[r]));
    run_until(w.clock, [&] { return together.running() == 0; });
    for (const auto& o : outcomes) CHECK(o);
  }
  const problem<T> others;
  const part<T> last(others, ranks, ranks - 1);
  // The output buffers hold other values at first, and have guarded margins.
  guarded_place at;
  std::vector<array<float>> outs;
  for (rank_id r = 0; r + 1 < ranks; ++r) outs.emplace_back(at, shape.elements());
  const array<T> out_of_last(at, odd.elements());
  for (const auto& out : outs) std::fill(out.begin(), out.end(), 9.0F);
  std::fill(out_of_last.begin(), out_of_last.end(), T{9});
  const auto before = at.contents();
  scope together(w.clock);
  for (rank_id r = 0; r + 1 < ranks; ++r)
    together.spawn(forward_into<float>({outs[r].data(), outs[r].size()}, rings[r], shape, &parts[r], &outcomes[r]));
  together.spawn(
      forward_into<T>({out_of_last.data(), out_of_last.size()}, rings[ranks - 1], odd, &last, &outcomes[ranks - 1]));
  const time_ns began = w.clock.now();
  run_until(w.clock, [&] { return together.running() == 0; });
  CHECK(w.clock.now() < began + 1'000'000'000);  // a tenth of the timeout
  const bool wrote = at.contents() != before;
  CHECK(wrote == static_cast<bool>(outcomes[0]));
  CHECK(at.clean());
  return outcomes;
}

// Checks that the last rank and its two neighbours got errors with both values. The errors of other ranks only have to name the op.
void check_told(const std::vector<result<>>& outcomes, const std::string& one, const std::string& other) {
  for (const auto& o : outcomes) CHECK(is(o, {.op = "attention"}));
  const std::size_t last = outcomes.size() - 1;
  std::size_t told = 0;
  for (const std::size_t r : {last, std::size_t{0}, last - 1}) {
    CAPTURE(r);
    CAPTURE((outcomes[r] ? "" : outcomes[r].reason().what()));
    CHECK(outcomes[r].code() == errc::declaration_mismatch);
    told += says(outcomes[r], one.c_str()) && says(outcomes[r], other.c_str()) ? 1 : 0;
  }
  CHECK(told == 3);
}

}  // namespace

TEST_CASE(
    "a rank with another mask, scale, head count or type and its neighbours get both values, and nothing is written") {
  for (const rank_id ranks : {2U, 4U}) {
    for (const int before : {0, 2}) {
      CAPTURE(ranks);
      CAPTURE(before);
      const attention_shape shape{heads, sequence / ranks, dimensions};
      auto odd = shape;
      odd.causal = true;
      check_told(with_one_that_differs<float>(ranks, odd, before), "dimensions, full", "dimensions, causal");
      odd = shape;
      odd.scale = 3;
      check_told(with_one_that_differs<float>(ranks, odd, before), "scale 3", "scale 0.");
      odd = shape;
      odd.heads *= 2;
      odd.dimensions /= 2;
      odd.scale = 1 / std::sqrt(static_cast<double>(shape.dimensions));
      check_told(with_one_that_differs<float>(ranks, odd, before), std::to_string(heads) + " heads of",
                 std::to_string(2 * heads) + " heads of");
      check_told(with_one_that_differs<double>(ranks, shape, before), "f32, ", "f64, ");
    }
  }
  // A shape that spells out the default scale is the same shape.
  auto spelled = attention_shape{heads, sequence / 2, dimensions};
  spelled.scale = 1 / std::sqrt(static_cast<double>(dimensions));
  for (const auto& o : with_one_that_differs<float>(2, spelled)) CHECK(o);
}

#pragma once
/// Worked case 1: two rounds around a ring, and batches of messages between pairs.
#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/cases/ring_case.hpp>
#include <parley/tests/support/cases/worked/each_config.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/place.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/compute.hpp>
#include <parley/config.hpp>
#include <parley/dataflow.hpp>
#include <parley/p2p.hpp>
#include <parley/registered_memory.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

/// The result of both rounds for `numbers`. Before the rounds, each buffer but x0 is filled with NaN.
inline task<std::vector<float>> around(here* h, p2p pairs, ring_case::kernel* k, const std::vector<float>* numbers,
                                       ring_case::ring_options o) {
  const std::vector<float> none(numbers->size(), std::nanf(""));
  for (const array<float>* a : {&k->t0, &k->y0, &k->a, &k->t1, &k->y1, &k->out})
    co_await bring(h->at, *a, std::span<const float>(none));
  co_await bring(h->at, k->x0, std::span<const float>(*numbers));
  co_await with_dataflow(ring_case::two_rounds, &h->self, pairs, k, o);
  co_await h->at.reached();
  std::vector<float> out = co_await taken(h->at, k->out);
  co_return out;
}

struct too_early_buffers {
  float x0 = 0;
  float y0 = 0;
  float a = 0;
  float y1 = 0;
  float out = 0;
};
inline std::span<float> only(float& x) { return {&x, 1}; }

/// The same rounds by hand: one step does not name a buffer that a message writes, and no rank sends before all ranks have run that step.
inline task<> read_too_early(dataflow& flow, here* h, p2p pairs, too_early_buffers* b, ring_case::lacks what) {
  const rank_id next = (h->me + 1) % h->ranks;
  const rank_id previous = (h->me + h->ranks - 1) % h->ranks;
  const auto sum = [b] { b->a = b->y0 + (2 * b->x0 + 1); };
  const auto result = [b] { b->out = b->y1 + b->a * ring_case::c; };
  auto first = pairs.start(flow, {p2p::irecv(only(b->y0), {.from = previous})});
  if (what == ring_case::lacks::reading_y0) {
    auto early = flow.compute({reads(only(b->x0)), writes(only(b->a))}, sum);
    co_await early;
  }
  co_await meet(h);
  auto sent = pairs.start(flow, {p2p::isend(only(b->x0), {.to = next})});
  if (what != ring_case::lacks::reading_y0)
    static_cast<void>(flow.compute({reads(only(b->x0)), reads(only(b->y0)), writes(only(b->a))}, sum));
  auto second = pairs.start(flow, {p2p::irecv(only(b->y1), {.from = previous})});
  if (what == ring_case::lacks::reading_y1) {
    auto early = flow.compute({reads(only(b->a)), writes(only(b->out))}, result);
    co_await early;
  }
  co_await meet(h);
  auto sum_sent = pairs.start(flow, {p2p::isend(only(b->a), {.to = next})});
  if (what != ring_case::lacks::reading_y1)
    static_cast<void>(flow.compute({reads(only(b->a)), reads(only(b->y1)), writes(only(b->out))}, result));
  co_await flow.join();
}

inline float too_early_right(here* h, ring_case::lacks what) {
  const bool of_two = h->ranks == 2;
  if (what == ring_case::lacks::reading_y1)
    return of_two ? std::array{2.00048828125F, 3.000732421875F}[h->me]
                  : std::array{4.0009765625F, 3.000732421875F, 6.00146484375F, 9.002197265625F}[h->me];
  return of_two ? std::array{4.000244140625F, 4.000732421875F}[h->me]
                : std::array{8.000244140625F, 4.000732421875F, 8.001220703125F, 12.001708984375F}[h->me];
}

/// Awaits one message of a batch while another one cannot have ended, and then the whole batch. A queue orders the last step behind it,
/// though that step names no buffer.
inline task<> one_alone(dataflow& flow, here* h, p2p pairs) {
  const rank_id next = (h->me + 1) % h->ranks;
  const rank_id previous = (h->me + h->ranks - 1) % h->ranks;
  std::array<float, 2> mine{static_cast<float>(h->me), static_cast<float>(h->me + 10)};
  std::array<float, 2> came{-1, -1};
  float seen = 0;
  compute_queue queue;
  auto batch =
      pairs.start(flow, {p2p::isend(only(mine[0]), {.to = next}), p2p::irecv(only(came[0]), {.from = previous}),
                         p2p::irecv(only(came[1]), {.from = previous, .tag = 1})});
  batch.wait_on(queue);
  auto last = flow.compute({}, [&] { seen = came[0] + came[1]; }, {.queue = &queue});
  co_await batch[1];
  CHECK(came[0] == static_cast<float>(previous));
  CHECK_FALSE(batch[2].done());
  co_await meet(h);
  static_cast<void>(pairs.start(flow, {p2p::isend(only(mine[1]), {.to = next, .tag = 1})}));
  co_await batch;
  co_await last;
  CHECK(seen == static_cast<float>(2 * previous + 10));
  co_await flow.join();
}

/// A batch with messages to oneself and to all ranks, and empty ones; then messages in one direction only, received in another order.
inline task<> uneven_batches(dataflow& flow, here* h, p2p pairs) {
  const std::array<int, 3> mine{static_cast<int>(h->me), 10, 20};
  std::array<int, 3> of_me{};
  std::vector<std::array<int, 3>> of_all(h->ranks);
  int untouched = 7;
  const std::span<int> none(&untouched, std::size_t{0});
  std::vector<p2p_operation> batch{p2p::isend(mine, {.to = h->me, .tag = 5}),
                                   p2p::irecv(of_me, {.from = h->me, .tag = 5})};
  for (rank_id r = 0; r < h->ranks; ++r) {
    batch.push_back(p2p::irecv(of_all[r], {.from = r}));
    batch.push_back(p2p::isend(mine, {.to = r}));
    batch.push_back(p2p::isend(none, {.to = r, .tag = 1}));
    batch.push_back(p2p::irecv(none, {.from = r, .tag = 1}));
  }
  auto all = pairs.start(flow, batch);
  co_await all;
  CHECK(of_me == mine);
  for (rank_id r = 0; r < h->ranks; ++r) CHECK(of_all[r] == std::array{static_cast<int>(r), 10, 20});
  CHECK(untouched == 7);
  // All values of rank 0 go to the last rank, by tags, and the latest tag is received first.
  const rank_id last = h->ranks - 1;
  std::array<float, 4> values{1, 2, 3, 4};
  std::vector<p2p_operation> one_way;
  for (std::uint32_t i = 0; i < values.size() && h->me == 0; ++i)
    one_way.push_back(p2p::isend(only(values[i]), {.to = last, .tag = 10 + i / 2}));
  std::array<float, 4> came{};
  for (std::uint32_t i = 0; i < came.size() && h->me == last; ++i)
    one_way.push_back(p2p::irecv(only(came[i]), {.from = 0, .tag = 11 - i / 2}));
  if (!one_way.empty()) {
    auto moved = pairs.start(flow, one_way);
    co_await moved;
  }
  if (h->me == last) CHECK(came == std::array<float, 4>{3, 4, 1, 2});
  co_await flow.join();
}

/// A receive that no rank sends to ends alone, by its timeout or by `cancel`. The rest of its batch arrives.
inline task<> orphans(dataflow& flow, here* h, p2p pairs) {
  const rank_id next = (h->me + 1) % h->ranks;
  const rank_id previous = (h->me + h->ranks - 1) % h->ranks;
  const int mine = static_cast<int>(h->me);
  std::array<int, 3> came{-1, -1, -1};
  std::vector<p2p_operation> batch{p2p::irecv(std::span(&came[0], 1), {.from = previous, .tag = 20, .timeout = 50ms}),
                                   p2p::irecv(std::span(&came[1], 1), {.from = previous, .tag = 21}),
                                   p2p::irecv(std::span(&came[2], 1), {.from = previous}),
                                   p2p::isend(std::span(&mine, 1), {.to = next})};
  auto all = pairs.start(flow, batch);
  co_await all[2];
  co_await all[3];
  CHECK(came[2] == static_cast<int>(previous));
  all[1].cancel();
  const result<> late = co_await outcome_of(all[0]);
  const result<> cancelled = co_await outcome_of(all[1]);
  CHECK(late.code() == errc::timeout);
  CHECK(says(late, "tag 20"));
  CHECK(cancelled.code() == errc::cancelled);
  CHECK(came[0] == -1);
  CHECK(came[1] == -1);
  co_await flow.join();
}

inline task<> batches(here* h) {
  auto op = ring_case::pairs_named("batches");
  op.configs = h->with_others(op.configs);
  op.timeout = std::chrono::nanoseconds(h->patience);
  const p2p pairs(h->self, op);
  for (int i = 0; i < 3; ++i) co_await with_dataflow(uneven_batches, h, pairs);
  co_await with_dataflow(orphans, h, pairs);
  // An op of the first and the last rank alone.
  op.name = "two of them";
  op.ranks = {0, h->ranks - 1};
  const p2p some(h->self, op);
  CHECK(some.idle() == (h->me != 0 && h->me != h->ranks - 1));
  if (some.idle()) co_return;
  const rank_id other = h->ranks - 1 - h->me;
  const auto swap = [](dataflow& flow, p2p two, rank_id me, rank_id with) -> task<> {
    const int mine = static_cast<int>(me);
    int came = -1;
    auto both = two.start(
        flow, {p2p::irecv(std::span(&came, 1), {.from = with}), p2p::isend(std::span(&mine, 1), {.to = with})});
    co_await both;
    CHECK(came == static_cast<int>(with));
    co_await flow.join();
  };
  co_await with_dataflow(swap, some, h->me, other);
}

/// Numbers that differ in each round, so that values left from the round before are wrong. A rank that is late has its neighbour's credits.
struct ring_of_numbers {
  here* h;
  p2p pairs;
  ring_case::kernel* k;
  int round = 0;

  float first(rank_id r, std::size_t i) const {
    return static_cast<float>((17 * r + i) % 512 + static_cast<std::size_t>(round % 100));
  }
  float right(std::size_t i) const {
    const auto sum = [&](rank_id left, rank_id mine) { return first(left, i) + (2 * first(mine, i) + 1); };
    const rank_id previous = (h->me + h->ranks - 1) % h->ranks;
    const float scaled = sum(previous, h->me) * ring_case::c;
    return sum((h->me + h->ranks - 2) % h->ranks, previous) + scaled;
  }
};
inline task<> around_with_numbers(ring_of_numbers* r) {
  ++r->round;
  std::vector<float> numbers(r->k->x0.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = r->first(r->h->me, i);
  ring_case::ring_options o;
  if (r->h->until_each_ran) o = {.late_rank = static_cast<rank_id>(r->round) % r->h->ranks, .late_ns = 1_ms};
  const std::vector<float> out = co_await around(r->h, r->pairs, r->k, &numbers, o);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < out.size(); ++i) wrong += out[i] == r->right(i) ? 0 : 1;
  CHECK(wrong == 0);
}

inline task<> ring(here* h) {
  using namespace ring_case;
  auto op = pairs_named("ring");
  op.configs = h->with_others(op.configs);
  op.timeout = std::chrono::nanoseconds(h->patience);
  op.memory = h->at.memory();
  p2p pairs(h->self, op);
  const std::vector<float> right = h->ranks == 2 ? std::vector<float>{5.00048828125F, 5.000732421875F} : right_of_four;
  kernel one(1, h->at);
  const std::vector<float> mine{static_cast<float>(h->me)};
  for (std::uint64_t orders = 0; orders < std::uint64_t{1} << h->ranks; ++orders) {
    const std::vector<float> out = co_await around(h, pairs, &one, &mine, {.receives_first = orders});
    CHECK(out[0] == right[h->me]);
  }
  for (rank_id late = 0; late < h->ranks; ++late) {
    const ring_options o{.receives_first = late, .late_rank = late, .late_ns = 50'000'000};
    const std::vector<float> out = co_await around(h, pairs, &one, &mine, o);
    CHECK(out[0] == right[h->me]);
  }
  kernel large(1'048'576, h->at);
  std::vector<actors::registered_memory> known;
  for (const array<float>* a : {&large.x0, &large.y0, &large.a, &large.y1})
    known.push_back(pairs.registered(a->bytes()));
  std::vector<float> numbers(large.x0.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>((17 * h->me + i) % 512);
  for (int round = 0; round < 5; ++round) {
    const std::vector<float> out = co_await around(h, pairs, &large, &numbers, ring_options{});
    CHECK(std::accumulate(out.begin(), out.end(), 0.0) == 1'609'760'640.0);
  }
  op.name = "ring of numbers";
  kernel some(10'000, h->at);
  ring_of_numbers numbered{h, p2p(h->self, op), &some};
  for (const array<float>* a : {&some.x0, &some.y0, &some.a, &some.y1})
    known.push_back(numbered.pairs.registered(a->bytes()));
  const auto once_more = [&numbered] { return around_with_numbers(&numbered); };
  co_await until_each_ran(h, op.name, once_more);
  if (h->at.stream() != nullptr) co_return;  // the rest is about the processor's own order
  op.name = "ring in place";
  op.configs = {direct()};
  const p2p in_place(h->self, op);
  const std::vector<float> out = co_await around(h, in_place, &large, &numbers, ring_options{});
  CHECK(std::accumulate(out.begin(), out.end(), 0.0) == 1'609'760'640.0);
  CHECK(in_place.copied_bytes() == 0);
  for (const lacks what : {lacks::reading_y0, lacks::reading_y1}) {
    too_early_buffers b{.x0 = static_cast<float>(h->me)};
    co_await with_dataflow(read_too_early, h, in_place, &b, what);
    CHECK(b.out == too_early_right(h, what));
  }
  co_await with_dataflow(one_alone, h, in_place);
}

}  // namespace parley::tests::worked_cases

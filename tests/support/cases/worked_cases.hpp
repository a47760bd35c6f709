#pragma once
/// The worked cases with exact numbers, as one rank runs them, wherever its arrays lie and its kernels run (place.hpp). Each rank checks what
/// it has.
///
///     here h(rank, place);
///     run(loop, guarded(&h));
#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/cases/attention_case.hpp>
#include <parley/tests/support/cases/halo_case.hpp>
#include <parley/tests/support/cases/jacobi_case.hpp>
#include <parley/tests/support/cases/mixture_case.hpp>
#include <parley/tests/support/cases/ring_case.hpp>
#include <parley/tests/support/cases/training_case.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/fair_stopwatch.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/guarded.hpp>
#include <parley/tests/support/place.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/services.hpp>
#include <parley/config.hpp>
#include <parley/contextual.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/group_config.hpp>
#include <parley/halo.hpp>
#include <parley/hierarchical.hpp>
#include <parley/leader_worker.hpp>
#include <parley/ops/core/common_terms.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/p2p.hpp>
#include <parley/paired_transfer.hpp>
#include <parley/registration.hpp>
#include <parley/ring_attention.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/symmetric.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::ops;
using namespace parley::runtime;

// One rank, and what it needs to speak with the others about a case.
struct here {
  static constexpr time_ns of_a_busy_machine = 60'000'000'000;
  here(ops::rank& r, place& where, time_ns p = of_a_busy_machine)
      : patience(p), self(r), at(where), me(r.id()), ranks(r.world_size()) {
    leader_worker op = led_by(0, {star()});
    op.name = "about";
    op.timeout_ns = patience;
    all = r.declare(op);
  }
  bool is_virtual() const { return dynamic_cast<const virtual_time*>(&self.where()) != nullptr; }
  std::vector<config_ptr> with_others(std::vector<config_ptr> configs) const {
    for (const config_ptr& c : others) {
      const auto same = [&](const config_ptr& one) { return one->digest() == c->digest(); };
      if (std::ranges::none_of(configs, same)) configs.push_back(c);
    }
    return configs;
  }
  struct sums_on_gpus {
    transports::cuda_copies* copies = nullptr;  ///< null: there are none
    gpu_world_source::options with{};
  };
  time_ns patience;
  sums_on_gpus gpu_sums{};
  std::vector<config_ptr> others{};  ///< of edges, tried beside those of each case
  bool until_each_ran = false;       ///< calls are repeated until each of them has run
  std::function<void(const std::string& name)>
      on_case{};  ///< when one begins: a process says so, in case it does not end
  ops::rank& self;
  place& at;
  rank_id me;
  rank_id ranks;
  rank_group all;
};

inline task<double> total(here* h, double mine) {
  std::array<double, 1> sum{mine};
  co_await h->all.all_reduce(std::span<double>(sum));
  co_return sum[0];
}

inline task<bool> on_all_ranks(here* h, bool holds) {
  const double ranks = co_await total(h, holds ? 1 : 0);
  co_return ranks == h->ranks;
}

/// Until all are here.
inline task<> meet(here* h) {
  const bool all = co_await on_all_ranks(h, true);
  static_cast<void>(all);
}

/// Since it was made, in virtual time or less what a real machine kept from this rank.
class call_stopwatch {
 public:
  explicit call_stopwatch(here* h) : here_(h), began_(h->self.where().precise_now()) {}
  time_ns took() const {
    if (here_->is_virtual()) return here_->self.where().precise_now() - began_;
    return std::chrono::nanoseconds(machine_.took()).count();
  }

 private:
  here* here_;
  time_ns began_;
  const fair_stopwatch machine_;
};

/// That it is the right one only virtual time promises: a real machine may keep the fastest waiting in each of its trials. There both
/// ends run the same one in any case, which the flight recorders say.
inline void check_choice(const here* h, const decision& d, std::string_view right) {
  CHECK(d.decided);
  if (h->is_virtual()) CHECK(d.config == right);
}

// ---- with other configs than those that a case has itself

/// Of ranks whose flight recorder is asked what has run: it has room for a whole case.
inline rank_settings with_long_memory() {
  rank_settings s = eager_trials();
  s.flight_records = std::size_t{1} << 16U;
  return s;
}

/// Whether all that this rank sends in an op has been agreed on, in each size so far.
inline bool has_agreed(const here* h, std::string_view op) {
  for (const auto& agreed : h->self.agreements()) {
    if (agreed.op != op) continue;
    for (const auto& c : agreed.assigned->searches()) {
      if (!c->is_decided()) return false;
    }
  }
  return true;
}

/// What calls of an op have run on this rank, by the digests in its flight recorder; rehearsals are none.
inline std::set<std::uint64_t> configs_run(const here* h, std::string_view op) {
  constexpr unsigned rehearsal = 4;
  std::set<std::uint64_t> edges;
  for (const auto* const p : h->self.participants()) {
    if (p->declaration.name == op) edges.insert(p->declaration.id());
  }
  std::set<std::uint64_t> all;
  for (const flight_record& r : h->self.flight().in_order()) {
    if (is_transfer(r.what) && edges.contains(r.op) && (r.flags & rehearsal) == 0) all.insert(r.digest);
  }
  return all;
}

/// Of the other configs, those that have run in no call of an op here, though there is all that they need.
inline std::vector<config_ptr> not_run(here* h, std::string_view op) {
  const auto ran = configs_run(h, op);
  std::vector<config_ptr> all;
  for (const config_ptr& c : h->others) {
    const auto works = c->works_over(h->self.services().net, h->at.memory());
    if (works && !ran.contains(c->digest())) all.push_back(c);
  }
  return all;
}

/// Whether a decision in that op has left it out for all messages of a size, for want of a credit say.
inline bool is_left_out(const here* h, std::string_view op, const config_ptr& c) {
  for (const auto* const p : h->self.participants()) {
    if (p->declaration.name != op) continue;
    for (const auto& d : p->decisions) {
      const auto its = std::ranges::find(d.evidence, c->digest(), &actors::wire_evidence::digest);
      if (its != d.evidence.end() && its->status == "excluded") return true;
    }
  }
  return false;
}

/// Calls of an op: one, or as many as it takes for each of the other configs to run on each rank, unless the op is agreed on before.
template <class Call>
task<> until_each_ran(here* h, std::string op, Call call) {
  bool enough = false;
  if (h->until_each_ran && h->on_case) h->on_case(op + " until each config has run");
  for (const deadline limit; !enough;) {
    co_await call();
    enough = !h->until_each_ran;
    if (!enough) enough = co_await on_all_ranks(h, not_run(h, op).empty() || has_agreed(h, op) || limit.is_over());
  }
  if (!h->until_each_ran) co_return;
  CAPTURE(op);
  CHECK(configs_run(h, op).size() > 1);
  for (const config_ptr& c : not_run(h, op)) CHECK_MESSAGE(is_left_out(h, op, c), c->id());
}

// ---- 1: two rounds around a ring

/// What both rounds make of `numbers`; each buffer but x0 holds what the round before has left there, or nothing that is a number.
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

/// The same by hand: a step does not name what a message brings, and nobody sends before all have taken that step.
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

/// One of a batch is awaited while another one cannot have ended; then the whole, in the order of a queue that names no buffer.
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

/// To oneself and to everybody, nothing at all, more one way than the other and in another order than it was sent.
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
  // All of rank 0's for the last one, by tags: the latest is received first.
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

/// What nobody sends ends in its time or is cancelled, alone: the rest of its batch comes.
inline task<> orphans(dataflow& flow, here* h, p2p pairs) {
  const rank_id next = (h->me + 1) % h->ranks;
  const rank_id previous = (h->me + h->ranks - 1) % h->ranks;
  const int mine = static_cast<int>(h->me);
  std::array<int, 3> came{-1, -1, -1};
  std::vector<p2p_operation> batch{
      p2p::irecv(std::span(&came[0], 1), {.from = previous, .tag = 20, .timeout_ns = 50'000'000}),
      p2p::irecv(std::span(&came[1], 1), {.from = previous, .tag = 21}),
      p2p::irecv(std::span(&came[2], 1), {.from = previous}), p2p::isend(std::span(&mine, 1), {.to = next})};
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
  op.timeout_ns = h->patience;
  const p2p pairs = h->self.declare(op);
  for (int i = 0; i < 3; ++i) co_await with_dataflow(uneven_batches, h, pairs);
  co_await with_dataflow(orphans, h, pairs);
  // Of the first and the last rank alone.
  op.name = "two of them";
  op.ranks = {0, h->ranks - 1};
  const p2p some = h->self.declare(op);
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

/// Numbers that differ from round to round: what is left of the one before is wrong. Who is late has its neighbour's credits.
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
  op.timeout_ns = h->patience;
  op.memory = h->at.memory();
  p2p pairs = h->self.declare(op);
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
  ring_of_numbers numbered{h, h->self.declare(op), &some};
  for (const array<float>* a : {&some.x0, &some.y0, &some.a, &some.y1})
    known.push_back(numbered.pairs.registered(a->bytes()));
  const auto once_more = [&numbered] { return around_with_numbers(&numbered); };
  co_await until_each_ran(h, op.name, once_more);
  if (h->at.stream() != nullptr) co_return;  // what follows is about the processor's own order
  op.name = "ring in place";
  op.configs = {direct()};
  const p2p in_place = h->self.declare(op);
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

// ---- 2: pipelines

// As people write them: one microbatch after the other, the gradients the other way round.
inline const char* const own_list_of_two = "0F0, 0SEND_F0, 0F1, 0SEND_F1, 0RECV_B1, 0B1, 0RECV_B0, 0B0\n"
                                           "1RECV_F0, 1F0, 1RECV_F1, 1F1, 1B1, 1SEND_B1, 1B0, 1SEND_B0\n";

/// Two stages in a row on each rank.
inline std::string two_in_a_row(rank_id ranks, std::uint32_t microbatches) {
  std::string text;
  for (rank_id r = 0; r < ranks; ++r) {
    const std::string first = std::to_string(2 * r);
    const std::string second = std::to_string(2 * r + 1);
    for (std::uint32_t m = 0; m < microbatches; ++m)
      text += first + "F" + std::to_string(m) + ", " + second + "F" + std::to_string(m) + ", ";
    for (std::uint32_t m = 0; m < microbatches; ++m)
      text += second + "B" + std::to_string(m) + ", " + first + "B" + std::to_string(m) + ", ";
    text += "\n";
  }
  return text;
}
// The first and the last stage on one rank, those between on the other.
inline const char* const folded_list =
    "0F0, 0F1, 3F0, 3B0, 3F1, 3B1, 0B0, 0B1\n1F0, 2F0, 1F1, 2F1, 2B0, 1B0, 2B1, 1B1\n";

/// Stages that take 1 ms forward and 2 ms backward, of which one is late once.
class waiting_stages final : public training_work {
 public:
  std::uint64_t activation_bytes(std::uint32_t) const override { return 1000; }
  task<> work(pipeline_action a, pipeline_memory) override {
    const bool forward = a.what == pipeline_action::kind::forward;
    const bool is_late = late && forward && a.stage == 1 && a.microbatch == 3;
    auto woken = co_await sleep_for((forward ? 1_ms : 2_ms) + (is_late ? 10_ms : 0));
    static_cast<void>(woken);
  }
  bool late = false;
};

/// What the fastest of some passes took, of the others only the first.
inline task<time_ns> fastest_pass(here* h, training pipe, waiting_stages* mine) {
  constexpr int passes = 5;
  time_ns fastest = never;
  for (int i = 0; i < passes; ++i) {
    co_await meet(h);
    const call_stopwatch since(h);
    auto report = co_await pipe.run(*mine);
    static_cast<void>(report);
    fastest = std::min(fastest, since.took());
  }
  co_return fastest;
}

inline task<> late_stage(here* h) {
  training_pipeline op;
  op.name = "late stage";
  op.schedule = one_forward_one_backward(h->ranks, 8);
  op.configs = {direct()};
  op.timeout_ns = h->patience;
  training pipe = h->self.declare(op);
  waiting_stages mine;
  const time_ns on_time = co_await fastest_pass(h, pipe, &mine);
  mine.late = true;
  const time_ns with_a_late_one = co_await fastest_pass(h, pipe, &mine);
  if (!h->is_virtual()) co_return;  // a busy machine wakes somebody when it finds it time
  CHECK(with_a_late_one - on_time <= 10'000'000);
  if (h->me == 1) CHECK(with_a_late_one > on_time);
}

inline task<> pass_of(here* h, training pipe, const pipeline_schedule* schedule) {
  using namespace training_case;
  placed_part mine(schedule->stages, h->at);
  co_await mine.begin();
  pipeline_report report;
  if (!pipe.idle()) report = co_await pipe.run(mine);
  co_await h->at.reached();
  const std::vector<double> right = gradients_alone(schedule->stages, schedule->microbatches);
  for (std::uint32_t stage = 0; stage < schedule->stages; ++stage) {
    if (schedule->rank_of(stage) != h->me) continue;
    const double gradient = co_await mine.weight_gradient(stage);
    CHECK(std::abs(gradient - right[stage]) <= 4e-5 + 1e-5 * std::abs(right[stage]));
  }
  if (!pipe.idle()) CHECK(report.most_alive == estimate(*schedule).alive[h->me]);
  const double sent = co_await total(h, static_cast<double>(report.sent));
  CHECK(sent == static_cast<double>(schedule->messages()));
}

inline task<> pipelines(here* h) {
  std::vector<std::pair<std::string, pipeline_schedule>> all{
      {"gpipe", gpipe(h->ranks, 8)},
      {"1F1B", one_forward_one_backward(h->ranks, 8)},
      {"1F1B of 16", one_forward_one_backward(h->ranks, 16)},
      {"interleaved", interleaved(h->ranks, 8, 2)},
      {"interleaved by 4", interleaved(h->ranks, 8, 4)},
      {"own list", parse_schedule(h->ranks == 2 ? own_list_of_two : text_of(gpipe(h->ranks, 3))).value()},
      {"two in a row", parse_schedule(two_in_a_row(h->ranks, 5)).value()}};
  if (h->ranks == 2) all.emplace_back("folded", parse_schedule(folded_list).value());
  if (h->ranks > 2) all.emplace_back("1F1B of three", one_forward_one_backward(3, 8));  // the fourth has no part in it
  for (const auto& [name, schedule] : all) {
    training_pipeline op;
    op.name = name;
    op.schedule = schedule;
    op.configs = h->with_others({direct(), chunked(128, 2)});
    op.timeout_ns = h->patience;
    op.memory = h->at.memory();
    training pipe = h->self.declare(op);
    const auto one_pass = [h, pipe, of = &schedule] { return pass_of(h, pipe, of); };
    if (name == "1F1B") {  // of the others there is one pass, which is too short for trials
      co_await until_each_ran(h, name, one_pass);
    } else {
      co_await one_pass();
    }
  }
}

// ---- 3: transfers of pairs

inline task<> take_one(here* h, transfer t, const array<std::byte>* into) {
  const std::uint64_t came = co_await t.receive(*into, {.from = h->me - 1});
  CHECK(came == into->size());
}

/// Where configs are tried that write into the receiver's buffer, all receives are posted before a message leaves.
inline task<> move_one(here* h, transfer t, std::size_t bytes, std::uint64_t seed) {
  array<std::byte> buffer(h->at, bytes);
  const auto known = t.registered(buffer.bytes());
  const std::vector<std::byte> data = pattern(bytes, seed);
  if (h->me % 2 == 0) {
    co_await bring(h->at, buffer, std::span(data));
    if (h->until_each_ran) co_await meet(h);
    co_await t.send(buffer, {.to = h->me + 1});
    co_return;
  }
  scope& now = co_await this_scope;
  scope receiving(now);
  receiving.spawn(take_one(h, t, &buffer));
  co_await yield;
  if (h->until_each_ran) co_await meet(h);
  co_await receiving.join();
  const std::vector<std::byte> seen = co_await taken(h->at, buffer);
  CHECK(seen == data);
}

inline task<> move_until_decided(here* h, transfer t, std::size_t bytes) {
  bool enough = false;
  for (const deadline limit; !enough;) {
    for (std::uint64_t i = 0; i < 10; ++i) co_await move_one(h, t, bytes, i);
    enough = co_await on_all_ranks(h, t.decision(bytes).decided || limit.is_over());
  }
}

inline task<> wait_here(time_ns span) {
  auto woken = co_await sleep_for(span);
  static_cast<void>(woken);
}

/// Takes as long as it is told at each end, in turns.
class scripted final : public paired_config {
 public:
  using script = std::array<time_ns, 3>;
  scripted(const char* name, script at_sender, script at_receiver)
      : paired_config({.name = name, .wire_class = name}), sends_(at_sender), receives_(at_receiver) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    co_await wait_here(sends_[sent_++ % 3]);
    co_await out.send(0, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    co_await in.receive(0, data);
    co_await wait_here(receives_[received_++ % 3]);
  }

 private:
  script sends_;
  script receives_;
  mutable std::size_t sent_ = 0;
  mutable std::size_t received_ = 0;
};

/// What other designs fall into: a config that one end lacks, the median of each rank before the longest of them, and configs that are
/// chosen for each role but paired by their places.
inline task<> traps(here* h) {
  const bool sends = h->me % 2 == 0;
  auto op = pair_of({direct()});
  op.timeout_ns = h->patience;
  op.memory = h->at.memory();
  op.role = [](rank_id r) { return std::string(r % 2 == 0 ? "sender" : "receiver"); };
  op.name = "lacking";
  if (!sends) op.configs.push_back(chunked(64_KiB, 2));
  const transfer lacking = h->self.declare(op);
  co_await move_until_decided(h, lacking, 4'096);
  CHECK(lacking.decision(4'096).config == "direct");

  op.name = "uneven";
  const auto steadily = [](const char* name, time_ns takes) {
    return std::make_shared<scripted>(name, scripted::script{takes, takes, takes}, scripted::script{0, 0, 0});
  };
  op.configs = {
      steadily("slow", 16_ms),
      std::make_shared<scripted>("uneven", scripted::script{1_ms, 1_ms, 9_ms}, scripted::script{1_ms, 9_ms, 1_ms}),
      steadily("steady", 5_ms)};
  const transfer uneven = h->self.declare(op);
  co_await move_until_decided(h, uneven, 1'000);
  check_choice(h, uneven.decision(1'000), "steady");

  const auto takes = [](time_ns span) -> operation_function {
    return [span](std::span<std::byte>) { return wait_here(span); };
  };
  const role_op by_role =
      register_asymmetric_autotuning(h->self, "by role", {{"sender", takes(6_ms)}, {"receiver", takes(2_ms)}},
                                     {{"sender", "other", takes(2_ms)}, {"receiver", "other", takes(6_ms)}}, op.role);
  std::vector<std::byte> data(1'000);
  for (const deadline limit; !by_role.decision(data.size()).decided && !limit.is_over();) {
    role_op mine = by_role;
    co_await mine.run(data);
  }
  check_choice(h, by_role.decision(data.size()), sends ? "other" : "operation");
}

inline task<> transfers(here* h) {
  auto op = pair_of({chunked(1_MiB)});
  op.timeout_ns = h->patience;
  op.memory = h->at.memory();
  op.role = [](rank_id r) { return std::string(r % 3 == 0 ? "sender" : r % 3 == 1 ? "receiver" : "idle"); };
  if (h->ranks == 4) CHECK_THROWS_WITH_AS(h->self.declare(op), doctest::Contains("senders are 0, 3"), failure);
  op.role = [](rank_id r) { return std::string(r % 2 == 0 ? "sender" : "receiver"); };  // as many pairs as there are
  const transfer whole = h->self.declare(op);
  std::uint64_t seed = 0;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20U, (std::size_t{1} << 20U) + 1,
                                  (std::size_t{64} << 20U) + 12'345, std::size_t{0}})
    co_await move_one(h, whole, bytes, ++seed);

  // Trials. Each end lists its configs in an order of its own: they are paired by what they are.
  op.name = "tried";
  op.configs = h->with_others({direct(), chunked(64_KiB, 2), chunked(256_KiB, 4)});
  if (h->me % 2 == 1) std::swap(op.configs[1], op.configs[2]);
  transfer tried = h->self.declare(op);
  const std::array<std::size_t, 3> sizes{4'096, 65'536, 1'048'576};
  bool all_decided = false;
  const time_ns until = h->self.where().deadline_in(h->patience);
  while (!all_decided) {
    for (int i = 0; i < 10; ++i) {
      for (const std::size_t bytes : sizes) co_await move_one(h, tried, bytes, ++seed);
    }
    bool mine = true;
    for (const std::size_t bytes : sizes) mine = mine && tried.decision(bytes).decided;
    all_decided = co_await on_all_ranks(h, mine || h->self.where().now() > until);
  }
  if (h->until_each_ran) CHECK(not_run(h, op.name).empty());
  std::string decisions;
  for (const std::size_t bytes : sizes) {
    const decision d = tried.decision(bytes);
    CHECK(d.decided);
    decisions += d.key + " " + d.config + "\n";
  }
  op.name = "decisions";
  op.configs = {direct()};
  op.memory = nullptr;
  transfer tell = h->self.declare(op);
  std::string theirs(1000, ' ');
  if (h->me % 2 == 0) {
    co_await tell.send(decisions, {.to = h->me + 1});
  } else {
    const std::uint64_t came = co_await tell.receive(theirs, {.from = h->me - 1});
    CHECK(theirs.substr(0, came) == decisions);
  }
}

// ---- 4: Jacobi

constexpr int sweeps = 100;

inline task<> sweep_and_compare(here* h, halo cut, rank_id rows, rank_id columns, const jacobi_case::block* alone) {
  jacobi_case::block mine(cut, rows, columns, h->at);
  co_await jacobi_case::sweep_block(cut, &mine, sweeps);
  const std::vector<double> field = co_await taken(h->at, mine.u.cells);
  std::size_t wrong = 0;
  for (std::size_t i = 1; i <= mine.u.rows; ++i) {
    for (std::size_t j = 1; j <= mine.u.columns; ++j)
      wrong += field[mine.cell(i, j)] == alone->u.cells[alone->cell(mine.top + i, mine.left + j)] ? 0 : 1;
  }
  CHECK(wrong == 0);
  const double first_of_mine = co_await mine.sum_of_squares(0);
  const double first = co_await total(h, first_of_mine);
  CHECK(std::sqrt(first) == doctest::Approx(0.03915698160394615).epsilon(1e-11));
  const double last_of_mine = co_await mine.sum_of_squares(sweeps - 1);
  const double last = co_await total(h, last_of_mine);
  CHECK(std::sqrt(last) == doctest::Approx(0.03462020197359978).epsilon(1e-11));
}

inline task<> jacobi(here* h) {
  jacobi_case::block alone;
  co_await alone.begin();
  std::vector<double> squares(alone.u.cells.size());
  for (int k = 0; k < sweeps; ++k) {
    const auto& from = k % 2 == 0 ? alone.u : alone.v;
    const auto& to = k % 2 == 0 ? alone.v : alone.u;
    kernels::run(kernels::sweep{to.cells.data(), squares.data(), from.cells.data(), from.columns},
                 from.rows * from.columns);
  }
  std::vector<std::pair<rank_id, rank_id>> cuts{{1, h->ranks}, {h->ranks, 1}};
  if (h->ranks == 4) cuts.emplace_back(2, 2);
  for (const auto& [rows, columns] : cuts) {
    auto op = jacobi_case::rims({rows, columns});
    op.name += std::to_string(rows) + "x" + std::to_string(columns);
    op.configs = h->with_others(op.configs);
    op.timeout_ns = h->patience;
    op.memory = h->at.memory();
    const halo cut = h->self.declare(op);
    const auto sweeps_of_cut = [h, cut, rows, columns, &alone] {
      return sweep_and_compare(h, cut, rows, columns, &alone);
    };
    co_await until_each_ran(h, op.name, sweeps_of_cut);
  }
}

template <class Part>
task<> exchange_from_the_start(here* h, Part* mine, int times) {
  co_await mine->begin();
  co_await with_dataflow(halo_case::exchange, &mine->plan(), times, h->at.stream());
  co_await h->at.reached();
  const std::size_t wrong = co_await mine->wrong();
  CHECK(wrong == 0);
}

/// Corners, wider rims, rims of another width in each dimension, periodic edges, several fields, padding, and lists of indices.
inline task<> more_than_faces(here* h) {
  const auto with = [h](std::string name, halo_exchange op) {
    op.name = std::move(name);
    op.configs = h->with_others({direct(), chunked(64, 2)});
    op.timeout_ns = h->patience;
    op.memory = h->at.memory();
    return op;
  };
  halo_exchange wide;
  wide.ranks = {h->ranks, 1};
  wide.width = {2, 3};
  wide.periodic = {true, false};
  wide.reach = halo_reach::corners;
  halo_exchange cube = wide;
  cube.ranks = h->ranks == 4 ? std::vector<rank_id>{2, 1, 2} : std::vector<rank_id>{1, h->ranks, 1};
  cube.width = {1, 2, 1};
  cube.periodic = {false, true, true};
  for (const auto& s : {halo_case::shape{with("wide", wide), {4, 5}, 3, 2}, {with("cube", cube), {3, 4, 5}, 2, 1}}) {
    CAPTURE(s.op.name);
    const halo cut = h->self.declare(s.op);
    halo_case::block mine(cut, s, h->at);
    co_await exchange_from_the_start(h, &mine, 4);
  }
  // Rows that are long enough to go by the piece, once they are packed no more.
  halo_exchange rows = wide;
  rows.width = {2, 1};
  halo_case::shape s{with("rows", rows), {4, 600}, 3, 2};
  s.op.configs.push_back(by_piece(2));
  const halo cut = h->self.declare(s.op);
  halo_case::block block(cut, s, h->at);
  const auto exchanges = [h, &block] { return exchange_from_the_start(h, &block, 16); };
  for (int i = 0; i < 2; ++i) co_await exchanges();
  co_await until_each_ran(h, s.op.name, exchanges);
  const halo mesh = h->self.declare(with("mesh", halo_case::part_of_ring::op_of(h->me, h->ranks)));
  halo_case::part_of_ring mine(mesh, h->me, h->ranks, 2, h->at);
  co_await exchange_from_the_start(h, &mine, 4);
}

// ---- 5: attention, and sums in two levels

/// One rank's arrays on a device, which stay from call to call, and a kernel for each block.
template <class T>
class attention_on_device {
 public:
  attention_on_device(here* h, const ops::attention& in_ring, const attention_shape& shape)
      : at_(h->at), shape_(shape), plan_(in_ring.template plan<T>(shape)) {}
  task<> forward(attention_case::part<T>* mine) {
    using element = std::conditional_t<std::is_same_v<T, bf16>, std::uint16_t, T>;  // as nvcc knows it
    co_await bring(at_, q_, std::span<const T>(mine->q));
    co_await bring(at_, k_, std::span<const T>(mine->k));
    co_await bring(at_, v_, std::span<const T>(mine->v));
    const auto seen = [this](auto* numbers) {
      using kept =
          std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(numbers)>>, const element, element>;
      return at_.seen(reinterpret_cast<kept*>(numbers));
    };
    const device_attention_block<T> block = [&](const device_block<T>& b) {
      at_.compute(
          kernels::attention<element>{seen(b.q.data()), seen(b.k.data()), seen(b.v.data()), seen(b.out.data()),
                                      at_.seen(maximum_), at_.seen(weight_), at_.seen(weighted_), shape_.rows,
                                      shape_.dimensions, b.first_query, b.first_key, shape_.causal, b.first, b.last},
          shape_.heads * shape_.rows);
    };
    const auto constant = [](const array<T>& a) { return std::span<const T>(a.data(), a.size()); };
    const auto to = std::span<T>(out_.data(), out_.size());
    co_await plan_.template forward<T>(constant(q_), constant(k_), constant(v_), to, at_.stream(), block);
    co_await at_.reached();
    mine->out = co_await taken(at_, out_);
  }

 private:
  place& at_;
  attention_shape shape_;
  array<T> q_{at_, shape_.elements()}, k_{at_, q_.size()}, v_{at_, q_.size()}, out_{at_, q_.size()};
  array<double> maximum_{at_, shape_.heads* shape_.rows}, weight_{at_, maximum_.size()}, weighted_{at_, q_.size()};
  attention_plan plan_;
  actors::registered_memory keys_known_ = plan_.registered(k_), values_known_ = plan_.registered(v_);
};

/// Messages of the program, not of rehearsals, that have come since the flight recorder had so many records.
inline std::ptrdiff_t received_since(here* h, std::uint64_t before) {
  constexpr unsigned rehearsal = 4;
  const std::vector<flight_record> all = h->self.flight().in_order();
  const auto fresh = static_cast<std::ptrdiff_t>(h->self.flight().total() - before);
  return std::count_if(all.end() - fresh, all.end(), [](const flight_record& r) {
    return r.what == flight_event::received && (r.flags & rehearsal) == 0;
  });
}

/// Keys and values are others in each round: what is left of the one before is wrong.
template <class T>
struct rounds_of_attention {
  here* h;
  ops::attention in_ring;
  int round = 0;
  attention_case::problem<T> whole{};
  std::array<std::unique_ptr<attention_on_device<T>>, 2> on_device{};  // without a mask, and causal
};
template <class T>
task<> attend_with_both_masks(rounds_of_attention<T>* all) {
  using namespace attention_case;
  here* const h = all->h;
  for (auto* const numbers : {&all->whole.k, &all->whole.v})
    std::rotate(numbers->begin(), numbers->end() - 1, numbers->end());
  for (const bool causal : {false, true}) {
    part<T> mine(all->whole, h->ranks, h->me);
    const attention_shape shape{heads, sequence / h->ranks, dimensions, causal};
    if (h->at.stream() == nullptr) {
      const std::uint64_t before = h->self.flight().total();
      co_await all->in_ring.template forward<T>(shape, mine.q, mine.k, mine.v, std::span(mine.out));
      CHECK(received_since(h, before) == 2 * (h->ranks - 1));  // keys and values, P - 1 times, whatever is skipped
    } else {
      auto& device = all->on_device[causal ? 1 : 0];
      if (device == nullptr) device = std::make_unique<attention_on_device<T>>(h, all->in_ring, shape);
      // As in the ring.
      if (h->until_each_ran && all->round++ % h->ranks == h->me) co_await wait_here(1_ms);
      co_await device->forward(&mine);
    }
    const expected e = expect(all->whole, causal);
    CHECK(farthest_from(e.right, mine, h->me) <= e.tolerance);
  }
}

template <class T>
task<> attention_of(here* h, std::string elements) {
  using namespace attention_case;
  ring_attention op;
  op.name = "attention of " + elements;
  op.configs = h->with_others({direct(), chunked(512, 2)});
  op.timeout_ns = h->patience;
  op.memory = h->at.memory();
  ops::attention in_ring = h->self.declare(op);
  rounds_of_attention<T> all{h, in_ring};
  const auto both_masks = [&all] { return attend_with_both_masks(&all); };
  co_await until_each_ran(h, op.name, both_masks);
}

inline task<> attention_around(here* h) {
  co_await attention_of<double>(h, "double");
  co_await attention_of<float>(h, "float");
  co_await attention_of<bf16>(h, "bf16");
}

inline float addend(rank_id r, std::size_t k, std::size_t i) {
  return static_cast<float>((r + 1) * (k + 1) * (i % 7 + 1));
}

inline std::span<float> of(const array<float>& a) { return {a.data(), a.size()}; }

/// One group, on each of its configs in turn.
inline task<> sums_of_a_group(here* h) {
  leader_worker op = led_by(h->ranks - 1, {star(), star(4'096), chain(4'096), tree(), one_shot(), two_shot(4'096)});
  op.name = "in a group";
  op.timeout_ns = h->patience;
  op.memory = h->at.memory();
  rank_group all = h->self.declare(op);
  const array<float> x(h->at, 10'000);
  for (int round = 0; round < 30; ++round) {
    const std::vector<float> mine = contribution(h->me, x.size());
    co_await bring(h->at, x, std::span(mine));
    h->at.compute(kernels::linear{h->at.seen(x), h->at.seen(x), nullptr, 2, 0}, x.size());
    h->at.before_messages(x.bytes());
    co_await all.all_reduce(of(x));
    std::vector<float> sum = co_await taken(h->at, x);
    for (float& s : sum) s /= 2;
    CHECK(wrong_sums(sum, h->ranks) == 0);
  }
  const array<double> tenths(h->at, 7);
  const std::vector<double> mine(tenths.size(), 0.1 * (h->me + 1));
  co_await bring(h->at, tenths, std::span(mine));
  co_await all.all_reduce(std::span<double>(tenths.data(), tenths.size()));
  double in_order = 0.1;
  for (rank_id r = 1; r < h->ranks; ++r) in_order += 0.1 * (r + 1);
  const std::vector<double> summed = co_await taken(h->at, tenths);
  CHECK(summed == std::vector<double>(tenths.size(), in_order));

  op.name = "from a leader";
  op.does = collective::broadcast;
  op.configs = {star(4'096), chain(4'096), tree()};
  rank_group given = h->self.declare(op);
  op.name = "to a leader";
  op.does = collective::gather;
  op.configs = {star(), star(4'096), tree()};
  rank_group collected = h->self.declare(op);
  const array<float> everyones(h->at, collected.leads() ? x.size() * h->ranks : 0);
  for (int round = 0; round < 10; ++round) {
    const std::vector<float> leaders = contribution(static_cast<rank_id>(round), x.size());
    const std::vector<float> nothing(x.size(), -1);
    co_await bring(h->at, x, std::span(given.leads() ? leaders : nothing));
    co_await given.broadcast(of(x));
    const std::vector<float> came = co_await taken(h->at, x);
    CHECK(came == leaders);
    const std::vector<float> block = contribution(h->me, x.size());
    co_await bring(h->at, x, std::span(block));
    co_await collected.gather(of(x), of(everyones));
    const std::vector<float> blocks = co_await taken(h->at, everyones);
    for (std::size_t r = 0; r * x.size() < blocks.size(); ++r) {
      const std::vector<float> its = contribution(static_cast<rank_id>(r), x.size());
      CHECK(std::equal(its.begin(), its.end(), blocks.begin() + static_cast<std::ptrdiff_t>(r * x.size())));
    }
  }
}

/// By stars. A call beside which its config is rehearsed has more.
inline task<> messages_of_stars(here* h) {
  hierarchical op;
  op.name = "stars";
  op.leads = [](rank_id r) { return r % 4 == 0; };
  op.inside = op.between = {star()};
  op.timeout_ns = h->patience;
  hierarchy all = h->self.declare(op);
  const auto& sent = h->self.services().net.statistics().sent[static_cast<std::size_t>(link::channel::data)];
  auto fewest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 10; ++round) {
    std::vector<float> x = contribution(h->me, 1'000);
    const std::uint64_t before = sent;
    co_await all.all_reduce(std::span(x));
    const auto mine = static_cast<double>(sent - before);
    CHECK(wrong_sums(x, h->ranks) == 0);
    fewest = std::min(fewest, co_await total(h, mine));
  }
  CHECK(fewest == 30);
}

/// A leader for every third rank, so that the last group is smaller, and numbers whose sum depends on the order: inside a group that of its
/// ranks, and then that of the groups, to the last bit on every rank.
inline task<> sums_of_ragged_groups(here* h) {
  constexpr rank_id group = 3;
  hierarchical op;
  op.name = "by threes";
  op.leads = [](rank_id r) { return r % group == 0; };
  op.timeout_ns = h->patience;
  op.memory = h->at.memory();
  hierarchy all = h->self.declare(op);
  CHECK(all.group_size() == std::min<rank_id>(group, h->ranks - h->me / group * group));
  const array<float> x(h->at, 10'000);
  const auto addend_of = [](rank_id r, int round, std::size_t i) {
    return 1 / static_cast<float>(1 + r * 300 + i * 7 + static_cast<std::size_t>(round));
  };
  for (int round = 0; round < 10; ++round) {
    std::vector<float> mine(x.size());
    std::vector<float> in_order(x.size());
    std::vector<float> backwards(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      mine[i] = addend_of(h->me, round, i);
      for (rank_id first = 0; first < h->ranks; first += group) {
        float of_group = addend_of(first, round, i);
        for (rank_id r = first + 1; r < std::min(first + group, h->ranks); ++r) of_group += addend_of(r, round, i);
        in_order[i] = first == 0 ? of_group : in_order[i] + of_group;
      }
      for (rank_id r = h->ranks; r-- > 0;) backwards[i] += addend_of(r, round, i);
    }
    CHECK(in_order != backwards);
    co_await bring(h->at, x, std::span<const float>(mine));
    co_await all.all_reduce(of(x));
    const std::vector<float> sum = co_await taken(h->at, x);
    CHECK(std::memcmp(sum.data(), in_order.data(), x.bytes().size()) == 0);
  }
}

inline task<> sums(here* h) {
  if (h->ranks == 16 && h->at.stream() == nullptr) co_await messages_of_stars(h);
  if (h->ranks >= 4) co_await sums_of_ragged_groups(h);
  const rank_id group = h->ranks >= 8 ? 4 : 2;
  hierarchical op;
  op.name = "gradients";
  op.leads = [group](rank_id r) { return r % group == 0; };
  op.timeout_ns = h->patience;
  op.memory = h->at.memory();
  hierarchy all = h->self.declare(op);
  const auto ranks = static_cast<float>(h->ranks * (h->ranks + 1) / 2);
  const array<float> x(h->at, 10'000);
  for (int round = 0; round < 10; ++round) {
    const std::vector<float> mine = contribution(h->me, x.size());
    co_await bring(h->at, x, std::span(mine));
    co_await all.all_reduce(of(x));
    const std::vector<float> sum = co_await taken(h->at, x);
    CHECK(wrong_sums(sum, h->ranks) == 0);
    // Several, large enough for an exchange of its own each, and small ones, which are packed.
    for (const std::size_t count : {std::size_t{20'000}, std::size_t{100}}) {
      std::vector<array<float>> several;
      std::vector<std::span<float>> spans;
      for (std::size_t k = 0; k < 3; ++k) {
        std::vector<float> its(count);
        for (std::size_t i = 0; i < count; ++i) its[i] = addend(h->me, k, i);
        several.emplace_back(h->at, count);
        co_await bring(h->at, several[k], std::span<const float>(its));
        spans.push_back(of(several[k]));
      }
      co_await all.all_reduce_list(spans);
      std::size_t wrong = 0;
      for (std::size_t k = 0; k < 3; ++k) {
        const std::vector<float> its = co_await taken(h->at, several[k]);
        for (std::size_t i = 0; i < count; ++i)
          wrong += its[i] == ranks * static_cast<float>((k + 1) * (i % 7 + 1)) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
  CHECK(all.copies() == 60);
  const array<int> own(h->at, 2);
  const array<int> everyones(h->at, 2 * h->ranks);
  const std::vector<int> numbers{static_cast<int>(h->me), 7};
  co_await bring(h->at, own, std::span(numbers));
  co_await all.all_gather(std::span<const int>(own.data(), own.size()),
                          std::span<int>(everyones.data(), everyones.size()));
  const std::vector<int> gathered = co_await taken(h->at, everyones);
  for (rank_id r = 0; r < h->ranks; ++r) CHECK(gathered[2 * r] == static_cast<int>(r));
  const array<int> parts(h->at, 3 * h->ranks);
  const array<int> part(h->at, 3);
  std::vector<int> addends(parts.size());
  for (std::size_t i = 0; i < addends.size(); ++i) addends[i] = static_cast<int>(i * (h->me + 1));
  co_await bring(h->at, parts, std::span<const int>(addends));
  co_await all.reduce_scatter(std::span<int>(parts.data(), parts.size()), std::span<int>(part.data(), part.size()));
  const std::vector<int> scattered = co_await taken(h->at, part);
  for (std::size_t i = 0; i < scattered.size(); ++i)
    CHECK(scattered[i] == static_cast<int>((3 * h->me + i) * h->ranks * (h->ranks + 1) / 2));
  const array<int> told(h->at, 5);
  const std::vector<int> before(told.size(), static_cast<int>(h->me));
  co_await bring(h->at, told, std::span(before));
  co_await all.broadcast(std::span<int>(told.data(), told.size()));
  const std::vector<int> after = co_await taken(h->at, told);
  CHECK(after == std::vector<int>(told.size(), 0));
}

// ---- 7: a function with two kernels

/// A kernel, whatever it runs on, and a wait, by which configs differ.
inline task<> wait_for(place* at, const array<float>* x, time_ns span, std::vector<std::size_t>* order,
                       std::size_t config) {
  order->push_back(config);
  at->compute(kernels::linear{at->seen(*x), at->seen(*x), nullptr, 1, 1}, x->size());
  co_await at->reached();
  auto woken = co_await sleep_for(span);
  static_cast<void>(woken);
}

using waiting_kernel = tunable_op<task<>(int)>;

inline waiting_kernel kernel_of(here* h, const array<float>* x, std::string name, std::vector<time_ns> takes,
                                std::vector<std::size_t>* order) {
  waiting_kernel::options o;
  o.name = std::move(name);
  for (std::size_t c = 0; c < takes.size(); ++c)
    o.implementations.push_back(
        {"config_" + std::to_string(c), [=](int) { return wait_for(&h->at, x, takes[c], order, c); }});
  return waiting_kernel(h->self.kernels(), std::move(o));
}

inline task<> both(waiting_kernel* first, waiting_kernel* second) {
  co_await (*first)(8);
  co_await (*second)(8);
}

// Which config is the best is left to the machine: all ranks have to say the same, and to run it.
inline task<> contextual_table(here* h) {
  std::vector<std::size_t> ran_0;
  std::vector<std::size_t> ran_1;
  const array<float> calls_0(h->at, 8);
  const array<float> calls_1(h->at, 8);
  const std::vector<float> zeros(8);
  co_await bring(h->at, calls_0, std::span(zeros));
  co_await bring(h->at, calls_1, std::span(zeros));
  auto kernel_0 = kernel_of(h, &calls_0, "kernel-0", {4_ms, 1_ms}, &ran_0);
  auto kernel_1 = kernel_of(h, &calls_1, "kernel-1", {4_ms, 1_ms, 8_ms}, &ran_1);
  contextual layer(h->self, {.name = "layer", .iterations = 2, .log_folder = "", .timeout_ns = h->patience});
  const auto thunk = [&] { return both(&kernel_0, &kernel_1); };
  co_await layer.run(thunk);
  CHECK(layer.end().runs() == 7);
  const auto best_of = [&](const char* kernel) {
    return static_cast<std::size_t>(layer.end().best(kernel, "all").back() - '0');
  };
  const std::size_t best_0 = best_of("kernel-0");
  const std::size_t best_1 = best_of("kernel-1");
  CHECK(ran_0 == std::vector<std::size_t>{0, 0, 1, 1, best_0, best_0, best_0});
  CHECK(ran_1 == std::vector<std::size_t>{0, 0, 1, 1, 2, 2, best_1});
  co_await layer.run(thunk);
  CHECK(layer.end().runs() == 8);
  CHECK(ran_0.back() == best_0);
  CHECK(ran_1.back() == best_1);
  const std::vector<float> counted_0 = co_await taken(h->at, calls_0);
  const std::vector<float> counted_1 = co_await taken(h->at, calls_1);
  CHECK(counted_0 == std::vector<float>(8, static_cast<float>(ran_0.size())));
  CHECK(counted_1 == std::vector<float>(8, static_cast<float>(ran_1.size())));
  const double mine = static_cast<double>(10 * best_0 + best_1);
  const double sum = co_await total(h, mine);
  CHECK(sum == mine * h->ranks);
}

/// A kernel whose configs fail on some ranks; called several times in a run.
inline task<> fail_or_wait(here* h, std::size_t config, std::vector<std::vector<rank_id>> fails, time_ns takes) {
  co_await wait_here(takes);
  if (config < fails.size() && std::count(fails[config].begin(), fails[config].end(), h->me) != 0)
    raise({errc::unavailable, "out of registers"});
}
inline waiting_kernel failing_kernel(here* h, std::string name, const std::vector<std::vector<rank_id>>& fails) {
  waiting_kernel::options o;
  o.name = std::move(name);
  const std::array<time_ns, 3> takes{6_ms, 1_ms, 3_ms};
  for (std::size_t c = 0; c < takes.size(); ++c)
    o.implementations.push_back(
        {"config_" + std::to_string(c), [=](int) { return fail_or_wait(h, c, fails, takes[c]); }});
  return waiting_kernel(h->self.kernels(), std::move(o));
}
inline task<> twice(waiting_kernel* kernel) {
  co_await (*kernel)(8);
  co_await (*kernel)(8);
}

inline task<> contextual_failures(here* h) {
  std::vector<rank_id> everywhere(h->ranks);
  std::iota(everywhere.begin(), everywhere.end(), rank_id{0});
  const std::string folder =
      h->is_virtual()
          ? std::string(".autotune_logs")
          : (std::filesystem::temp_directory_path() / ("parley-worked-" + std::to_string(::getpid()))).string();
  std::map<std::string, std::string> chosen_of;
  struct failing {
    const char* name;
    std::vector<std::vector<rank_id>> fails;
    const char* best;  // none: there is none
  };
  for (const failing& f : {failing{"fails on one", {{}, {h->ranks - 1}}, "config_2"},
                           failing{"fails as the last one", {{}, {}, everywhere}, "config_1"},
                           failing{"fails as all", {everywhere, {0}, everywhere}, nullptr}}) {
    auto kernel = failing_kernel(h, f.name, f.fails);
    contextual layer(h->self, {.name = std::string("layer that ") + f.name,
                               .iterations = 2,
                               .log_folder = folder,
                               .timeout_ns = h->patience});
    const auto thunk = [&kernel] { return twice(&kernel); };
    auto outcome = co_await attempt(layer.run(thunk));
    if (f.best == nullptr) {
      CHECK(outcome.code() == errc::config_failed);
      CHECK(says(outcome, "cannot find valid config"));
      continue;
    }
    CHECK(outcome);
    CHECK(layer.end().runs() == 4);  // six steps, two in each run, and the one that counts
    const std::string best = layer.end().best(f.name, "all");
    REQUIRE_FALSE(best.empty());
    if (h->is_virtual()) CHECK(best == f.best);
    const auto chosen = static_cast<std::size_t>(best.back() - '0');
    CHECK((chosen >= f.fails.size() || f.fails[chosen].empty()));
    const double sum = co_await total(h, static_cast<double>(chosen));
    CHECK(sum == static_cast<double>(chosen * h->ranks));
    chosen_of[f.name] = best;
  }
  storage* const disk = h->self.kernels().disk();
  if (disk == nullptr) co_return;
  const std::string me = std::to_string(h->me);
  const auto log = disk->read(folder + "/rank-" + me + ".log");
  if (!h->is_virtual()) {
    std::error_code others_are_there;
    std::filesystem::remove(folder + "/rank-" + me + ".log");
    std::filesystem::remove(folder, others_are_there);
  }
  REQUIRE(log);
  const std::string of_kernel = "[rank-" + me + "] func: fails as the last one | key: {all} | ";
  const std::string& best = chosen_of["fails as the last one"];
  for (const std::string& line :
       {std::string("config-id: 0 | config: {config_0} | measure-iter: 0\n"),
        std::string("config-id: 1 | config: {config_1} | measure-iter: 1 | config-1 average latency: "),
        "best-config-id: " + best.substr(best.size() - 1) + " | best-config: {" + best + "} | best-latency: "})
    CHECK_MESSAGE(log->find(of_kernel + line) != std::string::npos, *log);
}

// ---- 8: ranks that lack a config

inline task<> mixture(here* h, std::string wire_of_optimized) {
  using namespace mixture_case;
  machine_room room;
  leader_worker op = led_by(0, {});
  op.name = "mixed with " + wire_of_optimized;
  op.timeout_ns = h->patience;
  const std::vector<group_config_ptr> configs{
      std::make_shared<timed_star>(room, h->self.where(), "nccl", "wire",
                                   std::vector<time_ns>{10'500_us, 10'500_us, 4'000_us, 4'000_us}),
      std::make_shared<timed_star>(room, h->self.where(), "cuda_graph", "wire", everywhere(12'300_us)),
      std::make_shared<timed_star>(room, h->self.where(), "h100_optimized", wire_of_optimized,
                                   std::vector<time_ns>{2'700_us, 2'500_us, 60_s, 60_s})};
  const auto h100 = [](rank_id r) { return std::vector<bool>{true, true, r < 2}; };
  const rank_group mixed = register_heterogeneous_autotuning(h->self, op, configs, h100);
  bool enough = false;
  for (const deadline limit; !enough;) {
    for (int i = 0; i < 10; ++i) {
      std::vector<float> x = contribution(h->me, 1000);
      rank_group by = mixed;
      co_await by.all_reduce(std::span(x));
      CHECK(wrong_sums(x, h->ranks) == 0);
    }
    enough = co_await on_all_ranks(h, mixed.decision(4'000).decided || limit.is_over());
  }
  // In one wire class ranks 2 and 3 run their own beside the others' h100_optimized; in another one nobody runs it.
  const int optimized = room.ran["h100_optimized"][h->me];
  const int own = room.ran["nccl"][h->me];
  const bool shared = wire_of_optimized == "wire";
  CHECK((optimized > 0) == (shared && h->me < 2));
  check_choice(h, mixed.decision(4'000), shared ? "h100_optimized" : "nccl");
  const double all_optimized = co_await total(h, optimized);
  const double of_0 = co_await total(h, h->me == 0 ? own + optimized : 0);
  const double of_2 = co_await total(h, h->me == 2 ? own : 0);
  if (h->is_virtual()) CHECK(of_0 == of_2);
  if (h->me < 2) CHECK(all_optimized == 2 * optimized);
}

// ---- 6: many sizes

/// 20 sizes of one op, with the noise that the machine has: every rank knows every decision, and no two disagree.
inline task<> twenty_keys(here* h) {
  leader_worker op = led_by(0, {star(), chain(4'096), tree()});
  op.name = "in twenty sizes";
  op.timeout_ns = h->patience;
  const rank_group all = h->self.declare(op);
  constexpr std::size_t keys = 20;
  std::vector<float> x(std::size_t{1} << (keys - 1));
  bool enough = false;
  for (const deadline limit; !enough;) {
    bool decided = true;
    for (std::size_t key = 0; key < keys; ++key) {
      const std::span<float> mine = std::span(x).first(std::size_t{1} << key);
      decided = decided && all.decision(mine.size_bytes()).decided;
      for (int i = 0; i < 5; ++i) {
        std::fill(mine.begin(), mine.end(), 1.0F);
        rank_group by = all;
        co_await by.all_reduce(mine);
        CHECK(mine.back() == static_cast<float>(h->ranks));
      }
    }
    enough = co_await on_all_ranks(h, decided || limit.is_over());
  }
  int unlike = 0;
  for (std::size_t key = 0; key < keys; ++key) {
    const decision d = all.decision(sizeof(float) << key);
    CHECK(d.decided);
    const auto its =
        std::find_if(op.configs.begin(), op.configs.end(), [&](const auto& c) { return c->id() == d.config; });
    const auto place = static_cast<double>(its - op.configs.begin());
    const double sum = co_await total(h, place);
    unlike += sum == place * h->ranks ? 0 : 1;
  }
  CHECK(unlike == 0);
}

/// A sum on GPUs, and then a wait of each rank's own.
class waiting_sum final : public symmetric_config {
 public:
  waiting_sum(const char* name, gpu_sum::way how, time_ns on_first, time_ns on_others)
      : symmetric_config({.name = name, .wire_class = name}), how_(how), on_first_(on_first), on_others_(on_others) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    ++runs;
    co_await dynamic_cast<gpu_world&>(*call.over).run({how_, data, 8});
    co_await wait_here(call.self == 0 ? on_first_ : on_others_);
  }
  mutable int runs = 0;

 private:
  gpu_sum::way how_;
  time_ns on_first_;
  time_ns on_others_;
};

/// Calls until all ranks know what was decided on, which is the same.
inline task<decision> sum_until_decided(here* h, symmetric sums) {
  const array<float> x(h->at, 10'000);
  bool enough = false;
  for (const deadline limit; !enough;) {
    for (int i = 0; i < 5; ++i) {
      const std::vector<float> mine = contribution(h->me, x.size());
      co_await bring(h->at, x, std::span(mine));
      h->at.compute(kernels::linear{h->at.seen(x), h->at.seen(x), nullptr, 2, 0}, x.size());
      h->at.before_messages(x.bytes());
      co_await sums.run(x.bytes());
      std::vector<float> sum = co_await taken(h->at, x);
      for (float& s : sum) s /= 2;
      CHECK(wrong_sums(sum, h->ranks) == 0);
    }
    enough = co_await on_all_ranks(h, sums.decision(x.bytes().size()).decided || limit.is_over());
  }
  const decision d = sums.decision(x.bytes().size());
  CHECK(d.decided);
  const auto mine = static_cast<double>(d.digest % 1'000'003);
  const double all = co_await total(h, mine);
  CHECK(all == mine * h->ranks);
  co_return d;
}

inline task<> heterogeneous_sums(here* h) {
  gpu_world_source::options with = h->gpu_sums.with;
  with.kernel_bytes = 10'000 * sizeof(float);
  const auto source = std::make_shared<gpu_world_source>(h->self, "on GPUs", *h->gpu_sums.copies, with);
  const std::shared_ptr<communicator> world = co_await source->connect_all();
  symmetric_op op;
  op.name = "on GPUs";
  op.over = world;
  op.rehearse = source;
  op.timeout_ns = h->patience;
  op.memory = h->at.memory();
  op.configs = default_first(*world, {nccl_sum(), nccl_graph_sum(), kernel_sum(), gathered_sum(8), gathered_sum(32)});
  const symmetric every_way = h->self.declare(op);
  const decision d = co_await sum_until_decided(h, every_way);
  // What some member lacks is left out on all, which know why.
  CHECK(d.evidence.size() == op.configs.size());
  for (const auto& e : d.evidence) {
    const auto its = std::ranges::find(op.configs, e.config, [](const auto& c) { return c->id(); });
    REQUIRE(its != op.configs.end());
    const auto works = (*its)->works_over(world.get());
    CAPTURE(e.config);
    CHECK_MESSAGE((works || (e.status != "measured" && e.detail.find(works.reason().text()) != std::string::npos)),
                  e.detail);
  }
  // Half of the ranks lack the fastest, and the longest time of all ranks counts.
  const auto how = dynamic_cast<gpu_world&>(*world).lacks(gpu_sum::way::gathered).empty() ? gpu_sum::way::gathered
                                                                                          : gpu_sum::way::nccl;
  const auto optimized = std::make_shared<waiting_sum>("h100_optimized", how, 100_us, 100_us);
  op.name = "with half of an H100";
  op.configs = {std::make_shared<waiting_sum>("nccl", how, 12_ms, 12_ms),
                std::make_shared<waiting_sum>("cuda_graph", how, 6_ms, 6_ms),
                std::make_shared<waiting_sum>("uneven", how, 100_us, 20_ms), optimized};
  op.capable = [half = h->ranks / 2](rank_id r) { return std::vector<bool>{true, true, true, r < half}; };
  const symmetric mixed = h->self.declare(op);
  const decision agreed = co_await sum_until_decided(h, mixed);
  CHECK(agreed.config == "cuda_graph");
  CHECK(optimized->runs == 0);
}

// ---- calls that do not fit together

// Every rank that makes one is told, by the name of the op and of who differs, before anything is written beside what the op's contract
// leaves undefined, and long before the time of the call is over. A GPU's messages are compared by the same code; but what it has in common
// with a neighbour, such as a schedule, it does not compare, as that would be a message from host memory.
inline constexpr time_ns time_of_unlike_ns = 20'000'000'000;

inline void check_told(const result<>& outcome, errc why, std::initializer_list<std::string> words) {
  CAPTURE((outcome ? std::string("it went well") : outcome.reason().what()));
  CHECK(outcome.code() == why);
  for (const std::string& each : words) CHECK_MESSAGE(says(outcome, each), each);
}

inline std::string in_invocation(std::uint64_t number, here* h, const std::string& role) {
  return ", invocation " + std::to_string(number) + ", on rank " + std::to_string(h->me) + " (" + role + ")";
}

/// Of each pair the second rank has no room for what comes, and then room for other elements; the third message comes.
inline task<> unlike_messages(dataflow& flow, here* h, p2p pairs) {
  constexpr std::size_t count = 300'000;  // more than leaves with its message
  const bool sends = h->me % 2 == 0;
  const rank_id peer = sends ? h->me + 1 : h->me - 1;
  const std::string role = sends ? "sender" : "receiver";
  guarded_place at;
  const array<float> numbers(at, count);
  const array<std::int32_t> others(at, count);
  std::fill(numbers.begin(), numbers.end(), sends ? 1.5F : -1.0F);
  std::fill(others.begin(), others.end(), 7);
  const std::span<float> floats = of(numbers);
  const std::span<std::int32_t> integers(others.data(), others.size());
  const auto before = at.contents();
  std::vector<result<>> outcomes;
  for (int i = 0; i < 3; ++i) {
    std::vector<p2p_operation> one;
    if (sends) {
      one.push_back(p2p::isend(floats, {.to = peer}));
    } else if (i == 1) {
      one.push_back(p2p::irecv(integers, {.from = peer}));
    } else {
      one.push_back(p2p::irecv(i == 0 ? floats.first(count - 1) : floats, {.from = peer}));
    }
    auto moving = pairs.start(flow, one);
    const result<> how = co_await outcome_of(std::move(moving));
    outcomes.push_back(how);
    if (i < 2) CHECK(at.contents() == before);
  }
  check_told(outcomes[0], errc::buffer_too_small,
             {in_invocation(0, h, role), "a buffer of 1199996 bytes", "the message of 1200000 bytes"});
  check_told(outcomes[1], errc::declaration_mismatch,
             {in_invocation(1, h, role), "which is for i32 elements, and the message has f32 elements"});
  CHECK(outcomes[2]);
  CHECK(std::all_of(floats.begin(), floats.end(), [](float x) { return x == 1.5F; }));
  CHECK(at.clean());
  co_await flow.join();
}

/// The last rank brings another size, and then other elements; the third sum is right.
inline task<> unlike_sums(here* h) {
  leader_worker op = led_by(0, {star()});
  op.name = "unlike sums";
  op.timeout_ns = time_of_unlike_ns;
  rank_group all = h->self.declare(op);
  constexpr std::size_t count = 30'000;
  const bool differs = h->me == h->ranks - 1;
  const std::string role = h->me == 0 ? "leader" : "worker";
  guarded_place at;
  const array<float> own_size(at, differs ? count - 1 : count);
  const array<float> usual(at, count);
  const array<std::int32_t> own_type(at, count);
  const std::vector<float> mine = contribution(h->me, count);
  std::copy_n(mine.begin(), own_size.size(), own_size.begin());
  std::copy(mine.begin(), mine.end(), usual.begin());
  std::fill(own_type.begin(), own_type.end(), 7);
  const auto before = at.contents();
  const result<> of_sizes = co_await attempt(all.all_reduce(of(own_size)));
  result<> of_types;
  if (differs) {
    of_types = co_await attempt(all.all_reduce(std::span<std::int32_t>(own_type.data(), count)));
  } else {
    of_types = co_await attempt(all.all_reduce(of(usual)));
  }
  check_told(of_sizes, errc::bad_argument,
             {"unlike sums 0->1", in_invocation(0, h, role), "called with another size than the others",
              "this rank has " + std::to_string(own_size.bytes().size()) + " bytes"});
  check_told(of_types, errc::declaration_mismatch,
             {"unlike sums 0->1", in_invocation(1, h, role), "f32 elements combined by plus",
              "i32 elements combined by plus"});
  CHECK(at.contents() == before);
  co_await all.all_reduce(of(usual));
  CHECK(wrong_sums({usual.begin(), usual.end()}, h->ranks) == 0);
  CHECK(at.clean());
}

/// Stages that leave the others the time to find out before the first activation leaves.
class slow_stages final : public training_work {
 public:
  std::uint64_t activation_bytes(std::uint32_t) const override { return 1'000; }
  task<> work(pipeline_action a, pipeline_memory) override {
    ++(a.what == pipeline_action::kind::forward ? forward : backward);
    co_await wait_here(50_ms);
  }
  int forward = 0;
  int backward = 0;
};
inline task<> run_pass(training pipe, training_work* stages) {
  auto report = co_await pipe.run(*stages);
  static_cast<void>(report);
}

/// The last stage has another schedule than the others; no pass follows.
inline task<> unlike_schedules(here* h) {
  const bool differs = h->me == h->ranks - 1;
  training_pipeline op;
  op.name = "unlike schedules";
  op.schedule = differs ? gpipe(h->ranks, 5) : one_forward_one_backward(h->ranks, 4);
  op.timeout_ns = time_of_unlike_ns;
  const training pipe = h->self.declare(op);
  slow_stages mine;
  const result<> how = co_await attempt(run_pass(pipe, &mine));
  check_told(how, errc::declaration_mismatch, {"op unlike schedules: ", "run schedules that differ, of "});
  CHECK(mine.backward == 0);
  if (differs) CHECK(mine.forward == 0);
  const int computed = mine.forward;
  co_await meet(h);
  const result<> next = co_await attempt(run_pass(pipe, &mine));
  check_told(next, errc::declaration_mismatch, {"op unlike schedules: a call has failed on rank "});
  CHECK(mine.forward == computed);
}

/// Eight elements of a rank, which say whose they are; the sixth and the seventh are ghosts.
struct part_of_mesh {
  explicit part_of_mesh(here* h) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = as_it_was[i] = 10.0 * h->me + static_cast<double>(i);
  }
  bool untouched(bool ghosts_too) const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool is_ghost = i == 5 || i == 6;
      if ((ghosts_too || !is_ghost) && all[i] != as_it_was[i]) return false;
    }
    return at.clean();
  }
  guarded_place at;
  array<double> all{at, 8};
  std::span<double> elements{all.data(), all.size()};
  std::array<double, 8> as_it_was{};
};
inline halo mesh_of(here* h, std::string name, std::vector<rank_id> neighbours) {
  halo_exchange op;
  op.name = std::move(name);
  op.neighbours = std::move(neighbours);
  op.timeout_ns = time_of_unlike_ns;
  return h->self.declare(op);
}

/// Of each two neighbours the second one sends and expects twice as much.
inline task<> unlike_rims(here* h) {
  const bool is_first = h->me % 2 == 0;
  const rank_id peer = is_first ? h->me + 1 : h->me - 1;
  const halo mesh = mesh_of(h, "unlike rims", {peer});
  part_of_mesh mine(h);
  const std::vector<std::uint64_t> sent = is_first ? std::vector<std::uint64_t>{1} : std::vector<std::uint64_t>{1, 2};
  halo_plan plan = mesh.plan({index_field(mine.elements, {sent}, {{5, 6}})});
  const result<> how = co_await attempt(with_dataflow(halo_case::exchange, &plan, 1, device_stream{}));
  const std::string who = "op unlike rims, rank " + std::to_string(h->me) + ": rank " + std::to_string(peer);
  check_told(how, errc::bad_argument,
             {who + (is_first ? " expects 16 bytes where this rank sends 8" : " sent 8 bytes where 16 were expected")});
  CHECK(mine.untouched(false));
}

/// Rank 0 lists rank 1, which lists nobody; others, who list each other, go on.
inline task<> asymmetric_neighbours(here* h) {
  const rank_id other = h->me % 2 == 0 ? h->me + 1 : h->me - 1;
  const halo mesh = mesh_of(h, "one-sided rims", h->me == 1 ? std::vector<rank_id>{} : std::vector<rank_id>{other});
  part_of_mesh mine(h);
  const std::vector<std::vector<std::uint64_t>> sent(h->me == 1 ? 0 : 1, {1, 2});
  const std::vector<std::vector<std::uint64_t>> ghosts(sent.size(), {5, 6});
  halo_plan plan = mesh.plan({index_field(mine.elements, sent, ghosts)});
  result<> how = co_await attempt(with_dataflow(halo_case::exchange, &plan, 1, device_stream{}));
  if (h->me > 1) {
    CHECK(how);
    CHECK(mine.elements[5] == 10.0 * other + 1);
    co_return;
  }
  // Who expects nothing hears of it when it next looks.
  for (const deadline limit; how && !limit.is_over();) {
    co_await wait_here(10_ms);
    how = co_await attempt(with_dataflow(halo_case::exchange, &plan, 1, device_stream{}));
  }
  const std::string why =
      "op one-sided rims: rank 0 has rank 1 as a neighbour, and rank 1 has none as its own; let both name each other";
  check_told(how, errc::declaration_mismatch, {why});
  const result<> next = co_await attempt(with_dataflow(halo_case::exchange, &plan, 1, device_stream{}));
  check_told(next, errc::declaration_mismatch, {why});
  CHECK(mine.untouched(true));
}

/// The last rank has another mask; no call follows.
inline task<> unlike_masks(here* h) {
  using namespace attention_case;
  ring_attention op;
  op.name = "unlike masks";
  op.timeout_ns = time_of_unlike_ns;
  ops::attention in_ring = h->self.declare(op);
  const problem<float> whole;
  const part<float> mine(whole, h->ranks, h->me);
  const rank_id last = h->ranks - 1;
  const attention_shape shape{heads, sequence / h->ranks, dimensions, h->me == last};
  guarded_place at;
  const array<float> out(at, shape.elements());
  std::fill(out.begin(), out.end(), 9.0F);
  const auto before = at.contents();
  const result<> how = co_await attempt(in_ring.forward<float>(shape, mine.q, mine.k, mine.v, of(out)));
  check_told(how, errc::declaration_mismatch, {"op unlike masks: "});
  if (h->me == last || h->me + 1 == last || h->me == 0)
    check_told(how, errc::declaration_mismatch, {"dimensions, full", "dimensions, causal"});
  co_await meet(h);
  const result<> next = co_await attempt(in_ring.forward<float>(shape, mine.q, mine.k, mine.v, of(out)));
  check_told(next, errc::declaration_mismatch, {"op unlike masks: "});
  CHECK(at.contents() == before);
  CHECK(at.clean());
}

inline task<> messages_that_differ(here* h) {
  point_to_point op;
  op.name = "unlike messages";
  op.timeout_ns = time_of_unlike_ns;
  const p2p pairs = h->self.declare(op);
  co_await with_dataflow(unlike_messages, h, pairs);
}

inline task<> mismatches(here* h) {
  for (const auto& of_one_kind :
       {messages_that_differ, unlike_sums, unlike_schedules, unlike_rims, asymmetric_neighbours, unlike_masks}) {
    co_await meet(h);
    const call_stopwatch since(h);
    co_await of_one_kind(h);
    CHECK(since.took() < time_of_unlike_ns / 4);
    co_await meet(h);
  }
}

// ---- all of them

struct one_case {
  const char* name;
  task<> (*run)(here* h);
  bool (*is_for)(const here* h);
};
inline bool for_up_to_4(const here* h) { return h->ranks <= 4; }
inline bool for_4(const here* h) { return h->ranks == 4; }
inline bool for_up_to_8(const here* h) { return h->ranks <= 8; }
inline bool for_all(const here*) { return true; }
inline bool for_gpus(const here* h) { return h->gpu_sums.copies != nullptr; }

inline const std::vector<one_case>& all_cases() {
  static const std::vector<one_case> all{
      {"ring", ring, for_up_to_4},
      {"batches", batches, for_up_to_4},
      {"pipelines", pipelines, for_up_to_4},
      {"transfers", transfers, for_up_to_4},
      {"jacobi", jacobi, for_up_to_4},
      {"more_than_faces", more_than_faces, for_up_to_4},
      {"contextual_table", contextual_table, for_up_to_4},
      {"late_stage", late_stage, for_up_to_4},
      {"traps", traps, for_up_to_4},
      {"contextual_failures", contextual_failures, for_up_to_4},
      {"mismatches", mismatches, for_up_to_4},
      {"mixture on one wire", [](here* h) { return mixture(h, "wire"); }, for_4},
      {"mixture on another wire", [](here* h) { return mixture(h, "another"); }, for_4},
      {"twenty_keys", twenty_keys, for_4},
      {"attention_around", attention_around, for_up_to_8},
      {"sums_of_a_group", sums_of_a_group, for_up_to_8},
      {"sums", sums, for_all},
      {"heterogeneous_sums", heterogeneous_sums, for_gpus},
  };
  return all;
}

inline task<> cases(here* h) {
  for (const one_case& c : all_cases()) {
    if (!c.is_for(h)) continue;
    if (h->on_case) h->on_case(c.name);
    co_await c.run(h);
  }
}

inline task<> guarded(here* h) {
  std::exception_ptr thrown;
  try {
    co_await cases(h);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (thrown) FAIL_CHECK("rank " << h->me << ": " << describe(thrown).what());
}

}  // namespace parley::tests::worked_cases

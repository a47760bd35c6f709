#pragma once
/// Worked cases in which calls do not fit together.
///
/// Every rank that makes such a call gets an error that names the op and the rank that differs, long before the call's timeout. Nothing is
/// written except what the op's contract leaves undefined. Messages of a GPU are compared by the same code. But a rank on a GPU does not
/// compare what it shares with a neighbour, such as a schedule, because that would be a message from host memory.
#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/cases/attention_case.hpp>
#include <parley/tests/support/cases/halo_case.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/guarded.hpp>
#include <parley/tests/support/place.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/collective.hpp>
#include <parley/error.hpp>
#include <parley/group_config.hpp>
#include <parley/halo.hpp>
#include <parley/p2p.hpp>
#include <parley/ring_attention.hpp>
#include <parley/schedule.hpp>
#include <parley/task.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

inline constexpr time_ns time_of_unlike_ns = 20'000'000'000;

inline void check_told(const result<>& outcome, errc why, std::initializer_list<std::string> words) {
  CAPTURE((outcome ? std::string("it went well") : outcome.reason().what()));
  CHECK(outcome.code() == why);
  for (const std::string& each : words) CHECK_MESSAGE(says(outcome, each), each);
}

inline std::string in_invocation(std::uint64_t number, here* h, const std::string& role) {
  return ", invocation " + std::to_string(number) + ", on rank " + std::to_string(h->me) + " (" + role + ")";
}

/// The second rank of each pair first has a buffer that is too small, and then one of other elements. It receives the third message.
inline task<> unlike_messages(dataflow& flow, here* h, p2p pairs) {
  constexpr std::size_t count = 300'000;  // too large for an eager message
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
             {in_invocation(1, h, role), "which is for i32 elements, but the message has f32 elements"});
  CHECK(outcomes[2]);
  CHECK(std::all_of(floats.begin(), floats.end(), [](float x) { return x == 1.5F; }));
  CHECK(at.clean());
  co_await flow.join();
}

/// The last rank calls with another size, and then with other elements. The third sum is right.
inline task<> unlike_sums(here* h) {
  collective_options op = led_by(0, {star()});
  op.name = "unlike sums";
  op.timeout = std::chrono::nanoseconds(time_of_unlike_ns);
  collective all(h->self, op);
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

/// Stages so slow that the other ranks find the difference before the first activation is sent.
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
inline task<> run_pass(training_pipeline pipe, training_work* stages) {
  auto report = co_await pipe.run(*stages);
  static_cast<void>(report);
}

/// The last stage has another schedule than the others; no pass follows.
inline task<> unlike_schedules(here* h) {
  const bool differs = h->me == h->ranks - 1;
  training_pipeline_options op;
  op.name = "unlike schedules";
  op.schedule = differs ? gpipe(h->ranks, 5) : one_forward_one_backward(h->ranks, 4);
  op.timeout = std::chrono::nanoseconds(time_of_unlike_ns);
  const training_pipeline pipe(h->self, op);
  slow_stages mine;
  const result<> how = co_await attempt(run_pass(pipe, &mine));
  check_told(how, errc::declaration_mismatch, {"op unlike schedules: ", "run schedules that differ"});
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
  halo_options op;
  op.name = std::move(name);
  op.neighbours = std::move(neighbours);
  op.timeout = std::chrono::nanoseconds(time_of_unlike_ns);
  return halo(h->self, op);
}

/// The second of each two neighbours sends twice as much as the first, and both expect that much.
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

/// Rank 0 lists rank 1, which lists no rank. The others, which list each other, go on.
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
  // A rank that expects nothing learns of it at one of its next exchanges.
  for (const deadline limit; how && !limit.is_over();) {
    co_await wait_here(10_ms);
    how = co_await attempt(with_dataflow(halo_case::exchange, &plan, 1, device_stream{}));
  }
  const std::string why = "op one-sided rims: rank 0 has rank 1 as a neighbour, but rank 1's neighbours are none; list "
                          "each as a neighbour of the other";
  check_told(how, errc::declaration_mismatch, {why});
  const result<> next = co_await attempt(with_dataflow(halo_case::exchange, &plan, 1, device_stream{}));
  check_told(next, errc::declaration_mismatch, {why});
  CHECK(mine.untouched(true));
}

/// The last rank has another mask; no call follows.
inline task<> unlike_masks(here* h) {
  using namespace attention_case;
  ring_attention_options op;
  op.name = "unlike masks";
  op.timeout = std::chrono::nanoseconds(time_of_unlike_ns);
  ring_attention in_ring(h->self, op);
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
  p2p_options op;
  op.name = "unlike messages";
  op.timeout = std::chrono::nanoseconds(time_of_unlike_ns);
  const p2p pairs(h->self, op);
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

}  // namespace parley::tests::worked_cases

#pragma once
/// CASES section 1: one rank's part of the two-round ring, on any place.
#include <parley/tests/support/place.hpp>

#include <parley/compute.hpp>
#include <parley/config.hpp>
#include <parley/dataflow.hpp>
#include <parley/p2p.hpp>
#include <parley/rank.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::ring_case {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

inline constexpr float c = 1.000244140625F;

inline p2p_options pairs_named(std::string name) {
  p2p_options op;
  op.name = std::move(name);
  op.configs = {direct(), chunked(4_KiB, 2), chunked(64_KiB, 4)};
  op.timeout = 1s;
  return op;
}

// The dependency that is left out of the program, to show that it is needed.
enum class lacks : std::uint8_t { nothing, reading_y0, reading_y1 };

struct kernel {
  explicit kernel(std::size_t n = 1, place& where = on_host())
      : at(where), x0(at, n), t0(at, n), y0(at, n), a(at, n), t1(at, n), y1(at, n), out(at, n) {}
  place& at;
  array<float> x0, t0, y0, a, t1, y1, out;
};

struct ring_options {
  lacks what = lacks::nothing;
  std::uint64_t receives_first = 0;  // bit r: rank r posts its receives before its sends
  rank_id late_rank = 99;
  time_ns late_ns = 0;
};

inline task<> two_rounds(dataflow& flow, ops::rank* self, p2p ring, kernel* k, ring_options o) {
  if (self->id() == o.late_rank) {
    auto slept = co_await sleep_until(self->where().deadline_in(o.late_ns));
    static_cast<void>(slept);
  }
  const rank_id world = self->world_size();
  const rank_id next = (self->id() + 1) % world;
  const rank_id previous = (self->id() + world - 1) % world;
  place& at = k->at;
  const auto batch = [&](const array<float>& from, const array<float>& to) {
    std::vector<p2p_operation> both{p2p::isend(from, {.to = next}), p2p::irecv(to, {.from = previous})};
    if ((o.receives_first >> self->id() & 1) != 0) std::swap(both[0], both[1]);
    return ring.start(flow, both, {.stream = at.stream()});
  };
  const auto uses = [](std::initializer_list<buffer_access> all, bool first_too) {
    return std::vector<buffer_access>(first_too ? all.begin() : all.begin() + 1, all.end());
  };
  const auto scaled = [&](const array<float>& to, const array<float>& x, float factor, float term) {
    at.compute(flow, {reads(x), writes(to)}, kernels::linear{at.seen(to), at.seen(x), nullptr, factor, term}, x.size());
  };
  const auto sum = [&](const array<float>& to, const array<float>& y, const array<float>& x, bool reading_y) {
    at.compute(flow, uses({reads(y), reads(x), writes(to)}, reading_y),
               kernels::linear{at.seen(to), at.seen(x), at.seen(y), 1, 0}, x.size());
  };
  static_cast<void>(batch(k->x0, k->y0));
  scaled(k->t0, k->x0, 2, 1);
  sum(k->a, k->y0, k->t0, o.what != lacks::reading_y0);
  static_cast<void>(batch(k->a, k->y1));
  scaled(k->t1, k->a, c, 0);
  sum(k->out, k->y1, k->t1, o.what != lacks::reading_y1);
}

inline const std::vector<float> right_of_four{13.0009765625F, 7.000732421875F, 9.00146484375F, 15.002197265625F};

}  // namespace parley::tests::ring_case

#pragma once
/// CASES section 1: one rank's part of the two-round ring, whatever it runs on.
#include <parley/ops/p2p.hpp>
#include <parley/ops/rank.hpp>
#include <parley/runtime/dataflow.hpp>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::ring_case {

using namespace parley::ops;
using namespace parley::runtime;

inline constexpr float c = 1.000244140625F;

inline point_to_point pairs_named(std::string name) {
  point_to_point op;
  op.name = std::move(name);
  op.configs = {direct(), chunked(4_KiB, 2), chunked(64_KiB, 4)};
  op.timeout_ns = 1'000'000'000;
  return op;
}

// What is taken out of the program, to see what it was good for.
enum class lacks : std::uint8_t { nothing, reading_y0, reading_y1 };
enum class posting : std::uint8_t { sends_first, receives_first, all_before_computing };

struct kernel {
  explicit kernel(std::size_t n = 1) : x0(n), t0(n), y0(n), a(n), t1(n), y1(n), out(n) {}
  std::vector<float> x0, t0, y0, a, t1, y1, out;
  void twice_x() {
    each([this](std::size_t i) { t0[i] = 2 * x0[i] + 1; });
  }
  void add_first() {
    each([this](std::size_t i) { a[i] = y0[i] + t0[i]; });
  }
  void times_c() {
    each([this](std::size_t i) { t1[i] = a[i] * c; });
  }
  void add_second() {
    each([this](std::size_t i) { out[i] = y1[i] + t1[i]; });
  }

 private:
  template <class F>
  void each(F f) {
    for (std::size_t i = 0; i < out.size(); ++i) f(i);
  }
};

struct ring_options {
  lacks what = lacks::nothing;
  posting how = posting::sends_first;
  rank_id late_rank = 99;
  time_ns late_ns = 0;
};

inline task<> two_rounds(dataflow& flow, ops::rank* self, p2p ring, kernel* k, ring_options o) {
  if (self->id() == o.late_rank) {
    auto slept = co_await sleep_until(self->where().now() + o.late_ns);
    static_cast<void>(slept);
  }
  const rank_id world = self->world_size();
  const rank_id next = (self->id() + 1) % world;
  const rank_id previous = (self->id() + world - 1) % world;
  const auto batch = [&](std::vector<float>& from, std::vector<float>& to) {
    std::vector<p2p_operation> both{p2p::isend(from, {.to = next}), p2p::irecv(to, {.from = previous})};
    if (o.how == posting::receives_first) std::swap(both[0], both[1]);
    return ring.start(flow, both);
  };
  const auto uses = [](std::initializer_list<buffer_access> all, bool first_too) {
    return std::vector<buffer_access>(first_too ? all.begin() : all.begin() + 1, all.end());
  };
  const auto compute = [&](const std::vector<buffer_access>& named, auto f) {
    auto step = new_step<compute_step<decltype(f)>>(f, compute_options{.modelled_ns = 500});
    return flow.add(std::move(step), named);
  };
  auto first = batch(k->x0, k->y0);
  auto t0 = compute({reads(k->x0), writes(k->t0)}, [k] { k->twice_x(); });
  auto a =
      compute(uses({reads(k->y0), reads(k->t0), writes(k->a)}, o.what != lacks::reading_y0), [k] { k->add_first(); });
  auto second = batch(k->a, k->y1);
  auto t1 = compute({reads(k->a), writes(k->t1)}, [k] { k->times_c(); });
  auto out = compute(uses({reads(k->y1), reads(k->t1), writes(k->out)}, o.what != lacks::reading_y1),
                     [k] { k->add_second(); });
  co_await out;
}

inline const std::vector<float> right_of_four{13.0009765625F, 7.000732421875F, 9.00146484375F, 15.002197265625F};

}  // namespace parley::tests::ring_case

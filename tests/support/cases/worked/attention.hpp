#pragma once
/// Worked case 5, in part: attention around a ring.
#include <parley/tests/support/cases/attention_case.hpp>
#include <parley/tests/support/cases/worked/each_config.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/place.hpp>

#include <parley/config.hpp>
#include <parley/registered_memory.hpp>
#include <parley/ring_attention.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

/// One rank's arrays on a device, which stay from call to call, and a kernel for each block.
template <class T>
class attention_on_device {
 public:
  attention_on_device(here* h, const ops::ring_attention& in_ring, const attention_shape& shape)
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

/// Number of messages that have arrived since the flight recorder had `before` records, without those of rehearsals.
inline std::ptrdiff_t received_since(here* h, std::uint64_t before) {
  constexpr unsigned rehearsal = 4;
  const std::vector<flight_record> all = h->self.flight().in_order();
  const auto fresh = static_cast<std::ptrdiff_t>(h->self.flight().total() - before);
  return std::count_if(all.end() - fresh, all.end(), [](const flight_record& r) {
    return r.what == flight_event::received && (r.flags & rehearsal) == 0;
  });
}

/// Keys and values differ in each round, so that values left from the round before are wrong.
template <class T>
struct rounds_of_attention {
  here* h;
  ops::ring_attention in_ring;
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
      CHECK(received_since(h, before) == 2 * (h->ranks - 1));  // keys and values, P - 1 times, also of skipped blocks
    } else {
      auto& device = all->on_device[causal ? 1 : 0];
      if (device == nullptr) device = std::make_unique<attention_on_device<T>>(h, all->in_ring, shape);
      // One rank is late, as in the worked case of the ring.
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
  ring_attention_options op;
  op.name = "attention of " + elements;
  op.configs = h->with_others({direct(), chunked(512, 2)});
  op.timeout = std::chrono::nanoseconds(h->patience);
  op.memory = h->at.memory();
  ring_attention in_ring(h->self, op);
  rounds_of_attention<T> all{h, in_ring};
  const auto both_masks = [&all] { return attend_with_both_masks(&all); };
  co_await until_each_ran(h, op.name, both_masks);
}

inline task<> attention_around(here* h) {
  co_await attention_of<double>(h, "double");
  co_await attention_of<float>(h, "float");
  co_await attention_of<bf16>(h, "bf16");
}

}  // namespace parley::tests::worked_cases

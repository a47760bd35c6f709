#pragma once
/// Random schedules among all that `check` accepts: any number of stages on a rank, in any places, and any order of computations, sends and
/// receives that can complete. A schedule is a pure function of the seed.
///
///     const pipeline_schedule s = legal_schedule(seed);
#include <parley/runtime/random.hpp>
#include <parley/schedule.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace parley::tests {

using ops::pipeline_action;
using ops::pipeline_schedule;

class drawn_schedule {
 public:
  explicit drawn_schedule(std::uint64_t seed) : dice_(seed, 17) {
    made.ranks.resize(1 + below(4));
    made.stages = static_cast<std::uint32_t>(made.ranks.size()) + below(4);
    made.microbatches = 1 + below(5);
    if (below(2) == 0) place_stages();
    for (std::uint32_t s = 0; s + 1 < made.stages; ++s) {
      for (auto* const orders : {&forward_, &backward_}) orders->push_back(microbatches_in_some_order());
    }
    done_.resize(place_of(made.stages, kind::forward, 0));
    count_.resize(done_.size());
    // Weights delay some kinds of actions: a schedule may send at once or as late as it can, and post its receives early or late.
    for (auto& weight : weights_) weight = std::array{1U, 1U, 8U, 64U}[below(4)];
    for (const pipeline_action* next = draw(); next != nullptr; next = draw()) list(*next);
  }
  pipeline_schedule made;

 private:
  using kind = pipeline_action::kind;
  std::uint32_t below(std::size_t bound) { return static_cast<std::uint32_t>(dice_.below(bound)); }
  template <class T>
  void shuffle(std::vector<T>& all) {
    for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[below(i)]);
  }
  // Each rank gets at least one stage.
  void place_stages() {
    for (std::uint32_t s = 0; s < made.stages; ++s)
      made.places.push_back(s < made.ranks.size() ? s : below(made.ranks.size()));
    shuffle(made.places);
  }
  // The order in which the microbatches cross one boundary in one direction.
  std::vector<std::uint32_t> microbatches_in_some_order() {
    std::vector<std::uint32_t> order(made.microbatches);
    std::iota(order.begin(), order.end(), 0U);
    if (below(2) == 0) shuffle(order);
    return order;
  }
  std::size_t place_of(std::uint32_t stage, kind what, std::uint32_t m) const {
    return (stage * weights_.size() + static_cast<std::size_t>(what)) * made.microbatches + m;
  }
  bool listed(std::uint32_t stage, kind what, std::uint32_t m) const { return done_[place_of(stage, what, m)] != 0; }
  const pipeline_action* draw() {
    choices_.clear();
    std::uint32_t all = 0;
    const auto add = [&](std::uint32_t stage, kind what, std::uint32_t m, bool may_be) {
      if (!may_be || listed(stage, what, m)) return;
      choices_.push_back({stage, what, m});
      all += weights_[static_cast<std::size_t>(what)];
    };
    for (std::uint32_t s = 0; s < made.stages; ++s) {
      const bool last = s + 1 == made.stages;
      for (std::uint32_t m = 0; m < made.microbatches; ++m) {
        const bool came = s == 0 || (listed(s, kind::receive_forward, m) && listed(s - 1, kind::send_forward, m));
        add(s, kind::forward, m, came);
        const bool back = last ? listed(s, kind::forward, m)
                               : listed(s, kind::receive_backward, m) && listed(s + 1, kind::send_backward, m);
        add(s, kind::backward, m, back);
      }
      // Only the next microbatch that crosses a boundary may be sent or received.
      const auto add_next = [&](const std::vector<std::uint32_t>& order, kind what, const kind* computed) {
        const std::uint32_t i = count_[place_of(s, what, 0)];
        if (i < order.size()) add(s, what, order[i], computed == nullptr || listed(s, *computed, order[i]));
      };
      constexpr kind forward = kind::forward;
      constexpr kind backward = kind::backward;
      if (!last) {
        add_next(forward_[s], kind::send_forward, &forward);
        add_next(backward_[s], kind::receive_backward, nullptr);
      }
      if (s > 0) {
        add_next(forward_[s - 1], kind::receive_forward, nullptr);
        add_next(backward_[s - 1], kind::send_backward, &backward);
      }
    }
    if (choices_.empty()) return nullptr;
    std::uint32_t left = below(all);
    for (const pipeline_action& a : choices_) {
      const std::uint32_t weight = weights_[static_cast<std::size_t>(a.what)];
      if (left < weight) return &a;
      left -= weight;
    }
    return nullptr;
  }
  void list(const pipeline_action& a) {
    made.ranks[made.rank_of(a.stage)].push_back(a);
    done_[place_of(a.stage, a.what, a.microbatch)] = 1;
    ++count_[place_of(a.stage, a.what, 0)];
  }

  runtime::random_stream dice_;
  std::vector<std::vector<std::uint32_t>> forward_;
  std::vector<std::vector<std::uint32_t>> backward_;
  std::array<std::uint32_t, 6> weights_{};
  std::vector<char> done_;
  std::vector<std::uint32_t> count_;  // listed actions, by stage and kind
  std::vector<pipeline_action> choices_;
};

inline pipeline_schedule legal_schedule(std::uint64_t seed) { return drawn_schedule(seed).made; }

}  // namespace parley::tests

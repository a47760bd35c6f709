#pragma once
/// One rank of the worked cases, with the means to speak with the other ranks about a case. A case checks its rank's results on any place
/// (place.hpp).
#include <parley/tests/support/fair_stopwatch.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/place.hpp>

#include <parley/agreement.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/cuda_copies.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/group_config.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

struct here {
  static constexpr time_ns of_a_busy_machine = 60'000'000'000;
  here(ops::rank& r, place& where, time_ns patience_ns = of_a_busy_machine)
      : patience(patience_ns), self(r), at(where), me(r.id()), ranks(r.world_size()) {
    collective_options op = led_by(0, {star()});
    op.name = "about";
    op.timeout = std::chrono::nanoseconds(patience);
    all = collective(r, op);
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
    transports::cuda_copies* copies = nullptr;  ///< null: there are no GPUs
    gpu_world_source::options with{};
  };
  time_ns patience;
  sums_on_gpus gpu_sums{};
  std::vector<config_ptr> others{};  ///< configs of edges, tried besides those of each case
  bool until_each_ran = false;       ///< calls are repeated until each of them has run
  std::function<void(const std::string& name)>
      on_case{};  ///< called when a case begins: a process prints the name, in case it does not end
  ops::rank& self;
  place& at;
  rank_id me;
  rank_id ranks;
  collective all;
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

/// Waits until all ranks are here.
inline task<> meet(here* h) {
  const bool all = co_await on_all_ranks(h, true);
  static_cast<void>(all);
}

/// The time since its construction: virtual time, or real time less that for which the machine kept this rank from running.
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

/// Checks the choice only in virtual time, because a real machine may delay the fastest config in each of its trials. There, both ends
/// still run the same config, as the flight recorders show.
inline void check_choice(const here* h, const decision& d, std::string_view right) {
  CHECK(d.decided);
  if (h->is_virtual()) CHECK(d.config == right);
}

inline task<> wait_here(time_ns span) {
  auto woken = co_await sleep_for(std::chrono::nanoseconds(span));
  static_cast<void>(woken);
}

inline std::span<float> of(const array<float>& a) { return {a.data(), a.size()}; }

}  // namespace parley::tests::worked_cases

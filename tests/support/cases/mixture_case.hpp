#pragma once
/// CASES section 8: ranks that lack a config, and the configs that each rank runs.
#include <parley/group_config.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::mixture_case {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

/// CASES section 8: how often each config ran, and on which place. A leader's round waits for its slowest rank.
struct machine_room {
  std::map<std::string, std::map<std::size_t, int>> ran;  // config, place
};

class timed_star final : public group_config {
 public:
  timed_star(machine_room& room, executor& ex, const std::string& name, const std::string& wire_class,
             std::vector<time_ns> takes_ns)
      : group_config({.name = name, .wire_class = wire_class}), room_(room), executor_(ex),
        takes_ns_(std::move(takes_ns)) {}
  task<> lead(group_call& g) const override { return run(g); }
  task<> work(group_call& g) const override { return run(g); }

 private:
  task<> run(group_call& g) const {
    ++room_.ran[identity().name][g.self()];
    auto woken = co_await sleep_until(executor_.deadline_in(takes_ns_[g.self()]));
    static_cast<void>(woken);
    if (g.self() == g.leader()) {
      co_await real_->lead(g);
    } else {
      co_await real_->work(g);
    }
  }
  machine_room& room_;
  executor& executor_;
  std::vector<time_ns> takes_ns_;
  group_config_ptr real_ = star();
};

inline std::vector<time_ns> everywhere(time_ns t) { return std::vector<time_ns>(4, t); }

}  // namespace parley::tests::mixture_case

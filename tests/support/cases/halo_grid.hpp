#pragma once
/// Grids of blocks on the ranks of a world in virtual time, exchanged on all of them at once.
#include <parley/tests/support/cases/halo_case.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/halo.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace parley::tests {

using namespace parley::ops;
using namespace parley::runtime;

// Exchanges `times` times on all ranks. Returns what each rank threw, or success.
inline std::vector<result<>> exchange_all(world& w, std::vector<halo_plan>& plans, int times = 1) {
  std::vector<result<>> outcomes(plans.size(), result<>(errc::pending));
  const auto one = [](halo_plan* plan, int n, result<>* outcome) -> task<> {
    std::exception_ptr thrown;
    try {
      co_await with_dataflow(halo_case::exchange, plan, n, device_stream{});
    } catch (...) {
      thrown = std::current_exception();
    }
    *outcome = thrown ? result<>(describe(thrown)) : result<>();
  };
  scope all(w.clock);
  for (std::size_t r = 0; r < plans.size(); ++r) all.spawn(one(&plans[r], times, &outcomes[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  return outcomes;
}

// The blocks of all ranks.
struct grid {
  /// Ranks with odd numbers may have another padding of rows, and other configs.
  grid(world& w, const halo_options& op, const std::vector<std::uint64_t>& cells, std::uint64_t padding,
       std::size_t fields, std::optional<std::uint64_t> of_odd_ranks = {},
       const std::optional<halo_options>& op_of_odd_ranks = {})
      : clock(w.clock) {
    for (auto& r : w.ranks) {
      const bool odd = r->id() % 2 == 1;
      const halo_options& its = odd && op_of_odd_ranks ? *op_of_odd_ranks : op;
      const halo_case::shape s{its, cells, odd ? of_odd_ranks.value_or(padding) : padding, fields};
      halos.emplace_back(*r, its);
      blocks.push_back(std::make_unique<halo_case::block>(halos.back(), s));
      plans.push_back(std::move(blocks.back()->plan()));
    }
    begin();
  }
  /// Writes each block's own cells, and no ghosts.
  void begin() {
    for (auto& b : blocks) run(clock, b->begin());
  }
  std::size_t wrong() {
    std::size_t count = 0;
    for (auto& b : blocks) count += run(clock, b->wrong());
    return count;
  }

  virtual_time& clock;
  std::vector<halo> halos;
  std::vector<std::unique_ptr<halo_case::block>> blocks;
  std::vector<halo_plan> plans;
};

}  // namespace parley::tests

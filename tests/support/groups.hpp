#pragma once
/// Short programs of a leader and its workers, for tests in virtual time.
#include <parley/tests/support/world.hpp>

#include <parley/collective.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/groups/group.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/transfer.hpp>
#include <parley/when.hpp>

#include <map>
#include <set>
#include <tuple>

namespace parley::tests {

ops::rank_settings eager_trials();

ops::collective_options led_by(rank_id leader, std::vector<ops::group_config_ptr> configs);

/// CASES section 5: x_r[i] = (r + 1)(i % 7 + 1).
std::vector<float> contribution(rank_id r, std::size_t count);
std::size_t wrong_sums(const std::vector<float>& x, std::size_t world);

struct group_outcomes {
  std::vector<std::vector<runtime::result<>>> of_rank;
  std::size_t wrong = 0;  ///< results with a wrong sum
  std::size_t failed() const {
    std::size_t count = 0;
    for (const auto& rank : of_rank) {
      for (const auto& r : rank) count += r ? 0 : 1;
    }
    return count;
  }
};

runtime::task<> reduce_one(ops::collective g, std::vector<float>& x, runtime::result<>& outcome);

/// One call for each of `sizes`, which are in elements, with `at_once` calls in flight at a time.
runtime::task<> reduce_each(ops::collective g, rank_id me, std::size_t world, std::vector<std::size_t> sizes,
                            std::size_t at_once, group_outcomes& all);

/// Runs `reduce_each` on all ranks of the world, which are one group.
group_outcomes reduce_all(world& w, const std::vector<ops::collective>& groups, const std::vector<std::size_t>& sizes,
                          std::size_t at_once = 1);

std::vector<ops::collective> declare_all(world& w, const ops::collective_options& op);

struct group_flights {
  std::size_t invocations = 0;  ///< recorded by every rank, without rehearsals
  std::size_t mismatches = 0;   ///< invocations and rehearsals that two ranks ran with different configs
  std::size_t timed = 0;
  std::set<std::uint64_t> digests;
};

/// Joins the flight recorders of all ranks by invocation.
group_flights join_group_flights(const std::vector<std::unique_ptr<ops::rank>>& ranks);

inline group_flights join_group_flights(world& w) { return join_group_flights(w.ranks); }

/// Lets virtual time pass.
void wait_a_while(world& w, runtime::time_ns span);

}  // namespace parley::tests

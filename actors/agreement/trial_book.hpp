#pragma once
/// What the trials of one search have shown: rows as participants report them, and how they are kept. The book outlives its search, as the
/// evidence of what was decided.
#include <parley/actors/agreement/messages.hpp>
#include <parley/identifiers.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <boost/container/flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace parley::actors {

/// A `wire_row::status` beside `tuning::row_status` and `cancelled_row`: the trial did not end in time while its participant was at it, in
/// groups and in ops without headers. Somebody may have been late: the trial is made again. The second such one of a config in a search,
/// with all participants at both, has it out for good.
inline constexpr std::uint8_t late_row = 4;

/// Orders are the numbers of invocations among all of the op: "the one before" means that.
struct trial_book {
  explicit trial_book(std::size_t candidates = 0)
      : rows(candidates), repetitions(candidates), warm_ups(candidates), aggregates(candidates) {}

  std::vector<std::vector<tuning::row>> rows;           ///< per candidate, of all rounds
  std::vector<std::vector<std::uint64_t>> repetitions;  ///< per candidate: the orders of its timed trials
  std::vector<std::vector<std::uint64_t>> warm_ups;     ///< the same of those that only cost
  std::vector<std::uint64_t> joined;  ///< of both, those that belong to the repetition of the one before
  std::vector<tuning::aggregate> aggregates;
  std::size_t cancelled = 0;  ///< trials that a caller gave up
};

/// Keeps what a participant reports. What no clock can have shown is no measurement: it is kept as a failure. Answers the status.
tuning::row_status keep_row(std::vector<tuning::row>& rows, runtime::rank_id participant, std::uint64_t order,
                            const wire_row& r);
bool is_reported(const std::vector<tuning::row>& rows, runtime::rank_id participant, std::uint64_t order) noexcept;

/// By tag and invocation. There are few at a time.
template <class Of>
using by_invocation = boost::container::flat_map<std::pair<std::uint32_t, std::uint64_t>, Of>;

/// Empties it and frees its memory, which `= {}` and `clear` keep.
template <class Container>
void free_all_of(Container& c) noexcept {
  Container().swap(c);
}

}  // namespace parley::actors

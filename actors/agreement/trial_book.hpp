#pragma once
/// Keeps the results of one search's trials: the rows that participants report. The book outlives its search, as the evidence of the
/// decision.
#include <parley/actors/agreement/messages.hpp>
#include <parley/identifiers.hpp>
#include <parley/tuning/planners/statistics.hpp>
#include <parley/tuning/planners/time_model.hpp>

#include <boost/container/flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace parley::actors {

/// A further value of `wire_row::status`, for groups and ops without headers: the trial timed out while this participant was in it. Some
/// rank may have been late, so the trial is made again. The second such trial of a config in a search, with all participants in both
/// trials, excludes the config for good.
inline constexpr std::uint8_t late_row = 4;

/// An order is the number of an invocation among all invocations of the op. "The one before" refers to these numbers.
struct trial_book {
  explicit trial_book(std::size_t candidates = 0)
      : rows(candidates), repetitions(candidates), warm_ups(candidates), aggregates(candidates), expected(candidates) {}

  std::vector<std::vector<tuning::row>> rows;           ///< per candidate, of all rounds
  std::vector<std::vector<std::uint64_t>> repetitions;  ///< per candidate: the orders of its timed trials
  std::vector<std::vector<std::uint64_t>> warm_ups;     ///< per candidate: the orders of warm-ups, which only cost time
  std::vector<std::uint64_t> joined;                    ///< of both: orders in the same repetition as the order before
  std::vector<tuning::aggregate> aggregates;
  std::vector<tuning::predicted_time> expected;  ///< before the trials, per candidate; time 0: nothing was expected
  std::size_t cancelled = 0;                     ///< trials that a caller gave up
};

/// Keeps a row that a participant reports, and returns its status. A row with times that no clock can show is kept as a failure.
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

#pragma once
/// Puts together the evidence that is sent with a decision: the ranks that took part, the time of each candidate on each rank, and the rank
/// that proposed each candidate.
///
///     decide d;  …
///     add_evidence(d, search.chosen(), search.book(), search.excluded(), coordinator_state);
///
/// The evidence is bounded (`most_evidence_bytes`). If there is no room for all candidates, the evidence keeps the default, the winner and
/// the fastest candidates, in merged order; `left_out` counts the others. The sentence with the reason is in `chosen`.
#include <parley/actors/agreement/coordinator_state.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/tuning/planners/evidence.hpp>

#include <cstddef>
#include <vector>

namespace parley::actors {

inline constexpr std::size_t most_evidence_bytes = std::size_t{256} << 10U;

/// The measurements of a candidate by each participant, in the order of ranks.
/// `candidate` is its place in `assignment::candidates`. Empty: it was not tried.
std::vector<tuning::own_measurement> seen_by_each(std::size_t candidate, const trial_book& book,
                                                  const coordinator_state& state);
void add_evidence(decide& d, const chosen_config& chosen, const trial_book& book,
                  const std::vector<exclusion>& excluded, const coordinator_state& state);

}  // namespace parley::actors

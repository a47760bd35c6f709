#pragma once
/// Copies the state of one rank into a record for the checkers. The rank may be simulated or a real process:
///
///     run_record record;
///     add_views(record, self);        // when the rank is about to leave, also with an error
///     check_flights(record);          // once the record has the views of all ranks (checkers.hpp)
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/rank.hpp>
#include <parley/simulation/world/run_record.hpp>

#include <cstddef>

namespace parley::simulation {

/// Visits each search that a rank leads: `visit(agreement, search)`.
template <class Visit>
void each_search(const ops::rank& self, Visit visit) {
  for (const ops::edge_agreement& a : self.agreements()) {
    for (const auto& c : a.assigned->searches()) visit(a, *c);
  }
}

/// The gates of one member of an op without headers.
lease_view gates_of(std::size_t job, rank_id r, ops::symmetric_end& end);
/// `ended`: the participant's generation ended before the job did.
participant_view view_of(std::size_t job, rank_id r, const actors::participant_state& p, bool ended);
/// Adds the searches that a rank leads. Their participants are in the record from `first_participant` on. The start times of searches are
/// those of the rank's own clock.
void add_searches(run_record& into, std::size_t job, const ops::rank& self, std::size_t first_participant);
void add_flights(run_record& into, std::size_t job, const ops::rank& self);
/// Adds the rank's participants (also of generations that have ended on the rank), searches and flights.
void add_views(run_record& into, const ops::rank& self, std::size_t job = 0);

}  // namespace parley::simulation

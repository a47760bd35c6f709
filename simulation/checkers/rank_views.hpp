#pragma once
/// What one rank knows that checkers read, of a simulated rank or of one that is a process of its own:
///
///     run_record record;
///     add_views(record, self);        // of a rank that is about to leave, also with an error
///     check_flights(record);          // once it has those of the others, too (checkers.hpp)
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
/// `ended`: its generation has, before the job did.
participant_view view_of(std::size_t job, rank_id r, const actors::participant_state& p, bool ended);
/// Of the searches that a rank leads, whose participants are in the record from this one on. When a search began is told by the
/// rank's own clock.
void add_searches(run_record& into, std::size_t job, const ops::rank& self, std::size_t first_participant);
void add_flights(run_record& into, std::size_t job, const ops::rank& self);
/// All of these, also of generations that have ended on it.
void add_views(run_record& into, const ops::rank& self, std::size_t job = 0);

}  // namespace parley::simulation

#pragma once
/// Normally all ranks of an op agree, and every call succeeds. These functions find the faults that excuse the ranks from both. Used by all
/// checkers.
#include <parley/simulation/world/run_record.hpp>

#include <vector>

namespace parley::simulation {

/// True if one of these ranks ends, or is declared dead.
bool deaths(const run_record& r, const std::vector<rank_id>& members);
/// True if one of these ranks ends and comes back.
bool returns(const run_record& r, const std::vector<rank_id>& members);
/// True if two of them may declare each other dead although both live, because the fence of a put has failed between them.
bool parted(const run_record& r, const std::vector<rank_id>& members);
/// True if some of them cannot read the messages of others, so that they never agree on anything.
bool deaf(const run_record& r, const std::vector<rank_id>& members);

/// True if a member may declare another one dead.
bool may_lose_a_member(const run_record& r, const std::vector<rank_id>& members);
/// True if they may never agree, or if some of them may not learn the agreement.
bool may_disagree(const run_record& r, const std::vector<rank_id>& members);

/// True if the op has ended for one of its participants.
bool any_ended(const std::vector<const participant_view*>& members);
/// True if one of the op's configs fails, corrupts its data, or never ends.
bool is_broken(const op_spec& op);

}  // namespace parley::simulation

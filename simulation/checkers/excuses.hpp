#pragma once
/// Faults that excuse the ranks of an op from two promises: that all of them agree, and that every call succeeds. Used by all checkers.
#include <parley/simulation/world/run_record.hpp>

#include <vector>

namespace parley::simulation {

/// True if one of these ranks ends, or is taken for dead.
bool deaths(const run_record& r, const std::vector<rank_id>& members);
/// True if one of these ranks ends and comes back.
bool returns(const run_record& r, const std::vector<rank_id>& members);
/// True if two of them may take each other for dead though both live, because the fence of a put has failed between them.
bool parted(const run_record& r, const std::vector<rank_id>& members);
/// True if some of them cannot read the messages of others, so that they never agree on anything.
bool deaf(const run_record& r, const std::vector<rank_id>& members);

/// True if a member may take another one for dead.
bool may_lose_a_member(const run_record& r, const std::vector<rank_id>& members);
/// True if they may never agree, or if not all of them may learn what was agreed on.
bool may_disagree(const run_record& r, const std::vector<rank_id>& members);

/// True if the op has ended for one of its participants.
bool any_ended(const std::vector<const participant_view*>& members);
/// True if one of the op's configs fails, corrupts its data, or never ends.
bool is_broken(const op_spec& op);

}  // namespace parley::simulation

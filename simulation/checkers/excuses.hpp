#pragma once
/// What excuses the ranks of an op from what is promised else: that all of them agree, and that every call ends well. All checkers ask here.
#include <parley/simulation/world/run_record.hpp>

#include <vector>

namespace parley::simulation {

/// One of these ranks ends, or is taken for dead.
bool deaths(const run_record& r, const std::vector<rank_id>& members);
/// One of these ranks ends, and comes back.
bool returns(const run_record& r, const std::vector<rank_id>& members);
/// Two of them may hold each other dead though both live: a put's fence has failed between them.
bool parted(const run_record& r, const std::vector<rank_id>& members);
/// Some of them cannot read what others say: they never agree on anything.
bool deaf(const run_record& r, const std::vector<rank_id>& members);

/// A member may be dead to another one.
bool may_lose_a_member(const run_record& r, const std::vector<rank_id>& members);
/// They may never agree, or not all know what was agreed on.
bool may_disagree(const run_record& r, const std::vector<rank_id>& members);

/// The op has ended for one of its participants.
bool any_ended(const std::vector<const participant_view*>& members);
/// One of the op's configs fails, spoils what it brings, or never ends.
bool is_broken(const op_spec& op);

}  // namespace parley::simulation

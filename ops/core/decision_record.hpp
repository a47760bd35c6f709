#pragma once
/// Turns what a rank has been told of a decision into a `decision`, and a `decision` into text.
///
///     decision d = decision_of(participant, record, self);
///     json_of(d);      // {"op":"activations 0->1","key":"16MiB_bf16","config":"direct","time_ns":1262000.0,…}
#include <parley/decision.hpp>
#include <parley/identifiers.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace parley::actors {
struct decision_record;
struct participant_state;
}  // namespace parley::actors

namespace parley::ops {

/// The config's id, as far as this rank knows it, or else the digest.
std::string name_of(const actors::participant_state& knows, std::uint64_t digest);
decision decision_of(const actors::participant_state& knows, const actors::decision_record& r, rank_id self);
/// The lines that VERBOSE asks for: from 2 on the decision, from 3 on also its candidates.
std::vector<std::string> lines_of(const decision& d, unsigned verbosity);
/// One JSON object on one line. It begins with the members `op` and `key`.
std::string json_of(const decision& d);

}  // namespace parley::ops

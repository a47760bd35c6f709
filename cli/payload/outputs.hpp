#pragma once
/// The outputs of an op of `parley tune` on a rank, as hashes, and the expected hashes.
///
///     outputs seen{.op = "messages", .from = 0};
///     seen.digests.push_back(digest_of(message));
///     seen.digests[i] == expected_digest(op, seen.from, i);
///
/// Payloads are numbered so that a message of another rank, or of another call, has other bytes.
#include <parley/cli/spec/op_spec.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace parley::cli {

struct outputs {
  std::string op;
  rank_id from = 0;  ///< the rank that made the payloads; of a sum or a pipeline any rank
  std::vector<std::uint64_t> digests;
};

/// The number of the payload that `from` makes for the op's message, call or exchange `i`. In a pipeline or a transfer it does not depend
/// on `from`.
std::uint64_t payload_number(const op_spec& op, rank_id from, std::uint64_t i) noexcept;
/// The expected digest of output `i`. A halo's ranks compare each ghost themselves; the digest is then 1 if all ghosts are right.
std::uint64_t expected_digest(const op_spec& op, rank_id from, std::uint64_t i);
/// The number of outputs of all ranks together.
std::uint64_t outputs_of(const op_spec& op) noexcept;

}  // namespace parley::cli

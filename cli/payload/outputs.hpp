#pragma once
/// What comes out of an op of `parley tune` on a rank, as hashes, and what must come out.
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
  rank_id from = 0;  ///< whose payloads they are; of a sum or a pipeline any rank's
  std::vector<std::uint64_t> digests;
};

/// The payload that `from` brings to the op's message, call or exchange `i`; of a pipeline, or a transfer, whoever has made it.
std::uint64_t payload_number(const op_spec& op, rank_id from, std::uint64_t i) noexcept;
/// Of output `i`. A halo's ranks compare each ghost themselves: 1 where all were right.
std::uint64_t expected_digest(const op_spec& op, rank_id from, std::uint64_t i);
/// How many there are, of all ranks together.
std::uint64_t outputs_of(const op_spec& op) noexcept;

}  // namespace parley::cli

#pragma once
/// What the participants' results files make of a campaign: whose entry wins, or that there is none and trials are due.
///
///     recalled r = recall("16MiB_bf16", entries, candidates, machines);
///     if (r.candidate) settle(*r.candidate, r.sentence);   // no trial
///     else try_them_all(r.sentence);                       // a miss; the sentence says why, if anybody had an entry
///
/// The outcome depends on nothing but its arguments, so that it is the same in every run (docs/results.md has it as a table):
/// 1. Entries that were made on another combination of machines do not count.
/// 2. A pinned default wins, whoever has it: a person wrote it, and the default can always run.
/// 3. Otherwise the first entry in the given order whose solution is a candidate now: the leader's, then by rank.
/// 4. Otherwise it is a miss. What is no candidate any more, or was not warmed everywhere, is passed over.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace parley::tuning {

/// What one participant's results file has for one key.
struct remembered_best {
  std::string parameters;  ///< the key, as in the file: `16MiB_bf16`
  std::string solution;
  double time_ms = 0;
  std::uint64_t machines = 0;  ///< see `machines_together`
  std::uint32_t proposer = 0;  ///< whose file
};

struct recalled {
  std::optional<std::size_t> candidate;  ///< its place among the candidates; nothing: a miss
  bool pinned = false;
  std::uint32_t proposer = 0;
  double time_ms = 0;    ///< 0: the file does not say
  std::string sentence;  ///< who says so, and who says otherwise; empty when nobody had an entry
};

recalled recall(std::string_view key, std::span<const remembered_best> in_order,
                std::span<const std::string> candidates, std::uint64_t machines);

/// Names the combination of machines that participants run on, from the hash of each one's validators in the participants'
/// order: 0 when all are alike. What was measured between two machines says nothing about two others, although each rank's
/// file matches the rank's own machine.
std::uint64_t machines_together(std::span<const std::uint64_t> validator_hashes) noexcept;

}  // namespace parley::tuning

#pragma once
/// What the participants' results files make of a search: whose entry wins, or that there is none and trials are due.
///
///     recalled r = recall("16MiB_bf16", entries, candidates, machines);
///     if (r.candidate) settle(*r.candidate, r.sentence);   // no trial
///     else try_them_all(r.sentence);                       // a miss; the sentence says why, if anybody had an entry
///
/// The outcome depends on nothing but its arguments, so that it is the same in every run (docs/results.md has it as a table):
/// 1. Entries that were made on another combination of machines, or with the ranks placed otherwise on them, do not count.
/// 2. A pinned default wins, whoever has it: a person wrote it, and the default can always run. One that names no machines holds for
///    all.
/// 3. Otherwise the first entry in the given order whose solution is a candidate now: the leader's, then by rank.
/// 4. Otherwise it is a miss. What is no candidate any more, was not warmed everywhere, or is another mixture of configs by the
///    same name is passed over.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace parley::tuning {

/// What one participant's results file has for one key.
struct remembered_best {
  std::string parameters;  ///< the key, as in the file: `16MiB_bf16`
  std::string solution;    ///< see `name_in_file`
  double time_ms = 0;
  std::uint64_t machines = 0;  ///< see `machines_together`
  std::uint32_t proposer = 0;  ///< whose file
  bool thin = false;           ///< it rests on little
};

struct recalled {
  std::optional<std::size_t> candidate;  ///< its place among the candidates; nothing: a miss
  bool pinned = false;
  std::uint32_t proposer = 0;
  std::uint64_t machines = 0;  ///< that the entry is for; of a pin perhaps 0, for all
  double time_ms = 0;          ///< 0: the file does not say
  bool thin = false;           ///< a search may refine it
  std::string sentence;        ///< who says so, and who says otherwise; empty when nobody had an entry
};

/// `candidates`: by their names in files; an empty one must not run.
recalled recall(std::string_view key, std::span<const remembered_best> in_order,
                std::span<const std::string> candidates, std::uint64_t machines);

/// A candidate's name in a results file: its id, and of a mixture (`merged::mixture_of`) which one it is:
/// `h100_optimized;mixture=9f3c…`. No config's id has a semicolon; where a config has several mixtures, those beside the first have that
/// name everywhere.
std::string name_in_file(std::string_view id, std::uint64_t mixture);
/// The id in such a name.
std::string_view id_in_file(std::string_view name) noexcept;

/// Names the combination of machines that participants run on, from the hash of each one's validators and the number of its host,
/// both in the participants' order: 0 when all are alike and share a host. What was measured between two machines says nothing
/// about two others, although each rank's file matches the rank's own machine, and what was measured within one says nothing
/// about two like it. Of hosts only counts who shares one.
std::uint64_t machines_together(std::span<const std::uint64_t> validator_hashes, std::span<const std::uint64_t> hosts);

}  // namespace parley::tuning

#pragma once
/// Decides from the participants' results files which entry wins. If none wins, trials are needed.
///
///     recalled r = recall("16MiB_bf16", entries, candidates, machines);
///     if (r.candidate) settle(*r.candidate, r.sentence);   // no trial
///     else try_them_all(r.sentence);                       // a miss; the sentence says why, if anybody had an entry
///
/// The outcome depends only on the arguments, so that it is the same in every run (docs/results.md has it as a table):
/// 1. Entries for another combination of machines, or for ranks that were placed differently on them, do not count.
/// 2. A pinned default of any participant wins: a person wrote it, and the default can always run. A pin without machines applies to all
///    machines.
/// 3. Otherwise the first entry with a solution that is a candidate now wins. The leader's entries come first, then those of the others by
///    rank.
/// 4. Otherwise it is a miss. An entry is skipped if its solution is no longer a candidate, was not warmed on all ranks, or is another
///    mixture of configs with the same name.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace parley::tuning {

/// One participant's entry for one key, from its results file.
struct remembered_best {
  std::string parameters;  ///< the key, as in the file: `16MiB_bf16`
  std::string solution;    ///< see `name_in_file`
  double time_ms = 0;
  std::uint64_t machines = 0;  ///< see `machines_together`
  std::uint32_t proposer = 0;  ///< the rank whose file has it
  bool thin = false;           ///< it is based on few repetitions
};

struct recalled {
  std::optional<std::size_t> candidate;  ///< its place among the candidates; nothing: a miss
  bool pinned = false;
  std::uint32_t proposer = 0;
  std::uint64_t machines = 0;  ///< the entry's machines; a pin may have 0, which means all
  double time_ms = 0;          ///< 0: the file does not say
  bool thin = false;           ///< a search may refine it
  std::string sentence;        ///< which rank's entry wins, and which ranks have others; empty: no entries
};

/// `candidates`: their names in files; a candidate without a name must not run.
recalled recall(std::string_view key, std::span<const remembered_best> in_order,
                std::span<const std::string> candidates, std::uint64_t machines);

/// A candidate's name in a results file: its id and, for a mixture (`merged::mixture_of`), the mixture's number:
/// `h100_optimized;mixture=9f3c…`. No config's id has a semicolon. If a config has several mixtures, all except the first have such a name
/// everywhere.
std::string name_in_file(std::string_view id, std::uint64_t mixture);
/// The id in such a name.
std::string_view id_in_file(std::string_view name) noexcept;

/// Names the combination of machines that participants run on, from the hash of each one's validators and the number of its host, both in
/// the participants' order: 0 when all are alike and share a host. A time between two machines does not apply to two other machines, even
/// if each rank's file matches the rank's own machine. A time within one machine does not apply between two such machines. Host numbers
/// only show which participants share a host.
std::uint64_t machines_together(std::span<const std::uint64_t> validator_hashes, std::span<const std::uint64_t> hosts);

}  // namespace parley::tuning

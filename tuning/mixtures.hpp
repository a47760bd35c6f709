#pragma once
/// Chooses the configs that ranks run in place of configs that they lack, as failures and times become known. It changes candidates, for
/// which `merge` took the first config that fits, and adds other candidates.
///
///     mixtures m;
///     m.add_named(all, names_in_results_files);
///     auto changed = m.replace_failed(all, {{digest}, {}});       // a rehearsal of the first participant failed
///     m.add_fastest(all, own_times_of_a_size);                    // after trials
///
/// A candidate that is in force, or scheduled, keeps its variants: only candidates that were never warmed on all ranks get other variants.
#include <parley/tuning/merge.hpp>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace parley::tuning {

/// True if a candidate has its config's name; others are named after their variants.
bool is_by_name(const merged& all, const candidate& c) noexcept;

class mixtures {
 public:
  /// The failures of one participant: the digests of the candidates that failed in rehearsals there because of the participant's own
  /// variant.
  using failures = std::vector<std::uint64_t>;

  /// Gives each participant with a failed variant its next variant of that wire class. Returns the candidates that have changed, which must
  /// be warmed again. A candidate stays if it would become equal to another one, such as the default, or is named after its variants.
  std::vector<std::size_t> replace_failed(merged& all, const std::vector<failures>& by_place);
  /// If any candidate is a mixture: adds a mixture for each measured config, in which each participant that lacks the config runs its
  /// fastest variant.
  void add_fastest(merged& all, const own_times& took) const;
  /// Adds the mixtures that results files name and that the ranks can run. Skips names that do not name a mixture.
  static void add_named(merged& all, const std::set<std::string>& names);

 private:
  std::set<std::pair<std::size_t, std::size_t>> failed_;  // a participant's place, and a merged config
};

}  // namespace parley::tuning

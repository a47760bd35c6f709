#pragma once
/// What ranks run in the place of configs that they lack, as it becomes known: candidates that `merge` made of what comes first change, and
/// others are added.
///
///     mixtures m;
///     m.add_named(all, names_in_results_files);
///     auto changed = m.replace_failed(all, {{digest}, {}});       // a rehearsal of the first participant failed
///     m.add_fastest(all, own_times_of_a_size);                    // after trials
///
/// A candidate that is in force, or scheduled, keeps its variants: only those that have never been warmed on all change theirs.
#include <parley/tuning/merge.hpp>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace parley::tuning {

/// Whether a candidate has its config's name: others are named after their variants.
bool is_by_name(const merged& all, const candidate& c) noexcept;

class mixtures {
 public:
  /// Of one participant: the digests of candidates whose rehearsal failed there, with the participant's own variant.
  using failures = std::vector<std::uint64_t>;

  /// A participant whose variant failed gets its next one of that wire class. Answers which candidates have changed, to be warmed as they
  /// will run. What would be another candidate, or the default everywhere, stays; so does what is named after its variants.
  std::vector<std::size_t> replace_failed(merged& all, const std::vector<failures>& by_place);
  /// Where candidates are mixtures: beside each config's own candidate one in which whoever lacks it runs what took the least time.
  void add_fastest(merged& all, const own_times& took) const;
  /// Those that results files name and that ranks can run. What is no mixture's name is passed over.
  static void add_named(merged& all, const std::set<std::string>& names);

 private:
  std::set<std::pair<std::size_t, std::size_t>> failed_;  // a participant's place, and a merged config
};

}  // namespace parley::tuning

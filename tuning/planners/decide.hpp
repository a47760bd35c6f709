#pragma once
/// Chooses among candidates, and gives the reason and the evidence.
///
///     decision d = decide(aggregates, {.current = running, .excluded = too_inaccurate});
///     d.winner;          // an index into the candidates
///     d.sentence;        // "candidate 3 at 1.2 ms is the fastest; the default takes 1.63 ms, and a difference of 48.9 us would be noise"
///     d.confidence;      // `thin`: a search with more repetitions may choose otherwise
///
/// A candidate with +infinity never wins. If the fastest is within noise of the default, the default stays. This noise includes the scatter
/// of the times, because a change from the default must be worth it. Otherwise, the candidates within the relative noise of the fastest
/// count as equal, and the first of them in merged order wins. A larger difference counts even though it may be chance: trials continue
/// (halving_plan.hpp) until that is unlikely. If nothing was measured the current config stays, and the reason says so. The same aggregates
/// give the same decision everywhere.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <parley/tuning/planners/statistics.hpp>

namespace parley::tuning {

enum class decision_reason : std::uint8_t {
  fastest,                  ///< beats the default and all others beyond noise
  first_within_noise,       ///< beats the default; as good as the fastest, and earlier in merged order
  default_is_fastest,       ///< nothing is faster than c0
  within_noise_of_default,  ///< something is faster than c0, but not by more than noise
  only_default,             ///< there is no other candidate, or the constraint excludes the others
  nothing_measured,         ///< every candidate is +infinity: the current config stays
};
std::string_view name(decision_reason reason) noexcept;

/// The strength of the evidence for a decision.
enum class confidence : std::uint8_t {
  none,  ///< nothing was measured for it
  thin,  ///< another may be better; it or the winner had few repetitions: limits or failures ended the search early
  fair,  ///< none is better, with one chance in 20 of error for each; or many repetitions show no difference
  sure,  ///< none is better, with one chance in 200 of error for each
  last = sure
};
std::string_view name(confidence how) noexcept;

struct decide_options {
  double relative_noise = 0.03;             ///< as a fraction of the slower of two times
  double spread_factor = 1.0;               ///< multiplies the uncertainty of the two medians
  std::size_t few_repetitions = 7;          ///< with fewer, an unclear choice is `confidence::thin`
  std::size_t current = 0;                  ///< the config that runs now; it stays if nothing was measured
  std::span<const std::size_t> excluded{};  ///< excluded by the user's constraint, before times decide
  std::span<const std::string> names{};     ///< config ids for the sentence
};

struct decision {
  std::size_t winner = 0;
  decision_reason reason = decision_reason::only_default;
  std::string sentence{};
  std::vector<aggregate> evidence{};
  tuning::confidence confidence = tuning::confidence::none;
  friend bool operator==(const decision&, const decision&) = default;
};

/// `aggregates[0]` is the aggregate of c0. Throws `invalid` if the list is empty.
decision decide(std::span<const aggregate> aggregates, const decide_options& options = {});

/// The smallest difference between two measured times that means anything. It is larger than the relative noise, than the difference that
/// chance may make between their medians, and than the error of the compared clocks.
double noise_ns(const aggregate& a, const aggregate& b, const decide_options& options);

}  // namespace parley::tuning

#pragma once
/// The choice among candidates, with its reason and evidence.
///
///     decision d = decide(aggregates, {.current = running, .excluded = too_inaccurate});
///     d.winner;          // an index into the candidates
///     d.sentence;        // "candidate 3 at 1.2 ms is the fastest; the default takes 1.63 ms, and 48.9 us would be noise"
///     d.confidence;      // `thin`: a search with more repetitions may choose otherwise
///
/// A candidate with +infinity never wins. If the fastest is within noise of the default, the default stays; noise includes the scatter
/// of the times, because leaving the default must be worth it. Of the others, those within the relative noise of the fastest count as
/// equal, and the first in merged order wins. A larger difference counts although it may be chance: the trials go on (halving_plan.hpp)
/// until that is unlikely. If nothing was measured the current config stays, and the reason says so. The same aggregates give the
/// same decision everywhere.
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
  first_within_noise,       ///< beats the default; as good as the fastest, and before it in merged order
  default_is_fastest,       ///< nothing is faster than c0
  within_noise_of_default,  ///< something is faster than c0, but not by more than noise
  only_default,             ///< there is nothing else to try, or the constraint excludes it
  nothing_measured,         ///< every candidate is +infinity: the current config stays
};
std::string_view name(decision_reason reason) noexcept;

/// How well founded a decision is.
enum class confidence : std::uint8_t {
  none,  ///< nothing was measured for it
  thin,  ///< another candidate may be better, and one of the two had few repetitions: limits or failures ended the search early
  fair,  ///< either no other one is better, with one chance in 20 of being wrong about each, or many repetitions did not tell them apart
  sure,  ///< no other one is better, with one chance in 200 of being wrong about each
  last = sure
};
std::string_view name(confidence how) noexcept;

struct decide_options {
  double relative_noise = 0.03;             ///< as a part of the slower of two times
  double spread_factor = 1.0;               ///< multiplies the uncertainty of the two medians
  std::size_t few_repetitions = 7;          ///< with fewer, candidates that are not told apart are `confidence::thin`
  std::size_t current = 0;                  ///< what runs now, kept when nothing was measured
  std::span<const std::size_t> excluded{};  ///< by the user's constraint, before time decides
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

/// `aggregates[0]` is c0's. Throws `invalid` when there is none.
decision decide(std::span<const aggregate> aggregates, const decide_options& options = {});

/// How far apart two measured times must be to mean anything: further than the relative noise, than chance may move their
/// medians, and than the clocks that were compared may be off.
double noise_ns(const aggregate& a, const aggregate& b, const decide_options& options);

}  // namespace parley::tuning

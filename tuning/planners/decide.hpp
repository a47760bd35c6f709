#pragma once
/// The choice among candidates, with its reason and evidence.
///
///     decision d = decide(aggregates, {.current = running, .excluded = too_inaccurate});
///     d.winner;          // an index into the candidates
///     d.sentence;        // "candidate 3 takes 1.20 ms, the default 1.63 ms"
///     d.confidence;      // `thin`: a search with more repetitions may choose otherwise
///
/// +infinity never wins. Within noise of the default the default stays, and what times scatter by is noise, too: leaving it
/// must be worth it. Among the others those within the relative noise of the fastest are equals, and the first in merged order
/// is taken; a larger difference counts although it may be chance, as how long trials go on (halving_plan.hpp) sees to it that it
/// hardly ever is. With nothing measured the current config stays, and the reason says so. The same aggregates give the
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
  only_default,             ///< nothing else was there to try, or allowed by the constraint
  nothing_measured,         ///< every candidate is +infinity: the current config stays
};
std::string_view name(decision_reason reason) noexcept;

/// How well founded a decision is.
enum class confidence : std::uint8_t {
  none,  ///< nothing was measured for it
  thin,  ///< another candidate may be better, and one of the two had few repetitions: limits, or failures, have ended its search early
  fair,  ///< either no other one is better, with one chance in 20 of being wrong about each, or many repetitions did not tell them apart
  sure,  ///< no other one is better, with one chance in 200 of being wrong about each
  last = sure
};
std::string_view name(confidence how) noexcept;

struct decide_options {
  double relative_noise = 0.03;             ///< of the slower of two times
  double spread_factor = 1.0;               ///< times the uncertainty of the two medians
  std::size_t few_repetitions = 7;          ///< with fewer, what is not told apart is `confidence::thin`
  std::size_t current = 0;                  ///< what runs now, kept when nothing was measured
  std::span<const std::size_t> excluded{};  ///< by the user's constraint: filtered before time decides
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

/// How far apart two measured times must be to mean anything: further than the relative noise, than what their
/// medians may be off by chance, and than what comparing clocks may add.
double noise_ns(const aggregate& a, const aggregate& b, const decide_options& options);

}  // namespace parley::tuning

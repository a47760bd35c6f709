#pragma once
/// Options for the length of trials, and for new searches after a decision.
#include <parley/tuning/planners/drift.hpp>

#include <cstddef>

namespace parley::tuning {

struct plan_options {
  std::size_t warm_up_repetitions = 0;   ///< per candidate, untimed, before the probe
  std::size_t probe_repetitions = 1;     ///< per candidate, in the first round
  std::size_t repetitions = 1;           ///< in the second round; doubles each round
  std::size_t maximum_repetitions = 32;  ///< in one round
  std::size_t maximum_rounds = 8;        ///< the probe included
  std::size_t maximum_in_all = 1'000;    ///< repetitions of one candidate in all rounds; the probe is always made
  double maximum_ns = 1e18;              ///< time of one candidate in all rounds; a round is shortened for it
  std::size_t enough_repetitions = 7;    ///< if there can be only one round
  std::size_t thorough_repetitions = 7;  ///< if times are disturbed, no candidate is dropped for good with fewer
  double keep_fraction = 0.5;            ///< of the challengers, after each round from the fourth on
  double probe_slow_factor =
      3.0;                   ///< slower than the best by more than this is dropped after a probe of two or more runs
  double slow_factor = 1.5;  ///< the same after the later rounds
  double noise = 0.03;       ///< candidates this close are ranked by their order, not their time
  double budget_fraction = 0.05;  ///< the part of wall time that trials may cost (N4)
  bool interpolate = false;       ///< a size between two decided sizes with one winner runs that winner, without trials
  drift_options drift{};          ///< when a decision is searched again
};

}  // namespace parley::tuning

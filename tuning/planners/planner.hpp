#pragma once
/// The interface of all planners. A planner says which candidate runs next; the caller runs it, measures the time and reports it.
///
///     template <planner P> void run_all(P& plan) {
///       while (auto next = plan.next()) …run candidate next->candidate, as next->what says, and report…
///     }
///
/// | planner | for | order |
/// |---|---|---|
/// | `halving_plan` | messages and collective calls: all ranks run the same trial of an invocation | rounds, with fewer candidates each |
/// | `contextual_plan` | kernels inside a function that runs again and again | a fixed number of each |
/// | `kernel_plan` | one kernel by itself, as TunableOp tunes it | a probe of each, then in turns |
///
/// Candidate 0 is the default. `next` returns nothing if there is nothing to run now; `finished` returns true once there will be no more
/// runs. A dropped candidate is not tried again. The default is never dropped because another candidate is faster.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace parley::tuning {

enum class trial_kind : std::uint8_t {
  warm_up,    ///< untimed
  timed,      ///< its time counts
  probe,      ///< a first, short run: hopeless candidates are not timed
  reference,  ///< the default runs, for its output
  check,      ///< the candidate runs, and its output is compared with the default's
};

struct trial {
  std::size_t candidate = 0;
  trial_kind what = trial_kind::timed;
  std::size_t turn = 0;  ///< in a halving plan: its round; in a contextual plan: the iteration, counted per kind
  friend bool operator==(const trial&, const trial&) = default;
};

template <class P>
concept planner = requires(P plan, const P& seen) {
  { plan.next() } -> std::same_as<std::optional<trial>>;
  { seen.finished() } -> std::same_as<bool>;
};

}  // namespace parley::tuning

#pragma once
/// TunableOp's loop for one kernel and key, as a plan. The plan says which candidate runs next; the caller runs it and measures the time.
///
///     kernel_plan plan(3, settings, kernel_plan::checks::against_default);
///     while (auto next = plan.next()) {
///       …run next->candidate…                          // next->what: probe, reference, check, warm_up or timed
///       plan.ended(elapsed_ns);                        // or plan.failed("throws: out of registers")
///     }
///     decision best = plan.decide(names);
///
/// Candidates run one after the other, the default (0) first. A short probe drops hopeless candidates. Then the candidate's output is
/// compared with the default's (`reference` runs the default, `check` the candidate), and the candidate is warmed up and timed
/// min(iterations, duration / estimate) times. A candidate that failed, was wrong or is hopeless has no time, so it never wins; the default
/// stays if no candidate is faster by more than noise.
///
/// The duration limits everything after a candidate's first run, which is cold: the rest of its probe, its warm-ups unless these have their
/// own duration, and its timed runs. Once the duration is over, no run begins, with two exceptions: the one warm run that a candidate needs
/// to have a time, and the two runs that compare numbers. If the probe has used up the duration, the probe's own times count.
#include <parley/tuning/planners/decide.hpp>
#include <parley/tuning/planners/planner.hpp>
#include <parley/tuning/results/settings.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::tuning {

class kernel_plan {
 public:
  enum class checks : std::uint8_t { none, against_default };

  /// The first probing run is cold and does not count; the next two give the estimate.
  static constexpr std::size_t probing_runs = 3;
  /// A candidate is hopeless, and is not timed, if its estimate is more than this factor times the best time so far.
  static constexpr double hopeless_factor = 2.0;

  kernel_plan(std::size_t candidates, const settings& limits, checks c);
  /// Leaves a candidate out; call it before the first trial. The default cannot be dropped.
  void drop(std::size_t candidate, std::string why);

  /// The next run. It stays the same until it has ended. For a `reference` the candidate is the default.
  std::optional<trial> next() const noexcept;
  bool finished() const noexcept { return candidate_ == tried_.size(); }
  void ended(double elapsed_ns);
  void failed(std::string why);

  /// `names` are the candidates' ids, for the sentence.
  decision decide(std::span<const std::string> names) const;
  /// For a candidate without a time: `failed`, `wrong_data` or `not_tried`, with the reason.
  const aggregate& result_of(std::size_t candidate) const { return tried_.at(candidate); }
  /// The number of timed runs of all candidates.
  std::size_t timed_runs() const noexcept { return timed_runs_; }

 private:
  void begin_phase(trial_kind what) noexcept;
  void next_candidate() noexcept;
  std::size_t warm_ups() const noexcept;
  std::size_t timings() const noexcept;
  double limit_ns() const noexcept { return 1e6 * limits_.max_tuning_duration_ms; }
  bool is_over() const noexcept;
  bool is_bounded() const noexcept;
  void end_candidate();
  double best_ns() const noexcept;

  settings limits_;
  checks checks_;
  std::vector<aggregate> tried_;
  std::vector<double> times_ns_;  // of this phase
  std::size_t candidate_ = 0;
  trial_kind what_ = trial_kind::probe;
  std::size_t runs_left_ = probing_runs;
  double estimate_ns_ = 1;
  double first_ns_ = 0;             // first run of this candidate
  double spent_ns_ = 0;             // time spent on this candidate since then, as far as it counts for the duration
  std::vector<double> warm_probe_;  // of its probe, without the first run
  std::size_t timed_runs_ = 0;
};

}  // namespace parley::tuning

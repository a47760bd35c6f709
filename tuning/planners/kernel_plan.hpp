#pragma once
/// TunableOp's loop for one kernel and key, as a plan. The plan says which candidate runs next; the caller runs it and reads the clock.
///
///     kernel_plan plan(3, settings, kernel_plan::checks::against_default);
///     while (auto next = plan.next()) {
///       …run next->candidate…                          // next->what: probe, reference, check, warm_up or timed
///       plan.ended(began_ns, ended_ns);                // or plan.failed("throws: out of registers")
///     }
///     decision best = plan.decide(names);
///
/// First, each candidate is probed, the default (0) first, and its output is compared with the default's (`reference` runs the default,
/// `check` the candidate). A candidate that takes more than twice as long as the best is hopeless and is not timed.
///
/// Then the candidates are timed in turns, so that work of others on the machine delays all of them alike. Each candidate is timed
/// min(iterations, duration / estimate) times in all, spread over at most `most_turns` turns. A turn counts as one repetition: the mean of its
/// runs, so that a candidate which is often interrupted pays for it. After a few turns a candidate that is surely slower than another gets no
/// further turns.
///
/// Threads of a library may spin for a while after its call, and slow down whatever runs next. So a turn begins with runs that do not count,
/// until `settling_ns` have passed. They are not part of the duration. A probe lasts at least as long. A kernel that takes longer needs none.
///
/// On a device nothing settles, but its clock changes while it gets warm. So what all candidates of a round share is taken out of their
/// times (a median polish); otherwise a candidate with turns in early rounds only would look faster than it is.
///
/// If a run takes several times as long as another of the same candidate, something else interrupts it, such as another program on the same
/// processors. From then on each turn lasts at least `long_turn_ns`, there are `disturbed_turns` of them, and a candidate may take
/// `disturbed_duration` times its duration: only so many turns show how often it is interrupted, and whether it stalls.
///
/// A candidate that failed or was wrong has no time, so it never wins. The default stays if no candidate is faster by more than noise.
///
/// The duration limits everything after a candidate's first run, which is cold: the rest of its probe, its warm-ups unless these have their
/// own duration, and its timed runs. Once the duration is over, no run begins, with exceptions: the one warm run that a candidate needs to
/// have a time, the two runs that compare numbers, and on a device the default's runs beside others. A probe's warm runs also count as turns
/// if they took longer than `settling_ns`, or if there is no other time.
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

  /// The first probing run is cold and does not count; the runs after it give the estimate.
  static constexpr std::size_t probing_runs = 3;
  /// A candidate is hopeless, and is not timed, if its estimate is more than this factor times the best estimate.
  static constexpr double hopeless_factor = 2.0;
  static constexpr std::size_t most_turns = 8;
  /// The threads of the libraries that `gemm` loads spin for less. At most a tenth of the duration; 0 if there is only one candidate.
  static constexpr std::int64_t settling_ns = 1'000'000;

  // If something else interrupts the runs.
  static constexpr std::size_t disturbed_probing_runs = 9;  // of a candidate that seems hopeless
  static constexpr std::size_t disturbed_turns = 16;
  static constexpr double long_turn_ns = 4'000'000;  // a time slice of Linux
  static constexpr double disturbed_duration = 4;

  /// Where the kernel runs.
  enum class place : std::uint8_t { processors, device };

  kernel_plan(std::size_t candidates, const settings& limits, checks c, place where = place::processors);
  /// Leaves a candidate out, and says why; call it before the first trial. The default cannot be dropped.
  void drop(std::size_t candidate, std::string why);

  /// The next run. It stays the same until it has ended. For a `reference` the candidate is the default.
  std::optional<trial> next() const noexcept;
  bool finished() const noexcept { return step_ == step::finished; }
  void ended(std::int64_t began_ns, std::int64_t ended_ns);
  void failed(std::string why);

  /// `names` are the candidates' ids, for the sentence.
  decision decide(std::span<const std::string> names) const;
  /// For a candidate without a time: `failed`, `wrong_data` or `not_tried`, with the reason.
  const aggregate& result_of(std::size_t candidate) const { return tried_.at(candidate).result; }
  /// The number of timed runs of all candidates.
  std::size_t timed_runs() const noexcept { return timed_runs_; }

 private:
  enum class step : std::uint8_t { probe, reference, check, warm_up, settle, timed, finished };
  struct tried {
    aggregate result{};
    bool has_run = false;
    double estimate_ns = infinite_ns;
    double fastest_ns = infinite_ns, slowest_ns = 0;  // without the first run
    double spent_ns = 0;                              // since its first run, as far as it counts for the duration
    std::vector<double> probe_ns{};                   // without the first run
    std::vector<double> turns_ns{};
    std::vector<std::size_t> rounds{};  // of its turns
    std::size_t warm_ups = 0;           // left to make
    std::size_t runs_left = 0;          // of all its turns
    std::size_t turns_left = 0;
    bool is_out = false;
  };

  tried& current() noexcept { return tried_[candidate_]; }
  double limit_ns() const noexcept { return 1e6 * limits_.max_tuning_duration_ms; }
  void note_disturbance(tried& c, double took_ns) noexcept;
  bool is_over(const tried& c) const noexcept;
  std::size_t warm_ups(const tried& c) const noexcept;
  std::size_t timings(const tried& c) const noexcept;
  double best_estimate_ns() const noexcept;
  bool is_hopeless(const tried& c) const noexcept;
  void probe_next();
  void end_probe(bool settled);
  void plan_turns(tried& c) const;
  void begin_timing();
  void keep_default_beside_others();
  void begin_round();
  void next_turn();
  void begin_turn();
  bool is_long_enough(const tried& c) const noexcept;
  void end_turn();
  void end_round();
  std::vector<std::vector<double>> turns_of_all() const;

  settings limits_;
  checks checks_;
  place where_;
  std::vector<tried> tried_;
  std::size_t candidate_ = 0;
  step step_ = step::probe;
  double settling_;                 // in ns
  std::int64_t settled_at_ns_ = 0;  // of this probe or turn; 0: it has not begun
  std::size_t rounds_ = 0;          // that have begun
  std::vector<std::size_t> round_;  // the candidates that have their turn after this one, the next one last
  bool backward_ = false;
  std::size_t planned_runs_ = 0;  // of this turn
  std::size_t turn_runs_ = 0;
  double turn_ns_ = 0;
  bool disturbed_ = false;  // something else interrupts the runs
  std::size_t timed_runs_ = 0;
};

}  // namespace parley::tuning

#pragma once
/// Chooses the candidate that the next invocation tries: interleaved rounds (A B C A B C) with successive halving.
///
///     halving_plan plan(candidates.size());
///     while (!plan.finished()) {
///       while (auto trial = plan.next()) stamp_next_invocation(trial->candidate, trial->what);
///       plan.complete_round(aggregates);   // one per candidate, over all of its repetitions so far
///     }
///     decide(aggregates);
///
/// The first round is a probe with one timed repetition of each candidate. It only drops candidates that failed: one repetition is no
/// evidence, because other work on the machine may have delayed it. A probe with more repetitions also drops hopeless candidates. Later
/// rounds double the repetitions while the field shrinks. After each round a challenger is dropped if the statistics of all rounds so far
/// show that it cannot win (see noise.hpp):
///  - it is surely slower than another candidate, by more than noise and by more than chance; or
///  - a candidate that is earlier in merged order (c0 is the first) is surely as good; or
///  - from the fourth round on, if more than two are left: it is not in the better half. If times differ only by chance, this is a guess,
///    but then a wrong guess costs little.
/// c0, candidate 0, stays to the end, because the decision compares the others with it. Once another candidate is surely faster, c0 runs
/// once per round.
///
/// If the first two rounds have even numbers of repetitions, these come in pairs. The second half of a pair runs in reverse order, and the
/// next pair begins with another candidate (A B C C B A, B C A A C B). So an effect on every second message of a program, such as a common
/// end with the previous message, affects all candidates alike.
///
/// Other work on the machine may make a few repetitions several times as long (`is_disturbed`). Then the median of few repetitions is a
/// matter of luck. Once a disturbance was seen, a candidate that was dropped with fewer than `thorough_repetitions` is only set aside.
/// Before the search ends, it is tried once more, together with the remaining candidates, until it has that many repetitions, and may
/// return. After a disturbance the search also needs that many repetitions, and more certainty, before it is settled.
///
/// The search stops once it is known with fair confidence that the candidate that `decide` would choose is within noise of the best
/// remaining candidate, and at the latest after `maximum_rounds`. So few repetitions suffice if times scatter little or differ by much;
/// otherwise the plan makes more. Their cost is only the extra time of slow configs (N4). The caller may also stop it after any invocation.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <parley/tuning/bits.hpp>
#include <parley/tuning/planners/plan_options.hpp>
#include <parley/tuning/planners/planner.hpp>
#include <parley/tuning/planners/statistics.hpp>

namespace parley::tuning {

class halving_plan {
 public:
  /// Candidate 0 is c0. With fewer than two candidates there is nothing to try, and the plan is finished at once.
  explicit halving_plan(std::size_t candidates, plan_options options = {});

  /// The next invocation's candidate; empty if the round is complete or the plan is finished.
  std::optional<trial> next();
  /// The trial that `next` would return, so that the caller can check its cost first; null if there is none.
  const trial* upcoming() const noexcept {
    return finished_ || position_ == sequence_.size() ? nullptr : &sequence_[position_];
  }
  /// True if all trials of this round were given out; call `complete_round` once they are reported.
  bool round_complete() const noexcept { return !finished_ && position_ == sequence_.size(); }
  bool finished() const noexcept { return finished_; }
  std::size_t round() const noexcept { return round_; }

  /// `aggregates`: one per candidate, over all rounds so far; the aggregates of dropped candidates are ignored. Throws `invalid` if their
  /// number is wrong or the round is not complete.
  void complete_round(std::span<const aggregate> aggregates);
  /// Drops a candidate that failed in a real invocation, at once and for good, with its planned trials. c0 is never
  /// dropped.
  void drop(std::size_t candidate);
  /// Ends the search: the caller decides with the present times.
  void stop() noexcept { finished_ = true; }

  /// The candidates that are still in the race, ascending; c0 is always among them.
  const std::vector<std::size_t>& survivors() const noexcept { return survivors_; }
  /// Trials of this round that were not given out yet.
  std::size_t left_in_round() const noexcept { return sequence_.size() - position_; }

  /// N4: returns true if the budget allows a trial that is expected to take `expected_ns` longer than c0. Otherwise run c0 and ask again
  /// later.
  bool may_continue(std::int64_t spent_ns, std::int64_t wall_ns, std::int64_t expected_ns = 0) const noexcept;

 private:
  void plan_round();
  void add_repetitions(std::size_t repetitions, trial_kind kind);
  void set_aside(std::span<const std::size_t> kept, std::span<const aggregate> aggregates);
  bool look_again(std::span<const aggregate> aggregates);
  bool is_thin(const aggregate& a) const noexcept { return a.measured() && a.count < options_.thorough_repetitions; }
  std::size_t repetitions_left() const noexcept;
  std::vector<std::size_t> ranked_challengers(std::span<const aggregate> aggregates) const;
  bool out_of_the_race(std::size_t challenger, std::span<const aggregate> aggregates) const;
  bool settled(std::span<const aggregate> aggregates) const;

  plan_options options_;
  std::size_t candidates_;
  std::size_t round_ = 0;
  std::size_t position_ = 0;
  std::size_t made_ = 0;   // timed repetitions of each survivor, this round's included
  double slowest_ns_ = 0;  // of the survivors
  bool default_is_out_ = false;
  bool disturbed_ = false;  // some repetition was disturbed
  bool finished_ = false;
  std::vector<std::size_t> survivors_;
  std::vector<std::size_t> set_aside_;  // dropped on thin evidence
  std::vector<bool> looked_at_again_;
  std::vector<trial> sequence_;
};

}  // namespace parley::tuning

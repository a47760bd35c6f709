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
/// The first round is a probe with one timed repetition each. It only drops candidates that failed: one repetition is no evidence,
/// because other work on the machine may have made it long. A probe with more repetitions also drops hopeless candidates. Later rounds
/// double the repetitions while the field shrinks. After each round a challenger is dropped when the statistics of all rounds so far say
/// that it cannot be the decision (see noise.hpp):
///  - it is surely slower than another candidate, by more than noise and by more than chance; or
///  - a candidate that comes before it in merged order, c0 first, is surely as good as it is; or
///  - from the fourth round on, if more than two are left: it is not in the better half. That is a guess where times differ by chance,
///    and then costs little.
/// c0, candidate 0, stays to the end, because the decision compares with it. Once another candidate is surely faster, c0 runs once a
/// round.
///
/// If the first two rounds have even numbers of repetitions, these come in pairs. The second half of a pair runs in reverse order, and
/// the next pair begins with another candidate (A B C C B A, B C A A C B). So what affects every second message of a program, such as
/// ending together with the message before it, affects every candidate.
///
/// Other work on the machine may make a few repetitions several times as long (`is_disturbed`). Medians of few repetitions are luck then.
/// Once that was seen, a candidate that was dropped with fewer than `thorough_repetitions` is only set aside: before the search ends it is
/// tried once more, together with those that are left, until it has that many, and may come back. The search is not settled with fewer
/// repetitions either, and needs more certainty.
///
/// The search stops as soon as the candidate that `decide` would choose is known, with fair confidence, to be within noise of the best
/// that is left, and at the latest after `maximum_rounds`. So few repetitions suffice when times hardly scatter or differ by much, and
/// more are made otherwise; they cost only what slow configs take longer (N4). The caller may also stop it after any invocation.
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

  /// The next invocation's candidate; nothing when the round is complete or the plan finished.
  std::optional<trial> next();
  /// The trial that `next` would return, so that its cost can be weighed first; null when it would return nothing.
  const trial* upcoming() const noexcept {
    return finished_ || position_ == sequence_.size() ? nullptr : &sequence_[position_];
  }
  /// True when all trials of this round are given out; call `complete_round` once they are reported.
  bool round_complete() const noexcept { return !finished_ && position_ == sequence_.size(); }
  bool finished() const noexcept { return finished_; }
  std::size_t round() const noexcept { return round_; }

  /// `aggregates`: one per candidate, over all rounds so far; those of dropped candidates are ignored. Throws `invalid` when
  /// their number is wrong or the round is not complete.
  void complete_round(std::span<const aggregate> aggregates);
  /// Drops a candidate that failed in a real invocation, at once and for good, with its planned trials. c0 is never
  /// dropped.
  void drop(std::size_t candidate);
  /// Ends the search here: the caller decides with what it has.
  void stop() noexcept { finished_ = true; }

  /// Still in the race, ascending; c0 is always among them.
  const std::vector<std::size_t>& survivors() const noexcept { return survivors_; }
  /// Trials of this round that were not given out yet.
  std::size_t left_in_round() const noexcept { return sequence_.size() - position_; }

  /// N4: returns true if the budget allows a trial that is expected to take `expected_ns` longer than c0. Otherwise run c0 and ask
  /// again.
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
  bool disturbed_ = false;  // some repetition was
  bool finished_ = false;
  std::vector<std::size_t> survivors_;
  std::vector<std::size_t> set_aside_;  // dropped on thin evidence
  std::vector<bool> looked_at_again_;
  std::vector<trial> sequence_;
};

}  // namespace parley::tuning

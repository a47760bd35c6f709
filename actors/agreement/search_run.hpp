#pragma once
/// Makes the trials of a search, from the first one to the decision: it knows which candidate is due, which invocation tries which
/// candidate, and which reports are missing. search.hpp has the state that a search keeps after its decision.
///
///     search_run run(terms, excluded, book);
///     if (auto due = run.due()) auto c = run.take(due, call, …);    // the next invocation tries it
///     run.add_row(participant, row); …                              // until `is_round_over`
///     run.end_round(…); run.plan().complete_round(book.aggregates); // then the next round, or it is over
#include <parley/actors/agreement/search_terms.hpp>
#include <parley/actors/agreement/trial_book.hpp>
#include <parley/actors/agreement/unmet_need.hpp>
#include <parley/actors/edge/outgoing.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/tuning/planners/halving_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace parley::actors {

/// A candidate that may not run for a key.
struct exclusion {
  // `same`: for these sizes the candidate does the same as another one. `hopeless`: its times for other sizes show that it cannot win. The
  // next search tries candidates again that were `unmet` or `hopeless`.
  enum class reason : std::uint8_t { constraint, unmet, failed, same, hopeless };
  std::size_t candidate = 0;
  reason kind = reason::constraint;
  std::string why;
  std::size_t same_as = 0;
  bool told = false;  ///< the user was warned
};
bool is_excluded(const std::vector<exclusion>& those, std::size_t candidate) noexcept;
/// The status of such a candidate in evidence: `excluded`, `quarantined`, `same` or `hopeless`.
std::string_view status_of(exclusion::reason kind) noexcept;

/// The config and flags of one invocation, as in its stamp.
struct choice {
  std::uint64_t digest = 0;
  stamp_flags flags = stamp_flags::none;
};

/// An invocation for which a config has to be chosen.
struct asked_call {
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::uint64_t order = 0;  ///< its number among all invocations of the op
  time_ns now = 0;
  trial_terms terms{};
};

class search_run {
 public:
  static constexpr std::size_t most_together = 64;  ///< most messages of one batch in a trial
  struct trial {
    std::uint32_t tag = 0;
    std::uint64_t invocation = 0;
    std::uint64_t order = 0;
    std::size_t candidate = 0;
    tuning::trial_kind kind = tuning::trial_kind::timed;
    std::uint64_t last_order = 0;  // of the last message of a batch
    std::size_t messages = 1;
    std::size_t reports = 0;  // by all participants, for all messages
    bool settled = false;     // no more reports are expected

    bool has(std::uint64_t its_order) const noexcept { return its_order >= order && its_order <= last_order; }
  };

  /// Empties the book. The arguments must outlive the run.
  search_run(const search_terms& terms, const std::vector<exclusion>& excluded, trial_book& book);

  tuning::halving_plan& plan() noexcept { return plan_; }
  const tuning::halving_plan& plan() const noexcept { return plan_; }
  /// True if a round is complete and its rows are in flight.
  bool collecting() const noexcept { return collecting_; }
  /// The time at which missing rows are given up.
  time_ns gives_up_at_ns() const noexcept {
    return collecting_ ? collecting_since_ns_ + rows_missing_after_ns : runtime::never;
  }
  void wait_longer(time_ns now) noexcept { collecting_since_ns_ = now; }
  /// The number of trials in all rounds.
  std::uint64_t made() const noexcept { return made_; }
  /// The trials of this round.
  const std::vector<trial>& trials() const noexcept { return trials_; }

  /// The next trial; empty if none is left in this round.
  std::optional<tuning::trial> due() const noexcept;
  /// The longest batch of this search, which is the expected length of a batch.
  std::size_t longest_batch() const noexcept { return longest_batch_; }
  /// Makes the next invocation the trial that is due. If nothing is due, the round is complete, and the invocation runs `otherwise`.
  choice take(const std::optional<tuning::trial>& due, const asked_call& call, std::uint64_t otherwise);
  /// The config that the trial of the latest batch runs; 0: the batch is no trial, or the trial has ended.
  std::uint64_t digest_of_batch() const noexcept;
  /// Adds another message of the batch to its trial, which must have room.
  choice join(const asked_call& call);
  std::size_t candidate_of_batch() const noexcept { return trials_[*trial_of_batch_].candidate; }
  bool batch_has_room() const noexcept { return trials_[*trial_of_batch_].messages < most_together; }
  void leave_batch() noexcept { trial_of_batch_.reset(); }

  /// A candidate's trial was due, but the candidate lacked `what`. Returns whether this has happened often enough, and for long enough, to
  /// give the candidate up.
  bool lacked_too_often(std::size_t candidate, unmet_need what, time_ns now);
  void note_had(std::size_t candidate) noexcept;
  /// The candidate may not run any more.
  void drop(std::size_t candidate);

  /// Adds a row. Returns whether it belongs to a trial of this run.
  bool add_row(rank_id participant, const wire_row& r);
  /// The invocation is no trial after all, and its candidate is tried again. Returns whether it was a trial.
  bool withdraw(std::uint32_t tag, std::uint64_t invocation);
  /// True if all trials are settled, or rows have been missing for too long after all participants had begun them.
  bool is_round_over(time_ns now) noexcept;
  /// True if a config has timed out in a trial of this round, and more trials of that config are scheduled.
  bool has_late_trials() const noexcept;
  /// The trials of this round from that invocation on will not run. They are made later, except the trials of a config that has timed out:
  /// one timeout is enough to judge the config.
  void cut_short(std::uint64_t from);
  /// Ends the round and returns whether it is over. A trial may time out because a rank computes or is stopped, and then the config is not
  /// to blame. So a trial that timed out is made again. At the config's second timeout, with all participants in both trials,
  /// `fail(candidate, rank)` is called instead.
  bool end_round(const std::function<void(std::size_t candidate, rank_id late)>& fail);
  /// Computes the aggregates from all rows so far. Candidates that were added later do not belong to this search.
  void sum_up(std::span<const tuning::participant_clock> clocks);
  /// The time that the trials took beyond `instead_ns` each.
  double cost_ns(double instead_ns, std::span<const tuning::participant_clock> clocks) const;

  /// A text for a caller that waits: the trials that were made, and the missing reports.
  std::string progress() const;

 private:
  struct place {
    std::size_t trial = 0;
    std::uint64_t order = 0;
    std::uint64_t reported_by = 0;  // one bit for each of the first 64 participants
  };
  // How often a candidate could not run, and how often it could run, when its trial was due in this search.
  struct shortage {
    std::size_t candidate = 0;
    std::size_t lacked = 0;
    std::size_t had = 0;
    time_ns since_ns = 0;
  };
  // A candidate that lacks something again and again delays the others. It is left out after this many times, unless it could run once in
  // `least_share` times. If the missing thing may only be late, the candidate is not left out before `longest_late_ns`.
  static constexpr std::size_t most_lacking = 64;
  static constexpr std::size_t most_without_pieces = 8;  // for needs that depend on the layout, which stays
  static constexpr std::size_t least_share = 8;
  static constexpr time_ns longest_late_ns = 1'000'000'000;
  static constexpr time_ns rows_missing_after_ns = 10'000'000'000;

  void collect(time_ns now) noexcept;
  void note_place(const asked_call& call, std::size_t trial);
  bool note_report(place& at, rank_id participant, const std::vector<tuning::row>& rows) const noexcept;
  void cancel(trial& t);
  void forget(const trial& t);
  bool is_late(std::size_t candidate) const noexcept;
  std::vector<tuning::row> late_rows_of(const trial& t) const;
  tuning::aggregate aggregate_of(std::size_t candidate, std::span<const std::uint64_t> invocations,
                                 std::span<const tuning::participant_clock> clocks) const;

  const search_terms& terms_;
  const std::vector<exclusion>& excluded_;
  trial_book& book_;
  tuning::halving_plan plan_;
  bool collecting_ = false;
  time_ns collecting_since_ns_ = 0;
  std::vector<trial> trials_;
  by_invocation<place> places_;                // of all messages in trials
  std::optional<std::size_t> trial_of_batch_;  // set if the latest batch is a trial
  std::size_t longest_batch_ = 1;
  std::size_t unsettled_ = 0;  // trials that still wait for rows
  std::uint64_t made_ = 0;
  std::vector<std::size_t> again_;  // candidates whose trial was cancelled
  std::vector<shortage> shortages_;
};

}  // namespace parley::actors

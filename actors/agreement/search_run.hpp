#pragma once
/// The trials of a search, from its first to its decision: which candidate is due, which invocations try what, and what is still to be
/// reported of them. What a search keeps when it has decided is not here (search.hpp).
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
#include <vector>

namespace parley::actors {

/// A candidate that may not run for a key.
struct exclusion {
  // The next search asks again for what was unmet. `same`: for these sizes it is what another one is.
  enum class reason : std::uint8_t { constraint, unmet, failed, same };
  std::size_t candidate = 0;
  reason kind = reason::constraint;
  std::string why;
  std::size_t same_as = 0;
  bool told = false;  ///< the user
};
bool is_excluded(const std::vector<exclusion>& those, std::size_t candidate) noexcept;

/// What one invocation is to run, as its stamp says it.
struct choice {
  std::uint64_t digest = 0;
  stamp_flags flags = stamp_flags::none;
};

/// The invocation that something is to be chosen for.
struct asked_call {
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::uint64_t order = 0;  ///< among all invocations of the op
  time_ns now = 0;
  trial_terms terms{};
};

class search_run {
 public:
  static constexpr std::size_t most_together = 64;  ///< messages of one batch in a trial
  struct trial {
    std::uint32_t tag = 0;
    std::uint64_t invocation = 0;
    std::uint64_t order = 0;
    std::size_t candidate = 0;
    tuning::trial_kind kind = tuning::trial_kind::timed;
    std::uint64_t last_order = 0;  // of a batch
    std::size_t messages = 1;
    std::size_t reports = 0;  // by all participants, of all messages
    bool settled = false;     // nothing more is to come of it

    bool has(std::uint64_t its_order) const noexcept { return its_order >= order && its_order <= last_order; }
  };

  /// Empties the book. All of them outlive the run.
  search_run(const search_terms& terms, const std::vector<exclusion>& excluded, trial_book& book);

  tuning::halving_plan& plan() noexcept { return plan_; }
  const tuning::halving_plan& plan() const noexcept { return plan_; }
  /// A round is complete, and its rows are on their way.
  bool collecting() const noexcept { return collecting_; }
  /// When the rows that are missing by then are given up.
  time_ns gives_up_at_ns() const noexcept {
    return collecting_ ? collecting_since_ns_ + rows_missing_after_ns : runtime::never;
  }
  void wait_longer(time_ns now) noexcept { collecting_since_ns_ = now; }
  /// Trials, in all rounds.
  std::uint64_t made() const noexcept { return made_; }
  /// Of this round.
  const std::vector<trial>& trials() const noexcept { return trials_; }

  /// The trial that is next; nothing: what was left of the round has been quarantined.
  std::optional<tuning::trial> due() const noexcept;
  /// The longest batch of this search: a batch is taken to be as long.
  std::size_t longest_batch() const noexcept { return longest_batch_; }
  /// The next invocation tries what is due. Without anything the round is complete.
  choice take(const std::optional<tuning::trial>& due, const asked_call& call, std::uint64_t otherwise);
  /// What a trial of the latest batch runs; 0: it is none, or has ended.
  std::uint64_t digest_of_batch() const noexcept;
  /// Another message of the batch that is a trial, which has room.
  choice join(const asked_call& call);
  std::size_t candidate_of_batch() const noexcept { return trials_[*trial_of_batch_].candidate; }
  bool batch_has_room() const noexcept { return trials_[*trial_of_batch_].messages < most_together; }
  void leave_batch() noexcept { trial_of_batch_.reset(); }

  /// A candidate's trial was due when it could not run: whether that has been often enough, and for long enough, to give it up.
  bool lacked_too_often(std::size_t candidate, unmet_need what, time_ns now);
  void note_had(std::size_t candidate) noexcept;
  /// It may not run any more.
  void drop(std::size_t candidate);

  /// Whether the row is of a trial of this run.
  bool add_row(rank_id participant, const wire_row& r);
  /// The invocation is no trial after all, and its candidate is tried again. Whether it was one.
  bool withdraw(std::uint32_t tag, std::uint64_t invocation);
  /// All trials are settled, or their rows have been missing for too long while everybody was at them.
  bool is_round_over(time_ns now) noexcept;
  /// A config has timed out in a trial of this round, and more trials of it are to come.
  bool has_late_trials() const noexcept;
  /// The trials of this round from that invocation on will not run: they are made later, but for those of what has timed out, of which
  /// one is enough to judge it by.
  void cut_short(std::uint64_t from);
  /// Who computes meanwhile, or is stopped, says nothing about the config: one whose trial timed out with all at it is out at the second
  /// time, by `fail(candidate, rank)`; the other ones that timed out are made again. Answers whether the round is over.
  bool end_round(const std::function<void(std::size_t candidate, rank_id late)>& fail);
  /// Over all rows so far. What became a candidate since is not of this search.
  void sum_up(std::span<const tuning::participant_clock> clocks);
  /// What the trials took beyond `instead_ns` each.
  double cost_ns(double instead_ns, std::span<const tuning::participant_clock> clocks) const;

  /// For whoever waits for it: what has been made, and what is missing.
  std::string progress() const;

 private:
  struct place {
    std::size_t trial = 0;
    std::uint64_t order = 0;
    std::uint64_t reported_by = 0;  // of the first 64 participants, a bit each
  };
  // Of a candidate whose trial was due when it could not run: how often in this search, and how often it could have.
  struct shortage {
    std::size_t candidate = 0;
    std::size_t lacked = 0;
    std::size_t had = 0;
    time_ns since_ns = 0;
  };
  // What a candidate lacks again and again keeps the others waiting: it is left out after so many times, unless it has been
  // there for one in `least_share`, and where it may only be late, no sooner than after `longest_late_ns`.
  static constexpr std::size_t most_lacking = 64;
  static constexpr std::size_t most_without_pieces = 8;  // which is a matter of layouts, and those stay
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
  by_invocation<place> places_;                // of what was timed
  std::optional<std::size_t> trial_of_batch_;  // if the latest batch is one
  std::size_t longest_batch_ = 1;
  std::size_t unsettled_ = 0;  // trials that still wait for rows
  std::uint64_t made_ = 0;
  std::vector<std::size_t> again_;  // candidates whose trial was cancelled
  std::vector<shortage> shortages_;
};

}  // namespace parley::actors

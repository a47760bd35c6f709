#pragma once
/// Whether what was decided still takes as long: now and then a few calls in a row are timed like trials, a burst.
///
///     drift_watch watch(terms);
///     watch.decided({…});                                        // at each decision
///     switch (watch.sample(call, goes_on)) …                     // says of each call that is due whether it is timed
///     watch.add_row(participant, row);                           // until `burst_is_complete`
///     if (auto why = watch.has_drifted(watch.burst(digest, clocks), now)) …search anew…
#include <parley/actors/agreement/search_run.hpp>
#include <parley/actors/agreement/search_terms.hpp>
#include <parley/actors/agreement/trial_book.hpp>
#include <parley/tuning/planners/drift.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::actors {

class drift_watch {
 public:
  explicit drift_watch(search_terms& terms) : terms_(terms), detector_(terms.plan.drift) {}

  /// What was decided, when, in which search, and what it took in the trials.
  struct decision {
    std::uint64_t digest = 0;
    double time_ns = 0;
    runtime::time_ns at_ns = 0;
    std::uint32_t search = 0;
  };
  void decided(const decision& d);

  enum class timing : std::uint8_t {
    none,
    later,  ///< no burst goes on: it is asked again after a while
    timed,
    last,  ///< timed, and the burst is to be reported
  };
  /// The first call of a burst makes both ends read their clocks, and is not counted, nor is what follows it in its batch; after the last
  /// one they stop. `goes_on`: the call is of the same batch as the one before.
  timing sample(const asked_call& call, bool goes_on);
  void end_burst() noexcept;

  enum class found : std::uint8_t { no, yes, again };
  /// The call is no sample after all. `again`: the next call takes its place. Where sizes are never as foreseen the burst stays incomplete.
  found withdraw(std::uint32_t tag, std::uint64_t invocation, bool in_force);
  /// Whether the row is of a sample.
  bool add_row(rank_id participant, const wire_row& r);
  bool burst_is_complete() const noexcept { return repetitions() == terms_.plan.drift.samples && missing_ == 0; }
  tuning::aggregate burst(std::uint64_t digest, std::span<const tuning::participant_clock> clocks) const;
  /// The same for an op without headers: its leader's own calls, as long as they take. As with stamps, the call that begins a burst is
  /// not counted: its clock was read too coarsely. Answers what the burst took, when it has ended.
  bool begin_burst(time_ns now);
  bool is_bursting() const noexcept { return bursting_; }
  std::optional<tuning::aggregate> add_call(std::uint64_t order, std::uint64_t digest, time_ns took_ns, time_ns now);
  /// In words, where it takes longer, or less long, for good. `search` is the one that comes then.
  std::optional<std::string> has_drifted(const tuning::aggregate& burst, std::uint64_t digest, std::uint32_t search,
                                         time_ns now);

  /// Calls that were timed in the latest burst.
  std::size_t timed() const noexcept { return orders_.size(); }
  double latest_ns() const noexcept { return detector_.latest_ns(); }

 private:
  std::size_t repetitions() const noexcept { return orders_.size() - joined_.size(); }

  search_terms& terms_;
  tuning::drift_detector detector_;
  bool bursting_ = false;
  std::vector<std::uint64_t> orders_;  // of the timed ones, in the latest burst
  std::vector<std::uint64_t> joined_;  // of these, those of the same batch as the one before
  by_invocation<std::uint64_t> places_;
  std::vector<tuning::row> rows_;
  std::size_t missing_ = 0;  // rows that are still to come
  std::size_t again_ = 0;    // samples that were taken in place of others
  time_ns began_ns_ = 0;
  time_ns search_pause_ns_ = 0;
  time_ns search_not_before_ns_ = 0;
  std::uint32_t searched_ = 0;  // which search it asked for; 0: none
  std::uint64_t digest_before_ = 0;
  double tried_ns_ = 0;  // what the winner took in the latest trials
};

}  // namespace parley::actors

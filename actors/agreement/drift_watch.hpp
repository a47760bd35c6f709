#pragma once
/// Notices when the decided config becomes slower or faster. Now and then the watch times a burst: a few consecutive calls, timed like
/// trials.
///
///     drift_watch watch(terms);
///     watch.decided({…});                                        // at each decision
///     switch (watch.sample(call, goes_on)) …                     // says of each call that is due whether it is timed
///     watch.add_row(participant, row);                           // until `burst_is_complete`
///     if (auto why = watch.has_drifted(watch.burst(digest, clocks), digest, next_search, now)) …search again…
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

  /// The decided config, its time in the trials, and when and in which search it was decided.
  struct decision {
    std::uint64_t digest = 0;
    double time_ns = 0;
    runtime::time_ns at_ns = 0;
    std::uint32_t search = 0;
  };
  void decided(const decision& d);

  enum class timing : std::uint8_t {
    none,
    later,  ///< no burst is in progress: ask again after a while
    timed,
    last,  ///< timed; after it the burst is reported
  };
  /// True if a call that is due is timed. The first call of a burst makes both ends read their clocks. The first call is not counted, nor
  /// are later messages of its batch. After the last call both ends stop reading clocks. `goes_on`: the call is in the same batch as the
  /// previous call.
  timing sample(const asked_call& call, bool goes_on);
  void end_burst() noexcept;

  enum class found : std::uint8_t { no, yes, again };
  /// The call is no sample after all. `again`: the next call replaces it. If sizes are never as foreseen, the burst stays incomplete.
  found withdraw(std::uint32_t tag, std::uint64_t invocation, bool in_force);
  /// Adds a row. Returns whether it belongs to a sample.
  bool add_row(rank_id participant, const wire_row& r);
  bool burst_is_complete() const noexcept { return repetitions() == terms_.plan.drift.samples && missing_ == 0; }
  tuning::aggregate burst(std::uint64_t digest, std::span<const tuning::participant_clock> clocks) const;
  /// For an op without headers: a burst of the leader's own calls; only their durations count. The call that begins a burst is not counted,
  /// because its clock was read too coarsely. `add_call` returns the time of the burst, once the burst has ended.
  bool begin_burst(time_ns now);
  bool is_bursting() const noexcept { return bursting_; }
  std::optional<tuning::aggregate> add_call(std::uint64_t order, std::uint64_t digest, time_ns took_ns, time_ns now);
  /// A text that says that the config has become slower or faster and stays so; empty if that is not the case. `search` is the number of
  /// the search that would follow.
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
  std::vector<std::uint64_t> orders_;  // timed calls of the latest burst
  std::vector<std::uint64_t> joined_;  // of these, calls in the same batch as the call before
  by_invocation<std::uint64_t> places_;
  std::vector<tuning::row> rows_;
  std::size_t missing_ = 0;  // rows that have not arrived yet
  std::size_t again_ = 0;    // samples that replaced withdrawn ones
  time_ns began_ns_ = 0;
  time_ns search_pause_ns_ = 0;
  time_ns search_not_before_ns_ = 0;
  std::uint32_t searched_ = 0;  // the search that this watch requested; 0: none
  std::uint64_t digest_before_ = 0;
  double tried_ns_ = 0;  // the winner's time in the latest trials
};

}  // namespace parley::actors

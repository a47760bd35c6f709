#pragma once
/// The search for one op and size: the config that runs and the reason, the excluded configs, the trials in progress, and the results of
/// trials.
///
///     search s(terms, bucket, now);                       // the default runs
///     s.begin(now);                                       // once all have warmed the candidates (S3, S4)
///     choice c = s.choose_rarely(call, {});               // goes into the stamp of one invocation (S1)
///     s.add_row(participant, row); …                      // what participants report
///     if (s.is_round_over(now)) s.judge(now, clocks);     // the next round, or the decision
///     s.chosen().config;                                  // what runs from then on
///
/// Pure bookkeeping: it sends nothing and waits for nothing. `run_` has the state that exists only during trials. `book_` keeps the results
/// of the trials, as the evidence of the decision. A search may begin again, on request or when the decided config has failed. Until the
/// new search decides, the old decision stays in force; if that search measures nothing, the old decision also stays.
#include <parley/actors/agreement/drift_watch.hpp>
#include <parley/actors/agreement/search_run.hpp>
#include <parley/actors/agreement/search_terms.hpp>
#include <parley/actors/agreement/trial_book.hpp>
#include <parley/actors/agreement/unmet_need.hpp>
#include <parley/tuning/key.hpp>
#include <parley/tuning/planners/decide.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::actors {

/// The next step after a search was given up: it begins again later, or the chosen config stays for good.
enum class after_abort : std::uint8_t { try_later, stay };

/// The config that runs for a size, and why. Before the first decision it is the default.
struct chosen_config {
  std::uint64_t digest = 0;
  std::size_t candidate = 0;
  std::string config;
  std::string why;
  decision_source source = decision_source::trials;
  tuning::confidence confidence = tuning::confidence::none;
  rank_id proposer = 0;              ///< if a results file decided: the rank that has the file
  std::uint64_t remembered_for = 0;  ///< the machines that the file names; for a pin 0 may mean all machines
  double remembered_time_ns = 0;     ///< the time in that file; 0: none
  double time_ns = 0;                ///< its time in the trials; 0: not measured
  runtime::time_ns at_ns = 0;        ///< when it was decided

  bool from_results() const noexcept { return source == decision_source::results || source == decision_source::pin; }
};

class search {
 public:
  enum class stage : std::uint8_t {
    waiting,     ///< offers, merge or warm-up are in progress: the default runs
    trying,      ///< invocations are stamped with candidates
    collecting,  ///< a round is complete, its rows are in flight
    decided,
  };

  search(search_terms& terms, tuning::size_bucket bucket, time_ns now);
  search(const search&) = delete;
  search& operator=(const search&) = delete;
  ~search();

  // ---- what it knows

  stage where() const noexcept {
    if (decided_) return stage::decided;
    return !run_ ? stage::waiting : run_->collecting() ? stage::collecting : stage::trying;
  }
  bool is_decided() const noexcept { return decided_; }
  const chosen_config& chosen() const noexcept { return chosen_; }
  const tuning::size_bucket& bucket() const noexcept { return bucket_; }
  const std::string& key() const noexcept { return key_; }  ///< as in a results file: `16MiB_bf16`
  const std::vector<exclusion>& excluded() const noexcept { return excluded_; }
  bool excludes(std::size_t candidate) const noexcept { return is_excluded(excluded_, candidate); }
  /// The results of the latest trials.
  const trial_book& book() const noexcept { return book_; }
  const std::vector<tuning::aggregate>& aggregates() const noexcept { return book_.aggregates; }
  /// Null while no trials are in progress.
  const search_run* run() const noexcept { return run_ ? &*run_ : nullptr; }
  /// Null if the decision is not watched.
  const drift_watch* drift() const noexcept { return drift_ ? &*drift_ : nullptr; }
  std::uint32_t number() const noexcept { return number_; }            ///< the number of this search, from 1 on
  const std::string& reason() const noexcept { return reason_; }       ///< why it searches, or searched, again
  std::uint64_t invocations() const noexcept { return invocations_; }  ///< begun so far
  std::uint64_t calls_since_decision() const noexcept { return invocations_ - invocations_before_; }
  std::uint64_t invocations_to_agreement() const noexcept { return invocations_to_agreement_; }
  std::uint64_t trials() const noexcept { return trials_before_ + (run_ ? run_->made() : 0); }
  double cost_ns() const noexcept { return account_.cost_ns; }  ///< time that the trials took beyond the default's
  /// The expected extra cost of trials without a report so far.
  double pending_ns() const noexcept { return account_.pending_ns; }
  time_ns first_ns() const noexcept { return first_ns_; }
  time_ns search_began_ns() const noexcept { return search_began_ns_; }
  /// The shortest time of the default at the sender, which is known before both sides have measured the default; 0: not known.
  double fastest_default_ns() const noexcept { return fastest_default_ns_; }
  /// A text about entries of results files for this size that do not count; empty: none.
  const std::string& missed() const noexcept { return missed_; }
  /// `retune` was called during this search, so another search follows it.
  bool is_asked_again() const noexcept { return asked_again_.has_value(); }
  /// Another search will begin at a set time, without a call of `retune`.
  bool searches_again() const noexcept { return again_at_ns_ != runtime::never; }
  /// Calls since the decision that ran another config, because the decided one lacked `what`.
  std::uint64_t ran_others(unmet_need what) const noexcept { return ran_others_[static_cast<std::size_t>(what)]; }
  /// For each unmet need since the decision: its name, and how many calls ran another config because of it.
  std::vector<std::pair<std::string_view, std::uint64_t>> runs_of_others() const;
  /// A text for a caller that waits for a decision.
  std::string progress() const;

  // ---- what invocations run

  /// Counts an invocation. True for nearly every invocation: it runs the chosen config, and nothing else has to be done.
  bool next_is_plain() noexcept { return ++invocations_ < next_sample_ && decided_; }
  /// The choice for an invocation that is not plain: a trial, a timed call, the default, or another config if `lacking` has the chosen one.
  choice choose_rarely(const asked_call& call, std::span<const lacking_config> lacking);
  void note_default(time_ns took_ns) noexcept;
  /// How long a call may wait for the unmet need of the chosen config: the time by which the config that would run instead is slower. If
  /// the time of that other config is not known (a results file decided): the time of the chosen config. If the time of the chosen config
  /// is not known, the call does not wait.
  time_ns worth_waiting_ns(std::span<const lacking_config> lacking) const noexcept;
  /// True if trials whose expected extra cost is `expected_ns` may be made now (N4).
  bool affordable(double expected_ns, time_ns now) const noexcept;

  // ---- how it goes on

  /// Begins with the present candidates.
  void begin(time_ns now);
  /// Begins with more candidates than before; `why` is the reason for the search.
  void begin_with_more(const std::string& why, time_ns now);
  /// Both return whether the invocation belongs to this search.
  bool add_row(rank_id participant, const wire_row& r);
  bool withdraw(std::uint32_t tag, std::uint64_t invocation);
  bool is_round_over(time_ns now) noexcept { return run_ && run_->is_round_over(now); }
  void judge(time_ns now, std::span<const tuning::participant_clock> clocks);
  void watch_drift(time_ns now, std::span<const tuning::participant_clock> clocks);
  bool note_call(std::uint64_t digest, time_ns took_ns, time_ns now, std::uint64_t& order);
  bool has_late_trials() const noexcept { return run_ && run_->has_late_trials(); }
  void cut_short(std::uint64_t from) {
    if (run_) run_->cut_short(from);
  }
  void wait_longer(time_ns now) noexcept {
    if (run_) run_->wait_longer(now);
  }
  /// When the search must next act without a call or a message: it gives up waiting for rows, or searches again.
  time_ns next_event_ns() const noexcept;
  /// Begins the search that is due by now, if any.
  void search_when_due(time_ns now);

  /// A config failed in a real invocation. It never runs again for this size, and the next call runs the default.
  void quarantine(std::size_t candidate, const std::string& why, time_ns now);
  /// A config failed in a rehearsal, not in a call. If a results file had chosen it, it has not run yet: the search begins again with
  /// another entry of the files, or with trials.
  void fail_rehearsal(std::size_t candidate, const std::string& why, time_ns now);
  /// The config that a results file chose cannot be rehearsed now, but the config is not to blame. The default runs, and the file is
  /// considered again later.
  void postpone(const std::string& why, time_ns now);
  /// Searches again. If the search in progress has timed nothing yet, no other search follows; otherwise another search follows it. Returns
  /// whether a search began at once.
  bool retune(std::string_view why, time_ns now);
  /// Gives the search up, and keeps the chosen config. Returns whether a search was in progress.
  bool abort(std::string_view why, after_abort next, time_ns now);
  /// Ends all searching and timing; the config in force stays.
  void stop(const std::string& why, time_ns now);

  // ---- what the participants are told

  bool is_to_be_announced() const noexcept { return decided_ && !announced_; }
  std::uint32_t next_version() const noexcept { return version_ + 1; }
  void note_announced() noexcept {
    ++version_;
    announced_ = true;
  }
  /// A config that failed in a real invocation, of which the user has not been warned yet. Marks it as reported. Null if there is none.
  const exclusion* next_untold() noexcept;
  /// A rule that cannot be followed, of which the user has not been warned yet; empty: none. Marks it as reported.
  std::string take_rule_not_followed() {
    return by_rule_.empty() || std::exchange(told_of_rule_, true) ? std::string() : by_rule_;
  }

 private:
  static constexpr time_ns longest_wait_ns = 1'000'000'000;  // for one call, even if ranks have reported longer times
  static constexpr time_ns first_pause_ns = 10'000'000'000;
  static constexpr time_ns longest_pause_ns = 600'000'000'000;

  choice choose_undecided(const asked_call& call);
  choice choose_in_batch(const asked_call& call);
  choice choose_without(const asked_call& call, std::span<const lacking_config> lacking);
  choice choose_sample(const asked_call& call);
  choice next_trial(const asked_call& call);
  choice untimed() noexcept;
  std::size_t best_without(std::span<const lacking_config> lacking) const noexcept;
  std::string why_it_lacked(unmet_need what) const;
  double expected_cost_ns(std::size_t candidate) const noexcept;

  void begin_run(time_ns now);
  void end_run() noexcept;
  void start_over(time_ns now);
  void search_again(std::string why, time_ns now);
  void settle(std::size_t winner, decision_source source, std::string why, time_ns now);
  decision_source source_of_kept() const noexcept { return number_ == 1 ? decision_source::kept : chosen_.source; }
  void fall_back();
  void pause(time_ns now) noexcept;
  void refine_later(time_ns now);
  void exclude(std::size_t candidate, exclusion::reason kind, std::string why);
  void exclude_beyond_limits();
  void exclude_by_rules();
  bool settle_by_rule(time_ns now);
  bool is_by_rule() const noexcept { return decided_ && chosen_.source == decision_source::rule; }
  bool settle_by_neighbours(time_ns now);
  void exclude_equals();
  std::vector<tuning::predicted_time> expected_times() const;
  void exclude_hopeless(const std::vector<tuning::predicted_time>& expected);
  std::optional<std::string> surprise() const;
  void learn_times();
  std::string shape_of(std::size_t candidate) const;
  // Candidates that a later search may try.
  bool has_other_candidates() const noexcept;
  bool has_measured() const noexcept;
  // True if a results file, a rule or other sizes have decided, without any trials.
  bool was_decided_untried() const noexcept;
  void watch();
  void watch_later() noexcept;
  bool search_if_drifted(const tuning::aggregate& burst, time_ns now);

  // These members are together because every call uses them.
  std::uint64_t invocations_ = 0;
  std::uint64_t next_sample_ = ~std::uint64_t{0};  // the next invocation that matters for drift
  bool decided_ = false;
  bool announced_ = false;  // the participants know this decision
  bool rest_ = false;       // a config has just failed: the next invocation runs the default
  chosen_config chosen_;

  search_terms& terms_;
  trial_budget::account& account_;
  tuning::size_bucket bucket_;
  std::string key_;
  std::vector<exclusion> excluded_;
  trial_book book_;
  std::optional<search_run> run_;
  std::optional<drift_watch> drift_;
  std::uint64_t batch_ = 0;  // the latest batch
  std::uint32_t version_ = 0;
  std::uint32_t number_ = 1;
  std::string reason_;
  std::string missed_;
  std::string by_rule_;                     // names a rule that cannot be followed
  bool told_of_rule_ = false;               // the user was warned of it
  std::optional<std::string> asked_again_;  // the reason for a search that follows this one; empty: none follows
  time_ns again_at_ns_ = runtime::never;    // when another search begins without a request
  time_ns pause_ns_ = 0;
  bool postponed_ = false;           // the next search looks at results files again
  bool refines_ = false;             // the next search tries a results file's decision that has little evidence
  std::uint64_t trials_before_ = 0;  // in earlier searches
  double cost_before_ns_ = 0;
  std::uint64_t invocations_before_ = 0;  // up to the decision
  std::uint64_t invocations_to_agreement_ = 0;
  std::array<std::uint64_t, unmet_needs> ran_others_{};  // since the decision, by what the decided config lacked
  time_ns first_ns_ = 0;
  time_ns search_began_ns_ = 0;
  double fastest_default_ns_ = 0;
};

}  // namespace parley::actors

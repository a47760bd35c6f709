#pragma once
/// Who runs what: the leader's assignment of configs to invocations, with one campaign per tuning key.
///
///     assignment a(c0_digest, plan, budget);
///     a.open(candidates, ids, remembered);              // once all have warmed them: what may be assigned (S3, S4)
///     auto c = a.choose(bytes, tag, invocation, now);   // c.digest goes into the stamp
///     a.add_row(participant, row); …                    // what participants report
///     while (campaign* done = a.ready_to_judge()) a.judge(*done, now);
///     a.watch_drift(now, clocks);                       // whether what was decided still takes as long
///
/// Pure bookkeeping: it sends nothing and waits for nothing. An invocation is assigned once, when it begins (S1). Until a
/// campaign has decided, every invocation that is no trial runs the default. A campaign may search anew, when it is asked to
/// or what it decided has failed: its old decision stays in force meanwhile, and after a search that measured nothing.
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/edge/outgoing.hpp>
#include <parley/actors/policy.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/identifiers.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/tuning/key.hpp>
#include <parley/tuning/planners/decide.hpp>
#include <parley/tuning/planners/drift.hpp>
#include <parley/tuning/planners/plan.hpp>
#include <parley/tuning/planners/statistics.hpp>
#include <parley/tuning/results/warm_start.hpp>

#include <boost/container/flat_map.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::actors {

using runtime::time_ns;

using tuning::remembered_best;

/// A participant cannot or must not run a candidate with messages of more than `largest_bytes`.
struct candidate_limit {
  std::uint64_t digest = 0;
  std::uint64_t largest_bytes = 0;
  std::string why;
};

/// What a config lacks for one invocation: one-sided ones, and those that move a payload by its pieces.
enum class unmet_need : std::uint8_t {
  payload,             ///< there is nothing to put or get
  memory_of_receiver,  ///< which has registered none
  credit_in_time,      ///< its receiver has registered memory
  memory_of_sender,    ///< what is sent is not in registered memory
  word_in_time,        ///< the receiver has not said yet that it knows the sender's memory
  pieces,              ///< the payload does not lie in pieces that may go by themselves
  like_pieces,         ///< the receiver has others
  word_of_pieces,      ///< which it has, it has not said yet
  last = word_of_pieces
};
constexpr std::size_t unmet_needs = static_cast<std::size_t>(unmet_need::last) + 1;
/// In a report: `no credit in time`.
std::string_view name(unmet_need what) noexcept;
/// Time alone may meet this need, so that a call may wait for it.
constexpr bool may_come(unmet_need what) noexcept {
  return what == unmet_need::credit_in_time || what == unmet_need::word_in_time;
}
struct lacking_config {
  std::uint64_t digest = 0;
  unmet_need what = unmet_need::memory_of_receiver;
};

/// Empties it and frees its memory, which `= {}` and `clear` keep.
template <class Container>
void free_all_of(Container& c) noexcept {
  Container().swap(c);
}

/// By tag and invocation. There are few at a time.
template <class Of>
using by_invocation = boost::container::flat_map<std::pair<std::uint32_t, std::uint64_t>, Of>;

/// Now and then a few decided invocations in a row are timed like trials, to see whether they still take as long.
struct drift_watch {
  explicit drift_watch(const tuning::drift_options& o) : detector(o) {}
  tuning::drift_detector detector;
  bool bursting = false;
  std::vector<std::uint64_t> orders;  // of the timed ones, in the latest burst
  std::vector<std::uint64_t> joined;  // of these, those of the same batch as the one before
  by_invocation<std::uint64_t> places;
  std::vector<tuning::row> rows;
  std::size_t repetitions() const noexcept { return orders.size() - joined.size(); }
  std::size_t missing = 0;  // rows that are still to come
  std::size_t again = 0;    // samples that were taken in place of others
  time_ns began_ns = 0;
  time_ns search_pause_ns = 0;
  time_ns search_not_before_ns = 0;
  std::uint64_t searched = 0;  // which search it asked for; 0: none
  std::uint64_t digest_before = 0;
};

/// What becomes of a search that was given up.
enum class after_abort : std::uint8_t { try_later, stay };

/// The search for one key, from its first invocation on.
struct campaign {
  enum class stage : std::uint8_t {
    waiting,     ///< offers, merge or warm-up are under way: the default runs
    trying,      ///< invocations are stamped with candidates
    collecting,  ///< a round is complete, its rows are on their way
    decided,
  };
  struct trial {
    std::uint32_t tag = 0;
    std::uint64_t invocation = 0;
    std::uint64_t order = 0;  // among all invocations of the op: what "the one before" means
    std::size_t candidate = 0;
    tuning::trial_kind kind = tuning::trial_kind::timed;
    std::uint64_t last_order = 0;  // of a batch
    std::size_t messages = 1;
    std::size_t reports = 0;  // by all participants, of all messages
    bool settled = false;     // nothing more is to come of it

    bool has(std::uint64_t its_order) const noexcept { return its_order >= order && its_order <= last_order; }
  };
  struct place {
    std::size_t trial = 0;  // in `outstanding`
    std::uint64_t order = 0;
    std::uint64_t reported_by = 0;  // of the first 64 participants, a bit each
  };
  struct exclusion {
    // The next search asks again for what was unmet. `same`: for these sizes it is what another one is.
    enum class reason : std::uint8_t { constraint, unmet, failed, same };
    std::size_t candidate = 0;
    reason kind = reason::constraint;
    std::string why;
    std::size_t same_as = 0;
    bool told = false;  // the user
  };

  // What every call looks at is together.
  stage where = stage::waiting;
  std::uint64_t digest = 0;                       ///< of the winner once decided, else of the default
  std::uint64_t invocations = 0;                  ///< begun in all
  std::uint64_t next_sample = ~std::uint64_t{0};  ///< which of its invocations has to do with drift
  tuning::size_bucket bucket{};
  std::string key;  ///< as in a results file: `16MiB_bf16`
  std::string winner;
  std::string why;
  decision_source source = decision_source::trials;
  rank_id proposer = 0;              ///< whose results file it is from; of a decision that rests on one
  std::uint64_t remembered_for = 0;  ///< the machines that the file has it for; of a pin perhaps 0, for all
  tuning::confidence confidence = tuning::confidence::none;  ///< in what was decided
  std::string missed;             ///< what results files had for this key that does not count, if anything
  double remembered_time_ns = 0;  ///< what that file says it took; 0: nothing
  bool announced = false;         ///< the participants have been told of this decision
  std::unique_ptr<tuning::trial_planner> planner;       // while it searches
  std::uint32_t version = 0;                            ///< of what the participants were told last
  std::string search_reason;                            ///< why it searches, or searched, anew
  std::optional<std::string> asked_again;               ///< why another search is to follow this one
  std::uint32_t search = 1;                             ///< which search this is
  std::size_t incumbent = 0;                            ///< what `digest` is among the candidates
  std::vector<exclusion> excluded;                      ///< candidates that may not run for this key
  std::vector<trial> outstanding;                       // of this round
  by_invocation<place> places;                          // of what was timed
  std::uint64_t batch = 0;                              // the latest
  std::optional<std::size_t> trial_of_batch;            // in `outstanding`, if it is one
  std::size_t batch_messages = 1;                       // of the longest one in this search
  std::size_t unsettled = 0;                            // trials that still wait for rows
  std::vector<std::size_t> again;                       // candidates whose trial was cancelled
  std::size_t cancelled = 0;                            // trials, in this search
  bool rest = false;                                    // a config has just failed: the default is next
  std::vector<std::vector<tuning::row>> rows;           // per candidate, of all rounds
  std::vector<std::vector<std::uint64_t>> repetitions;  // per candidate: the orders of its timed trials
  std::vector<std::vector<std::uint64_t>> warm_ups;     // the same of those that only cost
  std::vector<std::uint64_t> joined;  // of both, those that belong to the repetition of the one before
  std::vector<tuning::aggregate> aggregates;
  /// Of a candidate whose trial was due when it could not run: how often in this search, and how often it could have.
  struct shortage {
    std::size_t candidate = 0;
    std::size_t lacked = 0;
    std::size_t had = 0;
    time_ns since_ns = 0;
  };
  std::vector<shortage> shortages;
  std::uint64_t invocations_to_agreement = 0;
  std::uint64_t trials = 0;
  time_ns first_ns = 0;
  time_ns search_began_ns = 0;
  time_ns collecting_since_ns = 0;
  time_ns decided_ns = 0;
  time_ns retry_at_ns = runtime::never;  ///< when it will search again by itself
  time_ns retry_pause_ns = 0;
  bool postponed = false;         ///< then it will look at results files again
  bool refines = false;           ///< then it will try what a results file decided on little evidence
  double decided_time_ns = 0;     ///< what the winner took; 0: it was not measured
  double earlier_cost_ns = 0;     ///< of the searches before this one
  double cost_ns = 0;             ///< what the trials took beyond the default
  double pending_ns = 0;          ///< the same of those that were not reported yet, as far as it can be foreseen
  double fastest_default_ns = 0;  ///< at the sender, before the default has been measured on both sides
  /// Since the decision: calls that ran another config than the one decided on, by what that one lacked; and all calls before it.
  std::array<std::uint64_t, unmet_needs> ran_others{};
  std::uint64_t invocations_before = 0;
  std::unique_ptr<drift_watch> drift;

  bool from_results() const noexcept { return source == decision_source::results || source == decision_source::pin; }
  /// The needs that calls since the decision did not meet, by name, and how many calls each made run another config.
  std::vector<std::pair<std::string_view, std::uint64_t>> runs_of_others() const;
};

class assignment {
 public:
  static constexpr std::size_t most_together = 64;
  struct choice {
    std::uint64_t digest = 0;
    stamp_flags flags = stamp_flags::none;
  };

  assignment(std::uint64_t default_digest, std::string default_id, std::string dtype, std::vector<rank_id> participants,
             tuning_policy policy, tuning::plan_options plan);

  /// The leader's one decision for one invocation (S1). What is in `lacking` cannot run now, for want of a credit, of registered
  /// memory or of pieces: the best of the others runs instead, and a candidate that lacks it again and again is given up. What was only
  /// late is waited for longer: on a busy machine many messages may pass before a credit does.
  choice choose(std::uint64_t bytes, std::uint32_t tag, std::uint64_t invocation, time_ns now, trial_terms terms = {},
                std::span<const lacking_config> lacking = {}) {
    ++order_;
    if (now < first_ns_) first_ns_ = now;
    campaign& c = campaign_of(bytes, now);
    ++c.invocations;
    if (!lacking.empty()) return choose_without(c, {tag, invocation, now, terms}, lacking);
    if (c.where != campaign::stage::decided) return choose_undecided(c, {tag, invocation, now, terms});
    if (c.invocations >= c.next_sample) [[unlikely]]
      return choose_sample(c, {tag, invocation, now, terms});
    return {c.digest, stamp_flags::none};
  }
  /// How long a call may wait for what the config decided on lacks: the difference between its measured time and that of the config
  /// that would run instead. Where that one's time is not known (the decision is from a results file), as long as the config decided on
  /// takes itself; where its own is not, not at all.
  time_ns worth_waiting_ns(const campaign& c, std::span<const lacking_config> lacking) const noexcept;
  /// The invocation that `choose` was asked for ahead of its time is no trial after all: it had another size, or nobody ran
  /// it. Its candidate is tried again.
  void withdraw(std::uint32_t tag, std::uint64_t invocation);
  /// There is such a key, though nothing is to be assigned yet: its campaign begins.
  const campaign& open_key(std::uint64_t bytes, time_ns now);
  /// What the agreement itself has taken of a participant's time so far. Ranks work side by side, so the most of them counts.
  void note_control(time_ns control_ns) noexcept { control_ns_ = std::max(control_ns_, control_ns); }
  time_ns control_ns() const noexcept { return control_ns_; }
  /// N4: whether trials that are expected to cost so much beyond the default may be made now. The campaigns of an op share one
  /// budget, and spend it as the program earns it; the agreement itself is paid from it, too.
  bool affordable(const campaign& c, double expected_ns, time_ns now) const noexcept;
  /// How long an invocation with the default took its sender: what a trial may cost is foreseen from it.
  void note_default(std::uint64_t bytes, time_ns took_ns) noexcept;

  /// What all participants have warmed, the default first. `remembered` comes from results files, in the order in which it
  /// counts (tuning/results/warm_start.hpp); `machines` is the combination that the participants run on, `mixtures` says of each candidate
  /// which one it is (`tuning::merged::mixture_of`), if any is.
  /// Again: more have been warmed by all since, and stand behind those of before, which keep their places; the rest stays. Keys that
  /// trials or the want of another config decided search anew, those that are searched for do so afterwards.
  void open(std::vector<std::uint64_t> candidates, std::vector<std::string> ids,
            std::vector<remembered_best> remembered, time_ns now, std::uint64_t machines = 0,
            std::vector<std::uint64_t> mixtures = {});
  /// A participant has tuning switched off, `why` names it. For sizes to come what is remembered runs, else the default.
  void forbid_trials(std::string why);
  /// Before `open`: who failed a rehearsal, and is no candidate; decisions from then on say so.
  void leave_out(const std::vector<std::string>& ids);
  /// Before `open` with nothing but the default: why that is so.
  void no_choice(std::string why) { no_choice_ = std::move(why); }
  /// Whose invariants these are, when one does not hold.
  void placed(runtime::noticed_at here) noexcept { here_ = here; }
  /// Called when a campaign is decided as it begins, on the data path: `next_to_announce` has something.
  void on_settled(std::function<void()> tell) { settled_ = std::move(tell); }
  /// A decision that the participants have not been told of, or null. The caller tells them, and sets `announced`.
  campaign* next_to_announce() noexcept;
  bool opened() const noexcept { return !candidates_.empty(); }

  /// What a candidate is for messages of so many bytes (`op_config::shape`): of those that answer alike only the first is tried. Empty:
  /// that is not known.
  void ask_shapes(std::function<std::string(std::uint64_t digest, std::uint64_t bytes)> shape) {
    shape_ = std::move(shape);
  }
  /// Before `open`: what constraints and memory forbid.
  void limit(std::vector<candidate_limit> limits) { limits_ = std::move(limits); }

  void add_row(rank_id participant, const wire_row& row);
  /// A campaign whose round is complete on all sides, or whose rows have been missing for too long.
  campaign* ready_to_judge(time_ns now) noexcept;
  /// `begun` says whether all participants have begun an invocation: rows of one that somebody is late for are not missing yet.
  void ask_begun(std::function<bool(std::uint32_t tag, std::uint64_t invocation)> begun) { begun_ = std::move(begun); }
  /// The next round, or the decision: then it is `decided`, and the caller tells the others. `clocks` convert rows.
  void judge(campaign& c, time_ns now, std::span<const tuning::participant_clock> clocks = {});
  /// Searches anew where what was decided takes longer, or less long, than it did, for good.
  void watch_drift(time_ns now, std::span<const tuning::participant_clock> clocks = {});
  /// The same for an op without headers, which sends nothing after its decision: its leader's own calls, as long as they take,
  /// are all that is looked at. A search has begun where the answer is true.
  bool note_call(std::uint64_t bytes, std::uint64_t digest, time_ns took_ns, time_ns now);
  /// What calls take is compared with earlier calls, not with the trials, which were made elsewhere (rehearsals).
  void compare_calls_alone() noexcept { calls_alone_ = true; }
  /// Trials are made in addition to the program's calls, which wait for them: they cost all that they take.
  void trials_are_extra() noexcept { trials_are_extra_ = true; }
  /// Whether a config has timed out in a trial of this round, and more trials of it are to come.
  bool has_late_trials(std::uint64_t bytes) const noexcept;
  /// The trials of this round from that invocation on will not run: they are made later, but for those of what has timed out, of which
  /// one is enough to judge it by.
  void cut_short(std::uint64_t bytes, std::uint64_t from);
  /// The trials of this key are known to go on, so that their rows are not missing yet.
  void wait_longer(std::uint64_t bytes, time_ns now) noexcept;
  /// When `ready_to_judge` will give up waiting for rows, or `retry` has something to do.
  time_ns next_give_up() const noexcept;
  /// A config failed in a real invocation: never again for this key, and the default next.
  void quarantine(std::uint64_t bytes, std::uint64_t digest, time_ns now, const std::string& why);
  /// The same of a rehearsal off the calls. What results files brought about has then not run yet: what else they say counts, or
  /// there are trials.
  void fail_rehearsal(std::uint64_t bytes, std::uint64_t digest, time_ns now, const std::string& why);
  /// What results files have for this key cannot be rehearsed for now, through no fault of its own: the default stays meanwhile.
  void postpone(std::uint64_t bytes, const std::string& why, time_ns now);

  /// Searches anew for the key of `bytes`, or for every key. A search that has timed nothing yet is the one that is asked for; one that
  /// has is followed by another. Answers how many searches began at once.
  std::size_t retune(std::optional<std::uint64_t> bytes, std::string_view why, time_ns now);
  /// Gives up the search for the key of `bytes`, or every search, and says why. Answers how many were under way.
  std::size_t abort(std::optional<std::uint64_t> bytes, std::string_view why, after_abort next, time_ns now);
  /// Nothing is searched for any more: what is in force stays, and sizes to come run the default.
  void end_tuning(const std::string& why, time_ns now);
  /// Begins the searches that are to be tried again by now.
  void retry(time_ns now);

  const std::vector<std::unique_ptr<campaign>>& campaigns() const noexcept { return campaigns_; }
  /// The campaign that messages of this size belong to; null before the first of them.
  const campaign* find(std::uint64_t bytes) const noexcept;
  /// Whether that is the size of the invocation before, and `digest` is what runs.
  bool has_settled_on(std::uint64_t bytes, std::uint64_t digest) const noexcept {
    const campaign* const c = latest_for(bytes);
    return c != nullptr && c->where == campaign::stage::decided && c->digest == digest;
  }
  const std::vector<std::uint64_t>& candidates() const noexcept { return candidates_; }
  const std::vector<std::string>& ids() const noexcept { return ids_; }
  std::uint64_t machines() const noexcept { return machines_; }
  std::uint64_t mixture_of(std::size_t candidate) const noexcept {
    return candidate < mixtures_.size() ? mixtures_[candidate] : 0;
  }
  /// How many keys are being searched for.
  std::size_t searching() const noexcept { return active_; }
  /// Whether the next invocation may be timed, so that clocks are worth reading.
  bool measuring() const noexcept { return active_ + bursts_ != 0; }

 private:
  struct asked_call {
    std::uint32_t tag = 0;
    std::uint64_t invocation = 0;
    time_ns now = 0;
    trial_terms terms{};
  };
  // What a candidate lacks again and again keeps the others waiting: it is left out after so many times, unless it has been
  // there for one in `least_share`, and where it may only be late, no sooner than after `longest_late_ns`.
  static constexpr std::size_t most_lacking = 64;
  static constexpr std::size_t most_without_pieces = 8;  // which is a matter of layouts, and those stay
  static constexpr std::size_t least_share = 8;
  static constexpr time_ns longest_late_ns = 1'000'000'000;
  static constexpr time_ns longest_wait_ns = 1'000'000'000;  // of a call, whatever times ranks have reported
  static constexpr time_ns rows_missing_after_ns = 10'000'000'000;
  static constexpr time_ns first_retry_pause_ns = 10'000'000'000;
  static constexpr time_ns longest_retry_pause_ns = 600'000'000'000;
  campaign& campaign_of(std::uint64_t bytes, time_ns now) {
    campaign* const c = latest_for(bytes);
    return c != nullptr ? *c : find_or_add(bytes, now);
  }
  campaign* latest_for(std::uint64_t bytes) const noexcept {
    return bytes >= latest_from_bytes_ && bytes <= latest_to_bytes_ ? latest_ : nullptr;
  }
  campaign& find_or_add(std::uint64_t bytes, time_ns now);
  void start(campaign& c, time_ns now);
  void start_over(campaign& c, time_ns now);
  void leave_out_equals(campaign& c);
  std::string shape_of(const campaign& c, std::size_t candidate) const;
  campaign* decided_by_files(std::uint64_t bytes) noexcept;
  void begin_search(campaign& c, time_ns now);
  void ask_again(campaign& c, std::string_view why);
  bool has_measured(const campaign& c) const noexcept;
  void exclude(campaign& c, std::size_t candidate, campaign::exclusion::reason kind, std::string why);
  void fall_back(campaign& c);
  void retry_later(campaign& c, time_ns now) noexcept;
  void refine_later(campaign& c, time_ns now);
  static decision_source source_of_kept(const campaign& c) noexcept {
    return c.search == 1 ? decision_source::kept : c.source;
  }
  bool is_excluded(const campaign& c, std::size_t candidate) const noexcept;
  void cancel_trial(campaign& c, campaign::trial& t);
  static bool is_late(const campaign& c, std::size_t candidate) noexcept;
  void forget_trial(campaign& c, const campaign::trial& t);
  double cost_of_trials_ns(const campaign& c, std::span<const tuning::participant_clock> clocks) const;
  void collect(campaign& c, time_ns now);
  void settle(campaign& c, std::size_t winner, decision_source source, std::string why, time_ns now);
  choice choose_sample(campaign& c, const asked_call& call);
  bool begin_burst(campaign& c, time_ns now);
  bool has_drifted(campaign& c, const tuning::aggregate& burst, time_ns now);
  void end_burst(campaign& c) noexcept;
  void watch(campaign& c);
  bool add_sample(campaign& c, rank_id participant, const wire_row& r);
  bool withdraw_sample(campaign& c, std::uint32_t tag, std::uint64_t invocation);
  static bool is_reported(const std::vector<tuning::row>& rows, rank_id participant, std::uint64_t order);
  bool note_report(campaign::place& place, rank_id participant, const std::vector<tuning::row>& rows) const;
  static tuning::row_status keep_row(std::vector<tuning::row>& rows, rank_id participant, std::uint64_t order,
                                     const wire_row& r);
  choice choose_undecided(campaign& c, const asked_call& call);
  choice choose_in_batch(campaign& c, const asked_call& call);
  choice choose_without(campaign& c, const asked_call& call, std::span<const lacking_config> lacking);
  /// The fastest candidate, as measured, that lacks nothing; without one, the default.
  std::size_t best_without(const campaign& c, std::span<const lacking_config> lacking) const noexcept;
  static const campaign::shortage& note_shortage(campaign& c, std::size_t candidate, time_ns now);
  std::string why_it_lacked(unmet_need what) const;
  std::size_t next_candidate(const campaign& c) const noexcept;
  choice next_trial(campaign& c, const asked_call& call);
  void note_place(campaign& c, const asked_call& call, std::size_t trial);
  std::uint64_t trial_digest(const campaign& c) const noexcept;
  double expected_cost_ns(const campaign& c, std::size_t candidate) const noexcept;

  // What every call looks at is together.
  campaign* latest_ = nullptr;  // most calls are of one size
  std::uint64_t latest_from_bytes_ = 0;
  std::uint64_t latest_to_bytes_ = 0;
  std::uint64_t order_ = 0;
  time_ns first_ns_ = runtime::never;  // of the op: its budget grows from here
  std::size_t active_ = 0;             // campaigns that try or collect
  std::size_t bursts_ = 0;             // that are being timed
  std::uint64_t default_digest_;
  std::string default_id_;
  std::string dtype_;
  std::vector<rank_id> participants_;
  tuning_policy policy_;
  runtime::noticed_at here_;
  std::string policy_why_;  // why tuning is off; empty: it is switched off
  tuning::plan_options plan_;
  std::vector<std::uint64_t> candidates_;
  std::vector<std::string> ids_;
  std::vector<remembered_best> remembered_;
  std::uint64_t machines_ = 0;
  std::vector<std::uint64_t> mixtures_;
  std::function<void()> settled_;
  std::function<bool(std::uint32_t tag, std::uint64_t invocation)> begun_;
  std::function<std::string(std::uint64_t digest, std::uint64_t bytes)> shape_;
  std::vector<candidate_limit> limits_;
  std::string left_out_;
  std::string no_choice_;  // why there is nothing but the default; empty: nothing else may run
  std::vector<std::unique_ptr<campaign>> campaigns_;
  time_ns control_ns_ = 0;  // of the participant on which the agreement has taken most
  bool calls_alone_ = false;
  bool trials_are_extra_ = false;
};

}  // namespace parley::actors

#pragma once
/// Assigns configs to invocations, on the leader. There is one search for each size, and one budget for all searches.
///
///     assignment a(c0_digest, …, plan);
///     a.open(candidates, ids, remembered, now);         // once all have warmed them: what may be assigned (S3, S4)
///     auto c = a.choose(bytes, tag, invocation, now);   // c.digest goes into the stamp
///     a.add_row(participant, row); …                    // what participants report
///     while (search* done = a.ready_to_judge(now)) done->judge(now, clocks);
///     a.watch_drift(now, clocks);                       // searches again if a decided config has become slower or faster
///
/// Pure bookkeeping: it sends nothing and waits for nothing. An invocation is assigned once, when it begins (S1). Until a
/// search has decided, every invocation that is no trial runs the default.
#include <parley/actors/agreement/search.hpp>

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

class assignment {
 public:
  using choice = actors::choice;
  static constexpr std::size_t most_together = search_run::most_together;

  assignment(std::uint64_t default_digest, std::string default_id, std::string dtype, std::vector<rank_id> participants,
             tuning_policy policy, tuning::plan_options plan);

  /// The leader's only decision for one invocation (S1). A config in `lacking` cannot run now, because it lacks a credit, registered memory
  /// or pieces. Then the best of the others runs, and a candidate that lacks something again and again is given up. If the missing thing
  /// may only be late, the search waits longer before it gives up: on a busy machine many messages may pass before a credit arrives.
  choice choose(std::uint64_t bytes, std::uint32_t tag, std::uint64_t invocation, time_ns now, trial_terms terms = {},
                std::span<const lacking_config> lacking = {}) {
    ++order_;
    search& s = search_of(bytes, now);
    if (s.next_is_plain() && lacking.empty()) [[likely]]
      return {s.chosen().digest, stamp_flags::none};
    return s.choose_rarely({tag, invocation, order_, now, terms}, lacking);
  }
  /// An invocation for which `choose` was called in advance is no trial after all: it had another size, or no rank ran it. Its candidate is
  /// tried again.
  void withdraw(std::uint32_t tag, std::uint64_t invocation);
  /// Begins the search for this size without assigning a config.
  const search& open_key(std::uint64_t bytes, time_ns now) { return search_of(bytes, now); }
  void note_control(time_ns control_ns) noexcept { terms_->budget.note_control(control_ns); }
  time_ns control_ns() const noexcept { return terms_->budget.control_ns(); }
  /// Notes how long an invocation with the default took at its sender. The expected cost of trials is derived from that time.
  void note_default(std::uint64_t bytes, time_ns took_ns) noexcept {
    if (search* const s = latest_for(bytes)) s->note_default(took_ns);
  }

  /// Opens the candidates, which all participants have warmed, the default first. `remembered` has the entries of results files, in the
  /// order in which they count (tuning/results/warm_start.hpp). `machines` is the combination of machines that the participants run on.
  /// `mixtures` says which mixture each candidate is (`tuning::merged::mixture_of`), if any. A later call adds candidates that all
  /// participants have warmed since then, behind the earlier candidates, which keep their places. A later call does not change `remembered`
  /// and `machines`. If a later call adds candidates and tuning is on, every size is searched again unless a results file decided it. If
  /// a search of that size is in progress, the new search follows it.
  void open(std::vector<std::uint64_t> candidates, std::vector<std::string> ids,
            std::vector<remembered_best> remembered, time_ns now, std::uint64_t machines = 0,
            std::vector<std::uint64_t> mixtures = {});
  /// Tuning is switched off on a participant, which `why` names. Later sizes run the remembered config, else the default.
  void forbid_trials(std::string why);
  /// Call before `open`: the candidates with failed rehearsals. Decisions from then on name them.
  void leave_out(const std::vector<std::string>& ids);
  /// If the default is the only candidate, call this before `open` with the reason.
  void no_choice(std::string why) { terms_->why_no_choice = std::move(why); }
  /// Call before `open`: the limits that constraints and memory set.
  void limit(std::vector<candidate_limit> limits) { terms_->limits = std::move(limits); }
  /// From now on this op expects times from those of other edges that share this model, and they from its times. Up to eight share one;
  /// another edge expects times only from its own. Call it before `open`. The model must outlive the assignment.
  void share_times(tuning::time_model& with) {
    constexpr std::size_t most_edges = 8;  // more would only make predictions slow
    if (with.ranks() == most_edges) return;
    terms_->model = &with;
    terms_->place_in_model = with.add_rank();
  }
  bool opened() const noexcept { return !terms_->candidates.empty(); }

  /// The op and rank that are named when an invariant is broken.
  void placed(runtime::noticed_at here) noexcept { terms_->here = here; }
  /// search_terms.hpp describes these settings.
  void on_settled(std::function<void()> tell) { terms_->settled = std::move(tell); }
  void ask_shapes(std::function<std::string(std::uint64_t digest, std::uint64_t bytes)> shape) {
    terms_->shape = std::move(shape);
  }
  void ask_begun(std::function<bool(std::uint32_t tag, std::uint64_t invocation)> begun) {
    terms_->begun = std::move(begun);
  }
  void heed(std::vector<tuning::rule> rules) { terms_->rules = std::move(rules); }
  void compare_calls_alone() noexcept { terms_->calls_alone = true; }
  void trials_are_extra() noexcept { terms_->trials_are_extra = true; }

  void add_row(rank_id participant, const wire_row& row);
  /// A search with a round that is complete on all sides, or with rows that have been missing for too long; null if there is none.
  search* ready_to_judge(time_ns now) noexcept;
  /// A search with a decision that the participants do not know yet, or null. The caller tells them and calls `note_announced`.
  search* next_to_announce() noexcept;
  /// Searches again if the decided config has become slower or faster, and stays so.
  void watch_drift(time_ns now, std::span<const tuning::participant_clock> clocks = {});
  /// Watches drift in an op without headers. Such an op sends nothing after its decision, so only the times of the leader's own calls
  /// count. Returns whether a search has begun.
  bool note_call(std::uint64_t bytes, std::uint64_t digest, time_ns took_ns, time_ns now);
  /// When `ready_to_judge` gives up waiting for rows, or `retry` has something to do.
  time_ns next_give_up() const noexcept;
  /// Begins the searches that are due by now.
  void retry(time_ns now);

  /// Forwarded to the search for the size of `bytes` (search.hpp).
  void quarantine(std::uint64_t bytes, std::uint64_t digest, time_ns now, const std::string& why);
  void fail_rehearsal(std::uint64_t bytes, std::uint64_t digest, time_ns now, const std::string& why);
  void postpone(std::uint64_t bytes, const std::string& why, time_ns now);
  bool has_late_trials(std::uint64_t bytes) const noexcept;
  void cut_short(std::uint64_t bytes, std::uint64_t from);
  /// The trials of this size are known to be in progress, so their rows are not missing yet.
  void wait_longer(std::uint64_t bytes, time_ns now) noexcept;

  /// Searches again for the size of `bytes`, or for every size. Returns how many searches began at once.
  std::size_t retune(std::optional<std::uint64_t> bytes, std::string_view why, time_ns now);
  /// Gives up the search for the size of `bytes`, or every search, for the reason `why`. Returns how many there were.
  std::size_t abort(std::optional<std::uint64_t> bytes, std::string_view why, after_abort next, time_ns now);
  /// Ends all searches for good: decided sizes keep their configs, and later sizes run the default.
  void end_tuning(const std::string& why, time_ns now);

  const std::vector<std::unique_ptr<search>>& searches() const noexcept { return searches_; }
  /// The search for messages of this size; null before the first such message.
  const search* find(std::uint64_t bytes) const noexcept;
  /// True if the previous invocation had the size of `bytes`, and `digest` is decided for that size.
  bool has_settled_on(std::uint64_t bytes, std::uint64_t digest) const noexcept {
    const search* const s = latest_for(bytes);
    return s != nullptr && s->is_decided() && s->chosen().digest == digest;
  }
  const std::vector<std::uint64_t>& candidates() const noexcept { return terms_->candidates; }
  const std::vector<std::string>& ids() const noexcept { return terms_->ids; }
  std::uint64_t machines() const noexcept { return terms_->machines; }
  std::uint64_t mixture_of(std::size_t candidate) const noexcept {
    return candidate < terms_->mixtures.size() ? terms_->mixtures[candidate] : 0;
  }
  /// How many sizes are being searched.
  std::size_t searching() const noexcept { return terms_->searching; }
  /// True if the next invocation may be timed, so that clocks are worth reading.
  bool measuring() const noexcept { return terms_->searching + terms_->bursts != 0; }

 private:
  search& search_of(std::uint64_t bytes, time_ns now) {
    search* const s = latest_for(bytes);
    return s != nullptr ? *s : find_or_add(bytes, now);
  }
  search* latest_for(std::uint64_t bytes) const noexcept {
    return bytes >= latest_from_bytes_ && bytes <= latest_to_bytes_ ? latest_ : nullptr;
  }
  search* find_mutable(std::uint64_t bytes) const noexcept;
  search& find_or_add(std::uint64_t bytes, time_ns now);

  // These members are together because every call uses them.
  search* latest_ = nullptr;  // most calls are of one size
  std::uint64_t latest_from_bytes_ = 0;
  std::uint64_t latest_to_bytes_ = 0;
  std::uint64_t order_ = 0;
  std::unique_ptr<search_terms> terms_;  // on the heap, so that searches find it after this object has moved
  std::vector<std::unique_ptr<search>> searches_;
};

}  // namespace parley::actors

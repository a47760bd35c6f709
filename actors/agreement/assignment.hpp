#pragma once
/// The leader's assignment of configs to invocations, with one search for each size, and one budget for all searches.
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
  /// or pieces. Then the best of the others runs, and a candidate that lacks something again and again is given up. If the need may only be
  /// late, the search is more patient: on a busy machine many messages may pass before a credit arrives.
  choice choose(std::uint64_t bytes, std::uint32_t tag, std::uint64_t invocation, time_ns now, trial_terms terms = {},
                std::span<const lacking_config> lacking = {}) {
    ++order_;
    search& s = search_of(bytes, now);
    if (s.next_is_plain() && lacking.empty()) [[likely]]
      return {s.chosen().digest, stamp_flags::none};
    return s.choose_rarely({tag, invocation, order_, now, terms}, lacking);
  }
  /// The invocation that `choose` was asked for in advance is no trial after all: it had
  /// another size, or nobody ran it. Its candidate is tried again.
  void withdraw(std::uint32_t tag, std::uint64_t invocation);
  /// Begins the search for this size, although nothing is assigned yet.
  const search& open_key(std::uint64_t bytes, time_ns now) { return search_of(bytes, now); }
  void note_control(time_ns control_ns) noexcept { terms_->budget.note_control(control_ns); }
  time_ns control_ns() const noexcept { return terms_->budget.control_ns(); }
  /// Notes how long an invocation with the default took its sender. The expected cost of trials follows from it.
  void note_default(std::uint64_t bytes, time_ns took_ns) noexcept {
    if (search* const s = latest_for(bytes)) s->note_default(took_ns);
  }

  /// Opens the candidates, which all participants have warmed, the default first. `remembered` comes from results files, in the order in
  /// which it counts (tuning/results/warm_start.hpp). `machines` is the combination of machines that the participants run on. `mixtures`
  /// says which mixture each candidate is (`tuning::merged::mixture_of`), if any.
  /// A later call adds candidates that all have warmed since, behind the earlier ones, which keep
  /// their places. `remembered` and `machines` stay as they are. Sizes that trials, or the lack of
  /// another config, decided are searched again; sizes with a search in progress follow after it.
  void open(std::vector<std::uint64_t> candidates, std::vector<std::string> ids,
            std::vector<remembered_best> remembered, time_ns now, std::uint64_t machines = 0,
            std::vector<std::uint64_t> mixtures = {});
  /// Tuning is switched off on a participant, which `why` names. Later sizes run what is remembered, else the default.
  void forbid_trials(std::string why);
  /// Call before `open`: the candidates whose rehearsals failed. Decisions from then on name them.
  void leave_out(const std::vector<std::string>& ids);
  /// Call before `open` with nothing but the default: why that is so.
  void no_choice(std::string why) { terms_->why_no_choice = std::move(why); }
  /// Call before `open`: what constraints and memory forbid.
  void limit(std::vector<candidate_limit> limits) { terms_->limits = std::move(limits); }
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
  void compare_calls_alone() noexcept { terms_->calls_alone = true; }
  void trials_are_extra() noexcept { terms_->trials_are_extra = true; }

  void add_row(rank_id participant, const wire_row& row);
  /// A search whose round is complete on all sides, or whose rows have been missing for too long; null if there is none.
  search* ready_to_judge(time_ns now) noexcept;
  /// A search whose decision the participants do not know yet, or null. The caller tells them and calls `note_announced`.
  search* next_to_announce() noexcept;
  /// Searches again if the decided config takes longer, or less long, than it did, and keeps doing so.
  void watch_drift(time_ns now, std::span<const tuning::participant_clock> clocks = {});
  /// Watches drift in an op without headers, which sends nothing after its decision: only the times of the leader's own calls are looked
  /// at. Returns whether a search has begun.
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
  /// The trials of this size are known to go on, so their rows are not missing yet.
  void wait_longer(std::uint64_t bytes, time_ns now) noexcept;

  /// Searches again for the size of `bytes`, or for every size. Returns how many searches began at once.
  std::size_t retune(std::optional<std::uint64_t> bytes, std::string_view why, time_ns now);
  /// Gives up the search for the size of `bytes`, or every search, for the reason `why`. Returns how many there were.
  std::size_t abort(std::optional<std::uint64_t> bytes, std::string_view why, after_abort next, time_ns now);
  /// Ends all searches for good: what is in force stays, and later sizes run the default.
  void end_tuning(const std::string& why, time_ns now);

  const std::vector<std::unique_ptr<search>>& searches() const noexcept { return searches_; }
  /// The search for messages of this size; null before the first such message.
  const search* find(std::uint64_t bytes) const noexcept;
  /// True if the invocation before had the size of `bytes`, and `digest` is decided for that size.
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

  // Members that every call uses are together.
  search* latest_ = nullptr;  // most calls are of one size
  std::uint64_t latest_from_bytes_ = 0;
  std::uint64_t latest_to_bytes_ = 0;
  std::uint64_t order_ = 0;
  std::unique_ptr<search_terms> terms_;  // on the heap, so that searches find it after this object has moved
  std::vector<std::unique_ptr<search>> searches_;
};

}  // namespace parley::actors

#pragma once
/// The sending end of an edge, which leads. It numbers the invocations, stamps each with the config that the assignment gives it, and holds
/// back sends for which the receiver has no room.
///
///     edge_sender edge(services, declaration, generation, assignment);
///     auto number = co_await edge.admit(tag, bytes, deadline);    // flow control; ready at once inside the window
///     outgoing inv = edge.begin(tag, bytes, *number);             // its stamp says which config to run
///     part_sender out(net, edge.peer(), inv.mark);
///     …
///     edge.end(inv, outcome);
///
/// If a need of its config is not met, such as a credit, or equal pieces at both ends, an invocation runs another config. Two kinds of
/// calls wait first. A payload that a device still writes cannot be sent yet, so its call can wait for a credit during that time. If the
/// decided config of a call lacks a credit, or the receiver's confirmation that it knows the sender's memory, the call waits as long as
/// that is cheaper than the config that would run instead (`search::worth_waiting_ns`), and at most half of its remaining time. If the wait
/// was useless, the stream's next wait is half as long, down to a 64th.
///
/// The window of a stream is 64 invocations or 4 MiB that the receiver has not matched. One send of any size may start when the receiver
/// has matched everything before it. The receiver may declare the op later than the sender. Until the receiver has replied for the op, all
/// streams together may send only this rank's allowance (early_allowance.hpp). A sender that has no room asks the receiver, and waits.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/ended.hpp>
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/edge/early_allowance.hpp>
#include <parley/actors/edge/matched_streams.hpp>
#include <parley/actors/edge/outgoing.hpp>
#include <parley/actors/edge/part_sender.hpp>
#include <parley/actors/edge/payload_pieces.hpp>
#include <parley/actors/edge/stream_table.hpp>
#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/one_sided/one_sided.hpp>
#include <parley/actors/policy.hpp>
#include <parley/actors/services.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/record/waiting_call.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::actors {

class edge_sender {
  struct stream;

 public:
  edge_sender(services& s, const op_declaration& op, std::uint64_t generation, assignment& assigned,
              window_limits w = {});
  edge_sender(const edge_sender&) = delete;
  edge_sender& operator=(const edge_sender&) = delete;
  ~edge_sender();

  class [[nodiscard]] admission : private runtime::waiter, private runtime::timer {
   public:
    admission(edge_sender& e, std::uint32_t tag, std::uint64_t bytes, runtime::time_ns deadline,
              const runtime::until_free* payload, const std::byte* source) noexcept
        : waiter(&on_cancelled), timer(&on_late), edge_(e), tag_(tag), bytes_(bytes), payload_(payload),
          source_(source), deadline_(deadline) {}
    ~admission() {
      if (admitted_to_ != nullptr) --admitted_to_->admitted_only;
    }
    bool await_ready() {
      if (edge_.failed_ != runtime::errc::none) return true;
      const bool may_leave = payload_ == nullptr || payload_->is_over() || edge_.knows_where(tag_, bytes_);
      if (may_leave && !edge_.awaits_decided(tag_, source())) invocation_ = edge_.try_admit(tag_, bytes_);
      return invocation_ != not_admitted;
    }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (!enter(caller)) return false;
      since_ns_ = edge_.rows_.clock();
      if (deadline_ != runtime::never) home->where().arm(*this, edge_.late_soon_at(deadline_));
      edge_.wait_for_room(*this);
      return true;
    }
    /// The number of the invocation.
    runtime::result<std::uint64_t> await_resume() noexcept {
      if (admitted_to_ != nullptr) --std::exchange(admitted_to_, nullptr)->admitted_only;
      if (edge_.failed_ != runtime::errc::none) return edge_.failed_;
      if (outcome != runtime::errc::none) return outcome;
      return invocation_;
    }

   private:
    friend edge_sender;
    std::span<const std::byte> source() const noexcept { return {source_, source_ == nullptr ? 0 : bytes_}; }
    struct place : runtime::list_hook {
      admission* owner = nullptr;
    } place_;
    void finish(runtime::errc why) noexcept {
      place_.unlink();
      runtime::timer_wheel::disarm(*this);
      wake(why);
    }
    void give_up(runtime::errc why) noexcept {
      finish(why);
      edge_.admit_waiting(edge_.stream_of(tag_));  // calls behind it may now be able to begin
    }
    static void on_cancelled(waiter& self, runtime::errc why) noexcept { static_cast<admission&>(self).give_up(why); }
    static void on_late(timer& self) noexcept {
      auto& mine = static_cast<admission&>(self);
      if (mine.deadline_ <= mine.edge_.services_.ex.now()) return mine.give_up(runtime::errc::timeout);
      mine.edge_.late_soon(mine.tag_);
      mine.edge_.services_.ex.arm(mine, mine.deadline_);
    }
    edge_sender& edge_;
    std::uint32_t tag_;
    std::uint64_t bytes_;
    const runtime::until_free* payload_;
    const std::byte* source_;  // null: the call does not wait for unmet needs
    runtime::time_ns deadline_;
    runtime::time_ns patient_until_ = 0;  // 0: that wait has not begun
    runtime::time_ns since_ns_ = 0;
    std::uint64_t invocation_ = not_admitted;
    stream* admitted_to_ = nullptr;  // set until the coroutine resumes
  };
  /// Takes the stream's next invocation, in the order of the calls. Waits until the window has room and, if `payload` is given, until the
  /// payload is written or its credit has arrived. If `source`, the address of the payload, is given, the call also waits for the unmet
  /// need of its decided config, as long as that is worth it.
  admission admit(std::uint32_t tag, std::uint64_t bytes, runtime::time_ns deadline,
                  const runtime::until_free* payload = nullptr, const std::byte* source = nullptr) noexcept {
    return {*this, tag, bytes, deadline, payload, source};
  }
  static constexpr std::uint64_t not_admitted = ~std::uint64_t{0};
  /// The next number of the stream. The first call that waits for room gets this number; if none waits, the next call.
  std::uint64_t next_invocation(std::uint32_t tag) { return stream_of(tag).admitted; }
  /// A payload that was passed to `admit` is now written: admits the calls that can begin.
  void readmit(std::uint32_t tag) noexcept { admit_waiting(stream_of(tag)); }
  /// True if the stream's next invocation need not wait for a credit: the credit has arrived, or would be of no use.
  bool knows_where(std::uint32_t tag, std::uint64_t bytes) { return knows_where(stream_of(tag), bytes); }
  /// True if the stream's next invocation, with that payload, should wait for the unmet need of its decided config.
  bool awaits_decided(std::uint32_t tag, std::span<const std::byte> source) {
    if (one_sided_ == nullptr || source.empty() || assigned_.has_settled_on(source.size(), settled_on_)) return false;
    const stream& s = stream_of(tag);
    return lacks_what_may_come(s, source) && patience_ns(s, source) > 0;
  }
  /// Admits a call without waiting, or returns `not_admitted`.
  std::uint64_t try_admit(std::uint32_t tag, std::uint64_t bytes) {
    stream& s = stream_of(tag);
    if (!s.waiting.empty()) return not_admitted;
    if (fits(s, bytes, window_)) [[likely]]
      return s.take_room(bytes, full_window_);
    return has_room(s, bytes) ? take_room(s, bytes) : not_admitted;
  }
  /// True if a send of that size is held back only because the receiver has not replied for the op yet.
  bool awaits_answer(std::uint32_t tag, std::uint64_t bytes);
  const early_allowance& allowance() const noexcept { return allowance_; }
  /// Assigns a config to an admitted invocation, which must be ended later. `source`, if given, is the address of the payload; with
  /// `pieces`, the address where they are packed.
  outgoing begin(std::uint32_t tag, std::uint64_t bytes, std::uint64_t invocation, const trial_terms& terms = {},
                 const std::byte* source = nullptr, const payload_pieces* pieces = nullptr) {
    if (!unusual_) [[likely]]
      return begin_with(tag, bytes, invocation, terms, {}, stamp_flags::none);
    const sent_payload what{{source, bytes}, pieces};
    if (assigned_.has_settled_on(bytes, settled_on_)) return begin_settled(tag, what, invocation, terms);
    return begin_unusual(tag, what, invocation, terms);
  }
  /// Begins a rehearsal, which does not count in window and assignment.
  outgoing begin_rehearsal(std::uint64_t digest, std::uint64_t bytes, const std::byte* source = nullptr);
  void end(const outgoing& inv, runtime::errc outcome) noexcept {
    if (inv.access != nullptr) one_sided_->end(inv.access);
    const runtime::time_ns ended_ns = note_ended(services_, rows_,
                                                 {.mark = inv.mark,
                                                  .invocation = inv.invocation,
                                                  .ran = inv.mark.digest,
                                                  .began_ns = inv.began_ns,
                                                  .worked_ns = inv.worked_ns,
                                                  .outcome = outcome});
    if (outcome == runtime::errc::none && !rows_.measuring()) return;
    if (!has(inv.mark.flags, stamp_flags::rehearsal)) learn(inv, outcome, ended_ns);
  }

  /// Ends an invocation that `out` has sent or failed to send. If the transport did not accept its poison, the poison is sent again until
  /// the transport does: without the poison, a receive that a later stamp has matched would never end.
  void end(const outgoing& inv, const part_sender& out) noexcept {
    if (out.owes_poison()) [[unlikely]]
      say_later(out.poison());
    end(inv, out.failed());
  }

  /// True if the receiver has matched that invocation; if not, asks the receiver.
  bool is_matched(std::uint32_t tag, std::uint64_t invocation);
  /// True if the receiver has matched all that was sent; if not, asks the receiver. For a rank that wants to leave.
  bool all_matched();
  struct delivered {
    std::uint64_t sent = 0;       ///< messages sent
    std::uint64_t unmatched = 0;  ///< messages that the receiver has not reported as matched
  };
  delivered delivery() const noexcept;
  /// Ends all current and later sends with `why`. A payload that a living receiver may read stays in use until the receiver has reported.
  void fail(runtime::errc why, one_sided_sender::reader receiver = one_sided_sender::reader::may_live) noexcept;
  /// Closes this end for good: an end of the next generation replaces it.
  void retire() noexcept;
  /// `tell` is called when the receiver reports that this generation has ended on its side.
  void on_ended(std::function<void()> tell) { ended_there_ = std::move(tell); }
  /// `tell` is called for a send with `before` of its time left, with the send's tag.
  void on_late_soon(runtime::time_ns before, std::function<void(std::uint32_t tag)> tell) {
    late_soon_ns_ = before;
    late_soon_ = std::move(tell);
  }
  /// The time of the call of `tell` for a send with that deadline; the deadline itself if that time has passed already.
  runtime::time_ns late_soon_at(runtime::time_ns deadline) const noexcept {
    const runtime::time_ns soon = deadline - late_soon_ns_;
    return soon > services_.ex.now() ? soon : deadline;
  }
  void late_soon(std::uint32_t tag) {
    if (late_soon_) late_soon_(tag);
  }
  /// Adds the sends that wait for room. `of` has what these entries share.
  void list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all);
  /// `has sent 2 messages of tag 3, and 1 of tag 4`
  std::string begun_in_words(std::uint32_t tag) const;
  std::uint64_t op() const noexcept { return op_; }
  rank_id peer() const noexcept { return peer_; }
  std::uint64_t generation() const noexcept { return generation_; }
  row_log& rows() noexcept { return rows_; }
  runtime::errc failed() const noexcept { return failed_; }

  /// Allows configs that put (`puts`) and configs that let the receiver get (`gets`), by digest.
  void allow_one_sided(std::vector<std::uint64_t> puts, std::vector<std::uint64_t> gets);
  /// Allows configs that move a payload by its pieces if both ends have the same pieces. `goes_by_piece` returns whether an agreed digest
  /// is such a config.
  void allow_pieces(std::function<bool(std::uint64_t digest)> goes_by_piece);
  /// From now on the stamps of timed calls, and of all calls of a size that is being searched, carry a check of the payload, which the
  /// receiver compares. `inexact`: configs, by digest, that do not claim to be exact and are not checked. This thread must be able to read
  /// the payloads.
  void compare_trials(std::vector<std::uint64_t> inexact);
  /// This end runs `own` for a candidate with another digest. The candidate has the needs of `own`, and is as exact.
  void note_variant(std::uint64_t candidate, std::uint64_t own);
  /// Null if one-sided transfers are not allowed.
  one_sided_sender* one_sided() const noexcept { return one_sided_.get(); }
  /// True if the needs of this config are met for the next rehearsal.
  bool ready_to_rehearse(std::uint64_t digest, std::span<const std::byte> source) const;

  struct counters {
    std::uint64_t waited_for_window = 0;
    std::uint64_t waited_for_decided = 0;  ///< calls that waited for the unmet need of their decided config
    std::uint64_t waited_in_vain = 0;      ///< calls among them that ran another config
    std::uint64_t questions_sent = 0;
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  friend admission;
  // When it fires, the first waiting call stops waiting for the unmet need of its decided config.
  struct patience_timer : runtime::timer {
    patience_timer(edge_sender& e, stream& s) noexcept : timer(&on_time), edge(e), of(s) {}
    static void on_time(timer& self) noexcept {
      auto& mine = static_cast<patience_timer&>(self);
      mine.edge.admit_waiting(mine.of);
    }
    edge_sender& edge;
    stream& of;
  };
  struct stream {
    std::uint64_t id = 0;
    std::uint64_t admitted = 0;       // the next invocation
    std::uint64_t admitted_only = 0;  // admitted calls that have not begun
    std::uint64_t matched = 0;
    std::uint64_t unmatched_bytes = 0;
    std::uint64_t bytes_each = 0;            // size of each unmatched message, while all have one size
    std::unique_ptr<std::uint64_t[]> sizes;  // allocated once sizes differ: a ring, at least as large as the window
    std::uint64_t ring_mask = 0;
    runtime::intrusive_list<admission::place> waiting;
    std::unique_ptr<patience_timer> patience;  // null: no call has waited for an unmet need of its decided config
    unsigned in_vain = 0;                      // consecutive useless waits

    std::uint64_t& size_of(std::uint64_t invocation) noexcept { return sizes[invocation & ring_mask]; }
    std::uint64_t take_room(std::uint64_t bytes, const window_limits& window) {
      if (bytes != bytes_each || sizes != nullptr) [[unlikely]]
        note_size(bytes, window);
      unmatched_bytes += bytes;
      return admitted++;
    }
    void note_size(std::uint64_t bytes, const window_limits& window);
    void match_until(std::uint64_t count) noexcept;
  };
  struct poison_timer : runtime::timer {
    explicit poison_timer(edge_sender& e) noexcept : timer(&on_time), edge(e) {}
    static void on_time(timer& self) noexcept { static_cast<poison_timer&>(self).edge.say_owed(); }
    edge_sender& edge;
    std::vector<stamp> owed;
  };
  void say_later(const stamp& poison) noexcept;
  void say_owed() noexcept;
  struct sent_payload {
    std::span<const std::byte> bytes;
    const payload_pieces* pieces;  // null: the payload is contiguous
  };
  outgoing stamped(std::uint64_t digest, stamp_flags flags, std::uint32_t tag, std::uint64_t bytes,
                   std::uint64_t invocation) noexcept {
    return {.mark = {.op = op_,
                     .generation = generation_,
                     .digest = digest,
                     .total_bytes = bytes,
                     .invocation = static_cast<std::uint32_t>(invocation),
                     .tag = tag,
                     .source = self_,
                     .flags = flags},
            .invocation = invocation,
            .began_ns = rows_.clock()};
  }
  stream& stream_of(std::uint64_t id) {
    if (latest_ == nullptr || latest_->id != id) latest_ = &find_or_add(id);
    return *latest_;
  }
  [[gnu::cold]] stream& find_or_add(std::uint64_t id);
  static bool fits(const stream& s, std::uint64_t bytes, const window_limits& w) noexcept {
    return s.admitted - s.matched < w.invocations && s.unmatched_bytes + bytes <= w.bytes;
  }
  [[gnu::cold]] bool has_room(const stream& s, std::uint64_t bytes) const noexcept;
  [[gnu::cold]] std::uint64_t take_room(stream& s, std::uint64_t bytes);
  bool may_leave_early(std::uint64_t bytes) const noexcept {
    return heard_ || early_taken_ == 0 || allowance_.has_room_for(early_allowance::cost_of(bytes));
  }
  [[gnu::cold]] void on_answer() noexcept;
  void give_allowance_back() noexcept { allowance_.give_back(std::exchange(early_taken_, 0)); }
  // S5: messages of another generation change nothing.
  bool is_for_us(const runtime::envelope& from) const noexcept {
    return from.source == peer_ && from.generation == generation_;
  }
  void wait_for_room(admission& a);
  void admit_waiting(stream& s) noexcept;
  void admit_those_with_room(stream& s) noexcept;
  bool knows_where(const stream& s, std::uint64_t bytes) noexcept;
  [[gnu::cold]] bool lacks_what_may_come(const stream& s, std::span<const std::byte> source) const noexcept;
  [[gnu::cold]] runtime::time_ns patience_ns(const stream& s, std::span<const std::byte> source) noexcept;
  bool goes_on_waiting(stream& s, admission& first) noexcept;
  bool lacks_room(stream& s) const noexcept {
    return !s.waiting.empty() && !has_room(s, s.waiting.front().owner->bytes_);
  }
  void note_matched(std::uint64_t id, std::uint64_t count) noexcept;
  void check_what_ran(const matched& m) noexcept;
  [[gnu::cold]] void learn(const outgoing& inv, runtime::errc outcome, runtime::time_ns ended_ns) noexcept;
  void ask_for_room() noexcept;
  bool ask(const stream& s);
  [[gnu::cold]] void ask_of_many(std::size_t unmatched);
  [[gnu::cold]] void hear_of_many(matched_streams&& m);

  outgoing begin_with(std::uint32_t tag, std::uint64_t bytes, std::uint64_t invocation, const trial_terms& terms,
                      std::span<const lacking_config> lacking, stamp_flags more) {
    const assignment::choice chosen = assigned_.choose(bytes, tag, invocation, services_.ex.now(), terms, lacking);
    rows_.set_measuring(assigned_.measuring());
    return stamped(chosen.digest, chosen.flags | more, tag, bytes, invocation);
  }
  // Begins with the config that was decided on for this size. That config has no needs, so nothing else has to be looked up.
  outgoing begin_settled(std::uint32_t tag, const sent_payload& what, std::uint64_t invocation,
                         const trial_terms& terms) {
    outgoing inv = begin_with(tag, what.bytes.size(), invocation, terms, {},
                              one_sided_ != nullptr ? stamp_flags::no_credits : stamp_flags::none);
    if (has(inv.mark.flags, stamp_flags::timed)) [[unlikely]]
      say_what_is_sent(inv, what);
    return inv;
  }
  outgoing begin_unusual(std::uint32_t tag, const sent_payload& what, std::uint64_t invocation,
                         const trial_terms& terms);
  [[gnu::cold]] void say_what_is_sent(outgoing& inv, const sent_payload& what);
  outgoing begin_beside_others(std::uint32_t tag, const sent_payload& what, std::uint64_t invocation,
                               const trial_terms& terms);
  std::span<const lacking_config> lacking(std::uint64_t stream, const sent_payload& what, std::uint64_t invocation,
                                          const search* its);
  bool is_by_piece(std::uint64_t digest) const;

  // These members are together because every call uses them.
  services& services_;
  assignment& assigned_;
  stream* latest_ = nullptr;  // most calls have the same tag
  // Zero until the receiver has answered, and after a failure: a call that fits this window needs no other check.
  window_limits window_;
  std::uint64_t op_;
  std::uint64_t generation_;
  std::uint64_t settled_on_ = 0;  // the last decided config without needs
  rank_id self_;
  rank_id peer_;
  runtime::errc failed_ = runtime::errc::none;
  bool unusual_ = false;  // configs with needs are allowed, or trials are compared
  row_log rows_;
  std::unique_ptr<one_sided_sender> one_sided_;
  std::function<bool(std::uint64_t)> by_piece_;
  std::vector<lacking_config> lacking_;
  std::uint64_t default_digest_;
  stream_table<stream> streams_;
  std::uint64_t rehearsals_;  // the number of the next rehearsal
  bool retired_ = false;
  bool heard_ = false;  // the receiver has replied for the op
  window_limits full_window_;
  early_allowance& allowance_;
  std::uint64_t early_taken_ = 0;  // how much of the allowance this edge has taken
  reminder_timer<&edge_sender::ask_for_room, hurried> room_question_{*this};
  std::uint32_t first_to_ask_for_ = 0;  // index of the stream with which `ask_for_room` starts
  std::uint32_t first_of_many_ = 0;     // index of the stream with which `ask_of_many` starts
  counters counters_;
  std::function<void()> ended_there_;
  std::function<void(std::uint32_t)> late_soon_;
  runtime::time_ns late_soon_ns_ = 0;
  std::unique_ptr<std::vector<std::uint64_t>> inexact_;  // null: trials are not compared
  std::unique_ptr<poison_timer> owed_poisons_;           // null: the transport accepted all poisons
};

}  // namespace parley::actors

#pragma once
/// The sending end of an edge: it leads. It numbers the invocations, stamps each with the config that the assignment gives
/// it, and holds back what the receiver has no room for.
///
///     edge_sender edge(services, declaration, generation, assignment);
///     auto number = co_await edge.admit(tag, bytes, deadline);    // flow control; ready at once inside the window
///     outgoing inv = edge.begin(tag, bytes, *number);             // its stamp says which config to run
///     part_sender out(net, edge.peer(), inv.mark);
///     …
///     edge.end(inv, outcome);
///
/// An invocation that lacks what its config needs, such as a credit, or pieces that are alike at both ends, runs another one. Two kinds
/// of calls wait first. A payload that a device still writes cannot leave yet, and waits for its credit meanwhile. A call whose decided
/// config lacks a credit, or the receiver's word that it knows the sender's memory, waits as long as that is cheaper than the config
/// that would run instead (`search::worth_waiting_ns`), and at most half of its time. A wait in vain halves the stream's next one,
/// down to a 64th.
///
/// The window of a stream is 64 invocations or 4 MiB that the receiver has not matched; one send of any size may go when
/// nothing is unmatched. Until the receiver has answered for the op, which it may declare later, all streams together keep to what
/// this rank may send it before that (early_allowance.hpp). Then a sender asks, and waits.
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
      edge_.admit_waiting(edge_.stream_of(tag_));  // those behind it may have all that they need
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
    const std::byte* source_;  // null: it does not wait for what its config lacks
    runtime::time_ns deadline_;
    runtime::time_ns patient_until_ = 0;  // 0: it has not begun to wait for that
    runtime::time_ns since_ns_ = 0;
    std::uint64_t invocation_ = not_admitted;
    stream* admitted_to_ = nullptr;  // while it has not resumed
  };
  /// Takes the stream's next invocation, in the order of asking, once the window has a place for it, and once `payload`, if given, is
  /// written, or its credit is here. `source`, if given, is where the payload lies: the call waits for what its decided config lacks, as
  /// long as that is worth it.
  admission admit(std::uint32_t tag, std::uint64_t bytes, runtime::time_ns deadline,
                  const runtime::until_free* payload = nullptr, const std::byte* source = nullptr) noexcept {
    return {*this, tag, bytes, deadline, payload, source};
  }
  static constexpr std::uint64_t not_admitted = ~std::uint64_t{0};
  /// The number that the first message of a stream gets which has none yet: of those that wait for room, or else the next one.
  std::uint64_t next_invocation(std::uint32_t tag) { return stream_of(tag).admitted; }
  /// A payload that `admit` was given is written.
  void readmit(std::uint32_t tag) noexcept { admit_waiting(stream_of(tag)); }
  /// Whether a wait could tell the next invocation of a stream nothing of where to put its payload: its credit is here, or none
  /// is of use.
  bool knows_where(std::uint32_t tag, std::uint64_t bytes) { return knows_where(stream_of(tag), bytes); }
  /// Whether the next invocation of a stream, with that payload, is to wait for what its decided config lacks.
  bool awaits_decided(std::uint32_t tag, std::span<const std::byte> source) {
    if (one_sided_ == nullptr || source.empty() || assigned_.has_settled_on(source.size(), settled_on_)) return false;
    const stream& s = stream_of(tag);
    return lacks_what_may_come(s, source) && patience_ns(s, source) > 0;
  }
  /// The same where that needs no wait, else `not_admitted`.
  std::uint64_t try_admit(std::uint32_t tag, std::uint64_t bytes) {
    stream& s = stream_of(tag);
    if (!s.waiting.empty()) return not_admitted;
    if (fits(s, bytes, window_)) [[likely]]
      return s.take_room(bytes, full_window_);
    return has_room(s, bytes) ? take_room(s, bytes) : not_admitted;
  }
  /// Whether what holds back a send of so many bytes is that the receiver has not answered for the op yet.
  bool awaits_answer(std::uint32_t tag, std::uint64_t bytes);
  const early_allowance& allowance() const noexcept { return allowance_; }
  /// Assigns a config to an admitted invocation. It must be ended.
  /// `source`, if given, is where the payload lies, or is packed to from its `pieces`.
  outgoing begin(std::uint32_t tag, std::uint64_t bytes, std::uint64_t invocation, const trial_terms& terms = {},
                 const std::byte* source = nullptr, const payload_pieces* pieces = nullptr) {
    if (!unusual_) [[likely]]
      return begin_with(tag, bytes, invocation, terms, {}, stamp_flags::none);
    const sent_payload what{{source, bytes}, pieces};
    if (assigned_.has_settled_on(bytes, settled_on_)) return begin_settled(tag, what, invocation, terms);
    return begin_unusual(tag, what, invocation, terms);
  }
  /// One of the rehearsals, outside window and assignment.
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

  /// The same of one that `out` has sent, or has not. A poison that the transport did not take is sent again until it does: without it a
  /// receive that a later stamp has matched would never end.
  void end(const outgoing& inv, const part_sender& out) noexcept {
    if (out.owes_poison()) [[unlikely]]
      say_later(out.poison());
    end(inv, out.failed());
  }

  /// Whether the receiver has matched that invocation. Asks it, if not.
  bool is_matched(std::uint32_t tag, std::uint64_t invocation);
  /// Whether the receiver has matched all that was sent. Asks it, if not: for a rank that wants to leave.
  bool all_matched();
  struct delivered {
    std::uint64_t sent = 0;       ///< messages in all
    std::uint64_t unmatched = 0;  ///< of those, not known to have been taken
  };
  delivered delivery() const noexcept;
  /// What it lets a receiver that may live read goes on until that has said so.
  void fail(runtime::errc why, one_sided_sender::reader receiver = one_sided_sender::reader::may_live) noexcept;
  /// Ends its part in the op for good: another one, of the next generation, takes its place.
  void retire() noexcept;
  /// Told when the receiver says that this generation has ended there.
  void on_ended(std::function<void()> tell) { ended_there_ = std::move(tell); }
  /// Told of a tag with a send that has so long left.
  void on_late_soon(runtime::time_ns before, std::function<void(std::uint32_t tag)> tell) {
    late_soon_ns_ = before;
    late_soon_ = std::move(tell);
  }
  /// When that is; the deadline itself where it would have been before.
  runtime::time_ns late_soon_at(runtime::time_ns deadline) const noexcept {
    const runtime::time_ns soon = deadline - late_soon_ns_;
    return soon > services_.ex.now() ? soon : deadline;
  }
  void late_soon(std::uint32_t tag) {
    if (late_soon_) late_soon_(tag);
  }
  /// Its sends that wait for room. `of` has what they have in common.
  void list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all);
  /// `has begun 2 messages of tag 3 there`
  std::string begun_in_words(std::uint32_t tag) const;
  std::uint64_t op() const noexcept { return op_; }
  rank_id peer() const noexcept { return peer_; }
  std::uint64_t generation() const noexcept { return generation_; }
  row_log& rows() noexcept { return rows_; }
  runtime::errc failed() const noexcept { return failed_; }

  /// Lets it use the configs, by digest, that put and that let the receiver get.
  void allow_one_sided(std::vector<std::uint64_t> puts, std::vector<std::uint64_t> gets);
  /// Lets it use configs that move a payload by its pieces, where both ends have the same: which do, of digests that are agreed on.
  void allow_pieces(std::function<bool(std::uint64_t digest)> goes_by_piece);
  /// Calls of a size that is being searched for, and those that are timed, say what was sent, so that the receiver can compare; but for configs, by digest, that say they are not exact.
  /// Payloads must lie where this thread can read them.
  void compare_trials(std::vector<std::uint64_t> inexact);
  /// This end runs `own` for that candidate of another digest, which needs what `own` needs, and is as exact.
  void note_variant(std::uint64_t candidate, std::uint64_t own);
  /// Null where that is not allowed.
  one_sided_sender* one_sided() const noexcept { return one_sided_.get(); }
  /// Whether the next rehearsal has what this config needs.
  bool ready_to_rehearse(std::uint64_t digest, std::span<const std::byte> source) const;

  struct counters {
    std::uint64_t waited_for_window = 0;
    std::uint64_t waited_for_decided = 0;  ///< calls that waited for what their decided config lacked
    std::uint64_t waited_in_vain = 0;      ///< those of them that ran another one
    std::uint64_t questions_sent = 0;
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  friend admission;
  // The first call in line stops waiting for what its decided config lacks.
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
    std::uint64_t admitted_only = 0;  // of these, so many have not begun
    std::uint64_t matched = 0;
    std::uint64_t unmatched_bytes = 0;
    std::uint64_t bytes_each = 0;            // of the unmatched ones, while all are of one size
    std::unique_ptr<std::uint64_t[]> sizes;  // of each, since some were not: in a ring at least as large as the window
    std::uint64_t ring_mask = 0;
    runtime::intrusive_list<admission::place> waiting;
    std::unique_ptr<patience_timer> patience;  // null: no call has waited for what its decided config lacked
    unsigned in_vain = 0;                      // such waits, one after the other

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
    const payload_pieces* pieces;  // null: it is contiguous
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
  // S5: nothing from another generation changes anything.
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
  // With the config that was decided on for this size, if it needs nothing, nothing is asked beyond it.
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

  // What every call looks at is together.
  services& services_;
  assignment& assigned_;
  stream* latest_ = nullptr;  // most calls have one tag
  window_limits
      window_;  // nothing until the receiver has answered, and once it has failed: a call inside it need not ask
  std::uint64_t op_;
  std::uint64_t generation_;
  std::uint64_t settled_on_ = 0;  // the last config decided on that needs nothing of its invocations
  rank_id self_;
  rank_id peer_;
  runtime::errc failed_ = runtime::errc::none;
  bool unusual_ = false;  // configs are allowed that need something, or trials are compared
  row_log rows_;
  std::unique_ptr<one_sided_sender> one_sided_;
  std::function<bool(std::uint64_t)> by_piece_;
  std::vector<lacking_config> lacking_;
  std::uint64_t default_digest_;
  stream_table<stream> streams_;
  std::uint64_t rehearsals_;  // the next one
  bool retired_ = false;
  bool heard_ = false;  // the receiver has answered
  window_limits full_window_;
  early_allowance& allowance_;
  std::uint64_t early_taken_ = 0;  // of it
  reminder_timer<&edge_sender::ask_for_room, hurried> room_question_{*this};
  std::uint32_t first_to_ask_for_ = 0;  // of the streams
  std::uint32_t first_of_many_ = 0;     // the same before leaving
  counters counters_;
  std::function<void()> ended_there_;
  std::function<void(std::uint32_t)> late_soon_;
  runtime::time_ns late_soon_ns_ = 0;
  std::unique_ptr<std::vector<std::uint64_t>> inexact_;  // null: trials are not compared
  std::unique_ptr<poison_timer> owed_poisons_;           // null: the transport took all
};

}  // namespace parley::actors

#pragma once
/// The receiving end of an edge (docs/protocol.md, Edges): which receive gets which invocation, and what came early.
///
///     edge_receiver edge(services, declaration, generation);
///     part_receiver in(edge, tag, buffer.size());              // posts the receive
///     auto seen = co_await in.match(deadline);                 // result<stamp>: its invocation has begun
///     co_await implementation_of(seen->digest)(in, buffer);    // in.receive(offset, part), in place
///
/// A receive's index is its place in its stream's queue. It is matched, and keeps its index, once a stamp or poison of its
/// invocation or a later one is here; one that ends unmatched leaves the queue and the later ones move up. A matched one waits for its
/// data also past its deadline, as long as that comes or may be written; of one that stands still nothing is waited for. Parts are
/// dropped when their invocation has ended or was seen (S5, S8); those of invocations to come wait, bounded by the sender's
/// window.
///
/// With one-sided transfers allowed, a receive into registered memory gives its sender a credit for it. Then it ends, whatever
/// the user or the clock want, only when it is known that nothing will be written any more: with its stamp or poison, or with
/// the answer to a revoke. When the sender has died, its memory is withdrawn first.
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/edge/credits.hpp>
#include <parley/actors/edge/kept_parts.hpp>
#include <parley/actors/edge/matched_streams.hpp>
#include <parley/actors/edge/part_receiver.hpp>
#include <parley/actors/edge/parts_in_flight.hpp>
#include <parley/actors/edge/stream_table.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/one_sided/one_sided.hpp>
#include <parley/actors/services.hpp>
#include <parley/registered_memory.hpp>
#include <parley/runtime/coroutines/mailbox.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/runtime/record/waiting_call.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace parley::actors {

class edge_receiver final : public data_sink {
 public:
  edge_receiver(services& s, const op_declaration& op, std::uint64_t generation);
  edge_receiver(const edge_receiver&) = delete;
  edge_receiver& operator=(const edge_receiver&) = delete;
  ~edge_receiver();

  void on_data(const stamp& s, runtime::arrival&& message) noexcept override;
  /// Ends all receives, and those to come, with `why`.
  void fail(runtime::errc why) noexcept;
  /// Ends its part in the op for good: another one, of the next generation, takes its place. What came for a generation that is
  /// unknown here is for that one, by way of the data hub.
  std::vector<runtime::arrival> retire() noexcept;
  /// Told when more has come early than this rank holds for one edge (`services::early_bytes`), which loses data: the op cannot
  /// go on. An honest sender's window keeps it from that.
  void on_overflow(std::function<void()> tell) { overflow_ = std::move(tell); }
  /// Told when what came is of a tag beyond those that one edge can have (stream_table.hpp): the op cannot go on, either.
  void on_too_many_tags(std::function<void()> tell) { too_many_tags_ = std::move(tell); }
  /// Told when a receive refuses its message. A sender that waits for its buffer gets it back once it knows of that, by what is
  /// called here.
  void on_refused(std::function<void(const part_receiver&, runtime::errc why)> tell) { refused_ = std::move(tell); }
  /// Told of a tag with a receive that has so long left.
  void on_late_soon(runtime::time_ns before, std::function<void(std::uint32_t tag)> tell) {
    late_soon_ns_ = before;
    late_soon_ = std::move(tell);
  }
  /// Its receives that wait, and what has come that none takes. `of` has what they have in common.
  void list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all);
  /// `has posted 2 receives of tag 3 there`
  std::string posted_in_words(std::uint32_t tag) const;
  /// Who sends data of an ended generation is not told so: it may just not have heard of a third rank yet.
  void say_no_end() noexcept { says_end_ = false; }
  /// Whether there was more for the next generation than could be kept.
  bool has_lost_unjoined() const noexcept { return lost_unjoined_; }
  /// Told when the sender says that this generation has ended there, and what with; of an edge with one-sided transfers.
  void on_ended(std::function<void(runtime::errc)> tell) { one_sided_->ended_there = std::move(tell); }
  /// Tells the sender at once what has been matched. A rank that wants to leave calls it until it may leave.
  void report_all() noexcept;
  /// Whether all reports have been sent. If not, the control window had no room for them.
  bool has_told_all() const noexcept { return failed_ != runtime::errc::none || !owes_reports_; }
  /// Whether the sender has acknowledged the reports of many streams.
  bool is_heard() const noexcept {
    return failed_ != runtime::errc::none || last_words_ == nullptr || last_words_->unheard.empty();
  }

  std::uint64_t op() const noexcept { return op_; }
  rank_id peer() const noexcept { return peer_; }
  runtime::noticed_at here() const noexcept { return {op_, services_.net.rank()}; }
  std::uint64_t generation() const noexcept { return generation_; }
  /// The invocation that the next receive of the user's would get.
  std::uint64_t next_invocation(std::uint32_t tag) noexcept;
  row_log& rows() noexcept { return rows_; }

  /// Receives may lie in a device's memory, where even a payload that is here has to be brought by a copy.
  void expect_slow_fetches() noexcept { fetch_may_wait_ = true; }
  /// Lets it give credits and get payloads. A buffer that is busy in `where`, if given, gets its credit when it is so no more.
  void allow_one_sided(runtime::memory_space* where = nullptr);
  void add_memory(const std::shared_ptr<memory_region>& region) { one_sided_->memory.add(region); }
  /// A config that puts is assignable: from here on receives into registered memory give credits.
  void want_credits() { one_sided_->wanted = true; }
  /// A matched receive has ended: its sender may be waiting to hear of it.
  void note_end(const part_receiver& r) noexcept {
    if (r.one_sided_ != nullptr && r.one_sided_->to_be_got) report_taken(r.stream_.id, r.index_, r.failed());
  }

  struct counters {
    std::uint64_t dropped = 0;       ///< parts of an ended generation or invocation, or of somebody else
    std::uint64_t ended = 0;         ///< those of an ended generation
    std::uint64_t unjoined = 0;      ///< came for a generation that is not known yet
    std::uint64_t early_parts = 0;   ///< came before their receive was posted
    std::uint64_t early_bytes = 0;   ///< that they hold now
    std::uint64_t copied_bytes = 0;  ///< of payloads that came with their messages, and not into their buffers
    std::uint64_t matched_sent = 0;  ///< flow control messages
    std::uint64_t credits_sent = 0;
    std::uint64_t revokes_sent = 0;
    std::uint64_t withdrawn = 0;  ///< regions that a sender who was declared dead had credits for
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  friend part_receiver;
  using stream = receive_stream;
  // One timer for all that wait, at or before the earliest of their deadlines: most receives end long before theirs.
  struct late_timer : runtime::timer {
    explicit late_timer(edge_receiver& e) noexcept : timer(&on_time), edge(e) {}
    static void on_time(timer& self) noexcept { static_cast<late_timer&>(self).edge.end_late(); }
    edge_receiver& edge;
  };
  stream& stream_of(std::uint64_t id) {
    stream* const its = known_or_new(id);
    return its != nullptr ? *its : streams_.add(id);
  }
  /// Null where a peer would make this end keep more streams than there can be.
  stream* known_or_new(std::uint64_t id) noexcept {
    return latest_ != nullptr && latest_->id == id ? latest_ : look_up(id);
  }
  [[gnu::cold]] stream* look_up(std::uint64_t id) noexcept;
  void offer_again() noexcept;
  void revoke_again() noexcept;
  struct payload_id {
    bool operator==(const payload_id&) const = default;
    std::uint64_t stream = 0;
    std::uint64_t invocation = 0;
  };
  struct failed_get {
    std::uint64_t stream = 0;
    std::uint64_t invocation = 0;
    runtime::errc outcome = runtime::errc::none;
  };
  // Past so many stamps in a row that say such messages are not put, no credit is given; the next other stamp changes that.
  static constexpr std::uint32_t unwanted_after = 16;
  static constexpr std::size_t most_failed_gets = 256;
  static constexpr unsigned most_repeats = 3;         // of a credit
  static constexpr std::uint64_t gen_end_every = 64;  // parts of an ended generation
  static constexpr std::size_t most_refused = 64;
  static constexpr runtime::time_ns refused_for_ns = 1'000'000'000;
  // Its sender shall hear why while it still waits for its buffer: it answers with a poison, or is not there to answer.
  struct refused_message {
    std::uint64_t stream = 0;
    std::uint64_t invocation = 0;
    runtime::time_ns until = 0;
    runtime::arrival message;
  };
  [[gnu::cold]] void keep_refused(const stream& s, std::uint64_t invocation, runtime::arrival&& message);
  [[gnu::cold]] void let_go_of_refused(std::uint64_t stream, std::uint64_t invocation) noexcept;
  struct one_sided {
    explicit one_sided(edge_receiver& e) noexcept : offers(e), revokes(e) {}
    memory_book memory;
    runtime::memory_space* where = nullptr;
    bool wanted = false;
    std::uint32_t unwanted = 0;
    void note(stamp_flags flags) noexcept { unwanted = has(flags, stamp_flags::no_credits) ? unwanted + 1 : 0; }
    std::vector<exposed> known;                          // the sender's memory
    std::vector<payload_id> being_read;                  // or may be yet, whatever has become of their receives
    std::vector<failed_get> failed_gets;                 // the last ones, for a sender that asks again
    reminder_timer<&edge_receiver::offer_again> offers;  // credits
    reminder_timer<&edge_receiver::revoke_again, hurried> revokes;  // callers wait for their answers
    std::function<void(runtime::errc)> ended_there;
  };
  [[gnu::cold]] void keep_unjoined(const stamp& s, runtime::arrival&& message) noexcept;
  // S5: nothing from another generation changes anything.
  bool is_for_us(const runtime::envelope& from) const noexcept {
    return from.source == peer_ && from.generation == generation();
  }
  bool may_offer_credit(const stream& s) const noexcept {
    return one_sided_ != nullptr &&
           (s.id == stream_id(0, true) || (one_sided_->wanted && one_sided_->unwanted < unwanted_after));
  }
  void offer_credit(stream& s, part_receiver& r, std::uint64_t index) noexcept;
  void offer_credits(stream& s) noexcept;
  bool is_free(part_receiver& r, std::span<const std::byte> buffer) noexcept;
  void send_credit(stream& s, const part_receiver& r, std::uint64_t index) noexcept;
  void send_revoke(stream& s) noexcept;
  bool must_ask_first(part_receiver& r) noexcept;
  void withdraw_from_the_dead(part_receiver& r) noexcept;
  void on_revoked(const revoked& m) noexcept;
  void on_exposed(exposed&& m);
  void on_question(const taken& m) noexcept;
  void report_taken(std::uint64_t stream, std::uint64_t invocation, runtime::errc outcome) noexcept;
  void say_taken(taken::kind what, payload_id which, runtime::errc outcome) noexcept;
  part_receiver& match_first(stream& s) noexcept;
  void match_posted(stream& s) noexcept;
  [[gnu::cold]] void deliver_early(stream& s, part_receiver& receive) noexcept;
  void look_at(runtime::time_ns deadline) noexcept {
    if (late_.linked() && late_.when <= deadline) return;
    const runtime::time_ns soon = deadline - late_soon_ns_;
    wake_at(soon > services_.ex.now() ? soon : deadline);
  }
  void wake_at(runtime::time_ns when) noexcept {
    runtime::timer_wheel::disarm(late_);
    services_.ex.arm(late_, when);
  }
  [[gnu::cold]] void end_late() noexcept;
  [[gnu::cold]] void end_unstamped(stream& s, runtime::time_ns now) noexcept;
  void end_stalled(runtime::time_ns now) noexcept;
  void drop_early(stream& s, std::uint64_t invocation) noexcept;
  void keep_early(stream& s, runtime::arrival&& message, bool poison) noexcept;
  runtime::arrival take_early(stream& s, std::uint32_t place) noexcept;
  void note_matched(stream& s, std::uint64_t bytes) noexcept;
  void send_report(stream& s) noexcept;
  void note_reported(stream& s) noexcept;
  [[gnu::cold]] void report_many() noexcept;
  [[gnu::cold]] void say_last_words_again() noexcept;
  [[gnu::cold]] void answer_of_many(const matched_streams& asked) noexcept;
  void say_what_ran(const stream& s, matched& m) const noexcept;

  // What every call looks at is together.
  services& services_;
  stream* latest_ = nullptr;  // most calls have one tag
  std::unique_ptr<one_sided> one_sided_;
  std::uint64_t op_;
  std::uint64_t generation_;
  rank_id peer_;
  runtime::errc failed_ = runtime::errc::none;
  bool fetch_may_wait_ = false;
  row_log rows_;
  late_timer late_{*this};
  counters counters_;
  stream_table<stream> streams_;
  std::function<void()> overflow_;
  std::function<void()> too_many_tags_;
  std::function<void(const part_receiver&, runtime::errc)> refused_;
  std::function<void(std::uint32_t)> late_soon_;
  runtime::time_ns late_soon_ns_ = 0;
  std::vector<refused_message> refused_messages_;
  // Of matched receives past their deadline: what had come, and since when it is no more than that.
  struct overdue {
    payload_id which;
    std::uint64_t moved_bytes = 0;
    runtime::time_ns since_ns = 0;
  };
  std::vector<overdue> overdue_;
  kept_parts unjoined_;
  static constexpr tempo of_last_words{.first = 5'000'000, .longest = 50'000'000};
  struct last_words {
    std::vector<matched_streams> unheard;
    std::uint32_t said = 0;
    reminder<of_last_words> again;
  };
  std::unique_ptr<last_words> last_words_;  // null: a message for each stream was enough
  bool owes_reports_ = false;
  bool says_end_ = true;
  bool lost_unjoined_ = false;
  bool retired_ = false;
};

// Made with each call: here, so that calls need not go elsewhere for it.
inline part_receiver::part_receiver(edge_receiver& edge, std::uint32_t tag, receive_room takes, kind k,
                                    match_watcher* watcher, std::byte* memory, std::uint64_t expected)
    : parts_in_flight(edge.services_.net), edge_(edge), stream_(edge.stream_of(stream_id(tag, k == kind::rehearsal))),
      takes_(takes), watcher_(watcher), memory_(memory), expected_(expected), posted_ns_(edge.rows_.clock()) {
  if (edge.failed_ != runtime::errc::none) [[unlikely]] {
    end(edge.failed_);
    return;
  }
  stream_.posted.push_back(*this);
  ++stream_.posted_count;
  if (stream_.first_posted < stream_.begun) edge_.match_posted(stream_);
  if (edge_.may_offer_credit(stream_) && memory_ != nullptr && place_ == place::posted)
    edge_.offer_credit(stream_, *this, stream_.first_posted + stream_.posted_count - 1);
}

}  // namespace parley::actors

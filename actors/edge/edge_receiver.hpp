#pragma once
/// The receiving end of an edge (docs/protocol.md, Edges). It matches receives with invocations, and keeps early messages.
///
///     edge_receiver edge(services, declaration, generation);
///     part_receiver in(edge, tag, buffer.size());              // posts the receive
///     auto seen = co_await in.match(deadline);                 // result<stamp>: its invocation has begun
///     co_await implementation_of(seen->digest)(in, buffer);    // in.receive(offset, part), in place
///
/// A receive's index is its place in its stream's queue. A receive is matched, and keeps its index, once a stamp or poison of its
/// invocation or of a later one has arrived. A receive that ends unmatched leaves the queue, and the later ones move up. A matched receive
/// waits for its data past its deadline, as long as data arrives or may still be written; once nothing moves any more, it ends. Parts of an
/// invocation that has ended, and duplicates, are dropped (S5, S8). Parts of later invocations wait; the sender's window bounds them.
///
/// If one-sided transfers are allowed, a receive into registered memory gives its sender a credit. From then on the receive ends only when
/// nothing can be written any more: with its stamp or poison, or with the answer to a revoke. A cancellation or a deadline does not end it
/// earlier. If the sender has died, the receive's memory is withdrawn first.
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/edge/credits.hpp>
#include <parley/actors/edge/matched_streams.hpp>
#include <parley/actors/edge/part_receiver.hpp>
#include <parley/actors/edge/parts_in_flight.hpp>
#include <parley/actors/edge/stream_table.hpp>
#include <parley/actors/edge/undeclared_parts.hpp>
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
  /// Ends all current and later receives with `why`.
  void fail(runtime::errc why) noexcept;
  /// Closes this end for good: an end of the next generation replaces it. Returns the data that arrived for a later generation; the caller
  /// delivers it again through the data hub.
  std::vector<runtime::arrival> retire() noexcept;
  /// `tell` is called when more early data has arrived than this rank holds for one edge (`services::early_bytes`). The data is lost, so
  /// the op cannot continue. A correct sender stays below the limit because of its window.
  void on_overflow(std::function<void()> tell) { overflow_ = std::move(tell); }
  /// `tell` is called when a message has a new tag and the edge already has the most tags (stream_table.hpp). The op cannot continue.
  void on_too_many_tags(std::function<void()> tell) { too_many_tags_ = std::move(tell); }
  /// `tell` is called when a receive refuses its message. `tell` must inform the sender, because a sender that waits for its buffer gets it
  /// back only then.
  void on_refused(std::function<void(const part_receiver&, runtime::errc why)> tell) { refused_ = std::move(tell); }
  /// `tell` is called for a receive with `before` of its time left, with the receive's tag.
  void on_late_soon(runtime::time_ns before, std::function<void(std::uint32_t tag)> tell) {
    late_soon_ns_ = before;
    late_soon_ = std::move(tell);
  }
  /// Adds this end's waiting receives, and messages that no receive has taken. `of` has what these entries share.
  void list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all);
  /// `has posted 2 receives of tag 3, and 1 of tag 4`
  std::string posted_in_words(std::uint32_t tag) const;
  /// From now on this end does not report to a sender that its data is for an ended generation: the sender may not know yet that a third
  /// rank has restarted.
  void say_no_end() noexcept { says_end_ = false; }
  /// True if data for the next generation was lost because there was no room for it.
  bool has_lost_unjoined() const noexcept { return lost_unjoined_; }
  /// `tell` is called with an error when the sender reports that this generation has ended on its side. For edges with one-sided transfers.
  void on_ended(std::function<void(runtime::errc)> tell) { one_sided_->ended_there = std::move(tell); }
  /// Reports all matches to the sender at once. A rank that wants to leave calls this until it may leave.
  void report_all() noexcept;
  /// True if all reports have been sent. Otherwise the control window had no room for them.
  bool has_told_all() const noexcept { return failed_ != runtime::errc::none || !owes_reports_; }
  /// True if the sender has acknowledged the reports of many streams.
  bool is_heard() const noexcept {
    return failed_ != runtime::errc::none || last_words_ == nullptr || last_words_->unheard.empty();
  }

  std::uint64_t op() const noexcept { return op_; }
  rank_id peer() const noexcept { return peer_; }
  runtime::noticed_at here() const noexcept { return {op_, services_.net.rank()}; }
  std::uint64_t generation() const noexcept { return generation_; }
  /// The invocation that the next posted receive would get.
  std::uint64_t next_invocation(std::uint32_t tag) noexcept;
  row_log& rows() noexcept { return rows_; }

  /// Receives may be into device memory. Then even a payload that has arrived needs an asynchronous copy.
  void expect_slow_fetches() noexcept { fetch_may_wait_ = true; }
  /// Allows credits and gets. If `where` is given, a buffer gets its credit only once it is free in that space.
  void allow_one_sided(runtime::memory_space* where = nullptr);
  void add_memory(const std::shared_ptr<memory_region>& region) { one_sided_->memory.add(region); }
  /// A config that puts may be assigned: from now on receives into registered memory give credits.
  void want_credits() { one_sided_->wanted = true; }
  /// A matched receive has ended. After a get, sends the report for which the sender waits.
  void note_end(const part_receiver& r) noexcept {
    if (r.one_sided_ != nullptr && r.one_sided_->to_be_got) report_taken(r.stream_.id, r.index_, r.failed());
  }

  struct counters {
    std::uint64_t dropped = 0;       ///< parts of an ended generation or invocation or another sender; duplicates
    std::uint64_t ended = 0;         ///< of those, parts of an ended generation
    std::uint64_t unjoined = 0;      ///< parts that arrived for a generation that is not joined yet
    std::uint64_t early_parts = 0;   ///< parts that arrived before their receive was posted
    std::uint64_t early_bytes = 0;   ///< bytes that early parts hold now
    std::uint64_t copied_bytes = 0;  ///< payload bytes that arrived in messages instead of their buffers
    std::uint64_t matched_sent = 0;  ///< flow-control messages
    std::uint64_t credits_sent = 0;
    std::uint64_t revokes_sent = 0;
    std::uint64_t withdrawn = 0;  ///< regions withdrawn because a sender that was declared dead had a credit
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  friend part_receiver;
  using stream = receive_stream;
  stream& stream_of(std::uint64_t id) {
    stream* const its = known_or_new(id);
    return its != nullptr ? *its : streams_.add(id);
  }
  /// Null if the peer's message would make this end keep more streams than there can be.
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
  // After this many stamps in a row with `no_credits`, no credit is given. The next stamp without that flag changes this.
  static constexpr std::uint32_t unwanted_after = 16;
  static constexpr std::size_t most_failed_gets = 256;
  static constexpr unsigned most_repeats = 3;         // of a credit
  static constexpr std::uint64_t gen_end_every = 64;  // parts of an ended generation
  static constexpr std::size_t most_refused = 64;
  static constexpr runtime::time_ns refused_for_ns = 1'000'000'000;
  // A refused message keeps its sender's buffer busy, so that the sender still waits when the reason arrives. The sender then replies with
  // a poison, unless it is gone.
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
    std::vector<payload_id> being_read;                  // or that may be read later, even if their receives have ended
    std::vector<failed_get> failed_gets;                 // the latest ones, for a sender that asks again
    reminder_timer<&edge_receiver::offer_again> offers;  // credits
    reminder_timer<&edge_receiver::revoke_again, hurried> revokes;  // callers wait for the answers
    std::function<void(runtime::errc)> ended_there;
  };
  [[gnu::cold]] void keep_unjoined(const stamp& s, runtime::arrival&& message) noexcept;
  // S5: messages of another generation change nothing.
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

  // These members are together because every call uses them.
  services& services_;
  stream* latest_ = nullptr;  // most calls have the same tag
  std::unique_ptr<one_sided> one_sided_;
  std::uint64_t op_;
  std::uint64_t generation_;
  rank_id peer_;
  runtime::errc failed_ = runtime::errc::none;
  bool fetch_may_wait_ = false;
  row_log rows_;
  // One timer for all waiting receives. It may be set earlier than the earliest deadline: most receives end long before their deadlines, so
  // the timer is not moved each time.
  runtime::timer_of<&edge_receiver::end_late> late_{*this};
  counters counters_;
  stream_table<stream> streams_;
  std::function<void()> overflow_;
  std::function<void()> too_many_tags_;
  std::function<void(const part_receiver&, runtime::errc)> refused_;
  std::function<void(std::uint32_t)> late_soon_;
  runtime::time_ns late_soon_ns_ = 0;
  std::vector<refused_message> refused_messages_;
  // A matched receive past its deadline: how much data has arrived, and the time since when no more has arrived.
  struct overdue {
    payload_id which;
    std::uint64_t moved_bytes = 0;
    runtime::time_ns since_ns = 0;
  };
  std::vector<overdue> overdue_;
  undeclared_parts unjoined_;
  static constexpr tempo of_last_words{.first = 5'000'000, .longest = 50'000'000};
  struct last_words {
    std::vector<matched_streams> unheard;
    std::uint32_t said = 0;
    reminder<of_last_words> again;
  };
  std::unique_ptr<last_words> last_words_;  // null: one message for each stream was enough
  bool owes_reports_ = false;
  bool says_end_ = true;
  bool lost_unjoined_ = false;
  bool retired_ = false;
};

// Every call constructs one, so this is inline.
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

#pragma once
/// The part of a sending edge for puts and gets: the credits that it holds, and the registered memory that its receiver knows.
///
///     one_sided_sender side(services, edge, puts, gets);          // the digests of its one-sided configs
///     side.lacking(stream, invocation, source)                    // the configs that this invocation cannot run, and why
///     const one_sided_access* use = side.begin(digest, stream, invocation, source);     // for its `part_sender`
///     side.end(use);
///
/// No invocation waits here. Messages are handled when they arrive, never in a coroutine: the reply to a revoke must not depend on the
/// user's program. An end that has failed replies to a revoke that it has ended, because the data for which the receiver would wait will
/// not arrive.
///
/// A `part_sender` that has offered its payload for a get waits for the receiver's report and asks for it again, even if the edge fails or
/// its generation ends: a living receiver may still be reading, and the caller gets its memory back only when the read has ended. The wait
/// also ends if the receiver has died or restarted, or if this rank counts as dead. It also ends if no message arrives for at least
/// `shortest_silence_ns` and for longer than a living rank may be silent: then the receiver has no such edge.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/edge/credits.hpp>
#include <parley/actors/edge/outgoing.hpp>
#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/services.hpp>
#include <parley/registered_memory.hpp>
#include <parley/runtime/time/timers.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace parley::actors {

class one_sided_sender;
struct transfer_part;

/// Adds `added` to `list` if the list has `other`.
inline void list_like(std::vector<std::uint64_t>& list, std::uint64_t other, std::uint64_t added) {
  const auto has = [&](std::uint64_t d) { return std::find(list.begin(), list.end(), d) != list.end(); };
  if (has(other) && !has(added)) list.push_back(added);
}

class one_sided_sender {
 public:
  struct edge {
    std::uint64_t op = 0;
    std::uint64_t generation = 0;
    runtime::rank_id peer = 0;
    std::function<std::uint64_t(std::uint64_t stream)> next;  ///< the next invocation of a stream
    std::function<void(std::uint64_t stream)> credited;       ///< called for each credit
    std::function<void()> memory_known{};  ///< called when the receiver knows more of this rank's memory
  };
  one_sided_sender(services& s, edge e, std::vector<std::uint64_t> puts, std::vector<std::uint64_t> gets);
  one_sided_sender(const one_sided_sender&) = delete;
  one_sided_sender& operator=(const one_sided_sender&) = delete;
  ~one_sided_sender();

  /// Announces memory to the receiver, from which it may get payloads.
  void add_memory(const std::shared_ptr<memory_region>& region);

  /// The configs that an invocation cannot run, and why. Valid until the next call.
  std::span<const lacking_config> lacking(std::uint64_t stream, std::uint64_t invocation,
                                          std::span<const std::byte> source);
  /// The unmet need because of which an invocation cannot run this config; empty if all needs are met or the config is not one-sided.
  std::optional<unmet_need> lacks(std::uint64_t digest, std::uint64_t stream, std::uint64_t invocation,
                                  std::span<const std::byte> source) const noexcept;
  /// True if the credit has arrived, or a credit would be of no use.
  bool may_put(std::uint64_t stream, std::uint64_t invocation, std::uint64_t bytes) noexcept;
  bool is_put(std::uint64_t digest) const noexcept;
  bool is_get(std::uint64_t digest) const noexcept;
  /// This end runs `own` for that candidate.
  void note_variant(std::uint64_t candidate, std::uint64_t own);
  /// Begins an invocation with this config, one-sided or not: from now on its credit is used or void. Returns null for a config that is not
  /// one-sided.
  const one_sided_access* begin(std::uint64_t digest, std::uint64_t stream, std::uint64_t invocation,
                                std::span<const std::byte> source);
  void end(const one_sided_access* used) noexcept;

  /// Ends `offered` when the receiver reports how the get ended.
  void await_taken(std::uint64_t stream, std::uint64_t invocation, transfer_part& offered) noexcept;
  /// A send has failed. The send stays in the list until the receiver no longer reads its payload.
  void ask_soon() noexcept;
  runtime::errc failed() const noexcept { return failed_; }
  /// Fails this end: no new get may begin. Reads in progress end at once only if their reader is gone.
  enum class reader : std::uint8_t { may_live, gone };
  void fail(runtime::errc why, reader r) noexcept;
  /// Reports to the receiver that this end has ended, so that the receiver does not wait for data on its credits.
  void say_ended() noexcept;

  struct counters {
    std::uint64_t credits_used = 0;
    std::uint64_t credits_ignored = 0;  ///< credits of another generation or stream, too late, revoked, or too many
    std::uint64_t gets_offered = 0;
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  static constexpr std::size_t most_streams = 1024;
  struct held_stream {
    std::uint64_t id = 0;
    credits_held held;
  };
  struct announced {
    std::uint64_t number = 0;  // from 1; 0: not announced to the receiver
    std::shared_ptr<memory_region> region;
    bool known = false;  // the receiver has confirmed that it knows the region
  };
  struct waiting_get {
    std::uint64_t stream = 0;
    std::uint64_t invocation = 0;
    transfer_part* offered = nullptr;
  };
  // After this time a report is overdue: most payloads are read much sooner.
  static constexpr runtime::time_ns first_question_ns = 10'000'000;
  // The longest pause between questions when a send should have ended.
  static constexpr runtime::time_ns longest_late_pause_ns = 20'000'000;
  static constexpr runtime::time_ns shortest_silence_ns = 3'000'000'000;
  /// True if the receiver has been silent for longer than any living rank that knows this edge would be.
  bool hears_nothing() const noexcept;
  void on_credit(const runtime::envelope& from, credit&& m);
  void on_revoke(const runtime::envelope& from, const revoke& m);
  void on_taken(const taken& m) noexcept;
  void on_known(const runtime::envelope& from, const known& m) noexcept;
  held_stream* stream_of(std::uint64_t id);
  /// Like `stream_of`, and drops the credits of earlier invocations: they are used or
  /// void, and not all of those invocations pass through `begin`.
  held_stream* stream_at(std::uint64_t id, std::uint64_t invocation);
  const announced* find(std::span<const std::byte> source) const noexcept;
  /// Announces a region again if the receiver has never received its announcement, or has forgotten it in favour of newer regions.
  void announce_forgotten(std::span<const std::byte> source) noexcept;
  /// Announces `a` under a new number, unless the receiver would then forget a region that it may be reading.
  void number_and_announce(announced& a) noexcept;
  bool remembers(const announced& a) const noexcept {
    return a.number != 0 && a.number + most_regions > last_announced_;
  }
  /// True if this end has registered memory that contains `source`.
  bool holds(std::span<const std::byte> source) const noexcept;
  void announce(const announced& a) noexcept;
  void announce_again() noexcept;
  void ask_whether_taken() noexcept;
  void end_waits(runtime::errc why) noexcept;

  services& services_;
  edge edge_;
  std::vector<std::uint64_t> puts_;
  std::vector<std::uint64_t> gets_;
  std::vector<lacking_config> lacking_;
  std::vector<held_stream> streams_;
  std::vector<announced> announced_;
  std::uint64_t last_announced_ = 0;
  std::vector<waiting_get> waiting_;
  std::vector<std::unique_ptr<const one_sided_access>> in_use_;
  reminder_timer<&one_sided_sender::announce_again> announcement_{*this};
  reminder_timer<&one_sided_sender::ask_whether_taken, hurried> taken_question_{*this};
  runtime::time_ns heard_ns_ = 0;  // when the receiver last sent a message about its reads
  runtime::errc failed_ = runtime::errc::none;
  bool memory_there_ = false;  // the receiver has registered memory
  counters counters_;
};

}  // namespace parley::actors

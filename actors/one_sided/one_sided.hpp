#pragma once
/// What a sending edge needs for puts and gets: the credits that came for it, and registered memory that its receiver knows.
///
///     one_sided_sender side(services, edge, puts, gets);          // the digests of its one-sided configs
///     side.lacking(stream, invocation, source)                    // those of them that this invocation cannot run, and why
///     const one_sided_access* use = side.begin(digest, stream, invocation, source);     // for its `part_sender`
///     side.end(use);
///
/// Nothing here waits on the way to an invocation. Messages are handled where they arrive, never in a coroutine: the answer to
/// a revoke must not depend on what the user's program does. An end that has failed answers that it has ended: the data that the
/// receiver would wait for does not come any more.
///
/// A `part_sender` that has let the receiver get its payload waits for the receiver's word and asks again for it, also where the
/// edge fails or its generation ends: a receiver that lives may still be reading, and the caller's memory is its own again only
/// once it is not. Without that word it ends where the receiver has died or restarted, where this rank counts as dead, or where
/// nothing answers for `shortest_silence_ns`, and longer than a living rank may be silent: then there is no such edge.
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

/// Adds a digest to a list that has another one.
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
    std::function<void(std::uint64_t stream)> credited;       ///< told of each credit
    std::function<void()> memory_known{};  ///< told when the receiver knows more of this rank's memory
  };
  one_sided_sender(services& s, edge e, std::vector<std::uint64_t> puts, std::vector<std::uint64_t> gets);
  one_sided_sender(const one_sided_sender&) = delete;
  one_sided_sender& operator=(const one_sided_sender&) = delete;
  ~one_sided_sender();

  /// Tells the receiver of memory that it may get payloads from.
  void add_memory(const std::shared_ptr<memory_region>& region);

  /// The digests that an invocation must not run. Valid until the next call.
  std::span<const lacking_config> lacking(std::uint64_t stream, std::uint64_t invocation,
                                          std::span<const std::byte> source);
  /// What an invocation lacks for this config; nothing where that is not one-sided, either.
  std::optional<unmet_need> lacks(std::uint64_t digest, std::uint64_t stream, std::uint64_t invocation,
                                  std::span<const std::byte> source) const noexcept;
  /// Whether its credit is here, or none is of use.
  bool may_put(std::uint64_t stream, std::uint64_t invocation, std::uint64_t bytes) noexcept;
  bool is_put(std::uint64_t digest) const noexcept;
  bool is_get(std::uint64_t digest) const noexcept;
  /// This end runs `own` for that candidate.
  void note_variant(std::uint64_t candidate, std::uint64_t own);
  /// The invocation begins with this config, one-sided or not: its credit is used or void. Null for other configs.
  const one_sided_access* begin(std::uint64_t digest, std::uint64_t stream, std::uint64_t invocation,
                                std::span<const std::byte> source);
  void end(const one_sided_access* used) noexcept;

  /// Ends `offered` when the receiver says what came of the get.
  void await_taken(std::uint64_t stream, std::uint64_t invocation, transfer_part& offered) noexcept;
  /// A send has failed: it stays until the receiver has let go of its payload.
  void ask_soon() noexcept;
  runtime::errc failed() const noexcept { return failed_; }
  /// Nothing new may be got; what is being read ends at once only where its reader is gone.
  enum class reader : std::uint8_t { may_live, gone };
  void fail(runtime::errc why, reader r) noexcept;
  /// Tells the receiver that this end has ended: what it has credits out for is not to be waited for any more.
  void say_ended() noexcept;

  struct counters {
    std::uint64_t credits_used = 0;
    std::uint64_t credits_ignored = 0;  ///< of another generation or stream, passed, revoked, or too many
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
    std::uint64_t number = 0;  // from 1; 0: the receiver has not been told of it
    std::shared_ptr<memory_region> region;
    bool known = false;  // the receiver said so
  };
  struct waiting_get {
    std::uint64_t stream = 0;
    std::uint64_t invocation = 0;
    transfer_part* offered = nullptr;
  };
  // A report is overdue then: most payloads have been read long before.
  static constexpr runtime::time_ns first_question_ns = 10'000'000;
  // Between questions of a send that should have ended.
  static constexpr runtime::time_ns longest_late_pause_ns = 20'000'000;
  static constexpr runtime::time_ns shortest_silence_ns = 3'000'000'000;
  /// Whether the receiver has not answered for longer than any rank that lives and knows this edge.
  bool hears_nothing() const noexcept;
  void on_credit(const runtime::envelope& from, credit&& m);
  void on_revoke(const runtime::envelope& from, const revoke& m);
  void on_taken(const taken& m) noexcept;
  void on_known(const runtime::envelope& from, const known& m) noexcept;
  held_stream* stream_of(std::uint64_t id);
  /// The same without the credits of invocations before this one: they are used or void, and not every one passes here.
  held_stream* stream_at(std::uint64_t id, std::uint64_t invocation);
  const announced* find(std::span<const std::byte> source) const noexcept;
  /// What the receiver has forgotten, for others that came since, or was never told of, is told to it anew.
  void announce_forgotten(std::span<const std::byte> source) noexcept;
  /// Under a new number, unless the receiver would make room by forgetting what it may be reading.
  void number_and_announce(announced& a) noexcept;
  bool remembers(const announced& a) const noexcept {
    return a.number != 0 && a.number + most_regions > last_announced_;
  }
  /// Whether the receiver has been told of such memory.
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
  runtime::time_ns heard_ns_ = 0;  // the receiver's last word of its reads
  runtime::errc failed_ = runtime::errc::none;
  bool memory_there_ = false;  // the receiver has registered some
  counters counters_;
};

}  // namespace parley::actors

#pragma once
/// Reads or awaits the decision of an op's ranks about the config to run. Each of these ranks may also ask for a new search, or end one.
/// The ranks are the two ends of an edge, or the members of a group or of an op without headers.
///
///     agreement with = transfer.to(1);                     // transfer.from(0), pipe.incoming(), group.agreed(), …
///     decision now  = with.decision(16_MiB);               // `now.decided`, or `now.why` says what is missing
///     decision then = co_await with.decided(16_MiB, {.timeout = 5s});
///     now.here; now.ranks;                                 // the config of this rank, and of each rank: in a mixture they differ
///     with.retune(16_MiB, "the link has changed");         // searches again; `then` stays in force meanwhile
///     decision next = co_await with.decided(16_MiB, {.after_search = then.search});
///
/// Every rank receives every decision, with its evidence. Only the leader (on an edge, the sender) knows the progress of a search, and
/// the other ranks send their requests to it. `bytes` is the size of a call: of its message, of the data of a collective, or as the
/// caller gives it (`symmetric_call_options::bytes`).
///
/// Trials are the program's own calls, so the program must keep making calls of that size while `decided` waits. Otherwise `decided` waits
/// until its timeout. `decided` throws `failure`: `timeout` with what is missing, the error that ended the op, or `cancelled`. A request is
/// never refused. It has no effect if tuning is off, or if a search is in progress that has measured nothing yet.
#include <parley/decision.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/task.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace parley::actors {
struct participant_state;
struct services;
}  // namespace parley::actors

namespace parley::ops {

using runtime::rank_id;
using runtime::time_ns;

struct decided_options {
  std::chrono::nanoseconds timeout{};  ///< 0: the op's timeout; `no_timeout`: none
  std::uint32_t after_search = 0;      ///< wait for the decision of a search later than this one
};

class agreement {
 public:
  /// For the library. Valid as long as this generation of the op: the handle refers to the op's participant, and to the error that ended
  /// the op, if any.
  agreement(actors::services& s, actors::participant_state& mine, const std::optional<runtime::error>& failed,
            time_ns timeout_ns) noexcept
      : services_(&s), mine_(&mine), failed_(&failed), timeout_ns_(timeout_ns) {}

  /// The decision for calls of this size, as far as this rank knows it now.
  ops::decision decision(std::uint64_t bytes) const;
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return until_decided(*this, bytes, o);  // passes a copy: this handle may be destroyed before the task runs
  }
  /// Asks for a new search for calls of this size; without `bytes`, for every size that was called so far. One rank's request is enough. If
  /// the search in progress has already timed a candidate, one new search follows it, even if several ranks ask. If the search in progress
  /// has timed none yet, no other search follows. No effect if tuning is off or there is only one candidate.
  void retune(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;
  /// Ends the search in progress for calls of this size; without `bytes`, every search. The config that was in force before stays.
  void give_up(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;

 private:
  static runtime::task<ops::decision> until_decided(agreement of, std::uint64_t bytes, decided_options o);
  enum class wish : std::uint8_t { retune, give_up };
  void ask(wish what, std::optional<std::uint64_t> bytes, std::string_view why) const;
  actors::services* services_;
  actors::participant_state* mine_;
  const std::optional<runtime::error>* failed_;
  time_ns timeout_ns_;
};

}  // namespace parley::ops

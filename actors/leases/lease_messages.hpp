#pragma once
/// The control messages of ops without headers. They have no numbers: each contains everything that its receiver has not acknowledged yet,
/// is repeated until it is answered, and has no further effect when it arrives twice. `key` is the index of a size bucket.
///
///     coordinator            participants
///       rehearse     ------->              run these on scratch buffers, over a communicator made from this id
///                    <-------  rehearsed   running, done, or which run failed here
///         … or, between calls: all hold the round, then a schedule names the call before which all make it …
///         … rows are sent in the usual reports, until the campaign has decided …
///       prepare(c)   ------->
///                    <-------  promise     no invocation >= k without a lease; or refuse
///       schedule     ------->              the log: from k on the winner, without end
///                    <-------  known
#include <parley/actors/leases/lease.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace parley::actors {

struct lease_prepare {
  static constexpr std::uint16_t message_type = 40;
  std::uint32_t key = 0;
  std::uint64_t campaign = 0;
  std::uint64_t after = 0;
  std::vector<lease_entry> entries;
  std::int64_t round_trip_ns = 0;  ///< the slowest participant's round trip: determines the margin
  std::uint8_t at_once = 0;        ///< no margin: the scheduled trials have to stop at once
  PARLEY_FIELDS(key, campaign, after, entries, round_trip_ns, at_once)
};

struct lease_schedule {
  static constexpr std::uint16_t message_type = 41;
  std::uint32_t key = 0;
  std::uint64_t after = 0;
  std::vector<lease_entry> entries;
  PARLEY_FIELDS(key, after, entries)
};

/// Promise, refusal and acknowledgement.
struct lease_reply {
  static constexpr std::uint16_t message_type = 42;
  enum class kind : std::uint8_t { promise, refuse, known, last = known };
  kind what = kind::known;
  std::uint32_t key = 0;
  std::uint64_t campaign = 0;
  std::uint64_t from = 0;
  std::uint64_t known = 0;
  PARLEY_FIELDS(what, key, campaign, from, known)
};

/// The ranks that a gate waits for. Sent to members that have promised, when others have not promised for some time.
struct lease_waiting {
  static constexpr std::uint16_t message_type = 43;
  std::uint32_t key = 0;
  std::uint64_t campaign = 0;
  std::vector<std::uint32_t> ranks;
  PARLEY_FIELDS(key, campaign, ranks)
};

struct rehearsal_run {
  enum class kind : std::uint8_t {
    timed,      ///< a timed run or a warm-up, with any data
    reference,  ///< a run of the default on known data; its result is kept
    compared,   ///< a run on the same data; its result is compared with the reference
    last = compared
  };
  std::uint64_t index = 0;  ///< number of the rehearsal, counted separately from calls
  std::uint64_t digest = 0;
  kind what = kind::timed;
  PARLEY_FIELDS(index, digest, what)
};
/// One round: all members make the same runs in the same order. When a later round arrives, an earlier one ends at once.
struct rehearse {
  static constexpr std::uint16_t message_type = 44;
  std::uint64_t round = 0;
  std::uint32_t key = 0;
  std::uint64_t bytes = 0;
  std::uint64_t connection = 0;  ///< number of the communicator; a new number means a new one, made from `id`
  std::vector<std::uint8_t> id;
  std::vector<rehearsal_run> runs;
  enum class moment : std::uint8_t {
    now,        ///< at the same time as the user's calls
    scheduled,  ///< before the call that the log names, once all earlier calls have ended here
    last = scheduled
  };
  moment when = moment::now;
  PARLEY_FIELDS(round, key, bytes, connection, id, runs, when)
};
/// A compared run with a different result on this rank.
struct unlike_run {
  std::uint64_t digest = 0;
  std::string how;
  PARLEY_FIELDS(digest, how)
};
struct rehearsed {
  static constexpr std::uint16_t message_type = 45;
  enum class kind : std::uint8_t {
    running,
    done,
    failed,
    unconnected,
    late,
    holding,  ///< connected; waiting for the call at which the round is made
    begun,    ///< the rank has reached that call
    last = begun
  };
  std::uint64_t round = 0;
  kind what = kind::running;
  std::uint64_t at = 0;  ///< progress, or place of the failure: 0 while connecting, n in the n-th run of the round
  std::string text;
  std::vector<unlike_run> unlike;
  PARLEY_FIELDS(round, what, at, text, unlike)
};

/// The generation in the envelope has begun. The previous generation ends on the receiver, with all calls that wait in it.
struct lease_end {
  static constexpr std::uint16_t message_type = 46;
  std::string why;
  PARLEY_FIELDS(why)
};
struct lease_ended {
  static constexpr std::uint16_t message_type = 47;
  bool ended = true;
  PARLEY_FIELDS(ended)
};

/// Says that a member wants to leave and makes no more calls, or that it has made another call since then. Repeated until it is answered.
/// `turn` grows each time that the member changes its mind, and is odd when the member wants to leave. While a member wants to leave, no
/// round begins, because the others would wait in the round for a rank that is gone.
struct lease_leaving {
  static constexpr std::uint16_t message_type = 48;
  std::uint64_t turn = 0;
  PARLEY_FIELDS(turn)
};
/// The answer to `lease_leaving`. If the member wants to leave: no round is in progress, and none will begin.
struct lease_let_go {
  static constexpr std::uint16_t message_type = 49;
  std::uint64_t turn = 0;
  PARLEY_FIELDS(turn)
};

}  // namespace parley::actors

#pragma once
/// The control messages of ops without headers. None is numbered: each says all that its receiver has not acknowledged yet, is
/// sent again until the answer has come, and changes nothing when it comes twice. `key` is the index of a size bucket.
///
///     coordinator            participants
///       rehearse     ------->              run these on scratch buffers, over a communicator made of this id
///                    <-------  rehearsed   running, done, or which one failed here
///         … or, between calls: all hold the round, then a schedule names the call before which everybody makes it …
///         … rows come in the usual reports, until the campaign has decided …
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
  std::int64_t round_trip_ns = 0;  ///< how long the answers of the slowest participant take: for the margin
  std::uint8_t at_once = 0;        ///< no margin: what is scheduled shall not go on
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

/// To those who have promised, when somebody has not for a while: whom a gate waits for.
struct lease_waiting {
  static constexpr std::uint16_t message_type = 43;
  std::uint32_t key = 0;
  std::uint64_t campaign = 0;
  std::vector<std::uint32_t> ranks;
  PARLEY_FIELDS(key, campaign, ranks)
};

struct rehearsal_run {
  enum class kind : std::uint8_t {
    timed,      ///< or a warm-up, on whatever numbers
    reference,  ///< of the default, on known numbers: what it brings is kept
    compared,   ///< on the same numbers: what it brings is compared with that
    last = compared
  };
  std::uint64_t index = 0;  ///< the rehearsals' own counter
  std::uint64_t digest = 0;
  kind what = kind::timed;
  PARLEY_FIELDS(index, digest, what)
};
/// One round: everybody runs the same ones in the same order. A later round ends an earlier one where it stands.
struct rehearse {
  static constexpr std::uint16_t message_type = 44;
  std::uint64_t round = 0;
  std::uint32_t key = 0;
  std::uint64_t bytes = 0;
  std::uint64_t connection = 0;  ///< which communicator; a new number means a new one, made of `id`
  std::vector<std::uint8_t> id;
  std::vector<rehearsal_run> runs;
  enum class moment : std::uint8_t {
    now,        ///< beside the user's calls
    scheduled,  ///< when the log says so, and all calls before that have ended here
    last = scheduled
  };
  moment when = moment::now;
  PARLEY_FIELDS(round, key, bytes, connection, id, runs, when)
};
/// A compared run whose numbers were others here.
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
    holding,  ///< connected, and ready for the call before which the round is to be made
    begun,    ///< there
    last = begun
  };
  std::uint64_t round = 0;
  kind what = kind::running;
  std::uint64_t at = 0;  ///< where it is, or has failed: 0 when connecting, n in the n-th run of the round
  std::string text;
  std::vector<unlike_run> unlike;
  PARLEY_FIELDS(round, what, at, text, unlike)
};

/// The generation in the envelope has begun; the one before ends here, with all that waits in it.
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

/// Whether a member wants to leave, which makes no more calls then, or has made a call since. Said again until it is answered; `turn` grows
/// each time that it changes its mind, and is odd when it wants to leave. While somebody does no round begins: the others would wait in
/// it for one that is gone.
struct lease_leaving {
  static constexpr std::uint16_t message_type = 48;
  std::uint64_t turn = 0;
  PARLEY_FIELDS(turn)
};
/// That was heard. Where it wants to leave: no round is under way, nor will be.
struct lease_let_go {
  static constexpr std::uint16_t message_type = 49;
  std::uint64_t turn = 0;
  PARLEY_FIELDS(turn)
};

}  // namespace parley::actors

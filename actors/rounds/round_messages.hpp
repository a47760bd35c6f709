#pragma once
/// The control messages of ops whose members agree in rounds (actors/rounds/rounds.hpp).
///
///     member                 leader
///       said(c, r)   ------->               what I have in round r of call c; repeated until the outcome arrives
///                    <-------   outcome     the result, or that the call ends without one, because a member is late; repeated until
///                                           known, and sent to members that ask later
///       known        ------->
///                    <-------   question    have you reached the end of call c?
///       passed       ------->               the call is over here, and I had nothing to say
///       failed       ------->               the call has failed here, so it fails on all members
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace parley::actors {

struct round_said {
  static constexpr std::uint16_t message_type = 50;
  enum class kind : std::uint8_t { said, passed, failed, known, last = known };
  kind what = kind::said;
  std::uint64_t call = 0;
  std::uint32_t round = 0;
  std::uint8_t code = 0;  ///< with `failed`: an `errc`; with `known`: the code of the outcome
  std::string text;
  std::vector<std::uint8_t> body;
  PARLEY_FIELDS(what, call, round, code, text, body)
};

struct round_outcome {
  static constexpr std::uint16_t message_type = 51;
  enum class kind : std::uint8_t { agreed, apart, failed, late, last = late };
  kind what = kind::agreed;
  std::uint64_t call = 0;
  std::uint32_t round = 0;
  std::uint8_t code = 0;  ///< of `failed` and `late`
  std::string text;
  std::vector<std::uint8_t> body;
  PARLEY_FIELDS(what, call, round, code, text, body)
};

struct round_question {
  static constexpr std::uint16_t message_type = 52;
  std::uint64_t call = 0;
  PARLEY_FIELDS(call)
};

}  // namespace parley::actors

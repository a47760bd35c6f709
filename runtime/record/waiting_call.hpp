#pragma once
/// Describes a call that waits: for the flight recorder's text, for another rank, or for the error of a call that timed out. The op makes
/// the description on request, from data that it keeps anyway, so that calls pay nothing for it.
///
///     std::vector<waiting_call> all;
///     edge.list_waiting(all);                     // each end appends its own, the oldest of a tag first
///     text += words_of(all.front(), now);         // `receive of acts 0->1, call 5, tag 3, up to 8 bytes: waits for rank 0 since 4.0 s`
#include <parley/identifiers.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::runtime {

struct waiting_call {
  std::string_view what;   ///< `send`, `receive`, `lead`, `work`, `call`
  std::string_view lacks;  ///< the thing that it waits for, in words
  std::string op;          ///< the op's title
  std::uint64_t id = 0;    ///< of the op
  std::uint64_t generation = 0;
  std::optional<std::uint64_t> invocation{};  ///< its number, or the number that it gets if no earlier call gives up
  std::optional<std::uint32_t> tag{};
  std::vector<rank_id> peers{};  ///< the ranks that it waits for; empty: it waits for its own rank
  std::uint64_t bytes = 0;       ///< of its payload; of a receive without a message: room in its buffer
  time_ns since_ns = 0;          ///< by the clock of the flight recorder
  std::uint64_t batch = 0;       ///< number, from 1, of the batch of this rank that it is part of; 0: no batch
  bool rehearsal = false;
};

/// Messages that have arrived and that no receive of this rank has accepted.
struct untaken_messages {
  std::string op;
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  rank_id peer = 0;
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;  ///< of the first one
  std::uint64_t parts = 0;
  std::uint64_t bytes = 0;
};

struct waiting_list {
  std::vector<waiting_call> calls;
  std::vector<untaken_messages> untaken;
};

/// `now_ns` is by the same clock as `since_ns`.
std::string words_of(const waiting_call& call, time_ns now_ns);
/// `4.0 s`, `350 ms`
std::string span_in_words(time_ns span_ns);

}  // namespace parley::runtime

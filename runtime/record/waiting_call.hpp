#pragma once
/// A call that waits, as the end of its op describes it when somebody asks: the flight recorder's text, another rank, or the error of a
/// call that ran out of time. It is read from what the end keeps anyway, so that calls pay nothing for it.
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
  std::string_view lacks;  ///< what it waits for, in words
  std::string op;          ///< its title
  std::uint64_t id = 0;    ///< of the op
  std::uint64_t generation = 0;
  std::optional<std::uint64_t> invocation{};  ///< that it is, or will be if none before it gives up
  std::optional<std::uint32_t> tag{};
  std::vector<rank_id> peers{};  ///< for whom it waits; none: for something of its own rank
  std::uint64_t bytes = 0;       ///< of its payload; of a receive that is not matched: what there is room for
  time_ns since_ns = 0;          ///< by the clock of the flight recorder
  std::uint64_t batch = 0;  ///< the call of this rank that it is a part of, counted from 1; 0: it is a call of its own
  bool rehearsal = false;
};

/// Messages that have come, and that no receive of this rank takes.
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

/// `now_ns` by the same clock.
std::string words_of(const waiting_call& call, time_ns now_ns);
/// `4.0 s`, `350 ms`
std::string span_in_words(time_ns span_ns);

}  // namespace parley::runtime

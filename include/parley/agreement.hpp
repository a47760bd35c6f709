#pragma once
/// What the ranks of an op have agreed on - the two ends of an edge, the members of a group or of an op without headers - as a value
/// that may be taken at once or awaited, and the wishes that any of them may have about it.
///
///     agreement with = transfer.to(1);                     // transfer.from(0), pipe.incoming(), group.agreed(), …
///     decision now  = with.decision(16_MiB);               // `now.decided`, or `now.why` says what is missing
///     decision then = co_await with.decided(16_MiB, {.timeout = 5s});
///     now.here; now.ranks;                                 // what this rank runs, and each of them: parts of a mixture differ
///     with.retune(16_MiB, "the link has changed");         // searches anew; `then` stays in force meanwhile
///     decision next = co_await with.decided(16_MiB, {.after_search = then.search});
///
/// All ranks learn of every decision, with its evidence; how far a search has come is known where the op is led: on an edge by the
/// sender. A wish of another rank's travels there. `bytes` is what a call has: a message, the data of a collective, or what a caller says
/// (`symmetric_call_options::bytes`). Trials are the program's own calls: somebody has to go on making them, of that size, while `decided` waits,
/// or it waits until its time-out. It throws `failure`: `timeout` with what is missing, what ended the op, or `cancelled`. A wish is never
/// refused: where tuning is switched off or a search is under way already it changes nothing.
#include <parley/actors/policy.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/task.hpp>
#include <parley/tuning/planners/decide.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::actors {
struct participant_state;
struct services;
}  // namespace parley::actors

namespace parley::ops {

using runtime::rank_id;
using runtime::time_ns;

/// What was measured of one candidate, or why nothing was.
struct candidate_evidence {
  std::string config;
  std::uint64_t digest = 0;
  double time_ns = std::numeric_limits<double>::infinity();
  std::uint32_t repetitions = 0;
  std::string status;
  std::string detail;
};

/// What one rank runs.
struct rank_part {
  rank_id rank = 0;
  std::string config;  ///< its own part of a mixture, else the decision's config
};

/// Calls that ran another config than the one decided on.
struct other_runs {
  std::string why;  ///< what the decided config lacked: `no credit in time`
  std::uint64_t calls = 0;
};

struct decision {
  std::string op;   ///< `activations 0->1`
  std::string key;  ///< as in a results file: `16MiB_bf16`
  bool decided = false;
  std::string config;  ///< what runs in any case: the winner, else the default
  std::uint64_t digest = 0;
  double time_ns = 0;  ///< what the winner was measured at; 0: it was not
  std::string why;     ///< why this one, or why there is none yet
  actors::decision_source source = actors::decision_source::trials;
  std::vector<candidate_evidence>
      evidence;  ///< also of configs that some rank lacks: `status` is `lacking`, `detail` says who and why
  std::vector<rank_part> ranks;  ///< of the op, and what each of them runs; empty before the decision
  std::string here;              ///< what this rank runs
  std::uint64_t calls = 0;       ///< since the decision; known where the op is led: on an edge at its sender
  std::vector<other_runs>
      ran_other;  ///< of these, the calls that ran another config, and why; empty: none, or this rank does not lead
  tuning::confidence confidence = tuning::confidence::none;  ///< how well founded it is
  std::uint32_t search = 0;                                  ///< which search it came from, counted from 1
  std::uint32_t version = 0;                                 ///< grows whenever the decision for this key changes
};

struct decided_options {
  std::chrono::nanoseconds timeout{};  ///< 0: the op's; `no_timeout`: none
  std::uint32_t after_search = 0;      ///< wait for the outcome of a later search than this one
};

class agreement {
 public:
  /// Of an op's end, whose generation it lives as long as: its participant, what has ended it, and its timeout.
  agreement(actors::services& s, actors::participant_state& mine, const std::optional<runtime::error>& failed,
            time_ns timeout_ns) noexcept
      : services_(&s), mine_(&mine), failed_(&failed), timeout_ns_(timeout_ns) {}

  /// For calls of this size, as this rank knows it now.
  ops::decision decision(std::uint64_t bytes) const;
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return until_decided(*this, bytes, o);  // this handle may be gone when the task runs
  }
  /// Searches anew for calls of this size, or of every size that was called so far. While a search is under way that has timed
  /// something, what is asked for, once or often, is one search that follows it; until then it is that search. Nothing comes of it where
  /// tuning is off or there is nothing to choose from. One rank is enough to ask.
  void retune(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;
  /// Ends the search for calls of this size, or every search; what was in force before stays.
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

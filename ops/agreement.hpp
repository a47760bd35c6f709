#pragma once
/// What the two ends of an edge have agreed on, as a value that may be taken at once or awaited, and the wishes that either of
/// them may have about it.
///
///     agreement with = transfer.to(1);                     // transfer.from(0), pipe.incoming(), pipe.outgoing()
///     decision now  = with.decision(16_MiB);               // `now.decided`, or `now.why` says what is missing
///     decision then = co_await with.decided(16_MiB, {.timeout_ns = 5'000'000'000});
///     with.retune(16_MiB, "the link has changed");         // searches anew; `then` stays in force meanwhile
///     decision next = co_await with.decided(16_MiB, {.after_search = then.search});
///
/// Both ends learn of every decision; a wish of the receiver's travels to the sender, who leads. `decided` throws `failure`:
/// `timeout` with what is missing, what ended the edge, or `cancelled`. A wish is never refused: where tuning is switched off
/// or a search is under way already it changes nothing.
#include <parley/actors/messages.hpp>
#include <parley/runtime/identifiers.hpp>
#include <parley/runtime/task.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

using runtime::rank_id;
using runtime::time_ns;

class edge_end;

/// What was measured of one candidate, or why nothing was.
struct candidate_evidence {
  std::string config;
  std::uint64_t digest = 0;
  double time_ns = std::numeric_limits<double>::infinity();
  std::uint32_t repetitions = 0;
  std::string status;
  std::string detail;
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
  std::vector<candidate_evidence> evidence;
  std::uint32_t search = 0;   ///< which search it came from, counted from 1
  std::uint32_t version = 0;  ///< grows whenever the decision for this key changes
};

struct decided_options {
  time_ns timeout_ns = 0;          ///< 0: the op's; `never`: none
  std::uint32_t after_search = 0;  ///< wait for the outcome of a later search than this one
};

class agreement {
 public:
  explicit agreement(edge_end& edge) noexcept : edge_(&edge) {}

  /// For messages of this size, as this rank knows it now.
  ops::decision decision(std::uint64_t bytes) const;
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return until_decided(*this, bytes, o);  // this handle may be gone when the task runs
  }
  /// Searches anew for messages of this size, or of every size.
  void retune(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;
  /// Ends the search for messages of this size, or every search; what was in force before stays.
  void give_up(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;

 private:
  static runtime::task<ops::decision> until_decided(agreement of, std::uint64_t bytes, decided_options o);
  void ask(actors::tuning_request::kind what, std::optional<std::uint64_t> bytes, std::string_view why) const;
  edge_end* edge_;
};

}  // namespace parley::ops

#pragma once
/// One invocation of an edge at its sender: its stamp, what it says of itself to trials, and what a put or a get of it may use.
#include <parley/actors/edge/credits.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/identifiers.hpp>
#include <parley/registered_memory.hpp>

#include <cstdint>
#include <memory>

namespace parley::actors {

class one_sided_sender;

/// How fast trials follow each other.
enum class pacing : std::uint8_t {
  within_budget,  ///< as the program's wall time earns them (N4)
  at_once,        ///< in a tuning phase, which has nothing else to do
};

/// What a call says of itself that matters to trials.
struct trial_terms {
  pacing pace = pacing::within_budget;
  /// Of the messages that were started together, and are under way together: those of one batch and one key run the same config, and are
  /// one repetition of its trial, up to `assignment::most_together` of them. Later ones of an edge have higher numbers. 0: it is alone.
  std::uint64_t batch = 0;
};

/// Where the payload of a get lies, as the data part of its stamp says.
struct payload_place {
  std::uint64_t region = 0;  ///< counted by the sender, per edge
  std::uint64_t offset = 0;
};

/// What one invocation may use.
struct one_sided_access {
  one_sided_sender& from;
  std::uint64_t stream = 0;
  std::uint64_t invocation = 0;
  held_credit credit{};                     ///< to put into
  std::shared_ptr<memory_region> region{};  ///< to be got from; null for a put
  payload_place place{};
};

/// One invocation at its sender.
struct outgoing {
  stamp mark;
  std::uint64_t invocation = 0;
  runtime::time_ns began_ns = 0;
  const one_sided_access* access = nullptr;  ///< what a put or get may use; the edge's, until the invocation is ended
  runtime::time_ns worked_ns = 0;            ///< of a trial: what was no waiting for parts; 0: not known

  bool timed() const noexcept { return has(mark.flags, stamp_flags::timed); }
};

}  // namespace parley::actors

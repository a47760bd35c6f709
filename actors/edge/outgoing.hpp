#pragma once
/// One invocation of an edge at its sender: its stamp, its call's terms for trials, and the memory for its put or get.
#include <parley/actors/edge/credits.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/identifiers.hpp>
#include <parley/registered_memory.hpp>

#include <cstdint>
#include <memory>

namespace parley::actors {

class one_sided_sender;

/// The pace at which trials may follow each other.
enum class pacing : std::uint8_t {
  within_budget,  ///< as fast as the program's wall time pays for them (N4)
  at_once,        ///< without pauses, in a tuning phase
};

/// The properties of a call that matter to trials.
struct trial_terms {
  pacing pace = pacing::within_budget;
  /// The number of the batch that this message was started with; 0: it was sent alone. The messages of one batch and one key are in flight
  /// together. They run the same config and count as one repetition of its trial, up to `assignment::most_together` messages. Later batches
  /// of an edge have higher numbers.
  std::uint64_t batch = 0;
};

/// The place of a payload that the receiver reads with a get. It travels as the data part of the stamp.
struct payload_place {
  std::uint64_t region = 0;  ///< counted by the sender, per edge
  std::uint64_t offset = 0;
};

/// The memory that the put or get of one invocation may use.
struct one_sided_access {
  one_sided_sender& from;
  std::uint64_t stream = 0;
  std::uint64_t invocation = 0;
  held_credit credit{};                     ///< for a put
  std::shared_ptr<memory_region> region{};  ///< for a get: where the payload lies; null for a put
  payload_place place{};
};

/// One invocation at its sender.
struct outgoing {
  stamp mark;
  std::uint64_t invocation = 0;
  runtime::time_ns began_ns = 0;
  const one_sided_access* access = nullptr;  ///< memory for a put or get; owned by the edge until `end`
  runtime::time_ns worked_ns = 0;            ///< for a trial: the time not spent waiting for parts; 0: not known

  bool timed() const noexcept { return has(mark.flags, stamp_flags::timed); }
};

}  // namespace parley::actors

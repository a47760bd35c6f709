#pragma once
/// The leader's knowledge of its op's agreement. The op owns it, and it outlives the coordinator (coordinator.hpp), which fills it in. The
/// op's data path and the evidence of its decisions (evidence.hpp) read it.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/tuning/config.hpp>
#include <parley/tuning/merge.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace parley::actors {

struct coordinator_state {
  op_declaration declaration;
  std::uint64_t generation = 0;
  tuning::catalogue configs;  ///< the leader's own
  assignment* assigned = nullptr;
  /// Called when an invocation has failed at a participant; at the sender it may still be in progress.
  std::function<void(const nack&)> failed_there;

  struct joined {
    rank_id rank = 0;
    tuning::offer offered;
    std::vector<wire_result> cached;
    std::vector<wire_limit> limits;
    std::vector<std::string> lacking;  ///< why it cannot run some of the configs that it offers
    std::uint64_t validators_hash = 0;
    bool trials = true;
    bool complete = false;  ///< its catalogue is known
    std::optional<std::vector<std::uint64_t>> ready;
    std::vector<std::uint64_t> failed;  ///< candidates with a variant that failed on this rank itself
  };
  std::vector<joined> participants;
  std::optional<tuning::merged> merged;
  std::vector<std::string> warm_errors;
  std::size_t owed = 0;              ///< messages that are not acknowledged yet
  time_ns control_ns = 0;            ///< time of its rank's thread that this actor has used
  std::function<void()> look_again;  ///< tells the actor that rows or decisions have arrived on another path
  std::function<void()> on_change;   ///< called when candidates were opened, rows judged or keys decided
};

}  // namespace parley::actors

#pragma once
/// The coordinator actor: it lives on the leader's rank, collects offers, merges them, has the candidates warmed, judges the
/// trials and tells everyone the winner. The data path never waits for it.
///
///     spawn_coordinator(services, state);     // `state` belongs to the op and outlives the actor
///
/// It tells only the participants. Conflicting declarations or roles end the op on every participant with a named error; a
/// participant that never offers leaves the op on its default.
///
/// If something is thrown in it the data path goes on, and what it was about is done again from what is known of the op, a few times,
/// each later than the one before (second_tries.hpp). Where that gets no further tuning of the op ends, and the decisions and a
/// warning say so: what was agreed on stays in force. Its messages are still acknowledged then.
#include <parley/actors/assignment.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/messages.hpp>
#include <parley/actors/services.hpp>
#include <parley/runtime/actor.hpp>
#include <parley/tuning/config.hpp>
#include <parley/tuning/merge.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace parley::actors {

/// What the coordinator knows of one op; in the op, whose data path and evidence use it.
struct coordinator_state {
  op_declaration declaration;
  std::uint64_t generation = 0;
  tuning::catalogue configs;  ///< the leader's own
  assignment* assigned = nullptr;
  std::function<void(const nack&)>
      failed_there;  ///< a participant's invocation has failed; the sender's may still go on

  struct joined {
    rank_id rank = 0;
    tuning::offer offered;
    std::vector<wire_result> cached;
    std::vector<wire_limit> limits;
    std::vector<std::string> lacking;  ///< why it cannot run some of what it offers
    std::uint64_t validators_hash = 0;
    bool trials = true;
    bool complete = false;  ///< its catalogue is known
    std::optional<std::vector<std::uint64_t>> ready;
    std::vector<std::uint64_t> failed;  ///< whose variant failed on this very rank
  };
  std::vector<joined> participants;
  std::optional<tuning::merged> merged;
  std::vector<std::string> warm_errors;
  std::size_t owed = 0;              ///< messages that were not acknowledged yet
  time_ns control_ns = 0;            ///< what this actor has taken of its rank's time
  std::function<void()> look_again;  ///< tells the actor that rows or decisions have come from elsewhere
  std::function<void()> on_change;   ///< called when candidates were opened, rows judged or keys decided
};

/// Tells the actor that a campaign was decided on the data path.
struct decision_due {};

using coordinator_address = runtime::address<received<ack>, received<offer>, received<warmed>, received<report>,
                                             decision_due, received<tuning_request>, received<nack>>;

coordinator_address spawn_coordinator(services& s, coordinator_state& state);
void unbind_coordinator(services& s, const coordinator_state& state);

}  // namespace parley::actors

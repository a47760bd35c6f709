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
#include <parley/actor.hpp>
#include <parley/actors/agreement/coordinator_state.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/services.hpp>

namespace parley::actors {

/// Tells the actor that a search was decided on the data path.
struct decision_due {};

using coordinator_address = runtime::address<received<ack>, received<offer>, received<warmed>, received<report>,
                                             decision_due, received<tuning_request>, received<nack>>;

coordinator_address spawn_coordinator(services& s, coordinator_state& state);
void unbind_coordinator(services& s, const coordinator_state& state);

}  // namespace parley::actors

#pragma once
/// The coordinator actor. The actor runs on the leader's rank. It collects and merges offers, has the candidates warmed, judges the trials,
/// and sends all participants the winner. The data path never waits for it.
///
///     spawn_coordinator(services, state);     // `state` belongs to the op and outlives the actor
///
/// It sends only to the participants. Conflicting declarations or roles end the op on every participant with a named error. If a
/// participant never offers, the op stays on its default.
///
/// An exception in the actor does not affect the data path. The actor repeats the failed step a few times from the op's state, with growing
/// pauses (retry_policy.hpp). If it makes no progress, the tuning of the op ends, and the decisions and a warning say so. Agreed configs
/// then stay in force, and the actor only acknowledges messages.
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

#pragma once
/// The coordinator actor. It lives on the leader's rank, collects and merges offers, has the candidates warmed, judges the trials, and
/// tells all participants the winner. The data path never waits for it.
///
///     spawn_coordinator(services, state);     // `state` belongs to the op and outlives the actor
///
/// It sends only to the participants. Conflicting declarations or roles end the op on every participant with a named error. If a
/// participant never offers, the op stays on its default.
///
/// After an exception in it the data path goes on. The actor repeats the failed step from what is known of the op, a few times, with
/// growing pauses (retry_policy.hpp). If it gets no further, the tuning of the op ends, and the decisions and a warning say so: what was
/// agreed on stays in force, and the actor only acknowledges messages.
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

#pragma once
/// The participant actor of an op, on each of its ranks. It offers what its rank can run, warms what may be assigned, and reports what it
/// measured. Senders and receivers differ only in the name of their role.
///
///     spawn_participant(services, mine);             // `mine` is the op's state on this rank, which outlives the actor
///
/// The op (`participant_state`) holds what a participant has promised or learned. The actor ends with its scope. After an exception in it
/// the op goes on with what was assigned so far. The actor repeats the failed step a few times, with growing pauses (retry_policy.hpp). If
/// it gets no further, it asks the leader to end the tuning of the op, and warns the user.
#include <parley/actor.hpp>
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/services.hpp>
#include <parley/news.hpp>
#include <parley/tuning/bits.hpp>
#include <parley/tuning/config.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace parley::actors {

/// A decision as a participant learned it.
struct decision_record {
  std::string key;
  std::uint64_t digest = 0;
  std::string why;
  std::vector<wire_evidence> evidence;
  decision_source source = decision_source::trials;
  rank_id proposer = 0;        ///< the rank whose results file decided, else the first rank whose catalogue has it
  std::uint64_t machines = 0;  ///< the combination of machines that it holds for
  std::uint64_t mixture = 0;   ///< which mixture the winner is; 0: all run the config itself
  std::uint32_t version = 0;   ///< grows with every change of this key's decision
  std::uint32_t search = 0;    ///< the search that it came from; the first is 1
  std::vector<rank_id> participants{};
  std::uint32_t left_out = 0;      ///< candidates that the evidence has no room for
  std::vector<wire_part> parts{};  ///< of a mixture: configs that ranks run in place of the winner
  tuning::confidence confidence = tuning::confidence::none;
};

/// How long one rehearsal may take. Ranks begin it at different times, and a rank that computes without polling delays it. A part that
/// waits for its partner before it begins waits for half of this limit, so that a partner that began later still has all of it.
inline constexpr time_ns warming_limit_ns = 20'000'000'000;

/// The functions that the actors need from the owner of the implementations, `ops`.
class implementations {
 public:
  /// Runs this role's implementation once, with a known pattern on scratch buffers. Throws if it fails.
  virtual runtime::task<> rehearse(std::uint64_t digest) = 0;
  /// How many rehearsals may run at the same time. All ranks start them in the same order.
  virtual std::size_t rehearsals_at_once() const noexcept { return 1; }
  /// The op cannot go on: conflicting declarations, a dead peer.
  virtual void on_rejected(const runtime::error& why) noexcept = 0;

 protected:
  ~implementations() = default;
};

/// Tells the actor that rows are due.
struct rows_due {};

/// The messages of this actor: those of the leader, and what this rank has to tell the leader.
using participant_actor = runtime::actor<received<ack>, received<merged>, received<op_reject>, received<warm>,
                                         received<decide>, received<offer>, rows_due, tuning_request, nack>;
using participant_address = runtime::address<received<ack>, received<merged>, received<op_reject>, received<warm>,
                                             received<decide>, received<offer>, rows_due, tuning_request, nack>;

/// The state of the op on this rank that its participant actor uses.
struct participant_state {
  op_declaration declaration;
  std::uint64_t generation = 0;
  std::string role;
  tuning::catalogue configs;
  tuning::bits available;
  std::vector<remembered_best> remembered;
  std::vector<wire_limit> limits;   ///< what the user's constraints forbid on this rank
  std::vector<std::string> faults;  ///< what the user's code threw when asked what this rank can run
  tuning_policy policy = tuning_policy::online;
  implementations* runs = nullptr;
  row_log* rows = nullptr;
  const assignment* assigned = nullptr;  ///< null except on the leader's rank

  std::vector<std::uint64_t> candidates;  ///< once merged
  std::vector<std::string> ids;
  /// Candidates for which this rank runs another config of the same wire class, and that config: its part of a mixture.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> instead;
  std::vector<std::string> unavailable;    ///< what this rank cannot run, and why
  std::vector<std::uint64_t> ready;        ///< what this rank has warmed (S3)
  std::vector<std::uint64_t> failed_here;  ///< candidates whose rehearsal failed because of this rank's own part
  std::vector<std::string> warm_errors;
  std::string no_common_config;
  std::optional<runtime::error> rejected;  ///< the leader's objection to the declaration
  std::vector<decision_record> decisions;
  std::size_t owed = 0;        ///< messages that are not acknowledged yet
  std::size_t rehearsing = 0;  ///< candidates being rehearsed
  time_ns control_ns = 0;      ///< how much of this rank's time the agreement has taken (N4)
  runtime::news changed;       ///< told whenever something above becomes known
  participant_address actor;

  /// Which of its own configs this rank runs when `digest` is assigned.
  std::uint64_t variant_of(std::uint64_t digest) const noexcept {
    for (const auto& [candidate, own] : instead) {
      if (candidate == digest) return own;
    }
    return digest;
  }
  /// True if `digest` may be assigned here (S3): it is the default, or this rank has warmed it.
  bool may_run(std::uint64_t digest) const noexcept {
    return digest == declaration.default_digest || std::find(ready.begin(), ready.end(), digest) != ready.end();
  }
  /// The name of a candidate, also if this rank runs another config for it; null for an unknown digest.
  const std::string* id_of(std::uint64_t digest) const noexcept {
    for (std::size_t i = 0; i < candidates.size() && i < ids.size(); ++i) {
      if (candidates[i] == digest) return &ids[i];
    }
    const auto own = configs.find(digest);
    return own ? &configs[*own].id : nullptr;
  }
};

participant_address spawn_participant(services& s, participant_state& mine);

/// Sends a request to the leader, whichever rank leads. An op that has ended sends nothing.
inline void ask_leader(const participant_state& mine, tuning_request wish) {
  static_cast<void>(mine.actor.try_send(std::move(wish)));
}

/// Stops control messages from reaching the op's participant.
void unbind_participant(services& s, const participant_state& mine);

}  // namespace parley::actors

#pragma once
/// The sender and receiver actors: each offers what its rank can run, warms what may be assigned, and reports what it
/// measured. They differ in their role's name and in nothing else.
///
///     spawn_participant(services, op, mine);         // `mine` is the op's state on this rank, which outlives the actor
///
/// What a participant has promised or learned lives in the op (`participant_state`). The actor ends with its scope. If something is
/// thrown in it the op goes on with what was assigned so far, and what it was about is done again, a few times, each later than the one
/// before (second_tries.hpp). Where that gets no further the leader is asked to end the tuning of the op, and the user is warned.
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
  rank_id proposer = 0;        ///< the rank whose results file it is from, else the first whose catalogue has it
  std::uint64_t machines = 0;  ///< which combination of machines it holds for
  std::uint64_t mixture = 0;   ///< which mixture the winner is; 0: all run the config itself
  std::uint32_t version = 0;   ///< grows with every change of this key's decision
  std::uint32_t search = 0;    ///< which search it came from; the first is 1
  std::vector<rank_id> participants{};
  std::uint32_t left_out = 0;      ///< candidates that the evidence has no room for
  std::vector<wire_part> parts{};  ///< of a mixture: who runs another config in the place of the winner
  tuning::confidence confidence = tuning::confidence::none;
};

/// How long one rehearsal may take. Ranks begin it at different times, and one that computes without polling holds it up: a part that
/// waits for its partner before it begins does that for half of it, so that the partner, who began later, still gets all of it.
inline constexpr time_ns warming_limit_ns = 20'000'000'000;

/// What the actors need from whoever holds the implementations: `ops`.
class implementations {
 public:
  /// Runs this role's implementation once, with a known pattern on scratch buffers; throws what is wrong.
  virtual runtime::task<> rehearse(std::uint64_t digest) = 0;
  /// How many rehearsals may be under way at once; all ranks start them in one order.
  virtual std::size_t rehearsals_at_once() const noexcept { return 1; }
  /// The op cannot go on: conflicting declarations, a dead peer.
  virtual void on_rejected(const runtime::error& why) noexcept = 0;

 protected:
  ~implementations() = default;
};

/// Tells the actor that rows are due.
struct rows_due {};

/// What it takes in: the leader's messages, and what this rank has to tell the leader.
using participant_actor = runtime::actor<received<ack>, received<merged>, received<op_reject>, received<warm>,
                                         received<decide>, received<offer>, rows_due, tuning_request, nack>;
using participant_address = runtime::address<received<ack>, received<merged>, received<op_reject>, received<warm>,
                                             received<decide>, received<offer>, rows_due, tuning_request, nack>;

/// The op on this rank, as far as its participant actor is concerned.
struct participant_state {
  op_declaration declaration;
  std::uint64_t generation = 0;
  std::string role;
  tuning::catalogue configs;
  tuning::bits available;
  std::vector<remembered_best> remembered;
  std::vector<wire_limit> limits;   ///< what the user's constraints forbid here
  std::vector<std::string> faults;  ///< what the user's code threw when it was asked what this rank can run
  tuning_policy policy = tuning_policy::online;
  implementations* runs = nullptr;
  row_log* rows = nullptr;
  const assignment* assigned = nullptr;  ///< on the leader's rank

  std::vector<std::uint64_t> candidates;  ///< once merged
  std::vector<std::string> ids;
  /// Where this rank runs another config of the same wire class for a candidate: its part of a mixture.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> instead;
  std::vector<std::string> unavailable;    ///< what this rank cannot run, and why
  std::vector<std::uint64_t> ready;        ///< what this rank has warmed (S3)
  std::vector<std::uint64_t> failed_here;  ///< of which this rank's own part failed in a rehearsal
  std::vector<std::string> warm_errors;
  std::string no_common_config;
  std::optional<runtime::error> rejected;  ///< what the leader said against the declaration
  std::vector<decision_record> decisions;
  std::size_t owed = 0;        ///< messages that were not acknowledged yet
  std::size_t rehearsing = 0;  ///< candidates
  time_ns control_ns = 0;      ///< what the agreement has taken of this rank's time (N4)
  runtime::news changed;       ///< told whenever something above has come to be known
  participant_address actor;

  /// Which of its own configs this rank runs when `digest` is assigned.
  std::uint64_t variant_of(std::uint64_t digest) const noexcept {
    for (const auto& [candidate, own] : instead) {
      if (candidate == digest) return own;
    }
    return digest;
  }
  /// What may be assigned here (S3): the default, and what this rank has warmed.
  bool may_run(std::uint64_t digest) const noexcept {
    return digest == declaration.default_digest || std::find(ready.begin(), ready.end(), digest) != ready.end();
  }
  /// What a candidate is called, also one that this rank takes part in with another config; null for a stranger.
  const std::string* id_of(std::uint64_t digest) const noexcept {
    for (std::size_t i = 0; i < candidates.size() && i < ids.size(); ++i) {
      if (candidates[i] == digest) return &ids[i];
    }
    const auto own = configs.find(digest);
    return own ? &configs[*own].id : nullptr;
  }
};

participant_address spawn_participant(services& s, participant_state& mine);

/// Asks the leader, on whatever rank it is. An op that has ended asks nobody.
inline void ask_leader(const participant_state& mine, tuning_request wish) {
  static_cast<void>(mine.actor.try_send(std::move(wish)));
}

/// Stops control messages from reaching the op's participant.
void unbind_participant(services& s, const participant_state& mine);

}  // namespace parley::actors

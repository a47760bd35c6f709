#pragma once
/// The participant actor of an op, on each of its ranks. It offers the configs that its rank can run, warms the candidates, and reports its
/// measurements. Senders and receivers differ only in the name of their role.
///
///     spawn_participant(services, mine);             // `mine` is the op's state on this rank, which outlives the actor
///
/// The op holds everything that a participant has promised or learned (`participant_state`). The actor ends with its scope. After an
/// exception in the actor, the op continues with the configs assigned so far, and the actor repeats the failed step a few times, with
/// growing pauses (retry_policy.hpp). If it makes no progress, it asks the leader to end the tuning of the op, and warns the user.
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
  rank_id proposer = 0;        ///< the rank whose results file decided, else the first rank that offered the config
  std::uint64_t machines = 0;  ///< the combination of machines that it holds for
  std::uint64_t mixture = 0;   ///< which mixture the winner is; 0: all run the config itself
  std::uint32_t version = 0;   ///< grows with every change of this key's decision
  std::uint32_t search = 0;    ///< number of the search that made it; the first is 1
  std::vector<rank_id> participants{};
  std::uint32_t left_out = 0;      ///< candidates that the evidence has no room for
  std::vector<wire_part> parts{};  ///< of a mixture: configs that ranks run in place of the winner
  tuning::confidence confidence = tuning::confidence::none;
  std::uint64_t trials = 0;  ///< of all searches for this key
  double cost_ns = 0;        ///< how much longer these took than the default
};

/// How long one rehearsal may take. Ranks begin it at different times, and a rank that computes without polling delays it. If a part must
/// wait for its partner before it begins, it waits for at most half of this limit, so that a partner that begins later still has the full
/// limit.
inline constexpr time_ns warming_limit_ns = 20'000'000'000;

/// The functions that the actors need from the owner of the implementations, `ops`.
class implementations {
 public:
  /// Runs this role's implementation once, with a known pattern on scratch buffers. Throws if it fails.
  virtual runtime::task<> rehearse(std::uint64_t digest) = 0;
  /// How many rehearsals may run at the same time. All ranks start them in the same order.
  virtual std::size_t rehearsals_at_once() const noexcept { return 1; }
  /// The op must end: conflicting declarations, a dead peer.
  virtual void on_rejected(const runtime::error& why) noexcept = 0;

 protected:
  ~implementations() = default;
};

/// Tells the actor that rows are due.
struct rows_due {};

/// The messages of this actor: messages of the leader, and this rank's reports to the leader.
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
  std::vector<wire_limit> limits;   ///< limits that the user's constraints set on this rank
  std::vector<std::string> faults;  ///< exceptions of the user's code that says what this rank can run
  tuning_policy policy = tuning_policy::online;
  implementations* runs = nullptr;
  row_log* rows = nullptr;
  const assignment* assigned = nullptr;  ///< null except on the leader's rank

  std::vector<std::uint64_t> candidates;  ///< empty until the offers are merged
  std::vector<std::string> ids;
  /// Candidates for which this rank runs another config of the same wire class, and that config: its part of a mixture.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> instead;
  std::vector<std::string> unavailable;    ///< configs that this rank cannot run, and why
  std::vector<std::uint64_t> ready;        ///< candidates that this rank has warmed (S3)
  std::vector<std::uint64_t> failed_here;  ///< candidates whose rehearsal failed because of this rank's own part
  std::vector<std::string> warm_errors;
  std::string no_common_config;
  std::optional<runtime::error> rejected;  ///< the leader's objection to the declaration
  std::vector<decision_record> decisions;
  std::size_t owed = 0;        ///< messages that are not acknowledged yet
  std::size_t rehearsing = 0;  ///< candidates being rehearsed
  time_ns control_ns = 0;      ///< how much of this rank's time the agreement has taken (N4)
  runtime::news changed;       ///< woken whenever one of the members above changes
  participant_address actor;

  /// The config of its own that this rank runs when `digest` is assigned.
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
  /// The name of a candidate, even if this rank runs another config for it; null for an unknown digest.
  const std::string* id_of(std::uint64_t digest) const noexcept {
    for (std::size_t i = 0; i < candidates.size() && i < ids.size(); ++i) {
      if (candidates[i] == digest) return &ids[i];
    }
    const auto own = configs.find(digest);
    return own ? &configs[*own].id : nullptr;
  }
};

participant_address spawn_participant(services& s, participant_state& mine);

/// Sends a request to the leader of the op. An op that has ended sends nothing.
inline void ask_leader(const participant_state& mine, tuning_request wish) {
  static_cast<void>(mine.actor.try_send(std::move(wish)));
}

/// Stops control messages from reaching the op's participant.
void unbind_participant(services& s, const participant_state& mine);

}  // namespace parley::actors

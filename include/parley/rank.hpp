#pragma once
/// One rank of the job, as the user's program sees it: its number, the ops that it declares, and the decisions of these ops.
///
///     task<> rank_main(rank& self) {
///       transfer activations(self, {.name = "activations", .role = …, .configs = {configs::direct(), …}});
///       if (self.id() == 0) co_await activations.send(bytes, {.to = 1});
///       …
///     }
///
/// A rank runs on a given executor and link, so that the same program runs over UCX and in virtual time. `run.hpp` makes a rank from the
/// environment. Ops are declared on all ranks, in any order and at any time. An op ends with its rank.
#include <parley/actors/membership/losses.hpp>
#include <parley/agreement.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/ops/core/op_ref.hpp>
#include <parley/ops/job/rank_settings.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/task.hpp>
#include <parley/tuning/planners/time_model.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::actors {
class data_hub;
struct participant_state;
struct services;
}  // namespace parley::actors
namespace parley::runtime {
class flight_recorder;
class router;
struct waiting_list;
}  // namespace parley::runtime

namespace parley::ops {

struct edge_agreement;
struct edge_decision;
struct left_over;
class machine;
struct rank_foundation;
class tunable_context;

using actors::departure;

class rank {
 public:
  rank(rank_foundation on, rank_settings settings);
  /// Like the other constructor, with settings that `complete` returned. Many ranks of one process can share them.
  rank(rank_foundation on, std::shared_ptr<const rank_settings> settings);
  static std::shared_ptr<const rank_settings> complete(rank_settings settings, rank_id world_size);
  rank(const rank&) = delete;
  rank& operator=(const rank&) = delete;
  ~rank();

  rank_id id() const noexcept { return net_.rank(); }
  rank_id world_size() const noexcept { return net_.world_size(); }
  runtime::executor& where() const noexcept { return executor_; }
  const rank_settings& settings() const noexcept { return *settings_; }
  /// The hardware that rank `r` of the job computes on, such as `NVIDIA H200`: equal for ranks that are alike. All ranks return the same
  /// text; empty: unknown.
  std::string kind_of(rank_id r) const;

  /// The capabilities of this rank's machine that are not masked: `machine().has("sm_90")` returns an error that says why a capability is
  /// missing.
  const ops::machine& machine() const noexcept;

  /// For authors of new kinds of ops. Throws `bad_argument` if the op is declared already.
  template <class End>
  op_ref<End> attach(std::unique_ptr<End> op) {
    End& added = *op;
    return {keep(std::move(op)), added};
  }
  actors::services& services() noexcept;

  /// The context of this rank's tunable kernels. Their results are written with this rank's results. The first call makes the context.
  tunable_context& kernels() const;

  /// Starts a new search for every size of an op that this rank takes part in. The op may be of any kind. Its parts are included:
  /// `gradients` includes `gradients/inside`. If a search is running, the new one follows it (`agreement::retune`). Returns how many ends
  /// were asked. A group counts as one. Edges that this rank has not set up yet are not asked (a rank sets up its first 16 edges at once,
  /// and the others at their first use).
  std::size_t retune(std::string_view op, std::string_view why = {});

  /// Rank `lost` is gone: this rank's ops with that rank end with `peer_failed`, at once.
  void on_lost(rank_id lost, std::string_view why, departure how = departure::died) noexcept;
  /// Like `on_lost`, for a rank that has reported the error with which it ended. `began_with` is the result of `cause_of` on that rank.
  void on_ended(rank_id ended, const runtime::root_cause& began_with) noexcept;
  /// Adds a cause to a `send_failed` that names none: the rank that failed within the last second, if there is one. News of that failure
  /// may arrive after the peer's poison. Returns any other error unchanged.
  runtime::error traced(const runtime::error& why) const;
  /// The cause of an error that ends this rank, to be sent to the other ranks: the rank with which the failure began (this rank or another
  /// one), and what happened to that rank.
  runtime::root_cause cause_of(const runtime::error& why) const;
  /// The other ranks have declared this rank dead: all of its ops end with `fenced` at once. From then on no other reason counts.
  void on_fenced(std::string_view why) noexcept;
  /// Rank `peer` has come back as a new process, and the link knows it. Calls in progress with the old process end with `peer_restarted`.
  /// From now on transfers with `peer` use a new generation: they count from 0 and agree again. An op of more than two ranks that includes
  /// `peer` fails until each of its other ranks has called `rejoin`. Memory for which the old process had credits must be registered again.
  void on_restarted(rank_id peer, std::uint64_t incarnation);
  /// The number of restarts of other ranks that this rank knows of (`on_restarted`).
  std::uint64_t restarts_heard() const noexcept;
  /// Waits until this rank knows of more than `before` restarts. Returns false if that does not happen within `limit`. Returns false at
  /// once if nothing restarts ranks or this rank is fenced. For a program that got `peer_failed`, which may arrive before the news of a
  /// restart:
  ///
  ///     const auto before = self.restarts_heard();
  ///     …                                                              // a call, which ends with peer_failed or peer_restarted
  ///     bool back = co_await self.until_restart(before, 30s);
  ///     if (back) group.rejoin();                                      // of each op of more than two ranks; then the call again
  runtime::task<bool> until_restart(std::uint64_t before, std::chrono::nanoseconds limit);
  /// The number of earlier processes that had this rank's place.
  std::uint32_t own_restarts() const;
  /// Waits until other ranks no longer need this rank. For control messages and rehearsals it waits at most `limit`; for data that was sent
  /// but not matched, at most the op's timeout. From then on, ops without headers rehearse nothing until their next call.
  runtime::task<> settle(std::chrono::nanoseconds limit);
  /// Returns this rank's unfinished business (rank_foundation.hpp). Called after `settle`, before the rank leaves.
  left_over unfinished();
  /// Adds decisions to this rank's results file (results_store.hpp), and untuned keys to the file that lists these. Returns where the
  /// results are, or why they are not stored.
  runtime::result<std::string> write_results();
  /// The decisions of this rank (`learned`) and the entries that it remembers from results files, in the form of a results file.
  tuning::results_file results() const;
  /// The contents of the results files when the rank started.
  const tuning::results_file& remembered() const noexcept;
  /// A warning for each `Default` in results files that pinned nothing here, because no call used the op, ranks and key of that line. The
  /// first rank of an op warns of that op. Rank 0, and each rank with a separate file for its kernels, also warn of kernels.
  std::vector<std::string> idle_pins() const;
  /// A warning for each mask of this rank that is neither a capability nor the name of a config that this rank's ops have met. Only rank 0
  /// warns of masks that apply to all ranks.
  std::vector<std::string> idle_masks() const;
  /// A warning for each rule that names an op without `*` or `?` and fits no key that was used here. The first rank of the op warns; of a
  /// kernel, rank 0 warns.
  std::vector<std::string> idle_rules() const;
  /// Lines `op,parameters` for keys that ran the default because tuning was off: keys of the ops that this rank leads, and of its kernels.
  std::vector<std::string> untuned() const;
  /// Entries for the decisions of this run. A decision of an ended generation counts unless a later generation has decided for that key.
  std::vector<tuning::result_entry> learned() const;
  /// The decisions that trials of this run have made about the ops that this rank leads. `op` and `key` are as in a results file.
  std::vector<decision> explained() const;
  /// The entries of results files that this job's decisions replace, as they were read.
  std::vector<tuning::result_entry> superseded() const;

  // For the tools of parley, which know these types. A program asks its ops: `op.decision(bytes)` has the evidence, too.
  /// The agreements of the ops that this rank leads and has set up so far. Includes ops of every kind, also ops that agree by lease.
  std::vector<edge_agreement> agreements() const;
  /// The decisions that this rank's ends know so far, of senders and receivers alike.
  std::vector<edge_decision> decisions() const;
  /// For checkers: the state of each participant on this rank, with all that it knows.
  std::vector<const actors::participant_state*> participants() const;
  /// Like `participants`, for generations that have ended here. The latest generation of an op comes first.
  std::vector<const actors::participant_state*> ended_participants() const;
  /// The ends of its ops in their current generations, for checkers.
  std::vector<op_end*> ops() const;
  /// Aborts the communicators of rehearsals, so that the work of rehearsals in a device's streams no longer waits for other members. Called
  /// before a rank is destroyed and before its streams are waited for.
  void abandon_rehearsals() noexcept;
  /// For checkers: called with each error that a call gives to its caller; may be empty.
  std::function<void(const runtime::error& why)> on_call_failed{};
  /// The duration of a call of `bytes` bytes with `config` on rank `of`, by that rank's clock and including its waits. `op` is a collective
  /// or a symmetric op. The time is measured, or predicted from measurements of the op's members. These measurements come from the searches
  /// whose decisions this rank knows. The result has a range that says how certain it is (tuning/planners/time_model.hpp). All sizes of one
  /// key count as one size. `unavailable`: nothing was measured.
  runtime::result<tuning::predicted_time> predict(std::string_view op, std::string_view config, std::uint64_t bytes,
                                                  rank_id of) const;
  const runtime::flight_recorder& flight() const noexcept;
  /// This rank's waiting calls, the oldest first, each with the reason for its wait; also messages that have arrived without a receive.
  runtime::waiting_list waiting() const;
  /// Writes the flight recorder, the waiting calls, and all decisions with their reasons to `folder` (default: `flight_dir`). Replaces an
  /// earlier dump. Returns the path, or why nothing was written. Blocks while the disk writes.
  runtime::result<std::string> dump_flight(std::string_view why, const std::string& folder = {});
  const runtime::router& mail() const noexcept;
  const actors::data_hub& data() const noexcept;
  /// Problems with results files, if any. The list grows with declarations and writing.
  const std::vector<std::string>& warnings() const noexcept;
  /// How many flow control messages this rank's edges have sent.
  std::uint64_t flow_messages() const noexcept;
  /// How often this rank has sent messages again because no reply arrived in time. One repetition may be several messages.
  std::uint64_t repeated_messages() const noexcept;

 private:
  friend op_host;
  op_host& keep(std::unique_ptr<op_end> op);

  runtime::executor& executor_;
  runtime::link& net_;
  std::shared_ptr<const rank_settings> settings_;
  std::unique_ptr<op_host> host_;
};

}  // namespace parley::ops

#pragma once
/// One rank of the job, as the user's program sees it: who it is, what it declares, and what its ops have agreed on.
///
///     task<> rank_main(rank& self) {
///       transfer activations(self, {.name = "activations", .role = …, .configs = {configs::direct(), …}});
///       if (self.id() == 0) co_await activations.send(bytes, {.to = 1});
///       …
///     }
///
/// A rank runs on the executor and the link that it is given, so that the same program runs over UCX and in virtual time. `run.hpp` makes
/// a rank from the environment. Ops are declared on all ranks, in any order and at any time. They end with the rank.
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
struct op_host;
class machine;
class op_end;
struct rank_foundation;
class tunable_context;

using actors::departure;

/// Unfinished business of a rank that leaves, a line for each op.
struct left_over {
  /// Messages that were not received, or were refused, and calls that were dropped unjoined.
  std::vector<std::string> undelivered;
  std::vector<std::string> rejected;  ///< declarations that were refused, with the reason
};

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
  /// The hardware that rank `r` of the job computes on, such as `NVIDIA H200`: equal for ranks that are alike. All ranks return the same;
  /// empty: unknown.
  std::string kind_of(rank_id r) const;

  /// The capabilities of this rank's machine that are not masked: `machine().has("sm_90")` is an error that says why something is
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

  /// Starts a new search for every size of an op, of any kind, that this rank takes part in, and of the op's parts: `gradients` includes
  /// `gradients/inside`. If a search is running, the new one follows it (`agreement::retune`). Returns how many ends were asked: a group
  /// counts as one, and edges that this rank has not set up yet are not asked (the first 16 edges of a rank are set up at once, others at
  /// their first use).
  std::size_t retune(std::string_view op, std::string_view why = {});

  /// Rank `lost` is gone: this rank's ops with it end with `peer_failed`, at once.
  void on_lost(rank_id lost, std::string_view why, departure how = departure::died) noexcept;
  /// Like `on_lost`, for a rank that said which error it ended with. `began_with` is what `cause_of` returned there.
  void on_ended(rank_id ended, const runtime::root_cause& began_with) noexcept;
  /// If `why` says that the peer could not send (`send_failed`) and names no cause, and a rank has failed in the last second, returns
  /// `why` with what is known of that rank; the news of it may come after the peer's last word about the message. Returns any other error
  /// as it is.
  runtime::error traced(const runtime::error& why) const;
  /// The cause of an error that ends this rank, as the other ranks are to be told: the rank with which the failure began, perhaps another
  /// one, and what became of that rank.
  runtime::root_cause cause_of(const runtime::error& why) const;
  /// The other ranks hold this rank dead: all of its ops end with `fenced`, at once, and no other reason counts from then on.
  void on_fenced(std::string_view why) noexcept;
  /// Rank `peer` has come back as a new process, and the link knows it. Calls in progress with the old process end with `peer_restarted`.
  /// From now on transfers with the rank use a new generation: they count from 0 and agree again. Ops of more than two ranks that the
  /// rank is in fail until each of their other ranks has called `rejoin`. Memory for which the old process had credits has to be
  /// registered again.
  void on_restarted(rank_id peer, std::uint64_t incarnation);
  /// How many restarts, of all other ranks together, this rank has been told of (`on_restarted`).
  std::uint64_t restarts_heard() const noexcept;
  /// Waits until this rank has been told of more than `before` restarts. Returns false if that does not happen within `limit`, and at
  /// once if nothing restarts ranks or this rank is fenced. For a program that got `peer_failed`, which may come before the news of a
  /// restart:
  ///
  ///     const auto before = self.restarts_heard();
  ///     …                                                              // a call, which ends with peer_failed or peer_restarted
  ///     bool back = co_await self.until_restart(before, 30s);
  ///     if (back) group.rejoin();                                      // of each op of more than two ranks; then the call again
  runtime::task<bool> until_restart(std::uint64_t before, std::chrono::nanoseconds limit);
  /// How many processes have been in this rank's own place before this process.
  std::uint32_t own_restarts() const;
  /// Waits until other ranks have received what they still need from this rank: control messages and rehearsals for at most `limit`, and
  /// data that was sent but not matched for at most its op's timeout. From then on, ops without headers rehearse nothing until their next
  /// call.
  runtime::task<> settle(std::chrono::nanoseconds limit);
  /// Returns what this rank leaves unfinished. Called after `settle`, before the rank leaves.
  left_over unfinished();
  /// Adds decisions to this rank's results file (results_store.hpp), and what was not tuned to the list of that. Returns where the
  /// results are, or why they are not stored.
  runtime::result<std::string> write_results();
  /// The decisions of this rank (`learned`), and what it remembers from results files, as a results file.
  tuning::results_file results() const;
  /// The contents of the results files when the rank started.
  const tuning::results_file& remembered() const noexcept;
  /// A warning for each `Default` in results files that pinned nothing here, because nothing used the line's op, ranks and key. A rank
  /// warns of the ops whose first rank it is. Rank 0, and a rank whose kernels have a file of their own, also warn of kernels.
  std::vector<std::string> idle_pins() const;
  /// A warning for each mask of this rank that is no capability and no name of a config that its ops have met. Of masks for all ranks rank 0
  /// warns.
  std::vector<std::string> idle_masks() const;
  /// Lines `op,parameters` for what ran the default because tuning was off: the ops that this rank leads, and its kernels.
  std::vector<std::string> untuned() const;
  /// Entries for what was decided in this run. A decision of an ended generation counts unless the next generation has made one for that
  /// key.
  std::vector<tuning::result_entry> learned() const;
  /// Entries of results files that this job decided otherwise, as they were read: its decisions replace them.
  std::vector<tuning::result_entry> superseded() const;

  /// The agreements of the ops that this rank leads and has set up so far: ops of every kind, also those that agree by lease.
  std::vector<edge_agreement> agreements() const;
  /// The decisions that this rank's ends know so far, of senders and receivers alike.
  std::vector<edge_decision> decisions() const;
  /// The state of each participant on this rank, with all that it has learned, for checkers.
  std::vector<const actors::participant_state*> participants() const;
  /// Like `participants`, for generations that have ended here. The latest generation of an op comes first.
  std::vector<const actors::participant_state*> ended_participants() const;
  /// The ends of its ops in their current generations, for checkers.
  std::vector<op_end*> ops() const;
  /// Aborts the communicators of rehearsals, so that work which rehearsals put into a device's streams no longer waits for other members.
  /// Called before a rank is destroyed, ahead of the wait for these streams to end.
  void abandon_rehearsals() noexcept;
  /// Called with each error that a caller gets from a call; may be empty. For checkers of errors.
  std::function<void(const runtime::error& why)> on_call_failed{};
  /// How long a call of `bytes` bytes with `config` takes on rank `of`, by that rank's clock and including its waits. `op` is a
  /// collective or a symmetric op. The time is measured, or predicted from what the op's members measured in the searches whose decisions
  /// this rank knows, with a range that says how certain it is (tuning/planners/time_model.hpp). All sizes of one key count as one size.
  /// `unavailable`: nothing was measured.
  runtime::result<tuning::predicted_time> predict(std::string_view op, std::string_view config, std::uint64_t bytes,
                                                  rank_id of) const;
  const runtime::flight_recorder& flight() const noexcept;
  /// This rank's waiting calls, the oldest first, with what they wait for; and messages that have arrived and have no receive.
  runtime::waiting_list waiting() const;
  /// Writes the flight recorder, what waits now, and all decisions with their reasons to `folder` (default: `flight_dir`), over an
  /// earlier dump. Returns the path, or why nothing was written. Blocks while the disk writes.
  runtime::result<std::string> dump_flight(std::string_view why, const std::string& folder = {});
  const runtime::router& mail() const noexcept;
  const actors::data_hub& data() const noexcept;
  /// Problems with results files, if any. The list grows with declarations and writing.
  const std::vector<std::string>& warnings() const noexcept;
  /// How many flow control messages this rank's edges have sent.
  std::uint64_t flow_messages() const noexcept;
  /// How often this rank has sent something again because no answer came in time. Each time may be several messages.
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

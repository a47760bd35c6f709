#pragma once
/// One rank of the job, as the user's program sees it: who it is, what it declares, and what its ops have agreed on.
///
///     task<> rank_main(rank& self) {
///       transfer activations(self, {.name = "activations", .role = …, .configs = {configs::direct(), …}});
///       if (self.id() == 0) co_await activations.send(bytes, {.to = 1});
///       …
///     }
///
/// It runs on whatever executor and link it is given, so that the same program runs over UCX and in virtual time. `run.hpp`
/// makes one from the environment. Ops are declared on all ranks, in any order and at any time; they end with the rank.
#include <parley/actors/membership/losses.hpp>
#include <parley/agreement.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/ops/core/op_place.hpp>
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

/// What a rank that leaves has not brought to an end, a line for each op.
struct left_over {
  std::vector<std::string> undelivered;  ///< messages that their receivers did not take
  std::vector<std::string> rejected;     ///< declarations in conflict, with the reason
};

class rank {
 public:
  rank(rank_foundation on, rank_settings settings);
  /// The same with settings that `complete` has made. Of many ranks in one process one copy is enough.
  rank(rank_foundation on, std::shared_ptr<const rank_settings> settings);
  static std::shared_ptr<const rank_settings> complete(rank_settings settings, rank_id world_size);
  rank(const rank&) = delete;
  rank& operator=(const rank&) = delete;
  ~rank();

  rank_id id() const noexcept { return net_.rank(); }
  rank_id world_size() const noexcept { return net_.world_size(); }
  runtime::executor& where() const noexcept { return executor_; }
  const rank_settings& settings() const noexcept { return *settings_; }
  /// What a rank of the job computes on, such as `NVIDIA H200`: equal for ranks that are alike. The same on all ranks; empty where
  /// nobody has said.
  std::string kind_of(rank_id r) const;

  /// What this rank has, less what it is told to do without: `machine().has("sm_90")` is an error that says why not.
  const ops::machine& machine() const noexcept;

  /// For those who make kinds of ops. Throws `bad_argument` where the op is declared already.
  template <class End>
  op_place<End> attach(std::unique_ptr<End> op) {
    End& added = *op;
    return {keep(std::move(op)), added};
  }
  actors::services& services() noexcept;

  /// Of this rank's tunable kernels; what they learn is written with this rank's results. Made when it is first asked for.
  tunable_context& kernels() const;

  /// Searches anew for every size of an op that this rank takes part in, of whatever kind, and of its parts: of `gradients` also
  /// those of `gradients/inside`. What is asked for while a search is under way follows it (`agreement::retune`). Answers how many
  /// ends were asked: a group's counts as one, and edges that nobody has used yet are not asked.
  std::size_t retune(std::string_view op, std::string_view why = {});

  /// A rank is gone: its ops end with `peer_failed`, here and now.
  void on_lost(rank_id lost, std::string_view why, departure how = departure::died) noexcept;
  /// The same of one that has said what it ended with: what `cause_of` answered there.
  void on_ended(rank_id ended, const runtime::root_cause& began_with) noexcept;
  /// An error with which a call met the end of its peer's call, with what is known by now of a rank that has ended in the last second; any other
  /// as it is. Of a peer that could not send there may be news later than its last word about the message.
  runtime::error traced(const runtime::error& why) const;
  /// What the others are to be told of an error that ends this rank: the rank that it began with, which may be another one.
  runtime::root_cause cause_of(const runtime::error& why) const;
  /// The others hold this rank dead: all of its ops end with `fenced`, here and now, and no other reason counts any more.
  void on_fenced(std::string_view why) noexcept;
  /// A rank has come back as a new process, and the link knows it. Calls that are under way with the old one end with
  /// `peer_restarted`; from here on the transfers with it go on in a new generation: they count from 0 and agree anew. Ops of more than
  /// two ranks that it is in fail until each of their other ranks has called `rejoin`. Memory that the old process had credits for
  /// has to be registered again.
  void on_restarted(rank_id peer, std::uint64_t incarnation);
  /// How often this rank has been told so, of whomever.
  std::uint64_t restarts_heard() const noexcept;
  /// Waits until this rank has been told so once more than `before`; false when it has not within `limit_ns`, and at once where
  /// nobody starts ranks anew or this one is fenced. For a program that was told `peer_failed`, which may come first:
  ///
  ///     const auto before = self.restarts_heard();
  ///     …                                                              // a call, which ends with peer_failed or peer_restarted
  ///     bool back = co_await self.until_restart(before, 30s);
  ///     if (back) group.rejoin();                                      // of each op of more than two ranks; then the call again
  runtime::task<bool> until_restart(std::uint64_t before, std::chrono::nanoseconds limit);
  /// How many processes have been in this rank's own place before this one.
  std::uint32_t own_restarts() const;
  /// Waits until others have taken what they still need of this rank: control messages and rehearsals, at most `limit_ns`, and data that
  /// was sent but not matched, at most its op's timeout. No op without headers is rehearsed from then on, until its next call.
  runtime::task<> settle(std::chrono::nanoseconds limit);
  /// After `settle`, before the rank leaves.
  left_over unfinished();
  /// Adds what was decided to this rank's results file (results_store.hpp), and what was not tuned to its list. Answers where
  /// the results are, or why nowhere.
  runtime::result<std::string> write_results();
  /// Decisions of this rank's ops as entries of a results file.
  tuning::results_file results() const;
  /// What results files said when the rank started.
  const tuning::results_file& remembered() const noexcept;
  /// A warning for each `Default` in results files that pinned nothing here: what it names was not met. Of ops that this rank is the first
  /// to take part in, and of kernels.
  std::vector<std::string> idle_pins() const;
  /// Lines `op,parameters` of what this rank led with the default because tuning was off.
  std::vector<std::string> untuned() const;
  /// Entries for what was decided in this run, also in generations that have ended where the next one has not decided it anew.
  std::vector<tuning::result_entry> learned() const;
  /// Entries as they were read from a file which this job decided otherwise: its decisions take their places.
  std::vector<tuning::result_entry> superseded() const;

  /// Of the ops that have been used here so far, of every kind; also those that agree by lease.
  std::vector<edge_agreement> agreements() const;
  /// What this rank's ends have been told so far, senders and receivers alike.
  std::vector<edge_decision> decisions() const;
  /// The same with all that this rank's participants have learned, for those who check it.
  std::vector<const actors::participant_state*> participants() const;
  /// The same of generations that have ended here, the latest of an op first.
  std::vector<const actors::participant_state*> ended_participants() const;
  /// Its ops in their current generations, for those who check them.
  std::vector<op_end*> ops() const;
  /// Aborts the communicators that rehearsals run on, so that what they have put into a device's streams waits for no other member any
  /// more. For who destroys a rank, before it sees to the end of those.
  void abandon_rehearsals() noexcept;
  /// Told of each call that ends with an error which its caller gets; may be empty. For those who check what they say.
  std::function<void(const runtime::error& why)> on_call_failed{};
  /// What rank `of` would need for a call of a group's or a symmetric op of that many bytes with `config`, by its own clock and
  /// waits included: measured, or foreseen from what its members measured in the searches whose decisions this rank knows, with
  /// a range that says how sure it is (tuning/planners/time_model.hpp). `unavailable` when nothing was measured; sizes of one key are one.
  runtime::result<tuning::predicted_time> predict(std::string_view op, std::string_view config, std::uint64_t bytes,
                                                  rank_id of) const;
  const runtime::flight_recorder& flight() const noexcept;
  /// What this rank's calls wait for now, the oldest first, and what has come for which there is no receive.
  runtime::waiting_list waiting() const;
  /// Writes the flight recorder, what waits now, and what was decided and why, to `folder`, by default `flight_dir`, over what was there. Answers
  /// where, or why not. Blocks for the disk.
  runtime::result<std::string> dump_flight(std::string_view why, const std::string& folder = {});
  const runtime::router& mail() const noexcept;
  const actors::data_hub& data() const noexcept;
  /// What is wrong with results files, if anything; grows with declarations and writing.
  const std::vector<std::string>& warnings() const noexcept;
  /// Flow control messages that this rank's edges sent.
  std::uint64_t flow_messages() const noexcept;
  /// How often this rank has sent something again because no answer had come in time; once may be several messages.
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

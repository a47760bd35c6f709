#pragma once
/// One rank of the job, as the user's program sees it: who it is, what it declares, and what its ops have agreed on.
///
///     task<> rank_main(rank& self) {
///       auto transfer = self.declare(paired_transfer{.name = "activations", .role = …, .configs = {direct(), …}});
///       if (self.id() == 0) co_await transfer.send(bytes, {.to = 1});
///       …
///     }
///
/// It runs on whatever executor and link it is given, so that the same program runs over UCX and in virtual time. `run.hpp`
/// makes one from the environment. Ops are declared on all ranks, in any order and at any time; they end with the rank.
#include <parley/actors/membership/losses.hpp>
#include <parley/actors/inquiries.hpp>
#include <parley/actors/services.hpp>
#include <parley/ops/attached_op.hpp>
#include <parley/ops/declared_edge.hpp>
#include <parley/ops/edge.hpp>
#include <parley/ops/group.hpp>
#include <parley/ops/halo.hpp>
#include <parley/ops/hierarchical.hpp>
#include <parley/ops/leader_worker.hpp>
#include <parley/ops/machine.hpp>
#include <parley/ops/op_place.hpp>
#include <parley/ops/p2p.hpp>
#include <parley/ops/paired_transfer.hpp>
#include <parley/ops/pipeline.hpp>
#include <parley/ops/results_store.hpp>
#include <parley/ops/ring_attention.hpp>
#include <parley/ops/symmetric.hpp>
#include <parley/ops/training_pipeline.hpp>
#include <parley/ops/tunable_context.hpp>
#include <parley/runtime/executor.hpp>
#include <parley/runtime/flight_recorder.hpp>
#include <parley/runtime/incarnations.hpp>
#include <parley/runtime/link.hpp>
#include <parley/runtime/router.hpp>
#include <parley/runtime/scope.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/tuning/results.hpp>
#include <parley/tuning/time_model.hpp>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace parley::ops {

struct rank_settings {
  /// Where results are read from and written to; empty: nowhere. Each rank writes a file of its own, with its number in the
  /// name (`results2.csv`), and reads `results_path` itself first, which a launcher may have merged.
  std::string results_path;
  std::string untuned_path;  ///< a list of what ran its default for want of tuning, with the rank's number; empty: none
  std::string spare_folder;  ///< for results that no file of that folder takes; empty: none
  /// What is learned is in its file within a second, whatever ends the process then. False: `write_results` alone writes.
  bool write_results_soon = true;
  bool no_results = false;  ///< somebody has said that there shall be none (PARLEY_RESULTS is empty): for kernels, too
  std::vector<tuning::validator> validators;  ///< what results depend on, besides parley's own version and the world
  actors::tuning_policy policy = actors::tuning_policy::online;
  tuning::plan_options plan{};
  actors::window_limits window{};
  /// What one edge may hold of data that came before its receives, and this rank of what came for ops that it has not declared; the
  /// same on all ranks, as senders keep to their share of the latter (docs/limits.md).
  std::uint64_t early_bytes = actors::most_early_bytes;
  tuning::constraints allowed{};  ///< of every op, beside its own
  /// What ranks are told to do without in all ops (ops/machine.hpp), the same on all of them. PARLEY_MASK wins.
  std::vector<masked_capability> masked{};
  tuning::settings kernels{};                         ///< of tunable kernels (ops/tunable_op.hpp); off unless enabled
  tuning::environment_settings kernel_environment{};  ///< which beats them
  std::size_t flight_records = 16384;
  /// A folder for `parley-flight-RANK.json`: what the flight recorder holds when a call fails or a peer is lost, at most once a
  /// second, and when the program asks. Empty: nowhere.
  std::string flight_dir;
  /// How many times as long as it says each op's time-out is, from 1 on; a death is noticed as soon as ever. PARLEY_PATIENCE wins.
  std::uint32_t patience = 1;
  bool mutant_ignores_stamp = false;  ///< test switch, see ops/edge.hpp
};

/// What a rank stands on. All of it outlives the rank.
struct rank_foundation {
  runtime::executor& ex;
  runtime::link& net;
  runtime::storage* disk = nullptr;  ///< null: no results files
  runtime::incarnations incarnations;
  runtime::router::options mail{};
  std::vector<std::uint64_t> hosts{};  ///< equal for ranks that share a host, and with it a clock; empty: all do
  std::vector<std::string> kinds{};    ///< what each computes on; empty: all are alike
  machine has{};                       ///< what configs may require of this rank
  actors::clock_skew skew{};           ///< a world on one clock may give each rank one of its own
  /// Rids the rank of a peer that one of its ops has found to be as good as dead: ends their connection, lets the others and the
  /// peer itself know, and brings about `rank::on_lost`. Of this rank itself: ends all its connections, so that the others hold it dead,
  /// and brings about `rank::on_fenced`. Empty: `on_lost`, or `on_fenced`, is all that happens.
  std::function<void(rank_id peer, const std::string& why)> give_up{};
  bool ranks_come_back = false;                   ///< whether somebody starts ranks anew that have died
  runtime::time_ns detection_ns = 2'000'000'000;  ///< how long a silent one may still live; 0: for ever
  /// Why the others hold this rank dead, where that may be known before `rank::on_fenced` is called; "" while they do not. Asked
  /// when a call is about to fail. Empty: nothing is known before.
  std::function<std::string()> held_dead{};
  /// Takes in what is here unread of what became of other ranks. Called before a call fails as a peer is gone. Empty: all is
  /// told at once.
  std::function<void()> hear_news{};
  /// For how long the loop of another rank, whose process lives, has not turned; 0: that is not known. Asked when it has not answered a
  /// question in time. Empty: it is never known.
  std::function<runtime::time_ns(rank_id peer)> stands_still{};
};

/// What one edge or group has agreed on, for tables and `--json`; only its sender or leader knows all of it.
struct edge_agreement {
  std::string op;
  rank_id sender = 0;    ///< of a group: its leader
  rank_id receiver = 0;  ///< of a group: its last worker
  const actors::assignment* assigned = nullptr;
  const std::vector<std::string>* warm_errors = nullptr;
  std::string no_common_config;
  std::vector<rank_id> group{};  ///< of a group: all of it
  /// As this rank was told, with the evidence; in step with `assigned` but for what is on its way.
  const std::vector<actors::decision_record>* decisions = nullptr;
};

/// A decision as one participant of an edge or group learned it; all have the same.
struct edge_decision {
  std::string op;
  rank_id sender = 0;    ///< of a group: its leader
  rank_id receiver = 0;  ///< of a group: its last participant
  actors::decision_record decision;
};

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
  std::string kind_of(rank_id r) const { return r < kinds_.size() ? kinds_[r] : std::string(); }

  /// What this rank has, less what it is told to do without: `on().has("sm_90")` is an error that says why not.
  const machine& on() const noexcept { return machine_; }

  /// Throws `bad_argument` or `role_conflict`, on every rank alike, when the declaration cannot work.
  transfer declare(const paired_transfer& op);
  p2p declare(const point_to_point& op);
  halo declare(const halo_exchange& op);
  attention declare(const ring_attention& op);
  pipeline declare(linear_pipeline op);
  training declare(const training_pipeline& op);
  rank_group declare(const leader_worker& op);
  hierarchy declare(const hierarchical& op);
  symmetric declare(symmetric_op op);

  /// For ops of other kinds, such as `contextual`. Throws `bad_argument` where the op is declared already.
  op_place<attached_op>& attach(std::unique_ptr<attached_op> op);
  /// The same for one that no restart ends.
  template <class Op>
  Op& attend(std::unique_ptr<Op> op) {
    Op& added = *op;
    attach(std::move(op));
    return added;
  }
  /// Puts an op's end of the next generation in its place, after one of its ranks has restarted; see op_place.hpp. False when that
  /// need not be.
  template <class End, class... More>
  bool rejoin(op_place<End>& place, More&&... more) {
    if (fenced_ || !place.rejoin(std::forward<More>(more)...)) return false;
    end_if_lost();
    return true;
  }
  actors::services& services() noexcept { return services_; }

  /// Of this rank's tunable kernels; what they learn is written with this rank's results. Made when it is first asked for.
  tunable_context& kernels() const { return kernels_ == nullptr ? make_kernels() : *kernels_; }

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
  std::uint64_t restarts_heard() const noexcept { return restarts_heard_; }
  /// Waits until this rank has been told so once more than `before`; false when it has not within `limit_ns`, and at once where
  /// nobody starts ranks anew or this one is fenced. For a program that was told `peer_failed`, which may come first:
  ///
  ///     const auto before = self.restarts_heard();
  ///     …                                                              // a call, which ends with peer_failed or peer_restarted
  ///     bool back = co_await self.until_restart(before, 30'000'000'000);
  ///     if (back) group.rejoin();                                      // of each op of more than two ranks; then the call again
  runtime::task<bool> until_restart(std::uint64_t before, time_ns limit_ns);
  /// How many processes have been in this rank's own place before this one.
  std::uint32_t own_restarts() const { return runtime::restarts_of(services_.incarnations.of(id())); }
  /// Waits until others have taken what they still need of this rank: control messages and rehearsals, at most `limit_ns`, and data that
  /// was sent but not matched, at most its op's timeout. No op without headers is rehearsed from then on, until its next call.
  runtime::task<> settle(time_ns limit_ns);
  /// After `settle`, before the rank leaves.
  left_over unfinished();
  /// Adds what was decided to this rank's results file (results_store.hpp), and what was not tuned to its list. Answers where
  /// the results are, or why nowhere.
  runtime::result<std::string> write_results();
  /// Decisions of this rank's ops as entries of a results file.
  tuning::results_file results() const;
  /// What results files said when the rank started.
  const tuning::results_file& remembered() const noexcept { return results_.remembered(); }
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
  /// Ops of this rank that are no participants of their own, such as a contextual one.
  std::vector<std::string> attached_titles() const;
  /// What this rank's ends have been told so far, senders and receivers alike.
  std::vector<edge_decision> decisions() const;
  /// The same with all that this rank's participants have learned, for those who check it.
  std::vector<const actors::participant_state*> participants() const;
  /// The same of generations that have ended here, the latest of an op first.
  std::vector<const actors::participant_state*> ended_participants() const;
  /// Its ends of ops without headers, for those who check them.
  std::vector<symmetric_end*> ops_without_headers() const;
  /// Aborts the communicators that rehearsals run on, so that what they have put into a device's streams waits for no other member any
  /// more. For who destroys a rank, before it sees to the end of those.
  void abandon_rehearsals() noexcept;
  /// Told of each call that ends with an error which its caller gets; may be empty. For those who check what they say.
  std::function<void(const runtime::error& why)> on_call_failed{};
  /// What rank `of` would need for a call of a group's or a symmetric op of that many bytes with `config`, by its own clock and
  /// waits included: measured, or foreseen from what its members measured in the searches whose decisions this rank knows, with
  /// a range that says how sure it is (tuning/time_model.hpp). `unavailable` when nothing was measured; sizes of one key are one.
  runtime::result<tuning::predicted_time> predict(std::string_view op, std::string_view config, std::uint64_t bytes,
                                                  rank_id of) const;
  const runtime::flight_recorder& flight() const noexcept { return flight_; }
  /// What this rank's calls wait for now, the oldest first, and what has come for which there is no receive.
  runtime::waiting_list waiting() const;
  /// Writes the flight recorder, what waits now, and what was decided and why, to `folder`, by default `flight_dir`, over what was there. Answers
  /// where, or why not. Blocks for the disk.
  runtime::result<std::string> dump_flight(std::string_view why, const std::string& folder = {});
  const runtime::router& mail() const noexcept { return mail_; }
  const actors::data_hub& data() const noexcept { return data_; }
  /// What is wrong with results files, if anything; grows with declarations and writing.
  const std::vector<std::string>& warnings() const noexcept { return results_.warnings(); }
  /// Flow control messages that this rank's edges sent.
  std::uint64_t flow_messages() const noexcept;

 private:
  friend transfer;
  friend pipeline;
  friend declared_edge;
  void check_new(const actors::op_declaration& op) const;
  void declare_once(const actors::op_declaration& op);
  void note_group(const actors::op_declaration& op);
  void note_idle(const std::string& op);
  declared_edge& declare(edge_options o, declared_edge::end which);
  transfer declare_pairs(const paired_transfer& op, const std::vector<std::pair<rank_id, rank_id>>& edges,
                         const std::shared_ptr<const std::vector<rank_id>>& coupled);
  edge_out& add_out(edge_options o);
  edge_in& add_in(edge_options o);
  void put_aside(const edge_out& ended);
  void put_aside(const edge_in& ended);
  op_place<group_end>& add_group(group_options o);
  /// `visit(declaration, has(rank, it has restarted), end(error, culprit))` for the ends of all ops.
  template <class Visit>
  void for_each_end(const Visit& visit) noexcept;
  /// Null: it was known.
  void end_after(const actors::loss* gone, std::string_view why) noexcept;
  void end_ops_with(const actors::loss& l, runtime::errc code) noexcept;
  void note_undelivered(edge_out& e);
  void refuse_early(const actors::stamp& s);
  void end_if_lost() noexcept;  // what has just been made
  void complete(edge_options& o, const actors::op_declaration& op);
  tuning::plan_options plan_for(const runtime::memory_space* memory) const noexcept;
  void warn_not_compared(const std::string& op, const tuning::constraints& allowed, std::string_view why);
  template <class Configs>
  std::vector<actors::remembered_best> remember(const actors::op_declaration& op, const Configs& configs);
  results_store::options results_options();
  tunable_context& make_kernels() const;
  void keep_decision(const actors::participant_state& of, const actors::decision_record& d);
  void dump_after_fault(std::string_view why) noexcept;
  actors::inquiries::own_knowledge what_is_known();
  std::string progress_in(std::uint64_t op, rank_id asks, std::uint32_t tag) const;

  runtime::executor& executor_;
  runtime::link& net_;
  std::shared_ptr<const rank_settings> settings_;
  machine machine_;
  std::vector<std::string> kinds_;
  runtime::flight_recorder flight_;
  time_ns next_fault_dump_ns_ = 0;
  runtime::storage* disk_ = nullptr;
  runtime::router mail_;
  actors::data_hub data_;
  actors::services services_;
  actors::inquiries asks_;
  bool leaving_ = false;
  mutable results_store results_;
  mutable std::unique_ptr<tunable_context> kernels_;
  std::unordered_set<std::uint64_t> declared_ = std::unordered_set<std::uint64_t>(2);  // ids of all ops; mostly few
  std::map<std::string, std::vector<actors::declared_by_name>, std::less<>> groups_declared_;
  std::list<declared_edge> declared_edges_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<std::unique_ptr<edge_out>> outs_;
  std::vector<std::unique_ptr<edge_in>> ins_;
  std::vector<std::unique_ptr<edge_out>> ended_outs_;  // of ended generations; calls may still be leaving them
  std::vector<std::unique_ptr<edge_in>> ended_ins_;
  std::vector<std::unique_ptr<p2p_end>> p2ps_;
  std::list<op_place<group_end>> groups_;
  std::list<op_place<symmetric_end>> symmetrics_;
  std::list<op_place<attached_op>> attached_;
  std::optional<actors::losses> losses_;
  std::uint64_t restarts_heard_ = 0;
  bool ranks_come_back_ = false;
  bool warned_of_early_ = false;
  std::vector<std::pair<rank_id, std::string>> undelivered_;  // to whom, on edges that have ended since
  std::optional<std::string> fenced_;
  runtime::scope actors_;  // last: the actors end before what they work on
};

}  // namespace parley::ops

#pragma once
/// One group on one rank: the leader or a worker, with its actors and its configs. Ops of the classes `collective` and `hierarchy` are made
/// of groups.
///
///     group_end mine(services, {.name = "gradients", .participants = {{0, "leader"}, {1, "worker"}}, .configs = {configs::star()}});
///     co_await mine.run(work, call);
///
/// A call throws `failure`, which names op, rank and invocation, and the rank that was late, died, failed or called with another size:
/// `timeout`, `peer_failed`, `config_failed`, `config_mismatch`, `bad_argument`, `role_conflict`, `declaration_mismatch`. Ranks that call
/// with different types or different functions to combine also get `declaration_mismatch`: their data is never combined. An invocation
/// that fails does so on every rank of the group. The next one runs normally, with the default if a config was to blame. When a rank comes
/// back as a new process, all calls fail with `peer_restarted`, until an end of the next generation replaces this one. Calls match in the
/// order in which each rank makes them; several may be in flight. A worker's timeout is an eighth longer than the one given: the leader
/// knows which rank is missing, so its error should come first.
///
/// With NUMERICAL_CHECK (`constraints::compare_trials`) on the leader, a call that tries a candidate runs two configs: the default in the
/// caller's buffer, then the candidate on a copy of the data. Only the candidate is timed. Both are parts of one invocation, on separate
/// lanes. The leader's stamp says along with the config that numbers are compared, so either all members run both, or none does. If the
/// results on a member differ by more than that member allows, the candidate is excluded on all members, with its name in a message; no
/// caller ever gets its result.
///
/// On a device, a call runs after the work that the memory's owner has enqueued for the buffer (`cuda_copies::after`). The config is not
/// charged for that work. A call ends when the device has finished with the buffer. If a device fails, the error on its rank contains the
/// device's own text; the errors on the other ranks name the rank of the device that failed.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/coordinator.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/group/group_leader.hpp>
#include <parley/actors/group/group_worker.hpp>
#include <parley/actors/services.hpp>
#include <parley/agreement.hpp>
#include <parley/group_config.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/core/capability.hpp>
#include <parley/ops/groups/group_failure.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/tuning/planners/plan_options.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

using runtime::time_ns;

struct group_options {
  std::string name;
  std::vector<actors::op_participant> participants;  ///< one of them is the `leader`
  collective_kind kind = collective_kind::all_reduce;
  std::vector<group_config_ptr> configs;
  std::uint64_t depth = 1;
  std::vector<rank_id> restart_group{};  ///< all ranks of an op whose groups restart together (`first_generation`)
  std::string dtype;
  time_ns timeout_ns = 30'000'000'000;
  actors::tuning_policy policy = actors::tuning_policy::online;
  tuning::plan_options plan{};
  actors::window_limits window{};
  const machine* on = nullptr;  ///< the machine that configs may require; null: it has everything
  capability_function can_run{};
  std::vector<actors::remembered_best> remembered;
  tuning::constraints constraints{};
  runtime::memory_space* memory = nullptr;  ///< the device where the data of calls lies; null: in host memory
  bool mutant_ignores_stamp = false;        ///< test switch: workers ignore stamps and run c0
};

/// Makes the declaration for these options; `role_conflict` or `bad_argument` if they cannot make one.
runtime::result<actors::op_declaration> declaration_of(const group_options& o);

/// Throws `bad_argument` if a call's data does not lie on the device, or if the device cannot combine it as the call asks. `whose` begins
/// the text.
void check_on_device(runtime::memory_space* device, const group_work& work, const std::string& whose);

class group_turn;

class group_end final : public op_end, private actors::implementations {
 public:
  group_end(actors::services& s, group_options o);
  ~group_end() override;

  /// `timeout_ns` 0: the op's.
  runtime::task<> run(group_work work, time_ns timeout_ns) { return run(std::move(work), timeout_ns, nullptr); }
  /// Takes the place of a call that this rank cannot make, so that the next calls still match. The call ends on all members, here with
  /// `why`.
  runtime::task<> refuse(group_work work, time_ns timeout_ns, runtime::error why);
  void fail(const runtime::error& why) noexcept override;

  /// See op_ref.hpp.
  bool is_current() const;
  std::unique_ptr<group_end> next_generation();
  bool ends_with(rank_id r) const noexcept override;
  bool restarts_with(rank_id r) const noexcept override;

  const actors::participant_state& participant() const noexcept { return participant_; }
  const actors::participant_state* as_participant() const noexcept override { return &participant_; }
  const actors::op_declaration& declaration() const noexcept override { return participant_.declaration; }
  const actors::rooted_group& data_path() const noexcept { return *group_; }
  /// The title for the user.
  runtime::op_title title() const noexcept { return {"group", options_.name}; }
  /// The agreement of its members. Sizes count all bytes that a call combines, broadcasts or gathers.
  agreement agreed() noexcept { return {services_, participant_, failed_, options_.timeout_ns}; }
  bool leads() const noexcept { return lead_ != nullptr; }
  collective_kind does() const noexcept { return options_.kind; }
  const std::vector<group_config_ptr>& configs() const noexcept { return options_.configs; }
  time_ns timeout_ns() const noexcept { return options_.timeout_ns; }
  runtime::memory_space* device() const noexcept { return options_.memory; }
  /// At the leader; null elsewhere.
  const actors::assignment* assigned() const noexcept { return lead_ ? &lead_->assigned : nullptr; }
  const actors::coordinator_state* coordinator() const noexcept override {
    return lead_ ? &lead_->coordinator : nullptr;
  }
  bool owes_messages() const noexcept override {
    return !failed_ && (participant_.owed != 0 || (lead_ != nullptr && lead_->coordinator.owed != 0));
  }
  void list_waiting(runtime::waiting_list& all) override;
  std::string progress_in_words(std::uint32_t) const override;
  time_ns untaken_ns() override { return settled() ? 0 : options_.timeout_ns; }
  void list_left_over(std::vector<std::string>& lines) override;
  std::uint64_t flow_messages() const noexcept override { return group_->statistics().flow_messages; }

 private:
  friend group_turn;
  struct leading {
    leading(const group_options& o, const actors::op_declaration& op, std::vector<rank_id> members);
    actors::assignment assigned;
    actors::coordinator_state coordinator;
    actors::coordinator_address actor;
  };
  /// True if the others have received everything that this rank has to send them. Otherwise asks them.
  bool settled() { return failed_ || group_->settled(); }
  std::vector<runtime::arrival> retire() noexcept;
  /// Ends the op on all its ranks. Called when more data arrived before its calls than this rank keeps.
  void refuse_overflow(const std::string& what);
  runtime::task<> rehearse(std::uint64_t digest) override;
  std::size_t rehearsals_at_once() const noexcept override { return 16; }
  void on_rejected(const runtime::error& why) noexcept override { fail(why); }
  runtime::task<> run(group_work work, time_ns timeout_ns, group_turn* turn);
  time_ns deadline_in(time_ns timeout_ns) const noexcept;
  runtime::task<> implement(actors::group_invocation& inv, const group_work& work);
  struct comparison;
  runtime::task<> role_in(group_call& call, const group_config& config, const group_work& work) const;
  runtime::task<> bring_in(const group_work& work) const;
  runtime::task<> role_on_device(actors::group_invocation& inv, group_call& call, const group_config& config,
                                 const group_work& work) const;
  runtime::memory_space& memory() const noexcept {
    return options_.memory == nullptr ? runtime::host_memory() : *options_.memory;
  }
  void ask_late(const std::vector<rank_id>& late) const;
  std::string wrong_argument(const actors::group_invocation& inv, const std::string& culprit) const;
  void check_between(const group_call& call, const group_config& config, const group_work& work) const;
  runtime::task<> run_both(actors::group_invocation& inv, const group_config& config, comparison& with);
  runtime::task<> compare(actors::group_invocation& inv, comparison& with);
  void show_payload(const actors::group_invocation& inv, const group_work& work) const;
  std::size_t place() const noexcept;
  const group_config& config_for(const actors::group_invocation& inv) const;
  runtime::task<> until_compared(const actors::group_invocation& inv);
  group_failure explained(const actors::group_invocation& inv, const std::exception_ptr& thrown) const;
  runtime::error_facts about() const;
  group_failure in_words(const actors::group_invocation& inv, const std::exception_ptr& thrown) const;
  const group_config* find(std::uint64_t digest) const noexcept;

  actors::services& services_;
  group_options options_;
  actors::participant_state participant_;
  std::optional<runtime::error> failed_;
  std::unique_ptr<leading> lead_;
  std::unique_ptr<actors::rooted_group> group_;
  bool retired_ = false;
};

/// Reserves the next place among the calls of a group, for a call that runs later. It is for ops in which a call of one group leads to a
/// call of another. The time when such a call becomes ready must not decide its place, because calls may become ready in another order on
/// other ranks.
///
///     group_turn between(leaders, bytes, type, timeout_ns);   // when the whole op is called; its deadline counts from here
///     …                                                    // the work that comes before
///     co_await between.run(work);                          // or `between.forgo({errc::peer_failed, rank})`, which tells the others
///
/// Call one of the two. The turns of a group run in any order, and concurrently.
class group_turn {
 public:
  group_turn(group_end& end, std::uint64_t bytes, actors::call_type type, time_ns timeout_ns);
  runtime::task<> run(group_work work);
  /// Runs `other`, a turn of another group, as a part of this call. If this call fails before `other` ends, the errors of that group's
  /// members name the rank that caused it.
  runtime::task<> run_within(group_turn& other, group_work work);
  /// Gives the call up because of a fault of `why.culprit` in another group. The call fails on all ranks, and no config is blamed.
  void forgo(actors::group_fault why) noexcept;

 private:
  friend group_end;
  group_end& end_;
  actors::group_invocation invocation_;
  bool used_ = false;
};

}  // namespace parley::ops

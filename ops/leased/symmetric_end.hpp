#pragma once
/// An op without headers on one of its members, with its actors and its configs. Its handle (symmetric.hpp) calls it. Internal to ops.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/coordinator.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/actors/leases/lease_participant.hpp>
#include <parley/actors/services.hpp>
#include <parley/agreement.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/core/capability.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/record/waiting_call.hpp>
#include <parley/symmetric.hpp>
#include <parley/symmetric_config.hpp>
#include <parley/tuning/numbers.hpp>
#include <parley/tuning/planners/plan_options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

struct symmetric_settings {
  actors::tuning_policy policy = actors::tuning_policy::online;
  tuning::plan_options plan{};
  std::vector<actors::remembered_best> remembered;
  const machine* on = nullptr;  ///< the machine that configs may require; null: it has everything
};

/// Makes the declaration, the same on all ranks; `bad_argument` or `role_conflict` if these options cannot make one.
runtime::result<actors::op_declaration> declaration_of(const symmetric_options& op, rank_id world_size);

/// Returns why such an op cannot compare numbers as NUMERICAL_CHECK asks, and what to do; empty if it can.
std::string why_not_compared(const symmetric_options& op);

class symmetric_end final : public op_end, private actors::implementations, private actors::rehearsals {
 public:
  symmetric_end(actors::services& s, symmetric_options op, symmetric_settings settings);
  ~symmetric_end() override;

  runtime::task<> run(std::span<std::byte> data, symmetric_call_options call);
  runtime::task<> run(symmetric_caller& caller, symmetric_call_options call);
  agreement agreed() noexcept { return {services_, participant_, failed_, op_.timeout.count()}; }
  void abandon() noexcept override;
  bool is_replayed() const noexcept { return op_.replayed; }
  void fail(const runtime::error& why) noexcept override;
  /// After `closed`: continues over `over`, in the generation that has begun since then. False if none has begun.
  bool rejoin(std::shared_ptr<communicator> over);
  /// See op_ref.hpp.
  bool is_current() const;
  std::unique_ptr<symmetric_end> next_generation(std::shared_ptr<communicator> over);

  const actors::participant_state& participant() const noexcept { return participant_; }
  const actors::participant_state* as_participant() const noexcept override { return &participant_; }
  const actors::op_declaration& declaration() const noexcept override { return participant_.declaration; }
  /// The title for the user.
  runtime::op_title title() const noexcept { return {"op without headers", op_.name}; }
  const actors::lease_participant& leases() const noexcept { return leases_; }
  bool ends_with(rank_id r) const noexcept override;
  bool leads() const noexcept { return lead_ != nullptr; }
  /// At the leader; null elsewhere.
  const actors::assignment* assigned() const noexcept { return lead_ ? &lead_->assigned : nullptr; }
  const actors::coordinator_state* coordinator() const noexcept override { return lead_ ? &lead_->state : nullptr; }
  actors::lease_coordinator* lease_coordinator() noexcept { return lead_ ? &lead_->leases : nullptr; }
  bool owes_messages() const noexcept override;
  void list_waiting(runtime::waiting_list& all) override;
  std::string progress_in_words(std::uint32_t key) const override;
  /// See actors/leases/lease_participant.hpp.
  bool may_leave() override { return op_.rehearse == nullptr || leases_.may_leave(); }

 private:
  struct leading {
    leading(actors::services& s, const symmetric_options& op, const symmetric_settings& settings,
            const actors::participant_state& mine);
    actors::assignment assigned;
    actors::coordinator_state state;
    actors::lease_coordinator leases;
    actors::coordinator_address actor;
  };
  struct own_state : actors::participant_state {
    own_state(actors::services& s, const symmetric_options& op, const symmetric_settings& settings);
  };
  // One call while its implementation runs, so that `fail` can end it.
  struct running : runtime::list_hook {
    running(runtime::scope& parent, time_ns until, const runtime::implementation& mine, const actors::leased& l,
            time_ns since)
        : within(parent, {.deadline = until, .inside = &mine}), of(l), since_ns(since) {}
    runtime::scope within;
    const actors::leased& of;
    time_ns since_ns;
  };

  // Shortly before a call runs out of time, asks the members that it waits for what they are doing.
  struct late_soon : runtime::timer {
    late_soon(symmetric_end& mine, std::uint64_t call_bytes, time_ns until, time_ns span);
    ~late_soon() { runtime::timer_wheel::disarm(*this); }
    static void ask(timer& self) noexcept;
    symmetric_end& end;
    std::uint64_t bytes;
    bool begun = false;  // the call has passed its gate
    std::vector<rank_id> asked{};
  };

  void retire() noexcept;
  runtime::task<> rehearse(std::uint64_t digest) override;  // only prepares the config; a round of rehearsals runs it
  void on_rejected(const runtime::error& why) noexcept override { fail(why); }
  runtime::task<> connect(std::vector<std::byte> id) override;
  runtime::task<> run_scratch(actors::rehearsal_run run, std::uint64_t bytes, std::string& unlike) override;
  runtime::task<> fill_scratch(std::span<std::byte> scratch, tuning::number_type type);
  runtime::task<> compare_scratch(actors::rehearsal_run run, std::span<std::byte> scratch, tuning::number_type type,
                                  std::string& unlike);
  runtime::task<> make_scratch(std::uint64_t bytes);

  runtime::memory_space& memory() const noexcept;
  const symmetric_config* find(std::uint64_t digest) const noexcept;
  runtime::task<> run(symmetric_caller* caller, std::span<std::byte> data, std::uint64_t bytes, time_ns timeout_ns);
  template <class Start>
  runtime::task<> implement(Start start, const symmetric_config& config, time_ns until, const actors::leased& l,
                            time_ns since_ns);
  symmetric_call call_of(std::uint64_t invocation, std::uint64_t bytes, communicator* over,
                         symmetric_call::stream on) const noexcept;
  void record(const actors::leased& l, time_ns start_ns, time_ns end_ns, runtime::errc outcome);
  /// Adds a call that failed at a gate to the flight recorder.
  void record_unbegun(std::uint64_t bytes, time_ns asked_ns);
  /// Records and returns the error that a call ends with. If the call ran out of time, the text says what the ranks in `asked` are doing.
  runtime::failure explained(runtime::errc code, const runtime::error_facts& about, const std::string& what,
                             const std::vector<rank_id>& asked) const;
  runtime::failure in_words(runtime::errc code, const runtime::error_facts& about, const std::string& what,
                            const std::vector<rank_id>& asked) const;
  /// Facts about a call.
  runtime::error_facts about(std::uint64_t invocation, std::uint64_t bytes) const;

  actors::services& services_;
  symmetric_options op_;
  symmetric_settings settings_;
  std::vector<rank_id> members_;
  own_state participant_;
  actors::row_log rows_;
  actors::lease_participant leases_;
  std::unique_ptr<leading> lead_;
  std::shared_ptr<communicator> rehearsing_over_;
  std::unique_ptr<runtime::memory_space::block> scratch_;
  std::vector<std::byte> reference_;  // the default's result from known numbers, for NUMERICAL_CHECK
  runtime::intrusive_list<running> running_;
  std::optional<runtime::error> failed_;
  bool retired_ = false;
};

}  // namespace parley::ops

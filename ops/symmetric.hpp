#pragma once
/// An op whose implementations carry no header of ours: all members call it together, each runs the same config for the same
/// call, and which one that is changes while the program runs, agreed on by leases (actors/lease.hpp).
///
///     auto all_reduce = self.declare(symmetric_op{.name    = "gradients",
///                                                 .configs = {library_default(), ring(), tree()},
///                                                 .over    = my_communicator,
///                                                 .rehearse = make_communicators});
///     co_await all_reduce.run(gradients);
///
/// Candidates are rehearsed: on scratch buffers, over a communicator of their own, while the program goes on with the
/// default; or before one call, where such communicators may not run beside each other (`communicator_source::beside_calls`).
/// Without a `communicator_source` they are tried on the calls themselves. When a winner is known, all members
/// switch to it at one invocation, and from then on the op costs no message.
///
/// With NUMERICAL_CHECK (`constraints::compare_trials`) each candidate is rehearsed on known numbers first, and one whose result is
/// not the default's within the leader's tolerance is out, on all members. For that the op has to name its `dtype` and to have a
/// `communicator_source`; on a member without them only the default runs, and its warning says so.
///
/// All members make the same calls in the same order with the same number of bytes; where they hold different amounts, they
/// all name one common number. Their ranks have to make progress between calls, as `poll` or any wait does: a promise is
/// answered there, and a rank that cannot answer may hold up others at a gate.
///
/// A call throws `failure` that names op, rank and invocation: `timeout`, `peer_failed`, `config_failed` (the default is next),
/// `config_mismatch`, `declaration_mismatch`, `closed` when the generation has ended, `peer_restarted` when a member has come back as a
/// new process: then every other member calls `rejoin`, and all count from 0 again. A `timeout` at a gate says who has not answered; the call has not begun then and has no number yet, so make
/// it again: the others are in it, and whatever this member calls next is what meets them.
#include <parley/actors/assignment.hpp>
#include <parley/actors/coordinator.hpp>
#include <parley/actors/lease_coordinator.hpp>
#include <parley/actors/lease_participant.hpp>
#include <parley/actors/participant.hpp>
#include <parley/actors/rows.hpp>
#include <parley/actors/services.hpp>
#include <parley/ops/agreement.hpp>
#include <parley/ops/capability.hpp>
#include <parley/ops/op_place.hpp>
#include <parley/ops/symmetric_config.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/memory_space.hpp>
#include <parley/runtime/waiting_call.hpp>
#include <parley/tuning/numbers.hpp>
#include <parley/tuning/plan.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

using runtime::time_ns;

class rank;

struct symmetric_op {
  std::string name;
  std::vector<rank_id> members{};  ///< empty: all ranks; the first one leads
  std::vector<symmetric_config_ptr> configs{};
  std::shared_ptr<communicator> over{};             ///< what calls run over; made by the caller, who had to anyway
  std::shared_ptr<communicator_source> rehearse{};  ///< null: trials on real invocations
  std::string dtype{};
  time_ns timeout_ns = 30'000'000'000;
  tuning::constraints allowed{};  ///< what this rank's user demands of all configs but the default
  capability_function capable{};  ///< which configs this rank can run, or shall; empty: they are asked themselves
  runtime::memory_space* memory = nullptr;  ///< where buffers lie, and the scratch of rehearsals; null: host memory
  bool replayed = false;  ///< calls are made by `replayed_calls`: what cannot be captured is no candidate
};

/// Makes calls of an op otherwise than by `symmetric_config::run`.
class symmetric_caller {
 public:
  /// Gets ready to call it with this config, which is not charged with that.
  virtual runtime::task<> prepare(symmetric_call call, const symmetric_config& config) = 0;
  virtual runtime::task<> call(symmetric_call call, const symmetric_config& config) = 0;

 protected:
  ~symmetric_caller() = default;
};

struct symmetric_settings {
  actors::tuning_policy policy = actors::tuning_policy::online;
  tuning::plan_options plan{};
  std::vector<actors::remembered_best> remembered;
  const machine* on = nullptr;  ///< what configs may require; null: all is there
};

struct symmetric_options {
  std::uint64_t bytes = 0;  ///< the common number, where members hold different amounts; 0: the size of the buffer
  time_ns timeout_ns = 0;   ///< 0: the op's
};

/// The members of such an op, or `bad_argument` / `role_conflict`; the same on all ranks.
runtime::result<actors::op_declaration> declaration_of(const symmetric_op& op, rank_id world_size);

/// Why such an op cannot do what NUMERICAL_CHECK asks for, and what to do; nothing when it can.
std::string why_not_compared(const symmetric_op& op);

class symmetric_end final : private actors::implementations, private actors::rehearsals {
 public:
  symmetric_end(actors::services& s, symmetric_op op, symmetric_settings settings);
  symmetric_end(const symmetric_end&) = delete;
  symmetric_end& operator=(const symmetric_end&) = delete;
  ~symmetric_end();

  runtime::task<> run(std::span<std::byte> data, symmetric_options call);
  runtime::task<> run(symmetric_caller& caller, symmetric_options call);
  agreement agreed() noexcept { return {services_, participant_, failed_, op_.timeout_ns}; }
  /// Aborts the communicator that rehearsals run on.
  void abandon() noexcept override;
  bool is_replayed() const noexcept { return op_.replayed; }
  /// Ends all calls, and those to come, with `why`.
  void fail(const runtime::error& why) noexcept;
  /// After `closed`: over `over`, in the generation that has begun meanwhile. False when none has.
  bool rejoin(std::shared_ptr<communicator> over);
  /// See op_place.hpp.
  bool is_current() const;
  std::unique_ptr<symmetric_end> next_generation(std::shared_ptr<communicator> over);

  const actors::participant_state& participant() const noexcept { return participant_; }
  const actors::op_declaration& declaration() const noexcept { return participant_.declaration; }
  /// As its user knows it.
  runtime::op_title title() const noexcept { return {"op without headers", op_.name}; }
  const actors::lease_participant& leases() const noexcept { return leases_; }
  bool has(rank_id r) const noexcept;
  bool leads() const noexcept { return lead_ != nullptr; }
  /// At the leader; null elsewhere.
  const actors::assignment* assigned() const noexcept { return lead_ ? &lead_->assigned : nullptr; }
  const actors::coordinator_state* coordinator() const noexcept { return lead_ ? &lead_->state : nullptr; }
  actors::lease_coordinator* lease_coordinator() noexcept { return lead_ ? &lead_->leases : nullptr; }
  bool owes_messages() const noexcept;
  void list_waiting(runtime::waiting_list& all);
  /// How many calls of those sizes this rank has begun; see actors/inquiries.hpp.
  std::string progress_in_words(std::uint32_t key) const;
  /// See actors/lease_participant.hpp.
  bool may_leave() { return op_.rehearse == nullptr || leases_.may_leave(); }

 private:
  struct leading {
    leading(actors::services& s, const symmetric_op& op, const symmetric_settings& settings,
            const actors::participant_state& mine);
    actors::assignment assigned;
    actors::coordinator_state state;
    actors::lease_coordinator leases;
    actors::coordinator_address actor;
  };
  struct own_state : actors::participant_state {
    own_state(actors::services& s, const symmetric_op& op, const symmetric_settings& settings);
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

  // Shortly before a call runs out of time, asks the members that it waits for what they do.
  struct late_soon : runtime::timer {
    late_soon(symmetric_end& mine, std::uint64_t call_bytes, time_ns until, time_ns span);
    ~late_soon() { runtime::timer_wheel::disarm(*this); }
    static void ask(timer& self) noexcept;
    symmetric_end& end;
    std::uint64_t bytes;
    bool begun = false;  // it has passed its gate
    std::vector<rank_id> asked{};
  };

  void retire() noexcept;
  runtime::task<> rehearse(std::uint64_t digest) override;  // here: gets ready; it is run in a round of rehearsals
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
  /// One that fails at a gate is in the flight recorder, too.
  void record_unbegun(std::uint64_t bytes, time_ns asked_ns);
  /// The error that a call ends with, which is noted. `asked`: of whom it says what they do, where it has run out of time.
  runtime::failure explained(runtime::errc code, std::uint64_t invocation, const std::string& what,
                             const std::vector<rank_id>& asked) const;
  runtime::failure in_words(runtime::errc code, std::uint64_t invocation, const std::string& what,
                            const std::vector<rank_id>& asked) const;

  actors::services& services_;
  symmetric_op op_;
  symmetric_settings settings_;
  std::vector<rank_id> members_;
  own_state participant_;
  actors::row_log rows_;
  actors::lease_participant leases_;
  std::unique_ptr<leading> lead_;
  std::shared_ptr<communicator> rehearsing_over_;
  std::unique_ptr<runtime::memory_space::block> scratch_;
  std::vector<std::byte> reference_;  // what the default has brought from known numbers, for NUMERICAL_CHECK
  runtime::intrusive_list<running> running_;
  std::optional<runtime::error> failed_;
  bool retired_ = false;
};

/// What `declare` gives back; a light handle that lives as long as its rank.
class symmetric {
 public:
  template <std::ranges::contiguous_range B>
  runtime::task<> run(B&& data, symmetric_options call = {}) {
    return end_or_raise().run(std::as_writable_bytes(std::span(data)), call);
  }
  /// After `closed` or `peer_restarted`: over `over`, in the generation that has begun meanwhile. False when none has.
  bool rejoin(std::shared_ptr<communicator> over);
  /// What the members have agreed on, and wishes about it (agreement.hpp), for calls of so many bytes. Throw `bad_argument` on a rank that
  /// is no member.
  agreement agreed() const { return end_or_raise().agreed(); }
  ops::decision decision(std::uint64_t bytes) const { return agreed().decision(bytes); }
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return agreed().decided(bytes, o);
  }
  /// Whether this rank is no member.
  bool idle() const noexcept { return place_ == nullptr; }
  symmetric_end& end() const { return end_or_raise(); }

 private:
  friend rank;
  symmetric_end& end_or_raise() const;
  std::string name_;
  rank* rank_ = nullptr;
  op_place<symmetric_end>* place_ = nullptr;
};

}  // namespace parley::ops

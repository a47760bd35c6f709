#pragma once
/// The common part of both ends of an op's directed edge: the configs that this rank knows, and the state of its participant actor. Ops
/// such as the paired transfer and the pipeline are made of edges (edge_out.hpp, edge_in.hpp).
///
/// A call throws `failure`, which names op, ranks and invocation: `timeout`, `peer_failed`, `send_failed`, `buffer_too_small`,
/// `config_failed`, `declaration_mismatch`, … After one invocation has failed, the edge continues with the next one. After the peer's death
/// or a rejected declaration, every call fails. When the peer comes back as a new process, an end of the next generation replaces this one
/// (declared_edge.hpp). A call whose scope is cancelled ends once the transport has released the buffer.
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/edge/part_receiver.hpp>
#include <parley/actors/services.hpp>
#include <parley/agreement.hpp>
#include <parley/config.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/core/capability.hpp>
#include <parley/ops/edges/calls.hpp>
#include <parley/registered_memory.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/record/waiting_call.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

class declared_edge;

struct edge_options {
  std::string name;
  rank_id peer = 0;
  std::vector<config_ptr> configs;
  std::string dtype;
  runtime::memory_space* memory = nullptr;  ///< where its buffers and scratch lie; null: in host memory
  time_ns timeout_ns = 30'000'000'000;      ///< for a call that names no timeout
  actors::tuning_policy policy = actors::tuning_policy::online;
  /// All ranks of an op whose edges restart together (`first_generation`): when one has restarted, each of the others calls `rejoin`.
  /// Null: this edge continues by itself when its peer comes back.
  std::shared_ptr<const std::vector<rank_id>> restart_group{};
  std::size_t budget_sharers = 1;  ///< how many edges of one op share the plan's budget (N4)
  actors::window_limits window{};
  const machine* on = nullptr;  ///< the machine that configs may require; null: it has everything
  capability_function can_run{};
  tuning::constraints constraints{};
  std::shared_ptr<const capabilities> asked{};      ///< the result, if the configs were asked already
  std::vector<actors::remembered_best> remembered;  ///< from this rank's results file
  /// Test switch: the receiver ignores the stamp and runs its default. The demo must notice.
  bool mutant_ignores_stamp = false;
};

/// The code for an exception of a config's own function: `config_failed`, or its own `cancelled`, `config_mismatch` or `device_failed`.
runtime::errc failure_of_config(const std::exception_ptr& thrown);

/// The configs that an edge's end can run over `net`, as the configs themselves and the user's `can_run` say. Throws if `can_run` returns
/// an invalid result.
capabilities capabilities_of(const edge_options& o, const actors::op_declaration& op, const runtime::link& net);

class edge_end : public op_end, private actors::implementations {
 public:
  const actors::participant_state& participant() const noexcept { return participant_; }
  const actors::participant_state* as_participant() const noexcept final { return &participant_; }
  const actors::op_declaration& declaration() const noexcept final { return participant_.declaration; }
  /// The agreement of the two ends, and how to influence it: see agreement.hpp.
  agreement agreed() noexcept;
  /// Like `fail`, and also aborts sends in flight: the peer will not accept them.
  void refuse(const runtime::error& why) noexcept { on_rejected(why); }
  const std::optional<runtime::error>& failed() const noexcept { return failed_; }
  rank_id peer() const noexcept { return options_.peer; }
  /// True if its generation is that of the present processes of its ranks.
  bool is_current() const;
  bool ends_with(rank_id r) const noexcept final { return peer() == r; }
  bool restarts_with(rank_id r) const noexcept final;
  const edge_options& options() const noexcept { return options_; }
  time_ns timeout_ns() const noexcept { return options_.timeout_ns; }
  /// The memory for buffers that this op makes for itself.
  runtime::memory_space& memory() const noexcept {
    return options_.memory == nullptr ? runtime::host_memory() : *options_.memory;
  }
  /// The title for the user: all edges of an op have the same one.
  runtime::op_title title() const noexcept { return {"op", options_.name}; }
  /// Throws `bad_argument` if one of the op's own configs calls it, or a child process that fork() made.
  void check_caller() const {
    if (services_.ex.guarded()) [[unlikely]]
      check_guarded_caller();
  }
  /// Throws `bad_argument` if the op moves device memory and `buffer` does not lie on that device.
  void check(std::span<const std::byte> buffer) const {
    if (options_.memory != nullptr) check_place(buffer);
  }
  /// Registers memory for this edge's puts and gets, for as long as the handle lives. The handle is empty if registration is of no use:
  /// no config needs it, or the link has no one-sided transfers. Throws `unavailable` if the machine refuses.
  actors::registered_memory registered(std::span<std::byte> memory);
  /// Like `registered`, for memory that is registered already.
  void add_memory(const std::shared_ptr<actors::memory_region>& region);
  bool owes_messages() const noexcept override { return !failed_ && participant_.owed + participant_.rehearsing != 0; }

 protected:
  edge_end(actors::services& s, edge_options o, rank_id sender, rank_id receiver, std::string role);
  /// Ends its actor, so that no message reaches the actor any more. Calls in flight still end with the error of this end.
  void retire_participant() noexcept;
  /// Gives the memory that is still registered to the end that replaces this one.
  void hand_over(edge_end& next) const;
  void keep_memory(const std::shared_ptr<actors::memory_region>& region);
  virtual void take_memory(const std::shared_ptr<actors::memory_region>& region) = 0;
  /// Called when the user has registered memory.
  virtual void say_memory() noexcept {}
  bool has_memory() const noexcept;
  /// The size of a rehearsal's payload: several chunks, and enough for the link's way to send long messages.
  std::size_t rehearsal_bytes() const noexcept;
  ~edge_end() override;

  friend declared_edge;
  const paired_config* find(std::uint64_t digest) noexcept {
    return latest_->digest() == digest ? latest_ : search(digest);
  }
  time_ns deadline_after(time_ns timeout_ns) const noexcept {
    return services_.deadline_of(timeout_ns != 0 ? timeout_ns : options_.timeout_ns);
  }
  time_ns deadline(const call_options& call) const noexcept { return deadline_after(call.timeout_ns); }
  /// `timeout: activations 0->1, invocation 12, on rank 1: …`
  runtime::failure explained(runtime::errc code, const runtime::error_facts& about, const std::string& what) const;
  runtime::failure in_words(runtime::errc code, const runtime::error_facts& about, const std::string& what) const;
  /// Facts about this end as a whole.
  runtime::error_facts about() const;
  /// Facts about a call.
  runtime::error_facts about(std::uint64_t invocation, std::uint32_t tag) const;
  /// Facts about a call that has not begun. `invocation` would have been its number.
  runtime::error_facts about_next(std::uint64_t invocation, std::uint32_t tag, runtime::awaited unmet) const;
  void start(actors::row_log& rows);
  /// The fields that all waiting calls of this end have in common.
  runtime::waiting_call waiting(std::string_view what) const;
  void ask_peer(std::uint32_t tag) const;
  /// The peer's reply to `ask_peer`, for the error of a call that ran out of time.
  std::string words_of_peer() const;
  /// Adds a call that failed before it had a config to the flight recorder.
  void record_unbegun(runtime::flight_event what, std::uint32_t tag, std::uint64_t invocation, std::uint64_t bytes,
                      time_ns began_ns) const;
  /// The digests of the configs that need `what`.
  std::vector<std::uint64_t> those_that_need(needs what) const;
  bool one_sided() const noexcept { return one_sided_; }
  actors::registered_memory memory_for(needs what, std::uint64_t digest, std::span<std::byte> scratch);
  /// Tells the leader that a config failed here inside a real invocation.
  void report_failure(const part_receiver& in, std::uint64_t ran, runtime::errc why, const std::string& what);
  void on_rejected(const runtime::error& why) noexcept override { fail(why); }
  /// Ends the op on both ranks with this error: here at once, and tells the peer.
  void reject(const runtime::error& why) noexcept;

  actors::services& services_;
  const paired_config* latest_ = nullptr;  // the config found last; at first the default
  edge_options options_;
  actors::participant_state participant_;
  std::optional<runtime::error> failed_;
  std::vector<std::uint64_t> inexact_;  // digests of configs that declare their own error

 private:
  std::uint64_t generation_now() const;
  [[gnu::cold]] void check_guarded_caller() const;
  void check_place(std::span<const std::byte> buffer) const;
  const paired_config* search(std::uint64_t digest) noexcept;
  std::vector<std::uint64_t> digests_;  // of options_.configs, for a short search
  bool one_sided_ = false;              // some of them are one-sided, and the link supports it
  std::vector<std::shared_ptr<actors::memory_region>> memory_;
};

}  // namespace parley::ops

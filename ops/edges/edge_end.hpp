#pragma once
/// The part that both ends of an op's directed edge share: the configs that this rank knows, and the state of its participant actor. Ops
/// such as the paired transfer and the pipeline are made of edges (edge_out.hpp, edge_in.hpp).
///
/// A call throws `failure` that names op, ranks and invocation: `timeout`, `peer_failed`, `send_failed`, `buffer_too_small`,
/// `config_failed`, `declaration_mismatch`, … After a failure of one invocation the edge goes on with the next one; after the
/// death of the peer or a rejected declaration every call fails. When the peer comes back as a new process, another end of the
/// next generation takes the place of this one (declared_edge.hpp). Cancelling a call's scope ends it once the transport has let
/// go of the buffer.
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
  runtime::memory_space* memory = nullptr;  ///< where its scratch lies; null: in host memory
  time_ns timeout_ns = 30'000'000'000;      ///< for a call that names no deadline of its own
  actors::tuning_policy policy = actors::tuning_policy::online;
  /// All ranks of an op whose edges begin anew together (`first_generation`): when one has restarted, each of the others `rejoin`s.
  /// Null: this edge goes on by itself when its peer comes back.
  std::shared_ptr<const std::vector<rank_id>> restart_group{};
  std::size_t budget_sharers = 1;  ///< edges of one op that together may spend what the plan allows (N4)
  actors::window_limits window{};
  const machine* on = nullptr;  ///< what configs may require; null: all is there
  capability_function can_run{};
  tuning::constraints constraints{};
  std::shared_ptr<const capabilities> asked{};      ///< what came of asking, where that has been done
  std::vector<actors::remembered_best> remembered;  ///< from this rank's results file
  /// Test switch: the receiver runs its default whatever the stamp says. The demo must notice.
  bool mutant_ignores_stamp = false;
};

/// What went wrong in a config's own function: its exceptions are `config_failed`, unless its call was cancelled.
runtime::errc failure_of_config(const std::exception_ptr& thrown);

/// Which of its configs an edge's end can run over `net`, by what they and the user say. Throws where `can_run` answers wrongly.
capabilities capabilities_of(const edge_options& o, const actors::op_declaration& op, const runtime::link& net);

class edge_end : public op_end, private actors::implementations {
 public:
  const actors::participant_state& participant() const noexcept { return participant_; }
  const actors::participant_state* as_participant() const noexcept final { return &participant_; }
  const actors::op_declaration& declaration() const noexcept final { return participant_.declaration; }
  /// What the two ends have agreed on and how they come to it: see agreement.hpp.
  agreement agreed() noexcept;
  /// Like `fail`, where the peer takes nothing any more of what is under way, either.
  void refuse(const runtime::error& why) noexcept { on_rejected(why); }
  const std::optional<runtime::error>& failed() const noexcept { return failed_; }
  rank_id peer() const noexcept { return options_.peer; }
  /// Whether its generation is that of the processes which are in the places of its ranks now.
  bool is_current() const;
  bool ends_with(rank_id r) const noexcept final { return peer() == r; }
  bool restarts_with(rank_id r) const noexcept final;
  const edge_options& options() const noexcept { return options_; }
  time_ns timeout_ns() const noexcept { return options_.timeout_ns; }
  /// Where the buffers lie that this op makes for itself.
  runtime::memory_space& memory() const noexcept {
    return options_.memory == nullptr ? runtime::host_memory() : *options_.memory;
  }
  /// As its user knows it: all of an op's edges have one title.
  runtime::op_title title() const noexcept { return {"op", options_.name}; }
  /// Throws `bad_argument` where one of the op's own configs calls it, or a process that fork() made.
  void check_caller() const {
    if (services_.ex.guarded()) [[unlikely]]
      check_guarded_caller();
  }
  /// Throws `bad_argument` where a device's op is given a buffer that does not lie there.
  void check(std::span<const std::byte> buffer) const {
    if (options_.memory != nullptr) check_place(buffer);
  }
  /// Memory for this edge's puts and gets, as long as the handle lives. An empty handle where it has no use for any: none of
  /// its configs needs it, or the link has no one-sided transfers. Throws `unavailable` when the machine refuses.
  actors::registered_memory registered(std::span<std::byte> memory);
  /// The same for memory that is registered already.
  void add_memory(const std::shared_ptr<actors::memory_region>& region);
  bool owes_messages() const noexcept override { return !failed_ && participant_.owed + participant_.rehearsing != 0; }

 protected:
  edge_end(actors::services& s, edge_options o, rank_id sender, rank_id receiver, std::string role);
  /// Its actor ends, and no message reaches it any more. The calls that were under way still end with what it failed with.
  void retire_participant() noexcept;
  /// What the end that takes its place is made of.
  void hand_over(edge_end& next) const;
  void keep_memory(const std::shared_ptr<actors::memory_region>& region);
  virtual void take_memory(const std::shared_ptr<actors::memory_region>& region) = 0;
  /// Memory of the user's has been registered.
  virtual void say_memory() noexcept {}
  bool has_memory() const noexcept;
  /// Enough for several chunks, and for whatever the link does with long messages.
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
  /// Of this end as a whole.
  runtime::error_facts about() const;
  /// Of a call.
  runtime::error_facts about(std::uint64_t invocation, std::uint32_t tag) const;
  /// Of a call that has not begun; this would have been its number.
  runtime::error_facts about_next(std::uint64_t invocation, std::uint32_t tag, runtime::awaited unmet) const;
  void start(actors::row_log& rows);
  /// What all of its waiting calls have in common.
  runtime::waiting_call waiting(std::string_view what) const;
  void ask_peer(std::uint32_t tag) const;
  /// For the text of a call that ran out of time: what the peer said it does.
  std::string words_of_peer() const;
  /// One that fails before it has a config is in the flight recorder, too.
  void record_unbegun(runtime::flight_event what, std::uint32_t tag, std::uint64_t invocation, std::uint64_t bytes,
                      time_ns began_ns) const;
  /// The digests of configs that need this.
  std::vector<std::uint64_t> those_that_need(needs what) const;
  bool one_sided() const noexcept { return one_sided_; }
  actors::registered_memory memory_for(needs what, std::uint64_t digest, std::span<std::byte> scratch);
  /// Tells the leader that a config failed here inside a real invocation.
  void report_failure(const part_receiver& in, std::uint64_t ran, runtime::errc why, const std::string& what);
  void on_rejected(const runtime::error& why) noexcept override { fail(why); }
  /// Ends the op on both ranks, here and now, with what is wrong with it.
  void reject(const runtime::error& why) noexcept;

  actors::services& services_;
  const paired_config* latest_ = nullptr;  // that was found; at first the default
  edge_options options_;
  actors::participant_state participant_;
  std::optional<runtime::error> failed_;
  std::vector<std::uint64_t> inexact_;  // configs, by digest, that say of themselves that they are

 private:
  std::uint64_t generation_now() const;
  [[gnu::cold]] void check_guarded_caller() const;
  void check_place(std::span<const std::byte> buffer) const;
  const paired_config* search(std::uint64_t digest) noexcept;
  std::vector<std::uint64_t> digests_;  // of options_.configs, for a short search
  bool one_sided_ = false;              // some of them are, and the link can do it
  std::vector<std::shared_ptr<actors::memory_region>> memory_;
};

}  // namespace parley::ops

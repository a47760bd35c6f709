#pragma once
/// The data path of a group with a leader, at one participant. It delivers each part to its invocation, and keeps early parts.
/// group_leader.hpp has the leader's half, group_worker.hpp a worker's half, group_invocation.hpp one invocation.
///
///     op_declaration op = declare_group("gradients", {{0, "leader"}, {1, "worker"}, {2, "worker"}}, 2, "f32");
///     group_leader group(services, op, generation, assigned, 2, pressure);     // on rank 0; depth 2
///     group_worker group(services, op, generation, 2);                         // on the others
///
/// Parts of an ended generation or invocation are dropped and counted (S5, S8). Parts of a later invocation, or of a generation that is not
/// joined here yet, wait. The scheme bounds the parts of later invocations: a worker starts invocation n only with the stamp of n - d, and
/// the leader respects the window of each worker that sends it no data.
#include <parley/actors/declaration.hpp>
#include <parley/actors/edge/unclaimed_part.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/group/group_host.hpp>
#include <parley/actors/group/group_invocation.hpp>
#include <parley/actors/group/group_stamp.hpp>
#include <parley/actors/services.hpp>
#include <parley/runtime/record/waiting_call.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::actors {

/// Sorts the participants by rank. The one whose role is `leader` leads. `depth` is d of the scheme.
op_declaration declare_group(std::string name, std::vector<op_participant> participants, std::uint64_t depth,
                             std::string dtype);

class rooted_group : public data_sink, public group_host {
 public:
  /// The invocation of a part may be this far ahead of this rank. No depth or window is larger.
  static constexpr std::uint64_t farthest_ahead = 1024;

  ~rooted_group() override;

  void on_data(const stamp& s, runtime::arrival&& message) noexcept final;
  /// Ends all current and later invocations. `culprit` is the rank that died or declared the op differently.
  void fail(runtime::errc why, rank_id culprit) noexcept;
  /// Stops receiving for good: an end of the next generation replaces this one. Returns the data that arrived for that generation.
  std::vector<runtime::arrival> retire() noexcept;
  /// True if data for the next generation was lost because there was no room for it.
  bool has_lost_unjoined() const noexcept { return lost_unjoined_; }
  /// `tell` is called when more parts of later invocations arrive than this rank may keep. The data is lost, so the op cannot continue.
  void on_overflow(std::function<void()> tell) { overflow_ = std::move(tell); }
  /// Called when an invocation has run, successfully or not. Its parts have ended, and nothing of it may be used any more.
  virtual void end(group_invocation& inv) = 0;
  /// True if this rank may leave. On the leader: all workers have begun the leader's invocations (the leader asks the workers that have
  /// not). On a worker: the worker has the leader's stamp of its last invocation.
  virtual bool settled() = 0;

  /// Adds the invocations in progress to `all`. `of` has what these entries share.
  void list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all);

  /// How many invocations have been started here.
  std::uint64_t next_invocation() const noexcept { return calls_.next; }

 protected:
  /// `own`: the part whose actor number receives flow-control messages.
  rooted_group(services& s, const op_declaration& op, std::uint64_t generation, part own);
  /// Starts to receive messages. The derived class calls this once it is constructed.
  void listen();

  /// Called for each message of a call, before the message is delivered.
  virtual void heard(const stamp& s, std::uint64_t invocation, group_invocation* active) = 0;
  virtual void on_flow(rank_id from, const matched& m) = 0;

  void begin_all() noexcept;
  void send_poison(group_invocation& inv, rank_id to) noexcept;
  void send_stamp(group_invocation& inv, rank_id to) noexcept;
  /// The end of the time that counts: now, or when `end_timing` was called.
  time_ns ended_at(const group_invocation& inv) noexcept;
  stamp plain_stamp(const group_invocation& inv) const noexcept;
  void record(const group_invocation& inv, time_ns ended_ns) noexcept;
  /// Removes the invocation from the list of running invocations. Returns the index below which all invocations have ended here.
  std::uint64_t leave(group_invocation& inv) noexcept;
  std::uint64_t ended_below() const noexcept;
  void set_digest(group_invocation& inv, std::uint64_t digest) noexcept;
  void set_flags(group_invocation& inv, stamp_flags flags) noexcept { inv.flags_ = flags; }
  static auto& addressed(group_invocation& inv) noexcept { return inv.addressed_; }
  /// Counts a stamp that contradicts an earlier one, blames its source, and fails the invocation if it is still running.
  void contradicted(const stamp& s, std::string_view invariant, std::string_view text,
                    group_invocation* active) noexcept;

  struct stream {
    std::uint64_t next = 0;
    runtime::intrusive_list<group_invocation> active;
    runtime::message_ring<unclaimed_part> early;
    std::uint32_t early_poisons = 0;  // number of poisons in `early`
  };
  part own_;
  std::uint64_t default_digest_;
  stream calls_;
  stream rehearsals_;
  undeclared_parts unjoined_;
  bool lost_unjoined_ = false;
  std::function<void()> overflow_;
  bool retired_ = false;

 private:
  void enter(group_invocation& inv) final;
  void keep_unjoined(const stamp& s, runtime::arrival&& message) noexcept;
  static unclaimed_part take_early(stream& s, std::uint32_t place) noexcept;
  static bool is_poisoned(stream& s, std::uint64_t invocation) noexcept;
  static void drop_early(stream& s, std::uint64_t invocation) noexcept;
  stream& stream_of(const group_invocation& inv) noexcept { return inv.rehearsal() ? rehearsals_ : calls_; }
};

}  // namespace parley::actors

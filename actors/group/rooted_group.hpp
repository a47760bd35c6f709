#pragma once
/// The data path of a group with a leader, at one participant: which invocation a part belongs to, and what came early. The
/// leader's half is group_leader.hpp, a worker's group_worker.hpp; one invocation is group_invocation.hpp.
///
///     op_declaration op = declare_group("gradients", {{0, "leader"}, {1, "worker"}, {2, "worker"}}, 2, "f32");
///     group_leader group(services, op, generation, assigned, 2);     // on rank 0; depth 2
///     group_worker group(services, op, generation, 2);               // on the others
///
/// Parts of an ended generation or invocation are dropped and counted (S5, S8); parts of an invocation to come, or of a generation
/// that is not joined here yet, wait. How many the former can be follows from the scheme: a worker starts invocation n only with the
/// stamp of n - d, and the leader stays within the window of those whom it does not hear from.
#include <parley/actors/declaration.hpp>
#include <parley/actors/edge/early_part.hpp>
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

/// Participants in the order of their ranks; the one whose role is `leader` leads. `depth` is d of the scheme.
op_declaration declare_group(std::string name, std::vector<op_participant> participants, std::uint64_t depth,
                             std::string dtype);

class rooted_group : public data_sink, public group_host {
 public:
  /// How far ahead of this rank an invocation may be that parts come for: no depth or window is larger.
  static constexpr std::uint64_t farthest_ahead = 1024;

  ~rooted_group() override;

  void on_data(const stamp& s, runtime::arrival&& message) noexcept final;
  /// Ends all invocations, and those to come; `culprit` is who died or declared something else.
  void fail(runtime::errc why, rank_id culprit) noexcept;
  /// Nothing reaches it any more: another one, of the next generation, takes its place. Answers what came for that.
  std::vector<runtime::arrival> retire() noexcept;
  /// Whether there was more for that than could be kept.
  bool has_lost_unjoined() const noexcept { return lost_unjoined_; }
  /// Told when more has come early, or for a generation that is not joined yet, than is kept, which loses data: the op cannot go on.
  void on_overflow(std::function<void()> tell) { overflow_ = std::move(tell); }
  /// An invocation has run, well or not: its parts have ended, and nothing of it may be used any more.
  virtual void end(group_invocation& inv) = 0;
  /// Whether the others have had what this rank owes them. Asks them, if not: for a rank that wants to leave.
  virtual bool settled() = 0;

  /// Its invocations that are under way. `of` has what they have in common.
  void list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all);

  /// How many invocations have been started here.
  std::uint64_t next_invocation() const noexcept { return calls_.next; }

 protected:
  /// `own`: to which flow control messages go.
  rooted_group(services& s, const op_declaration& op, std::uint64_t generation, part own);
  /// Once the whole of it is there.
  void listen();

  /// Any message of a call, before it is delivered.
  virtual void heard(const stamp& s, std::uint64_t invocation, group_invocation* active) = 0;
  virtual void on_flow(rank_id from, const matched& m) = 0;

  void begin_all() noexcept;
  void send_poison(group_invocation& inv, rank_id to) noexcept;
  void send_stamp(group_invocation& inv, rank_id to) noexcept;
  /// When what is timed of it has ended: now, unless only a part of it counts.
  time_ns ended_at(const group_invocation& inv) noexcept;
  stamp plain_stamp(const group_invocation& inv) const noexcept;
  void record(const group_invocation& inv, time_ns ended_ns) noexcept;
  /// Takes it off the list of those that run. Answers below which invocation all have ended here.
  std::uint64_t leave(group_invocation& inv) noexcept;
  std::uint64_t ended_below() const noexcept;
  void set_digest(group_invocation& inv, std::uint64_t digest) noexcept;
  void set_flags(group_invocation& inv, stamp_flags flags) noexcept { inv.flags_ = flags; }
  static auto& addressed(group_invocation& inv) noexcept { return inv.addressed_; }
  /// A stamp says something else than is known: counted, named, and the end of the invocation where it still runs.
  void contradicted(const stamp& s, std::string_view invariant, std::string_view text,
                    group_invocation* active) noexcept;

  struct stream {
    std::uint64_t next = 0;
    runtime::intrusive_list<group_invocation> active;
    runtime::message_ring<early_part> early;
    std::uint32_t early_poisons = 0;  // how many of `early` are poison
  };
  part own_;
  std::uint64_t default_digest_;
  stream calls_;
  stream rehearsals_;
  kept_parts unjoined_;
  bool lost_unjoined_ = false;
  std::function<void()> overflow_;
  bool retired_ = false;

 private:
  void enter(group_invocation& inv) final;
  void keep_unjoined(const stamp& s, runtime::arrival&& message) noexcept;
  static early_part take_early(stream& s, std::uint32_t place) noexcept;
  static bool is_poisoned(stream& s, std::uint64_t invocation) noexcept;
  static void drop_early(stream& s, std::uint64_t invocation) noexcept;
  stream& stream_of(const group_invocation& inv) noexcept { return inv.rehearsal() ? rehearsals_ : calls_; }
};

}  // namespace parley::actors

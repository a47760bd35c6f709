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
#include <parley/actors/early_part.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/group_invocation.hpp>
#include <parley/actors/rows.hpp>
#include <parley/actors/services.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/runtime/waiting_call.hpp>

#include <algorithm>
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

/// What a poison in a group says: who failed, and how. The sizes of an invocation that brings nothing need no place.
group_fault poison_of(const stamp& s) noexcept;
/// Makes a stamp a poison.
void write_poison(const group_fault& what, stamp& s) noexcept;

/// What a stamp in a group has for its tag.
constexpr std::uint32_t lane_of(const stamp& s) noexcept { return s.tag % group_invocation::lanes; }
constexpr call_type type_of(const stamp& s) noexcept {
  return static_cast<call_type>(std::uint64_t{s.more_type} << call_type_tag_bits | s.tag / group_invocation::lanes);
}
constexpr void put_type(call_type type, stamp& s) noexcept {
  s.tag = static_cast<std::uint32_t>(type) * group_invocation::lanes;
  s.more_type = static_cast<std::uint16_t>(static_cast<std::uint64_t>(type) >> call_type_tag_bits);
}

class rooted_group : public data_sink {
 public:
  /// How far ahead of this rank an invocation may be that parts come for: no depth or window is larger.
  static constexpr std::uint64_t farthest_ahead = 1024;

  rooted_group(const rooted_group&) = delete;
  rooted_group& operator=(const rooted_group&) = delete;
  virtual ~rooted_group();

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

  /// Told whom an invocation waits for that has so long left.
  void on_late_soon(time_ns before, std::function<void(const std::vector<rank_id>&)> tell) {
    late_soon_ns_ = before;
    late_soon_ = std::move(tell);
  }
  /// Its invocations that are under way. `of` has what they have in common.
  void list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all);

  std::uint64_t op() const noexcept { return op_; }
  std::uint64_t generation() const noexcept { return generation_; }
  rank_id leader() const noexcept { return leader_; }
  const std::vector<rank_id>& members() const noexcept { return members_; }
  /// How many invocations have been started here.
  std::uint64_t next_invocation() const noexcept { return calls_.next; }
  row_log& rows() noexcept { return rows_; }
  const group_fault& fault() const noexcept { return fault_; }

  struct counters {
    std::uint64_t dropped = 0;      ///< parts of an ended generation or invocation, of a stranger, or that came twice
    std::uint64_t unjoined = 0;     ///< came for a generation that is not known yet
    std::uint64_t early_parts = 0;  ///< came before their invocation
    std::uint64_t refused = 0;      ///< from an invocation too far ahead, or more of them than there is room for
    std::uint64_t contradictions = 0;  ///< stamps that said something else than an earlier one (S1)
    std::uint64_t waited = 0;          ///< invocations that waited before they began
    std::uint64_t flow_messages = 0;
  };
  const counters& statistics() const noexcept { return counters_; }

 protected:
  friend group_invocation;
  /// `own`: to which flow control messages go.
  rooted_group(services& s, const op_declaration& op, std::uint64_t generation, part own);
  /// Once the whole of it is there.
  void listen();

  /// Gives the invocation its config if it may begin now.
  virtual bool try_begin(group_invocation& inv) = 0;
  /// What goes before each part.
  virtual stamp stamp_of(group_invocation& inv, rank_id to) = 0;
  /// Any message of a call, before it is delivered.
  virtual void heard(const stamp& s, std::uint64_t invocation, group_invocation* active) = 0;
  /// An invocation failed here, or is told of a failure elsewhere: the others are told.
  virtual void failed(group_invocation& inv) noexcept = 0;
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
  /// `members_.size()` for a stranger.
  std::size_t place(rank_id rank) const noexcept {
    return in_a_row_ ? std::min<std::size_t>(rank - members_.front(), members_.size()) : look_up(rank);
  }
  bool is_peer(rank_id rank) const noexcept { return rank != services_.net.rank() && place(rank) != members_.size(); }
  runtime::noticed_at here() const noexcept { return {op_, services_.net.rank()}; }
  /// A stamp says something else than is known: counted, named, and the end of the invocation where it still runs.
  void contradicted(const stamp& s, std::string_view invariant, std::string_view text,
                    group_invocation* active) noexcept;

  struct stream {
    std::uint64_t next = 0;
    runtime::intrusive_list<group_invocation> active;
    runtime::message_ring<early_part> early;
    std::uint32_t early_poisons = 0;  // how many of `early` are poison
  };
  services& services_;
  row_log rows_;
  std::uint64_t op_;
  std::uint64_t generation_;
  part own_;
  rank_id leader_;
  std::vector<rank_id> members_;
  bool in_a_row_;
  std::uint64_t default_digest_;
  early_room early_room_;  // of both streams and of what their invocations keep
  stream calls_;
  stream rehearsals_;
  kept_parts unjoined_;
  bool lost_unjoined_ = false;
  std::function<void()> overflow_;
  group_fault fault_;
  bool retired_ = false;
  time_ns late_soon_ns_ = 0;
  std::function<void(const std::vector<rank_id>&)> late_soon_;
  counters counters_;

 private:
  std::size_t look_up(rank_id rank) const noexcept;
  void enter(group_invocation& inv);
  void keep_unjoined(const stamp& s, runtime::arrival&& message) noexcept;
  static early_part take_early(stream& s, std::uint32_t place) noexcept;
  static bool is_poisoned(stream& s, std::uint64_t invocation) noexcept;
  static void drop_early(stream& s, std::uint64_t invocation) noexcept;
  stream& stream_of(const group_invocation& inv) noexcept { return inv.rehearsal() ? rehearsals_ : calls_; }
};

}  // namespace parley::actors

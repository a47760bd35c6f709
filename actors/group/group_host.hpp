#pragma once
/// The interface through which an invocation (group_invocation.hpp) uses the group's data path (rooted_group.hpp) at this participant: the
/// members, the room for early parts, the clock, the link, and functions to call.
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/edge/unclaimed_part.hpp>
#include <parley/actors/group/group_stamp.hpp>
#include <parley/actors/services.hpp>
#include <parley/runtime/invariant.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::actors {

class group_invocation;

class group_host {
 public:
  group_host(const group_host&) = delete;
  group_host& operator=(const group_host&) = delete;
  virtual ~group_host() = default;

  /// `tell` is called when an invocation has `before` of its time left, with the ranks that the invocation waits for.
  void on_late_soon(time_ns before, std::function<void(const std::vector<rank_id>&)> tell) {
    late_soon_ns_ = before;
    late_soon_ = std::move(tell);
  }
  std::uint64_t op() const noexcept { return op_; }
  std::uint64_t generation() const noexcept { return generation_; }
  rank_id leader() const noexcept { return leader_; }
  const std::vector<rank_id>& members() const noexcept { return members_; }
  row_log& rows() noexcept { return rows_; }
  const group_fault& fault() const noexcept { return fault_; }

  struct counters {
    std::uint64_t dropped = 0;         ///< parts of an ended generation or invocation or of a non-member; duplicates
    std::uint64_t unjoined = 0;        ///< parts that arrived for a generation that is not joined yet
    std::uint64_t early_parts = 0;     ///< parts that arrived before their invocation began
    std::uint64_t refused = 0;         ///< parts of an invocation too far ahead, or without room to keep them
    std::uint64_t contradictions = 0;  ///< stamps that contradict an earlier stamp (S1)
    std::uint64_t waited = 0;          ///< invocations that waited before they began
    std::uint64_t flow_messages = 0;
  };
  const counters& statistics() const noexcept { return counters_; }

 protected:
  friend group_invocation;
  group_host(services& s, const op_declaration& op, std::uint64_t generation)
      : services_(s), rows_(s.ex, s.clocks.skew()), op_(op.id()), generation_(generation), leader_(op.leader) {
    for (const op_participant& p : op.participants) members_.push_back(p.rank);
    in_a_row_ = members_.back() - members_.front() + 1 == members_.size();
  }

  /// Gives the invocation its index, and delivers the parts that arrived early for it.
  virtual void enter(group_invocation& inv) = 0;
  /// Gives the invocation its config if it may begin now.
  virtual bool try_begin(group_invocation& inv) = 0;
  /// The stamp that is sent with each part to `to`.
  virtual stamp stamp_of(group_invocation& inv, rank_id to) = 0;
  /// Called when an invocation has failed here, or a failure elsewhere was reported to this rank. Informs the other members.
  virtual void failed(group_invocation& inv) noexcept = 0;
  /// The member's place; `members_.size()` for a rank that is not a member.
  std::size_t place(rank_id rank) const noexcept {
    return in_a_row_ ? std::min<std::size_t>(rank - members_.front(), members_.size()) : look_up(rank);
  }
  bool is_peer(rank_id rank) const noexcept { return rank != services_.net.rank() && place(rank) != members_.size(); }
  runtime::noticed_at here() const noexcept { return {op_, services_.net.rank()}; }
  /// Counts a stamp that contradicts an earlier one, and blames its source.
  void note_contradiction(const stamp& s, std::string_view invariant, std::string_view text) noexcept {
    ++counters_.contradictions;
    runtime::blame({invariant, text, here()}, s.source);
  }

  services& services_;
  row_log rows_;
  std::uint64_t op_;
  std::uint64_t generation_;
  rank_id leader_;
  std::vector<rank_id> members_;
  bool in_a_row_;
  unclaimed_room unclaimed_room_;  // occupied by early parts of all invocations
  group_fault fault_;
  time_ns late_soon_ns_ = 0;
  std::function<void(const std::vector<rank_id>&)> late_soon_;
  counters counters_;

 private:
  std::size_t look_up(rank_id rank) const noexcept {
    const auto at = std::lower_bound(members_.begin(), members_.end(), rank);
    return at == members_.end() || *at != rank ? members_.size() : static_cast<std::size_t>(at - members_.begin());
  }
};

}  // namespace parley::actors

#pragma once
/// What one invocation (group_invocation.hpp) needs of its group's data path at this participant (rooted_group.hpp): who the
/// members are, what may be kept early, the clock and the link, and whom to tell.
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/edge/early_part.hpp>
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

  /// Told whom an invocation waits for that has so long left.
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
  group_host(services& s, const op_declaration& op, std::uint64_t generation)
      : services_(s), rows_(s.ex, s.clocks.skew()), op_(op.id()), generation_(generation), leader_(op.leader) {
    for (const op_participant& p : op.participants) members_.push_back(p.rank);
    in_a_row_ = members_.back() - members_.front() + 1 == members_.size();
  }

  /// Gives the invocation its index, and what came early for it.
  virtual void enter(group_invocation& inv) = 0;
  /// Gives the invocation its config if it may begin now.
  virtual bool try_begin(group_invocation& inv) = 0;
  /// What goes before each part.
  virtual stamp stamp_of(group_invocation& inv, rank_id to) = 0;
  /// An invocation failed here, or is told of a failure elsewhere: the others are told.
  virtual void failed(group_invocation& inv) noexcept = 0;
  /// `members_.size()` for a stranger.
  std::size_t place(rank_id rank) const noexcept {
    return in_a_row_ ? std::min<std::size_t>(rank - members_.front(), members_.size()) : look_up(rank);
  }
  bool is_peer(rank_id rank) const noexcept { return rank != services_.net.rank() && place(rank) != members_.size(); }
  runtime::noticed_at here() const noexcept { return {op_, services_.net.rank()}; }
  /// A stamp says something else than is known: counted and named.
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
  early_room early_room_;  // of what has come early for all invocations
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

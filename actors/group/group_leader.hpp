#pragma once
/// The leader's half of a group: it alone assigns configs, d invocations ahead, and says so on whatever it sends.
///
///     group_leader group(services, declaration, generation, assigned, depth);
///     group_invocation inv(group, bytes, deadline);
///     auto digest = co_await inv.begin();       // waits only where a worker has more in hand than the window allows
///     …
///     group.end(inv);                           // who got no part of it gets its stamp now
///
/// The config of i + d goes out with the return of i, before the leader knows how large i + d will be: the key it is assigned
/// for is guessed from what followed the present size before. Where the guess was wrong the invocation runs what was assigned,
/// which is safe, but it is no trial: its time would count for the wrong key, so it is withdrawn and tried again.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/look_ahead.hpp>
#include <parley/actors/edge/edge_sender.hpp>
#include <parley/actors/group/rooted_group.hpp>
#include <parley/actors/letters/reminder.hpp>

#include <cstdint>
#include <vector>

namespace parley::actors {

/// What keeps the leader from running away from slow workers.
enum class back_pressure : std::uint8_t {
  contributions,  ///< it needs something of each of them anyway
  window,         ///< nothing: as on an edge, what they have not begun is limited
};

class group_leader final : public rooted_group {
 public:
  group_leader(services& s, const op_declaration& op, std::uint64_t generation, assignment& assigned,
               std::uint64_t depth, back_pressure pressure, window_limits window = {});

  void end(group_invocation& inv) override;
  bool settled() override;
  /// Candidates are compared with the default while they are tried (`group_invocation::compared`).
  void compare_trials() noexcept { comparing_ = true; }
  /// What the invocations so far have been assigned, for tests.
  const ahead_writer& log() const noexcept { return log_; }

 private:
  struct foreseen {
    assignment::choice choice;
    std::uint64_t bytes = 0;
  };
  bool try_begin(group_invocation& inv) override;
  stamp stamp_of(group_invocation& inv, rank_id to) override;
  void heard(const stamp& s, std::uint64_t invocation, group_invocation* active) override;
  void failed(group_invocation& inv) noexcept override;
  void on_flow(rank_id from, const matched& m) override;
  void assign_through(std::uint64_t invocation);
  bool is_compared(const assignment::choice& c, std::uint64_t bytes) const noexcept;
  bool has_room(const group_invocation& inv, std::uint64_t least) const noexcept;
  std::uint64_t slowest() const noexcept;
  void note_progress(rank_id worker, std::uint64_t begun) noexcept;
  /// What was assigned to it has failed on that rank, wherever this one was: done with it, or not there yet.
  /// No trial after all, and nobody has been told that it is one.
  void withdraw(std::uint64_t invocation);
  void blame_assigned(std::uint64_t invocation, const group_fault& fault);
  /// Whether all workers have begun the invocations below that one. Asks those that have not.
  bool have_begun(std::uint64_t below);
  void ask_for_room() noexcept;
  void ask(std::size_t worker);

  assignment& assigned_;
  ahead_writer log_;
  size_history sizes_;
  invocation_log<foreseen> foreseen_;
  invocation_log<std::uint64_t> unmatched_;  // sizes of what some worker has not begun
  std::vector<std::uint64_t> begun_;         // per member: invocations that it has begun
  back_pressure pressure_;
  window_limits window_;
  bool comparing_ = false;
  std::uint64_t untold_below_ = 0;  // some invocations below it had no place in the log when they were to be told
  reminder_timer<&group_leader::ask_for_room, hurried> room_question_{*this};
};

}  // namespace parley::actors

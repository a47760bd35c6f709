#pragma once
/// The leader's half of a group. The leader alone assigns configs, d invocations ahead, and announces them in all stamps that it sends.
///
///     group_leader group(services, declaration, generation, assigned, depth, pressure);
///     group_invocation inv(group, bytes, deadline);
///     auto digest = co_await inv.begin();       // waits only while a worker is farther behind than the window allows
///     …
///     group.end(inv);                           // members that got no part of it get its stamp now
///
/// The config of i + d is sent with the return of i, before the leader knows the size of i + d. So the leader guesses the key of i + d from
/// sizes that have followed the present size earlier. If the guess was wrong, the invocation runs the assigned config, which is safe. But
/// the invocation is no trial, because its time would count for the wrong key: the trial is withdrawn and made again later.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/look_ahead.hpp>
#include <parley/actors/edge/edge_sender.hpp>
#include <parley/actors/group/rooted_group.hpp>
#include <parley/actors/letters/reminder.hpp>

#include <cstdint>
#include <vector>

namespace parley::actors {

/// Keeps the leader from getting too far ahead of slow workers.
enum class back_pressure : std::uint8_t {
  contributions,  ///< the leader needs a contribution of each worker anyway
  window,         ///< as on an edge, a window limits the invocations that workers have not begun
};

class group_leader final : public rooted_group {
 public:
  group_leader(services& s, const op_declaration& op, std::uint64_t generation, assignment& assigned,
               std::uint64_t depth, back_pressure pressure, window_limits window = {});

  void end(group_invocation& inv) override;
  bool settled() override;
  /// From now on candidates are compared with the default while they are tried (`group_invocation::compared`).
  void compare_trials() noexcept { comparing_ = true; }
  /// The assignments so far, for tests.
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
  /// The invocation is no trial after all. No member knows yet that it was one.
  void withdraw(std::uint64_t invocation);
  /// Quarantines the config that was assigned to that invocation, if the config is to blame for the fault. This rank may have ended the
  /// invocation already.
  void blame_assigned(std::uint64_t invocation, const group_fault& fault);
  /// True if all workers have begun the invocations below `below`. Asks those that have not.
  bool have_begun(std::uint64_t below);
  void ask_for_room() noexcept;
  void ask(std::size_t worker);

  assignment& assigned_;
  ahead_writer log_;
  size_history sizes_;
  invocation_log<foreseen> foreseen_;
  invocation_log<std::uint64_t> unmatched_;  // sizes of the invocations that at least one worker has not begun
  std::vector<std::uint64_t> begun_;         // per member: how many invocations it has begun
  back_pressure pressure_;
  window_limits window_;
  bool comparing_ = false;
  std::uint64_t untold_below_ = 0;  // the log had no place for some invocations below it when their stamps went out
  reminder_timer<&group_leader::ask_for_room, hurried> room_question_{*this};
};

}  // namespace parley::actors

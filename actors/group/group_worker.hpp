#pragma once
/// A worker's half of a group. The worker runs only configs that it has learned from the leader's stamps.
///
///     group_worker group(services, declaration, generation, depth);
///     group_invocation inv(group, bytes, deadline);
///     auto digest = co_await inv.begin();       // n < d: c0; otherwise the stamp of n - d is awaited
///     …
///     group.end(inv);
///
/// The wait for the stamp of n - d follows from the op's own data dependence: up to d invocations may be in flight before a worker waits.
/// This rank's stamps carry the digest that it runs, so that every rank that receives a part can check S2.
#include <parley/actors/agreement/look_ahead.hpp>
#include <parley/actors/group/rooted_group.hpp>

#include <cstdint>

namespace parley::actors {

class group_worker final : public rooted_group {
 public:
  group_worker(services& s, const op_declaration& op, std::uint64_t generation, std::uint64_t depth);

  void end(group_invocation& inv) override;
  bool settled() override;
  /// Test switch: always runs c0, even if the stamps have another config, which breaks S2. The tests must notice that.
  void ignore_stamps() noexcept { ignores_stamps_ = true; }

 private:
  bool try_begin(group_invocation& inv) override;
  stamp stamp_of(group_invocation& inv, rank_id to) override;
  void heard(const stamp& s, std::uint64_t invocation, group_invocation* active) override;
  void failed(group_invocation& inv) noexcept override;
  void on_flow(rank_id from, const matched& m) override;
  void report_rows(stamp_flags flags, const wire_row& row);
  void report_progress() noexcept;

  std::uint64_t depth_;
  ahead_reader learned_;
  invocation_log<wire_row> ended_rows_;  // of ended invocations that have no stamp yet
  std::uint64_t returned_;               // the leader's stamps so far are for invocations below this one
  std::uint64_t told_;                   // invocations that the leader knows have begun here
  std::uint64_t untold_bytes_ = 0;
  bool ignores_stamps_ = false;
};

}  // namespace parley::actors

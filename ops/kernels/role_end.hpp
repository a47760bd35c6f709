#pragma once
/// A role op on its rank, which is its only participant. Its handle (role_op.hpp) calls it. Internal to ops.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/coordinator.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/services.hpp>
#include <parley/agreement.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/core/op_config.hpp>
#include <parley/ops/kernels/role_op.hpp>
#include <parley/task.hpp>
#include <parley/tuning/constraint.hpp>
#include <parley/tuning/planners/plan_options.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace parley::ops {

class role_end final : public op_end, private actors::implementations {
 public:
  /// Uses the settings and the results files of `self`. Throws `bad_argument`.
  role_end(rank& self, const role_options& o);
  ~role_end() override;

  /// Call it once, after the rank has accepted the op, which shows that no other op has this name.
  void start();
  runtime::task<> run(std::span<std::byte> data);
  agreement agreed() noexcept;
  const actors::assignment& assigned() const noexcept { return assigned_; }

  const actors::op_declaration& declaration() const noexcept override { return participant_.declaration; }
  const actors::participant_state* as_participant() const noexcept override { return &participant_; }
  bool ends_with(rank_id) const noexcept override { return false; }
  void fail(const runtime::error& why) noexcept override;
  bool owes_messages() const noexcept override { return !failed_ && participant_.owed + coordinator_.owed != 0; }

 private:
  runtime::task<> rehearse(std::uint64_t digest) override;
  void on_rejected(const runtime::error& why) noexcept override { fail(why); }
  void end(const actors::stamp& mark, std::uint64_t invocation, time_ns began_ns, time_ns worked_ns,
           const runtime::error* thrown);

  actors::services& services_;
  std::vector<role_function_config_ptr> configs_;
  actors::participant_state participant_;
  actors::assignment assigned_;
  actors::coordinator_state coordinator_;
  actors::row_log rows_;
  std::optional<runtime::error> failed_;
  std::uint64_t next_ = 0;
  bool started_ = false;
};

}  // namespace parley::ops

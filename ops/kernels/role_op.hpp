#pragma once
/// The work of a rank in its role, done by one of several functions. This rank alone chooses the fastest one for each size, by trials on
/// the program's own calls. `register_asymmetric_autotuning` (registration.hpp) makes these.
///
///     role_op stage(self, {.name = "stage", .role = "forward", .configs = {plain, tiled}});      // the first one is the default
///     co_await stage.run(data);
///     decision now = stage.decision(data.size());         // what runs for that size, and why
///     stage.agreed().retune({}, "the clock has changed"); // searches again
///
/// An op of one participant: its leader is this rank, so nothing is sent. Everything else is as with ops of several ranks. The job's
/// settings and constraints apply, and trials are paid from a budget. The winner is kept in this rank's results (`stage/forward/2`) and is
/// not tried again in the next job. If the times for a size drift, that size is searched again. There are no rehearsals, because such a
/// function may exchange data with other ranks. So with NUMERICAL_CHECK (`constraints::compare_trials`) only the default runs.
///
/// A call runs one of the functions, once, on the caller's data. Until the decision, calls between trials run the default. The function is
/// not charged for waits in calls of other ops (runtime/time/work_meter.hpp). An exception of the function is rethrown unchanged. A
/// candidate that throws never runs again for this size, unless it was cancelled, came too late or lost a peer. Once this rank is fenced,
/// a call throws `fenced`.
#include <parley/agreement.hpp>
#include <parley/ops/core/op_config.hpp>
#include <parley/task.hpp>
#include <parley/tuning/constraint.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::actors {
class search;
}

namespace parley::ops {

class rank;
class role_end;
using operation_function = std::function<runtime::task<>(std::span<std::byte>)>;

class role_function_config final : public op_config {
 public:
  role_function_config(tuning::config_identity identity, operation_function run, tuning::demands needs = {})
      : op_config(std::move(identity)), run_(std::move(run)), needs_(needs) {}
  tuning::demands demands() const override { return needs_; }
  runtime::task<> run(std::span<std::byte> data) const { return run_(data); }

 private:
  operation_function run_;
  tuning::demands needs_;
};
using role_function_config_ptr = std::shared_ptr<const role_function_config>;

struct role_options {
  std::string name;
  std::string role;
  std::vector<role_function_config_ptr> configs;
  tuning::constraints constraints{};
};

/// A light handle that lives as long as its rank. On an idle rank, its members throw `bad_argument`, except `idle` and `role`.
class role_op {
 public:
  role_op() = default;  ///< idle
  role_op(rank& self, const role_options& o);

  runtime::task<> run(std::span<std::byte> data);
  bool idle() const noexcept { return end_ == nullptr; }
  const std::string& role() const noexcept;
  /// The decision for calls of so many bytes, and ways to influence it (agreement.hpp).
  agreement agreed() const;
  ops::decision decision(std::uint64_t bytes) const { return agreed().decision(bytes); }
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return agreed().decided(bytes, o);
  }
  /// Null before the first run of that size.
  const actors::search* search_of(std::uint64_t bytes) const;

 private:
  role_end& end_or_raise() const;
  role_end* end_ = nullptr;
};

}  // namespace parley::ops

#pragma once
/// What a rank does in its role, by one of several functions: which one is fastest is this rank's own choice, made for each size
/// on the very calls. `register_asymmetric_autotuning` (registration.hpp) makes these.
///
///     role_op stage(self, {.name = "stage", .role = "forward", .configs = {plain, tiled}});      // the first one is the default
///     co_await stage.run(data);
///     decision now = stage.decision(data.size());         // what runs for that size, and why
///     stage.agreed().retune({}, "the clock has changed"); // searches anew
///
/// An op of one participant: its leader is this rank, so that nothing is sent. All else is as with ops of more ranks: the job's
/// settings and constraints hold, trials are paid from a budget, the winner is kept in this rank's results (`stage/forward/2`) and
/// is not tried again in the next job, and times that drift are searched anew. There are no rehearsals, since such a function may
/// exchange data with others; so with NUMERICAL_CHECK (`constraints::compare_trials`) only the default runs.
///
/// A call runs one of the functions, once, on the caller's data, until the decision the default between trials. What it waits in
/// calls of other ops is not charged to it (runtime/time/work_meter.hpp). An exception comes out as it is. A candidate that throws never
/// runs again for this size, unless it was cancelled, came too late or lost a peer. A call throws `fenced` once this rank is.
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

/// A light handle that lives as long as its rank. Its members but `idle` and `role` throw `bad_argument` on an idle rank.
class role_op {
 public:
  role_op() = default;  ///< idle
  role_op(rank& self, const role_options& o);

  runtime::task<> run(std::span<std::byte> data);
  bool idle() const noexcept { return end_ == nullptr; }
  const std::string& role() const noexcept;
  /// What was decided here, and wishes about it (agreement.hpp), for calls of so many bytes.
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

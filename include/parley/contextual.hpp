#pragma once
/// Tunes a whole function with tunable kernels inside: it is run again and again, each of its kernels tries its configs where
/// it will run, beside the copies and the other kernels that it competes with, and all ranks take the same.
///
///     contextual layer(self, {.name = "layer", .iterations = 5});
///     co_await layer.run([&] { return gather_and_multiply(a, b, c); });      // calls tunable_ops, on all ranks
///     co_await layer.run([&] { return gather_and_multiply(a, b, c); });      // one run, with the best of each
///
/// With 2 and 3 configs and 2 iterations a first call makes 7 runs: the second kernel's last config takes runs 4 and 5, during
/// which the first one runs its best, and the last run is the one whose results count. A kernel that is called m times per
/// run advances m steps; kernels may call others; each kernel *and key* is tuned on its own, new keys at any later call; a kernel of one
/// config is not tuned, and a call that meets nothing else runs once. The
/// thunk has to give the same however often it is run.
///
/// With NUMERICAL_CHECK on, a first run gives each kernel's numbers by its default, and a config whose outputs (tunable_op.hpp) differ
/// from these beyond the tolerance is out like one that throws: it never wins, on whichever rank. A kernel that declares no outputs
/// keeps its default then. So what a thunk calls with one key has to come in the same order in each run.
///
/// Times are plain averages, of which the longest of all ranks counts, and one best holds for all. A config that throws is
/// out, and the first that has not thrown runs in its place. When none is left anywhere, or each has failed on some rank,
/// every rank's call ends with `config_failed`: `cannot find valid config`. What the thunk throws on one rank while they tune
/// ends the call on all; so do `timeout` of a run or of a rank that does not come, and `peer_failed`. Then the next call begins
/// again; what was agreed on stays, and who has not heard it takes it over. A key that only some ranks meet in a call keeps its
/// default on all. Ranks whose iterations, warm-ups or order differ are all told so, with both (`declaration_mismatch`). A call with nothing
/// new costs no message. A cancelled call fails on all.
///
/// One call at a time; a call inside a thunk is part of the run around it, and so is what other coroutines of this rank call.
/// Each run is logged in `.autotune_logs/rank-R.log`. The best is kept in results as `layer/KERNEL`.
#include <parley/agreement.hpp>
#include <parley/identifiers.hpp>
#include <parley/ops/core/op_place.hpp>
#include <parley/task.hpp>
#include <parley/tuning/planners/contextual_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::ops {

class contextual_end;
class rank;

struct contextual_options {
  std::string name;
  std::vector<runtime::rank_id> ranks{};  ///< empty: all ranks; the first one leads
  std::size_t iterations = 5;             ///< measured, per config
  std::size_t warm_ups = 0;               ///< before them, per config
  tuning::contextual_order order = tuning::contextual_order::grouped;
  std::string log_folder = ".autotune_logs";  ///< empty: no log
  std::chrono::nanoseconds timeout =
      std::chrono::seconds(30);  ///< of one run, and of waiting for the other ranks after it
};

/// A light handle; what it stands for lives as long as its rank.
class contextual {
 public:
  /// On all ranks. Throws `bad_argument`: a name that is taken, members that cannot be, no iterations.
  contextual(rank& self, contextual_options op);
  /// `f()` gives a `task<>`, or nothing for a thunk that never waits. One that captures more than references and numbers is
  /// named before it is given (g++ 12 destroys such temporaries of a `co_await` twice).
  template <class F>
  runtime::task<> run(const F& f) {
    if constexpr (std::is_same_v<std::invoke_result_t<const F&>, runtime::task<>>) {
      return run_thunk(thunk(f));
    } else {
      return run_thunk(at_once(f));
    }
  }
  /// Whether this rank is no member.
  bool idle() const noexcept { return !place_; }
  const contextual_end& end() const { return end_or_raise(); }
  /// What runs for a kernel and key (as in the log) within this op, and why; `time_ns` is the longest average of all ranks, the
  /// evidence what this rank measured. Throw `bad_argument` on a rank that is no member.
  ops::decision decision(const std::string& kernel, const std::string& key) const;
  /// The same once there is one, which the first call that meets the key brings about. Throws `failure` as agreement.hpp says; nothing
  /// is searched anew but after `rejoin`.
  runtime::task<ops::decision> decided(std::string kernel, std::string key, decided_options o = {}) const;
  /// How often thunks were run, in all calls.
  std::uint64_t runs() const;
  /// The id of the best config for a kernel and key; empty before there is one.
  std::string best(const std::string& kernel, const std::string& key) const;
  /// After `peer_restarted`, on every member but the new process: what was tuned is tuned anew, calls count from 0. False when no
  /// member has restarted.
  bool rejoin();

 private:
  using thunk = std::function<runtime::task<>()>;
  runtime::task<> run_thunk(thunk f) const;
  static runtime::task<> call_now(std::function<void()> f);
  static thunk at_once(std::function<void()> f) {
    return [f = std::move(f)] { return call_now(f); };
  }
  contextual_end& end_or_raise() const;
  runtime::rank_id self_ = 0;
  op_place<contextual_end> place_;
  std::string name_;
};

}  // namespace parley::ops

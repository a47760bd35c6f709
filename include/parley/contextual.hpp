#pragma once
/// Tunes a whole function that contains tunable kernels. The function runs again and again while each of its kernels tries its
/// configs, under real conditions: together with the copies and the other kernels that compete with it. All ranks then run the
/// same config of each kernel.
///
///     contextual layer(self, {.name = "layer", .iterations = 5});
///     co_await layer.run([&] { return gather_and_multiply(a, b, c); });      // calls tunable_ops, on all ranks
///     co_await layer.run([&] { return gather_and_multiply(a, b, c); });      // one run, with the best of each
///
/// Example: two kernels with 2 and 3 configs, and 2 iterations. The first call makes 7 runs. In runs 5 and 6 the second kernel
/// tries its last config, while the first kernel already runs its best one. Run 7 gives the results that count.
///
/// - The function must give the same result each time it runs.
/// - A kernel that the function calls m times advances m steps per run. Kernels may call other kernels.
/// - Each pair of kernel and key is tuned on its own. A later call that meets a new key tunes that key.
/// - A kernel with one config is not tuned. A call that meets only such kernels, or decided ones, runs once.
/// - A key that only some ranks meet in a call keeps its default on all ranks, if the others have nothing to tune in that call.
/// - A call that meets nothing new sends no message.
/// - A kernel on a device (`.device`, parley/tunable_op.hpp) is timed on the device, from its place in the stream to its end. A run ends
///   when the device has done what is timed. While the stream is captured into a graph, nothing is tried: the best config runs, or the
///   default before there is one. So tune first, and capture then.
///
/// With NUMERICAL_CHECK on, a first run records the outputs of each kernel's default (tunable_op.hpp). If the outputs of a config differ
/// from these by more than the tolerance on any rank, the config never wins, like a config that throws. A kernel that declares no outputs
/// keeps its default. Therefore a function must make its calls with one key in the same order in every run.
///
/// With `share`, each kernel is tuned by itself when the function first calls it, and ranks that are alike share the work: each measures
/// other configs. So W alike ranks need about 1/W of the time of one. Work that ranks do together, such as a collective, cannot be
/// shared. The first run of the function only finds its kernels. In the second run each rank measures the default and its share, as a
/// tunable_op does by itself and with the limits of `tunable_context`. If the trials of a run have taken half of `timeout`, the ranks try
/// the rest in a further run. Ranks are alike if their results files have the same validators, and if the default takes the same time on
/// them, within 15 %. A rank that turns out to be different measures everything, in a further run. A config's time is the longest of all
/// kinds of ranks, each scaled by its default. All ranks then run one config, also in calls outside of `run`, and results files keep it
/// as `KERNEL`. An exception of the default ends the call. `iterations`, `warm_ups` and `order` are not used.
///
/// Otherwise each rank averages the times of a config, and the longest of these averages is the time of the config. All ranks run the
/// config with the shortest time. If a config throws, it is excluded, and the first config that has not failed runs in its place. If no
/// config is left on a rank, or if each config has failed on some rank, the call ends on every rank with `config_failed`: `cannot find
/// valid config`.
///
/// If a rank does not report its run within `timeout`, the others go on without it: their call ends with the results of the run they have
/// made, nothing is decided, and a warning names the rank. The next call tunes again. After the third such call in a row, the kernels keep
/// their defaults on all ranks. If it is the lowest rank, which leads, that is late, the others end with `timeout`.
///
/// Failure: while the ranks tune, an exception of the function on one rank ends the call on all ranks. So do a cancelled call, a `timeout`
/// of a run, and `peer_failed`. The next call tunes the undecided kernels from the start. Decisions stay; a rank that has missed one
/// receives it in that call. If ranks declare different iterations, warm-ups or orders, or
/// only some ask to share, all ranks throw `declaration_mismatch`, which names both.
///
/// A rank makes one call at a time. During that call, a call inside the function or by another coroutine of this rank is part of the run in
/// progress. Each run is logged in `.autotune_logs/rank-R.log`, which each process begins anew. Results files keep the best config as
/// `layer/KERNEL`.
#include <parley/agreement.hpp>
#include <parley/identifiers.hpp>
#include <parley/ops/core/op_ref.hpp>
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
  std::vector<runtime::rank_id> ranks{};  ///< empty: all ranks; the lowest rank leads
  std::size_t iterations = 5;             ///< measured runs per config
  std::size_t warm_ups = 0;               ///< unmeasured runs before these, per config
  tuning::contextual_order order = tuning::contextual_order::grouped;
  bool share = false;                         ///< alike ranks measure different configs of each kernel
  std::string log_folder = ".autotune_logs";  ///< empty: no log
  std::chrono::nanoseconds timeout =
      std::chrono::seconds(30);  ///< of one run, and of the wait for the other ranks after it
};

/// A light handle; the op lives as long as its rank.
class contextual {
 public:
  /// Declares the op; call it on all ranks. Throws `bad_argument` if the name is taken, the list of ranks is wrong, or `iterations` is 0.
  contextual(rank& self, contextual_options op);
  /// `f()` returns a `task<>`, or nothing if it never waits. If `f` captures more than references and numbers, pass a named object, not a
  /// temporary: g++ 12 destroys such temporaries of a `co_await` twice.
  template <class F>
  runtime::task<> run(const F& f) {
    if constexpr (std::is_same_v<std::invoke_result_t<const F&>, runtime::task<>>) {
      return run_thunk(thunk(f));
    } else {
      return run_thunk(at_once(f));
    }
  }
  /// True on a rank that is not a member of the op.
  bool idle() const noexcept { return !place_; }
  const contextual_end& end() const { return end_or_raise(); }
  /// The config that this op runs for a kernel and key (as in the log), and why. `time_ns` is the longest average of all ranks; the
  /// evidence has this rank's own measurements, or those of all ranks that share the work. All functions except `idle` and `rejoin` throw
  /// `bad_argument` on a rank that is no member.
  ops::decision decision(const std::string& kernel, const std::string& key) const;
  /// Waits for that decision. The first call that meets the key makes it. Throws `failure` as agreement.hpp says. A key is searched again
  /// only after `rejoin`.
  runtime::task<ops::decision> decided(std::string kernel, std::string key, decided_options o = {}) const;
  /// How often functions have run, in all calls together.
  std::uint64_t runs() const;
  /// The id of the best config for a kernel and key; empty before the decision.
  std::string best(const std::string& kernel, const std::string& key) const;
  /// Call it after `peer_restarted`, on every member except the new process. All kernels are then tuned again, and calls count from 0.
  /// Returns false if no member has restarted.
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
  op_ref<contextual_end> place_;
  std::string name_;
};

}  // namespace parley::ops

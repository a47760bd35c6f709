#pragma once
/// A user's kernel with several implementations of one signature. The first calls with new parameters find the fastest implementation; all
/// later calls run it.
///
///     tunable_op<void(std::span<const float>, std::span<float>)> scale(self.kernels(), {
///         .name = "scale",
///         .key = [](auto in, auto) { return kernel_key{{"n", in.size()}}; },
///         .implementations = {{"plain", scale_plain}, {"unrolled(by=8)", scale_unrolled, "simd"}},
///         .outputs = [](auto, auto out) { return out; }});
///     self.kernels().enable_tunable_op(true);
///     scale(x, y);
///
/// The first implementation is the default: it runs while tunable ops are not enabled, and its outputs count as correct. If only the
/// default may run, because there is no other implementation or the other families are switched off, nothing is tried. With NUMERICAL_CHECK
/// on, an implementation whose outputs differ from the default's by more than atol + rtol * |default's| never wins (kernel_output.hpp). An
/// implementation that throws is left out, and the context's log has the reason. If the default throws, the call throws that exception.
///
/// An implementation of a `void` kernel may also return an integer or an enumeration: a status, where 0 is success, as libraries in C have
/// it. Any other status counts as an exception, `unavailable`.
///
/// A kernel that runs on a device names it (`.device`, parley/cuda_kernels.hpp): its implementations put their work into the device's stream
/// and return, and trials are timed on the device. A call that tunes waits for the device; if the stream is being captured, or still has
/// earlier work after a while, the call runs the default and a later call tunes.
///
/// Implementations that exist for some arguments only (`.for_key`) are asked for when a key is first tuned, the likely best first; or one of
/// them by its name, if a results file or a rule names it. A `contextual` leaves them out, and leaves a kernel on a device that has such
/// implementations alone: such a kernel is tuned by itself, also in there.
///
/// `void` implementations run on the caller's thread, also in trials. Implementations that return `task<>` are awaited, and so is the call:
/// `co_await scale(x, y)`. Calls that begin while their key is being tuned run the default. Trials run implementations again and again on
/// the caller's arguments; then the winner runs once for the caller. So each implementation must give the same result each time it runs, or
/// the kernel must declare the memory that it updates. Each rank makes this choice for itself; parley/contextual.hpp tunes kernels whose
/// ranks must agree. A call that is cancelled while it tunes leaves its key undecided.
#include <parley/ops/kernels/kernel_core.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::ops {

template <class Signature>
class tunable_op;

template <class Result, class... Args>
class tunable_op<Result(Args...)> {
  static constexpr bool awaited = std::is_same_v<Result, runtime::task<>>;
  static_assert(awaited || std::is_void_v<Result>, "a kernel gives back void or task<>; it writes to its arguments");

 public:
  /// A function of that signature, or one that returns a status.
  class runnable {
   public:
    runnable() = default;
    template <class F>
      requires(!std::is_same_v<std::remove_cvref_t<F>, runnable> && std::is_invocable_v<F&, Args...>)
    runnable(F f) {  // NOLINT(google-explicit-constructor)
      using given = std::invoke_result_t<F&, Args...>;
      static_assert(!std::is_same_v<given, bool>, "return void, or a status where 0 is success");
      if constexpr (requires { f == nullptr; }) {
        if (f == nullptr) return;  // the kernel says that it has no function
      }
      if constexpr (std::is_void_v<Result> && (std::is_enum_v<given> || std::is_integral_v<given>)) {
        status_ = [f = std::move(f)](Args... args) mutable { return static_cast<long>(f(args...)); };
      } else {
        plain_ = std::move(f);
      }
    }

   private:
    friend class tunable_op;
    std::function<Result(Args...)> plain_;
    std::function<long(Args...)> status_;
  };
  struct implementation {
    std::string id;  ///< the name in results files: `plain`, `blocked(rows=64)`
    runnable run;
    std::string family{};  ///< can be switched off with `tunable_context::enable_family`
  };
  struct options {
    std::string name;
    std::function<tuning::kernel_key(Args...)> key{};  ///< empty: one decision for all calls
    std::vector<implementation> implementations;       ///< the default first
    std::function<kernel_outputs(Args...)> outputs{};
    /// The texts of a key in results files: the first is written, and all are read. Empty: `parameters_text` (kernel_key.hpp).
    kernel_core::key_texts key_texts{};
    /// Implementations for these arguments, beside those for all: at most 4,000, or only the one of that name, if a name is given.
    std::function<std::vector<implementation>(const std::string& named, Args...)> for_key{};
    /// Where the kernel runs; null: on the caller's thread. It must outlive the kernel.
    kernel_device* device = nullptr;
  };

  /// Throws `bad_argument` if the name is taken, if results files cannot hold it, or if there is no implementation.
  tunable_op(tunable_context& context, options o)
      : core_(context, o.name, ids_of(o.implementations), families_of(o.implementations), std::move(o.key_texts),
              o.device) {
    key_ = std::move(o.key);
    outputs_ = std::move(o.outputs);
    for_key_ = std::move(o.for_key);
    for (implementation& i : o.implementations) run_.push_back(function_of(i));
  }

  Result operator()(Args... args) {
    const tunable_context& context = core_.context();
    const bool needs_entry = context.contextual() != nullptr || context.is_tunable_op_enabled();
    if (!needs_entry) return run_.front()(args...);
    return call(core_.entry(key_of(args...)), args...);
  }
  /// As a call, for code that has kept the entry of these arguments (`entry`).
  Result call(kernel_entry& e, Args... args) {
    const tunable_context& context = core_.context();
    if (context.contextual() == nullptr || is_tuned_alone()) [[likely]] {
      if (!context.is_tunable_op_enabled()) return run_.front()(args...);
      if (e.decided) [[likely]]
        return run_[e.winner](args...);
      const bool bare = context.is_numerics_check_enabled() && outputs_of(args...).empty();
      const auto comparable = bare ? kernel_core::outputs::cannot : kernel_core::outputs::can_be_compared;
      kernel_core::own_source own;
      if (for_key_) own = [&](const auto& named, kernel_core::others o) { add_own(e, named, o, args...); };
      if (core_.prepare(e, comparable, own) == kernel_core::way::run_winner) return run_[e.winner](args...);
      if constexpr (awaited) {
        return tune_later(e, args...);
      } else {
        return tune_now(e, args...);
      }
    }
    if constexpr (awaited) {
      return in_context_later(e, args...);
    } else {
      return in_context_now(e, args...);
    }
  }

  /// The decision for these arguments, with its reason. The reason is empty before the first call. If only the default may run, the
  /// reason says so.
  const kernel_entry& decision(Args... args) { return entry(args...); }
  kernel_entry& entry(Args... args) { return core_.entry(key_of(args...)); }
  const std::string& id_of(const kernel_entry& e) const { return core_.ids()[e.winner]; }
  const kernel_core& core() const noexcept { return core_; }

 private:
  static std::function<Result(Args...)> checked(std::function<long(Args...)> f, std::string title);
  static std::vector<std::string> ids_of(const std::vector<implementation>& from);
  static std::vector<std::string> families_of(const std::vector<implementation>& from);
  std::function<Result(Args...)> function_of(implementation& i) const;
  void add_own(kernel_entry& e, const std::vector<std::string>& named, kernel_core::others o, Args&... args);
  bool is_tuned_alone() const noexcept { return for_key_ && core_.device() != nullptr; }
  tuning::kernel_key key_of(Args&... args) const { return key_ ? key_(args...) : tuning::kernel_key(); }
  kernel_outputs outputs_of(Args&... args) const {
    return outputs_ ? outputs_(args...).on(core_.device()) : kernel_outputs();
  }
  kernel_outputs outputs_for(const contextual_run& run, Args&... args) const {
    return run.takes_outputs() ? outputs_of(args...) : kernel_outputs();
  }

  // The code for `void` and for `task<>` exists twice: a function cannot be a coroutine for some signatures only.
  void tune_now(kernel_entry& e, Args... args);
  runtime::task<> tune_later(kernel_entry& e, Args... args);
  void in_context_now(kernel_entry& e, Args... args);
  runtime::task<> in_context_later(kernel_entry& e, Args... args);

  kernel_core core_;
  std::function<tuning::kernel_key(Args...)> key_;
  std::function<kernel_outputs(Args...)> outputs_;
  std::deque<std::function<Result(Args...)>> run_;  // one may run while others are added
  std::function<std::vector<implementation>(const std::string&, Args...)> for_key_;
};

}  // namespace parley::ops

#include <parley/ops/kernels/tunable_op.hpp>

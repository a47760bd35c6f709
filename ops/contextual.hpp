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
#include <parley/actors/rounds.hpp>
#include <parley/ops/agreement.hpp>
#include <parley/ops/attached_op.hpp>
#include <parley/ops/contextual_agreement.hpp>
#include <parley/ops/kernel_core.hpp>
#include <parley/ops/op_place.hpp>
#include <parley/runtime/news.hpp>
#include <parley/runtime/scope.hpp>
#include <parley/runtime/task.hpp>
#include <parley/tuning/contextual_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::ops {

class rank;

struct contextual_op {
  std::string name;
  std::vector<runtime::rank_id> members{};  ///< empty: all ranks; the first one leads
  std::size_t iterations = 5;               ///< measured, per config
  std::size_t warm_ups = 0;                 ///< before them, per config
  tuning::contextual_order order = tuning::contextual_order::grouped;
  std::string log_folder = ".autotune_logs";  ///< empty: no log
  time_ns timeout_ns = 30'000'000'000;        ///< of one run, and of waiting for the other ranks after it
};

class contextual_end final : public attached_op, private contextual_run {
 public:
  using thunk = std::function<runtime::task<>()>;
  enum class trials : std::uint8_t { on, off };

  contextual_end(actors::services& s, tunable_context& kernels, contextual_op op, trials t);
  runtime::task<> run(thunk f);

  const actors::op_declaration& declaration() const noexcept override { return declaration_; }
  bool has(runtime::rank_id r) const noexcept override;
  void fail(const runtime::error& why) noexcept override;
  bool owes_messages() const noexcept override { return talk_.owes_messages(); }
  void list_waiting(runtime::waiting_list& all) override;
  std::string progress_in_words() const override;
  bool is_current() const override;
  std::unique_ptr<attached_op> next_generation() override;

  /// How often thunks were run, in all calls.
  std::uint64_t runs() const noexcept { return runs_; }
  /// The best config's id, or nothing.
  std::string best(const std::string& kernel, const std::string& key) const;
  ops::decision decision(const std::string& kernel, const std::string& key) const;
  std::vector<std::pair<std::string, ops::decision>> decisions() const override;
  runtime::task<ops::decision> decided(std::string kernel, std::string key, decided_options o);

 private:
  enum class mode : std::uint8_t { trying, settled };
  struct context {
    context(const kernel_core& k, std::string parameters, tuning::contextual_limits limits)
        : kernel(k.name()), key(std::move(parameters)), ids(k.ids()), plan(ids.size(), limits) {
      for (const auto& i : k.implementations()) digests.push_back(i.digest);
    }
    std::string kernel;
    std::string key;
    std::vector<std::string> ids;
    std::vector<std::uint64_t> digests;
    tuning::contextual_plan plan;
    std::map<std::size_t, tuning::contextual_plan::step> under_way{};
    std::size_t next_step = 0;
    std::size_t calls = 0;                                       // in the run that is under way
    std::size_t turns = 0;                                       // that have begun and not ended
    std::map<std::size_t, std::vector<std::byte>> references{};  // what the default gave, by call
    std::string faults{};
    std::map<std::size_t, std::string> fault_of{};
    std::optional<std::size_t> best{};
    std::optional<std::size_t> remembered{};
    double remembered_ns = 0;
    double latency_ns = 0;  // of the best
    actors::decision_source source = actors::decision_source::trials;
    std::string why{};
    std::string passed_over{};  // what a results file says that cannot be
  };
  using name_of = std::pair<std::string, std::string>;

  turn begin(const kernel_core& kernel, kernel_entry& e, kernel_outputs outputs) override;
  bool end(turn& t, const std::exception_ptr& thrown) override;

  runtime::task<> tune(std::uint64_t call, bool first, thunk f);
  runtime::task<> run_guarded(thunk f, runtime::time_ns timeout_ns);
  void end_run() noexcept;
  context* find_or_make(const kernel_core& kernel, const kernel_entry& e, const kernel_outputs& outputs);
  void leave_out_unchecked(context& c);
  static void settle_without_choice(context& c);
  void prepare_comparison(context& c, turn& t, kernel_outputs outputs) const;
  /// What is wrong with what it gave; empty where nothing is, or nobody asks.
  std::string compared(const turn& t) const;
  bool run_in_its_place(context& c, turn& t, const std::string& fault);
  void leave(context& c) noexcept;
  /// What a call that failed began to tune is tuned from the start, if it comes again.
  void forget_undecided();
  void recall(const kernel_core& kernel, context& c);
  contextual_said report() const;
  bool undecided() const;
  void take(const contextual_verdict& v);
  void settle(context& c, const contextual_best& best);
  void leave_default(const std::string& who);
  void keep_default(context& c, const std::string& because);
  void log(const context& c, const std::string& rest);
  void write_log();
  runtime::failure explained(std::uint64_t call, runtime::error why) const;
  actors::rounds::options agreement();

  actors::services& services_;
  tunable_context& kernels_;
  contextual_op op_;
  actors::op_declaration declaration_;
  trials trials_;
  contextual_progress progress_;
  actors::rounds talk_;
  std::map<name_of, context> contexts_;
  std::list<std::map<name_of, context>::node_type> forgotten_;  // kernels of other coroutines still run by them
  runtime::news settled_;
  std::optional<runtime::error> failed_;
  mode mode_ = mode::settled;
  runtime::scope* running_ = nullptr;
  bool tuning_ = false;  // what runs, whatever it meets
  std::uint64_t calls_ = 0;
  std::optional<runtime::time_ns> call_since_ns_{};  // of the one that is under way
  std::uint64_t runs_ = 0;
  std::string log_;
  bool log_refused_ = false;
};

/// A light handle; what it stands for lives as long as its rank.
class contextual {
 public:
  /// On all ranks. Throws `bad_argument`: a name that is taken, members that cannot be, no iterations.
  contextual(rank& self, contextual_op op);
  /// `f()` gives a `task<>`, or nothing for a thunk that never waits. One that captures more than references and numbers is
  /// named before it is given (g++ 12 destroys such temporaries of a `co_await` twice).
  template <class F>
  runtime::task<> run(const F& f) {
    if constexpr (std::is_same_v<std::invoke_result_t<const F&>, runtime::task<>>) {
      return end_or_raise().run(contextual_end::thunk(f));
    } else {
      return end_or_raise().run(at_once(f));
    }
  }
  /// Whether this rank is no member.
  bool idle() const noexcept { return place_ == nullptr; }
  const contextual_end& end() const { return end_or_raise(); }
  /// What runs for a kernel and key (as in the log) within this op, and why; `time_ns` is the longest average of all ranks, the
  /// evidence what this rank measured. Throw `bad_argument` on a rank that is no member.
  ops::decision decision(const std::string& kernel, const std::string& key) const {
    return end_or_raise().decision(kernel, key);
  }
  /// The same once there is one, which the first call that meets the key brings about. Throws `failure` as agreement.hpp says; nothing
  /// is searched anew but after `rejoin`.
  runtime::task<ops::decision> decided(std::string kernel, std::string key, decided_options o = {}) const {
    return end_or_raise().decided(std::move(kernel), std::move(key), o);
  }
  /// After `peer_restarted`, on every member but the new process: what was tuned is tuned anew, calls count from 0. False when no
  /// member has restarted.
  bool rejoin();

 private:
  static runtime::task<> call_now(std::function<void()> f);
  static contextual_end::thunk at_once(std::function<void()> f) {
    return [f = std::move(f)] { return call_now(f); };
  }
  contextual_end& end_or_raise() const;
  rank* rank_ = nullptr;
  op_place<attached_op>* place_ = nullptr;
  std::string name_;
};

}  // namespace parley::ops

#pragma once
/// A contextual op on one of its members. Its handle (contextual.hpp) calls it. Internal to ops.
#include <parley/actors/rounds/rounds.hpp>
#include <parley/agreement.hpp>
#include <parley/contextual.hpp>
#include <parley/news.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/kernels/kernel_core.hpp>
#include <parley/ops/leased/contextual_agreement.hpp>
#include <parley/ops/leased/shared_trials.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/tuning/planners/contextual_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::ops {

class contextual_end final : public op_end, private contextual_run {
 public:
  using thunk = std::function<runtime::task<>()>;
  enum class trials : std::uint8_t { on, off };

  contextual_end(actors::services& s, tunable_context& kernels, contextual_options op, trials t);
  runtime::task<> run(thunk f);

  const actors::op_declaration& declaration() const noexcept override { return declaration_; }
  bool ends_with(rank_id r) const noexcept override;
  void fail(const runtime::error& why) noexcept override;
  bool owes_messages() const noexcept override { return talk_.owes_messages(); }
  void list_waiting(runtime::waiting_list& all) override;
  std::string progress_in_words(std::uint32_t) const override;
  /// See op_ref.hpp.
  bool is_current() const;
  std::unique_ptr<contextual_end> next_generation();

  /// How often thunks were run, in all calls.
  std::uint64_t runs() const noexcept { return runs_; }
  /// The best config's id; empty if there is none yet.
  std::string best(const std::string& kernel, const std::string& key) const;
  ops::decision decision(const std::string& kernel, const std::string& key) const;
  std::vector<std::pair<std::string, ops::decision>> decisions() const override;
  runtime::task<ops::decision> decided(std::string kernel, std::string key, decided_options o);

 private:
  enum class mode : std::uint8_t { trying, settled };
  struct context {
    context(const kernel_core& k, std::string parameters, tuning::contextual_limits limits)
        : kernel(k.name()), key(std::move(parameters)),
          ids(k.ids().begin(), k.ids().begin() + static_cast<std::ptrdiff_t>(k.for_all_keys())),
          plan(ids.size(), limits), times(ids.size()) {
      // Implementations that exist for some keys only may not exist on all ranks.
      for (std::size_t i = 0; i < ids.size(); ++i) digests.push_back(k.implementations()[i].digest);
    }
    std::string kernel;
    std::string key;
    std::vector<std::string> ids;
    std::vector<std::uint64_t> digests;
    tuning::contextual_plan plan;
    // If the ranks share the work: this rank's part, and its times, which are not tried until measured.
    std::optional<contextual_part> part{};
    std::vector<tuning::aggregate> times;
    bool has_measured_part = false;
    std::vector<contextual_row> rows{};  // of all ranks, once decided
    std::map<std::size_t, tuning::trial> in_flight{};
    std::size_t next_step = 0;
    std::size_t calls = 0;                                       // in the current run
    std::size_t turns = 0;                                       // calls that have begun and not ended
    std::map<std::size_t, std::vector<std::byte>> references{};  // the default's outputs, by call
    std::string faults{};
    std::map<std::size_t, std::string> fault_of{};
    std::optional<std::size_t> best{};
    std::optional<std::size_t> remembered{};
    double remembered_ns = 0;
    double latency_ns = 0;  // of the best
    actors::decision_source source = actors::decision_source::trials;
    std::string why{};
    std::string passed_over{};  // says which entry of a results file was ignored, and why
  };
  using name_of = std::pair<std::string, std::string>;
  /// A trial whose work may still be on the device.
  struct on_device {
    name_of of;
    tuning::trial tried;
    device_timer timer;
  };

  turn begin(const kernel_core& kernel, kernel_entry& e, kernel_outputs outputs) override;
  bool end(turn& t, const std::exception_ptr& thrown) override;

  runtime::task<> tune(std::uint64_t call, bool first, thunk f);
  runtime::task<> run_guarded(thunk f, runtime::time_ns timeout_ns);
  void end_run() noexcept;
  /// Runs the thunk, and waits for the trials that it has put onto devices.
  runtime::task<> run_to_the_end(thunk f);
  void ended(context& c, const tuning::trial& tried, std::optional<double> took_ns);
  context* find(const kernel_core& kernel, const kernel_entry& e);
  std::size_t config_without_trials(const kernel_core& kernel, const kernel_entry& e);
  context* find_or_make(const kernel_core& kernel, const kernel_entry& e, const kernel_outputs& outputs);
  static void leave_out_forbidden(const kernel_core& kernel, const kernel_entry& e, context& c);
  void leave_out_unchecked(context& c);
  static void settle_without_choice(context& c);
  void prepare_comparison(context& c, turn& t, kernel_outputs outputs) const;
  /// Returns a text about how the outputs of a call differ from the default's; empty if they do not differ, or are not compared.
  std::string compared(const turn& t) const;
  bool takes_outputs() const override { return op_.share || kernels_.is_numerics_check_enabled(); }
  void begin_share(const kernel_core& kernel, kernel_entry& e, kernel_outputs outputs, context& c, turn& t);
  static void report_share(const context& c, contextual_report& r);
  static bool has_time(const context& c, std::size_t config);
  static void adopt(const context& c, kernel_entry& e);
  /// False: the turn goes on with another config.
  bool end_share(context& c, turn& t, const std::exception_ptr& thrown);
  void keep_times(context& c, const contextual_part& part, const std::vector<tuning::aggregate>& times);
  std::vector<candidate_evidence> evidence_of(const context& c) const;
  std::string result_name(const context& c) const { return op_.share ? c.kernel : op_.name + "/" + c.kernel; }
  bool run_in_its_place(context& c, turn& t, const std::string& fault);
  void leave(context& c) noexcept;
  /// Forgets kernels that a failed call began to tune. If they are called again, they are tuned from the start.
  void forget_undecided();
  void recall(const kernel_core& kernel, const kernel_entry& e, context& c);
  contextual_said report() const;
  bool undecided() const;
  /// `why_default`: why kernels that the verdict leaves undecided keep their defaults.
  void take(const contextual_verdict& v, const std::string& why_default);
  void settle(context& c, const contextual_best& best, const std::string& why_default);
  void go_on_without(const actors::rounds::outcome& late);
  void keep_default(context& c, const std::string& because);
  void log(const context& c, const std::string& rest);
  void write_log();
  runtime::failure explained(std::uint64_t call, runtime::error why) const;
  actors::rounds::options agreement();

  actors::services& services_;
  tunable_context& kernels_;
  contextual_options op_;
  actors::op_declaration declaration_;
  trials trials_;
  contextual_progress progress_;
  actors::rounds talk_;
  std::map<name_of, context> contexts_;
  std::deque<on_device> on_devices_;
  std::list<std::map<name_of, context>::node_type> forgotten_;  // still used by calls of other coroutines
  runtime::news settled_;
  std::optional<runtime::error> failed_;
  mode mode_ = mode::settled;
  runtime::scope* running_ = nullptr;
  runtime::time_ns run_began_ns_ = 0;
  bool tuning_ = false;  // the current run tunes every undecided kernel that it calls
  std::uint64_t calls_ = 0;
  std::optional<runtime::time_ns> call_since_ns_{};  // of the call in flight
  std::uint64_t runs_ = 0;
  std::string log_;
  bool log_refused_ = false;
};

}  // namespace parley::ops

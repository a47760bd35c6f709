#pragma once
/// What a tunable kernel is besides its functions: its implementations' names, and what was decided for each key.
/// parley/tunable_op.hpp is what users write; this is the part of it that does not depend on the kernel's signature.
///
///     kernel_tuning t(core, entry, outputs);
///     while (const auto step = t.next()) { …run step->candidate, catch…; t.end(thrown); }
///     run(t.finish());
///
/// A tuning that is given up half way leaves its key undecided.
#include <parley/identifiers.hpp>
#include <parley/kernel_key.hpp>
#include <parley/ops/kernels/kernel_output.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tuning/config.hpp>
#include <parley/tuning/planners/kernel_plan.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace parley::ops {

using runtime::time_ns;

/// One kernel and key.
struct kernel_entry {
  std::string parameters;  ///< the key's text
  std::string title;       ///< with its kernel's name
  std::uint32_t winner = 0;
  bool decided = false;
  bool being_tuned = false;
  const std::string* runs_now = nullptr;  ///< the `void` implementation that is on the stack while it is tried
  std::uint32_t looked_up = 0;            ///< the context's version that this was looked up in
  double time_ms = 0;                     ///< of the winner; 0 when it was not measured
  std::string why;
  std::string passed_over;  ///< what a results file says of it that cannot be, in words
};

class kernel_core {
 public:
  struct implementation {
    tuning::config_identity identity;
    std::string id;
    std::uint64_t digest = 0;
    std::string family;
  };
  /// `ids` and `families` as in tunable_op.hpp. Throws `bad_argument`.
  kernel_core(tunable_context& context, std::string name, const std::vector<std::string>& ids,
              std::vector<std::string> families);
  kernel_core(const kernel_core&) = delete;
  kernel_core& operator=(const kernel_core&) = delete;

  const std::string& name() const noexcept { return name_; }
  tunable_context& context() const noexcept { return context_; }
  const std::vector<implementation>& implementations() const noexcept { return implementations_; }
  const std::vector<std::string>& ids() const noexcept { return ids_; }
  /// By its id or `Default`, or nothing.
  std::optional<std::uint32_t> find(std::string_view solution) const noexcept;

  kernel_entry& entry(const tuning::kernel_key& key) {
    if (latest_ != nullptr && latest_key_ == key) return *latest_;
    return look_up(key);
  }
  /// The entries so far, by their parameters.
  const std::map<std::string, std::unique_ptr<kernel_entry>>& entries() const noexcept { return entries_; }

  enum class way : std::uint8_t { run_winner, tune };
  /// Throws `bad_argument` where an implementation that is being tried calls its own kernel with the same key: the call would never
  /// end, were that implementation the best. With another key, such as a smaller size, it may.
  void check_caller(const kernel_entry& e) const;
  runtime::op_title title_of(const kernel_entry& e) const noexcept { return {"kernel", e.title}; }
  /// While a `void` implementation is tried.
  class on_stack {
   public:
    on_stack(kernel_entry& e, const std::string& id) noexcept : entry_(e) { entry_.runs_now = &id; }
    on_stack(const on_stack&) = delete;
    on_stack& operator=(const on_stack&) = delete;
    ~on_stack() { entry_.runs_now = nullptr; }

   private:
    kernel_entry& entry_;
  };

  enum class outputs : std::uint8_t { can_be_compared, cannot };
  /// For an entry outside of contextual runs, with tunable ops enabled. What leaves no choice is not tried: a single implementation, none
  /// but the default whose family is on, none that could be checked where numbers are.
  way prepare(kernel_entry& e, outputs o);

 private:
  kernel_entry& look_up(const tuning::kernel_key& key);
  void recall(kernel_entry& e);
  bool has_choice(kernel_entry& e, outputs o);

  struct key_hash {
    std::size_t operator()(const tuning::kernel_key& k) const noexcept { return k.hash(); }
  };
  tunable_context& context_;
  std::string name_;
  std::shared_ptr<const void> claim_;  // to it
  std::vector<implementation> implementations_;
  std::vector<std::string> ids_;
  tuning::kernel_key latest_key_;
  kernel_entry* latest_ = nullptr;
  boost::unordered_flat_map<tuning::kernel_key, kernel_entry*, key_hash> by_key_;
  std::map<std::string, std::unique_ptr<kernel_entry>> entries_;
  bool warned_of_check_ = false;
};

/// The trials of one entry.
class kernel_tuning {
 public:
  kernel_tuning(kernel_core& core, kernel_entry& e, kernel_outputs outputs);
  kernel_tuning(const kernel_tuning&) = delete;
  kernel_tuning& operator=(const kernel_tuning&) = delete;
  ~kernel_tuning() { entry_.being_tuned = false; }

  /// What to run now, with the clock running from here on; nothing: all are through.
  std::optional<tuning::trial> next();
  /// It ran, or threw. What the default throws is the caller's to see, and so is the end of a cancelled caller.
  void end(const std::exception_ptr& thrown);
  /// Decides, and puts back what is updated, so that the winner may run for the caller.
  std::uint32_t finish();

 private:
  kernel_core& core_;
  kernel_entry& entry_;
  kernel_outputs outputs_;
  std::vector<std::byte> before_;     // of what is updated
  std::vector<std::byte> reference_;  // the default's
  tuning::kernel_plan plan_;
  tuning::trial step_;
  time_ns began_ns_ = 0;
};

/// A thunk that is being tuned as a whole; see parley/contextual.hpp. Its kernels ask it what to run.
class contextual_run {
 public:
  struct turn {
    std::size_t config = 0;  ///< what to run
    void* of = nullptr;
    std::size_t step = 0;
    bool counts = false;
    time_ns began_ns = 0;
    // Where numbers are compared.
    enum class comparison : std::uint8_t { none, is_reference, with_reference } compared = comparison::none;
    std::size_t call = 0;  // of this kernel and key, in this run
    kernel_outputs outputs{};
    std::vector<std::byte> before{};  // of what is updated
  };
  /// `outputs` are only looked at where the context compares numbers.
  virtual turn begin(const kernel_core& kernel, kernel_entry& e, kernel_outputs outputs) = 0;
  /// True: the call is over. False: `t.config` is to run in its place. Throws when there is nothing left to run.
  virtual bool end(turn& t, const std::exception_ptr& thrown) = 0;

 protected:
  ~contextual_run() = default;
};

}  // namespace parley::ops

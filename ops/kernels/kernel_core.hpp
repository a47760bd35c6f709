#pragma once
/// The part of a tunable kernel that does not depend on its signature: the names of its implementations, and the decision for each key.
/// Users include parley/tunable_op.hpp.
///
///     kernel_tuning t(core, entry, outputs);
///     while (const auto step = t.next()) { …run step->candidate, catch…; t.end(thrown); }
///     run(t.finish());
///
/// If a tuning is abandoned before its end, its key stays undecided.
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
  std::string title;       ///< the kernel's name and the key
  std::uint32_t winner = 0;
  bool decided = false;
  bool being_tuned = false;
  const std::string* runs_now = nullptr;  ///< id of the `void` implementation that is being tried; null: none
  std::uint32_t looked_up = 0;            ///< the context's version when it was last looked up
  double time_ms = 0;                     ///< of the winner; 0 when it was not measured
  std::string why;
  std::string passed_over;  ///< says which entry of a results file was ignored, and why
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
  /// Finds an implementation by its id or by `Default`.
  std::optional<std::uint32_t> find(std::string_view solution) const noexcept;

  kernel_entry& entry(const tuning::kernel_key& key) {
    if (latest_ != nullptr && latest_key_ == key) return *latest_;
    return look_up(key);
  }
  /// The entries so far, by their parameters.
  const std::map<std::string, std::unique_ptr<kernel_entry>>& entries() const noexcept { return entries_; }

  enum class way : std::uint8_t { run_winner, tune };
  /// Throws `bad_argument` if an implementation under trial calls its own kernel with the same key: if that implementation won, such a call
  /// would never end. It may call its kernel with another key, such as a smaller size.
  void check_caller(const kernel_entry& e) const;
  runtime::op_title title_of(const kernel_entry& e) const noexcept { return {"kernel", e.title}; }

  enum class outputs : std::uint8_t { can_be_compared, cannot };
  /// For an entry outside of contextual runs, with tunable ops enabled. An entry is not tuned if there is no choice: the kernel has only
  /// one implementation, the families of all others are switched off, or numbers are compared but the kernel declares no outputs.
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
  std::shared_ptr<const void> claim_;  // to the name
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

  /// Returns the next trial and starts its clock; nothing: all trials are done.
  std::optional<tuning::trial> next();
  /// The trial has run, or thrown. Rethrows an exception of the default, and the cancellation of the caller.
  void end(const std::exception_ptr& thrown);
  /// Decides and returns the winner. Restores updated outputs, so that the winner can then run for the caller.
  std::uint32_t finish();

 private:
  kernel_core& core_;
  kernel_entry& entry_;
  kernel_outputs outputs_;
  std::vector<std::byte> before_;     // the updated outputs
  std::vector<std::byte> reference_;  // the default's outputs
  tuning::kernel_plan plan_;
  tuning::trial step_;
  time_ns began_ns_ = 0;
};

/// A thunk that is tuned as a whole; see parley/contextual.hpp. Its kernels ask it which config to run.
class contextual_run {
 public:
  struct turn {
    std::size_t config = 0;  ///< the config to run
    void* of = nullptr;
    std::size_t step = 0;
    bool counts = false;
    time_ns began_ns = 0;
    // For the comparison of numbers.
    enum class comparison : std::uint8_t { none, is_reference, with_reference } compared = comparison::none;
    std::size_t call = 0;  // the number of this call of the kernel and key, in this run
    kernel_outputs outputs{};
    std::vector<std::byte> before{};  // the updated outputs
  };
  /// Uses `outputs` only if the context compares numbers.
  virtual turn begin(const kernel_core& kernel, kernel_entry& e, kernel_outputs outputs) = 0;
  /// True: the call has ended. False: run `t.config` in its place. Throws if nothing is left to run.
  virtual bool end(turn& t, const std::exception_ptr& thrown) = 0;

 protected:
  ~contextual_run() = default;
};

}  // namespace parley::ops

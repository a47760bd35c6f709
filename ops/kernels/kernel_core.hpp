#pragma once
/// The part of a tunable kernel that does not depend on its signature: the names of its implementations, and the decision for each key.
/// Users include parley/tunable_op.hpp.
///
///     kernel_tuning t(core, entry, outputs);
///     while (const auto step = t.next()) { …run step->candidate, catch…; t.end(thrown); }
///     run(t.finish());
///
/// If a tuning is abandoned before its end, its key stays undecided. Some implementations may exist for some keys only (`set_own`); they
/// are no candidates for other keys.
#include <parley/decision.hpp>
#include <parley/identifiers.hpp>
#include <parley/kernel_key.hpp>
#include <parley/ops/kernels/kernel_device.hpp>
#include <parley/ops/kernels/kernel_output.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tuning/config.hpp>
#include <parley/tuning/planners/guided_plan.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

using runtime::time_ns;

/// One kernel and key.
struct kernel_entry {
  std::string parameters;                  ///< the key's text
  std::vector<std::string> other_texts{};  ///< what the key may be called in files of other programs
  std::string title;                       ///< the kernel's name and the key
  std::uint32_t winner = 0;
  bool decided = false;
  bool being_tuned = false;
  const std::string* runs_now = nullptr;  ///< id of the `void` implementation that is being tried; null: none
  std::uint32_t looked_up = 0;            ///< the context's version when it was last looked up
  double time_ms = 0;                     ///< of the winner; 0 when it was not measured
  std::string why;
  std::string passed_over;  ///< says which entry of a results file was ignored, and why
  std::vector<std::uint32_t>
      own{};  ///< implementations that exist for some keys only, and for this one; the likely best first
  bool has_all_own = false;
};

/// The result of a kernel, or of an op for a kernel, under any of the key's texts; null: none.
const tuning::result_entry* remembered(tunable_context& context, std::string_view name, const kernel_entry& e);

class kernel_core {
 public:
  struct implementation {
    tuning::config_identity identity;
    std::string id;
    std::uint64_t digest = 0;
    std::string family;
  };
  using key_texts = std::function<std::vector<std::string>(const tuning::kernel_key&)>;
  /// `ids`, `families` and `texts` as in tunable_op.hpp. Throws `bad_argument`.
  kernel_core(tunable_context& context, std::string name, const std::vector<std::string>& ids,
              std::vector<std::string> families, key_texts texts, kernel_device* device = nullptr);
  kernel_core(const kernel_core&) = delete;
  kernel_core& operator=(const kernel_core&) = delete;

  const std::string& name() const noexcept { return name_; }
  tunable_context& context() const noexcept { return context_; }
  /// They keep their places while others are added, so an implementation may run meanwhile.
  const std::deque<implementation>& implementations() const noexcept { return implementations_; }
  const std::deque<std::string>& ids() const noexcept { return ids_; }
  /// So many implementations exist for all keys; they come first.
  std::size_t for_all_keys() const noexcept { return for_all_keys_; }
  /// The numbers of all implementations that exist for a key.
  std::vector<std::uint32_t> candidates(const kernel_entry& e) const;
  enum class others : std::uint8_t { not_wanted, wanted };
  /// Adds implementations that exist for a key beside the common ones; `wanted`: they are all that there are. Those that are known keep
  /// their numbers, and new ones get the next numbers. Returns the number of each. Throws `bad_argument`.
  std::vector<std::uint32_t> set_own(kernel_entry& e, const std::vector<std::string>& ids,
                                     const std::vector<std::string>& families, others o);
  /// Makes the kernel call `set_own`: with the implementations of these names that exist for the key, and if wanted with all others.
  using own_source = std::function<void(const std::vector<std::string>& named, others o)>;
  /// Where the kernel runs; null: on the caller's thread.
  kernel_device* device() const noexcept { return device_; }
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
  /// Why an implementation other than the default must not run; empty: it may.
  std::string why_left_out(const kernel_entry& e, std::size_t i) const {
    const implementation& its = implementations_[i];
    return i == 0 ? "" : context_.why_left_out(name_, e.parameters, its.id, its.family);
  }
  /// What a rule says of a key.
  struct ruled {
    std::string place;                              ///< of the rule; empty: no rule names an implementation
    std::optional<std::uint32_t> implementation{};  ///< nothing: the one that it names must not run here
    std::string why_not{};
  };
  ruled rule_of(const kernel_entry& e, const own_source& own = {}) const;
  /// For an entry outside of contextual runs, with tunable ops enabled. An entry is not tuned if there is no choice: the kernel has only
  /// one implementation, the families of all others are switched off, or numbers are compared but the kernel declares no outputs.
  way prepare(kernel_entry& e, outputs o, const own_source& own = {});
  /// The winners of the most similar keys, of this process and of results files, the most similar first.
  std::vector<std::string> winners_nearby(const kernel_entry& e) const;

 private:
  kernel_entry& look_up(const tuning::kernel_key& key);
  void recall(kernel_entry& e, const own_source& own);
  bool follow_rule(kernel_entry& e, const own_source& own);
  std::optional<std::uint32_t> find(const kernel_entry& e, const std::string& solution, const own_source& own) const;
  bool has_choice(kernel_entry& e, outputs o, bool knows_own);
  std::vector<tuning::config_identity> identities_of(const std::vector<std::string>& ids) const;
  void append(std::vector<tuning::config_identity> added, const std::vector<std::string>& families);

  struct key_hash {
    std::size_t operator()(const tuning::kernel_key& k) const noexcept { return k.hash(); }
  };
  tunable_context& context_;
  std::string name_;
  key_texts texts_;
  std::shared_ptr<const void> claim_;  // to the name
  kernel_device* device_;
  std::deque<implementation> implementations_;
  std::deque<std::string> ids_;
  std::map<std::string, std::uint32_t, std::less<>> number_of_;
  std::size_t for_all_keys_ = 0;
  tuning::kernel_key latest_key_;
  kernel_entry* latest_ = nullptr;
  boost::unordered_flat_map<tuning::kernel_key, kernel_entry*, key_hash> by_key_;
  std::map<std::string, std::unique_ptr<kernel_entry>> entries_;
  bool warned_of_check_ = false;
};

/// The trials of one entry.
class kernel_tuning {
 public:
  /// `part_of_all`: ranks share the trials, so those of this rank are not chosen by a model.
  enum class extent : std::uint8_t { all, part_of_all };
  kernel_tuning(const kernel_core& core, kernel_entry& e, kernel_outputs outputs, extent tries = extent::all);
  kernel_tuning(const kernel_tuning&) = delete;
  kernel_tuning& operator=(const kernel_tuning&) = delete;
  ~kernel_tuning() { entry_.being_tuned = false; }

  /// Leaves out an implementation; call it before the first trial.
  void leave_out(std::size_t implementation, std::string why);
  /// Returns the next trial and starts its clock; nothing: all trials are done.
  std::optional<tuning::trial> next();
  /// The trial has run, or thrown. Rethrows an exception of the default, and the cancellation of the caller.
  void end(const std::exception_ptr& thrown);
  /// Decides and returns the winner. Restores updated outputs, so that the winner can then run for the caller.
  std::uint32_t finish();
  /// Instead of `finish`: the times, for somebody else's decision. Also restores updated outputs.
  std::vector<tuning::aggregate> times();
  void restore_outputs();

 private:
  static std::vector<std::uint32_t> candidates_of(const kernel_core& core, const kernel_entry& e, extent tries);
  ops::decision decision_of(const tuning::decision& best) const;
  bool is_worth_a_line(std::size_t place) const;
  double took_on_device_ns();
  const std::string& id_of(std::size_t place) const { return core_.ids()[candidates_[place]]; }

  const kernel_core& core_;
  kernel_entry& entry_;
  std::vector<std::uint32_t> candidates_;  // implementations, by their place in the plan
  kernel_outputs outputs_;
  std::vector<std::byte> before_;     // the updated outputs
  std::vector<std::byte> reference_;  // the default's outputs
  tuning::guided_plan plan_;
  tuning::trial step_;                   // of the plan
  std::optional<device_timer> timer_{};  // of the trial that runs
  time_ns began_ns_ = 0;
  time_ns since_ns_ = 0;  // of the whole tuning
};

/// If W ranks share the trials of a kernel: the default, and each config i with (i - 1) % `of` == `place`.
struct contextual_part {
  std::size_t place = 0, of = 1;
  bool has(std::size_t config) const noexcept { return config == 0 || (config - 1) % of == place; }
  friend bool operator==(const contextual_part&, const contextual_part&) = default;
};

/// A thunk that is tuned as a whole; see parley/contextual.hpp. Its kernels ask it which config to run.
class contextual_run {
 public:
  struct turn {
    std::size_t config = 0;  ///< the config to run
    void* of = nullptr;
    // If the ranks share the work.
    std::unique_ptr<kernel_tuning> trials{};
    contextual_part part{};
    std::size_t step = 0;
    bool counts = false;
    time_ns began_ns = 0;
    std::optional<device_timer> timer{};  // of a trial on a device
    // For the comparison of numbers.
    enum class comparison : std::uint8_t { none, is_reference, with_reference } compared = comparison::none;
    std::size_t call = 0;  // the number of this call of the kernel and key, in this run
    kernel_outputs outputs{};
    std::vector<std::byte> before{};  // the updated outputs
  };
  /// True if `begin` needs the outputs of its kernels.
  virtual bool takes_outputs() const = 0;
  virtual turn begin(const kernel_core& kernel, kernel_entry& e, kernel_outputs outputs) = 0;
  /// True: the call has ended. False: run `t.config` in its place. Throws if nothing is left to run.
  virtual bool end(turn& t, const std::exception_ptr& thrown) = 0;

 protected:
  ~contextual_run() = default;
};

}  // namespace parley::ops

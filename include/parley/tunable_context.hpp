#pragma once
/// Holds the common state of a program's tunable kernels: the settings of TunableOp, remembered results, and learned results.
///
///     tunable_context kernels(ex, &disk, {.environment = read_settings(variable).value()});    // or rank::kernels()
///     kernels.enable_tunable_op(true);
///     kernels.set_max_tuning_duration_ms(10);
///     kernels.set_filename("kernels.csv", true);         // kernels0.csv on rank 0
///     kernels.read_file().value();
///
/// The members have the names of TunableOp's C++ context. The environment (PARLEY_TUNABLEOP_…) overrides the program's settings. The
/// context lives on the executor's thread, and must outlive its kernels. Files are read and written as docs/results.md says: a file with
/// other validators is neither trusted nor overwritten. Once tunable ops are enabled, by any switch, the context reads the file when a
/// kernel first looks for a result. It writes learned results within a second, and again when the context ends. If a rank has results
/// files, the results of its kernels are kept there. No function waits, and no other rank is needed.
#include <parley/error.hpp>
#include <parley/ops/job/results_store.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/tuning/results/results.hpp>
#include <parley/tuning/results/rules.hpp>
#include <parley/tuning/results/settings.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

class contextual_run;
class kernel_device;

class tunable_context {
 public:
  struct options {
    tuning::settings mine{};
    tuning::environment_settings environment{};
    std::uint32_t ordinal = 0;  ///< the rank's number, for the names of files
    std::vector<tuning::validator> validators{};
    std::vector<std::string> soft_validators{};  ///< names of validators that may differ, see results_store.hpp
    std::uint64_t unique = 0;        ///< part of the names of spare files: a number that no other process has
    std::string spare_folder{};      ///< see results_store.hpp
    bool write_file_on_exit = true;  ///< also writes while the program runs, see `write_file_on_exit`
    /// The store of a rank's results. It also keeps the results that kernels learn, unless another file is named. Null: the kernels have a
    /// separate file.
    results_store* shared = nullptr;
    bool no_file = false;                            ///< the user has asked for no file
    tuning::rule_file rules{};                       ///< what runs, and what must not
    std::function<void(const std::string&)> tell{};  ///< called at once with each line of the log; empty: none
  };
  tunable_context(runtime::executor& ex, runtime::storage* disk, options o);
  tunable_context(const tunable_context&) = delete;
  tunable_context& operator=(const tunable_context&) = delete;
  ~tunable_context();

  void enable_tunable_op(bool on) {
    set([&](auto& s) { s.enabled = on; });
  }
  bool is_tunable_op_enabled() const noexcept { return now_.enabled; }
  /// False: remembered results are used, and nothing is tried.
  void enable_tuning(bool on) {
    set([&](auto& s) { s.tuning = on; });
  }
  bool is_tuning_enabled() const noexcept { return now_.tuning; }
  void enable_record_untuned(bool on) {
    set([&](auto& s) { s.record_untuned = on; });
  }
  bool is_record_untuned_enabled() const noexcept { return now_.record_untuned; }
  void enable_numerics_check(tuning::numerical_check c) {
    set([&](auto& s) { s.check = c; });
  }
  bool is_numerics_check_enabled() const noexcept { return now_.check.on; }
  void set_max_tuning_duration_ms(std::uint32_t ms) {
    set([&](auto& s) { s.max_tuning_duration_ms = ms; });
  }
  std::uint32_t get_max_tuning_duration_ms() const noexcept { return now_.max_tuning_duration_ms; }
  void set_max_tuning_iterations(std::uint32_t n) {
    set([&](auto& s) { s.max_tuning_iterations = n; });
  }
  std::uint32_t get_max_tuning_iterations() const noexcept { return now_.max_tuning_iterations; }
  void set_max_warmup_duration_ms(std::uint32_t ms) {
    set([&](auto& s) { s.max_warmup_duration_ms = ms; });
  }
  std::uint32_t get_max_warmup_duration_ms() const noexcept { return now_.max_warmup_duration_ms; }
  void set_max_warmup_iterations(std::uint32_t n) {
    set([&](auto& s) { s.max_warmup_iterations = n; });
  }
  std::uint32_t get_max_warmup_iterations() const noexcept { return now_.max_warmup_iterations; }
  /// Of kernels on GPUs. A program cannot flush a CPU's instruction cache: to switch this on, here or in the environment, adds a warning.
  void enable_icache_flush(bool on);
  bool is_icache_flush_enabled() const noexcept { return now_.flush_icache; }
  /// The number of bytes that are written before each timed run, so that operands come from memory. 0: none.
  void set_rotating_buffer_size(std::uint64_t bytes) {
    set([&](auto& s) { s.rotating_buffer_bytes = bytes; });
  }
  std::uint64_t get_rotating_buffer_size() const noexcept;

  /// If a family is switched off, its implementations are not tried in any kernel; the default may always run. The environment overrides
  /// it: `PARLEY_TUNABLEOP_OPENBLAS_ENABLED=0`.
  void enable_family(std::string_view family, bool on);
  bool is_family_enabled(std::string_view family) const;

  /// `insert_device_ordinal`: inserts this rank's number into the name (tuning/results/results.hpp, name_with_ordinal).
  void set_filename(std::string name, bool insert_device_ordinal = false);
  std::string get_filename() const;
  /// False: results that are learned from now on are written only by `write_file`, and are not kept with a rank's results.
  void write_file_on_exit(bool on) noexcept { write_on_exit_ = on; }
  bool writes_file_on_exit() const noexcept { return write_on_exit_; }
  /// Adds the entries of a file to the known results; if a result is known already, it stays. Empty name: `get_filename()`. Kernels that
  /// have not decided yet use the new entries. `unavailable`: there is no file or no disk. `malformed` or `bad_argument` (validators): the
  /// file is not trusted.
  runtime::result<> read_file(const std::string& name = {});
  /// Adds all known results to a file, under its lock, and returns the file's path. `unavailable`: there is no disk, or no result is known,
  /// so no file was made.
  runtime::result<std::string> write_file(const std::string& name = {});
  /// All known results, read and learned.
  tuning::results_file get_tuning_results() const;
  /// See `results_file::solutions_near`.
  std::vector<std::string> solutions_near(std::string_view op, std::string_view parameters, std::size_t most) const {
    return known_.solutions_near(op, parameters, most);
  }
  const std::vector<tuning::validator>& get_tuning_results_validator() const noexcept { return validators_; }

  /// The decisions that trials in this process have made. `untuned`: with RECORD_UNTUNED, a line `op,parameters` for each key that ran
  /// its default because tuning was off.
  const std::vector<tuning::result_entry>& learned() const noexcept { return learned_; }
  const std::vector<std::string>& untuned() const noexcept { return untuned_; }
  /// The families of all kernels so far, and whether the environment switches them.
  const std::map<std::string, std::optional<bool>, std::less<>>& families() const noexcept { return families_; }
  /// At verbosity 2 a line for each decision. At verbosity 3 also a line for each candidate, with its time or the reason why it has none
  /// (rank_environment.hpp).
  const std::vector<std::string>& log() const noexcept { return log_; }
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }
  const tuning::settings& settings() const noexcept { return now_; }
  /// The rank's number.
  std::uint32_t ordinal() const noexcept { return ordinal_; }
  runtime::executor& where() const noexcept { return executor_; }
  runtime::storage* disk() const noexcept { return disk_; }

  // ---- for the rank that owns it

  /// True if learned results are kept with the rank's other results.
  bool is_kept_with_rank() const noexcept { return write_on_exit_ && is_shared(); }
  /// True if the kernels have opened a file of their own.
  bool has_own_file() const noexcept { return own_ != nullptr && own_->in_use(); }
  /// Adds learned results to the kernels' own file, if they have one.
  void write_own_file();

  // ---- for kernels, and for code that tunes them

  /// Called before a lookup. Reads the file's entries, if that is due.
  void open_file();
  /// True if a kernel has looked up a remembered result of this op and parameters.
  bool has_asked_for(std::string_view op, std::string_view parameters) const;
  /// Grows with every change of the remembered results, so that kernels look theirs up again.
  std::uint32_t version() const noexcept { return version_; }
  const tuning::result_entry* remembered(std::string_view op, std::string_view parameters);
  /// The first rule that names an implementation for this op and parameters; null: none.
  const tuning::rule* rule_for(std::string_view op, std::string_view parameters);
  /// True if a kernel has looked up a key that the rule fits.
  bool has_met(const tuning::rule& r) const { return rules_met_.contains(r.place); }
  /// Why an implementation of a kernel must not be tried: a rule excludes it, or its family is switched off. Empty: it may be tried.
  std::string why_left_out(std::string_view kernel, std::string_view parameters, std::string_view id,
                           std::string_view family);
  void remember(const tuning::results_file& file);
  /// `made`: the decision with its evidence, which is kept beside the results.
  void learn(tuning::result_entry entry, decision made);
  /// True when it is first called for a file: each job begins its logs anew.
  bool begins_log(const std::string& path) { return logs_.insert(path).second; }
  void note_untuned(std::string line);
  void note(unsigned verbosity, std::string line);
  void warn(std::string text);
  /// Reserves a kernel's name until the returned handle is dropped, which may be after the end of the context. Throws `bad_argument` if
  /// the name is taken.
  std::shared_ptr<const void> claim(const std::string& kernel);
  void meet_family(const std::string& family);
  /// Called before a timed run: makes sure that the operands are not in the cache.
  void evict(kernel_device* device);
  /// The run of a `contextual` that is in progress; it says which implementation a kernel runs. Null: none.
  contextual_run* contextual() const noexcept { return contextual_; }
  void set_contextual(contextual_run* run) noexcept { contextual_ = run; }

 private:
  template <class Change>
  void set(const Change& change) {
    change(mine_);
    now_ = environment_.over(mine_);
  }

  const tuning::result_entry* superseded_before(const tuning::result_entry& now) const;
  const std::vector<tuning::rule>& rules_of(std::string_view op);
  bool is_shared() const noexcept { return shared_ != nullptr && !renamed_; }

  runtime::executor& executor_;
  runtime::storage* disk_;
  results_store* shared_;
  std::unique_ptr<results_store> own_;
  std::string opened_;  // the file name of `own_`
  bool no_file_;
  bool renamed_ = false;  // the program has named a file, so the kernels have a file in addition to the rank's
  tuning::environment_settings environment_;
  tuning::settings mine_;
  tuning::settings now_;
  contextual_run* contextual_ = nullptr;
  std::uint32_t version_ = 1;
  std::uint32_t ordinal_;
  bool insert_ordinal_ = true;
  bool write_on_exit_;
  std::uint64_t unique_;
  std::string spare_folder_;
  std::vector<tuning::validator> validators_;
  std::vector<std::string> soft_validators_;
  tuning::rule_file rules_;
  std::map<std::string, std::vector<tuning::rule>, std::less<>> rules_of_;  // by op, for those that were asked for
  std::set<std::string> rules_met_;                                         // the places of those that fit
  std::function<void(const std::string&)> tell_;
  tuning::results_file known_;
  std::vector<tuning::result_entry> learned_;
  std::vector<tuning::result_entry> superseded_;  // entries as they were read
  using names = std::set<std::string, std::less<>>;
  names asked_for_;  // `op,parameters` of remembered results
  std::shared_ptr<names> claimed_ = std::make_shared<names>();
  std::set<std::string, std::less<>> families_off_;
  std::map<std::string, std::optional<bool>, std::less<>> families_;
  std::vector<std::string> untuned_;
  names logs_;
  std::vector<std::string> log_;
  std::vector<std::string> warnings_;
  std::vector<std::byte> rotating_;
};

}  // namespace parley::ops

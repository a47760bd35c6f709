#pragma once
/// Results files on a disk: reads the files that exist when a rank starts, and adds the rank's new results, so that nothing is lost.
///
///     results_store store(disk, {.path = "results.csv", .ordinal = 2, .validators = mine});
///     store.remembered();                     // of results.csv, then of results2.csv: the first entry for a key counts
///     store.learn({"activations/0>1", "1MiB", "direct", 0.2});   // on the disk within a second, however the process ends
///     auto where = store.add(learned, {});    // results2.csv, merged with what other jobs have put there meanwhile
///
/// Results that are learned in quick succession are written together, a quarter of a second after the first. If the disk may block, a
/// separate thread writes them, so that they are written even while the rank computes. Otherwise a timer of the executor does.
///
/// The store ignores a file of another version, machine or world, and a broken file. From a file with some unreadable lines, it uses the
/// other lines. It never overwrites such files: it writes results to a file for these validators in the same folder
/// (`results2.for-1f0c….csv`), which the next run also reads. If only `soft` validators differ, the results count after those of all other
/// files, and as `thin`, so that a search follows. If a file cannot be locked or written, results go to a spare file
/// (`results2.unmerged-….csv`, in the same folder, or else in the spare folder). Each of these cases causes a warning that names the files
/// and the remedy. It is an error only if no place accepts the results. docs/results.md describes this for users.
///
/// The evidence of the decisions goes to a file beside the results (evidence_file.hpp).
///
/// Results of kernels are valid in worlds of all sizes. The store also reads them from files for another number of ranks. If the rank's own
/// file is for another number of ranks, the store writes them to a file without that validator.
#include <parley/decision.hpp>
#include <parley/error.hpp>
#include <parley/ops/job/evidence_file.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/tuning/results/results.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

struct keep_options {
  /// Entries as this process read them, which its decisions replace. An entry that another process has changed since then stays.
  std::span<const tuning::result_entry> superseded{};
  std::uint64_t unique = 0;    ///< part of the names of spare files; differs in every process
  std::string spare_folder{};  ///< for spare files, if the results' own folder accepts none; empty: none
};

struct kept_results {
  enum class how : std::uint8_t { written, nothing_new };
  how what = how::nothing_new;
  std::string path;  ///< where the results are now
  std::vector<std::string> warnings;
};

/// Adds `more` to the file at `path`, under its lock. `io`: no file accepted the results; the text says why.
runtime::result<kept_results> keep_results(runtime::storage& disk, const std::string& path,
                                           const tuning::results_file& more, const keep_options& o = {});

/// The validators of results that hold in worlds of all sizes.
std::vector<tuning::validator> without_world(std::vector<tuning::validator> all);

/// The file in the folder of `path` for results of exactly these validators.
std::string variant_name(const std::string& path, std::span<const tuning::validator> validators);

/// Adds lines `op,parameters` to the list at `path`, each once.
runtime::result<> record_untuned(runtime::storage& disk, const std::string& path,
                                 const std::vector<std::string>& lines);

/// Returns the folder of `path` if that folder does not exist, else an empty text.
std::string missing_folder_of(const std::string& path);

/// This path means that there are no results files.
inline constexpr std::string_view no_file = "/dev/null";

class results_store {
 public:
  struct options {
    std::string path;  ///< empty, or `no_file`: there are no results files
    std::uint32_t ordinal = 0;
    std::vector<tuning::validator> validators;
    std::vector<std::string> soft{};  ///< names of validators that may differ
    std::uint64_t unique = 0;
    std::string spare_folder{};
    runtime::executor* ex = nullptr;  ///< null: `learn` writes nothing, only `add` writes
    bool numbered = true;             ///< false: `path` itself is this rank's file
  };
  /// Reads the files that are there. `disk` and the executor may be null; otherwise they must outlive the store.
  results_store(runtime::storage* disk, options o);
  results_store(const results_store&) = delete;
  results_store& operator=(const results_store&) = delete;
  /// Does not write results of `learn` that are not on the disk yet: call `add` before.
  ~results_store();

  const tuning::results_file& remembered() const noexcept { return remembered_; }
  /// The file for this rank's results.
  std::string own_path() const {
    return options_.numbered ? tuning::name_with_ordinal(options_.path, options_.ordinal) : options_.path;
  }
  runtime::storage* disk() const noexcept { return disk_; }
  bool in_use() const noexcept { return disk_ != nullptr && !options_.path.empty(); }
  /// Adds the entry to this rank's file soon. If `before` is given (an entry that was read), the new entry replaces it.
  void learn(tuning::result_entry entry, const tuning::result_entry* before = nullptr);
  /// Adds the evidence of a decision to the file beside the results, together with the next results.
  void keep_evidence(const tuning::result_entry& of, decision d);
  /// Adds to this rank's file and returns the path of the results. `unavailable`: no results file was asked for. Also replaces superseded
  /// entries in the common file, if they are still there, and, in the rank's own file, entries that this store added before.
  runtime::result<std::string> add(const tuning::results_file& learned,
                                   std::span<const tuning::result_entry> superseded);
  /// Warnings about files that were read or written.
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }
  std::vector<std::string>* warning_list() noexcept { return &warnings_; }
  void warn(std::vector<std::string> more) { warnings_.insert(warnings_.end(), more.begin(), more.end()); }

 private:
  class later;
  struct put_away {
    runtime::result<std::string> where;
    std::vector<std::string> warnings;
  };
  using validators = std::vector<tuning::validator>;
  void read(const std::string& path, const validators& expected);
  std::size_t take_kernels_of(const tuning::results_file& file);
  tuning::results_file own_results(const tuning::results_file& all) const;
  put_away put(const tuning::results_file& learned, std::span<const tuning::result_entry> superseded);
  void put_kernels(const tuning::results_file& learned, std::span<const tuning::result_entry> give_way,
                   std::vector<std::string>& warnings);
  void replace_in_common(const tuning::results_file& learned, std::span<const tuning::result_entry> superseded,
                         std::vector<std::string>& warnings);

  runtime::storage* disk_;
  options options_;
  validators for_kernels_;  // without the world's size
  tuning::results_file remembered_;
  tuning::results_file borrowed_;            // of files in which only soft validators differ: used, and not written
  std::vector<tuning::result_entry> added_;  // entries that `put` has added; two threads never run `put` at once
  std::vector<std::string> warnings_;
  std::optional<evidence_file> evidence_;
  std::unique_ptr<later> later_;
};

}  // namespace parley::ops

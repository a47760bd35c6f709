#pragma once
/// Results files on a disk: reads those that were there when a rank started, and adds what the rank learns, so that nothing is lost.
///
///     results_store store(disk, {.path = "results.csv", .ordinal = 2, .validators = mine});
///     store.remembered();                     // of results.csv, then of results2.csv: the first entry for a key counts
///     store.learn({"activations/0>1", "1MiB", "direct", 0.2});   // on the disk within a second, however the process ends
///     auto where = store.add(learned, {});    // results2.csv, merged with what other jobs have put there meanwhile
///
/// Results that are learned in quick succession are written together, a quarter of a second after the first. If the disk may block, a
/// thread of its own writes them, so that they get there while the rank computes. Otherwise a timer of the executor does.
///
/// The store ignores a file of another version, machine or world, and a broken one. From a file with lines that cannot be read, it uses the
/// other lines. It never overwrites such files: results go to a file of these validators in the same folder (`results2.for-1f0c….csv`),
/// which is read next time, too. If a file cannot be locked or written, results go to a spare file (`results2.unmerged-….csv`, in the same
/// folder, or else in the spare folder). Each of these is a warning that names the files and what to do. It is an error only if no place
/// accepts the results. docs/results.md tells users about it.
///
/// Results of kernels hold in worlds of all sizes. They are also read from files for another number of ranks. If the rank's own file is
/// such a file, they are written to a file without that validator.
#include <parley/error.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/tuning/results/results.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

struct keep_options {
  /// Entries as this process read them; its decisions replace them. An entry that another process has changed since stays.
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
    std::uint64_t unique = 0;
    std::string spare_folder{};
    runtime::executor* ex = nullptr;  ///< null: `learn` writes nothing, only `add` writes
    bool numbered = true;             ///< false: `path` itself is this rank's file
  };
  /// Reads the files that are there. `disk` and the executor may be null; otherwise they must outlive the store.
  results_store(runtime::storage* disk, options o);
  results_store(const results_store&) = delete;
  results_store& operator=(const results_store&) = delete;
  /// Does not write results that `learn` was given and that are not on the disk yet: call `add` before.
  ~results_store();

  const tuning::results_file& remembered() const noexcept { return remembered_; }
  /// The file for this rank's results.
  std::string own_path() const {
    return options_.numbered ? tuning::name_with_ordinal(options_.path, options_.ordinal) : options_.path;
  }
  runtime::storage* disk() const noexcept { return disk_; }
  bool in_use() const noexcept { return disk_ != nullptr && !options_.path.empty(); }
  /// Adds the entry to this rank's file soon. It replaces `before`, an entry that was read, if there is one.
  void learn(tuning::result_entry entry, const tuning::result_entry* before = nullptr);
  /// Adds to this rank's file and returns the path of the results. `unavailable`: no results file was asked for. Superseded entries are
  /// also replaced in the common file, if they still stand there. Entries that this store added before are replaced in the rank's own file.
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
  put_away put(const tuning::results_file& learned, std::span<const tuning::result_entry> superseded);
  void put_kernels(const tuning::results_file& learned, std::span<const tuning::result_entry> give_way,
                   std::vector<std::string>& warnings);
  void replace_in_common(const tuning::results_file& learned, std::span<const tuning::result_entry> superseded,
                         std::vector<std::string>& warnings);

  runtime::storage* disk_;
  options options_;
  validators for_kernels_;  // without the world's size
  tuning::results_file remembered_;
  std::vector<tuning::result_entry> added_;  // entries that `put` has added; two threads never run `put` at once
  std::vector<std::string> warnings_;
  std::unique_ptr<later> later_;
};

}  // namespace parley::ops

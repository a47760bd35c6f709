#pragma once
/// Results files on a disk: what was there when a rank started, and how what it learned is added, so that nothing is lost.
///
///     results_store store(disk, {.path = "results.csv", .ordinal = 2, .validators = mine});
///     store.remembered();                     // of results.csv, then of results2.csv: the first entry for a key counts
///     auto where = store.add(learned, {});    // results2.csv, merged with what other jobs have put there meanwhile
///
/// A file of another version, machine or world, a broken one, and one with lines that cannot be read is neither trusted beyond
/// its good lines nor ever overwritten: results go to a file of these validators beside it (`results2.for-1f0c….csv`),
/// which is read next time, too. When the file cannot be locked or written, results go to a spare file
/// (`results2.unmerged-….csv`, in the same folder or else in the spare one). Each of these is a warning that names the
/// files and what to do; only when no place takes them it is an error. docs/results.md tells users about it.
#include <parley/runtime/error.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/tuning/results.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

struct keep_options {
  /// Entries as this process read them, which its decisions replace; one that somebody else has changed since stays.
  std::span<const tuning::result_entry> superseded{};
  std::uint64_t unique = 0;    ///< names spare files: another number in every process
  std::string spare_folder{};  ///< where spare files go when the results' own folder takes none; empty: nowhere
};

struct kept_results {
  enum class how : std::uint8_t { written, nothing_new };
  how what = how::nothing_new;
  std::string path;  ///< where the results are now
  std::vector<std::string> warnings;
};

/// Adds `more` to the file at `path`, under its lock. `io`: nobody took them; the text says why.
runtime::result<kept_results> keep_results(runtime::storage& disk, const std::string& path,
                                           const tuning::results_file& more, const keep_options& o = {});

/// The file beside `path` for results of exactly these validators.
std::string variant_name(const std::string& path, std::span<const tuning::validator> validators);

/// Adds lines `op,parameters` to the list at `path`, each once.
runtime::result<> record_untuned(runtime::storage& disk, const std::string& path,
                                 const std::vector<std::string>& lines);

class results_store {
 public:
  struct options {
    std::string path;  ///< empty: there are no results files
    std::uint32_t ordinal = 0;
    std::vector<tuning::validator> validators;
    std::uint64_t unique = 0;
    std::string spare_folder{};
  };
  /// Reads what is there. `disk` may be null, and outlives the store otherwise.
  results_store(runtime::storage* disk, options o);

  const tuning::results_file& remembered() const noexcept { return remembered_; }
  /// Where this rank's results go.
  std::string own_path() const { return tuning::name_with_ordinal(options_.path, options_.ordinal); }
  runtime::storage* disk() const noexcept { return disk_; }
  bool in_use() const noexcept { return disk_ != nullptr && !options_.path.empty(); }
  /// Adds to this rank's file and answers where they are. `unavailable`: no results file was asked for. What was superseded is
  /// replaced in the common file, too, where it still stands there; what this store added before gives way in the rank's own.
  runtime::result<std::string> add(const tuning::results_file& learned,
                                   std::span<const tuning::result_entry> superseded);
  /// What was wrong with files that were read or written.
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }
  std::vector<std::string>* warning_list() noexcept { return &warnings_; }
  void warn(std::vector<std::string> more) { warnings_.insert(warnings_.end(), more.begin(), more.end()); }

 private:
  void read(const std::string& path);
  void replace_in_common(const tuning::results_file& learned, std::span<const tuning::result_entry> superseded);

  runtime::storage* disk_;
  options options_;
  tuning::results_file remembered_;
  std::vector<tuning::result_entry> added_;
  std::vector<std::string> warnings_;
};

}  // namespace parley::ops

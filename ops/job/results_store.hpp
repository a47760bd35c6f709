#pragma once
/// Results files on a disk: what was there when a rank started, and how what it learned is added, so that nothing is lost.
///
///     results_store store(disk, {.path = "results.csv", .ordinal = 2, .validators = mine});
///     store.remembered();                     // of results.csv, then of results2.csv: the first entry for a key counts
///     store.learn({"activations/0>1", "1MiB", "direct", 0.2});   // there within a second, whatever ends the process
///     auto where = store.add(learned, {});    // results2.csv, merged with what other jobs have put there meanwhile
///
/// What is learned one after the other is written together, a quarter of a second after the first: on a thread of its own where the disk
/// may block, so that it gets there while the rank computes, and else when the executor's clock comes to it.
///
/// A file of another version, machine or world, a broken one, and one with lines that cannot be read is neither trusted beyond
/// its good lines nor ever overwritten: results go to a file of these validators beside it (`results2.for-1f0c….csv`),
/// which is read next time, too. When the file cannot be locked or written, results go to a spare file
/// (`results2.unmerged-….csv`, in the same folder or else in the spare one). Each of these is a warning that names the
/// files and what to do; only when no place takes them it is an error. docs/results.md tells users about it.
///
/// Results of kernels hold in worlds of all sizes: they are read out of files for another number of ranks, too, and where the rank's file
/// is such a one they go to a file without that validator.
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

/// Returns the folder of `path` if that folder does not exist, else an empty text.
std::string missing_folder_of(const std::string& path);

/// Written as a path: there shall be none.
inline constexpr std::string_view no_file = "/dev/null";

class results_store {
 public:
  struct options {
    std::string path;  ///< empty, or `no_file`: there are no results files
    std::uint32_t ordinal = 0;
    std::vector<tuning::validator> validators;
    std::uint64_t unique = 0;
    std::string spare_folder{};
    runtime::executor* ex = nullptr;  ///< null: `learn` leaves it to `add` to write
    bool numbered = true;             ///< false: `path` itself is this rank's file
  };
  /// Reads what is there. `disk` and the executor may be null, and outlive the store otherwise.
  results_store(runtime::storage* disk, options o);
  results_store(const results_store&) = delete;
  results_store& operator=(const results_store&) = delete;
  /// What `learn` has not brought to the disk by now is left to `add`.
  ~results_store();

  const tuning::results_file& remembered() const noexcept { return remembered_; }
  /// Where this rank's results go.
  std::string own_path() const {
    return options_.numbered ? tuning::name_with_ordinal(options_.path, options_.ordinal) : options_.path;
  }
  runtime::storage* disk() const noexcept { return disk_; }
  bool in_use() const noexcept { return disk_ != nullptr && !options_.path.empty(); }
  /// Adds it to this rank's file soon. `before`, if there is one, was read and gives way to it.
  void learn(tuning::result_entry entry, const tuning::result_entry* before = nullptr);
  /// Adds to this rank's file and answers where they are. `unavailable`: no results file was asked for. What was superseded is
  /// replaced in the common file, too, where it still stands there; what this store added before gives way in the rank's own.
  runtime::result<std::string> add(const tuning::results_file& learned,
                                   std::span<const tuning::result_entry> superseded);
  /// What was wrong with files that were read or written.
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
  std::vector<tuning::result_entry> added_;  // by `put`, which two threads never run at once
  std::vector<std::string> warnings_;
  std::unique_ptr<later> later_;
};

}  // namespace parley::ops

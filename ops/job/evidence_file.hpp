#pragma once
/// Keeps the evidence of decisions beside a results file: `results0.csv.evidence`, one JSON object per line (decision_record.hpp).
///
///     evidence_file evidence(disk, "results0.csv.evidence");
///     evidence.note("activations/0>1", "16MiB_bf16", d);      // at once; replaces an unwritten record of the same key
///     evidence.write();                                       // under the file's lock
///
/// The file has one record for each key, the latest one; records of other jobs stay. If the file would become larger than `most_bytes`, the
/// records that were written first are dropped. `write` may be called by another thread than `note`.
#include <parley/decision.hpp>
#include <parley/error.hpp>
#include <parley/runtime/storage.hpp>

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace parley::ops {

class evidence_file {
 public:
  static constexpr std::size_t most_bytes = std::size_t{16} << 20U;

  evidence_file(runtime::storage& disk, std::string path) : disk_(disk), path_(std::move(path)) {}
  /// `op` and `parameters` as in the results file.
  void note(const std::string& op, const std::string& parameters, decision d);
  /// A record that another rank has made.
  void note(const std::string& op, const std::string& parameters, std::string line);
  /// Adds what was noted. If that fails, the next call tries again.
  runtime::result<> write();

 private:
  using records = std::map<std::string, std::string>;  // the beginning of a line, which names its key, and the line

  runtime::storage& disk_;
  std::string path_;
  std::mutex guard_;
  records unwritten_;
};

/// Where the evidence for a results file is.
inline std::string evidence_of(const std::string& results_path) { return results_path + ".evidence"; }

}  // namespace parley::ops

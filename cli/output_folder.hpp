#pragma once
/// Keeps the output of each rank of a job in separate files: FOLDER/rank-0.out, FOLDER/rank-0.err and so on.
///
///     output_folder kept("run-7");                                  // makes the folder
///     kept.take(0, output_stream::out, "hello");
///
/// A rank's file is made with its first line. Each line is written to the file at once. The constructor removes the files of an earlier
/// job, and throws `text_error` if there can be no such folder. If a file cannot be written later, the job continues without it, and
/// `lost` says why.
#include <parley/identifiers.hpp>
#include <parley/transports/launch/launcher.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace parley::cli {

class output_folder {
 public:
  /// `shared`: launchers on other hosts may write there at the same time, so files of an earlier job stay.
  explicit output_folder(std::filesystem::path folder, bool shared = false);
  void take(runtime::rank_id rank, transports::output_stream kind, std::string_view line);
  /// The output that could not be written, and why; empty: everything was written.
  const std::string& lost() const noexcept { return lost_; }

 private:
  std::filesystem::path folder_;
  std::string lost_;
  std::map<std::pair<runtime::rank_id, transports::output_stream>, std::ofstream> files_;
};

}  // namespace parley::cli

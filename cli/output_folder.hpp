#pragma once
/// The output of the ranks of a job, each rank's in files of its own: FOLDER/rank-0.out, FOLDER/rank-0.err and so on.
///
///     output_folder kept("run-7");                                  // makes the folder
///     kept.take(0, output_stream::out, "hello");
///
/// A file is made when its rank says something first, and what it said is there at once. Files that are there are replaced. Throws `text_error`.
#include <parley/identifiers.hpp>
#include <parley/transports/launch/launcher.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>

namespace parley::cli {

class output_folder {
 public:
  explicit output_folder(std::filesystem::path folder);
  void take(runtime::rank_id rank, transports::output_stream kind, std::string_view line);

 private:
  std::filesystem::path folder_;
  std::map<std::pair<runtime::rank_id, transports::output_stream>, std::ofstream> files_;
};

}  // namespace parley::cli

#include <parley/cli/output_folder.hpp>

#include <parley/cli/json_text.hpp>

#include <string>
#include <system_error>

namespace parley::cli {

output_folder::output_folder(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code why;
  std::filesystem::create_directories(folder_, why);
  if (why) throw text_error("parley: the folder " + folder_.string() + " cannot be made: " + why.message());
}

void output_folder::take(runtime::rank_id rank, transports::output_stream kind, std::string_view line) {
  std::ofstream& file = files_[{rank, kind}];
  if (!file.is_open()) {
    const std::string name =
        "rank-" + std::to_string(rank) + (kind == transports::output_stream::out ? ".out" : ".err");
    file.open(folder_ / name);
    if (!file) throw text_error("parley: " + (folder_ / name).string() + " cannot be written");
  }
  file << line << std::endl;  // flushed, so that a reader sees it at once
}

}  // namespace parley::cli

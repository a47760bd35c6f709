#include <parley/cli/output_folder.hpp>

#include <parley/cli/json_text.hpp>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

namespace parley::cli {

output_folder::output_folder(std::filesystem::path folder, bool shared) : folder_(std::move(folder)) {
  std::error_code why;
  std::filesystem::create_directories(folder_, why);
  if (why) throw text_error("parley: the folder " + folder_.string() + " cannot be made: " + why.message());
  if (shared) return;
  std::vector<std::filesystem::path> earlier;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, why)) {
    const std::string name = entry.path().filename().string();
    const bool is_output = name.starts_with("rank-") && (name.ends_with(".out") || name.ends_with(".err"));
    if (is_output && entry.is_regular_file(why)) earlier.push_back(entry.path());
  }
  for (const auto& path : earlier) std::filesystem::remove(path, why);
}

void output_folder::take(runtime::rank_id rank, transports::output_stream kind, std::string_view line) {
  std::ofstream& file = files_[{rank, kind}];
  const auto path = [&] {
    return folder_ / ("rank-" + std::to_string(rank) + (kind == transports::output_stream::out ? ".out" : ".err"));
  };
  errno = 0;
  if (!file.is_open()) file.open(path());
  file << line << '\n' << std::flush;  // so that a reader sees it at once
  if (!file && lost_.empty())
    lost_ = path().string() + " could not be written" +
            (errno == 0 ? std::string() : std::string(": ") + std::strerror(errno)) + "; output of ranks is lost";
}

}  // namespace parley::cli

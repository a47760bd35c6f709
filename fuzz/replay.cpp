// Runs every input of the corpus, CORPUS/TARGET/*, once. Each target also runs with an empty input and with the first half of each input.
// Fails if the corpus lacks an input for some control message.
#include "fuzz.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

namespace {

std::vector<std::byte> content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Whether the inputs of the folder decode as every control message body.
bool has_every_body(const std::filesystem::path& folder) {
  const auto all = parley::fuzz::body_types();
  std::set<std::string_view> missing(all.begin(), all.end());
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    missing.erase(parley::fuzz::body_type_of(content_of(entry.path())));
  for (const std::string_view name : missing)
    std::printf("%s: no input decodes as %s\n", folder.c_str(), std::string(name).c_str());
  return missing.empty();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fuzz_replay CORPUS [TARGET]\n");
    return 2;
  }
  bool complete = true;
  for (const auto& t : parley::fuzz::targets()) {
    const std::string name(t.name);
    if (argc > 2 && name != argv[2]) continue;
    std::size_t count = 0;
    t.run({});
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / name;
    if (std::filesystem::is_directory(folder)) {
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const auto bytes = content_of(entry.path());
        std::fprintf(stderr, "%s\r", entry.path().c_str());  // the last name printed is the input that crashed
        t.run(bytes);
        t.run(std::span(bytes).first(bytes.size() / 2));
        ++count;
      }
      if (name == "message") complete = has_every_body(folder) && complete;
    }
    std::printf("%s: %zu inputs\n", name.c_str(), count);
    complete = complete && count > 0;
  }
  if (!complete) std::printf("a target without inputs proves nothing; ./dev fuzz TARGET finds some\n");
  return complete ? 0 : 1;
}

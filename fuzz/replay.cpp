// Runs every input of the corpus once: CORPUS/TARGET/*. Each target also gets nothing at all, and each input cut short.
#include "fuzz.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

std::vector<std::byte> content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
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
        std::fprintf(stderr, "%s\r", entry.path().c_str());  // the last one seen is the one that crashed
        t.run(bytes);
        t.run(std::span(bytes).first(bytes.size() / 2));
        ++count;
      }
    }
    std::printf("%s: %zu inputs\n", name.c_str(), count);
    complete = complete && count > 0;
  }
  if (!complete) std::printf("a target without a corpus proves nothing; ./dev fuzz TARGET makes one\n");
  return complete ? 0 : 1;
}

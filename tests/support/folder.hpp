#pragma once
/// A temporary folder for a test; the destructor removes it.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace parley::tests {

struct scratch_folder {
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "parley-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() { std::filesystem::remove_all(path); }

  std::string file(std::string_view name) const { return (path / name).string(); }
  std::size_t files() const {
    std::size_t n = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(path)) ++n;
    return n;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& name, std::string_view text) const { std::ofstream(path / name) << text; }

  std::filesystem::path path;
};

}  // namespace parley::tests

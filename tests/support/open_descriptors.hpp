#pragma once
/// The number of file descriptors that this process has open, to show that something closes its own.
#include <cstddef>
#include <filesystem>

namespace parley::tests {

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace parley::tests

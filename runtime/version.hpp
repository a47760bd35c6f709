#pragma once
/// The library's version, one place for code and CMake alike (a test compares them).
#include <string_view>

namespace parley::runtime {

inline constexpr std::string_view version_text = "0.1.0";

}  // namespace parley::runtime

#pragma once
/// The library's version, for code and for CMake (a test compares both).
#include <string_view>

namespace parley::runtime {

inline constexpr std::string_view version_text = "0.1.0";

}  // namespace parley::runtime

#pragma once
#include <cstdint>

namespace parley::actors {

/// The type of a call: properties that all participants must pass alike in addition to the size, such as the element type and the function
/// that combines elements. It has the bits that a stamp's tag has above the lane, and 16 more. ops/core/call_type.hpp assigns the values.
enum class call_type : std::uint64_t { any = 0 };
inline constexpr unsigned call_type_tag_bits = 19;
inline constexpr unsigned call_type_bits = call_type_tag_bits + 16;

}  // namespace parley::actors

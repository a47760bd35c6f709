#pragma once
#include <cstdint>

namespace parley::actors {

/// The type of a call: what all participants must pass alike besides the size, such as the element type and the function that combines
/// elements. It has as many bits as a stamp's tag leaves above the lane, and 16 more. ops/core/call_type.hpp assigns the values.
enum class call_type : std::uint64_t { any = 0 };
inline constexpr unsigned call_type_tag_bits = 19;
inline constexpr unsigned call_type_bits = call_type_tag_bits + 16;

}  // namespace parley::actors

#pragma once
#include <cstdint>

namespace parley::actors {

/// What all participants bring alike beside the size, such as the type of their numbers and what adds them up, in as many bits
/// as a stamp's tag has room for above the lane, and 16 more. Whoever calls says what it stands for (ops/core/call_type.hpp).
enum class call_type : std::uint64_t { any = 0 };
inline constexpr unsigned call_type_tag_bits = 19;
inline constexpr unsigned call_type_bits = call_type_tag_bits + 16;

}  // namespace parley::actors

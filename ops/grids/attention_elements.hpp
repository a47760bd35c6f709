#pragma once
/// The elements of ring attention's arrays: read from the bytes of a message, and named for the comparison of two ranks' calls.
#include <parley/ops/core/call_type.hpp>
#include <parley/runtime/narrow_floats.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <typeinfo>

namespace parley::ops {

template <class T>
std::span<const T> elements_of(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
std::string_view attention_type() noexcept {
  if constexpr (std::is_same_v<T, runtime::bf16>) return "bf16";
  constexpr std::uint32_t known = call_types::element_of<T>();
  return known == 0 ? typeid(T).name() : call_types::elements[known];
}

}  // namespace parley::ops

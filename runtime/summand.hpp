#pragma once
/// The kinds of numbers that a device can sum (`memory_space::add`).
#include <parley/runtime/narrow_floats.hpp>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace parley::runtime {

/// Integers of that many bits, signed or not, wrap around. `f16` and `bf16` are added as `float`, and rounded after each addend.
enum class summand : std::uint8_t { none, f32, f64, i8, i16, i32, i64, f16, bf16 };

constexpr std::size_t bytes_of(summand s) noexcept {
  switch (s) {
    case summand::i8: return 1;
    case summand::i16:
    case summand::f16:
    case summand::bf16: return 2;
    case summand::f32:
    case summand::i32: return 4;
    case summand::f64:
    case summand::i64: return 8;
    case summand::none: break;
  }
  return 1;
}

/// The number type of a span's elements; a complex number counts as two numbers.
template <class T>
constexpr summand summand_for() noexcept {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, std::complex<float>>) return summand::f32;
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::complex<double>>) return summand::f64;
  if constexpr (std::is_same_v<T, f16>) return summand::f16;
  if constexpr (std::is_same_v<T, bf16>) return summand::bf16;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    switch (sizeof(T)) {
      case 1: return summand::i8;
      case 2: return summand::i16;
      case 4: return summand::i32;
      case 8: return summand::i64;
      default: break;
    }
  }
  return summand::none;
}

}  // namespace parley::runtime

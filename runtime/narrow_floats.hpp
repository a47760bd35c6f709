#pragma once
/// 16-bit floats. Arithmetic uses `float`; results are rounded to nearest even: the same bits on every processor and on devices.
///
///     std::vector<bf16> gradients = …;
///     gradients[0] = gradients[0] + bf16(0.5F);       // a float, made a bf16 again
#include <bit>
#include <cstdint>

namespace parley::runtime {

/// The upper half of a `float`.
struct bf16 {
  bf16() noexcept = default;
  bf16(float value) noexcept {  // NOLINT(google-explicit-constructor): a number
    const auto all = std::bit_cast<std::uint32_t>(value);
    const bool nan = (all & 0x7fffffffU) > 0x7f800000U;
    bits = static_cast<std::uint16_t>(nan ? (all >> 16U) | 0x40U : (all + 0x7fffU + ((all >> 16U) & 1U)) >> 16U);
  }
  operator float() const noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16U); }  // NOLINT
  std::uint16_t bits = 0;
};

/// IEEE 754's binary16: a sign, 5 bits of exponent and 10 of fraction.
struct f16 {
  f16() noexcept = default;
  f16(float value) noexcept {  // NOLINT(google-explicit-constructor): a number
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = all & 0x7fffffffU;
    std::uint32_t narrow = 0;
    if (magnitude > 0x7f800000U) {
      narrow = 0x7e00U | ((magnitude >> 13U) & 0x3ffU);  // a NaN stays one
    } else if (magnitude >= 0x477ff000U) {
      narrow = 0x7c00U;  // rounds to infinity
    } else if (magnitude >= smallest_normal) {
      narrow = (magnitude - (112U << 23U) + 0xfffU + ((magnitude >> 13U) & 1U)) >> 13U;
    } else {
      // Smaller numbers are multiples of 2^-24. The processor rounds the sum to such a multiple, and the sum's low bits then hold the
      // factor.
      narrow =
          std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
    }
    bits = static_cast<std::uint16_t>((all >> 16U & 0x8000U) | narrow);
  }
  operator float() const noexcept {  // NOLINT
    const std::uint32_t sign = std::uint32_t{bits} << 16U & 0x80000000U;
    const std::uint32_t magnitude = std::uint32_t{bits} & 0x7fffU;
    if (magnitude < 0x400U) {
      const float times = static_cast<float>(magnitude) * 0x1p-24F;
      return sign == 0 ? times : -times;
    }
    const std::uint32_t exponent_by = magnitude >= 0x7c00U ? 224U : 112U;  // infinity and NaN have the largest exponent
    return std::bit_cast<float>(sign | ((magnitude << 13U) + (exponent_by << 23U)));
  }
  std::uint16_t bits = 0;

 private:
  static constexpr std::uint32_t smallest_normal = 113U << 23U;
};

}  // namespace parley::runtime

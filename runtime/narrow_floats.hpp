#pragma once
/// Floats of 16 and 8 bits. Arithmetic uses `float`; results are rounded to nearest even: the same bits on every processor and on devices.
///
///     std::vector<bf16> gradients = …;
///     gradients[0] = gradients[0] + bf16(0.5F);       // a float, made a bf16 again
#include <bit>
#include <cstdint>
#include <limits>

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

/// A sign, 4 bits of exponent and 3 of fraction, as GPUs multiply them: no infinity, and 448 is the largest number. Larger ones become NaN,
/// so scale them first.
struct f8_e4m3 {
  f8_e4m3() noexcept = default;
  f8_e4m3(float value) noexcept {  // NOLINT(google-explicit-constructor): a number
    const auto all = std::bit_cast<std::uint32_t>(value);
    const float magnitude = std::bit_cast<float>(all & 0x7fffffffU);
    std::uint32_t narrow = nan;
    if (magnitude < smallest_normal) {
      narrow = to_nearest_even(magnitude * 0x1p9F);  // a multiple of 2^-9
    } else if (magnitude <= 0x1.dp8F) {              // else it rounds to more than 448, or is NaN
      const auto bits_of = std::bit_cast<std::uint32_t>(magnitude);
      narrow = ((bits_of + 0x7ffffU + ((bits_of >> 20U) & 1U)) >> 20U) - (120U << 3U);
    }
    bits = static_cast<std::uint8_t>((all >> 24U & 0x80U) | narrow);
  }
  operator float() const noexcept {  // NOLINT
    const std::uint32_t magnitude = bits & 0x7fU;
    float value = std::bit_cast<float>((magnitude + (120U << 3U)) << 20U);
    if (magnitude < 8) value = static_cast<float>(magnitude) * 0x1p-9F;
    if (magnitude == nan) value = std::numeric_limits<float>::quiet_NaN();
    return (bits & 0x80U) == 0 ? value : -value;
  }
  std::uint8_t bits = 0;

 private:
  static constexpr std::uint32_t nan = 0x7f;
  static constexpr float smallest_normal = 0x1p-6F;
  static std::uint32_t to_nearest_even(float small) noexcept {
    constexpr float one_per_unit = 0x1p23F;
    return std::bit_cast<std::uint32_t>(small + one_per_unit) - std::bit_cast<std::uint32_t>(one_per_unit);
  }
};

}  // namespace parley::runtime

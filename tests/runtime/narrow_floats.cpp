#include <parley/runtime/narrow_floats.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

using namespace parley::runtime;

namespace {

template <class T>
T of_bits(unsigned bits) {
  T made;
  made.bits = static_cast<std::uint16_t>(bits);
  return made;
}

/// Counts wrong roundings between `low` and the next value of `T`: just below, just above and at the middle, which rounds to even.
template <class T>
std::size_t wrongly_rounded(unsigned low) {
  const float below = of_bits<T>(low);
  const float above = of_bits<T>(low + 1);
  if (!std::isfinite(below) || !std::isfinite(above)) return 0;
  const float middle = below + (above - below) / 2;
  const auto even = low % 2 == 0 ? low : low + 1;
  const auto at = std::bit_cast<std::uint32_t>(middle);
  std::size_t wrong = T(middle).bits == even ? 0 : 1;
  wrong += T(std::bit_cast<float>(at - 1)).bits == low ? 0 : 1;
  wrong += T(std::bit_cast<float>(at + 1)).bits == low + 1 ? 0 : 1;
  return wrong;
}

template <class T>
void check_all() {
  std::size_t changed = 0;
  std::size_t wrong = 0;
  for (unsigned bits = 0; bits < 0x10000U; ++bits) {
    const T narrow = of_bits<T>(bits);
    const float wide = narrow;
    if (std::isnan(wide)) {
      changed += std::isnan(static_cast<float>(T(wide))) ? 0 : 1;
    } else {
      changed += T(wide).bits == bits ? 0 : 1;
    }
    if (bits < 0x7fffU) wrong += wrongly_rounded<T>(bits);
    const float negative = of_bits<T>(bits | 0x8000U);
    if (bits < 0x8000U && !std::isnan(wide)) changed += negative == -wide && std::signbit(negative) ? 0 : 1;
  }
  CHECK(changed == 0);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every 16-bit float converts back to itself, and values between two of them round to nearest, ties to even") {
  check_all<bf16>();
  check_all<f16>();
}

TEST_CASE("16-bit floats have the values and the range of their formats") {
  CHECK(static_cast<float>(of_bits<f16>(0x3c00)) == 1.0F);
  CHECK(static_cast<float>(of_bits<f16>(0xc000)) == -2.0F);
  CHECK(static_cast<float>(of_bits<f16>(0x7bff)) == 65504.0F);
  CHECK(static_cast<float>(of_bits<f16>(0x0001)) == 0x1p-24F);
  CHECK(static_cast<float>(of_bits<f16>(0x0400)) == 0x1p-14F);
  CHECK(static_cast<float>(of_bits<bf16>(0x3f80)) == 1.0F);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(f16(65519.9F).bits == 0x7bff);
  CHECK(f16(65520.0F).bits == 0x7c00);
  CHECK(f16(-1e30F).bits == 0xfc00);
  CHECK(f16(-infinity).bits == 0xfc00);
  CHECK(static_cast<float>(f16(infinity)) == infinity);
  CHECK(f16(0x1p-26F).bits == 0);
  CHECK(f16(-0.0F).bits == 0x8000);
}

TEST_CASE("numbers of 8 bits are the ones of GPUs: 448 is the largest, halves go to even, and nothing is infinite") {
  for (int i = 0; i < 256; ++i) {
    f8_e4m3 one;
    one.bits = static_cast<std::uint8_t>(i);
    if ((i & 0x7f) == 0x7f) {
      CHECK(std::isnan(float(one)));
    } else {
      CHECK(f8_e4m3(float(one)).bits == i);
    }
  }
  const auto rounded = [](float x) { return float(f8_e4m3(x)); };
  CHECK(rounded(448) == 448);
  CHECK(rounded(463.9F) == 448);
  CHECK(rounded(464) == 448);  // between 448 and 480: 448 is even
  CHECK(std::isnan(rounded(464.1F)));
  CHECK(std::isnan(rounded(std::numeric_limits<float>::infinity())));
  CHECK(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN())));
  CHECK(rounded(17) == 16);  // between 16 and 18: 16 is even
  CHECK(rounded(-19) == -20);
  CHECK(rounded(0x1p-9F) == 0x1p-9F);  // the smallest
  CHECK(rounded(0x1p-10F) == 0);
  CHECK(rounded(0x1.8p-10F) == 0x1p-9F);
  CHECK(rounded(0x1.fp-7F) == 0x1p-6F);  // becomes normal
  CHECK(std::signbit(rounded(-0.0F)));
}

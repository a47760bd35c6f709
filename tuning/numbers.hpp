#pragma once
/// Compares a candidate's numbers with the default's, and finds the first number that is not close enough.
///
///     const auto type = number_type_of("bf16");                       // nothing: no such type
///     fill_with_numbers(*type, scratch, member);                      // the same whenever it is asked, others for each member
///     if (auto bad = first_unlike(*type, came, reference, within)) throw … sentence(*bad, within);
///
/// Integers and plain bytes must be equal; the tolerance does not apply to them. A NaN is correct only where the default has a NaN.
#include <parley/tuning/results/settings.hpp>

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace parley::tuning {

enum class number_type : std::uint8_t { bytes, f16, bf16, f32, f64, i8, u8, i16, u16, i32, u32, i64, u64 };

/// The type that ops declare, in any of the usual spellings: `f32`, `fp32`, `float32`, `float`; `bf16`, `bfloat16`; `i32`, `int32`, …
std::optional<number_type> number_type_of(std::string_view dtype) noexcept;
std::size_t size_of(number_type t) noexcept;

/// The type by which a span of T is compared.
template <class T>
constexpr number_type number_type_for() noexcept {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, std::complex<float>>) return number_type::f32;
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::complex<double>>) return number_type::f64;
  return number_type::bytes;
}

/// |got - expected| <= atol + rtol * |expected|. Only an infinity is close to the same infinity.
inline bool is_close(double got, double expected, const numerical_check& within) noexcept {
  if (got == expected || (std::isnan(got) && std::isnan(expected))) return true;
  return std::isfinite(expected) && std::abs(got - expected) <= within.atol + within.rtol * std::abs(expected);
}

struct unlike_number {
  std::size_t element = 0;
  double got = 0;
  double expected = 0;
};
/// The first element that is not close. `load` reads the element at an address as a double.
template <class Load>
std::optional<unlike_number> first_unlike(std::span<const std::byte> got, std::span<const std::byte> expected,
                                          std::size_t element_bytes, const Load& load, const numerical_check& within) {
  if (got.empty() || std::memcmp(got.data(), expected.data(), got.size()) == 0) return std::nullopt;
  for (std::size_t at = 0; at + element_bytes <= got.size(); at += element_bytes) {
    const unlike_number n{at / element_bytes, load(got.data() + at), load(expected.data() + at)};
    if (!is_close(n.got, n.expected, within)) return n;
  }
  return std::nullopt;
}
/// The spans must have the same length.
std::optional<unlike_number> first_unlike(number_type t, std::span<const std::byte> got,
                                          std::span<const std::byte> expected, const numerical_check& within);
/// `element 7 of output 0 is 3 where the default has 4 (atol 1e-05, rtol 1e-05)`
std::string sentence(const unlike_number& n, const numerical_check& within, std::string_view of = "");

/// Fills `into` with numbers that depend on `which`. Coarse types get small integers, so that their sums are the same in any order. Fine
/// types get numbers in [1, 2) that use all their bits.
void fill_with_numbers(number_type t, std::span<std::byte> into, std::uint64_t which) noexcept;

}  // namespace parley::tuning

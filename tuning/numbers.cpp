#include <parley/tuning/numbers.hpp>

#include <parley/tuning/hash.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <utility>

namespace parley::tuning {

namespace {

template <class T>
double load_as(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}

double load_bf16(const std::byte* at) noexcept {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return static_cast<double>(std::bit_cast<float>(std::uint32_t{bits} << 16U));
}

double load_f16(const std::byte* at) noexcept {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  const int exponent = static_cast<int>((bits >> 10U) & 31U);
  const double fraction = bits & 1023U;
  const double size = exponent == 31  ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000U) != 0 ? -size : size;
}

struct of_type {
  std::size_t bytes;
  double (*load)(const std::byte* at) noexcept;
  bool exact;
};
constexpr std::array<of_type, 13> types{{
    {1, &load_as<std::uint8_t>, true},
    {2, &load_f16, false},
    {2, &load_bf16, false},
    {4, &load_as<float>, false},
    {8, &load_as<double>, false},
    {1, &load_as<std::int8_t>, true},
    {1, &load_as<std::uint8_t>, true},
    {2, &load_as<std::int16_t>, true},
    {2, &load_as<std::uint16_t>, true},
    {4, &load_as<std::int32_t>, true},
    {4, &load_as<std::uint32_t>, true},
    {8, &load_as<std::int64_t>, true},
    {8, &load_as<std::uint64_t>, true},
}};
const of_type& about(number_type t) noexcept { return types[static_cast<std::size_t>(t)]; }

template <class T>
void store(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof value);
}

}  // namespace

std::optional<number_type> number_type_of(std::string_view dtype) noexcept {
  using enum number_type;
  static constexpr std::array<std::pair<std::string_view, number_type>, 38> names{{
      {"f16", f16},     {"fp16", f16},   {"float16", f16},  {"half", f16},  {"bf16", bf16}, {"bfloat16", bf16},
      {"f32", f32},     {"fp32", f32},   {"float32", f32},  {"float", f32}, {"f64", f64},   {"fp64", f64},
      {"float64", f64}, {"double", f64}, {"i8", i8},        {"int8", i8},   {"int8_t", i8}, {"u8", u8},
      {"uint8", u8},    {"uint8_t", u8}, {"byte", u8},      {"bytes", u8},  {"i16", i16},   {"int16", i16},
      {"u16", u16},     {"uint16", u16}, {"i32", i32},      {"int32", i32}, {"int", i32},   {"int32_t", i32},
      {"u32", u32},     {"uint32", u32}, {"uint32_t", u32}, {"i64", i64},   {"int64", i64}, {"int64_t", i64},
      {"u64", u64},     {"uint64", u64},
  }};
  const auto at = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == dtype; });
  return at == names.end() ? std::nullopt : std::optional(at->second);
}

std::size_t size_of(number_type t) noexcept { return about(t).bytes; }

std::optional<unlike_number> first_unlike(number_type t, std::span<const std::byte> got,
                                          std::span<const std::byte> expected, const numerical_check& within) {
  const of_type& type = about(t);
  if (!type.exact) return first_unlike(got, expected, type.bytes, type.load, within);
  // Compares bytes, because a double cannot hold all bits of a large integer.
  const auto [wrong, right] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  if (wrong == got.end()) return std::nullopt;
  const std::size_t element = static_cast<std::size_t>(wrong - got.begin()) / type.bytes;
  const std::size_t at = element * type.bytes;
  if (at + type.bytes > got.size()) return std::nullopt;  // ignores trailing bytes that are not a whole element
  return unlike_number{element, type.load(got.data() + at), type.load(expected.data() + at)};
}

std::string sentence(const unlike_number& n, const numerical_check& within, std::string_view of) {
  char text[200];
  std::snprintf(text, sizeof text, " is %.9g where the default has %.9g (atol %.6g, rtol %.6g)", n.got, n.expected,
                within.atol, within.rtol);
  return "element " + std::to_string(n.element) + std::string(of) + text;
}

void fill_with_numbers(number_type t, std::span<std::byte> into, std::uint64_t which) noexcept {
  const std::size_t bytes = size_of(t);
  for (std::size_t i = 0; (i + 1) * bytes <= into.size(); ++i) {
    std::byte* const at = into.data() + i * bytes;
    const std::uint64_t dice = mixed(mixed(which) ^ i);
    const std::uint64_t whole = 1 + dice % 3;
    switch (t) {
      case number_type::f16: {
        constexpr std::array<std::uint16_t, 3> values{0x3c00, 0x4000, 0x4200};
        store(at, values[whole - 1]);
        break;
      }
      case number_type::bf16: {
        constexpr std::array<std::uint16_t, 3> values{0x3f80, 0x4000, 0x4040};
        store(at, values[whole - 1]);
        break;
      }
      case number_type::f32:
        store(at, std::bit_cast<float>(0x3f800000U | static_cast<std::uint32_t>(dice >> 41U)));
        break;
      case number_type::f64: store(at, std::bit_cast<double>(0x3ff0000000000000U | (dice >> 12U))); break;
      default: {  // sets the least significant byte
        std::memset(at, 0, bytes);
        at[std::endian::native == std::endian::little ? 0 : bytes - 1] = static_cast<std::byte>(whole);
      }
    }
  }
}

}  // namespace parley::tuning

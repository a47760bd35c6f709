#include <parley/tuning/numbers.hpp>

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <vector>

using namespace parley::tuning;

namespace {

constexpr numerical_check within{true, 1e-5, 1e-3};

template <class T>
std::optional<unlike_number> compare(number_type t, const std::vector<T>& got, const std::vector<T>& expected) {
  return first_unlike(t, std::as_bytes(std::span(got)), std::as_bytes(std::span(expected)), within);
}

}  // namespace

TEST_CASE("numbers are compared within both tolerances, and the first unlike element is named") {
  const std::vector<float> right{1, -1000, 0, 5};
  CHECK_FALSE(compare(number_type::f32, right, right));
  CHECK_FALSE(compare<float>(number_type::f32, {1.0009F, -1000.9F, 9e-6F, 5}, right));
  const auto bad = compare<float>(number_type::f32, {1, -1000, 2e-5F, 5}, right);
  REQUIRE(bad);
  CHECK(bad->element == 2);
  CHECK(sentence(*bad, within, " of output 0").starts_with("element 2 of output 0 is 1.99999"));
  CHECK(sentence({7, 3, 4}, within) == "element 7 is 3 where the default has 4 (atol 1e-05, rtol 0.001)");
}

TEST_CASE("a NaN matches a NaN of the default, and an infinity matches only the same infinity") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double most = std::numeric_limits<double>::infinity();
  CHECK_FALSE(compare<double>(number_type::f64, {-nan, most}, {nan, most}));
  CHECK(compare<double>(number_type::f64, {nan}, {1}));
  CHECK(compare<double>(number_type::f64, {1}, {nan}));
  CHECK(compare<double>(number_type::f64, {-most}, {most}));
}

TEST_CASE("integers and plain bytes must be equal") {
  CHECK(compare<std::int64_t>(number_type::i64, {(1LL << 60U) + 1}, {1LL << 60U})->element == 0);
  CHECK(compare<std::int32_t>(number_type::i32, {1, 1'000'000}, {1, 1'000'001})->element == 1);
  CHECK(compare<std::uint8_t>(number_type::bytes, {1, 2, 3}, {1, 2, 4})->element == 2);
  // The first 4 bytes are one element, which is equal. The fifth byte is not a whole element and is not compared.
  CHECK_FALSE(compare<std::uint8_t>(number_type::i32, {0, 0, 0, 0, 7}, {0, 0, 0, 0, 8}));
}

TEST_CASE("half precision and bfloat16 are decoded in their own formats") {
  CHECK(compare<std::uint16_t>(number_type::f16, {0x3c00}, {0x3c02})->expected == doctest::Approx(1.001953125));
  CHECK(compare<std::uint16_t>(number_type::f16, {0xc000}, {0x0001})->got == -2);
  CHECK(compare<std::uint16_t>(number_type::f16, {0x0001}, {0x7c00})->expected ==
        std::numeric_limits<double>::infinity());
  CHECK(compare<std::uint16_t>(number_type::bf16, {0x4040}, {0xbf80})->got == 3);
  CHECK(compare<std::uint16_t>(number_type::bf16, {0x4040}, {0xbf80})->expected == -1);
}

TEST_CASE("known numbers lie from 1 to 3, differ between members, and are whole for 16-bit types") {
  for (const char* name : {"f16", "bf16", "float32", "f64", "i8", "u16", "int32", "i64"}) {
    CAPTURE(name);
    const auto type = number_type_of(name);
    REQUIRE(type);
    const std::size_t count = 64;
    std::vector<std::byte> one(count * size_of(*type)), other(one.size()), zeros(one.size());
    fill_with_numbers(*type, one, 1);
    fill_with_numbers(*type, other, 2);
    CHECK(one != other);
    fill_with_numbers(*type, other, 1);
    CHECK(one == other);
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = i * size_of(*type);
      const auto number = std::span(one).subspan(at, size_of(*type));
      const auto n = first_unlike(*type, number, std::span(zeros).first(number.size()), within);
      REQUIRE(n);
      CHECK(n->got >= 1);
      CHECK(n->got <= 3);
      if (size_of(*type) == 2) CHECK(n->got == static_cast<int>(n->got));
    }
  }
  CHECK_FALSE(number_type_of(""));
  CHECK_FALSE(number_type_of("fp4"));
}

#include <parley/number_text.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

using namespace parley::runtime;

TEST_CASE("a number is read exactly as it is written, and only within its range") {
  CHECK(read_number<std::uint32_t>("1", {1, 64}) == 1U);
  CHECK(read_number<std::uint32_t>("64", {1, 64}) == 64U);
  CHECK(!read_number<std::uint32_t>("0", {1, 64}));
  CHECK(!read_number<std::uint32_t>("65", {1, 64}));
  CHECK(read_number<std::uint64_t>("18446744073709551615", {0, std::numeric_limits<std::uint64_t>::max()}) ==
        std::numeric_limits<std::uint64_t>::max());
  CHECK(!read_number<std::uint64_t>("18446744073709551616", {0, std::numeric_limits<std::uint64_t>::max()}));
  CHECK(read_number<std::int64_t>("-3", {-5, 5}) == -3);
  CHECK(read_number<double>("0", {0, 3600}) == 0.0);
  CHECK(read_number<double>("2.5e-3", {0, 3600}) == 2.5e-3);
  CHECK(read_number<double>("1e-300", {0, 3600}) == 1e-300);
  CHECK(read_number<double>("-2", {-3, 3}) == -2.0);
}

TEST_CASE("text that lenient parsers would accept is no number") {
  for (const char* const text : {"", " ", " 5", "5 ", "+5", "-5", "-0", "0x1F", "0x2", "0b1", "5x", "5,0", "1_000",
                                 "1e1", "5.", "\t5", "5\n", "½"}) {
    CAPTURE(text);
    CHECK(!read_number<std::uint64_t>(text, {0, 1'000'000}));
  }
  for (const char* const text :
       {"",    " ",    " 5",  "5 ",       "+5",   "-0",    "-0.0",   "-0e5",    "0x1F", "0x1p3", "5x", "1,5",
        "nan", "-nan", "inf", "infinity", "-inf", "1e400", "1e-400", "-1e-400", "1e",   "e1",    "."}) {
    CAPTURE(text);
    CHECK(!read_number<double>(text, {0, 1e300}));
  }
  CHECK(!read_number<double>("-0", {-1, 1}));
  CHECK(!read_hexadecimal<std::uint64_t>("0x1F", {0, 255}));
  CHECK(!read_hexadecimal<std::uint64_t>("", {0, 255}));
  CHECK(read_hexadecimal<std::uint64_t>("1f", {0, 255}) == 31U);
}

TEST_CASE("words_of describes the expected range in words") {
  CHECK(words_of<std::uint32_t>({1, 64}) == "a whole number from 1 to 64");
  CHECK(words_of<double>({0, 3600}) == "a number from 0 to 3600");
  CHECK(words_of<double>({0.01, 100}) == "a number from 0.01 to 100");
}

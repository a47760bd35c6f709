#include <parley/runtime/wire/wire.hpp>

#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

using namespace parley::runtime;

namespace {

enum class colour : std::uint8_t { red, green, last = green };
enum class charge : std::int8_t { none, plus, last = plus };

struct point {
  std::int32_t x = 0;
  double y = 0;
  PARLEY_FIELDS(x, y)
};
struct everything {
  bool flag = false;
  std::uint8_t small = 0;
  std::int16_t negative = 0;
  std::uint64_t large = 0;
  float ratio = 0;
  colour paint = colour::red;
  std::string text;
  std::vector<std::uint16_t> numbers;
  std::vector<std::string> words;
  point where;
  std::vector<point> path;
  std::vector<std::vector<std::uint8_t>> blobs;
  std::vector<colour> paints;
  PARLEY_FIELDS(flag, small, negative, large, ratio, paint, text, numbers, words, where, path, blobs, paints)
};
struct only_flag {
  bool flag = false;
  PARLEY_FIELDS(flag)
};
struct only_colour {
  colour paint = colour::red;
  PARLEY_FIELDS(paint)
};
struct only_charge {
  charge sign = charge::none;
  PARLEY_FIELDS(sign)
};
struct only_text {
  std::string text;
  PARLEY_FIELDS(text)
};
struct only_numbers {
  std::vector<std::uint64_t> numbers;
  PARLEY_FIELDS(numbers)
};
struct only_words {
  std::vector<std::string> words;
  PARLEY_FIELDS(words)
};
struct nothing {  // a message without content
  static constexpr std::string_view field_names = "";
  std::tuple<> fields() const { return {}; }
};

everything sample() {
  everything e;
  e.flag = true;
  e.small = 200;
  e.negative = -12345;
  e.large = 0x0123456789abcdefU;
  e.ratio = 0.5F;
  e.paint = colour::green;
  e.text = std::string("t\0xt", 4);
  e.numbers = {1, 2, 65535};
  e.words = {"", "one", "two"};
  e.where = {-1, 2.25};
  e.path = {{1, 1}, {2, -0.0}};
  e.blobs = {{}, {1, 2, 3}};
  e.paints = {colour::green, colour::red};
  return e;
}
template <class M>
std::vector<std::byte> encoded(const M& m) {
  std::vector<std::byte> bytes;
  encode(m, bytes);
  return bytes;
}
std::vector<std::byte> raw(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

}  // namespace

TEST_CASE("a message with every kind of field decodes to the values that were encoded") {
  const everything sent = sample();
  const auto bytes = encoded(sent);
  auto received = decode<everything>(bytes);
  REQUIRE(received);
  CHECK(received->flag == sent.flag);
  CHECK(received->small == sent.small);
  CHECK(received->negative == sent.negative);
  CHECK(received->large == sent.large);
  CHECK(received->ratio == sent.ratio);
  CHECK(received->paint == sent.paint);
  CHECK(received->text == sent.text);
  CHECK(received->numbers == sent.numbers);
  CHECK(received->words == sent.words);
  CHECK(received->where.x == sent.where.x);
  CHECK(received->where.y == sent.where.y);
  REQUIRE(received->path.size() == 2);
  CHECK(received->path[0].x == 1);
  CHECK(received->blobs == sent.blobs);
  CHECK(received->paints == sent.paints);
  CHECK(encoded(*received) == bytes);
}

TEST_CASE("numbers are little-endian and lists begin with their count") {
  only_numbers m{{0x0102030405060708U}};
  CHECK(encoded(m) == raw({1, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1}));
  CHECK(encoded(only_text{"ab"}) == raw({2, 0, 0, 0, 'a', 'b'}));
}

TEST_CASE("a message without fields takes no bytes") {
  CHECK(encoded(nothing{}).empty());
  CHECK(decode<nothing>({}));
  CHECK(decode<nothing>(raw({0})).code() == errc::malformed);
}

TEST_CASE("a message that is cut off anywhere is malformed") {
  const auto bytes = encoded(sample());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    // A copy of exactly this size, so that a sanitizer sees every read beyond the end.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    REQUIRE(decode<everything>(cut).code() == errc::malformed);
  }
}

TEST_CASE("bytes after the last field are malformed") {
  auto bytes = encoded(sample());
  bytes.push_back(std::byte{0});
  CHECK(decode<everything>(bytes).code() == errc::malformed);
}

TEST_CASE("a count larger than the remaining bytes allow is malformed") {
  for (int high : {0x7f, 0xff}) {
    CHECK(decode<only_text>(raw({0xff, 0xff, 0xff, high, 'a'})).code() == errc::malformed);
    CHECK(decode<only_numbers>(raw({0xff, 0xff, 0xff, high, 1, 2, 3, 4, 5, 6, 7, 8})).code() == errc::malformed);
    CHECK(decode<only_words>(raw({0xff, 0xff, 0xff, high, 0, 0, 0, 0})).code() == errc::malformed);
  }
  // 2^29 + 1 numbers of 8 bytes are 8 bytes in 32-bit arithmetic.
  CHECK(decode<only_numbers>(raw({1, 0, 0, 0x20, 1, 2, 3, 4, 5, 6, 7, 8})).code() == errc::malformed);
}

TEST_CASE("a list of more than max_elements elements is malformed") {
  only_words most{std::vector<std::string>(max_elements)};
  CHECK(decode<only_words>(encoded(most)));
  most.words.emplace_back();
  CHECK(decode<only_words>(encoded(most)).code() == errc::malformed);
}

TEST_CASE("a body larger than 1 MiB is malformed") {
  only_text m{std::string(max_body_bytes - 4, 'x')};
  CHECK(decode<only_text>(encoded(m)));
  m.text += 'x';
  CHECK(decode<only_text>(encoded(m)).code() == errc::malformed);
}

TEST_CASE("invalid booleans and enumerators are malformed") {
  CHECK(decode<only_flag>(raw({1}))->flag);
  CHECK_FALSE(decode<only_flag>(raw({0}))->flag);
  for (int value : {2, 128, 255}) CHECK(decode<only_flag>(raw({value})).code() == errc::malformed);
  CHECK(decode<only_colour>(raw({1}))->paint == colour::green);
  for (int value : {2, 128, 255}) CHECK(decode<only_colour>(raw({value})).code() == errc::malformed);
  CHECK(decode<only_charge>(raw({1}))->sign == charge::plus);
  for (int value : {2, 127, 128, 255}) CHECK(decode<only_charge>(raw({value})).code() == errc::malformed);
}

TEST_CASE("100,000 random byte strings are decoded or refused, and decoded messages encode to the same bytes") {
  random_stream dice(11, 0);
  const auto good = encoded(sample());
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> bytes;
    if (i % 2 == 0) {
      bytes.resize(dice.below(120));
      for (std::byte& b : bytes) b = static_cast<std::byte>(dice.below(4) == 0 ? dice.below(256) : dice.below(4));
    } else {  // a valid message with a few bytes changed
      bytes = good;
      for (std::uint64_t n = dice.below(4); n != 0; --n)
        bytes[dice.below(bytes.size())] = static_cast<std::byte>(dice.next());
    }
    auto m = decode<everything>(bytes);
    if (!m) {
      REQUIRE(m.code() == errc::malformed);
      continue;
    }
    ++accepted;
    REQUIRE(encoded(*m) == bytes);
  }
  CHECK(accepted > 1000);
  CHECK(accepted < 99'000);
}

TEST_CASE("a message prints its fields by name") {
  everything e;
  e.words = {"a", "b"};
  e.path = {{1, 0.5}};
  e.text = "hi";
  const std::string text = print(e);
  CHECK(text.starts_with(
      "{flag=0, small=0, negative=0, large=0, ratio=0.000000, paint=0, text=hi, numbers=[], words=[a, b]"));
  CHECK(text.find("path=[{x=1, y=0.5") != std::string::npos);
  CHECK(text.ends_with("blobs=[], paints=[]}"));
  CHECK(print(nothing{}) == "{}");
}

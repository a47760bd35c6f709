#include <parley/tuning/bits.hpp>

#include <doctest/doctest.h>

using namespace parley::tuning;

TEST_CASE("bits are counted, set and cleared") {
  bits b(70);
  CHECK(b.count() == 0);
  b.set(0);
  b.set(69);
  CHECK(b.test(69));
  CHECK_FALSE(b.test(68));
  CHECK_FALSE(b.test(1000));
  b.clear(69);
  CHECK(b.count() == 1);
  CHECK(bits(70, bit::set).count() == 70);
  CHECK(bits(128, bit::set).count() == 128);
  CHECK_THROWS_AS(b.set(70), invalid);
}

TEST_CASE("bits convert to words and back unchanged") {
  for (std::size_t size : {0U, 1U, 63U, 64U, 65U, 128U, 4096U}) {
    const bits all(size, bit::set);
    CHECK(bits::from_words(all.words(), size).value() == all);
  }
}

TEST_CASE("words that do not fit the number of bits are refused") {
  CHECK_FALSE(bits::from_words({}, 1));
  CHECK_FALSE(bits::from_words({0, 0}, 64));
  CHECK_FALSE(bits::from_words({8}, 3));
  CHECK(bits::from_words({7}, 3));
}

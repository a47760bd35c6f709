#include <parley/tuning/key.hpp>

#include <doctest/doctest.h>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

TEST_CASE("sizes share a bucket up to the next power of two") {
  CHECK(size_bucket::of(0).largest_bytes() == 0);
  CHECK(size_bucket::of(1).largest_bytes() == 1);
  CHECK(size_bucket::of(2).largest_bytes() == 2);
  CHECK(size_bucket::of(3).largest_bytes() == 4);
  CHECK(size_bucket::of(4).largest_bytes() == 4);
  CHECK(size_bucket::of(16 << 20).largest_bytes() == 16 << 20);
  CHECK(size_bucket::of((16 << 20) + 1).largest_bytes() == 32 << 20);
  CHECK(size_bucket::of((64 << 20) + 12345).largest_bytes() == 128 << 20);
  CHECK(size_bucket::of(0) != size_bucket::of(1));
  CHECK(size_bucket::of(~std::uint64_t{0}).largest_bytes() == std::uint64_t{1} << 63U);
}

TEST_CASE("every bucket contains its bounds, and not their neighbours") {
  std::uint64_t last = 0;
  for (unsigned shift = 0; shift < 63; ++shift) {
    const size_bucket b = size_bucket::of(std::uint64_t{1} << shift);
    CHECK(b.index() == shift + 1);
    CHECK(b.smallest_bytes() == last + 1);
    CHECK(b.contains(b.smallest_bytes()));
    CHECK(b.contains(b.largest_bytes()));
    CHECK_FALSE(b.contains(b.largest_bytes() + 1));
    CHECK_FALSE(b.contains(b.smallest_bytes() - 1));
    last = b.largest_bytes();
  }
}

TEST_CASE("a key is written as the two fields of a results line") {
  const tuning_key key{"activations", size_bucket::of(16 << 20), "bf16"};
  CHECK(parameters_text(key) == "16MiB_bf16");
  CHECK(to_string(key) == "activations 16MiB_bf16");
  CHECK(parse_key("activations", "16MiB_bf16").value() == key);
  CHECK(parameters_text({"a", size_bucket::of(0), "f32"}) == "0B_f32");
  CHECK(parameters_text({"a", size_bucket::of(5), ""}) == "8B");
}

TEST_CASE("every key reads back as itself") {
  for (unsigned shift = 0; shift < 64; ++shift) {
    for (const char* dtype : {"", "bf16", "my_type", "f8_e4m3"}) {
      const tuning_key key{"edge 0-1", size_bucket::of(std::uint64_t{1} << shift), dtype};
      CHECK(parse_key(key.op, parameters_text(key)).value() == key);
    }
  }
}

TEST_CASE("text that is no key is refused") {
  CHECK_FALSE(parse_key("activations", ""));
  CHECK_FALSE(parse_key("activations", "bf16"));
  CHECK_FALSE(parse_key("activations", "3MiB_bf16"));
  CHECK_FALSE(parse_key("activations", "16MiB_"));
  CHECK_FALSE(parse_key("", "16MiB"));
  CHECK_FALSE(parse_key("Validator", "16MiB"));
  CHECK_FALSE(parse_key("a,b", "16MiB"));
  CHECK_FALSE(parse_key(" a", "16MiB"));
  CHECK_FALSE(parse_key("a", "16MiB_a,b"));
  CHECK_FALSE(parse_key("a", "16MiB_a\nb"));
}

TEST_CASE("keys are ordered by op, then size, then type") {
  const tuning_key a{"a", size_bucket::of(1024), "bf16"}, b{"a", size_bucket::of(1024), "f32"};
  const tuning_key c{"a", size_bucket::of(2048), "bf16"}, d{"b", size_bucket::of(0), ""};
  CHECK(a < b);
  CHECK(b < c);
  CHECK(c < d);
}

TEST_CASE("sizes are written in the largest unit that leaves no remainder") {
  CHECK(byte_size_text(0) == "0B");
  CHECK(byte_size_text(12345) == "12345B");
  CHECK(byte_size_text(1024) == "1KiB");
  CHECK(byte_size_text(262144) == "256KiB");
  CHECK(byte_size_text((1 << 20) + 1024) == "1025KiB");
  CHECK(byte_size_text(std::uint64_t{1} << 63U) == "8EiB");
}

TEST_CASE("sizes are read with and without a unit") {
  CHECK(parse_byte_size("0").value() == 0);
  CHECK(parse_byte_size("4096").value() == 4096);
  CHECK(parse_byte_size("4096B").value() == 4096);
  CHECK(parse_byte_size("256KiB").value() == 262144);
  CHECK(parse_byte_size("256 KiB").value() == 262144);
  CHECK(parse_byte_size("15EiB").value() == std::uint64_t{15} << 60U);
  for (const char* text :
       {"", "KiB", "-1", "1.5MiB", "1 ", "1KB", "1kib", "16EiB", "18446744073709551616", "1  MiB", "1MiBx"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_byte_size(text));
  }
}

TEST_CASE("a size that is written reads back as itself") {
  testing::generator random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t bytes = random.next() >> random.below(64) << random.below(20);
    CHECK(parse_byte_size(byte_size_text(bytes)).value() == bytes);
  }
}

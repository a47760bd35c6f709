#include <parley/tuning/hash.hpp>

#include <doctest/doctest.h>

using parley::tuning::stable_hash;

TEST_CASE("a hash is the same on every machine") {
  CHECK(stable_hash{}.digest() == stable_hash{}.digest());
  CHECK(stable_hash{}.text("direct").number(1).digest() == 0x184679a45e320f58ULL);
}

TEST_CASE("texts are hashed with their boundaries") {
  CHECK(stable_hash{}.text("ab").text("c").digest() != stable_hash{}.text("a").text("bc").digest());
  CHECK(stable_hash{}.text("").text("a").digest() != stable_hash{}.text("a").text("").digest());
}

TEST_CASE("neighbouring numbers hash to digests that differ in many bits") {
  const std::uint64_t difference = stable_hash{}.number(1).digest() ^ stable_hash {}.number(2).digest();
  CHECK(__builtin_popcountll(difference) > 16);
}

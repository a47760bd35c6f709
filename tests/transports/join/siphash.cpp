#include <parley/error.hpp>
#include <parley/transports/join/siphash.hpp>

#include <doctest/doctest.h>

#include <vector>

using parley::transports::siphash;

namespace {

std::vector<std::byte> counting(std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

siphash reference() {
  const auto key = counting(16);
  return siphash(std::span<const std::byte, 16>(key.data(), 16));
}

}  // namespace

TEST_CASE("SipHash gives the tags of its authors' paper and reference code") {
  siphash keyed = reference();
  CHECK(keyed.tag({}) == 0x726fdb47dd0e0e31U);
  CHECK(keyed.tag(counting(1)) == 0x74f839c593dc67fdU);
  CHECK(keyed.tag(counting(8)) == 0x93f5f5799a932462U);
  CHECK(keyed.tag(counting(15)) == 0xa129ca6149be45e5U);
  CHECK(keyed.tag(counting(63)) == 0x958a324ceb064572U);
}

TEST_CASE("a tag does not depend on how its input is split, nor on earlier tags") {
  siphash keyed = reference();
  const auto all = counting(72);
  const std::uint64_t whole = keyed.tag(all);
  for (std::size_t cut = 0; cut <= all.size(); ++cut)
    CHECK(keyed.tag(std::span(all).first(cut), std::span(all).subspan(cut)) == whole);
}

TEST_CASE("a changed bit in the frame, the tag or the key is detected") {
  siphash keyed = reference();
  auto frame = counting(72);
  const std::uint64_t tag = keyed.tag(frame);
  CHECK(keyed.verify(tag, frame));
  for (unsigned bit = 0; bit < 64; ++bit) CHECK_FALSE(keyed.verify(tag ^ (std::uint64_t{1} << bit), frame));
  for (std::byte& each : frame) {
    each ^= std::byte{4};
    CHECK_FALSE(keyed.verify(tag, frame));
    each ^= std::byte{4};
  }
  auto other_key = counting(16);
  other_key[15] ^= std::byte{1};
  siphash other{std::span<const std::byte, 16>(other_key.data(), 16)};
  CHECK_FALSE(other.verify(tag, frame));
}

TEST_CASE("a keyed hash can be moved") {
  siphash first = reference();
  siphash second = std::move(first);
  CHECK(second.tag(counting(15)) == 0xa129ca6149be45e5U);
}

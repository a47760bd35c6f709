#include <parley/actors/declaration.hpp>
#include <parley/actors/stamp.hpp>

#include <doctest/doctest.h>

#include <array>
#include <vector>

using namespace parley::actors;
using parley::runtime::errc;

namespace {

stamp sample() {
  stamp s;
  s.op = 0x1122334455667788U;
  s.generation = 9;
  s.digest = 77;
  s.total_bytes = 1000;
  s.offset = 400;
  s.invocation = 12;
  s.tag = 3;
  s.source = 2;
  s.flags = stamp_flags::timed | stamp_flags::flush;
  return s;
}

}  // namespace

TEST_CASE("a stamp is read back as it was written, from exactly 64 bytes") {
  const stamp s = sample();
  const auto bytes = bytes_of(s);
  REQUIRE(bytes.size() == 64);
  const auto back = read_stamp(bytes);
  REQUIRE(back);
  CHECK(back->op == s.op);
  CHECK(back->digest == 77);
  CHECK(back->offset == 400);
  CHECK(back->invocation == 12);
  CHECK(has(back->flags, stamp_flags::timed));
  CHECK(has(back->flags, stamp_flags::flush));
  CHECK_FALSE(has(back->flags, stamp_flags::poison));
}

TEST_CASE("a stamp of a wrong length, with unknown bits or outside its own message is malformed") {
  const stamp s = sample();
  CHECK(read_stamp(bytes_of(s).first(63)).code() == errc::malformed);
  CHECK(read_stamp({}).code() == errc::malformed);
  std::vector<std::byte> longer(65);
  CHECK(read_stamp(longer).code() == errc::malformed);
  stamp flagged = s;
  flagged.flags = static_cast<stamp_flags>(256);
  CHECK(read_stamp(bytes_of(flagged)).code() == errc::malformed);
  stamp outside = s;
  outside.offset = outside.total_bytes + 1;
  CHECK(read_stamp(bytes_of(outside)).code() == errc::malformed);
}

TEST_CASE("a header with any one byte set is either malformed or a stamp that lies inside its message") {
  std::array<std::byte, 64> bytes{};
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int value : {1, 127, 128, 255}) {
      bytes[at] = static_cast<std::byte>(value);
      const auto s = read_stamp(bytes);
      if (s) CHECK(s->offset <= s->total_bytes);
      bytes[at] = std::byte{0};
    }
  }
}

TEST_CASE("a full invocation index is restored from its low 32 bits on both sides of a wrap") {
  constexpr std::uint64_t wrap = std::uint64_t{1} << 32U;
  for (const std::uint64_t index :
       {std::uint64_t{0}, std::uint64_t{63}, wrap - 1, wrap, wrap + 1, 7 * wrap - 1, 7 * wrap}) {
    for (const std::int64_t distance : {-64, -1, 0, 1, 64}) {
      const auto near = static_cast<std::uint64_t>(static_cast<std::int64_t>(index) + distance);
      if (static_cast<std::int64_t>(index) + distance < 0) continue;
      CHECK(unwrap(static_cast<std::uint32_t>(index), near) == index);
    }
  }
}

TEST_CASE("an op's id depends on its name and ranks only, and its hash also on dtype and default config") {
  auto a = declare_edge("activations", 0, 1, "bf16");
  a.default_config = "direct";
  auto b = a;
  CHECK(a.id() == b.id());
  CHECK(a.hash() == b.hash());
  b.dtype = "fp32";
  CHECK(a.id() == b.id());
  CHECK(a.hash() != b.hash());
  b = a;
  b.default_digest = 4;
  CHECK(a.id() == b.id());
  CHECK(a.hash() != b.hash());
  CHECK(declare_edge("activations", 1, 0, "bf16").id() != a.id());
  CHECK(declare_edge("gradients", 0, 1, "bf16").id() != a.id());
  CHECK(a.title() == "activations 0->1");
  // One op's number has room for four actors.
  CHECK((a.id() & 3U) == 0);
  CHECK(number_of(a.id(), part::data_receiver) == a.id() + 3);
}

TEST_CASE("the first generation changes when a participant has another incarnation, and not when another rank has") {
  const auto op = declare_edge("activations", 0, 2, "");
  const std::vector<std::uint64_t> before{1, 2, 3, 4};
  const std::vector<std::uint64_t> stranger{1, 9, 3, 9};
  const std::vector<std::uint64_t> restarted{1, 2, 9, 4};
  CHECK(first_generation(op, before) == first_generation(op, stranger));
  CHECK(first_generation(op, before) != first_generation(op, restarted));
}

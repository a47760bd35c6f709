#include <parley/runtime/wire/frame.hpp>

#include <parley/runtime/wire/wire.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

using namespace parley::runtime;

namespace {

// Not cryptography: the tag changes with any byte of the header, the body or the key.
std::uint64_t toy_tag(void* key, std::span<const std::byte> header, std::span<const std::byte> body) noexcept {
  std::uint64_t h = *static_cast<const std::uint64_t*>(key);
  for (std::byte b : header) h = h * 0x100000001b3U + static_cast<std::uint64_t>(b);
  for (std::byte b : body) h = h * 0x100000001b3U + static_cast<std::uint64_t>(b) + 7;
  return h;
}

struct letter {
  frame_header header;
  std::vector<std::byte> body = std::vector<std::byte>(5, std::byte{9});
  std::uint64_t key = 5;
  frame_seal seal{&toy_tag, &key};
  frame_expectation expected{.destination = 2, .world_size = 4};

  letter() {
    header.type = 3;
    header.body_bytes = 5;
    header.source = 1;
    header.destination = 2;
    header.accepted = 6;
    header.session = 77;
    header.actor = 8;
    header.generation = 9;
    header.sequence = 10;
  }
  result<frame_header> arrives() const {
    const frame_bytes bytes = encode_frame(header, body, seal);
    return decode_frame(bytes, body, expected, seal);
  }
};

}  // namespace

TEST_CASE("a frame's header decodes to the values that were encoded") {
  const letter l;
  auto h = l.arrives();
  REQUIRE(h);
  CHECK(h->type == 3);
  CHECK(h->body_bytes == 5);
  CHECK(h->source == 1);
  CHECK(h->destination == 2);
  CHECK(h->accepted == 6);
  CHECK(h->session == 77);
  CHECK(h->actor == 8);
  CHECK(h->generation == 9);
  CHECK(h->sequence == 10);
  CHECK(h->tag != 0);
}

TEST_CASE("the header begins with the magic number and ends with the tag") {
  const letter l;
  const frame_bytes bytes = encode_frame(l.header, l.body, l.seal);
  CHECK(std::memcmp(bytes.data(), "PRLY", 4) == 0);
  std::uint64_t tag = 0;
  std::memcpy(&tag, bytes.data() + 56, 8);
  CHECK(tag == toy_tag(l.seal.context, std::span(bytes).first(56), l.body));
}

TEST_CASE("a header of the wrong size is malformed") {
  const letter l;
  const frame_bytes bytes = encode_frame(l.header, l.body, l.seal);
  for (std::size_t size : {std::size_t{0}, std::size_t{63}})
    CHECK(decode_frame(std::span(bytes).first(size), l.body, l.expected, l.seal).code() == errc::malformed);
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back(std::byte{0});
  CHECK(decode_frame(longer, l.body, l.expected, l.seal).code() == errc::malformed);
}

TEST_CASE("a frame with another magic number is malformed") {
  letter l;
  l.header.magic ^= 1U;
  CHECK(l.arrives().code() == errc::malformed);
}

TEST_CASE("a frame of another protocol version is refused with its rank and its version") {
  letter l;
  l.header.version = 9;
  auto h = l.arrives();
  CHECK(h.code() == errc::protocol_version);
  CHECK(h.reason().what().find("rank 1 speaks control protocol 9") != std::string::npos);
}

TEST_CASE("a frame that was changed anywhere, or sealed with another key, is refused") {
  letter l;
  const frame_bytes good = encode_frame(l.header, l.body, l.seal);
  for (std::size_t i = 0; i < good.size(); ++i) {
    CAPTURE(i);
    frame_bytes bad = good;
    bad[i] ^= std::byte{0x10};
    const errc expected = i < 4 ? errc::malformed : i < 6 ? errc::protocol_version : errc::unauthenticated;
    CHECK(decode_frame(bad, l.body, l.expected, l.seal).code() == expected);
  }
  auto body = l.body;
  body[2] ^= std::byte{1};
  CHECK(decode_frame(good, body, l.expected, l.seal).code() == errc::unauthenticated);
  std::uint64_t another_key = 3;
  const frame_seal other{&toy_tag, &another_key};
  CHECK(decode_frame(good, l.body, l.expected, other).code() == errc::unauthenticated);
}

TEST_CASE("a frame whose body has another length than its header says is malformed") {
  letter l;
  l.header.body_bytes = 4;
  CHECK(l.arrives().code() == errc::malformed);
}

TEST_CASE("a frame with a body over the limit is malformed") {
  letter l;
  l.body.resize(max_body_bytes);
  l.header.body_bytes = max_body_bytes;
  CHECK(l.arrives());
  l.body.resize(max_body_bytes + 1);
  l.header.body_bytes = max_body_bytes + 1;
  CHECK(l.arrives().code() == errc::malformed);
}

TEST_CASE("a frame for another rank, or from outside the world, is malformed") {
  letter l;
  SUBCASE("destination") { l.header.destination = 3; }
  SUBCASE("source") { l.header.source = 4; }
  CHECK(l.arrives().code() == errc::malformed);
}

TEST_CASE("without a seal the tag must be zero") {
  letter l;
  l.seal.tag = nullptr;
  CHECK(l.arrives());
  frame_bytes bytes = encode_frame(l.header, l.body, l.seal);
  bytes[63] = std::byte{1};
  CHECK(decode_frame(bytes, l.body, l.expected, l.seal).code() == errc::unauthenticated);
}

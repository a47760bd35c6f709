#include <parley/transports/join/rendezvous_wire.hpp>

#include <doctest/doctest.h>

#include <random>

using namespace parley::transports;

namespace {

member sample(parley::runtime::rank_id rank) {
  member entry;
  entry.rank = rank;
  entry.incarnation = 0x0123456789abcdefULL + rank;
  entry.host = 99;
  entry.pid = 1234;
  entry.pids_of = 4026531836;
  entry.affinity = {0xff, 0x1};
  entry.address.assign(300, std::byte{0x5a});
  entry.version = "0.1.0";
  entry.kind = "a processor";
  return entry;
}

}  // namespace

TEST_CASE("HMAC-SHA256 gives the values of RFC 4231, including with an empty key") {
  const std::string key(20, '\x0b'), data = "Hi There";
  const auto tag = wire::hmac(std::as_bytes(std::span(key)), std::as_bytes(std::span(data)));
  CHECK(tag[0] == std::byte{0xb0});
  CHECK(tag[1] == std::byte{0x34});
  CHECK(tag[31] == std::byte{0xf7});
  const auto empty = wire::hmac({}, {});
  CHECK(empty[0] == std::byte{0xb6});
  CHECK(empty[31] == std::byte{0xad});
}

TEST_CASE("a roster decodes to its encoded entries, and every truncated or longer one is refused") {
  const std::vector<member> members{sample(0), sample(1), sample(2)};
  const auto encoded = wire::encode_roster(5, members);
  const auto decoded = wire::decode_roster(encoded, 5, 3);
  REQUIRE(decoded);
  CHECK(*decoded == members);
  for (std::size_t cut = 0; cut < encoded.size(); ++cut) {
    CHECK_FALSE(wire::decode_roster(std::span(encoded).first(cut), 5, 3));
  }
  auto longer = encoded;
  longer.push_back(std::byte{0});
  CHECK_FALSE(wire::decode_roster(longer, 5, 3));
  CHECK_FALSE(wire::decode_roster(encoded, 6, 3));
  CHECK_FALSE(wire::decode_roster(encoded, 5, 4));
  const std::vector<member> disordered{sample(1), sample(0), sample(2)};
  CHECK_FALSE(wire::decode_roster(wire::encode_roster(5, disordered), 5, 3));
}

TEST_CASE("member entries whose lengths exceed their limits are refused") {
  member large = sample(0);
  large.address.resize(member::max_address_bytes + 1);
  const auto too_long = wire::encode_member(large);
  wire::scanner address(too_long);
  CHECK_FALSE(wire::decode_member(address));
  large = sample(0);
  large.affinity.resize(member::max_affinity_words + 1);
  const auto too_wide = wire::encode_member(large);
  wire::scanner affinity(too_wide);
  CHECK_FALSE(wire::decode_member(affinity));
}

TEST_CASE("a randomly changed entry never decodes to values out of range") {
  std::mt19937 random(7);
  const auto valid = wire::encode_member(sample(1));
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = valid;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    wire::scanner in(bytes);
    const auto entry = wire::decode_member(in);
    if (!entry) continue;
    CHECK(entry->address.size() <= member::max_address_bytes);
    CHECK(entry->affinity.size() <= member::max_affinity_words);
    for (const char c : entry->version) CHECK((c >= 0x20 && c < 0x7f));
  }
}

TEST_CASE("a tag changes with direction, sequence, type, payload, key, greeting and challenge") {
  const auto secret = job_key::generate(), other = job_key::generate();
  const wire::bytes hello{std::byte{1}}, challenge{std::byte{2}}, payload{std::byte{3}};
  const wire::connection_key key(secret.secret(), hello, challenge);
  const auto digest = wire::sha256(payload);
  const auto tag = key.tag(wire::direction::to_host, 0, wire::type::member, digest);
  CHECK(tag == key.tag(wire::direction::to_host, 0, wire::type::member, digest));
  CHECK(tag != key.tag(wire::direction::to_member, 0, wire::type::member, digest));
  CHECK(tag != key.tag(wire::direction::to_host, 1, wire::type::member, digest));
  CHECK(tag != key.tag(wire::direction::to_host, 0, wire::type::proof, digest));
  CHECK(tag != key.tag(wire::direction::to_host, 0, wire::type::member, wire::sha256(hello)));
  const wire::connection_key foreign(other.secret(), hello, challenge), later(secret.secret(), hello, payload),
      else_where(secret.secret(), payload, challenge);
  for (const auto* changed : {&foreign, &later, &else_where}) {
    CHECK(tag != changed->tag(wire::direction::to_host, 0, wire::type::member, digest));
  }
}

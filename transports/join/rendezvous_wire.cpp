#include <parley/transports/join/rendezvous_wire.hpp>

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>

namespace parley::transports::wire {

namespace {

const unsigned char* raw_of(std::span<const std::byte> data) {
  static const unsigned char nothing = 0;  // to OpenSSL a null key means "the key of the previous call"
  return data.empty() ? &nothing : reinterpret_cast<const unsigned char*>(data.data());
}

}  // namespace

digest sha256(std::span<const std::byte> data) {
  digest out;
  SHA256(raw_of(data), data.size(), reinterpret_cast<unsigned char*>(out.data()));
  return out;
}

digest hmac(std::span<const std::byte> key, std::span<const std::byte> data) {
  digest out;
  if (HMAC(EVP_sha256(), raw_of(key), static_cast<int>(key.size()), raw_of(data), data.size(),
           reinterpret_cast<unsigned char*>(out.data()), nullptr) == nullptr) {
    runtime::raise({runtime::errc::unavailable, "OpenSSL refuses HMAC-SHA256, which parley needs to recognise ranks"});
  }
  return out;
}

void randomise(std::span<std::byte> into) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(into.data()), static_cast<int>(into.size())) != 1) {
    runtime::raise({runtime::errc::unavailable, "the system's random source gives no bytes"});
  }
}

std::span<const std::byte> scanner::raw(std::size_t count) {
  if (!good_ || count > rest_.size()) {
    good_ = false;
    rest_ = {};
    return {};
  }
  const auto field = rest_.first(count);
  rest_ = rest_.subspan(count);
  return field;
}

std::string scanner::text(std::size_t count) {
  const auto field = raw(count);
  std::string out(reinterpret_cast<const char*>(field.data()), field.size());
  // Text from peers ends up in messages for people. Only printable ASCII is kept, so that it cannot control a terminal.
  std::replace_if(out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c - 0x20) >= 0x5f; }, '?');
  return out;
}

bytes hello::encode() const {
  return writer()
      .number(magic)
      .number(version)
      .number(job)
      .number(rank)
      .number(world_size)
      .number(incarnation)
      .raw(nonce)
      .take();
}

std::optional<hello> hello::decode(std::span<const std::byte> data) {
  scanner in(data);
  hello out;
  const auto found = in.number<std::uint64_t>();
  out.version = in.number<std::uint16_t>();
  if (!in.good() || found != magic) return std::nullopt;
  if (out.version != protocol_version) return out;  // other versions may order the fields differently
  out.job = in.number<std::uint64_t>();
  out.rank = in.number<runtime::rank_id>();
  out.world_size = in.number<runtime::rank_id>();
  out.incarnation = in.number<std::uint64_t>();
  const auto nonce = in.raw(out.nonce.size());
  std::copy(nonce.begin(), nonce.end(), out.nonce.begin());
  if (!in.complete()) return std::nullopt;
  return out;
}

bytes challenge::encode() const {
  return writer().number(version).number(incarnation).number(left_ms).raw(nonce).take();
}

std::optional<challenge> challenge::decode(std::span<const std::byte> data) {
  scanner in(data);
  challenge out;
  out.version = in.number<std::uint16_t>();
  out.incarnation = in.number<std::uint64_t>();
  out.left_ms = in.number<std::uint32_t>();
  const auto nonce = in.raw(out.nonce.size());
  std::copy(nonce.begin(), nonce.end(), out.nonce.begin());
  if (!in.complete()) return std::nullopt;
  return out;
}

bytes encode_member(const member& entry) {
  writer out;
  out.number(entry.rank).number(entry.incarnation).number(entry.host).number(entry.pid).number(entry.pids_of);
  out.number(static_cast<std::uint16_t>(entry.affinity.size()));
  for (const std::uint64_t word : entry.affinity) out.number(word);
  out.number(static_cast<std::uint16_t>(entry.address.size())).raw(entry.address);
  out.number(static_cast<std::uint8_t>(entry.version.size())).text(entry.version);
  out.number(static_cast<std::uint8_t>(entry.kind.size())).text(entry.kind);
  return out.take();
}

std::optional<member> decode_member(scanner& in) {
  member out;
  out.rank = in.number<runtime::rank_id>();
  out.incarnation = in.number<std::uint64_t>();
  out.host = in.number<std::uint64_t>();
  out.pid = in.number<std::uint32_t>();
  out.pids_of = in.number<std::uint64_t>();
  const auto words = in.number<std::uint16_t>();
  if (words > member::max_affinity_words) return std::nullopt;
  for (std::uint16_t i = 0; i < words && in.good(); ++i) out.affinity.push_back(in.number<std::uint64_t>());
  const auto address_size = in.number<std::uint16_t>();
  if (address_size > member::max_address_bytes) return std::nullopt;
  const auto address = in.raw(address_size);
  out.address.assign(address.begin(), address.end());
  const auto version_size = in.number<std::uint8_t>();
  if (version_size > member::max_version_bytes) return std::nullopt;
  out.version = in.text(version_size);
  const auto kind_size = in.number<std::uint8_t>();
  if (kind_size > member::max_kind_bytes) return std::nullopt;
  out.kind = in.text(kind_size);
  if (!in.good() || out.incarnation == 0) return std::nullopt;
  return out;
}

bytes encode_roster(std::uint64_t job, std::span<const member> members) {
  writer out;
  out.number(protocol_version).number(job).number(static_cast<std::uint32_t>(members.size()));
  for (const member& entry : members) out.raw(encode_member(entry));
  return out.take();
}

std::optional<std::vector<member>> decode_roster(std::span<const std::byte> data, std::uint64_t job,
                                                 runtime::rank_id world_size) {
  scanner in(data);
  const auto version = in.number<std::uint16_t>();
  const auto found_job = in.number<std::uint64_t>();
  const auto count = in.number<std::uint32_t>();
  if (!in.good() || version != protocol_version || found_job != job || count != world_size) return std::nullopt;
  std::vector<member> members;
  members.reserve(world_size);
  for (runtime::rank_id rank = 0; rank < world_size; ++rank) {
    auto entry = decode_member(in);
    if (!entry || entry->rank != rank) return std::nullopt;
    members.push_back(std::move(*entry));
  }
  if (!in.complete()) return std::nullopt;
  return members;
}

connection_key::connection_key(std::span<const std::byte> job_secret, std::span<const std::byte> hello_payload,
                               std::span<const std::byte> challenge_payload)
    : key_(hmac(job_secret, writer()
                                .text("parley rendezvous connection")
                                .number(protocol_version)
                                .raw(sha256(hello_payload))
                                .raw(sha256(challenge_payload))
                                .take())) {}

connection_key::~connection_key() { OPENSSL_cleanse(key_.data(), key_.size()); }

digest connection_key::tag(direction to, std::uint64_t sequence, type kind, const digest& payload_digest) const {
  return hmac(key_, writer()
                        .number(static_cast<std::uint8_t>(to))
                        .number(sequence)
                        .number(static_cast<std::uint8_t>(kind))
                        .raw(payload_digest)
                        .take());
}

std::array<std::byte, 16> session_key(std::span<const std::byte> job_secret, std::uint64_t job, const digest& roster) {
  const auto whole = hmac(job_secret, writer().text("parley session").number(job).raw(roster).take());
  std::array<std::byte, 16> key{};
  std::copy_n(whole.begin(), key.size(), key.begin());
  return key;
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bytes frame_head(type kind, std::size_t payload_bytes) {
  return writer().number(static_cast<std::uint32_t>(payload_bytes)).number(static_cast<std::uint8_t>(kind)).take();
}

bytes frame(type kind, std::span<const std::byte> payload) {
  return writer().raw(frame_head(kind, payload.size())).raw(payload).take();
}

bytes frame(type kind, std::span<const std::byte> payload, const connection_key& key, direction to,
            std::uint64_t sequence) {
  return writer()
      .raw(frame_head(kind, payload.size()))
      .raw(payload)
      .raw(key.tag(to, sequence, kind, sha256(payload)))
      .take();
}

}  // namespace parley::transports::wire

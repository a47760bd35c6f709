#pragma once
/// The bytes of the rendezvous: frames, tags and the entries they carry. Internal to transports and its tests.
///
///     frame = payload length (4, little-endian) | type (1) | payload | tag (32; not after `hello` and `reject`)
///
///     client                                 rank 0
///     hello {magic, version, job, rank,
///            world, incarnation, nonce}  ->
///                                        <-  challenge {version, incarnation, milliseconds left, nonce} + tag
///     proof {} + tag                     ->  now authenticated
///     member + tag                       ->
///                                        <-  roster + tag, or failed {ranks that never came} + tag
///                                        <-  lost {rank, why} + tag, whenever one dies
///     lost {rank, incarnation, why}+tag  ->  whenever one dies or stops on the client's own host
///     bye {rank it began with, why} + tag<-> an end of its own accord: without a reason a normal one; with one, rank 0
///                                            closes the connection when all others have been told
///                                        <-  left {rank, rank it began with, why} + tag, whenever a rank has said bye
///                                        <-  restarted {member} + tag, whenever a rank has come back as a new process
///
/// That new process greets, proves and presents itself like the first one, and is answered
///
///                                        <-  rejoined {digest of the first roster, roster} + tag
///                                        <-  lost, left + tag, for each rank that is gone by then
///
/// A tag is HMAC-SHA256 with the connection's key, which is the HMAC of both sides' first payloads under the job key, so
/// that it is fresh on every connection; it covers direction, sequence, type and payload. Thus nothing can be replayed,
/// reordered or reflected, and `challenge` and `proof` are the mutual challenge.
#include <parley/error.hpp>
#include <parley/transports/join/job_key.hpp>
#include <parley/transports/join/joining.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::transports::wire {

using bytes = std::vector<std::byte>;
using digest = std::array<std::byte, 32>;

inline constexpr std::uint16_t protocol_version = 8;
inline constexpr std::size_t head_bytes = 5;
inline constexpr std::size_t tag_bytes = 32;
/// All that a client may send before it is authenticated.
inline constexpr std::size_t max_unauthenticated_bytes = 256;
inline constexpr std::size_t max_member_bytes = 64 + member::max_affinity_words * 8 + member::max_address_bytes +
                                                member::max_version_bytes + member::max_kind_bytes;
inline constexpr std::size_t max_notice_bytes = 1024;

enum class type : std::uint8_t {
  hello = 1,
  challenge,
  proof,
  member,
  roster,
  failed,
  lost,
  bye,
  reject,
  left,
  restarted,
  rejoined
};
enum class refusal : std::uint8_t {
  version = 1,
  job,
  world_size,
  rank,
  duplicate,
  not_newer,  ///< than the process that is or was in its place; `detail` says how often that one was restarted
  too_often,  ///< `detail` says how often is allowed
  elsewhere,  ///< not on the host, or not on the kind of machine, of the one before it
};
enum class direction : std::uint8_t { to_host, to_member };

digest sha256(std::span<const std::byte> data);
digest hmac(std::span<const std::byte> key, std::span<const std::byte> data);
/// Fills with random bytes; throws `failure` where there are none.
void randomise(std::span<std::byte> into);

/// Appends fields, little-endian.
class writer {
 public:
  template <class Integer>
  writer& number(Integer value) {
    for (std::size_t i = 0; i < sizeof(Integer); ++i) {
      out_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
    return *this;
  }
  writer& raw(std::span<const std::byte> data) {
    out_.insert(out_.end(), data.begin(), data.end());
    return *this;
  }
  writer& text(const std::string& value) { return raw(std::as_bytes(std::span<const char>(value))); }
  bytes take() { return std::move(out_); }

 private:
  bytes out_;
};

/// Takes fields off; once something is missing everything reads as zero and `complete` is false.
class scanner {
 public:
  explicit scanner(std::span<const std::byte> data) : rest_(data) {}
  template <class Integer>
  Integer number() {
    std::uint64_t value = 0;
    const auto field = raw(sizeof(Integer));
    for (std::size_t i = 0; i < field.size(); ++i) value |= static_cast<std::uint64_t>(field[i]) << (8 * i);
    return static_cast<Integer>(value);
  }
  std::span<const std::byte> raw(std::size_t count);
  std::string text(std::size_t count);
  std::size_t left() const { return rest_.size(); }
  /// Everything was there and nothing is left.
  bool complete() const { return good_ && rest_.empty(); }
  bool good() const { return good_; }

 private:
  std::span<const std::byte> rest_;
  bool good_ = true;
};

struct hello {
  static constexpr std::uint64_t magic = 0x31767a7965'6c7261ULL;  // "arleyzv1"
  std::uint16_t version = protocol_version;
  std::uint64_t job = 0;
  runtime::rank_id rank = 0;
  runtime::rank_id world_size = 0;
  std::uint64_t incarnation = 0;
  digest nonce{};

  bytes encode() const;
  /// Nothing when these are not the bytes of a hello. A foreign version is returned with only that field filled.
  static std::optional<hello> decode(std::span<const std::byte> data);
};

struct challenge {
  std::uint16_t version = protocol_version;
  std::uint64_t incarnation = 0;
  std::uint32_t left_ms = 0;
  digest nonce{};

  bytes encode() const;
  static std::optional<challenge> decode(std::span<const std::byte> data);
};

bytes encode_member(const member& entry);
/// Reads one entry and leaves the scanner after it.
std::optional<member> decode_member(scanner& in);
bytes encode_roster(std::uint64_t job, std::span<const member> members);
std::optional<std::vector<member>> decode_roster(std::span<const std::byte> data, std::uint64_t job,
                                                 runtime::rank_id world_size);

/// The key of one connection and the tags made with it. Copies of the secret live as long as the connection.
class connection_key {
 public:
  connection_key() = default;
  connection_key(std::span<const std::byte> job_secret, std::span<const std::byte> hello_payload,
                 std::span<const std::byte> challenge_payload);
  connection_key(const connection_key&) = default;
  connection_key& operator=(const connection_key&) = default;
  ~connection_key();

  digest tag(direction to, std::uint64_t sequence, type kind, const digest& payload_digest) const;

 private:
  digest key_{};
};

/// The key of the control frames of one session: it changes with every set of incarnations.
std::array<std::byte, 16> session_key(std::span<const std::byte> job_secret, std::uint64_t job, const digest& roster);

/// In constant time.
bool equal(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

bytes frame_head(type kind, std::size_t payload_bytes);
/// A whole frame without a tag.
bytes frame(type kind, std::span<const std::byte> payload);
/// A whole frame with one.
bytes frame(type kind, std::span<const std::byte> payload, const connection_key& key, direction to,
            std::uint64_t sequence);

}  // namespace parley::transports::wire

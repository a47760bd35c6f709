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
///     bye {rank it began with, why} + tag<-> the sender leaves: without a reason normally; with one, rank 0 closes
///                                            the connection when all others have been told
///                                        <-  left {rank, rank it began with, why} + tag, whenever a rank has said bye
///                                        <-  restarted {member} + tag, whenever a rank has come back as a new process
///
/// The new process sends `hello`, `proof` and `member` like the first one, and rank 0 answers
///
///                                        <-  rejoined {digest of the first roster, roster} + tag
///                                        <-  lost, left + tag, for each rank that is gone by then
///
/// A tag is the HMAC-SHA256 of direction, sequence number, type and payload under the connection's key. That key is the HMAC
/// of both sides' first payloads under the job key, so each connection has a fresh one. Thus frames cannot be replayed,
/// reordered or reflected, and by the tags of `challenge` and `proof` the two sides authenticate each other.
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
/// The most that a client may send before it is authenticated.
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
  not_newer,  ///< than the process that is or was in its place; `detail`: that process's restart count
  too_often,  ///< `detail`: how many restarts are allowed
  elsewhere,  ///< on another host or kind of machine than the process before it
};
enum class direction : std::uint8_t { to_host, to_member };

digest sha256(std::span<const std::byte> data);
digest hmac(std::span<const std::byte> key, std::span<const std::byte> data);
/// Fills `into` with random bytes; throws `failure` (`unavailable`) if the system gives none.
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

/// Reads fields in order. Once a field is missing, it and all later fields read as zero and `complete` is false.
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
  /// True if all fields were there and nothing is left.
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
  /// Nothing if the bytes are not a hello. For another protocol version, only `version` is filled in.
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

/// The key of one connection, and the tags made with it. Each copy is overwritten when it is destroyed.
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

/// The key for the control frames of one session. It differs for each set of incarnations.
std::array<std::byte, 16> session_key(std::span<const std::byte> job_secret, std::uint64_t job, const digest& roster);

/// Compares in constant time.
bool equal(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

bytes frame_head(type kind, std::size_t payload_bytes);
/// A complete frame without a tag.
bytes frame(type kind, std::span<const std::byte> payload);
/// A complete frame with a tag.
bytes frame(type kind, std::span<const std::byte> payload, const connection_key& key, direction to,
            std::uint64_t sequence);

}  // namespace parley::transports::wire

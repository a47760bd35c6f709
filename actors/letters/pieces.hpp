#pragma once
/// Control messages that are too large for one body, for example a list of 4,096 configs. They are sent as numbered pieces, each
/// acknowledged and repeated like any other message. The receiver puts the pieces together.
///
///     for (const piece& p : in_pieces(type, id, body)) …                       // at the sender: outbox.hpp
///     if (auto whole = collector.add(source, std::move(p))) …                  // at the receiver: inbox.hpp
///
/// Bounds: a whole message has at most 32 MiB, and the receiver assembles one message per source at a time. A newer message replaces an
/// unfinished one. Pieces that contradict each other are refused.
#include <parley/actors/agreement/messages.hpp>
#include <parley/identifiers.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace parley::actors {

struct piece {
  static constexpr std::uint16_t message_type = 29;
  std::uint32_t number = 0;
  std::uint16_t whole_type = 0;
  std::uint32_t whole = 0;  ///< number of the whole message, unique for its sender; later messages have higher numbers
  std::uint32_t index = 0;
  std::uint32_t count = 0;
  std::vector<std::uint8_t> bytes;
  PARLEY_FIELDS(number, whole_type, whole, index, count, bytes)
};

namespace limits {
inline constexpr std::size_t piece_bytes = std::size_t{256} << 10U;
inline constexpr std::uint32_t pieces = 128;
}  // namespace limits

std::vector<piece> in_pieces(std::uint16_t type, std::uint32_t whole, std::span<const std::byte> body);

class piece_collector {
 public:
  struct whole {
    std::uint16_t type = 0;
    std::vector<std::byte> body;
  };
  /// Returns the whole message with its last missing piece. A repeated piece changes nothing.
  std::optional<whole> add(runtime::rank_id source, piece&& p);
  std::uint64_t refused() const noexcept { return refused_; }

 private:
  struct assembly {
    std::uint32_t whole = 0;
    std::uint16_t type = 0;
    std::uint32_t missing = 0;
    std::vector<std::vector<std::uint8_t>> parts;
  };
  std::map<runtime::rank_id, assembly> incomplete_;
  std::uint64_t refused_ = 0;
};

}  // namespace parley::actors

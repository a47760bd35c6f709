#include <parley/actors/letters/pieces.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

std::vector<piece> in_pieces(std::uint16_t type, std::uint32_t whole, std::span<const std::byte> body) {
  const std::size_t count = (body.size() + limits::piece_bytes - 1) / limits::piece_bytes;
  std::vector<piece> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto part = body.subspan(i * limits::piece_bytes)
                          .first(std::min(limits::piece_bytes, body.size() - i * limits::piece_bytes));
    piece& p = all[i];
    p.whole_type = type;
    p.whole = whole;
    p.index = static_cast<std::uint32_t>(i);
    p.count = static_cast<std::uint32_t>(count);
    p.bytes.resize(part.size());
    std::memcpy(p.bytes.data(), part.data(), part.size());
  }
  return all;
}

std::optional<piece_collector::whole> piece_collector::add(runtime::rank_id source, piece&& p) {
  if (p.count == 0 || p.count > limits::pieces || p.index >= p.count || p.bytes.empty() ||
      p.bytes.size() > limits::piece_bytes) {
    ++refused_;
    return std::nullopt;
  }
  assembly& a = incomplete_[source];
  if (p.whole < a.whole) return std::nullopt;  // a piece of a message that was given up or is complete
  if (p.whole > a.whole) a = {p.whole, p.whole_type, p.count, std::vector<std::vector<std::uint8_t>>(p.count)};
  if (a.missing == 0) return std::nullopt;
  if (p.whole_type != a.type || p.count != a.parts.size()) {
    ++refused_;
    return std::nullopt;
  }
  auto& part = a.parts[p.index];
  if (!part.empty()) return std::nullopt;
  part = std::move(p.bytes);
  if (--a.missing != 0) return std::nullopt;
  whole complete;
  complete.type = a.type;
  for (const auto& each : a.parts) {
    const auto bytes = std::as_bytes(std::span(each));
    complete.body.insert(complete.body.end(), bytes.begin(), bytes.end());
  }
  a.parts.clear();
  return complete;
}

}  // namespace parley::actors

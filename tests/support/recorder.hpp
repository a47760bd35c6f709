#pragma once
/// Handlers that keep what arrives over a link, and helpers for the bytes to send.
#include <parley/tests/support/cases/pattern.hpp>

#include <parley/runtime/wire/link.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests {

using runtime::arrival;
using runtime::link;
using runtime::rank_id;

struct recorder final : link::handler {
  void on_arrival(arrival&& message) noexcept override { got.push_back(std::move(message)); }
  std::vector<arrival> got;
};

struct failures final : link::failure_handler {
  void on_peer_failed(rank_id peer) noexcept override { peers.push_back(peer); }
  bool has(rank_id peer) const { return std::find(peers.begin(), peers.end(), peer) != peers.end(); }
  std::vector<rank_id> peers;
};

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace parley::tests

#pragma once
/// The grid of a halo in a spec: the block of each rank, and its neighbours.
///
///     const halo_shape g{.ranks = {2, 3}, .cells = {64, 64}, .width = {1, 1}, .periodic = {true, false}};
///     g.place_of(4);                                    // {1, 1}: ranks are numbered along the last dimension first
///     g.neighbour_of({1, 1}, {1, 0});                   // rank 1, as the first dimension wraps
#include <parley/identifiers.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace parley::cli {

struct halo_shape {
  std::vector<runtime::rank_id> ranks{};  ///< along each dimension, 1 to 3 of them
  std::vector<std::uint64_t> cells{};     ///< of each block along each dimension, without its rim
  std::vector<std::uint64_t> width{};     ///< of the rim, in cells
  std::vector<bool> periodic{};
  bool corners = false;  ///< blocks that share an edge or a corner are also neighbours
  std::uint64_t element_bytes = sizeof(std::uint64_t);

  using offsets = std::vector<int>;  ///< -1, 0 or 1 along each dimension
  std::size_t dimensions() const noexcept { return ranks.size(); }
  runtime::rank_id blocks() const noexcept;
  /// The number of elements of one block with its rim.
  std::uint64_t elements() const noexcept;
  std::vector<runtime::rank_id> place_of(runtime::rank_id r) const;
  /// The block that lies there, seen from `place`; nothing beyond the edge of the grid.
  std::optional<runtime::rank_id> neighbour_of(const std::vector<runtime::rank_id>& place, const offsets& to) const;
  /// All offsets at which a block may have a neighbour.
  std::vector<offsets> directions() const;
  /// Sender and receiver of all messages between different ranks, each once.
  std::vector<std::pair<runtime::rank_id, runtime::rank_id>> edges() const;
};

}  // namespace parley::cli

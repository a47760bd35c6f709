#pragma once
/// Fields of a halo exchange (halo.hpp): the memory of this rank's block of a grid, or of its part of a mesh.
///
///     grid_field(u, {rows, columns})                      // u has a rim: (rows + 2) * (columns + 2) elements for a rim of 1 cell
///     grid_field(u, {rows, columns}, {pitch, 1})          // rows that are `pitch` elements apart
///     index_field(v, {{0, 1}, {7}}, {{8, 9}, {10}})       // a mesh with two neighbours: what each gets, and where its ghosts go
#include <parley/ops/core/call_type.hpp>

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <vector>

namespace parley::ops {

/// One field on this rank. `memory` is the memory of the whole block, including the rim.
struct halo_field {
  std::span<std::byte> memory;
  std::uint64_t element_bytes = 0;
  std::vector<std::uint64_t> cells{};  ///< cells of the block without its rim, per dimension
  /// Distance in elements from one index to the next, per dimension; 1 for the last dimension. Empty: no padding.
  std::vector<std::uint64_t> strides{};
  /// For a mesh, per neighbour in the order of the declaration: the indices of the elements to send to that neighbour, and to receive from
  /// it.
  std::vector<std::vector<std::uint64_t>> send{};
  std::vector<std::vector<std::uint64_t>> receive{};
  std::uint16_t type = 0;  ///< type of the elements (`element_type_of`); 0: any
};

/// A field of a grid. Without `strides`, the cells and their rim must fill all of `memory`.
template <writable_buffer B>
halo_field grid_field(B&& memory, const std::vector<std::uint64_t>& cells,
                      const std::vector<std::uint64_t>& strides = {}) {
  return {.memory = std::as_writable_bytes(std::span(memory)),
          .element_bytes = sizeof(std::ranges::range_value_t<B>),
          .cells = cells,
          .strides = strides,
          .type = type_of_elements<B>()};
}
/// A field of a mesh.
template <writable_buffer B>
halo_field index_field(B&& memory, const std::vector<std::vector<std::uint64_t>>& send,
                       const std::vector<std::vector<std::uint64_t>>& receive) {
  return {.memory = std::as_writable_bytes(std::span(memory)),
          .element_bytes = sizeof(std::ranges::range_value_t<B>),
          .send = send,
          .receive = receive,
          .type = type_of_elements<B>()};
}

}  // namespace parley::ops

#pragma once
/// Describes memory in several pieces, at regular distances or at listed offsets: a face of a block, or elements of a mesh. One message
/// carries all pieces, packed.
///
///     memory_pieces column{.base = first_cell, .bytes = 8, .outer = {{{1, 0}, {rows, row_bytes}}}};
///     space.gather(packed, column, stream);               // memory_space.hpp
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace parley::runtime {

struct memory_pieces {
  struct repetition {
    std::uint64_t count = 1;
    std::uint64_t stride_bytes = 0;
  };
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;                               ///< of each piece
  std::array<repetition, 2> outer{};                     ///< the slowest first
  std::vector<std::uint64_t> offsets{};                  ///< in bytes; unless empty, they replace `outer`
  std::shared_ptr<const std::uint64_t> offsets_there{};  ///< a copy of `offsets` on the pieces' device

  std::uint64_t count() const noexcept { return offsets.empty() ? outer[0].count * outer[1].count : offsets.size(); }
  std::uint64_t total_bytes() const noexcept { return bytes * count(); }
  /// Calls `visit(piece)` for each piece, in order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const std::uint64_t offset : offsets) visit(std::span(base + offset, bytes));
    if (!offsets.empty()) return;
    for (std::uint64_t i = 0; i < outer[0].count; ++i) {
      for (std::uint64_t j = 0; j < outer[1].count; ++j)
        visit(std::span(base + i * outer[0].stride_bytes + j * outer[1].stride_bytes, bytes));
    }
  }
  bool contiguous() const noexcept { return offsets.empty() && outer[0].count * outer[1].count == 1; }
  /// The range from the first byte of any piece to the last, gaps included.
  std::span<std::byte> around() const noexcept;

  // For memory that this processor can access.
  void gather(std::byte* packed) const noexcept;
  void scatter(const std::byte* packed) const noexcept;
};

}  // namespace parley::runtime

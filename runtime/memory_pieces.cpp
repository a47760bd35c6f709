#include <parley/runtime/memory_pieces.hpp>

#include <cstring>
#include <type_traits>

namespace parley::runtime {

namespace {

// Calls `visit(piece)` for all of them in order.
template <class Visit>
void for_each_piece(const memory_pieces& p, const Visit& visit) {
  if (!p.offsets.empty()) {
    for (const std::uint64_t offset : p.offsets) visit(p.base + offset);
    return;
  }
  for (std::uint64_t i = 0; i < p.outer[0].count; ++i) {
    std::byte* const row = p.base + i * p.outer[0].stride_bytes;
    for (std::uint64_t j = 0; j < p.outer[1].count; ++j) visit(row + j * p.outer[1].stride_bytes);
  }
}

// Single elements are copied with a size that the compiler knows.
template <class Copy>
void with_fixed_size(std::uint64_t bytes, const Copy& copy) {
  switch (bytes) {
    case 4: copy(std::integral_constant<std::size_t, 4>()); break;
    case 8: copy(std::integral_constant<std::size_t, 8>()); break;
    default: copy(static_cast<std::size_t>(bytes));
  }
}

}  // namespace

void memory_pieces::gather(std::byte* packed) const noexcept {
  with_fixed_size(bytes, [&](auto size) {
    for_each_piece(*this, [&](const std::byte* piece) {
      std::memcpy(packed, piece, size);
      packed += size;
    });
  });
}

void memory_pieces::scatter(const std::byte* packed) const noexcept {
  with_fixed_size(bytes, [&](auto size) {
    for_each_piece(*this, [&](std::byte* piece) {
      std::memcpy(piece, packed, size);
      packed += size;
    });
  });
}

}  // namespace parley::runtime

#include <parley/runtime/dataflow/memory_pieces.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

namespace parley::runtime {

namespace {

// Calls `visit(piece)` for all pieces in order and, where they are at regular distances, `pause()` after every eight in a row.
template <class Visit, class Pause>
void for_each_piece(const memory_pieces& p, const Visit& visit, const Pause& pause) {
  if (!p.offsets.empty()) {
    for (const std::uint64_t offset : p.offsets) visit(p.base + offset);
    return;
  }
  for (std::uint64_t i = 0; i < p.outer[0].count; ++i) {
    std::byte* const row = p.base + i * p.outer[0].stride_bytes;
    for (std::uint64_t j = 0; j < p.outer[1].count; ++j) {
      visit(row + j * p.outer[1].stride_bytes);
      if (j % 8 == 7) pause();
    }
  }
}

// Elements that lie a multiple of a page apart, as in a column of a matrix with 512 * k columns, all map to one set of eight lines of the
// first-level cache. Without a pause, a processor has dozens of loads in flight, and they evict each other's lines before use. Waiting
// after every eight is faster.
bool crowd_one_set(const memory_pieces& p) noexcept {
  constexpr std::uint64_t page_bytes = 4096;
  constexpr std::uint64_t line_bytes = 64;
  return p.offsets.empty() && p.bytes <= line_bytes && p.outer[1].count > 64 &&
         p.outer[1].stride_bytes % page_bytes == 0;
}

void wait_for_loads() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
#endif
}
void wait_for_stores() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }

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

std::span<std::byte> memory_pieces::around() const noexcept {
  if (count() == 0) return {base, 0};
  if (!offsets.empty()) {
    const auto [first, last] = std::minmax_element(offsets.begin(), offsets.end());
    return {base + *first, static_cast<std::size_t>(*last - *first + bytes)};
  }
  std::uint64_t end = bytes;
  for (const repetition& r : outer) end += (r.count - 1) * r.stride_bytes;
  return {base, static_cast<std::size_t>(end)};
}

void memory_pieces::gather(std::byte* packed) const noexcept {
  with_fixed_size(bytes, [&](auto size) {
    const auto copy = [&](const std::byte* piece) {
      std::memcpy(packed, piece, size);
      packed += size;
    };
    if (crowd_one_set(*this)) {
      for_each_piece(*this, copy, [] { wait_for_loads(); });
    } else {
      for_each_piece(*this, copy, [] {});
    }
  });
}

void memory_pieces::scatter(const std::byte* packed) const noexcept {
  with_fixed_size(bytes, [&](auto size) {
    const auto copy = [&](std::byte* piece) {
      std::memcpy(piece, packed, size);
      packed += size;
    };
    if (crowd_one_set(*this)) {
      for_each_piece(*this, copy, [] { wait_for_stores(); });
    } else {
      for_each_piece(*this, copy, [] {});
    }
  });
}

}  // namespace parley::runtime

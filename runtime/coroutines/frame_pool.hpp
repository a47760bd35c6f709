#pragma once
/// Allocates coroutine frames and other small, short-lived objects of one thread. The pool keeps freed blocks by size and reuses them, so
/// that a running program allocates nothing per call.
///
/// A block may be freed on another thread than the thread that made it; the freeing thread then keeps the block. Under AddressSanitizer the
/// pool is bypassed, so that a use after free is reported.
#include <array>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define PARLEY_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PARLEY_ADDRESS_SANITIZER 1
#endif
#endif

namespace parley::runtime::frame_pool {

namespace detail {

inline constexpr std::size_t granule = 32;
inline constexpr std::size_t classes = 64;  // up to 2 KiB; larger blocks go to the heap

struct free_block {
  free_block* next;
};
// Trivially destructible, so that access needs no guard; `cleaner` in frame_pool.cpp empties the lists at the thread's end.
extern constinit thread_local std::array<free_block*, classes> free_blocks;

void* from_heap(std::size_t bytes);
void to_heap(void* block) noexcept;

}  // namespace detail

inline void* allocate(std::size_t bytes) {
#ifndef PARLEY_ADDRESS_SANITIZER
  const std::size_t index = (bytes - 1) / detail::granule;
  if (index < detail::classes) {
    detail::free_block*& list = detail::free_blocks[index];
    if (detail::free_block* const block = list; block != nullptr) {
      list = block->next;
      return block;
    }
    return detail::from_heap((index + 1) * detail::granule);
  }
#endif
  return detail::from_heap(bytes);
}

inline void release(void* block, std::size_t bytes) noexcept {
#ifndef PARLEY_ADDRESS_SANITIZER
  const std::size_t index = (bytes - 1) / detail::granule;
  if (index < detail::classes) {
    auto* const freed = static_cast<detail::free_block*>(block);
    detail::free_block*& list = detail::free_blocks[index];
    freed->next = list;
    list = freed;
    return;
  }
#endif
  static_cast<void>(bytes);
  detail::to_heap(block);
}

/// Coroutine frames of this thread that have not been destroyed yet, of awaited tasks and of tasks in a scope.
inline constinit thread_local std::size_t live_frames = 0;
/// Number of blocks that this thread has allocated from the heap so far; a benchmark checks that the number stops growing.
std::size_t heap_allocations() noexcept;

/// Returns the unused blocks of this thread to the heap. Call it after a peak in use that will not repeat.
void trim() noexcept;

/// Base class of objects that are allocated from the pool.
struct pooled {
  static void* operator new(std::size_t bytes) { return allocate(bytes); }
  static void operator delete(void* block, std::size_t bytes) noexcept { release(block, bytes); }
};

}  // namespace parley::runtime::frame_pool

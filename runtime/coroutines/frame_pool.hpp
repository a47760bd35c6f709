#pragma once
/// Memory for coroutine frames and other small, short-lived objects of one thread: freed blocks are kept by size and handed
/// out again, so that a running program allocates nothing per call.
///
/// Blocks may be freed on another thread than they were made on; they then stay with that thread. Under AddressSanitizer
/// the pool steps aside, so that use after free is seen.
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
// Trivially destructible, so that using them needs no guard; they are emptied at the thread's end.
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

/// Frames of coroutines that live, of this thread: tasks, be they in a scope or awaited, that were not destroyed yet.
inline constinit thread_local std::size_t live_frames = 0;
/// Blocks of this thread that were taken from the heap so far; a benchmark checks that it stops growing.
std::size_t heap_allocations() noexcept;

/// Gives all blocks of this thread that nobody uses now back to the heap, once a need has passed that will not come again.
void trim() noexcept;

/// Base class of what is to live in the pool.
struct pooled {
  static void* operator new(std::size_t bytes) { return allocate(bytes); }
  static void operator delete(void* block, std::size_t bytes) noexcept { release(block, bytes); }
};

}  // namespace parley::runtime::frame_pool

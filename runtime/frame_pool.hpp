#pragma once
/// Memory for coroutine frames and other small, short-lived objects of one thread: freed blocks are kept by size and handed
/// out again, so that a running program allocates nothing per call.
///
/// Blocks may be freed on another thread than they were made on; they then stay with that thread. Under AddressSanitizer
/// the pool steps aside, so that use after free is seen.
#include <cstddef>

namespace parley::runtime::frame_pool {

void* allocate(std::size_t bytes);
void release(void* block, std::size_t bytes) noexcept;

/// Blocks of this thread that were taken from the heap so far; a benchmark checks that it stops growing.
std::size_t heap_allocations() noexcept;

/// Base class of what is to live in the pool.
struct pooled {
  static void* operator new(std::size_t bytes) { return allocate(bytes); }
  static void operator delete(void* block, std::size_t bytes) noexcept { release(block, bytes); }
};

}  // namespace parley::runtime::frame_pool

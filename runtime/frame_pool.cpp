#include <parley/runtime/frame_pool.hpp>

#include <array>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define PARLEY_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PARLEY_ADDRESS_SANITIZER 1
#endif
#endif

namespace parley::runtime::frame_pool {

namespace {

[[maybe_unused]] constexpr std::size_t granule = 32;
constexpr std::size_t classes = 64;  // up to 2 KiB; larger blocks go to the heap

struct free_block {
  free_block* next;
};

struct pool {
  std::array<free_block*, classes> free;
  std::size_t taken;
};

// Trivially destructible, so that the fast path needs no guard; the cleaner is first touched where a block is made.
constinit thread_local pool mine{};

struct cleaner {
  ~cleaner() {
    for (free_block*& list : mine.free) {
      while (list != nullptr) ::operator delete(std::exchange(list, list->next));
    }
  }
};

void* from_heap(std::size_t bytes) {
  thread_local cleaner at_thread_end;
  static_cast<void>(at_thread_end);
  ++mine.taken;
  return ::operator new(bytes);
}

}  // namespace

void* allocate(std::size_t bytes) {
#ifndef PARLEY_ADDRESS_SANITIZER
  const std::size_t index = (bytes - 1) / granule;
  if (index < classes) {
    if (free_block* block = mine.free[index]; block != nullptr) {
      mine.free[index] = block->next;
      return block;
    }
    return from_heap((index + 1) * granule);
  }
#endif
  return from_heap(bytes);
}

void release(void* block, std::size_t bytes) noexcept {
#ifndef PARLEY_ADDRESS_SANITIZER
  const std::size_t index = (bytes - 1) / granule;
  if (index < classes) {
    auto* freed = static_cast<free_block*>(block);
    freed->next = mine.free[index];
    mine.free[index] = freed;
    return;
  }
#endif
  static_cast<void>(bytes);
  ::operator delete(block);
}

std::size_t heap_allocations() noexcept { return mine.taken; }

}  // namespace parley::runtime::frame_pool

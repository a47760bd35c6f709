#include <parley/runtime/coroutines/frame_pool.hpp>

#include <new>
#include <utility>

namespace parley::runtime::frame_pool {

namespace detail {

constinit thread_local std::array<free_block*, classes> free_blocks{};

namespace {

constinit thread_local std::size_t taken = 0;

struct cleaner {
  ~cleaner() { trim(); }
};

}  // namespace

void* from_heap(std::size_t bytes) {
  thread_local cleaner at_thread_end;  // constructed when the thread makes its first block
  static_cast<void>(at_thread_end);
  ++taken;
  return ::operator new(bytes);
}

void to_heap(void* block) noexcept { ::operator delete(block); }

}  // namespace detail

std::size_t heap_allocations() noexcept { return detail::taken; }

void trim() noexcept {
  for (detail::free_block*& list : detail::free_blocks) {
    while (list != nullptr) ::operator delete(std::exchange(list, list->next));
  }
}

}  // namespace parley::runtime::frame_pool

#pragma once
/// The bytes behind the buffer of a rehearsal. A config that writes beyond its buffer changes them, and so it is named and left out
/// before it can damage memory of the program.
///
///     const auto block = space.make(bytes + guard_bytes);
///     const scratch_guard guard(space, block->bytes());
///     co_await guard.set();
///     … run the config on block->bytes().first(bytes) …
///     co_await guard.check();                          // throws `config_failed`, which names the first byte
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <span>

namespace parley::ops {

/// A config that miscounts is mostly off by an element or a row, and not by more than this.
inline constexpr std::size_t guard_bytes = 4096;

class scratch_guard {
 public:
  /// `block`: the buffer, and `guard_bytes` bytes behind it.
  scratch_guard(runtime::memory_space& space, std::span<std::byte> block) noexcept
      : space_(space), place_(block.size() - guard_bytes), guard_(block.last(guard_bytes)) {}
  runtime::task<> set() const;
  runtime::task<> check() const;

 private:
  runtime::memory_space& space_;
  std::size_t place_;
  std::span<std::byte> guard_;
};

}  // namespace parley::ops

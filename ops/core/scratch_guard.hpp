#pragma once
/// The bytes before and behind the buffer of a rehearsal. A config that writes outside its buffer changes them, so it is noticed, named in
/// an error and left out before it can damage memory of the program.
///
///     const auto block = space.make(bytes + guard_bytes);
///     const scratch_guard guard(space, block->bytes());
///     co_await guard.set();
///     … run the config on guard.buffer() …
///     co_await guard.check();                          // throws `config_failed`, which names the first byte
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <span>

namespace parley::ops {

/// So many bytes on either side: a config that miscounts is mostly off by an element or a row.
inline constexpr std::size_t guard_margin = 4096;
inline constexpr std::size_t guard_bytes = 2 * guard_margin;

class scratch_guard {
 public:
  /// `block` is `guard_bytes` larger than the buffer.
  scratch_guard(runtime::memory_space& space, std::span<std::byte> block) noexcept : space_(space), block_(block) {}
  std::span<std::byte> buffer() const noexcept { return block_.subspan(guard_margin, block_.size() - guard_bytes); }
  runtime::task<> set() const;
  runtime::task<> check() const;

 private:
  runtime::memory_space& space_;
  std::span<std::byte> block_;
};

}  // namespace parley::ops

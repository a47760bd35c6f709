#pragma once
/// Where an op's own buffers lie: host memory, or a GPU's. An op that moves device buffers is told so in its declaration, so that
/// what it allocates itself, such as a pipeline's activations and the scratch of rehearsals, lies there too.
///
///     std::unique_ptr<memory_space::block> scratch = space.make(300'000);
///     co_await space.copy(scratch->bytes(), pattern);          // in from the host; out likewise
///
/// `make` throws `unavailable` when there is no more. A copy throws `failure`. It cannot be cancelled: it ends soon.
#include <parley/runtime/task.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace parley::runtime {

class memory_space {
 public:
  class block {
   public:
    virtual ~block() = default;
    /// Addresses that only this space's owner may follow.
    virtual std::span<std::byte> bytes() const noexcept = 0;
  };
  virtual std::unique_ptr<block> make(std::size_t bytes) = 0;
  /// Between host memory and this space, or inside of it; the sizes are equal. Ends when it has happened.
  virtual task<> copy(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  /// Whether work that its owner has enqueued may still touch `memory`: nobody else may be let in yet.
  virtual bool busy(std::span<const std::byte>) noexcept { return false; }
  /// Ends once it does not. Throws `failure` when that work failed.
  virtual task<> settled(std::span<const std::byte> memory);

 protected:
  ~memory_space() = default;
};

/// The processor's memory, zeroed when it is made.
memory_space& host_memory() noexcept;

}  // namespace parley::runtime

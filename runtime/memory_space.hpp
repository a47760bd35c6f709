#pragma once
/// Where an op's own buffers lie: host memory, or a GPU's. An op that moves device buffers is told so in its declaration, so that
/// what it allocates itself, such as a pipeline's activations and the scratch of rehearsals, lies there too.
///
///     std::unique_ptr<memory_space::block> scratch = space.make(300'000);
///     co_await space.copy(scratch->bytes(), pattern);          // in from the host; out likewise
///
/// `make` throws `unavailable` when there is no more. A copy throws `failure`. It cannot be cancelled: it ends soon.
#include <parley/runtime/error.hpp>
#include <parley/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
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

  // What a device waits for by itself. A space without such waits does nothing here.

  /// A receive into `memory` is about to be started: what its owner enqueues may wait for it. Throws `failure` where it cannot.
  virtual void expect(std::span<const std::byte>) {}
  /// For that receive's sender, whose device may say that all is there; 0: nobody waits.
  virtual std::uint64_t flag_of(std::span<const std::byte>) noexcept { return 0; }
  /// The receive has ended, with all of its payload or not: whoever waits goes on.
  virtual void came(std::span<const std::byte>, errc) noexcept {}

 protected:
  ~memory_space() = default;
};

/// The processor's memory, zeroed when it is made.
memory_space& host_memory() noexcept;

}  // namespace parley::runtime

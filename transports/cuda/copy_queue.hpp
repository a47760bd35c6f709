#pragma once
/// The records of `cuda_copies`: its streams, the copies that it was asked for, and the work of streams that copies follow.
#include <parley/runtime/wire/link.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace parley::transports {

using cuda_moment = std::shared_ptr<const cuda_event>;

struct copy_mark {
  std::uint32_t number;  // the value of its stream's word once the copy has ended
  runtime::completion* done;
  std::span<const std::byte> from{};  // of a copy
};

// One stream. Its marks end in the order in which they were enqueued.
struct copy_queue {
  cuda_stream stream;
  std::size_t word;
  std::deque<copy_mark> marks{};
};

// Where a copy waits for the work that was noted for its memory.
enum class copy_waits : std::uint8_t { in_a_stream, in_host_memory };

struct copy_request {
  enum class kind : std::uint8_t { copy, write, tell } what;
  runtime::completion* done;
  copy_waits where = copy_waits::in_a_stream;
  runtime::device_copy by{};
  std::span<const std::byte> from{};  // of a write: the write comes after the copies out of this memory
  std::byte* to = nullptr;
  std::uint32_t value = 0;
  std::vector<cuda_moment> behind{};
};

struct event_pool {
  explicit event_pool(cuda_driver& d) : driver(d) {}
  ~event_pool() {
    for (const cuda_event e : unused) driver.destroy(e);
  }
  event_pool(const event_pool&) = delete;
  event_pool& operator=(const event_pool&) = delete;
  cuda_driver& driver;
  std::vector<cuda_event> unused{};
};

// Work that `cuda_copies::after` noted for `memory`.
struct noted_work {
  std::span<const std::byte> memory;
  cuda_stream stream;
  cuda_moment at;
  // The flags of messages into the memory, and of holds of the stream, that were down when this object was made. While one of them is
  // down, the stream's work waits for an event that has not happened yet.
  std::vector<std::uint64_t> behind;
};

// `that_copies_follow` leaves out work that waits for an expected message, because the copy that brings the message must not wait for
// that work. It also leaves out work that the host holds back, because the host may be waiting for the copy.
enum class which_work : std::uint8_t { that_copies_follow, all };

// Addresses that are known to be in a rank's own context. Each address is looked up in the driver once, because another context hardly
// ever allocates the same address.
class own_addresses {
 public:
  bool has(const std::byte* address, cuda_driver& driver, int device) noexcept {
    if (std::find(known_.begin(), known_.end(), address) != known_.end()) return true;
    if (driver.is_of_other_context(address, device)) return false;
    known_[latest_++ % known_.size()] = address;
    return true;
  }

 private:
  std::array<const std::byte*, 16> known_{};
  std::size_t latest_ = 0;
};

}  // namespace parley::transports

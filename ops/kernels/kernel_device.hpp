#pragma once
/// What a kernel's trials need from the device that the kernel runs on. A kernel without one runs on the caller's thread.
///
///     device.evict(bytes, true);        // the run that follows finds cold caches
///     device.begin();
///     …the kernel puts its work into the device's stream, and returns…
///     double took_ns = device.end();    // waits for the work
///
/// Functions that wait throw `device_failed` if the device fails.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace parley::ops {

class kernel_device {
 public:
  virtual ~kernel_device() = default;
  /// Why trials cannot run at this moment, because they would wait for the device; empty: they can.
  virtual std::string why_not_now() = 0;
  /// The size of its last cache.
  virtual std::uint64_t cache_bytes() const noexcept = 0;
  /// Enqueues work that fills the caches with other data, and the caches of instructions with other code.
  virtual void evict(std::uint64_t bytes, bool instructions) = 0;
  virtual void begin() = 0;
  /// The time on the device since `begin`.
  virtual double end() = 0;
  /// Copies from or to its memory, after all earlier work, and waits.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(std::span<std::byte> memory, std::byte with) = 0;

 protected:
  kernel_device() = default;
  kernel_device(const kernel_device&) = default;
  kernel_device& operator=(const kernel_device&) = default;
};

}  // namespace parley::ops

#pragma once
/// What a kernel's trials need from the device that the kernel runs on. A kernel without one runs on the caller's thread.
///
///     device.evict(bytes, true);        // the run that follows finds cold caches
///     device_timer timer(device);
///     …the kernel puts its work into the device's stream, and returns…
///     timer.end();
///     double took_ns = timer.took_ns();  // waits for the work
///
/// Functions that wait, and `is_over`, throw `device_failed` if the device fails.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace parley::ops {

class kernel_device {
 public:
  virtual ~kernel_device() = default;
  /// Why trials cannot run at this moment, because they would wait for the device; empty: they can.
  virtual std::string why_not_now() = 0;
  /// True while the stream is captured into a graph: what is put into it does not run.
  virtual bool is_capturing() = 0;
  /// The size of its last cache.
  virtual std::uint64_t cache_bytes() const noexcept = 0;
  /// Enqueues work that fills the caches with other data, and the caches of instructions with other code.
  virtual void evict(std::uint64_t bytes, bool instructions) = 0;
  /// For `device_timer`. A timer begins and ends behind the work that is in the stream; its number is free again after `drop`.
  virtual std::size_t begin_timer() = 0;
  virtual void end_timer(std::size_t number) = 0;
  virtual bool is_over(std::size_t number) = 0;
  virtual double took_ns(std::size_t number) = 0;
  virtual void drop(std::size_t number) noexcept = 0;
  /// Copies from or to its memory, after all earlier work, and waits.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(std::span<std::byte> memory, std::byte with) = 0;

 protected:
  kernel_device() = default;
  kernel_device(const kernel_device&) = default;
  kernel_device& operator=(const kernel_device&) = default;
};

/// Times work on the device, from when this is made until `end`. Several may run at the same time.
class device_timer {
 public:
  explicit device_timer(kernel_device& device) : device_(&device), number_(device.begin_timer()) {}
  device_timer(device_timer&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), number_(other.number_) {}
  device_timer& operator=(device_timer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~device_timer() {
    if (device_ != nullptr) device_->drop(number_);
  }
  void end() { device_->end_timer(number_); }
  /// True: the device has done the work, so `took_ns` need not wait.
  bool is_over() { return device_->is_over(number_); }
  /// Waits for the work.
  double took_ns() { return device_->took_ns(number_); }

 private:
  kernel_device* device_;
  std::size_t number_;
};

}  // namespace parley::ops

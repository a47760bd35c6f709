#include <parley/transports/cuda/device_rest.hpp>

namespace parley::transports {

// Never destroyed: threads that free memory may outlive static objects.
device_rest& device_rest::of_this_process() {
  static auto* const only = new device_rest;
  return *only;
}

void device_rest::begin_wait() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, longest, [this] { return quiet_ == 0; });
  ++waiting_;
}

void device_rest::end_waits(std::size_t n) noexcept {
  const std::scoped_lock lock(mutex_);
  waiting_ -= n;
  if (waiting_ == 0) changed_.notify_all();
}

device_rest::quiet::quiet(device_rest& of, std::chrono::milliseconds limit) : of_(of) {
  std::unique_lock lock(of_.mutex_);
  at_rest_ = of_.changed_.wait_for(lock, limit, [this] { return of_.waiting_ == 0; });
  if (at_rest_) ++of_.quiet_;
}

device_rest::quiet::~quiet() {
  if (!at_rest_) return;
  const std::scoped_lock lock(of_.mutex_);
  if (--of_.quiet_ == 0) of_.changed_.notify_all();
}

}  // namespace parley::transports

#include <parley/transports/cuda/cuda_flags.hpp>
#include <parley/transports/cuda/device_rest.hpp>

#include <algorithm>

namespace parley::transports {

using runtime::errc;

cuda_flags::cuda_flags(cuda_driver& driver, int device)
    : driver_(driver), device_(device), words_(cuda_memory::on_device(driver, device, sizeof(std::uint32_t) * words)),
      stream_(driver.make_stream(device)) {
  const std::vector<std::byte> zeros(words_.bytes().size());
  errc outcome = driver.copy(words_.bytes().data(), zeros.data(), zeros.size(), stream_);
  // Try both operations: a device that does not support them must report it before any stream waits.
  if (outcome == errc::none) outcome = driver.write_value(stream_, words_.bytes().data(), 0);
  if (outcome == errc::none) outcome = driver.wait_value(stream_, words_.bytes().data(), 0);
  if (outcome == errc::none) outcome = finish();
  if (outcome == errc::none) return;
  driver.destroy(stream_);
  runtime::raise({errc::unavailable,
                  "device " + std::to_string(device) + " cannot let a stream wait for a message: " + driver.fault()});
}

cuda_flags::~cuda_flags() {
  for (const expected& e : down_) set(e);
  static_cast<void>(finish());
  driver_.destroy(stream_);
}

// Waits for this object's own stream only, which has only short work.
errc cuda_flags::finish() noexcept {
  try {
    const cuda_event over = driver_.make_event(device_);
    errc seen = driver_.record(over, stream_);
    if (seen == errc::none) {
      do seen = driver_.query(over);
      while (seen == errc::pending);
    }
    driver_.destroy(over);
    return seen;
  } catch (const runtime::failure& f) {
    return f.code();
  }
}

std::uint64_t cuda_flags::expect(std::span<const std::byte> memory) {
  std::uint64_t flag = 0;
  if (!free_.empty()) {
    flag = free_.back();
    free_.pop_back();
    // The word's next value. Skip 0: with the first word it would make the flag 0, which means none.
    const std::uint32_t value = value_of(flag) + 1;
    flag = (flag >> 32U << 32U) | (value == 0 ? 1 : value);
  } else if (used_ < words) {
    flag = (std::uint64_t{used_++} << 32U) | 1U;
  } else {
    runtime::raise(
        {errc::full, "more than " + std::to_string(words) +
                         " receives are expected by streams of this device, or have failed; await some of them"});
  }
  down_.push_back({memory, flag, false});
  return flag;
}

std::vector<std::uint64_t> cuda_flags::down_for(std::span<const std::byte> memory) const {
  std::vector<std::uint64_t> all;
  for (const expected& e : down_) {
    if (overlap(e.memory, memory)) all.push_back(e.flag);
  }
  return all;
}

std::uint64_t cuda_flags::oldest_for(std::span<const std::byte> memory) const noexcept {
  const auto one = std::find_if(down_.begin(), down_.end(), [memory](const expected& e) {
    return e.memory.data() == memory.data() && e.memory.size() >= memory.size();
  });
  return one == down_.end() ? 0 : one->flag;
}

bool cuda_flags::is_down(std::uint64_t flag) const noexcept {
  return std::any_of(down_.begin(), down_.end(), [flag](const expected& e) { return e.flag == flag; });
}

template <class Is>
errc cuda_flags::hold_for(cuda_stream stream, const Is& is_it) noexcept {
  for (expected& e : down_) {
    if (!is_it(e)) continue;
    if (!e.holds) device_rest::of_this_process().begin_wait();
    e.holds = true;
    const errc held = driver_.wait_value(stream, words_.bytes().data() + offset_of(e.flag), value_of(e.flag));
    if (held != errc::none) return held;
  }
  return errc::none;
}

errc cuda_flags::hold(cuda_stream stream, std::span<const std::byte> memory) noexcept {
  return hold_for(stream, [memory](const expected& e) { return overlap(e.memory, memory); });
}

errc cuda_flags::hold(cuda_stream stream, std::uint64_t flag) noexcept {
  return hold_for(stream, [flag](const expected& e) { return e.flag == flag; });
}

void cuda_flags::came(std::uint64_t flag, errc outcome) noexcept {
  const auto one = std::find_if(down_.begin(), down_.end(), [flag](const expected& e) { return e.flag == flag; });
  if (one == down_.end()) return;
  set(*one);
  if (outcome == errc::none) free_.push_back(flag);
  down_.erase(one);
}

void cuda_flags::set(const expected& e) noexcept {
  if (!e.holds) return;
  driver_.write_value(stream_, words_.bytes().data() + offset_of(e.flag), value_of(e.flag));
  device_rest::of_this_process().end_waits(1);
}

}  // namespace parley::transports

#include <parley/cuda_kernels.hpp>

#include <algorithm>

namespace parley::ops {

using runtime::errc;

namespace {
constexpr runtime::time_ns patience_ns = 100'000'000;    // with work that was in the stream before
constexpr runtime::time_ns longest_ns = 30'000'000'000;  // of one run of a kernel
}  // namespace

cuda_kernels::cuda_kernels(runtime::executor& ex, transports::cuda_driver& driver, int device,
                           transports::cuda_stream stream)
    : executor_(ex), driver_(driver), device_(device), stream_(stream) {
  if (device < 0 || static_cast<std::size_t>(device) >= driver.devices().size())
    runtime::raise({errc::unavailable, "there is no CUDA device " + std::to_string(device) + "; this process has " +
                                           std::to_string(driver.devices().size())});
  mark_ = driver_.make_event(device);
}

cuda_kernels::~cuda_kernels() {
  driver_.destroy(mark_);
  for (const timer& t : timers_) {
    driver_.destroy(t.began);
    driver_.destroy(t.ended);
  }
}

void cuda_kernels::must(errc outcome) const {
  if (outcome != errc::none) runtime::raise({outcome, driver_.fault()});
}

cuda_kernels::state cuda_kernels::wait_for(transports::cuda_event e, runtime::time_ns most_ns) {
  // Virtual time stands still here, so the number of looks is limited, too.
  constexpr std::uint64_t most_looks = 1'000'000;
  const runtime::time_ns began_ns = executor_.precise_now();
  std::uint64_t looks = 0;
  errc seen = errc::pending;
  while ((seen = driver_.query(e)) == errc::pending) {
    const runtime::time_ns now_ns = executor_.precise_now();
    if (now_ns > began_ns + most_ns || (now_ns == began_ns && ++looks > most_looks)) return state::still_running;
  }
  must(seen);
  return state::ended;
}

void cuda_kernels::must_pass(transports::cuda_event e) {
  if (wait_for(e, longest_ns) == state::still_running)
    runtime::raise({errc::device_failed, "a kernel on device " + std::to_string(device_) + " has not ended after " +
                                             std::to_string(longest_ns / 1'000'000'000) + " s"});
}

void cuda_kernels::finish() {
  must(driver_.record(mark_, stream_));
  must_pass(mark_);
}

std::string cuda_kernels::why_not_now() {
  if (is_capturing()) return "its stream is being captured";
  must(driver_.record(mark_, stream_));
  return wait_for(mark_, patience_ns) == state::ended ? "" : "its stream has earlier work that has not ended";
}

std::uint64_t cuda_kernels::cache_bytes() const noexcept {
  return driver_.devices()[static_cast<std::size_t>(device_)].l2_bytes;
}

void cuda_kernels::evict(std::uint64_t bytes, bool instructions) {
  if (instructions) must(driver_.flush_instructions(stream_));
  if (other_data_.bytes().size() < bytes) {
    try {
      other_data_ = transports::cuda_memory::on_device(driver_, device_, bytes);
    } catch (const runtime::failure&) {
      // What is there must do.
    }
  }
  const auto some = other_data_.bytes().first(std::min<std::size_t>(bytes, other_data_.bytes().size()));
  if (!some.empty()) must(driver_.fill(some, std::byte{1}, stream_));
}

std::size_t cuda_kernels::begin_timer() {
  auto its = std::find_if(timers_.begin(), timers_.end(), [](const timer& t) { return !t.is_used; });
  if (its == timers_.end()) its = timers_.insert(its, timer{});
  if (its->began == nullptr) its->began = driver_.make_timed_event(device_);
  if (its->ended == nullptr) its->ended = driver_.make_timed_event(device_);
  must(driver_.record(its->began, stream_));
  its->is_used = true;
  return static_cast<std::size_t>(its - timers_.begin());
}

void cuda_kernels::end_timer(std::size_t number) { must(driver_.record(timers_[number].ended, stream_)); }

bool cuda_kernels::is_over(std::size_t number) {
  const errc seen = driver_.query(timers_[number].ended);
  if (seen == errc::pending) return false;
  must(seen);
  return true;
}

double cuda_kernels::took_ns(std::size_t number) {
  must_pass(timers_[number].ended);
  return driver_.elapsed_ns(timers_[number].began, timers_[number].ended).value();
}

void cuda_kernels::copy(void* to, const void* from, std::size_t bytes) {
  must(driver_.copy(to, from, bytes, stream_));
  finish();
}

void cuda_kernels::fill(std::span<std::byte> memory, std::byte with) {
  if (!memory.empty()) must(driver_.fill(memory, with, stream_));
}

}  // namespace parley::ops

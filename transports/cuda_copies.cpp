#include <parley/transports/cuda_copies.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace parley::transports {

using runtime::completion;
using runtime::errc;

cuda_copies::cuda_copies(cuda_driver& driver, int device, options o)
    : driver_(driver), device_(device), options_(o), event_fd_(::eventfd(0, EFD_CLOEXEC)) {
  if (device < 0 || static_cast<std::size_t>(device) >= driver.devices().size())
    runtime::raise({errc::bad_argument, "device " + std::to_string(device) + " does not exist: this machine shows " +
                                            std::to_string(driver.devices().size()) +
                                            " GPUs, counted from 0; see CUDA_VISIBLE_DEVICES"});
  for (unsigned i = 0; i < std::max(1U, o.streams); ++i) streams_.push_back({driver.make_stream(device), {}});
}

cuda_copies::~cuda_copies() {
  // What has been enqueued will touch memory: it must end first. A broken device ends everything at once.
  drain();
  for (const ordering& o : orderings_) driver_.destroy(o.event);
  for (const cuda_event e : free_events_) driver_.destroy(e);
  for (const queue& q : streams_) driver_.destroy(q.stream);
  ::close(event_fd_);
}

void cuda_copies::drain() noexcept {
  while (pending_ != 0) static_cast<void>(poll());
}

cuda_copies::queue& cuda_copies::shortest() noexcept {
  return *std::min_element(streams_.begin(), streams_.end(),
                           [](const queue& a, const queue& b) { return a.marks.size() < b.marks.size(); });
}

cuda_event cuda_copies::take_event() {
  if (free_events_.empty()) return driver_.make_event(device_);
  const cuda_event last = free_events_.back();
  free_events_.pop_back();
  return last;
}

errc cuda_copies::put_mark(queue& q, completion* done) {
  const cuda_event e = take_event();
  if (const errc recorded = driver_.record(e, q.stream); recorded != errc::none) {
    free_events_.push_back(e);
    return recorded;
  }
  q.marks.push_back({e, done});
  ++pending_;
  return errc::pending;
}

errc cuda_copies::enqueue(queue& q, std::span<std::byte> to, std::span<const std::byte> from,
                          cuda_copies* other) noexcept {
  errc failed = errc::none;
  for (cuda_copies* const rank : {this, other}) {
    if (rank == nullptr || failed != errc::none) continue;
    failed = rank->order(q.stream, from);
    if (failed == errc::none) failed = rank->order(q.stream, to);
  }
  if (failed != errc::none) return failed;
  const auto on_device = [&](const std::byte* at) { return driver_.place_of(at).what == memory_place::kind::device; };
  if (from.size() <= options_.kernel_up_to_bytes && on_device(to.data()) && on_device(from.data())) {
    failed = driver_.copy_by_kernel(to.data(), from.data(), from.size(), options_.kernel_blocks, q.stream);
    ++counters_.by_kernel;
  } else {
    failed = driver_.copy(to.data(), from.data(), from.size(), q.stream);
  }
  ++counters_.copies;
  counters_.bytes += from.size();
  return failed;
}

errc cuda_copies::copy(std::span<std::byte> to, std::span<const std::byte> from, completion* done,
                       cuda_copies* other) noexcept {
  try {
    queue& q = shortest();
    const errc failed = enqueue(q, to.first(from.size()), from, other);
    return failed == errc::none ? put_mark(q, done) : failed;
  } catch (const runtime::failure& f) {
    return f.code();
  }
}

errc cuda_copies::after(std::span<const std::byte> memory, cuda_stream stream) noexcept {
  try {
    const std::byte* const end = memory.data() + memory.size();
    const auto same = [&](const ordering& o) { return o.begin == memory.data() && o.end == end; };
    auto at = std::find_if(orderings_.begin(), orderings_.end(), same);
    if (at == orderings_.end()) {
      orderings_.push_back({memory.data(), end, take_event()});
      at = std::prev(orderings_.end());
    }
    return driver_.record(at->event, stream);
  } catch (const runtime::failure& f) {
    return f.code();
  }
}

// Those that have happened order nothing any more. `each` answers whether to go on.
template <class Each>
void cuda_copies::for_each_order(std::span<const std::byte> memory, Each each) noexcept {
  for (std::size_t i = 0; i < orderings_.size();) {
    const ordering o = orderings_[i];
    if (o.begin >= memory.data() + memory.size() || memory.data() >= o.end) {
      ++i;
    } else if (driver_.query(o.event) == errc::none) {
      free_events_.push_back(o.event);
      orderings_[i] = orderings_.back();
      orderings_.pop_back();
    } else {
      if (!each(o)) return;
      ++i;
    }
  }
}

errc cuda_copies::order(cuda_stream s, std::span<const std::byte> memory) noexcept {
  errc failed = errc::none;
  for_each_order(memory, [&](const ordering& o) { return (failed = driver_.wait(s, o.event)) == errc::none; });
  return failed;
}

bool cuda_copies::busy(std::span<const std::byte> memory) noexcept {
  bool found = false;
  for_each_order(memory, [&](const ordering&) { return !(found = true); });
  return found;
}

errc cuda_copies::settle(std::span<const std::byte> memory, completion* done) noexcept {
  try {
    queue& q = shortest();
    const errc failed = order(q.stream, memory);
    return failed == errc::none ? put_mark(q, done) : failed;
  } catch (const runtime::failure& f) {
    return f.code();
  }
}

errc cuda_copies::watch(cuda_stream stream, completion* done) noexcept {
  try {
    const auto same = [&](const queue& q) { return q.stream == stream; };
    auto at = std::find_if(watched_.begin(), watched_.end(), same);
    if (at == watched_.end()) at = watched_.insert(watched_.end(), {stream, {}});
    return put_mark(*at, done);
  } catch (const runtime::failure& f) {
    return f.code();
  }
}

runtime::result<> cuda_copies::in_words(errc outcome) const {
  if (outcome != errc::device_failed) return outcome;
  return runtime::error{outcome, "device " + std::to_string(device_) + ": " + driver_.fault()};
}

void cuda_copies::forget(completion* done) noexcept {
  const auto drop = [&](queue& q) {
    for (mark& m : q.marks) {
      if (m.done == done) m.done = nullptr;
    }
  };
  std::for_each(streams_.begin(), streams_.end(), drop);
  std::for_each(watched_.begin(), watched_.end(), drop);
}

// How many of the queue's marks have ended; those of a broken stream all have.
std::size_t cuda_copies::finish(queue& q, errc outcome) {
  std::size_t count = 0;
  while (!q.marks.empty()) {
    const mark first = q.marks.front();
    if (outcome == errc::none) {
      ++counters_.polls;
      const errc seen = driver_.query(first.event);
      if (seen == errc::pending) break;
      outcome = seen;
    }
    free_events_.push_back(first.event);
    q.marks.pop_front();
    --pending_;
    ++count;
    if (first.done != nullptr) first.done->on_end(*first.done, outcome);  // which may start a copy, or watch a stream
  }
  return count;
}

bool cuda_copies::poll() {
  if (pending_ == 0) return false;
  std::size_t count = 0;
  for (queue& q : streams_) count += finish(q, errc::none);
  // NOLINTNEXTLINE(modernize-loop-convert): it may grow meanwhile
  for (std::size_t i = 0; i < watched_.size(); ++i) count += finish(watched_[i], errc::none);
  std::erase_if(watched_, [](const queue& q) { return q.marks.empty(); });
  return count != 0;
}

}  // namespace parley::transports

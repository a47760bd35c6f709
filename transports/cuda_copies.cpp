#include <parley/transports/cuda_copies.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace parley::transports {

using runtime::completion;
using runtime::errc;

namespace {
constexpr std::size_t most_words = 1024;
constexpr unsigned look_at_device_after = 1000;  // about a millisecond
}  // namespace

cuda_copies::cuda_copies(cuda_driver& driver, int device, options o) : driver_(driver), device_(device), options_(o) {
  if (device < 0 || static_cast<std::size_t>(device) >= driver.devices().size())
    runtime::raise({errc::bad_argument, "device " + std::to_string(device) + " does not exist: this machine shows " +
                                            std::to_string(driver.devices().size()) +
                                            " GPUs, counted from 0; see CUDA_VISIBLE_DEVICES"});
  event_fd_ = ::eventfd(0, EFD_CLOEXEC);
  options_.streams = std::max(1U, o.streams);
  check_ = driver.make_event(device);
  words_ = cuda_memory::pinned(driver, most_words * sizeof(std::uint32_t));
  std::memset(words_.bytes().data(), 0, words_.bytes().size());
  for (unsigned i = 0; i < options_.streams + o.first_waiting; ++i)
    streams_.push_back(make_queue(driver.make_stream(device)));
  const errc tried = driver.write_value(streams_.front().stream, words_.bytes().data(), 0);
  if (tried == errc::none) return;
  give_back();
  runtime::raise({errc::unavailable,
                  "device " + std::to_string(device) + " cannot say by a word that it has copied: " + driver.fault()});
}

cuda_copies::~cuda_copies() {
  // What has been enqueued will touch memory: it must end first. A broken device ends everything at once.
  drain();
  give_back();
}

void cuda_copies::give_back() noexcept {
  for (const ordering& o : orderings_) driver_.destroy(o.event);
  for (const cuda_event e : free_events_) driver_.destroy(e);
  driver_.destroy(check_);
  for (const queue& q : streams_) driver_.destroy(q.stream);
  ::close(event_fd_);
}

void cuda_copies::drain() noexcept {
  while (pending_ != 0) static_cast<void>(poll());
}

cuda_copies::queue cuda_copies::make_queue(cuda_stream s) {
  if (!free_words_.empty()) {
    const std::size_t word = free_words_.back();
    free_words_.pop_back();
    return {s, word};
  }
  if (last_numbers_.size() == most_words)
    runtime::raise(
        {errc::full, "more than " + std::to_string(most_words) + " streams of a device are watched at a time"});
  last_numbers_.push_back(0);
  return {s, last_numbers_.size() - 1};
}

// A kernel may be waiting for a message, and the copy that brings this must not be behind one that waits for that kernel.
cuda_copies::queue& cuda_copies::queue_for(beginning when) {
  const auto shorter = [](const queue& a, const queue& b) { return a.marks.size() < b.marks.size(); };
  const auto first_others = streams_.begin() + options_.streams;
  queue* best = nullptr;
  if (when == beginning::at_once) {
    const auto first = std::min_element(streams_.begin(), first_others, shorter);
    if (first->marks.empty() || !first->waits) best = &*first;
  }
  // One that waits has a stream to itself.
  const auto idle = std::find_if(first_others, streams_.end(), [](const queue& q) { return q.marks.empty(); });
  if (best == nullptr && idle != streams_.end()) best = &*idle;
  if (best == nullptr && streams_.size() < options_.streams + options_.most_waiting)
    best = &streams_.emplace_back(make_queue(driver_.make_stream(device_)));
  if (best == nullptr) best = &*std::min_element(streams_.begin(), streams_.end(), shorter);
  best->waits = when == beginning::behind_kernels || (best->waits && !best->marks.empty());
  return *best;
}

cuda_event cuda_copies::take_event() {
  if (free_events_.empty()) return driver_.make_event(device_);
  const cuda_event last = free_events_.back();
  free_events_.pop_back();
  return last;
}

errc cuda_copies::put_mark(queue& q, completion* done, std::span<const std::byte> from) {
  const std::uint32_t number = last_numbers_[q.word] + 1;
  const errc written = driver_.write_value(q.stream, words_.bytes().data() + q.word * sizeof(std::uint32_t), number);
  if (written != errc::none) return written;
  last_numbers_[q.word] = number;
  q.marks.push_back({number, done, from});
  ++pending_;
  return errc::pending;
}

errc cuda_copies::enqueue(cuda_stream s, std::span<std::byte> to, std::span<const std::byte> from) noexcept {
  ++counters_.copies;
  counters_.bytes += from.size();
  const auto on_device = [&](const std::byte* at) { return driver_.place_of(at).what == memory_place::kind::device; };
  if (from.size() > options_.kernel_up_to_bytes || !on_device(to.data()) || !on_device(from.data()))
    return driver_.copy(to.data(), from.data(), from.size(), s);
  ++counters_.by_kernel;
  return driver_.copy_by_kernel(to.data(), from.data(), from.size(), options_.kernel_blocks, s);
}

errc cuda_copies::copy(std::span<std::byte> to, std::span<const std::byte> from, completion* done,
                       cuda_copies* other) noexcept {
  try {
    to = to.first(from.size());
    const auto is_busy = [&](cuda_copies* rank) { return rank != nullptr && (rank->busy(from) || rank->busy(to)); };
    const bool waits = is_busy(this) || is_busy(other);
    queue& q = queue_for(waits ? beginning::behind_kernels : beginning::at_once);
    errc failed = errc::none;
    for (cuda_copies* const rank : {this, other}) {
      if (!waits || rank == nullptr || failed != errc::none) continue;
      failed = rank->order(q.stream, from);
      if (failed == errc::none) failed = rank->order(q.stream, to);
    }
    if (failed == errc::none) failed = enqueue(q.stream, to, from);
    return failed == errc::none ? put_mark(q, done, from) : failed;
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

errc cuda_copies::after(std::span<const std::byte> memory, cuda_stream stream) noexcept {
  try {
    const std::uint64_t behind = flags_ ? flags_->down_for(memory) : 0;
    // What another stream has, or comes before another message, still counts.
    const auto same = [&](const ordering& o) {
      return o.memory.data() == memory.data() && o.memory.size() == memory.size() && o.stream == stream &&
             o.behind == behind;
    };
    auto at = std::find_if(orderings_.begin(), orderings_.end(), same);
    if (at == orderings_.end()) {
      orderings_.push_back({memory, stream, take_event(), behind});
      at = std::prev(orderings_.end());
    }
    return driver_.record(at->event, stream);
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

// Those that have happened order nothing any more. `each` answers whether to go on.
template <class Each>
void cuda_copies::for_each_order(std::span<const std::byte> memory, orders which, Each each) noexcept {
  for (std::size_t i = 0; i < orderings_.size();) {
    const ordering o = orderings_[i];
    const bool follows = which == orders::that_copies_follow && o.behind != 0 && flags_->is_down(o.behind);
    if (!overlap(o.memory, memory) || follows) {
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

errc cuda_copies::order(cuda_stream s, std::span<const std::byte> memory, orders which) noexcept {
  errc failed = errc::none;
  for_each_order(memory, which, [&](const ordering& o) { return (failed = driver_.wait(s, o.event)) == errc::none; });
  return failed;
}

bool cuda_copies::busy(std::span<const std::byte> memory) noexcept { return busy(memory, orders::that_copies_follow); }

bool cuda_copies::busy(std::span<const std::byte> memory, orders which) noexcept {
  bool found = false;
  for_each_order(memory, which, [&](const ordering&) { return !(found = true); });
  return found;
}

errc cuda_copies::tell_after(std::span<const std::byte> memory, orders which, completion* done) noexcept {
  try {
    if (!busy(memory, which)) return errc::none;
    queue& q = queue_for(beginning::behind_kernels);
    const errc failed = order(q.stream, memory, which);
    return failed == errc::none ? put_mark(q, done) : failed;
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

errc cuda_copies::watch(cuda_stream stream, completion* done) noexcept {
  try {
    const auto same = [&](const queue& q) { return q.stream == stream; };
    auto at = std::find_if(watched_.begin(), watched_.end(), same);
    if (at == watched_.end()) at = watched_.insert(watched_.end(), make_queue(stream));
    return put_mark(*at, done);
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

cuda_flags& cuda_copies::flags() {
  if (!flags_) flags_.emplace(driver_, device_);
  return *flags_;
}

std::uint64_t cuda_copies::expect(std::span<const std::byte> memory) { return flags().expect(memory); }

errc cuda_copies::wait_on(std::span<const std::byte> memory, cuda_stream stream) noexcept {
  return flags_ ? flags_->hold(stream, memory) : errc::none;
}

void cuda_copies::came(std::uint64_t expected, errc outcome) noexcept {
  if (flags_) flags_->came(expected, outcome);
}

errc cuda_copies::write_behind(std::span<const std::byte> data, std::byte* at, std::uint32_t value,
                               completion* done) noexcept {
  try {
    queue* behind = nullptr;  // that has the last of these copies; it waits for the others
    for (queue& q : streams_) {
      if (std::ranges::none_of(q.marks, [&](const mark& m) { return overlap(m.from, data); })) continue;
      if (behind != nullptr) {
        const cuda_event others = take_event();
        free_events_.push_back(others);  // a wait is for what has been recorded by now
        errc failed = driver_.record(others, behind->stream);
        if (failed == errc::none) failed = driver_.wait(q.stream, others);
        if (failed != errc::none) return failed;
      }
      behind = &q;
    }
    queue& q = behind == nullptr ? queue_for(beginning::at_once) : *behind;
    const errc failed = driver_.write_value(q.stream, at, value);
    return failed == errc::none ? put_mark(q, done) : failed;
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

runtime::result<> cuda_copies::in_words(errc outcome) const {
  if (refused_ && outcome == refused_->code())
    return runtime::error{outcome, "device " + std::to_string(device_) + ": " + refused_->text()};
  if (outcome != errc::device_failed) return outcome;
  return runtime::error{outcome, "device " + std::to_string(device_) + ": " + driver_.fault()};
}

errc cuda_copies::refused(const runtime::failure& why) noexcept {
  refused_ = why.reason();
  return why.code();
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
  if (q.marks.empty()) return 0;
  ++counters_.polls;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(words_.bytes().data());
  const std::uint32_t reached = driver_.look_at(words + q.word);
  std::size_t count = 0;
  while (!q.marks.empty()) {
    const mark first = q.marks.front();
    // Numbers go round in a circle.
    if (outcome == errc::none && static_cast<std::int32_t>(reached - first.number) < 0) break;
    q.marks.pop_front();
    --pending_;
    ++count;
    if (first.done != nullptr) first.done->on_end(*first.done, outcome);  // which may start a copy, or watch a stream
  }
  return count;
}

// A device that has failed writes no word any more, but says so when it is asked.
errc cuda_copies::look_at_device(cuda_stream s) noexcept {
  const errc recorded = driver_.record(check_, s);
  if (recorded != errc::none) return recorded;
  const errc seen = driver_.query(check_);
  return seen == errc::pending ? errc::none : seen;
}

bool cuda_copies::poll() {
  if (pending_ == 0) return false;
  std::size_t count = 0;
  errc device = errc::none;
  if (fruitless_ >= look_at_device_after) {
    fruitless_ = 0;
    device = look_at_device(streams_.front().stream);
  }
  // NOLINTBEGIN(modernize-loop-convert): both may grow meanwhile
  for (std::size_t i = 0; i < streams_.size(); ++i) count += finish(streams_[i], device);
  for (std::size_t i = 0; i < watched_.size(); ++i) count += finish(watched_[i], device);
  // NOLINTEND(modernize-loop-convert)
  std::erase_if(watched_, [this](const queue& q) {
    if (q.marks.empty()) free_words_.push_back(q.word);
    return q.marks.empty();
  });
  fruitless_ = count == 0 ? fruitless_ + 1 : 0;
  return count != 0;
}

}  // namespace parley::transports

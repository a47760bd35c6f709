#include <parley/cuda_copies.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace parley::transports {

using runtime::completion;
using runtime::errc;

namespace {
constexpr std::size_t most_words = 1024;
constexpr unsigned look_at_device_after = 1000;  // about a millisecond
// The minimum: one for copies that wait for nothing, one for copies that wait for kernels, one for flags, and one for the program.
constexpr unsigned streams_of_a_rank = 4;

std::string what_is_wrong(const memory_place& at, bool is_here, bool begins_right, std::size_t alignment) {
  if (at.what == memory_place::kind::host)
    return "are not in memory known to CUDA: they lie in host memory, or were freed";
  if (at.what == memory_place::kind::device && !is_here)
    return fmt::format("lie on device {}; copy them, or use that device's rank", at.device);
  if (!begins_right) return fmt::format("do not begin at a multiple of {}, as numbers of this type must", alignment);
  return "belong to another context; allocate them by cudaMalloc, or in the device's primary context";
}
}  // namespace

cuda_copies::options cuda_copies::shared_by(const cuda_driver& driver, unsigned ranks, options o) {
  const unsigned share = driver.queues() / std::max(1U, ranks);
  o.expects_messages = o.expects_messages && share >= streams_of_a_rank;
  o.streams = std::min(o.streams, std::max(1U, share / streams_of_a_rank));
  o.most_waiting = std::min(o.most_waiting, std::max(share, streams_of_a_rank) - 2 - o.streams);
  return o;
}

cuda_copies::cuda_copies(cuda_driver& driver, int device, options o)
    : driver_(driver), device_(device), options_(o), events_(std::make_shared<event_pool>(driver)) {
  if (device < 0 || static_cast<std::size_t>(device) >= driver.devices().size())
    runtime::raise({errc::bad_argument, "device " + std::to_string(device) + " does not exist: this machine shows " +
                                            std::to_string(driver.devices().size()) +
                                            " GPUs, counted from 0; see CUDA_VISIBLE_DEVICES"});
  event_fd_ = ::eventfd(0, EFD_CLOEXEC);
  options_.streams = std::max(1U, o.streams);
  options_.usual_streams = std::max(1U, o.usual_streams);
  check_ = driver.make_event(device);
  words_ = cuda_memory::pinned(driver, most_words * sizeof(std::uint32_t));
  std::memset(words_.bytes().data(), 0, words_.bytes().size());
  for (unsigned i = 0; i < options_.streams + options_.most_waiting; ++i)
    streams_.push_back(make_queue(driver.make_stream(device)));
  const errc tried = driver.write_value(streams_.front().stream, words_.bytes().data(), 0);
  if (tried == errc::none) {
    make_flags();
    return;
  }
  give_back();
  runtime::raise({errc::unavailable, "device " + std::to_string(device) +
                                         " cannot write a word to memory when it has copied: " + driver.fault()});
}

cuda_copies::~cuda_copies() {
  // Enqueued work touches memory, so it must end first. If the device is broken, everything ends at once.
  drain();
  give_back();
}

void cuda_copies::give_back() noexcept {
  driver_.destroy(check_);
  for (const copy_queue& q : streams_) driver_.destroy(q.stream);
  ::close(event_fd_);
}

void cuda_copies::drain() noexcept {
  while (pending_ != 0) static_cast<void>(poll());
}

copy_queue cuda_copies::make_queue(cuda_stream s) {
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

// Returns a stream for copies that wait for nothing. A kernel may wait for a message, and the copy that brings the message must not be
// queued behind a copy that waits for kernels. So each copy that waits for kernels gets its own idle stream, or waits in `put_off_` if no
// stream is idle.
copy_queue& cuda_copies::shortest(unsigned of) {
  const auto shorter = [](const copy_queue& a, const copy_queue& b) { return a.marks.size() < b.marks.size(); };
  const unsigned among = std::min(of == 0 ? options_.usual_streams : of, options_.streams);
  return *std::min_element(streams_.begin(), streams_.begin() + among, shorter);
}

copy_queue* cuda_copies::idle() {
  const auto found = std::find_if(streams_.begin() + options_.streams, streams_.end(),
                                  [](const copy_queue& q) { return q.marks.empty(); });
  return found == streams_.end() ? nullptr : &*found;
}

cuda_copies::moment cuda_copies::take_event() {
  cuda_event taken{};
  if (events_->unused.empty()) {
    taken = driver_.make_event(device_);
  } else {
    taken = events_->unused.back();
    events_->unused.pop_back();
  }
  // Another rank may keep the event longer than this object lives, so the deleter keeps the pool alive.
  const auto give_back = [pool = events_](const cuda_event* e) {
    pool->unused.push_back(*e);
    delete e;
  };
  return {new cuda_event(taken), give_back};
}

errc cuda_copies::put_mark(copy_queue& q, completion* done, std::span<const std::byte> from) {
  const std::uint32_t number = last_numbers_[q.word] + 1;
  const errc written = driver_.write_value(q.stream, words_.bytes().data() + q.word * sizeof(std::uint32_t), number);
  if (written != errc::none) return written;
  last_numbers_[q.word] = number;
  q.marks.push_back({number, done, from});
  ++pending_;
  return errc::pending;
}

errc cuda_copies::enqueue_copy(cuda_stream s, const copy_request& r) noexcept {
  ++counters_.copies;
  counters_.bytes += r.from.size();
  // If the device cannot reach the memory directly, a kernel would fault and break the device; a copy engine goes through the host.
  const auto reaches = [&](const std::byte* at) {
    const memory_place place = driver_.place_of(at);
    const auto& peers = driver_.devices()[static_cast<std::size_t>(device_)].peers;
    return place.what == memory_place::kind::device &&
           (place.device == device_ || std::ranges::count(peers, place.device) != 0);
  };
  if (r.by.kernel_blocks == 0 || !reaches(r.to) || !reaches(r.from.data()))
    return driver_.copy(r.to, r.from.data(), r.from.size(), s);
  ++counters_.by_kernel;
  return driver_.copy_by_kernel(r.to, r.from.data(), r.from.size(), r.by.kernel_blocks, s);
}

errc cuda_copies::enqueue(copy_queue& q, const copy_request& r) {
  errc failed = errc::none;
  for (const moment& m : r.behind) {
    if (failed == errc::none) failed = driver_.wait(q.stream, *m);
  }
  const bool copies = r.what == copy_request::kind::copy;
  if (failed == errc::none && copies) failed = enqueue_copy(q.stream, r);
  if (failed == errc::none && r.what == copy_request::kind::write)
    failed = driver_.write_value(q.stream, r.to, r.value);
  return failed == errc::none ? put_mark(q, r.done, copies ? r.from : std::span<const std::byte>{}) : failed;
}

errc cuda_copies::copy(std::span<std::byte> to, std::span<const std::byte> from, completion* done, cuda_copies* other,
                       runtime::device_copy by, copy_waits where) noexcept {
  try {
    to = to.first(from.size());
    copy_request r{
        .what = copy_request::kind::copy, .done = done, .where = where, .by = by, .from = from, .to = to.data()};
    for (cuda_copies* const rank : {this, other}) {
      if (rank == nullptr) continue;
      rank->note_moments(from, which_work::that_copies_follow, r.behind);
      rank->note_moments(to, which_work::that_copies_follow, r.behind);
    }
    // If memory is not pinned, CUDA blocks its caller until the copy has ended. But this thread may have to receive the message that the
    // copy waits for.
    const auto holds_caller = [this](const void* at) { return driver_.place_of(at).what == memory_place::kind::host; };
    if (!r.behind.empty() && (holds_caller(to.data()) || holds_caller(from.data())))
      r.where = copy_waits::in_host_memory;
    return start(std::move(r));
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

errc cuda_copies::after(std::span<const std::byte> memory, cuda_stream stream) noexcept {
  try {
    const std::vector<std::uint64_t> behind = to_come_before(memory, stream);
    // Orderings after other streams, or behind other messages, stay valid.
    const auto same = [&](const noted_work& o) {
      return o.memory.data() == memory.data() && o.memory.size() == memory.size() && o.stream == stream &&
             o.behind == behind;
    };
    auto at = std::find_if(orderings_.begin(), orderings_.end(), same);
    if (at == orderings_.end()) {
      // An ordering that is behind flags is never reused, so drop those that have happened.
      if (!behind.empty()) for_each_order(memory, which_work::all, [](const noted_work&) { return true; });
      at = orderings_.insert(orderings_.end(), {memory, stream, take_event(), behind});
    } else if (at->at.use_count() != 1) {
      at->at = take_event();
    }
    return driver_.record(*at->at, stream);
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

std::vector<std::uint64_t> cuda_copies::to_come_before(std::span<const std::byte> memory, cuda_stream stream) {
  if (!flags_) return {};
  std::vector<std::uint64_t> all = flags_->down_for(memory);
  std::erase_if(holds_, [this](const auto& h) { return !flags_->is_down(h.second); });
  for (const auto& [held, flag] : holds_) {
    if (held == stream) all.push_back(flag);
  }
  return all;
}

std::uint64_t cuda_copies::hold(cuda_stream stream) {
  const std::uint64_t flag = expect({});
  holds_.emplace_back(stream, flag);
  in_words(flags_->hold(stream, flag)).value();
  return flag;
}

cuda_copies::moment cuda_copies::moment_of(cuda_stream stream) {
  moment now = take_event();
  in_words(driver_.record(*now, stream)).value();
  return now;
}

// Calls `each` for each ordering of `memory` that has not happened yet, until `each` returns false; drops those that have happened.
template <class Each>
void cuda_copies::for_each_order(std::span<const std::byte> memory, which_work which, Each each) noexcept {
  for (std::size_t i = 0; i < orderings_.size();) {
    const noted_work& o = orderings_[i];
    const auto is_to_come = [this](std::uint64_t flag) { return flags_->is_down(flag); };
    const bool follows =
        which == which_work::that_copies_follow && std::any_of(o.behind.begin(), o.behind.end(), is_to_come);
    if (!overlap(o.memory, memory) || follows) {
      ++i;
    } else if (driver_.query(*o.at) == errc::none) {
      orderings_[i] = std::move(orderings_.back());
      orderings_.pop_back();
    } else {
      if (!each(o)) return;
      ++i;
    }
  }
}

errc cuda_copies::order(cuda_stream s, std::span<const std::byte> memory, which_work which) noexcept {
  errc failed = errc::none;
  for_each_order(memory, which, [&](const noted_work& o) { return (failed = driver_.wait(s, *o.at)) == errc::none; });
  return failed;
}

errc cuda_copies::order(cuda_stream s, std::span<const std::byte> memory) noexcept {
  return order(s, memory, which_work::that_copies_follow);
}

errc cuda_copies::order_behind_all(cuda_stream s, std::span<const std::byte> memory) noexcept {
  return order(s, memory, which_work::all);
}

bool cuda_copies::busy(std::span<const std::byte> memory) noexcept {
  bool found = false;
  for_each_order(memory, which_work::that_copies_follow, [&](const noted_work&) { return !(found = true); });
  return found;
}

void cuda_copies::note_moments(std::span<const std::byte> memory, which_work which,
                               std::vector<moment>& into) noexcept {
  for_each_order(memory, which, [&](const noted_work& o) {
    into.push_back(o.at);
    return true;
  });
}

errc cuda_copies::tell_after(std::span<const std::byte> memory, which_work which, completion* done) noexcept {
  try {
    copy_request r{.what = copy_request::kind::tell, .done = done};
    note_moments(memory, which, r.behind);
    return r.behind.empty() ? errc::none : start(std::move(r));
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

errc cuda_copies::when_free(std::span<const std::byte> memory, completion* done) noexcept {
  return tell_after(memory, which_work::that_copies_follow, done);
}

errc cuda_copies::settle(std::span<const std::byte> memory, completion* done) noexcept {
  return tell_after(memory, which_work::all, done);
}

errc cuda_copies::watch(cuda_stream stream, completion* done) noexcept {
  try {
    const auto same = [&](const copy_queue& q) { return q.stream == stream; };
    auto at = std::find_if(watched_.begin(), watched_.end(), same);
    if (at == watched_.end()) at = watched_.insert(watched_.end(), make_queue(stream));
    return put_mark(*at, done);
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

// Made together with the streams. If the device cannot have flags, `flags()` tries again and reports why.
void cuda_copies::make_flags() {
  if (!options_.expects_messages) return;
  try {
    flags_.emplace(driver_, device_);
  } catch (const runtime::failure&) {
    flags_.reset();
  }
}

cuda_flags& cuda_copies::flags() {
  if (!flags_) flags_.emplace(driver_, device_);
  return *flags_;
}

std::uint64_t cuda_copies::expect(std::span<const std::byte> memory) {
  if (!options_.expects_messages) {
    const unsigned queues = driver_.queues();
    const std::string why = queues < streams_of_a_rank ? fmt::format("this process has {} queues of", queues)
                                                       : "too many ranks of this process share";
    const std::string remedy =
        queues < streams_of_a_rank
            ? "unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to 32"
            : fmt::format("start {} ranks for each GPU at most, or processes", queues / streams_of_a_rank);
    runtime::raise(
        {errc::unavailable,
         fmt::format("{} device {}: a stream that waits for a message would hold up the one that brings it; {}", why,
                     device_, remedy)});
  }
  return flags().expect(memory);
}

errc cuda_copies::wait_on(std::span<const std::byte> memory, cuda_stream stream) noexcept {
  return flags_ ? flags_->hold(stream, memory) : errc::none;
}

void cuda_copies::came(std::uint64_t expected, errc outcome) noexcept {
  if (flags_) flags_->came(expected, outcome);
}

void cuda_copies::give_up_on(std::span<const std::byte> memory, errc why) noexcept {
  if (flags_) flags_->came(flags_->oldest_for(memory), why);
}

// Returns the last queue that has copies of `data`, after making it wait for the copies of `data` in other queues. If no queue has such
// copies, returns any queue.
runtime::result<copy_queue*> cuda_copies::behind_copies_of(std::span<const std::byte> data) {
  copy_queue* behind = nullptr;
  for (copy_queue& q : streams_) {
    if (std::ranges::none_of(q.marks, [&](const copy_mark& m) { return overlap(m.from, data); })) continue;
    if (behind != nullptr) {
      const moment others = take_event();  // reusable at once: the wait below is for the record that precedes it
      errc failed = driver_.record(*others, behind->stream);
      if (failed == errc::none) failed = driver_.wait(q.stream, *others);
      if (failed != errc::none) return failed;
    }
    behind = &q;
  }
  return behind == nullptr ? &shortest() : behind;
}

// The queue for a request; null if the request must wait on the host. `earlier`: how many in `put_off_` were started before it.
runtime::result<copy_queue*> cuda_copies::stream_for(const copy_request& r, std::size_t earlier) {
  if (r.what != copy_request::kind::write && r.behind.empty()) return &shortest(r.by.streams);
  if (r.what != copy_request::kind::write) return r.where == copy_waits::in_host_memory ? nullptr : idle();
  const auto is_of_it = [&](const copy_request& o) {
    return o.what == copy_request::kind::copy && overlap(o.from, r.from);
  };
  const auto end = put_off_.begin() + static_cast<std::ptrdiff_t>(earlier);
  return std::any_of(put_off_.begin(), end, is_of_it) ? nullptr : behind_copies_of(r.from);
}

errc cuda_copies::start(copy_request r) {
  const auto q = stream_for(r, put_off_.size());
  if (!q) return q.reason().code();
  if (*q != nullptr) return enqueue(**q, r);
  put_off_.push_back(std::move(r));
  ++pending_;
  return errc::pending;
}

// Enqueues the put-off requests whose wait is over, or for which a stream is free now. Returns how many left `put_off_`.
std::size_t cuda_copies::go_on(errc device) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < put_off_.size();) {
    std::vector<moment>& behind = put_off_[i].behind;
    errc how = device;
    while (how == errc::none && !behind.empty() && (how = driver_.query(*behind.back())) == errc::none)
      behind.pop_back();
    copy_queue* q = nullptr;
    if (how == errc::none || how == errc::pending) {
      const auto found = stream_for(put_off_[i], i);
      if (found && *found == nullptr) {
        ++i;
        continue;
      }
      how = found ? errc::none : found.reason().code();
      if (found) q = *found;
    }
    const copy_request r = std::move(put_off_[i]);
    put_off_.erase(put_off_.begin() + static_cast<std::ptrdiff_t>(i));
    --pending_;
    ++count;
    if (q != nullptr) how = enqueue(*q, r);
    if (how != errc::pending && r.done != nullptr) r.done->on_end(*r.done, how);  // the completion may start a copy
  }
  return count;
}

errc cuda_copies::write_behind(std::span<const std::byte> data, std::byte* at, std::uint32_t value,
                               completion* done) noexcept {
  try {
    return start({.what = copy_request::kind::write, .done = done, .from = data, .to = at, .value = value});
  } catch (const runtime::failure& f) {
    return refused(f);
  }
}

runtime::result<> cuda_copies::check(std::span<const std::byte> memory, std::size_t alignment) {
  if (memory.empty()) return {};
  const memory_place at = driver_.place_of(memory.data());
  const bool is_here = at.what == memory_place::kind::device && at.device == device_;
  const bool begins_right = reinterpret_cast<std::uintptr_t>(memory.data()) % alignment == 0;
  if (begins_right &&
      (at.what == memory_place::kind::pinned || (is_here && ours_.has(memory.data(), driver_, device_))))
    return {};
  // A failed device recognises no memory. Its failure is reported by the operation itself.
  if (at.what == memory_place::kind::host && look_at_device(prompt()) == errc::device_failed) return {};
  return runtime::error{errc::bad_argument, fmt::format("{} bytes at {}, for an op whose buffers lie on device {}, {}",
                                                        memory.size(), fmt::ptr(memory.data()), device_,
                                                        what_is_wrong(at, is_here, begins_right, alignment))};
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
  const auto drop = [&](copy_queue& q) {
    for (copy_mark& m : q.marks) {
      if (m.done == done) m.done = nullptr;
    }
  };
  std::for_each(streams_.begin(), streams_.end(), drop);
  std::for_each(watched_.begin(), watched_.end(), drop);
  for (copy_request& r : put_off_) {
    if (r.done == done) r.done = nullptr;
  }
}

// Ends the marks that the queue's stream has reached, or all of them if the device has failed (`outcome`). Returns how many.
std::size_t cuda_copies::finish(copy_queue& q, errc outcome) {
  if (q.marks.empty()) return 0;
  ++counters_.polls;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(words_.bytes().data());
  const std::uint32_t reached = driver_.look_at(words + q.word);
  std::size_t count = 0;
  while (!q.marks.empty()) {
    const copy_mark first = q.marks.front();
    // Numbers wrap around.
    if (outcome == errc::none && static_cast<std::int32_t>(reached - first.number) < 0) break;
    q.marks.pop_front();
    --pending_;
    ++count;
    if (first.done != nullptr) first.done->on_end(*first.done, outcome);  // it may start a copy or watch a stream
  }
  return count;
}

// A device that has failed writes no more words, but reports its failure at each query. An error that CUDA reports only once was left
// behind by another call, so this queries a second time.
errc cuda_copies::look_at_device(cuda_stream s) noexcept {
  const auto look = [&] {
    const errc recorded = driver_.record(check_, s);
    if (recorded != errc::none) return recorded;
    const errc seen = driver_.query(check_);
    return seen == errc::pending ? errc::none : seen;
  };
  const errc first = look();
  return first == errc::none ? first : look();
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
  count += go_on(device);
  std::erase_if(watched_, [this](const copy_queue& q) {
    if (q.marks.empty()) free_words_.push_back(q.word);
    return q.marks.empty();
  });
  fruitless_ = count == 0 ? fruitless_ + 1 : 0;
  return count != 0;
}

runtime::result<> reached::await_resume() const { return copies_.in_words(outcome); }

void reached::watch() noexcept {
  outcome = copies_.watch(stream_, this);
  watching_ = outcome == errc::pending;
}

void reached::forget() noexcept { copies_.forget(this); }

}  // namespace parley::transports

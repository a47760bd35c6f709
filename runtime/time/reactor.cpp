#include <parley/runtime/time/reactor.hpp>

#include <parley/error.hpp>
#include <parley/runtime/fork_watch.hpp>
#include <parley/runtime/implementation.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace parley::runtime {

namespace {

constexpr std::int64_t work_per_clock_read = 64;    // in turns and resumed coroutines: a clock read costs one turn
constexpr std::uint32_t turns_per_asio_poll = 128;  // polling Asio on every turn would cost a quarter of the loop
constexpr std::uint32_t turns_per_handler = 16;     // while Asio drives, so that its other handlers have their turn
constexpr std::size_t resumes_per_turn = 256;       // so that a busy rank still polls its transports
constexpr std::uint32_t polls_per_clock_read = 16;  // while idle
constexpr time_ns shortest_spin_ns = 1'000;
constexpr time_ns longest_yield_ns = 1'000'000;        // after a longer yield, a process that computes has had the core
constexpr time_ns long_turn_ns = 1'000'000;            // after a longer turn, arrivals are handled before timers fire,
constexpr time_ns longest_taking_in_ns = 100'000'000;  // for at most this time, and at most as long as that turn took
constexpr time_ns fewest_turns_to_take_in = 8;
constexpr std::uint32_t most_polls_before_yield = 8;  // about as long as two switches between processes take
constexpr std::uint32_t polls_of_a_probe = 2;
constexpr std::uint32_t yields_per_probe = 32;
constexpr std::uint32_t waits_per_yield = 64;  // the other ranks on the core get their turn even if answers are quick

time_ns clock_now() noexcept {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<time_ns>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

int checked(int descriptor, const char* what) {
  if (descriptor < 0)
    raise({errc::io, std::string("the reactor cannot make its ") + what + ": " + std::strerror(errno)});
  return descriptor;
}

class file {
 public:
  file(int descriptor, const char* what) : fd_(checked(descriptor, what)) {}
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  ~file() { ::close(fd_); }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

// Threads for `compute`, started at the first use.
class compute_threads {
 public:
  explicit compute_threads(unsigned count) : count_(std::max(1U, count)) {}
  ~compute_threads() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void submit(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    if (threads_.empty()) {
      for (unsigned i = 0; i < count_; ++i) threads_.emplace_back([this] { work(); });
    }
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
  }
  unsigned count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
};

}  // namespace

struct reactor::state final : fork_watch {
  state(reactor& r, options o, boost::asio::io_context* shared)
      : self(r), settings(o), own(shared == nullptr ? std::make_unique<boost::asio::io_context>(1) : nullptr),
        io(shared == nullptr ? *own : *shared), events(epoll_create1(EPOLL_CLOEXEC), "epoll descriptor"),
        posted_event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "event descriptor"),
        next_timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timer descriptor"),
        // Asio closes the descriptor that it watches, so it gets a duplicate.
        watched(io, checked(fcntl(events.get(), F_DUPFD_CLOEXEC, 0), "duplicate descriptor")),
        spin_ns(o.longest_spin_ns), threads(o.compute_threads) {
    add(posted_event.get());
    add(next_timer.get());
  }
  void add(int descriptor) {
    epoll_event interest{};
    interest.events = EPOLLIN;
    interest.data.fd = descriptor;
    if (epoll_ctl(events.get(), EPOLL_CTL_ADD, descriptor, &interest) != 0 && errno != EEXIST)
      raise({errc::io, std::string("the reactor cannot watch a descriptor: ") + std::strerror(errno)});
  }
  void set_timer(time_ns when) {
    if (when == timer_set_to) return;
    timer_set_to = when;
    itimerspec t{};
    if (when != never) {
      t.it_value.tv_sec = when / 1'000'000'000;
      t.it_value.tv_nsec = when % 1'000'000'000;
    }
    timerfd_settime(next_timer.get(), TFD_TIMER_ABSTIME, &t, nullptr);
  }

  bool poll_all() {
    bool any = false;
    for (poller* p : pollers) any = p->poll() || any;
    return any;
  }
  bool something_came() {
    polled = poll_all();
    return polled || any_posted.load(std::memory_order_acquire);
  }
  // On a shared core: an answer from another core may arrive sooner than this rank would get the core back after a yield. So the rank polls
  // before it yields; the number of these polls depends on their recent success. An answer from a rank on this core cannot arrive before a
  // yield.
  bool comes_before_yield() {
    if (waits_since_yield == waits_per_yield) return false;
    const bool probes = patience == 0 && seen.yields % yields_per_probe == 0;
    const std::uint32_t polls = probes ? polls_of_a_probe : patience;
    for (std::uint32_t i = 0; i < polls; ++i) {
      if (!something_came()) continue;
      ++waits_since_yield;
      patience = std::min(most_polls_before_yield, polls * 2);
      return true;
    }
    patience /= 2;
    return false;
  }

  // A wait has ended. If the next wait lasts as long, spinning for twice that time saves a wake-up.
  void learn_from(time_ns waited) noexcept {
    if (waited < settings.longest_spin_ns) spin_ns = std::max(spin_ns, std::min(2 * waited, settings.longest_spin_ns));
    waiting_since = idle_since = never;
  }

  // Asio stops whenever it runs out of work.
  void restart_asio() {
    if (io.stopped()) io.restart();
  }

  // The transports, and messages that arrive, belong to the parent. The next turn refuses to run when it reads the clock.
  void on_fork() noexcept override {
    pollers.clear();
    polled = false;
    work_to_clock = 0;
    self.note_fork();
  }

  reactor& self;
  options settings;
  std::unique_ptr<boost::asio::io_context> own;
  boost::asio::io_context& io;
  file events;
  file posted_event;
  file next_timer;
  boost::asio::posix::stream_descriptor watched;
  // Shared with Asio's handlers. In a caller's context the handlers may outlive the reactor.
  struct asio_side {
    bool watching = false;        // a handler waits for `watched`
    bool queued = false;          // a handler that takes turns is in Asio's queue
    reactor* follower = nullptr;  // set while Asio drives the reactor
  };
  std::shared_ptr<asio_side> handlers = std::make_shared<asio_side>();
  time_ns timer_set_to = never;

  std::vector<poller*> pollers;
  std::mutex posted_mutex;
  std::vector<std::function<void()>> posted;
  std::atomic<bool> any_posted{false};
  std::atomic<std::uint64_t> turns_seen{0};

  std::int64_t work_to_clock = 0;
  std::uint32_t turns_to_asio = 0;
  std::vector<std::function<std::vector<int>()>> watched_by_asio;
  bool asio_has_run = false;      // since these functions were called
  time_ns look_at = 0;            // by this time `poll` asks for Asio's descriptors again
  bool polled = false;            // polled while waiting, and something arrived
  time_ns looked_at = 0;          // when the loop last read the clock
  time_ns to_take_in_ns = 0;      // after a long turn: the time left in which no timer fires
  time_ns most_of_a_turn_ns = 0;  // the most that one turn takes off that time
  time_ns waiting_since = never;  // since when it waits for something other than a timer
  time_ns idle_since = never;     // since when it is idle and awake
  std::uint32_t patience = 0;     // polls before a core is yielded
  std::uint32_t waits_since_yield = 0;
  time_ns spin_ns;
  counters seen;
  compute_threads threads;  // last: its threads post into the members above
};

reactor::reactor() : reactor(options{}) {}
reactor::reactor(options o)
    : executor(clock_now(), o.seed, clock_reading::sparing), state_(std::make_unique<state>(*this, o, nullptr)) {}
reactor::reactor(boost::asio::io_context& io, options o)
    : executor(clock_now(), o.seed, clock_reading::sparing), state_(std::make_unique<state>(*this, o, &io)) {}
reactor::~reactor() {
  state_->handlers->follower = nullptr;
  boost::system::error_code ignored;
  state_->watched.cancel(ignored);
}

void reactor::attach(poller& p) {
  state_->pollers.push_back(&p);
  state_->add(p.event_fd());
}

void reactor::detach(poller& p) noexcept {
  std::erase(state_->pollers, &p);
  epoll_ctl(state_->events.get(), EPOLL_CTL_DEL, p.event_fd(), nullptr);
}

void reactor::watch(std::function<std::vector<int>()> descriptors) {
  state_->watched_by_asio.push_back(std::move(descriptors));
  watch_anew();
}

void reactor::watch_anew() {
  for (const auto& descriptors : state_->watched_by_asio) {
    for (const int descriptor : descriptors()) state_->add(descriptor);
  }
  state_->asio_has_run = false;
}

boost::asio::io_context& reactor::io() noexcept { return state_->io; }
void reactor::set_sharing(sharing cores) noexcept { state_->settings.cores = cores; }
void reactor::set_longest_spin(time_ns longest) noexcept { state_->settings.longest_spin_ns = longest; }
int reactor::native_handle() const noexcept { return state_->events.get(); }
const reactor::counters& reactor::statistics() const noexcept { return state_->seen; }
std::uint64_t reactor::turns_so_far() const noexcept { return state_->turns_seen.load(std::memory_order_relaxed); }

time_ns reactor::precise_now() noexcept { return clock_now(); }

void reactor::post(std::function<void()> f) {
  const std::lock_guard lock(state_->posted_mutex);
  state_->posted.push_back(std::move(f));
  // The flag limits a burst of posts to one system call. This is under the lock, so that no event is written after its function was taken:
  // such an event would keep the reactor awake until the next post.
  if (!state_->any_posted.exchange(true, std::memory_order_acq_rel)) {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(state_->posted_event.get(), &one, sizeof one));
  }
}

void reactor::submit(std::shared_ptr<compute_job> job) {
  state_->threads.submit([this, job = std::move(job)]() mutable {
    job->execute();
    post([job = std::move(job)] { job->on_done(); });
  });
}

bool reactor::run_posted() {
  state& s = *state_;
  std::vector<std::function<void()>> taken;
  {
    const std::lock_guard lock(s.posted_mutex);
    std::uint64_t count = 0;
    static_cast<void>(!::read(s.posted_event.get(), &count, sizeof count));
    s.any_posted.store(false, std::memory_order_release);
    taken.swap(s.posted);
  }
  for (auto& f : taken) f();
  return !taken.empty();
}

bool reactor::turn() {
  state& s = *state_;
  s.turns_seen.store(++s.seen.turns, std::memory_order_relaxed);
  bool any = std::exchange(s.polled, false) || s.poll_all();
  if (s.any_posted.load(std::memory_order_acquire)) any = run_posted() || any;
  if (--s.work_to_clock <= 0) {
    if (forked()) {
      s.work_to_clock = 0;
      refuse_fork("its event loop was run");
    }
    s.work_to_clock = work_per_clock_read;
    read_clock();
    any = fire_timers(any) || any;
  }
  if (s.turns_to_asio-- == 0) {
    s.turns_to_asio = turns_per_asio_poll - 1;
    s.restart_asio();  // otherwise work that was started after Asio had stopped would never run
    const bool ran = s.io.poll() != 0;
    s.asio_has_run = ran || s.asio_has_run;
    any = ran || any;
  }
  const std::size_t resumed = run_ready(resumes_per_turn);
  s.work_to_clock -= static_cast<std::int64_t>(resumed);
  if (resumed == 0 && !any) return false;
  if (s.waiting_since != never) s.learn_from(now() - s.waiting_since);
  return true;
}

// If this thread has computed for long, a timer may be due only because of that. So before the timer fires, some turns handle arrivals and
// everything that follows from them, until a turn finds nothing, for at most as long as the thread has computed. If such a turn takes long,
// for example because the machine runs other processes, its time counts only in part.
bool reactor::fire_timers(bool found) {
  state& s = *state_;
  const time_ns present = now();
  const time_ns took = present - std::exchange(s.looked_at, present);
  if (s.to_take_in_ns > 0) {
    s.to_take_in_ns -= std::min(took, s.most_of_a_turn_ns);
  } else if (took > long_turn_ns) {
    s.to_take_in_ns = std::min(took, longest_taking_in_ns);
    s.most_of_a_turn_ns = s.to_take_in_ns / fewest_turns_to_take_in;
  }
  if (s.to_take_in_ns > 0 && (found || has_ready())) {
    s.work_to_clock = 0;
    return false;
  }
  s.to_take_in_ns = 0;
  return timers().advance(present);
}

bool reactor::wait() {
  if (spin_or_arm()) sleep();
  return true;
}

// If nothing has arrived for so long that sleeping is better, arms all pollers and returns true.
bool reactor::spin_or_arm() {
  state& s = *state_;
  // The clock is read rarely: most waits end before that. It is read after every yield, because a yield may last for a time slice of a
  // process that computes. If it did, this rank sleeps: a process that wakes up need not wait until the time slices of others end.
  const bool yields = s.settings.cores == sharing::shared_core;
  const time_ns before = now();
  if (yields) {
    if (s.comes_before_yield()) return false;
    ++s.seen.yields;
    s.waits_since_yield = 0;
    sched_yield();
  }
  for (std::uint32_t i = 0; i < (yields ? 1 : polls_per_clock_read); ++i) {
    if (s.something_came()) return false;
  }
  read_clock();
  s.looked_at = now();
  if (s.idle_since == never) {
    s.idle_since = now();
    if (s.waiting_since == never) s.waiting_since = now();
    return false;
  }
  if (now() - s.idle_since < s.spin_ns && now() - before < longest_yield_ns) return false;
  if (!arm_pollers()) return false;
  s.spin_ns = std::max(shortest_spin_ns, s.spin_ns / 2);
  s.idle_since = never;
  return true;
}

// Begins with the last poller. A poller that was attached after the transport, such as a GPU's copies, knows at once that it is busy,
// whereas arming a transport takes microseconds.
bool reactor::arm_pollers() {
  return std::all_of(state_->pollers.rbegin(), state_->pollers.rend(),
                     [](poller* p) { return p->arm() == poller::arm_state::armed; });
}

// Makes Asio wait for the epoll descriptor, which covers all descriptors of the reactor.
void reactor::await_event() {
  state& s = *state_;
  if (s.handlers->watching) return;
  s.handlers->watching = true;
  s.watched.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [handlers = s.handlers](boost::system::error_code) {
                         handlers->watching = false;
                         if (handlers->follower != nullptr) handlers->follower->follow();
                       });
}

// No poller may be used between `arm_pollers` and this function.
void reactor::sleep() {
  state& s = *state_;
  await_event();
  const time_ns tick = clock_now() + s.settings.safety_tick_ns;
  const time_ns until = std::min(timers().next(), tick);
  s.set_timer(until);
  ++s.seen.sleeps;
  s.restart_asio();
  // The timer descriptor is also watched, so this call ends at `until`.
  s.io.run_one();
  s.asio_has_run = true;
  read_clock();
  s.looked_at = now();
  if (now() >= timers().next()) s.waiting_since = never;
  s.work_to_clock = 0;
  s.turns_to_asio = 0;
  if (now() >= tick) {
    bool missed = false;
    for (poller* p : s.pollers) {
      pollfd event{p->event_fd(), POLLIN, 0};
      const bool announced = ::poll(&event, 1, 0) > 0;
      missed = (p->poll() && !announced) || missed;
    }
    if (missed) ++s.seen.missed_wakeups;
  }
}

bool reactor::catch_up() {
  state_->work_to_clock = 0;
  state_->turns_to_asio = 0;
  return turn();
}

void reactor::follow_io() {
  state_->handlers->follower = this;
  queue_turns();
}

void reactor::stop_following() noexcept {
  state_->handlers->follower = nullptr;
  // Otherwise the io_context would not run out of work.
  boost::system::error_code ignored;
  state_->watched.cancel(ignored);
}

void reactor::queue_turns() {
  auto& handlers = state_->handlers;
  if (handlers->queued) return;
  handlers->queued = true;
  boost::asio::post(state_->io, [handlers] {
    handlers->queued = false;
    if (handlers->follower != nullptr) handlers->follower->follow();
  });
}

// Runs some turns inside a handler of Asio, then lets Asio's other handlers run.
void reactor::follow() {
  state& s = *state_;
  s.work_to_clock = 0;
  for (std::uint32_t i = 0; i < turns_per_handler; ++i) {
    s.turns_to_asio = turns_per_asio_poll;  // Asio is running already
    const bool any = turn();
    if (s.handlers->follower == nullptr) return;
    if (any || !spin_or_arm()) continue;
    s.set_timer(std::min(timers().next(), deadline_in(s.settings.safety_tick_ns)));
    ++s.seen.sleeps;
    return await_event();
  }
  queue_turns();
}

reactor::readiness reactor::poll() {
  state& s = *state_;
  if (catch_up()) return readiness::progressed;
  const bool due = now() >= s.look_at;
  if (due) s.look_at = deadline_in(s.settings.safety_tick_ns);
  if (due || s.asio_has_run) watch_anew();
  if (!arm_pollers()) return readiness::idle;
  // As long as Asio has work, it may wait for something that the reactor cannot see.
  s.set_timer(s.io.stopped() ? timers().next() : std::min(timers().next(), s.look_at));
  return readiness::armed;
}

}  // namespace parley::runtime

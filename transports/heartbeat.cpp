#include <parley/transports/heartbeat.hpp>
#include <parley/transports/rendezvous_wire.hpp>

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX has more than <csignal>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::rank_id;
using runtime::result;
using runtime::time_ns;

namespace {

constexpr std::uint64_t page_magic = 0x31747265'68707261ULL;
constexpr time_ns beats_per_detection = 8;

// What a page says of a rank: that it lives, that it left, or which rank holds it dead, for which reason, and whose death that
// was of all.
constexpr std::uint64_t alive = 0;
constexpr std::uint64_t left = 1;
struct death {
  enum class cause : std::uint8_t { silent = 2, connection_ended = 3 };
  cause why = cause::silent;
  rank_id decider = 0;
  std::uint32_t order = 0;

  static bool is(std::uint64_t verdict) noexcept { return (verdict & 3U) >= 2; }
  explicit death(std::uint64_t verdict) noexcept
      : why(static_cast<cause>(verdict & 3U)), decider(static_cast<rank_id>(verdict >> 2U & 0x3fff'ffffU)),
        order(static_cast<std::uint32_t>(verdict >> 32U)) {}
  death(cause c, rank_id by, std::uint64_t nth) noexcept
      : why(c), decider(by), order(static_cast<std::uint32_t>(nth)) {}
  std::uint64_t verdict() const noexcept {
    return static_cast<std::uint64_t>(why) | std::uint64_t{decider} << 2U | std::uint64_t{order} << 32U;
  }
};

// A cache line each, so that beating hearts do not disturb one another.
struct alignas(64) heading {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint64_t> found_by;  // how many ranks have mapped the page
  std::atomic<std::uint64_t> deaths;
};
struct alignas(64) slot {
  std::atomic<std::uint64_t> beats;
  std::atomic<std::uint64_t> verdict;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the page is shared between processes");

error io_fault(const std::string& what, const std::string& path) {
  const int reason = errno;
  return {errc::io, what + " " + path + ": " + std::strerror(reason)};
}

std::string seconds(time_ns span) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(span) / 1e9);
  return text;
}

/// Signals are for the program's own threads.
class all_signals_blocked {
 public:
  all_signals_blocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  all_signals_blocked(const all_signals_blocked&) = delete;
  all_signals_blocked& operator=(const all_signals_blocked&) = delete;
  ~all_signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

/// The shared memory. Whoever comes first makes it; the last one takes its name away.
class heartbeat::page {
 public:
  static result<std::unique_ptr<page>> open(const options& o) {
    const int fd = ::open(o.page.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return io_fault("cannot open the heartbeats' page", o.page);
    std::unique_ptr<page> made(new page(o, fd));
    auto fault = made->map(o.world_size);
    ::close(fd);
    if (!fault) return fault.reason();
    return made;
  }
  page(const page&) = delete;
  page& operator=(const page&) = delete;
  ~page() {
    ::unlink(path_.c_str());
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }

  heading& top() const { return *reinterpret_cast<heading*>(memory_); }
  slot& of(rank_id rank) const { return reinterpret_cast<slot*>(memory_ + sizeof(heading))[rank]; }

 private:
  page(const options& o, int fd) : path_(o.page), fd_(fd), sharers_(o.watched.size() + 1) {}

  result<> map(rank_id world) {
    struct stat found{};
    bytes_ = sizeof(heading) + sizeof(slot) * world;
    if (::fstat(fd_, &found) != 0) return io_fault("cannot look at the heartbeats' page", path_);
    if (!S_ISREG(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 077U) != 0)
      return error(errc::unauthenticated, path_ + " is not a file of mode 0600 that belongs to this user; remove it");
    if (found.st_size == 0 && ::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0)
      return io_fault("cannot make room for the heartbeats' page", path_);
    if (found.st_size != 0 && static_cast<std::size_t>(found.st_size) != bytes_)
      return error(errc::malformed, path_ + " has " + std::to_string(found.st_size) + " bytes, not " +
                                        std::to_string(bytes_) + "; use one build of parley on all ranks");
    // Without room for it a beat would end the process.
    if (const int refused = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes_)); refused != 0) {
      errno = refused;
      return io_fault("no room for the heartbeats' page", path_);
    }
    void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (at == MAP_FAILED) return io_fault("cannot map the heartbeats' page", path_);
    memory_ = static_cast<std::byte*>(at);
    std::uint64_t empty = 0;
    if (!top().magic.compare_exchange_strong(empty, page_magic) && empty != page_magic)
      return error(errc::malformed, path_ + " is not a page of heartbeats; use one build of parley on all ranks");
    if (top().found_by.fetch_add(1) + 1 >= sharers_) ::unlink(path_.c_str());
    return {};
  }

  std::string path_;
  int fd_;
  std::uint64_t sharers_;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

/// The thread.
class heartbeat::watch {
 public:
  watch(options o, events to, page& shared)
      : options_(std::move(o)), events_(std::move(to)), page_(shared),
        interval_(options_.detection_ns / beats_per_detection) {
    for (const rank_id rank : options_.watched) others_.push_back({rank});
    beat();  // here, so that one which is stopped before its thread runs is watched, too
    const all_signals_blocked while_starting;
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  std::string fenced() const {
    const std::uint64_t verdict = page_.of(options_.rank).verdict.load();
    if (!death::is(verdict)) return {};
    return "rank " + std::to_string(options_.rank) +
           " was stopped or starved for too long, or lost its connections, so that rank " +
           std::to_string(death(verdict).decider) +
           " holds it dead and the others go on without it; restart the job to continue";
  }

  /// Writes the verdict unless there is one; answers what holds now.
  std::uint64_t judge(rank_id rank, death::cause why) {
    const std::uint64_t wanted = death(why, options_.rank, page_.top().deaths.fetch_add(1)).verdict();
    std::uint64_t found = alive;
    return page_.of(rank).verdict.compare_exchange_strong(found, wanted) ? wanted : found;
  }

  bool watches(rank_id rank) const {
    return std::find(options_.watched.begin(), options_.watched.end(), rank) != options_.watched.end();
  }

  std::vector<std::pair<rank_id, std::string>> lost() const {
    std::vector<std::pair<rank_id, death>> dead;
    for (const rank_id rank : options_.watched) {
      const std::uint64_t verdict = page_.of(rank).verdict.load();
      if (death::is(verdict)) dead.emplace_back(rank, death(verdict));
    }
    std::sort(dead.begin(), dead.end(), [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
    std::vector<std::pair<rank_id, std::string>> told;
    for (const auto& [rank, d] : dead) told.emplace_back(rank, text_of(rank, d));
    return told;
  }

 private:
  using clock = std::chrono::steady_clock;
  struct other {
    rank_id rank = 0;
    std::uint64_t beats = 0;
    time_ns silent_ns = 0;
  };

  void beat() { page_.of(options_.rank).beats.fetch_add(1); }

  void run(const std::stop_token& stop) {
    const std::chrono::nanoseconds pause(interval_);
    auto last = clock::now();
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      beat();
      // The verdict on this rank comes first: one that is held dead has no say.
      if (const std::string why = fenced(); !why.empty()) {
        events_.on_fenced(why);
        return;
      }
      const auto now = clock::now();
      const time_ns passed = std::chrono::nanoseconds(now - last).count();
      last = now;
      listen(std::min(passed, 2 * interval_));
      woken_.wait_until(lock, stop, now + pause, [] { return false; });
    }
    std::uint64_t still = alive;
    page_.of(options_.rank).verdict.compare_exchange_strong(still, left);
  }

  std::string text_of(rank_id rank, const death& d) const {
    const std::string who = "rank " + std::to_string(rank);
    const std::string decider = "rank " + std::to_string(d.decider);
    if (d.why == death::cause::connection_ended) return who + " died: " + decider + " saw its connections end";
    return who + " died or was stopped: " + decider + " had no heartbeat from it for " + seconds(options_.detection_ns);
  }

  void listen(time_ns passed_ns) {
    std::erase_if(others_, [&](other& o) {
      slot& seen = page_.of(o.rank);
      std::uint64_t verdict = seen.verdict.load();
      if (verdict == left) return true;
      if (const std::uint64_t beats = seen.beats.load(); beats != o.beats) {
        o.beats = beats;
        o.silent_ns = 0;
      } else if (beats != 0) {
        o.silent_ns += passed_ns;
      }
      // Two beats earlier than it is due: one was missed before the silence was first seen, and one is between two looks.
      const bool silent = o.silent_ns >= options_.detection_ns - 2 * interval_;
      if (verdict == alive && silent) verdict = judge(o.rank, death::cause::silent);
      if (!death::is(verdict)) return verdict == left;
      events_.on_lost(o.rank, text_of(o.rank, death(verdict)));
      return true;
    });
  }

  options options_;
  events events_;
  page& page_;
  time_ns interval_;
  std::vector<other> others_;
  std::mutex mutex_;
  std::condition_variable_any woken_;
  std::jthread thread_;  // last: it uses all of these
};

heartbeat::heartbeat(options o, events to, std::unique_ptr<page> shared)
    : page_(std::move(shared)), watch_(std::make_unique<watch>(std::move(o), std::move(to), *page_)) {}
heartbeat::~heartbeat() = default;

std::string heartbeat::page_name(std::uint64_t job, std::span<const std::byte> session_key) {
  const auto digest = wire::hmac(session_key, wire::writer().text("parley heartbeats").number(job).take());
  char name[64];
  std::snprintf(name, sizeof name, "/dev/shm/parley-hearts-%016llx",
                static_cast<unsigned long long>(wire::scanner(digest).number<std::uint64_t>()));
  return name;
}

result<std::unique_ptr<heartbeat>> heartbeat::start(options o, events to) {
  if (o.rank >= o.world_size || o.detection_ns < beats_per_detection * 1'000'000)
    return error(errc::bad_argument, "heartbeats need a rank of the world and at least 8 ms to notice a death");
  auto shared = page::open(o);
  if (!shared) return shared.reason();
  return std::unique_ptr<heartbeat>(new heartbeat(std::move(o), std::move(to), std::move(shared).value()));
}

std::string heartbeat::fenced() const { return watch_->fenced(); }
std::vector<std::pair<rank_id, std::string>> heartbeat::lost() const { return watch_->lost(); }
void heartbeat::hold_dead(rank_id lost) {
  if (watch_->watches(lost)) watch_->judge(lost, death::cause::connection_ended);
}

}  // namespace parley::transports

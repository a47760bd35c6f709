#include <parley/transports/join/heartbeat.hpp>

#include <parley/runtime/wire/incarnations.hpp>
#include <parley/transports/join/rendezvous_wire.hpp>
#include <parley/transports/launch/environment.hpp>

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX has more than <csignal>
#include <sys/file.h>
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
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::rank_id;
using runtime::result;
using runtime::time_ns;

namespace {

constexpr std::uint64_t page_magic = 0x33747265'68707261ULL;
constexpr time_ns beats_per_detection = 8;
constexpr std::string_view page_folder = "/dev/shm";
constexpr std::string_view page_prefix = "parley-hearts-";

// The state of one rank on the page. `restarts` identifies the current process in the rank's place. That process is alive, has left
// (after its program had returned, or for another reason), or was declared dead. For a dead process: the reason, the rank that decided
// it, and the position of this death in the order of all deaths.
struct page_entry {
  enum class state : std::uint8_t { alive = 0, left = 1, returned = 2, silent = 3, connection_ended = 4 };
  state is = state::alive;
  rank_id decider = 0;
  std::uint32_t restarts = 0;
  std::uint32_t order = 0;

  bool dead() const noexcept { return is >= state::silent; }
  bool has_left() const noexcept { return is == state::left || is == state::returned; }
  static page_entry read(const std::atomic<std::uint64_t>& from) noexcept { return of(from.load()); }
  static page_entry of(std::uint64_t word) noexcept {
    return {static_cast<state>(word & 7U), static_cast<rank_id>(word >> 3U & 0xffffU),
            static_cast<std::uint32_t>(word >> 19U & 0xffffU), static_cast<std::uint32_t>(word >> 35U)};
  }
  std::uint64_t word() const noexcept {
    return static_cast<std::uint64_t>(is) | std::uint64_t{decider} << 3U | std::uint64_t{restarts} << 19U |
           std::uint64_t{order} << 35U;
  }
};
static_assert(max_world_size <= 0x10000 && runtime::most_restarts <= 0xffff, "an entry has 16 bits for each");

// One cache line for each rank, so that beating hearts do not slow one another down.
struct alignas(64) heading {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint64_t> found_by;  // how many ranks have mapped the page
  std::atomic<std::uint64_t> deaths;
};
struct alignas(64) slot {
  std::atomic<std::uint64_t> beats;
  std::atomic<std::uint64_t> entry;  // a page_entry
  std::atomic<std::uint64_t> found;  // whether a process in that place has mapped the page
  std::atomic<std::int64_t>
      turned;  // when its loop last turned, as its heart saw it, on the host's monotonic clock; 0: unknown
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

/// True if the process exists and is not stopped. One that a debugger stopped (state t) counts as running.
bool runs(pid_t pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return false;
  std::string stat;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), stat);
  const auto name_end = stat.rfind(") ");  // the last one: the process's name may contain anything
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return true;  // unknown: assume that it runs
  constexpr std::string_view stopped_or_ended = "TZX";
  return stopped_or_ended.find(stat[name_end + 2]) == std::string_view::npos;
}

/// Blocks all signals for a new thread: the program's own threads handle them.
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

/// The shared memory. The first rank creates the file; the last rank to map it removes its name.
class heartbeat::page {
 public:
  static result<std::unique_ptr<page>> open(const options& o) {
    remove_abandoned();
    const bool first = o.comes == arrival::at_first;
    const int fd = first ? named(o.page) : shown_by(o);
    if (fd < 0 && !first)
      return error(errc::unavailable, "no other rank of this host has opened " + o.page + ", the page of heartbeats");
    if (fd < 0) return io_fault("cannot open the heartbeats' page", o.page);
    std::unique_ptr<page> made(new page(o, fd));
    auto fault = made->map(o);
    if (!fault) return fault.reason();
    return made;
  }
  page(const page&) = delete;
  page& operator=(const page&) = delete;
  ~page() {
    if (!somebody_comes()) ::unlink(path_.c_str());
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
    ::close(fd_);
  }

  heading& top() const { return *reinterpret_cast<heading*>(memory_); }
  slot& of(rank_id rank) const { return reinterpret_cast<slot*>(memory_ + sizeof(heading))[rank]; }

 private:
  page(const options& o, int fd) : path_(o.page), fd_(fd), sharers_(o.watched.size() + 1) {
    for (std::size_t i = 0; i < std::min(o.watched.size(), o.pids.size()); ++i)
      others_.emplace_back(o.watched[i], static_cast<pid_t>(o.pids[i]));
  }

  bool somebody_comes() const {
    return memory_ != nullptr && std::any_of(others_.begin(), others_.end(), [this](const auto& other) {
             return other.second != 0 && of(other.first).found.load() == 0 &&
                    (::kill(other.second, 0) == 0 || errno == EPERM);
           });
  }

  /// Removes pages whose ranks ended before all of them had opened it. A young page may still be waiting for a rank.
  static void remove_abandoned() {
    constexpr std::time_t young_s = 10;
    std::error_code fault;
    std::filesystem::directory_iterator files(page_folder, fault);
    for (; !fault && files != std::filesystem::directory_iterator(); files.increment(fault)) {
      if (!files->path().filename().string().starts_with(page_prefix)) continue;
      const int fd = ::open(files->path().c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
      if (fd < 0) continue;
      struct stat found{};
      const bool is_old =
          ::fstat(fd, &found) == 0 && found.st_uid == ::geteuid() && found.st_mtime + young_s < std::time(nullptr);
      if (is_old && ::flock(fd, LOCK_EX | LOCK_NB) == 0 && has_name(fd)) ::unlink(files->path().c_str());
      ::close(fd);
    }
  }

  /// Opens or creates the file of that name and locks it, so that no other heart removes it as abandoned. Tries again if another process is
  /// just removing it, because the other ranks would not find that file.
  static int named(const std::string& path) {
    constexpr int most_looks = 1000;
    for (int looks = 1;; ++looks) {
      const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
      if (fd < 0 || (hold(fd) && has_name(fd))) return fd;
      ::close(fd);
      if (looks == most_looks) return errno = EBUSY, -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  static bool hold(int fd) { return ::flock(fd, LOCK_SH | LOCK_NB) == 0; }
  static bool has_name(int fd) {
    struct stat found{};
    return ::fstat(fd, &found) == 0 && found.st_nlink != 0;
  }

  /// Opens the page through a descriptor that another process has open (/proc), which also works if the file no longer has a name.
  static int shown_by(const options& o) {
    const std::string nameless = o.page + " (deleted)";
    for (const std::uint32_t pid : o.pids) {
      std::error_code gone;
      std::filesystem::directory_iterator files("/proc/" + std::to_string(pid) + "/fd", gone);
      for (; !gone && files != std::filesystem::directory_iterator(); files.increment(gone)) {
        std::error_code closed;
        const std::string target = std::filesystem::read_symlink(files->path(), closed).string();
        if (closed || (target != o.page && target != nameless)) continue;
        if (const int fd = ::open(files->path().c_str(), O_RDWR | O_CLOEXEC); fd >= 0) {
          hold(fd);
          return fd;
        }
      }
    }
    return -1;
  }

  result<> map(const options& o) {
    struct stat found{};
    bytes_ = sizeof(heading) + sizeof(slot) * o.world_size;
    if (::fstat(fd_, &found) != 0) return io_fault("cannot look at the heartbeats' page", path_);
    if (!S_ISREG(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 077U) != 0)
      return error(errc::unauthenticated, path_ + " is not a file of mode 0600 that belongs to this user; remove it");
    if (found.st_size == 0 && ::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0)
      return io_fault("cannot make room for the heartbeats' page", path_);
    if (found.st_size != 0 && static_cast<std::size_t>(found.st_size) != bytes_)
      return error(errc::malformed, path_ + " has " + std::to_string(found.st_size) + " bytes, not " +
                                        std::to_string(bytes_) + "; use one build of parley on all ranks");
    // Reserve the memory: if /dev/shm were full, the first beat would kill the process.
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
    const bool first_there = of(o.rank).found.exchange(1) == 0;
    if (first_there && top().found_by.fetch_add(1) + 1 >= sharers_) ::unlink(path_.c_str());
    return {};
  }

  std::string path_;
  int fd_;  // stays open, so that a process which comes later finds the page
  std::uint64_t sharers_;
  std::vector<std::pair<rank_id, pid_t>> others_;  // the watched ranks with known processes
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

/// The heart's thread.
class heartbeat::watch {
 public:
  watch(options o, events to, page& shared)
      : options_(std::move(o)), events_(std::move(to)), page_(shared),
        interval_(options_.detection_ns / beats_per_detection) {
    for (std::size_t i = 0; i < options_.watched.size(); ++i) {
      const std::uint32_t pid = i < options_.pids.size() ? options_.pids[i] : 0;
      others_.push_back({.rank = options_.watched[i], .pid = static_cast<pid_t>(pid)});
    }
    enter();
    beat();  // beats once here, so that the others watch this rank even if it is stopped before its thread runs
    const all_signals_blocked while_starting;
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  std::string fenced() const {
    const page_entry now = page_entry::read(page_.of(options_.rank).entry);
    const std::string who = "rank " + std::to_string(options_.rank);
    if (now.restarts > options_.restarts)
      return "another process has taken the place of " + who + ", and the other ranks continue with that process";
    if (!now.dead()) return {};
    return who + " was stopped or starved for too long, or lost its connections, so rank " +
           std::to_string(now.decider) +
           " declared it dead and the others continue without it; restart the job to continue";
  }

  /// Writes the verdict on that process, unless the process has one, has left, or was replaced by a newer process. Returns the resulting
  /// state.
  page_entry judge(rank_id rank, std::uint32_t restarts, page_entry::state why) {
    const page_entry wanted{why, options_.rank, restarts, static_cast<std::uint32_t>(page_.top().deaths.fetch_add(1))};
    std::atomic<std::uint64_t>& word = page_.of(rank).entry;
    std::uint64_t found = word.load();
    for (;;) {
      const page_entry now = page_entry::of(found);
      const bool open = now.restarts < restarts || (now.restarts == restarts && now.is == page_entry::state::alive);
      if (!open) return now;
      if (word.compare_exchange_weak(found, wanted.word())) return wanted;
    }
  }
  void hold_dead(rank_id rank) {
    if (watches(rank)) judge(rank, restarts_of(rank), page_entry::state::connection_ended);
  }

  void say_returned() { become(page_entry::state::returned); }
  bool has_returned(rank_id rank) const {
    const page_entry now = page_entry::read(page_.of(rank).entry);
    return watches(rank) && now.is == page_entry::state::returned && now.restarts == restarts_of(rank);
  }

  void expect(rank_id rank, std::uint32_t restarts, std::uint32_t pid) {
    if (!watches(rank)) return;
    restarts_[rank] = restarts;
    const std::lock_guard lock(mutex_);
    std::erase_if(others_, [rank](const other& o) { return o.rank == rank; });
    others_.push_back({.rank = rank, .restarts = restarts, .pid = static_cast<pid_t>(pid)});
  }

  bool watches(rank_id rank) const {
    return std::find(options_.watched.begin(), options_.watched.end(), rank) != options_.watched.end();
  }

  std::vector<std::pair<rank_id, std::string>> lost() const {
    std::vector<std::pair<rank_id, page_entry>> dead;
    for (const rank_id rank : options_.watched) {
      const page_entry now = page_entry::read(page_.of(rank).entry);
      if (now.dead() && now.restarts == restarts_of(rank)) dead.emplace_back(rank, now);
    }
    std::sort(dead.begin(), dead.end(), [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
    std::vector<std::pair<rank_id, std::string>> told;
    for (const auto& [rank, d] : dead) told.emplace_back(rank, text_of(rank, d));
    return told;
  }

  time_ns stands_still(rank_id rank) const {
    if (!watches(rank)) return 0;
    const slot& its = page_.of(rank);
    const page_entry now = page_entry::read(its.entry);
    const time_ns turned = its.turned.load();
    if (turned == 0 || now.is != page_entry::state::alive || now.restarts != restarts_of(rank)) return 0;
    const time_ns still = since_epoch(clock::now()) - turned;
    return still > 2 * interval_ ? still : 0;  // a beat may be one interval late
  }

  std::vector<rank_id> living() const {
    std::vector<rank_id> found;
    for (const rank_id rank : options_.watched) {
      const page_entry now = page_entry::read(page_.of(rank).entry);
      const bool counts = now.is == page_entry::state::alive && now.restarts == restarts_of(rank);
      if (counts && page_.of(rank).beats.load() != 0) found.push_back(rank);
    }
    return found;
  }

 private:
  using clock = std::chrono::steady_clock;
  struct other {
    rank_id rank = 0;
    std::uint32_t restarts = 0;
    pid_t pid = 0;
    std::uint64_t beats = 0;
    time_ns silent_ns = 0;
  };

  std::uint32_t restarts_of(rank_id rank) const {
    const auto later = restarts_.find(rank);
    return later == restarts_.end() ? 0 : later->second;
  }

  /// Takes the place of the previous process, unless a newer process has taken it.
  void enter() {
    std::atomic<std::uint64_t>& word = page_.of(options_.rank).entry;
    const page_entry mine{.restarts = options_.restarts};
    std::uint64_t found = word.load();
    while (page_entry::of(found).restarts < options_.restarts && !word.compare_exchange_weak(found, mine.word())) {}
  }
  void beat() {
    slot& mine = page_.of(options_.rank);
    mine.beats.fetch_add(1);
    if (!options_.turns) return;
    const std::uint64_t turns = options_.turns();
    if (std::exchange(turns_, turns) != turns) mine.turned.store(since_epoch(clock::now()));
  }
  static time_ns since_epoch(clock::time_point t) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
  }

  void run(const std::stop_token& stop) {
    const std::chrono::nanoseconds pause(interval_);
    auto last = clock::now();
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      beat();
      // Check the verdict on this rank first: a rank that was declared dead must not judge others.
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
    become(page_entry::state::left);
  }
  /// Changes this rank's state, unless it has left already, was declared dead, or was replaced by a newer process.
  void become(page_entry::state what) {
    std::uint64_t alive = page_entry{.restarts = options_.restarts}.word();
    const page_entry gone{.is = what, .restarts = options_.restarts};
    page_.of(options_.rank).entry.compare_exchange_strong(alive, gone.word());
  }

  std::string text_of(rank_id rank, const page_entry& s) const {
    const std::string who = "rank " + std::to_string(rank);
    const std::string decider = "rank " + std::to_string(s.decider);
    if (s.is == page_entry::state::connection_ended) return who + " died: " + decider + " saw its connections end";
    return who + " died or was stopped: " + decider + " had no heartbeat from it for " + seconds(options_.detection_ns);
  }

  void listen(time_ns passed_ns) {
    std::erase_if(others_, [&](other& o) {
      const slot& seen = page_.of(o.rank);
      page_entry now = page_entry::read(seen.entry);
      const std::uint64_t beats = seen.beats.load();
      if (now.restarts > o.restarts) return true;  // the announcement of the newer process reports this one's end
      const bool entered = now.restarts == o.restarts;
      const bool begun = entered && beats != 0;
      const bool still = beats == o.beats && (begun || (o.pid != 0 && !runs(o.pid)));
      o.silent_ns = still ? o.silent_ns + passed_ns : 0;
      o.beats = beats;
      if (entered && now.has_left()) return true;
      // Decide two beats early: up to one interval passed before the silence was first seen, and one passes between two looks.
      const bool silent = o.silent_ns >= options_.detection_ns - 2 * interval_;
      if (!entered && !silent) return false;
      if (silent && !(entered && now.dead())) now = judge(o.rank, o.restarts, page_entry::state::silent);
      if (now.restarts != o.restarts || !now.dead()) return now.has_left();
      events_.on_lost(o.rank, text_of(o.rank, now));
      return true;
    });
  }

  options options_;
  events events_;
  page& page_;
  time_ns interval_;
  std::uint64_t turns_ = 0;
  std::map<rank_id, std::uint32_t> restarts_;  // of the ranks that have come back
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
  std::snprintf(name, sizeof name, "%016llx",
                static_cast<unsigned long long>(wire::scanner(digest).number<std::uint64_t>()));
  return std::string(page_folder) + "/" + std::string(page_prefix) + name;
}

result<std::unique_ptr<heartbeat>> heartbeat::start(options o, events to) {
  if (o.rank >= o.world_size || o.restarts > runtime::most_restarts || o.detection_ns < shortest_detection_ns)
    return error(errc::bad_argument,
                 "heartbeats need a rank of the world, at most 65535 restarts and at least 8 ms to notice a death");
  auto shared = page::open(o);
  if (!shared) return shared.reason();
  try {
    return std::unique_ptr<heartbeat>(new heartbeat(std::move(o), std::move(to), std::move(shared).value()));
  } catch (const std::system_error& no_thread) {
    return error(errc::unavailable, std::string("no thread could be started for heartbeats: ") + no_thread.what());
  }
}

bool heartbeat::runs(std::uint32_t pid) { return transports::runs(static_cast<pid_t>(pid)); }
std::string heartbeat::fenced() const { return watch_->fenced(); }
std::vector<std::pair<rank_id, std::string>> heartbeat::lost() const { return watch_->lost(); }
std::vector<rank_id> heartbeat::living() const { return watch_->living(); }
time_ns heartbeat::stands_still(rank_id rank) const { return watch_->stands_still(rank); }
void heartbeat::say_returned() { watch_->say_returned(); }
bool heartbeat::has_returned(rank_id rank) const { return watch_->has_returned(rank); }
void heartbeat::hold_dead(rank_id lost) { watch_->hold_dead(lost); }
void heartbeat::expect(rank_id rank, std::uint32_t restarts, std::uint32_t pid) { watch_->expect(rank, restarts, pid); }

}  // namespace parley::transports

#include <parley/transports/launch/launcher.hpp>

#include <parley/transports/files/open_files.hpp>
#include <parley/transports/join/job_key.hpp>
#include <parley/transports/join/loopback.hpp>
#include <parley/transports/launch/environment.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include <openssl/rand.h>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace parley::transports {

using runtime::errc;
using runtime::rank_id;
using runtime::time_ns;

namespace {

using steady = std::chrono::steady_clock;

[[noreturn]] void refuse(const std::string& what) {
  const int reason = errno;
  runtime::raise({errc::io, "the launcher cannot " + what + ": " + std::strerror(reason)});
}

/// A descriptor that closes itself, is close-on-exec, and is never one of the standard three (0, 1, 2).
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) : fd_(fd) {
    if (fd_ < 0 || fd_ > 2) return;
    fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
    ::close(fd);
  }
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~descriptor() { reset(); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct pipe_ends {
  descriptor reading;
  descriptor writing;
};

pipe_ends make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse("make a pipe");
  pipe_ends made{descriptor(ends[0]), descriptor(ends[1])};
  if (!made.reading.open() || !made.writing.open()) refuse("make a pipe");
  return made;
}

void set_non_blocking(const descriptor& d) { ::fcntl(d.get(), F_SETFL, ::fcntl(d.get(), F_GETFL) | O_NONBLOCK); }

/// Writes lines to a descriptor. Other processes may share the descriptor, so it stays blocking, and this writes only while
/// there is room. The rest waits here, so that the launcher can handle signals and time limits while a reader is slow. If the
/// reader is gone, or nothing can be written, lines are dropped.
class line_sink {
 public:
  explicit line_sink(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  bool empty() const { return waiting_.empty(); }
  /// True if the launcher should stop reading lines for this sink for now.
  bool full() const { return waiting_.size() >= max_line_bytes; }
  /// The errno of a failed write, which lost lines. 0: no write failed, except because the reader was gone.
  int failed() const { return failed_; }
  void put(std::string_view lines) {
    waiting_ += lines;
    write_on();
  }
  void write_on() {
    std::size_t written = 0;
    while (written < waiting_.size() && takes_some()) {
      // Up to PIPE_BUF bytes never block if poll() says that there is room.
      const ssize_t put =
          ::write(fd_, waiting_.data() + written, std::min<std::size_t>(waiting_.size() - written, PIPE_BUF));
      if (put >= 0) {
        written += static_cast<std::size_t>(put);
      } else if (errno == EAGAIN) {
        break;  // another process that shares it was faster
      } else if (errno != EINTR) {
        if (errno != EPIPE && failed_ == 0) failed_ = errno;  // a reader may leave when it has seen enough
        written = waiting_.size();
      }
    }
    waiting_.erase(0, written);
  }

 private:
  bool takes_some() const {
    pollfd target{fd_, POLLOUT, 0};
    return ::poll(&target, 1, 0) > 0;
  }
  int fd_;
  int failed_ = 0;
  std::string waiting_;
};

struct listening {
  descriptor socket;
  std::uint16_t port = 0;
};

listening make_listener() {
  const loopback_socket made = listen_on_loopback();
  if (made.fd < 0) refuse("open a rendezvous socket on 127.0.0.1");
  return {descriptor(made.fd), made.port};
}

/// Receives the signals that concern a launcher as events while this object lives; restores their handling afterwards.
class signal_events {
 public:
  signal_events() {
    sigemptyset(&taken_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction current{};
      ::sigaction(number, nullptr, &current);
      if (current.sa_handler != SIG_IGN) sigaddset(&taken_, number);  // so that nohup keeps working
    }
    struct sigaction user{};  // passed on to the ranks, unless the caller handles or ignores it
    ::sigaction(SIGUSR1, nullptr, &user);
    if (user.sa_handler == SIG_DFL) sigaddset(&taken_, SIGUSR1);
    sigaddset(&taken_, SIGCHLD);
    // If the caller ignores SIGCHLD, the kernel discards the ranks' exit statuses.
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &plain, &child_before_);
    ::sigprocmask(SIG_BLOCK, &taken_, &mask_before_);
    events_ = descriptor(::signalfd(-1, &taken_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!events_.open()) {
      restore();
      refuse("listen for signals");
    }
  }
  signal_events(const signal_events&) = delete;
  signal_events& operator=(const signal_events&) = delete;
  ~signal_events() {
    while (next()) {}
    restore();
  }

  int fd() const { return events_.get(); }
  const sigset_t& mask_before() const { return mask_before_; }
  std::optional<int> next() {
    signalfd_siginfo event{};
    if (::read(events_.get(), &event, sizeof event) != sizeof event) return std::nullopt;
    return static_cast<int>(event.ssi_signo);
  }

 private:
  void restore() {
    ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
  }
  sigset_t taken_;
  sigset_t mask_before_;
  struct sigaction child_before_{};
  descriptor events_;
};

/// One output stream of one rank, which the launcher splits into lines.
struct line_source {
  output_stream kind = output_stream::out;
  descriptor from;
  std::string partial;
};

struct process {
  pid_t pid = -1;
  bool running = false;
  std::array<line_source, 2> lines;
  descriptor report;
  descriptor input;
  rank_end end;
};

std::string signal_text(int number) {
  const char* const abbreviation = ::sigabbrev_np(number);
  return abbreviation == nullptr ? "signal " + std::to_string(number) : std::string("SIG") + abbreviation;
}

std::string seconds(time_ns lasting) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(lasting) / 1e9);
  return text;
}

std::string end_text(const rank_end& end) {
  if (end.kind == rank_end::how::signalled) return "was killed by " + signal_text(end.code);
  return "exited with status " + std::to_string(end.code);
}

/// A folder of this job alone, in which the ranks' UCX creates its shared-memory files. UCX fills each file and then soon removes it. If a
/// rank is killed in between, the file is removed with the folder.
class memory_folder {
 public:
  memory_folder() = default;
  memory_folder(const memory_folder&) = delete;
  memory_folder& operator=(const memory_folder&) = delete;
  ~memory_folder() { remove(path_); }

  void make(std::uint64_t job) {
    std::snprintf(path_, sizeof path_, "/dev/shm/parley-run-%016llx", static_cast<unsigned long long>(job));
    if (::mkdir(path_, 0700) != 0) path_[0] = 0;  // UCX then uses its own place
  }
  /// Empty if there is no folder.
  const char* path() const noexcept { return path_; }
  /// Returns true once the folder is gone. Makes only calls that are safe after a fork.
  static bool remove(const char* path) noexcept {
    if (*path == 0) return true;
    const int folder = ::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder >= 0) {
      alignas(entry) char entries[4096];
      for (long got = 0; (got = ::syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0;) {
        for (long at = 0; at < got;) {
          const auto* const one = reinterpret_cast<const entry*>(entries + at);
          ::unlinkat(folder, one->name, 0);  // fails for `.` and `..`, which is harmless
          at += one->bytes;
        }
      }
      ::close(folder);
    }
    return ::rmdir(path) == 0 || errno == ENOENT;
  }

 private:
  struct entry {  // the kernel's linux_dirent64
    std::uint64_t inode;
    std::int64_t next;
    unsigned short bytes;
    unsigned char type;
    char name[1];
  };
  char path_[64] = {};
};

/// A process that kills the ranks' process groups when the launcher is killed. PR_SET_PDEATHSIG alone does not reach processes that a
/// rank's script started.
class guard {
 public:
  guard(rank_id ranks, const char* folder) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) refuse("make a socket pair");
    descriptor theirs(ends[0]);
    mine_ = descriptor(ends[1]);
    std::vector<pid_t> groups(ranks);
    pid_ = ::fork();
    if (pid_ < 0) refuse("start its guard");
    if (pid_ == 0) watch(theirs.get(), groups.data(), folder);
  }
  guard(const guard&) = delete;
  guard& operator=(const guard&) = delete;
  ~guard() {
    mine_.reset();
    ::waitpid(pid_, nullptr, 0);
  }
  void begun(rank_id rank, pid_t group) const { tell({rank, group}); }
  /// Call it before the rank is reaped: afterwards its group's number may be reused.
  void ended(rank_id rank) const { tell({rank, 0}); }

 private:
  struct news {
    rank_id rank;
    pid_t group;
  };
  void tell(news n) const {
    // If the guard is gone, the job continues without it.
    [[maybe_unused]] const ssize_t told = ::send(mine_.get(), &n, sizeof n, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  /// The guard's own process. Makes only calls that are safe after a fork. Closes all other descriptors, because other processes wait until
  /// some of them are closed. Leaves the launcher's process group and blocks signals, so that neither the terminal's signals nor signals to
  /// the group end it.
  [[noreturn]] static void watch(int from, pid_t* groups, const char* folder) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_NAME, "parley-guard");
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    ::dup2(from, 0);
    ::close_range(1, ~0U, 0);
    std::size_t most = 0;
    news n{};
    for (ssize_t got = 0; (got = ::read(0, &n, sizeof n)) != 0;) {
      if (got != sizeof n) continue;
      groups[n.rank] = n.group;
      most = std::max<std::size_t>(most, n.rank + 1);
    }
    for (std::size_t rank = 0; rank < most; ++rank) {
      if (groups[rank] != 0) ::kill(-groups[rank], SIGKILL);
    }
    constexpr timespec pause{0, 10'000'000};  // the ranks may take a moment to end
    for (int looks = 0; looks < 100 && !memory_folder::remove(folder); ++looks) ::nanosleep(&pause, nullptr);
    ::_exit(0);
  }

  descriptor mine_;
  pid_t pid_ = -1;
};

class job {
 public:
  explicit job(const launch_options& options)
      : options_(options), first_(options.among ? options.among->host * options.ranks : 0),
        sinks_{line_sink(options.out_fd), line_sink(options.error_fd)}, processes_(options.ranks) {}

  launch_end run() {
    if (options_.restarts > most_restarts_of_a_rank) {
      notice("cannot start ranks again " + std::to_string(options_.restarts) + " times; give 0 to " +
             std::to_string(most_restarts_of_a_rank));
      return finish(2);
    }
    if (const std::string why = why_not_among(); !why.empty()) {
      notice(why);
      return finish(2);
    }
    if (options_.command.empty() || options_.ranks == 0 || options_.ranks > max_world_size) {
      notice(options_.command.empty() ? "no program was given; write `parley run -n N -- PROGRAM ...`"
                                      : "cannot start " + std::to_string(options_.ranks) + " ranks; give 1 to " +
                                            std::to_string(max_world_size));
      return finish(2);
    }
    if (const auto allowed = allow_open_files(files_of_launcher(options_.ranks)); !allowed) {
      notice("cannot start " + std::to_string(options_.ranks) + " ranks: " + allowed.reason().text());
      return finish(2);
    }
    try {
      if (!start_all()) return finish(2);
    } catch (const runtime::failure& fault) {
      notice(fault.reason().what());
      end_at_once();
      return finish(2);
    }
    while (running() > 0) step();
    drain();
    return finish(failed_ ? 1 : 0);
  }

 private:
  // --- starting ---

  // Four for each running rank; the rest for the launcher itself and for starting a rank.
  static std::size_t files_of_launcher(rank_id ranks) { return 4 * std::size_t{ranks} + 20; }

  bool start_all() {
    if (RAND_bytes(reinterpret_cast<unsigned char*>(&id_), sizeof id_) != 1) refuse("make a job id");
    memory_.make(id_);
    guard_.emplace(options_.ranks, memory_.path());
    if (options_.bind) find_processors();
    if (options_.among) {
      key_ = told_by_input() ? key_by_input() : key_of_all();
    } else {
      listener_ = make_listener();
      key_ = job_key::generate();
    }
    started_ = steady::now();
    for (rank_id rank = 0; rank < options_.ranks; ++rank) {
      if (!start(rank)) {
        end_at_once();
        return false;
      }
      // From now on only rank 0 holds the socket, so that connecting fails at once when rank 0 dies.
      if (rank == 0) listener_.socket.reset();
    }
    if (options_.restarts == 0) key_ = job_key();
    return true;
  }

  std::string why_not_among() const {
    if (!options_.among) return {};
    const host_place& at = *options_.among;
    if (at.hosts == 0 || at.host >= at.hosts)
      return "host " + std::to_string(at.host) + " does not exist: the job has " + std::to_string(at.hosts) +
             " hosts, counted from 0";
    if (options_.ranks != 0 && at.hosts > max_world_size / options_.ranks)
      return std::to_string(at.hosts) + " hosts of " + std::to_string(options_.ranks) + " ranks are more than " +
             std::to_string(max_world_size) + " ranks";
    if (at.rendezvous.empty())
      return "a job on several hosts needs a rendezvous: host:port of host 0, the same on all hosts";
    if (options_.restarts > 0) return "ranks are started again only if all of them are on one host";
    return {};
  }
  static job_key key_of_all() {
    const char* const path = std::getenv(variable::key_file);
    if (path == nullptr || *path == 0)
      runtime::raise(
          {errc::bad_argument,
           "a job on several hosts needs PARLEY_KEY_FILE: a 0600 file with the same 32 random bytes on each"});
    return job_key::from_file(path).value();
  }
  static job_key key_by_input() {
    std::string digits;
    for (char c = 0; digits.size() < 2 * job_key::size_bytes && ::read(0, &c, 1) == 1 && c != '\n';) digits += c;
    return job_key::from_hexadecimal(digits).value();
  }
  void find_processors() {
    cpu_set_t may{};
    if (::sched_getaffinity(0, sizeof may, &may) != 0) refuse("see which processors it may run on");
    for (int one = 0; one < CPU_SETSIZE; ++one) {
      if (CPU_ISSET(one, &may)) processors_.push_back(one);
    }
    if (processors_.size() < options_.ranks)
      runtime::raise({errc::bad_argument, "the launcher cannot give each of " + std::to_string(options_.ranks) +
                                              " ranks processors of its own: it may run on " +
                                              std::to_string(processors_.size()) +
                                              "; start fewer, or do not bind them"});
  }
  cpu_set_t processors_of(rank_id rank) const {
    cpu_set_t its{};
    const std::size_t each = processors_.size() / options_.ranks;
    for (std::size_t i = 0; i < each; ++i) CPU_SET(processors_[rank * each + i], &its);
    return its;
  }
  std::string name_of(rank_id rank) const { return std::to_string(first_ + rank); }

  std::vector<std::string> environment_of(rank_id rank, int key_fd, int report_fd) const {
    std::vector<std::string> all;
    const char* const own[] = {variable::rank,         variable::world,      variable::local_rank,
                               variable::local_size,   variable::rendezvous, variable::rendezvous_fd,
                               variable::job,          variable::key_fd,     variable::key_file,
                               variable::report_fd,    variable::launcher,   variable::max_restarts,
                               variable::restart_count};
    const auto outer = own_environment();
    const auto replaced = [&](std::string_view name) {
      return std::any_of(std::begin(own), std::end(own), [&](const char* mine) { return name == mine; }) ||
             std::any_of(options_.environment.begin(), options_.environment.end(),
                         [&](const auto& added) { return name == added.first; });
    };
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const std::string_view name = text.substr(0, text.find('='));
      // Leave out variables that give this process a place in an outer job: the ranks are not part of that job.
      if (!replaced(name) && !tells_place(name, outer)) all.emplace_back(text);
    }
    for (const auto& [name, value] : options_.environment) all.push_back(name + "=" + value);
    // UCX reads this while it is loaded, before a rank's `main`. Without it UCX patches mmap, which costs each rank 0.4 s.
    if (std::getenv("UCX_MEM_MMAP_HOOK_MODE") == nullptr) all.emplace_back("UCX_MEM_MMAP_HOOK_MODE=none");
    if (std::getenv("UCX_POSIX_DIR") == nullptr && *memory_.path() != 0)
      all.push_back(std::string("UCX_POSIX_DIR=") + memory_.path());
    const auto add = [&](const char* name, const std::string& value) {
      all.push_back(std::string(name) + "=" + value);
    };
    char id_text[17];
    std::snprintf(id_text, sizeof id_text, "%016llx", static_cast<unsigned long long>(id_));
    add(variable::rank, name_of(rank));
    add(variable::world, std::to_string(options_.ranks * (options_.among ? options_.among->hosts : 1)));
    add(variable::local_rank, std::to_string(rank));
    add(variable::local_size, std::to_string(options_.ranks));
    if (options_.among) {
      add(variable::rendezvous, options_.among->rendezvous);
    } else {
      add(variable::rendezvous, "127.0.0.1:" + std::to_string(listener_.port));
      if (rank == 0) add(variable::rendezvous_fd, std::to_string(listener_.socket.get()));
      add(variable::job, id_text);
    }
    add(variable::key_fd, std::to_string(key_fd));
    if (report_fd >= 0) add(variable::report_fd, std::to_string(report_fd));
    if (options_.restarts > 0) add(variable::max_restarts, std::to_string(options_.restarts));
    if (const auto before = processes_[rank].end.restarts; before > 0)
      add(variable::restart_count, std::to_string(before));
    return all;
  }

  bool start(rank_id rank) {
    process& p = processes_[rank];
    pipe_ends out = make_pipe(), error = make_pipe(), key_pipe = make_pipe(), complaint = make_pipe(), report;
    if (options_.on_report) report = make_pipe();
    // 32 bytes always fit an empty pipe.
    if (::write(key_pipe.writing.get(), key_.secret().data(), key_.secret().size()) !=
        static_cast<ssize_t>(key_.secret().size())) {
      refuse("hand the job key down");
    }
    key_pipe.writing.reset();
    pipe_ends input;
    if (options_.input.empty()) {
      input.reading = descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    } else {
      input = make_pipe();
      if (::write(input.writing.get(), options_.input.data(), options_.input.size()) !=
          static_cast<ssize_t>(options_.input.size()))
        refuse("hand its input down");
    }
    const cpu_set_t processors = options_.bind ? processors_of(rank) : cpu_set_t{};

    // Everything that allocates happens before the fork.
    auto environment = environment_of(rank, key_pipe.reading.get(), report.writing.get());
    std::vector<char*> variables, arguments;
    for (auto& entry : environment) variables.push_back(entry.data());
    auto command = options_.command;
    for (auto& word : command) arguments.push_back(word.data());
    variables.push_back(nullptr);
    arguments.push_back(nullptr);
    const int standard[3] = {input.reading.get(), out.writing.get(), error.writing.get()};
    const int kept[3] = {key_pipe.reading.get(), report.writing.get(), rank == 0 ? listener_.socket.get() : -1};

    const pid_t launcher = ::getpid();
    p.pid = ::fork();
    if (p.pid < 0) refuse("start rank " + name_of(rank));
    if (p.pid == 0)
      become(launcher, standard, kept, complaint.writing.get(), arguments.data(), variables.data(), processors);
    guard_->begun(rank, p.pid);
    p.running = true;
    p.lines[0] = {output_stream::out, std::move(out.reading), {}};
    p.lines[1] = {output_stream::error, std::move(error.reading), {}};
    p.report = std::move(report.reading);
    p.input = std::move(input.writing);
    for (const auto& source : p.lines) set_non_blocking(source.from);
    if (p.report.open()) set_non_blocking(p.report);

    // A successful exec closes the pipe; otherwise the child writes the reason into it.
    complaint.writing.reset();
    int reason = 0;
    ssize_t got = 0;
    do {
      got = ::read(complaint.reading.get(), &reason, sizeof reason);
    } while (got < 0 && errno == EINTR);
    if (got != sizeof reason) return true;
    const std::string& program = options_.command.front();
    if (reason == ENOENT) {
      notice("the program " + program + " was not found; give a path or a name from PATH");
    } else {
      notice("the program " + program + (reason == EACCES ? " cannot be executed: " : " cannot be started: ") +
             std::strerror(reason));
    }
    return false;
  }

  /// In the child, between fork and exec: only calls that are safe there.
  [[noreturn]] void become(pid_t launcher, const int (&standard)[3], const int (&kept)[3], int complaint,
                           char** arguments, char** variables, const cpu_set_t& processors) const {
    ::setpgid(0, 0);
    if (options_.bind) ::sched_setaffinity(0, sizeof processors, &processors);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != launcher) ::_exit(127);  // the launcher died before PR_SET_PDEATHSIG was set
    for (int target = 0; target < 3; ++target) ::dup2(standard[target], target);
    for (const int fd : kept) {
      if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
    }
    ::sigprocmask(SIG_SETMASK, &signals_.mask_before(), nullptr);
    ::execvpe(arguments[0], arguments, variables);
    const int reason = errno;
    [[maybe_unused]] const ssize_t told = ::write(complaint, &reason, sizeof reason);
    ::_exit(127);
  }

  // --- running ---

  std::size_t running() const {
    return static_cast<std::size_t>(
        std::count_if(processes_.begin(), processes_.end(), [](const process& p) { return p.running; }));
  }

  void step() {
    watch(std::clamp<std::int64_t>(ms_until_next_event(), 0, 1000));
    while (const auto number = signals_.next()) {
      if (*number == SIGUSR1) {
        send_all(SIGUSR1);
      } else if (*number != SIGCHLD && stage_ == stage::running) {
        notice("ended by " + signal_text(*number));
        failed_ = true;
        told_by_ = *number;
        send_all(*number == SIGINT ? SIGINT : SIGTERM);  // not SIGHUP, which UCX uses itself
        enter(stage::asked, options_.kill_after_ns);
      }
    }
    if (stage_ == stage::running && input_has_ended()) {
      notice("ended: the connection to the host that started the job is gone");
      failed_ = true;
      send_all(SIGTERM);
      enter(stage::asked, options_.kill_after_ns);
    }
    reap();
    escalate();
  }

  bool told_by_input() const { return options_.among && options_.among->told_by_input; }
  bool input_has_ended() const {
    if (!told_by_input()) return false;
    pollfd input{0, POLLIN, 0};
    if (::poll(&input, 1, 0) <= 0) return false;
    std::array<char, 256> more{};
    return ::read(0, more.data(), more.size()) <= 0;
  }

  line_sink& sink_of(output_stream kind) { return sinks_[kind == output_stream::out ? 0 : 1]; }

  // Entries to skip have the descriptor -1, so that positions stay fixed.
  void watch_signals_and_sinks() {
    watched_.clear();
    watched_.push_back({signals_.fd(), POLLIN, 0});
    watched_.push_back({told_by_input() ? 0 : -1, POLLIN, 0});
    for (const line_sink& sink : sinks_) watched_.push_back({sink.empty() ? -1 : sink.fd(), POLLOUT, 0});
  }
  /// Waits at most that long; false if nothing happened. Then writes waiting output where there is room.
  bool wait(std::int64_t wait_ms) {
    if (::poll(watched_.data(), watched_.size(), static_cast<int>(wait_ms)) <= 0) return false;
    for (line_sink& sink : sinks_) sink.write_on();
    return true;
  }

  /// Waits at most that long for output of ranks, for room in the sinks, and for signals; forwards the output.
  void watch(std::int64_t wait_ms) {
    watch_signals_and_sinks();
    const std::size_t first = watched_.size();
    for (const process& p : processes_) {
      for (const auto& source : p.lines)
        watched_.push_back({sink_of(source.kind).full() ? -1 : source.from.get(), POLLIN, 0});
      watched_.push_back({p.report.get(), POLLIN, 0});
    }
    if (!wait(wait_ms)) return;
    for (rank_id rank = 0; rank < options_.ranks; ++rank) {
      process& p = processes_[rank];
      const pollfd* const state = &watched_[first + 3 * static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < p.lines.size(); ++i) {
        if (state[i].revents != 0) forward(rank, p.lines[i]);
      }
      if (state[2].revents != 0) collect(rank, p.report);
    }
  }

  /// Reads once. Returns nothing if there is no data now, and an empty view at the end.
  std::optional<std::string_view> read_some(descriptor& from) {
    const ssize_t got = ::read(from.get(), buffer_.data(), buffer_.size());
    if (got > 0) return std::string_view(buffer_.data(), static_cast<std::size_t>(got));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
    from.reset();
    return std::string_view();
  }

  /// Forwards complete lines; true if there was data.
  bool forward(rank_id rank, line_source& source) {
    const auto data = read_some(source.from);
    if (!data) return false;
    source.partial += *data;
    std::string ready;
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = source.partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
      emit(rank, source.kind, std::string_view(source.partial).substr(begin, end - begin), ready);
    }
    source.partial.erase(0, begin);
    if (!source.partial.empty() && (data->empty() || source.partial.size() > max_line_bytes)) {
      emit(rank, source.kind, source.partial, ready);
      source.partial.clear();
    }
    sink_of(source.kind).put(ready);
    return !data->empty();
  }

  /// Forwards the rest of the output in the pipe of a rank that has ended. Bounded, because another process may still write into the pipe.
  void forward_rest(rank_id rank, line_source& source) {
    for (int reads = 0; reads < 64 && source.from.open() && forward(rank, source); ++reads) {}
  }

  void emit(rank_id rank, output_stream kind, std::string_view line, std::string& ready) const {
    if (options_.on_line) return options_.on_line(first_ + rank, kind, line);
    if (options_.prefix == line_prefix::rank) ready += "[rank " + name_of(rank) + "] ";
    ready.append(line).push_back('\n');
  }

  bool collect(rank_id rank, descriptor& from) {
    const auto data = read_some(from);
    if (!data || data->empty()) return false;
    options_.on_report(first_ + rank, std::as_bytes(std::span(data->data(), data->size())));
    return true;
  }

  void reap() {
    for (rank_id rank = 0; rank < options_.ranks; ++rank) reap(rank);
  }

  void reap(rank_id rank) {
    process& p = processes_[rank];
    siginfo_t state{};
    if (!p.running || !has_ended(p, state)) return;
    // While the rank is a zombie its number cannot be reused, so this kills only processes that the rank left behind.
    ::kill(-p.pid, SIGKILL);
    guard_->ended(rank);
    ::waitpid(p.pid, nullptr, 0);
    p.running = false;
    p.end.kind = state.si_code == CLD_EXITED ? rank_end::how::exited : rank_end::how::signalled;
    p.end.code = state.si_status;
    p.end.by_launcher = stage_ == stage::asked || stage_ == stage::killed;
    for (auto& source : p.lines) forward_rest(rank, source);
    // A death may spread from rank to rank, so each rank that ends restarts the grace period of the others.
    if (stage_ == stage::grace) enter(stage::grace, options_.grace_ns);
    if (p.end.kind == rank_end::how::exited && p.end.code == 0) return;
    const bool job_is_over = may_start_again(rank) && rank_0_ends();
    if (!job_is_over && start_again(rank)) return;
    if (!first_failed_) reap_the_cause_of(p.end, job_is_over);
    rank_failed(rank, p.end);
  }

  /// The connections of a rank close before its end can be seen, so a survivor, which ends with status 1, may be reaped first. Before that
  /// survivor this function reaps a rank that has ended in another way, or is just ending. Before any rank it reaps a rank 0 that has ended
  /// so, if that end kept the rank from being started again.
  void reap_the_cause_of(const rank_end& end, bool job_is_over) {
    const bool may_be_survivor = end.kind == rank_end::how::exited && end.code == 1;
    const rank_id considered = may_be_survivor ? options_.ranks : job_is_over ? 1 : 0;
    for (rank_id rank = 0; rank < considered && !first_failed_; ++rank) {
      const process& p = processes_[rank];
      siginfo_t state{};
      if (p.running && (has_ended(p, state) || (is_ending(p) && ends_soon(p, state))) &&
          (state.si_code != CLD_EXITED || state.si_status > 1))
        reap(rank);
    }
  }

  /// True once the kernel has begun to end the process.
  static bool is_ending(const process& p) {
    std::ifstream stat("/proc/" + std::to_string(p.pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    std::istringstream after_name(text.substr(std::min(text.rfind(')') + 1, text.size())));
    std::string skipped;
    for (int field = 3; field < 9; ++field) after_name >> skipped;
    unsigned long flags = 0;
    constexpr unsigned long exiting = 4;  // the kernel's PF_EXITING
    return after_name >> flags && (flags & exiting) != 0;
  }

  static bool has_ended(const process& p, siginfo_t& state) {
    return ::waitid(P_PID, static_cast<id_t>(p.pid), &state, WEXITED | WNOHANG | WNOWAIT) == 0 && state.si_pid != 0;
  }

  /// Waits up to 0.2 s.
  static bool ends_soon(const process& p, siginfo_t& state) {
    constexpr timespec pause{0, 5'000'000};
    for (int looks = 0; looks < 40; ++looks) {
      if (has_ended(p, state)) return true;
      ::nanosleep(&pause, nullptr);
    }
    return false;
  }
  /// A rank that fails because rank 0 died may be reaped first.
  bool rank_0_ends() const {
    siginfo_t state{};
    return ends_soon(processes_[0], state);
  }

  bool may_start_again(rank_id rank) const {
    return rank != 0 && restarted_ < options_.restarts && stage_ == stage::running && processes_[0].running;
  }

  /// Starts a new process in the place of a failed one, if restarts are left and the job can still be joined.
  bool start_again(rank_id rank) {
    process& p = processes_[rank];
    if (!may_start_again(rank)) return false;
    const rank_end before = p.end;
    drain(rank);
    p.end = {.restarts = before.restarts + 1};
    ++restarted_;
    notice("rank " + name_of(rank) + " " + end_text(before) + "; it is started again (restart " +
           std::to_string(restarted_) + " of at most " + std::to_string(options_.restarts) + ")");
    try {
      if (start(rank)) return true;
    } catch (const runtime::failure& fault) {
      notice(fault.reason().what());
    }
    p.end = before;
    return false;
  }

  void rank_failed(rank_id rank, const rank_end& end) {
    failed_ = true;
    if (end.by_launcher) return;
    const std::size_t others = running();
    std::string text = std::string(options_.noun) + " " + name_of(rank) + " " + end_text(end);
    if (!first_failed_) text += ended_before();
    if (!first_failed_) first_failed_ = rank;
    if (stage_ == stage::running && others > 0) {
      text += "; the other " + std::to_string(others) + " " + std::string(options_.noun) +
              (others == 1 ? " is" : "s are") + " ended in " + seconds(options_.grace_ns) + " unless " +
              (others == 1 ? "it ends by itself" : "they end by themselves");
    }
    notice(text);
    if (stage_ == stage::running) enter(stage::grace, options_.grace_ns);
  }

  // --- ending ---

  enum class stage { running, grace, asked, killed };

  void enter(stage next, time_ns lasting) {
    stage_ = next;
    next_event_ = steady::now() + std::chrono::nanoseconds(lasting);
  }

  std::int64_t ms_until_next_event() const {
    steady::time_point at = next_event_;
    if (stage_ == stage::running) {
      if (options_.timeout_ns == runtime::never) return 1000;
      at = started_ + std::chrono::nanoseconds(options_.timeout_ns);
    }
    return std::chrono::ceil<std::chrono::milliseconds>(at - steady::now()).count();
  }

  void escalate() {
    if (running() == 0 || ms_until_next_event() > 0) return;
    switch (stage_) {
      case stage::running:
        if (options_.timeout_ns == runtime::never) return;
        failed_ = out_of_time_ = true;
        notice("the job did not end within " + std::to_string(options_.timeout_ns / 1'000'000) + " ms; " +
               still_running() + " ended");
        [[fallthrough]];
      case stage::grace:
        if (stage_ == stage::grace) notice(still_running() + " ended: the job has failed");
        send_all(SIGTERM);
        return enter(stage::asked, options_.kill_after_ns);
      case stage::asked:
        notice(still_running() + " killed, because SIGTERM had no effect");
        send_all(SIGKILL);
        return enter(stage::killed, options_.kill_after_ns);
      case stage::killed: return enter(stage::killed, options_.kill_after_ns);  // wait for the kernel
    }
  }

  struct listed {
    std::string text;  // `rank 1`, `ranks 0, 3`, `ranks 0, 1 and 90 more`
    std::size_t count = 0;
  };
  template <class Which>
  listed list(Which is_so) const {
    constexpr std::size_t most_named = 12;
    listed all;
    for (rank_id rank = 0; rank < options_.ranks; ++rank) {
      if (!is_so(processes_[rank])) continue;
      if (++all.count <= most_named) all.text += (all.count == 1 ? "" : ", ") + name_of(rank);
    }
    if (all.count > most_named) all.text += " and " + std::to_string(all.count - most_named) + " more";
    all.text = std::string(options_.noun) + (all.count == 1 ? " " : "s ") + all.text;
    return all;
  }
  std::string still_running() const {
    const listed all = list([](const process& p) { return p.running; });
    return all.text + (all.count == 1 ? " is" : " are");
  }
  /// Names the ranks that exited with status 0 before. One that left its program too early may have caused another rank's failure.
  std::string ended_before() const {
    const listed all = list([](const process& p) { return !p.running && p.pid > 0 && p.end.code == 0; });
    return all.count == 0 ? std::string() : "; " + all.text + " had exited with status 0 before";
  }

  void send_all(int number) const {
    for (const process& p : processes_) {
      if (!p.running) continue;
      // The child makes its group before it runs the program. Until then the group does not exist, and the process itself gets the signal.
      if (::kill(-p.pid, number) != 0) ::kill(p.pid, number);
    }
  }

  void end_at_once() {
    enter(stage::killed, 0);
    failed_ = true;
    send_all(SIGKILL);
    for (rank_id rank = 0; rank < options_.ranks; ++rank) {
      process& p = processes_[rank];
      if (!p.running) continue;
      guard_->ended(rank);
      ::waitpid(p.pid, nullptr, 0);
      p.running = false;
    }
  }

  /// Forwards the ranks' last output without waiting for the end of a pipe: a grandchild may hold it open for ever.
  void drain() {
    for (rank_id rank = 0; rank < options_.ranks; ++rank) drain(rank);
  }
  void drain(rank_id rank) {
    process& p = processes_[rank];
    for (auto& source : p.lines) {
      forward_rest(rank, source);
      if (!source.partial.empty()) {
        std::string ready;
        emit(rank, source.kind, source.partial, ready);
        sink_of(source.kind).put(ready);
      }
    }
    for (int reads = 0; reads < 64 && p.report.open() && collect(rank, p.report); ++reads) {}
  }

  /// Writes all waiting output. A slow reader may take its time; once a signal has come, this gives up after `kill_after_ns`.
  void flush() {
    const steady::time_point began = steady::now();
    while (std::any_of(sinks_.begin(), sinks_.end(), [](const line_sink& s) { return !s.empty(); })) {
      watch_signals_and_sinks();
      wait(100);
      while (const auto number = signals_.next()) {
        if (*number != SIGUSR1 && *number != SIGCHLD) told_by_ = *number;
      }
      if (told_by_ != 0 && steady::now() - began > std::chrono::nanoseconds(options_.kill_after_ns)) break;
    }
  }

  launch_end finish(int status) {
    flush();
    for (const line_sink& s : sinks_) {
      if (s.failed() == 0) continue;
      notice(std::string("output of ranks could not be written, and is lost: ") + std::strerror(s.failed()));
      if (status == 0) status = 1;
    }
    flush();
    launch_end end;
    end.status = status;
    end.out_of_time = out_of_time_;
    end.signal = told_by_;
    end.first_failed = first_failed_;
    for (const process& p : processes_) end.ranks.push_back(p.end);
    return end;
  }

  void notice(const std::string& text) {
    if (options_.on_notice) return options_.on_notice(text);
    sink_of(output_stream::error).put("parley run: " + text + "\n");
  }

  const launch_options& options_;
  const rank_id first_;  // number in the job of this host's first rank
  std::array<line_sink, 2> sinks_;
  signal_events signals_;
  std::vector<process> processes_;
  listening listener_;
  job_key key_;
  memory_folder memory_;
  std::optional<guard> guard_;
  std::uint64_t id_ = 0;
  std::uint32_t restarted_ = 0;
  std::vector<pollfd> watched_;
  std::array<char, 65'536> buffer_;
  steady::time_point started_{};
  steady::time_point next_event_{};
  stage stage_ = stage::running;
  bool failed_ = false;
  bool out_of_time_ = false;
  std::vector<int> processors_;  // processors that the launcher may run on; empty unless ranks are bound
  std::optional<rank_id> first_failed_;
  int told_by_ = 0;
};

}  // namespace

launch_end launch(const launch_options& options) { return job(options).run(); }

}  // namespace parley::transports

#pragma once
/// Ranks in processes that the test starts by hand, without a launcher that could notice a death for them. The test kills, stops and
/// resumes them, and observes what they print and how and when they end.
///
///     by_hand job("pairs", 4, {{"PARLEY_DETECTION", "1"}});
///     REQUIRE(job.until([&] { return job[2].stopped(); }));
///     CHECK(job.within(3s, [&] { return job[1].ended(); }));
///     CHECK(job[1].says({"peer_failed", "rank 2"}));
///
/// The records that ranks leave for checkers (records.hpp) are kept apart from the lines that they print.
///
/// The destructor kills every process that still lives, and waits for it. Each rank is this program itself, which runs the test case
/// `this program as one rank` with PARLEY_TEST_SCENARIO set.
#include <parley/tests/fire/records.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/fair_stopwatch.hpp>

#include <parley/identifiers.hpp>
#include <parley/transports/join/loopback.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fire {

using parley::runtime::rank_id;
using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using parley::tests::long_enough;

inline constexpr const char* scenario_variable = "PARLEY_TEST_SCENARIO";
// The job's id. A roster's content begins with it, and its byte at the place of a frame's type is the type of a roster. Code that
// looks for frames (join_steps.cpp) must tell the two apart.
inline constexpr const char* roster_like_job = "50f1e";
inline constexpr const char* rank_of_a_job = "this program as one rank";
/// A rank prints this and the time in nanoseconds, of the clock that all processes of a host share.
inline constexpr const char* program_end_words = "its program ended at ";

class process {
 public:
  bool ended() const { return status_.has_value(); }
  bool stopped() const { return stopped_; }
  /// The exit status; 0: success, negative: the signal that ended the process, 999: it has not ended.
  int status() const { return !status_ ? 999 : WIFSIGNALED(*status_) ? -WTERMSIG(*status_) : WEXITSTATUS(*status_); }
  bool says(std::initializer_list<const char*> words) const { return line_with(words) != nullptr; }
  const std::string* line_with(std::initializer_list<const char*> words) const {
    const auto found =
        std::find_if(lines_.begin(), lines_.end(), [&](const std::string& line) { return has_all(line, words); });
    return found == lines_.end() ? nullptr : &*found;
  }
  std::size_t times_said(std::initializer_list<const char*> words) const {
    return static_cast<std::size_t>(
        std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) { return has_all(line, words); }));
  }
  /// When the rank's program ended, by the line that it printed.
  std::optional<clock::time_point> program_ended() const {
    const std::string* const said = line_with({program_end_words});
    if (said == nullptr) return std::nullopt;
    return clock::time_point(clock::duration(std::stoll(said->substr(std::string_view(program_end_words).size()))));
  }
  void signal(int number) const {
    if (!ended()) ::kill(pid_, number);
  }
  /// The rank reads this as the end of its input.
  void close_input() {
    if (input_ >= 0) ::close(std::exchange(input_, -1));
  }
  bool has_left_record() const { return !records_.empty(); }

 private:
  friend class by_hand;
  static bool has_all(const std::string& line, std::initializer_list<const char*> words) {
    return std::all_of(words.begin(), words.end(), [&](const char* w) { return line.find(w) != std::string::npos; });
  }
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  bool stopped_ = false;
  std::optional<int> status_;
  std::string partial_;
  std::vector<std::string> lines_;
  std::vector<std::string> records_;
  std::vector<std::pair<std::string, std::string>> environment_;
};

class by_hand {
 public:
  using variables = std::vector<std::pair<std::string, std::string>>;

  by_hand(const std::string& scenario, rank_id world, const variables& more = {}) : ranks_(world) {
    folder_ = std::filesystem::temp_directory_path() / ("parley_fire_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
    const std::string key = (folder_ / "key").string();
    write_key(key);
    const int listening = listen();
    for (rank_id rank = 0; rank < world; ++rank) {
      variables env = more;
      env.insert(env.end(), {{scenario_variable, scenario},
                             {"PARLEY_RANK", std::to_string(rank)},
                             {"PARLEY_WORLD", std::to_string(world)},
                             {"PARLEY_LOCAL_SIZE", std::to_string(world)},
                             {"PARLEY_LOCAL_RANK", std::to_string(rank)},
                             {"PARLEY_RENDEZVOUS", "127.0.0.1:" + std::to_string(port_)},
                             {"PARLEY_JOB", roster_like_job},
                             {"PARLEY_KEY_FILE", key},
                             {"TMPDIR", folder_.string()}});
      if (rank == 0) env.emplace_back("PARLEY_RENDEZVOUS_FD", std::to_string(listening));
      start(ranks_[rank], env, rank == 0 ? listening : -1);
      ranks_[rank].environment_ = std::move(env);
    }
    ::close(listening);
  }
  by_hand(const by_hand&) = delete;
  by_hand& operator=(const by_hand&) = delete;
  ~by_hand() {
    std::move(former_.begin(), former_.end(), std::back_inserter(ranks_));
    former_.clear();
    for (process& p : ranks_) {
      p.signal(SIGKILL);
      p.signal(SIGCONT);
    }
    until([&] { return all_ended(); }, 10s);
    for (process& p : ranks_) {
      p.close_input();
      if (p.output_ >= 0) ::close(p.output_);
    }
    std::filesystem::remove_all(folder_);
  }

  /// Starts a new process in the place of one that has ended or is stopped, with the old one's variables and the changes.
  void start_again(rank_id rank, const variables& changed) {
    former_.push_back(std::exchange(ranks_[rank], process()));
    process& p = ranks_[rank];
    p.environment_ = former_.back().environment_;
    variables env = p.environment_;
    for (const auto& [name, value] : changed) {
      std::erase_if(env, [&](const auto& old) { return old.first == name; });
      env.emplace_back(name, value);
    }
    start(p, env, -1);
  }
  /// The process whose place was taken last.
  const process& former() const { return former_.back(); }
  /// Writes a file with a key of its own and returns its path.
  std::string another_key() const {
    std::string path = (folder_ / "another_key").string();
    write_key(path);
    return path;
  }
  process& operator[](rank_id rank) { return ranks_[rank]; }
  rank_id size() const { return static_cast<rank_id>(ranks_.size()); }
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const process& p) { return p.ended(); });
  }
  /// Reads what the ranks print and reaps them until the condition holds; false if it does not within `limit`.
  template <class Condition>
  bool until(Condition holds, clock::duration limit = long_enough) {
    const auto deadline = clock::now() + limit;
    for (;;) {
      look();
      if (holds()) return true;
      if (clock::now() >= deadline) return false;
      std::vector<pollfd> waiting;
      for (const process& p : ranks_) {
        if (p.output_ >= 0) waiting.push_back({p.output_, POLLIN, 0});
      }
      ::poll(waiting.data(), waiting.size(), 5);  // the end of a process brings no event
    }
  }
  /// Like `until`, for a promised limit: the time that this machine withheld from the test does not count.
  template <class Condition>
  bool within(clock::duration limit, Condition holds) {
    const parley::tests::fair_stopwatch since;
    return until(holds) && since.took() < limit;
  }
  /// Everything that the ranks printed, for messages of failed checks.
  std::string text() const {
    std::string all;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const std::string& line : ranks_[rank].lines_) all += std::to_string(rank) + ": " + line + "\n";
      all += std::to_string(rank) + (ranks_[rank].ended() ? " ended with " : " goes on, not ") +
             std::to_string(ranks_[rank].status()) + "\n";
    }
    return all;
  }
  /// The records of all processes so far.
  std::vector<std::string> records() const {
    std::vector<std::string> all;
    for (const auto* processes : {&former_, &ranks_}) {
      for (const process& p : *processes) all.insert(all.end(), p.records_.begin(), p.records_.end());
    }
    return all;
  }
  /// The files that the ranks left in their folder, except the key.
  std::vector<std::string> left_behind() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.path().filename() != "key") names.push_back(entry.path().string());
    }
    return names;
  }

 private:
  static void write_key(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    std::random_device random;
    for (int i = 0; i < 8; ++i) {
      const auto word = static_cast<std::uint32_t>(random());
      if (::write(fd, &word, sizeof word) != sizeof word) throw std::runtime_error("cannot write " + path);
    }
    ::close(fd);
  }
  int listen() {
    const parley::transports::loopback_socket made = parley::transports::listen_on_loopback();
    if (made.fd < 0) throw std::runtime_error("cannot listen");
    port_ = made.port;
    return made.fd;
  }
  static void start(process& p, const variables& more, int inherited) {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("no pipes");
    std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(), "--no-skip",
                                   std::string("--test-case=") + rank_of_a_job};
    std::vector<std::string> env;
    for (char** at = environ; *at != nullptr; ++at) {
      const std::string entry = *at;
      if (!entry.starts_with("PARLEY_") && !entry.starts_with("TMPDIR=")) env.push_back(entry);
    }
    for (const auto& [name, value] : more) env.push_back(name + "=" + value);
    std::vector<char*> arguments;
    std::vector<char*> environment;
    for (auto& w : words) arguments.push_back(w.data());
    for (auto& e : env) environment.push_back(e.data());
    arguments.push_back(nullptr);
    environment.push_back(nullptr);
    const pid_t parent = ::getpid();
    p.pid_ = ::fork();
    if (p.pid_ < 0) throw std::runtime_error("fork failed");
    if (p.pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(3);
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(out[1], 2);
      if (inherited >= 0) ::fcntl(inherited, F_SETFD, 0);
      ::execve(arguments[0], arguments.data(), environment.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    p.input_ = in[1];
    p.output_ = out[0];
    ::fcntl(p.output_, F_SETFL, O_NONBLOCK);
  }
  void look() {
    for (process& p : ranks_) look(p);
    for (process& p : former_) look(p);
  }
  static void look(process& p) {
    int status = 0;
    while (!p.ended() && ::waitpid(p.pid_, &status, WNOHANG | WUNTRACED | WCONTINUED) == p.pid_) {
      if (WIFSTOPPED(status)) {
        p.stopped_ = true;
      } else if (WIFCONTINUED(status)) {
        p.stopped_ = false;
      } else {
        p.status_ = status;
      }
    }
    read(p);
  }
  static void read(process& p) {
    char chunk[4096];
    ssize_t got = 0;
    while (p.output_ >= 0 && (got = ::read(p.output_, chunk, sizeof chunk)) > 0) {
      p.partial_.append(chunk, static_cast<std::size_t>(got));
      for (std::size_t end; (end = p.partial_.find('\n')) != std::string::npos; p.partial_.erase(0, end + 1)) {
        auto& kind = p.partial_.starts_with(record_word) ? p.records_ : p.lines_;
        kind.push_back(p.partial_.substr(0, end));
      }
    }
    if (p.output_ >= 0 && got == 0) ::close(std::exchange(p.output_, -1));
  }

  std::vector<process> ranks_;
  std::vector<process> former_;
  std::filesystem::path folder_;
  std::uint16_t port_ = 0;
};

}  // namespace fire

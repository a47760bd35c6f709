#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/folder.hpp>
#include <parley/tests/support/open_descriptors.hpp>

#include <parley/transports/launch/environment.hpp>
#include <parley/transports/launch/launcher.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

using parley::tests::open_descriptors;
using namespace parley::transports;
using namespace parley::runtime::literals;
using parley::runtime::rank_id;

namespace {

/// Runs a shell script as the program and collects everything that the launcher says.
struct script {
  script(rank_id ranks, const std::string& text) {
    options.ranks = ranks;
    options.command = {"sh", "-c", text};
    options.on_line = [this](rank_id rank, output_stream kind, std::string_view line) {
      (kind == output_stream::out ? out : error)[rank].emplace_back(line);
    };
    options.on_notice = [this](std::string_view notice) { notices += std::string(notice) + "\n"; };
    options.grace_ns = 50_ms;
    options.kill_after_ns = 60_s;
  }
  script(const script&) = delete;
  script& operator=(const script&) = delete;
  int run() {
    end = launch(options);
    return end.status;
  }
  bool noticed(const std::string& text) const { return notices.find(text) != std::string::npos; }

  launch_options options;
  launch_end end;
  std::map<rank_id, std::vector<std::string>> out, error;
  std::string notices;
};

std::string slurp(int fd) {
  std::string text(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  CHECK(::pread(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

/// A pipe whose writing end the ranks inherit: reading it ends when all of them have ended.
struct lifeline {
  lifeline() { REQUIRE(::pipe(ends) == 0); }
  ~lifeline() { ::close(ends[0]); }
  lifeline(const lifeline&) = delete;
  lifeline& operator=(const lifeline&) = delete;
  /// Reads until the text ends in `until` or all writers have ended; false on timeout.
  bool read_until(const std::string& until) {
    for (const parley::tests::deadline limit; !limit.is_over();) {
      pollfd wait{ends[0], POLLIN, 0};
      if (::poll(&wait, 1, 100) <= 0) continue;
      char chunk[256];
      const ssize_t got = ::read(ends[0], chunk, sizeof chunk);
      if (got <= 0) return until.empty();
      text.append(chunk, static_cast<std::size_t>(got));
      if (!until.empty() && text.size() >= until.size()) return true;
    }
    return false;
  }
  int ends[2];
  std::string text;
};

/// Runs a launcher that may have `files` open files. Its ranks have input and reports, and end once all have started. Returns 0: it
/// succeeded; 1: it refused to start; 2: anything else.
int launched_with(rlim_t files) {
  const parley::tests::scratch_folder here;
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{files, files};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(3);
    script s(24, "touch \"$FOLDER/$PARLEY_RANK\"; while [ \"$(ls \"$FOLDER\" | wc -l)\" -lt 24 ]; do sleep 0.1; done");
    s.options.environment = {{"FOLDER", here.path.string()}};
    s.options.input = "a line\n";
    s.options.on_report = [](rank_id, std::span<const std::byte>) {};
    const int status = s.run();
    ::_exit(status == 0 ? 0 : status == 2 && s.noticed("ulimit -Hn") ? 1 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

}  // namespace

TEST_CASE("a launcher with the lowest open-file limit that it accepts starts all of its ranks") {
  rlim_t files = 20;
  int how = 1;
  while (files < 400 && (how = launched_with(files)) == 1) ++files;
  CHECK(how == 0);
}

TEST_CASE("failed ranks are restarted up to a limit for all ranks together, and learn their restart counts") {
  const parley::tests::scratch_folder here;
  script s(
      3,
      R"sh(echo "$PARLEY_RANK ${PARLEY_RESTART_COUNT-first} of $PARLEY_MAX_RESTARTS"; cat /proc/self/fd/$PARLEY_KEY_FD | od -An -tx1
                 echo begun >> "$FOLDER/$PARLEY_RANK"
                 if [ $PARLEY_RANK = 0 ]; then while [ ! -e "$FOLDER/end" ]; do sleep 0.01; done; exit 0; fi
                 printf 'not a whole line'
                 [ $PARLEY_RANK = 1 ] && [ "${PARLEY_RESTART_COUNT-0}" -lt 1 ] && exit 3
                 [ $PARLEY_RANK = 2 ] && [ "${PARLEY_RESTART_COUNT-0}" -lt 2 ] && kill -KILL $$
                 [ "$(cat "$FOLDER/1" "$FOLDER/2" | wc -l)" = 5 ] && touch "$FOLDER/end"; exit 0)sh");
  s.options.environment = {{"FOLDER", here.path.string()}};
  s.options.restarts = 3;
  ::setenv("PARLEY_RESTART_COUNT", "7", 1);  // belongs to an outer job
  CHECK(s.run() == 0);
  ::unsetenv("PARLEY_RESTART_COUNT");
  const std::string key = s.out[0].at(1);
  CHECK(s.out[0].at(0) == "0 first of 3");
  for (const rank_id r : {1U, 2U}) {
    for (std::size_t life = 0; life <= r; ++life) {
      CHECK(s.out[r].at(life * 4) == std::to_string(r) + (life == 0 ? " first" : " " + std::to_string(life)) + " of 3");
      CHECK(s.out[r].at(life * 4 + 1) == key);
      CHECK(s.out[r].at(life * 4 + 3) == "not a whole line");
    }
    CHECK(s.end.ranks[r].restarts == r);
    CHECK(s.end.ranks[r].kind == rank_end::how::exited);
    CHECK(s.end.ranks[r].code == 0);
  }
  CHECK(s.noticed("rank 1 exited with status 3; it is started again (restart "));
  CHECK(s.noticed("rank 2 was killed by SIGKILL; it is started again (restart "));
  CHECK(s.noticed("restart 3 of at most 3"));
  CHECK_FALSE(s.end.first_failed);
}

TEST_CASE("a rank that fails when no restart is left ends the job, and a failure of rank 0 ends it at once") {
  script spent(2, R"([ $PARLEY_RANK = 0 ] && exec sleep 60; exit 5)");
  spent.options.restarts = 2;
  CHECK(spent.run() == 1);
  CHECK(spent.end.first_failed == rank_id{1});
  CHECK(spent.end.ranks[1].code == 5);
  CHECK(spent.end.ranks[1].restarts == 2);
  CHECK(spent.end.ranks[0].by_launcher);
  CHECK(spent.noticed("rank 1 exited with status 5; the other 1 rank is ended in 0.05 s unless it ends by itself"));
  script headless(2, R"([ $PARLEY_RANK = 1 ] && exec sleep 60; exit 5)");
  headless.options.restarts = 2;
  CHECK(headless.run() == 1);
  CHECK(headless.end.first_failed == rank_id{0});
  CHECK(headless.end.ranks[0].restarts == 0);
  CHECK_FALSE(headless.noticed("started again"));
  script never(2, "exit 0");
  never.options.restarts = most_restarts_of_a_rank + 1;
  CHECK(never.run() == 2);
}

TEST_CASE(
    "of ranks whose ends are seen together, the first failed one is not a rank that ended with 1, as survivors do") {
  for (const char* cause : {"exit 3", "kill -9 $$"}) {
    for (const rank_id restarts : {0U, 1U}) {
      CAPTURE(cause);
      CAPTURE(restarts);
      script s(3, std::string("echo line; [ $PARLEY_RANK = 1 ] && { sleep 0.1; ") + cause + "; }; exit 1");
      s.options.restarts = restarts;
      const auto keep = s.options.on_line;
      s.options.on_line = [&](rank_id rank, output_stream kind, std::string_view line) {
        keep(rank, kind, line);
        ::poll(nullptr, 0, 300);  // meanwhile all end
      };
      CHECK(s.run() == 1);
      CHECK(s.end.first_failed == rank_id{1});
    }
  }
}

TEST_CASE("a rank that ended because rank 0 was ending is not restarted, even if its own end is seen first") {
  const parley::tests::scratch_folder here;
  // Rank 0 ends only after the launcher has reaped rank 1.
  script s(2, R"sh(cd "$FOLDER"
                   if [ $PARLEY_RANK = 1 ]; then
                     echo $$ > writing; mv writing pid
                     until [ -e ready ]; do sleep 0.01; done
                     exit 3
                   fi
                   until [ -e pid ]; do sleep 0.01; done
                   read -r pid < pid; touch ready
                   while kill -0 $pid 2> /dev/null; do :; done
                   exit 5)sh");
  s.options.environment = {{"FOLDER", here.path.string()}};
  s.options.restarts = 1;
  CHECK(s.run() == 1);
  CHECK(s.end.first_failed == rank_id{0});
  CHECK(s.end.ranks[0].code == 5);
  CHECK(s.end.ranks[1].code == 3);
  CHECK(s.end.ranks[1].restarts == 0);
  CHECK_FALSE(s.noticed("started again"));
}

TEST_CASE("each rank gets its place, the key and the job, and rank 0 also gets the listening socket") {
  script s(3, R"(echo "$PARLEY_RANK $PARLEY_WORLD $PARLEY_LOCAL_RANK $PARLEY_LOCAL_SIZE ${PARLEY_RENDEZVOUS_FD:+fd}"
                 echo "$PARLEY_RENDEZVOUS"; echo "$PARLEY_JOB"; cat /proc/self/fd/$PARLEY_KEY_FD | od -An -tx1 | tr -d ' \n'; echo
                 echo "$EXTRA" "${PARLEY_KEY_FILE-unset}")");
  s.options.environment = {{"EXTRA", "more"}};
  ::setenv("PARLEY_KEY_FILE", "stale", 1);
  CHECK(s.run() == 0);
  ::unsetenv("PARLEY_KEY_FILE");
  CHECK(s.notices.empty());
  CHECK(s.out[0][0] == "0 3 0 3 fd");
  CHECK(s.out[1][0] == "1 3 1 3 ");
  CHECK(s.out[2][0] == "2 3 2 3 ");
  for (rank_id rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    REQUIRE(s.out[rank].size() == 5);
    CHECK(s.out[rank][1].rfind("127.0.0.1:", 0) == 0);
    CHECK(s.out[rank][1] == s.out[0][1]);
    CHECK(s.out[rank][2].size() == 16);
    CHECK(s.out[rank][2] == s.out[0][2]);
    CHECK(s.out[rank][3].size() == 64);
    CHECK(s.out[rank][3] == s.out[0][3]);
    CHECK(s.out[rank][4] == "more unset");
    CHECK(s.end.ranks[rank].kind == rank_end::how::exited);
  }
}

TEST_CASE("a rank has only the descriptors that it needs, and the launcher keeps none") {
  const auto before = open_descriptors();
  // `ls` sees the three standard descriptors, the key, the report, on rank 0 the socket, and the folder that it reads.
  script s(2, "ls /proc/self/fd | wc -l; exec 2>&1; cat; echo stdin ended");
  s.options.on_report = [](rank_id, std::span<const std::byte>) {};
  script bare(1, "ls /proc/self/fd | wc -l");
  CHECK(s.run() == 0);
  CHECK(s.out[0].back() == "stdin ended");
  CHECK(bare.run() == 0);
  const int rank0 = std::stoi(s.out[0][0]), rank1 = std::stoi(s.out[1][0]), alone = std::stoi(bare.out[0][0]);
  CHECK(rank0 == rank1 + 1);
  CHECK(alone == rank0 - 1);
  CHECK(open_descriptors() == before);
}

TEST_CASE("output is forwarded in whole lines with the rank in front of each line") {
  const int to = ::memfd_create("out", MFD_CLOEXEC), errors = ::memfd_create("error", MFD_CLOEXEC);
  launch_options options;
  options.ranks = 4;
  options.command = {"sh", "-c",
                     "i=0; while [ $i -lt 200 ]; do echo line $i of $PARLEY_RANK; echo oops >&2; "
                     "i=$((i+1)); done; printf 'no newline'"};
  options.out_fd = to;
  options.error_fd = errors;
  CHECK(launch(options).status == 0);
  std::map<std::string, int> next;
  const auto lines = lines_of(slurp(to));
  CHECK(lines.size() == 4 * 201);
  for (const auto& line : lines) {
    REQUIRE(line.rfind("[rank ", 0) == 0);
    const std::string rank = line.substr(6, 1);
    const int i = next[rank]++;
    CHECK(line == "[rank " + rank + "] " + (i < 200 ? "line " + std::to_string(i) + " of " + rank : "no newline"));
  }
  CHECK(lines_of(slurp(errors)).size() == 4 * 200);
  REQUIRE(::ftruncate(to, 0) == 0);
  ::lseek(to, 0, SEEK_SET);
  options.ranks = 1;
  options.command = {"echo", "plain"};
  options.prefix = line_prefix::none;
  CHECK(launch(options).status == 0);
  CHECK(slurp(to) == "plain\n");
  ::close(to);
  ::close(errors);
}

TEST_CASE("a very long line arrives whole up to the limit") {
  script s(1, "head -c 500000 /dev/zero | tr '\\0' x; echo; head -c 3000000 /dev/zero | tr '\\0' y; echo");
  CHECK(s.run() == 0);
  REQUIRE(s.out[0].size() >= 3);
  CHECK(s.out[0][0] == std::string(500'000, 'x'));
  std::size_t total = 0;
  for (std::size_t i = 1; i < s.out[0].size(); ++i) total += s.out[0][i].size();
  CHECK(total == 3'000'000);
}

TEST_CASE("a rank that fails is named, and the others are ended after their grace period") {
  script s(3, "trap '' PIPE; if [ $PARLEY_RANK = 1 ]; then exit 7; fi; exec sleep 1000");
  CHECK(s.run() == 1);
  CHECK(s.noticed("rank 1 exited with status 7"));
  CHECK(s.noticed("ranks 0, 2 are ended"));
  CHECK(s.end.ranks[1].code == 7);
  CHECK(s.end.first_failed == rank_id{1});
  CHECK_FALSE(s.end.ranks[1].by_launcher);
  CHECK(s.end.ranks[0].kind == rank_end::how::signalled);
  CHECK(s.end.ranks[0].code == SIGTERM);
  CHECK(s.end.ranks[0].by_launcher);
}

TEST_CASE("ranks that end by themselves during their grace period have their own exits reported") {
  script s(2, "if [ $PARLEY_RANK = 1 ]; then kill -SEGV $$; fi; sleep 0.02; echo rank 1 is gone >&2; exit 4");
  s.options.grace_ns = 60_s;
  CHECK(s.run() == 1);
  CHECK(s.noticed("rank 1 was killed by SIGSEGV"));
  CHECK(s.noticed("rank 0 exited with status 4"));
  CHECK(s.error[0] == std::vector<std::string>{"rank 1 is gone"});
}

TEST_CASE("each rank's end renews the grace period of the others, so that news can pass from rank to rank") {
  script s(3, "case $PARLEY_RANK in 0) exit 7;; 1) sleep 1.2; exit 4;; 2) sleep 2.4; echo my turn; exit 5;; esac");
  s.options.grace_ns = 2'000_ms;
  CHECK(s.run() == 1);
  CHECK(s.out[2] == std::vector<std::string>{"my turn"});
  CHECK_FALSE(s.end.ranks[2].by_launcher);
}

TEST_CASE("the first failure names the ranks that had exited with status 0 before it") {
  script s(3, "if [ $PARLEY_RANK = 1 ]; then exit 0; fi; sleep 0.5; exit $((PARLEY_RANK + 3))");
  s.options.grace_ns = 60_s;
  CHECK(s.run() == 1);
  const std::string before = "; rank 1 had exited with status 0 before";
  REQUIRE(s.noticed(before));
  CHECK(s.notices.find(before) == s.notices.rfind(before));
}

TEST_CASE("a rank that ignores SIGTERM is killed, with its children") {
  lifeline line;
  const parley::tests::scratch_folder here;
  const std::string ready = "'" + here.file("ready") + "'";
  script s(2, "if [ $PARLEY_RANK = 1 ]; then until [ -e " + ready +
                  " ]; do sleep 0.01; done; exit 1; fi; trap '' TERM; " + "sleep 1000 & : > " + ready +
                  "; wait; wait; while :; do sleep 1000; done");
  s.options.kill_after_ns = 100_ms;
  CHECK(s.run() == 1);
  CHECK(s.end.ranks[0].code == SIGKILL);
  CHECK(s.noticed("because SIGTERM had no effect"));
  ::close(line.ends[1]);
  CHECK(line.read_until(""));  // the sleeping grandchild held the pipe open
}

TEST_CASE("processes that a rank leaves running in its group end with the rank") {
  lifeline line;
  script s(1, "sleep 1000 & exit 0");
  CHECK(s.run() == 0);
  ::close(line.ends[1]);
  CHECK(line.read_until(""));
}

TEST_CASE("a job that exceeds its timeout is ended and its running ranks are named") {
  // Tries again with a longer limit if a busy machine did not let rank 0 end in time.
  for (const int limit_ms : {100, 1'000, 60'000}) {
    script s(2, "if [ $PARLEY_RANK = 0 ]; then exit 0; fi; exec sleep 1000");
    s.options.timeout_ns = limit_ms * 1_ms;
    CHECK(s.run() == 1);
    if (s.end.ranks[0].by_launcher) continue;
    CHECK(s.noticed("did not end within " + std::to_string(limit_ms) + " ms; rank 1 is ended"));
    return;
  }
  FAIL("rank 0 never ended by itself");
}

TEST_CASE("a missing program is status 2 with its name, and leaves no process or descriptor") {
  const auto before = open_descriptors();
  script s(3, "");
  s.options.command = {"no-such-program-anywhere"};
  CHECK(s.run() == 2);
  CHECK(s.noticed("no-such-program-anywhere was not found"));
  s.options.command = {"/etc/passwd"};
  CHECK(s.run() == 2);
  CHECK(s.noticed("/etc/passwd cannot be executed: "));
  s.options.command = {};
  CHECK(s.run() == 2);
  CHECK(s.noticed("no program was given"));
  s.options.command = {"true"};
  s.options.ranks = 0;
  CHECK(s.run() == 2);
  CHECK(open_descriptors() == before);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left, not even a zombie
  CHECK(errno == ECHILD);
}

TEST_CASE("the launcher receives each rank's report byte for byte") {
  script s(3, "printf 'report of %s' $PARLEY_RANK > /proc/self/fd/$PARLEY_REPORT_FD");
  std::map<rank_id, std::string> reports;
  s.options.on_report = [&](rank_id rank, std::span<const std::byte> bytes) {
    reports[rank].append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  CHECK(s.run() == 0);
  for (rank_id rank = 0; rank < 3; ++rank) CHECK(reports[rank] == "report of " + std::to_string(rank));
}

TEST_CASE("ranks die with a killed launcher, and end with a launcher that receives SIGTERM or SIGINT") {
  // A rank itself, and a rank behind a shell that waits for it.
  for (const char* const rank : {"exec sleep 1000", "sleep 1000; exit 0"}) {
    for (const int number : {SIGKILL, SIGTERM, SIGINT}) {
      CAPTURE(rank);
      CAPTURE(number);
      lifeline line;
      const pid_t launcher = ::fork();
      if (launcher == 0) {
        ::close(line.ends[0]);
        const std::string fd = std::to_string(line.ends[1]);
        script s(3, "printf x > /proc/self/fd/" + fd + "; " + rank);
        ::_exit(s.run());
      }
      ::close(line.ends[1]);
      REQUIRE(line.read_until("xxx"));  // all three ranks run
      ::kill(launcher, number);
      CHECK(line.read_until(""));  // all three ranks have ended
      int status = 0;
      ::waitpid(launcher, &status, 0);
      if (number != SIGKILL) CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 1));
    }
  }
}

TEST_CASE("a job's end removes the shared memory that its killed rank left, and no other job's") {
  const std::string others = "/dev/shm/parley-test-" + std::to_string(::getpid());
  REQUIRE(std::filesystem::create_directory(others));
  script s(2, "echo $UCX_POSIX_DIR; : >$UCX_POSIX_DIR/ucx_shm_posix_$PARLEY_RANK; [ $PARLEY_RANK = 0 ] || kill -9 $$");
  CHECK(s.run() == 1);
  REQUIRE(s.out[1].size() == 1);
  CHECK(s.out[0] == s.out[1]);
  CHECK(s.out[1][0].starts_with("/dev/shm/"));
  CHECK_FALSE(std::filesystem::exists(s.out[1][0]));
  CHECK(std::filesystem::exists(others));
  std::filesystem::remove(others);
}

TEST_CASE("a launcher that is killed leaves no shared memory of its ranks") {
  lifeline line;
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::close(line.ends[0]);
    script s(1, ": >$UCX_POSIX_DIR/ucx_shm_posix_1; printf \"$UCX_POSIX_DIR;\" > /proc/self/fd/" +
                    std::to_string(line.ends[1]) + "; sleep 1000");
    ::_exit(s.run());
  }
  ::close(line.ends[1]);
  REQUIRE(line.read_until(";"));
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  const std::string folder = line.text.substr(0, line.text.find(';'));
  CHECK(folder.starts_with("/dev/shm/"));
  const parley::tests::deadline limit;
  while (std::filesystem::exists(folder) && !limit.is_over()) ::sched_yield();
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("a launcher whose open-file limit is too low names the limit, before any rank starts") {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{24, 24};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    script s(4, "echo begun");
    const bool said = s.run() == 2 && s.noticed("24 files open (ulimit -Hn)") && s.out.empty();
    ::_exit(said ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("ranks receive SIGTERM when their launcher receives SIGHUP") {
  lifeline line;
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::close(line.ends[0]);
    const std::string to = " > /proc/self/fd/" + std::to_string(line.ends[1]);
    // Libraries use SIGHUP themselves (UCX does), so the rank ignores it.
    script s(1, "trap 'printf t" + to + "; exit 3' TERM; trap '' HUP; sleep 1000 & printf x" + to + "; wait");
    ::_exit(s.run());
  }
  ::close(line.ends[1]);
  REQUIRE(line.read_until("x"));
  ::kill(launcher, SIGHUP);
  CHECK(line.read_until("xt"));
  CHECK(line.text == "xt");
  int status = 0;
  ::waitpid(launcher, &status, 0);
}

/// Starts a launcher in a process of its own. It writes everything into one pipe, whose writing end only the launcher holds.
pid_t launcher_into(const int (&pipe)[2], const std::string& text, parley::runtime::time_ns timeout_ns) {
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::close(pipe[0]);
    script s(1, text);
    s.options.on_line = nullptr;
    s.options.on_notice = nullptr;
    s.options.prefix = line_prefix::none;
    s.options.out_fd = pipe[1];
    s.options.error_fd = pipe[1];
    s.options.timeout_ns = timeout_ns;
    s.options.kill_after_ns = 100_ms;
    ::_exit(s.run());
  }
  ::close(pipe[1]);
  return launcher;
}

bool until(const auto& so) {
  for (const parley::tests::deadline limit; !limit.is_over(); ::usleep(1000)) {
    if (so()) return true;
  }
  return false;
}

bool ends(pid_t launcher) {
  return until([&] { return ::waitpid(launcher, nullptr, WNOHANG) == launcher; });
}

TEST_CASE("a launcher whose output nobody reads still ends when it receives SIGTERM") {
  for (const char* const text : {"exec yes", "yes | head -c 100000"}) {  // while ranks run, and after they have ended
    CAPTURE(text);
    lifeline line;
    const pid_t launcher = launcher_into(line.ends, text, parley::runtime::never);
    int held = 0;
    CHECK(until([&] { return ::ioctl(line.ends[0], FIONREAD, &held) == 0 && held >= 60'000; }));  // the pipe is full
    ::kill(launcher, SIGTERM);
    CHECK(ends(launcher));
  }
}

TEST_CASE("ranks whose output nobody reads are ended at their time limit, and the output is kept for a later reader") {
  lifeline line;
  const pid_t launcher = launcher_into(line.ends, "echo $$; exec yes", 500_ms);
  std::string rank;
  for (char c = 0; ::read(line.ends[0], &c, 1) == 1 && c != '\n';) rank += c;
  REQUIRE(!rank.empty());
  CHECK(until([&] { return ::kill(std::stoi(rank), 0) != 0; }));
  CHECK(line.read_until(""));
  CHECK(line.text.find("did not end within 500 ms; rank 0 is ended") != std::string::npos);
  CHECK(ends(launcher));
}

// Hearts that share a page: which rank notices what, and what none may notice.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/fair_stopwatch.hpp>
#include <parley/tests/support/no_more_processes.hpp>

#include <parley/transports/join/heartbeat.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

using namespace parley::transports;
using parley::runtime::errc;
using parley::runtime::rank_id;
using parley::tests::deadline;

namespace {

constexpr parley::runtime::time_ns soon_ns = 1'000'000'000;

std::string fresh_page() {
  static std::atomic<int> count{0};
  return "/dev/shm/parley-hearts-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

/// A heart and the events that it has reported.
struct listening {
  listening(rank_id rank, rank_id world, const std::string& page, std::uint32_t restarts = 0,
            const std::vector<std::uint32_t>& holders = {}, std::function<std::uint64_t()> turns = {}) {
    heartbeat::options o{.rank = rank, .world_size = world, .watched = {}, .page = page, .detection_ns = soon_ns};
    o.restarts = restarts;
    o.pids = holders;
    o.turns = std::move(turns);
    if (!holders.empty()) o.comes = heartbeat::arrival::rejoined;
    for (rank_id r = 0; r < world; ++r) {
      if (r != rank) o.watched.push_back(r);
    }
    auto started = heartbeat::start(std::move(o), {.on_lost =
                                                       [this](rank_id lost, const std::string& why) {
                                                         const std::lock_guard lock(mutex);
                                                         told.emplace_back(lost, why);
                                                       },
                                                   .on_fenced = [this](const std::string&) { fenced = true; }});
    REQUIRE_MESSAGE(bool(started), started.reason().what());
    heart = std::move(started).value();
  }
  std::vector<std::pair<rank_id, std::string>> lost() {
    const std::lock_guard lock(mutex);
    return told;
  }
  std::mutex mutex;
  std::vector<std::pair<rank_id, std::string>> told;
  std::atomic<bool> fenced{false};
  std::unique_ptr<heartbeat> heart;
};

template <class Condition>
bool in_time(Condition holds) {
  const deadline limit;
  while (!holds()) {
    if (limit.is_over()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// Starts a process that beats as rank 2 of 3 until it is fenced and then exits with status 7.
pid_t fork_rank_2(const std::string& page, std::uint32_t restarts = 0, const std::vector<std::uint32_t>& holders = {}) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  {
    std::atomic<bool> fenced{false};
    heartbeat::options o{.rank = 2, .world_size = 3, .watched = {0, 1}, .page = page, .detection_ns = soon_ns};
    o.restarts = restarts;
    o.pids = holders;
    if (!holders.empty()) o.comes = heartbeat::arrival::rejoined;
    auto heart = heartbeat::start(std::move(o), {.on_lost = [](rank_id, const std::string&) {},
                                                 .on_fenced = [&](const std::string&) { fenced = true; }});
    if (heart && in_time([&] { return fenced.load(); }) && !(*heart)->fenced().empty()) ::_exit(7);
  }
  ::_exit(3);
}

}  // namespace

TEST_CASE("all ranks detect a stopped process in time, name one decider, and fence the process when it runs again") {
  const std::string page = fresh_page();
  const pid_t victim = fork_rank_2(page);
  listening zero(0, 3, page);
  listening one(1, 3, page);
  // All ranks have found the page, so its name has been removed.
  REQUIRE(in_time([&] { return !std::filesystem::exists(page); }));
  // Rank 2 has been beating for a while.
  std::this_thread::sleep_for(std::chrono::nanoseconds(soon_ns));
  CHECK(zero.lost().empty());
  ::kill(victim, SIGSTOP);
  const parley::tests::fair_stopwatch since;
  CHECK(in_time([&] { return !zero.lost().empty() && !one.lost().empty(); }));
  CHECK(since.took() < 2 * std::chrono::nanoseconds(soon_ns));
  REQUIRE(zero.lost().size() == 1);
  CHECK(zero.lost() == one.lost());
  CHECK(zero.lost()[0].first == 2);
  CHECK(zero.lost()[0].second.find("rank 2 died or was stopped: rank ") == 0);
  ::kill(victim, SIGCONT);
  int status = 0;
  ::waitpid(victim, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  CHECK_FALSE(zero.fenced);
  CHECK(zero.heart->fenced().empty());
}

TEST_CASE("a newer process joins the page that has no name, is watched like others, and fences the process before it") {
  const std::string page = fresh_page();
  const std::vector<std::uint32_t> holders{static_cast<std::uint32_t>(::getpid())};
  const pid_t first = fork_rank_2(page);
  listening zero(0, 3, page);
  listening one(1, 3, page);
  REQUIRE(in_time([&] { return !std::filesystem::exists(page); }));
  ::kill(first, SIGSTOP);
  REQUIRE(in_time([&] { return zero.lost().size() == 1 && one.lost().size() == 1; }));
  // News of the new process may arrive before it starts to beat. It is not the process that was declared dead.
  zero.heart->expect(2, 1);
  CHECK(zero.heart->lost().empty());
  CHECK(one.heart->lost().size() == 1);
  const pid_t second = fork_rank_2(page, 1, holders);
  ::kill(first, SIGCONT);
  int status = 0;
  ::waitpid(first, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  // Late evidence about the first process does not affect the second, whether or not the heart knows of the second one.
  one.heart->hold_dead(2);
  one.heart->expect(2, 1);
  std::this_thread::sleep_for(std::chrono::nanoseconds(soon_ns));
  CHECK(zero.lost().size() == 1);
  CHECK(one.lost().size() == 1);
  CHECK_FALSE(std::filesystem::exists(page));
  ::kill(second, SIGSTOP);
  CHECK(in_time([&] { return zero.lost().size() == 2 && one.lost().size() == 2; }));
  CHECK(zero.heart->lost().size() == 1);
  ::kill(second, SIGCONT);
  ::waitpid(second, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  // Any rank may declare a process dead that never started to beat.
  zero.heart->expect(2, 2);
  zero.heart->hold_dead(2);
  CHECK(zero.heart->lost().size() == 1);
  const listening late(2, 3, page, 2, holders);
  CHECK_FALSE(late.heart->fenced().empty());
  CHECK(zero.heart->fenced().empty());
  CHECK(one.heart->fenced().empty());
}

TEST_CASE("a newer process creates no page if no other rank has one open") {
  const std::string page = fresh_page();
  auto started = heartbeat::start({.rank = 1,
                                   .world_size = 2,
                                   .watched = {0},
                                   .page = page,
                                   .restarts = 1,
                                   .pids = {static_cast<std::uint32_t>(::getpid())},
                                   .comes = heartbeat::arrival::rejoined},
                                  {});
  REQUIRE_FALSE(bool(started));
  CHECK(started.code() == errc::unavailable);
  CHECK_FALSE(std::filesystem::exists(page));
}

TEST_CASE("a rank that restarts while others still look for the page is counted once") {
  const std::string page = fresh_page();
  // The process is killed, so it neither leaves nor removes the page's name.
  {
    const pid_t first = fork_rank_2(page);
    REQUIRE(in_time([&] { return std::filesystem::exists(page) && std::filesystem::file_size(page) > 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::kill(first, SIGKILL);
    ::waitpid(first, nullptr, 0);
  }
  listening two(2, 3, page, 1);
  listening zero(0, 3, page);
  CHECK(std::filesystem::exists(page));
  listening one(1, 3, page);
  CHECK_FALSE(std::filesystem::exists(page));
  CHECK(two.heart->fenced().empty());
}

TEST_CASE("a heart reports how long a peer's loop has stood still, and that the loop turns again") {
  const std::string page = fresh_page();
  std::atomic<std::uint64_t> turns{0};
  std::atomic<bool> turning{true};
  listening zero(0, 2, page);
  listening one(1, 2, page, 0, {}, [&] { return turning ? ++turns : turns.load(); });
  CHECK(one.heart->stands_still(0) == 0);  // rank 0 does not report its turns
  CHECK(zero.heart->stands_still(1) == 0);
  turning = false;
  CHECK(in_time([&] { return zero.heart->stands_still(1) >= soon_ns; }));
  CHECK(zero.lost().empty());
  turning = true;
  CHECK(in_time([&] { return zero.heart->stands_still(1) == 0; }));
  turning = false;
  one.heart.reset();
  CHECK(zero.heart->stands_still(1) == 0);  // rank 1 has left
}

TEST_CASE("a rank that left normally, or whose heart never started, is not reported lost") {
  const std::string page = fresh_page();
  listening zero(0, 3, page);
  {
    listening one(1, 3, page);
    std::this_thread::sleep_for(std::chrono::nanoseconds(soon_ns));
  }
  std::this_thread::sleep_for(2 * std::chrono::nanoseconds(soon_ns));
  CHECK(zero.lost().empty());
  // A rank that leaves early removes the page's name, so that nothing is left over.
  zero.heart.reset();
  CHECK_FALSE(std::filesystem::exists(page));
}

TEST_CASE("a heart can announce that its rank has returned, and a heart that merely ends does not announce it") {
  const std::string page = fresh_page();
  listening zero(0, 3, page);
  listening one(1, 3, page);
  listening two(2, 3, page);
  CHECK_FALSE(zero.heart->has_returned(1));
  one.heart->say_returned();
  CHECK(zero.heart->has_returned(1));
  one.heart.reset();
  two.heart.reset();
  CHECK(zero.heart->has_returned(1));
  CHECK_FALSE(zero.heart->has_returned(2));
  zero.heart->hold_dead(1);  // its connections have ended, too
  CHECK(zero.heart->lost().empty());
  CHECK(zero.heart->living().empty());
  CHECK(zero.lost().empty());
}

TEST_CASE("a rank that leaves early keeps the page's name for ranks that still have to find the page") {
  const std::string page = fresh_page();
  const pid_t other = ::fork();  // rank 1, which is slow to look for the page
  if (other == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto start = [&] {
    return heartbeat::start(
        {.rank = 0, .world_size = 2, .watched = {1}, .page = page, .pids = {static_cast<std::uint32_t>(other)}},
        {.on_lost = [](rank_id, const std::string&) {}, .on_fenced = [](const std::string&) {}});
  };
  start().value().reset();
  CHECK(std::filesystem::exists(page));
  {
    const listening one(1, 2, page);
    CHECK_FALSE(std::filesystem::exists(page));  // rank 1 was the last one to look for the page
  }
  start().value().reset();
  CHECK(std::filesystem::exists(page));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  start().value().reset();
  CHECK_FALSE(std::filesystem::exists(page));  // nobody else will look for the page
}

TEST_CASE(
    "a process that stops, or ends, before its heart starts is reported lost; one that runs without a heart is not") {
  const std::string page = fresh_page();
  const auto fork_waiting = [] {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::pause();
      ::_exit(0);
    }
    return pid;
  };
  const pid_t stopped = fork_waiting();
  const pid_t ended = fork_waiting();
  const pid_t running = fork_waiting();
  std::mutex mutex;
  std::vector<rank_id> lost;
  const auto told_of = [&](rank_id rank) {
    const std::lock_guard lock(mutex);
    return std::count(lost.begin(), lost.end(), rank) == 1;
  };
  const parley::tests::fair_stopwatch since;
  ::kill(stopped, SIGSTOP);
  ::kill(ended, SIGKILL);
  auto heart = heartbeat::start({.rank = 0,
                                 .world_size = 5,
                                 .watched = {1, 2, 3, 4},
                                 .page = page,
                                 .detection_ns = soon_ns,
                                 .pids = {static_cast<std::uint32_t>(stopped), static_cast<std::uint32_t>(ended),
                                          static_cast<std::uint32_t>(running), 0}},
                                {.on_lost =
                                     [&](rank_id dead, const std::string&) {
                                       const std::lock_guard lock(mutex);
                                       lost.push_back(dead);
                                     },
                                 .on_fenced = [](const std::string&) {}})
                   .value();
  CHECK(in_time([&] { return told_of(1) && told_of(2); }));
  CHECK(since.took() < std::chrono::nanoseconds(soon_ns));
  std::this_thread::sleep_for(std::chrono::nanoseconds(soon_ns));
  CHECK_FALSE(told_of(3));
  CHECK_FALSE(told_of(4));
  // A newer process in that place, of which news has arrived, is watched like any other.
  heart->expect(3, 1, static_cast<std::uint32_t>(running));
  ::kill(running, SIGSTOP);
  CHECK(in_time([&] { return told_of(3); }));
  for (const pid_t pid : {stopped, ended, running}) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  heart.reset();
  CHECK_FALSE(std::filesystem::exists(page));
}

TEST_CASE("a new heart removes an old page that no process holds, and keeps pages that are held or young") {
  const auto age = [](const std::string& page, std::time_t seconds) {
    const timespec then{std::time(nullptr) - seconds, 0};
    const timespec both[2] = {then, then};
    REQUIRE(::utimensat(AT_FDCWD, page.c_str(), both, 0) == 0);
  };
  const std::string old = fresh_page();
  const std::string young = fresh_page();
  for (const std::string& page : {old, young}) std::ofstream(page) << "";
  age(old, 20);
  age(young, 2);
  const std::string held = fresh_page();
  listening zero(0, 3, held);
  CHECK_FALSE(std::filesystem::exists(old));
  CHECK(std::filesystem::exists(young));
  age(held, 20);
  listening other(0, 3, fresh_page());
  CHECK(std::filesystem::exists(held));
  std::filesystem::remove(young);
}

TEST_CASE("a rank that opens a page during its removal creates a new page, under the same name") {
  const std::string page = fresh_page();
  const int remover = ::open(page.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(::flock(remover, LOCK_EX | LOCK_NB) == 0);
  std::jthread removing([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::unlink(page.c_str());
    ::close(remover);
  });
  listening zero(0, 3, page);
  removing.join();
  CHECK(std::filesystem::exists(page));
}

TEST_CASE("a page that others can read, or that is no page, is refused") {
  const auto refused = [](const std::string& page) {
    auto started = heartbeat::start({.rank = 0, .world_size = 2, .watched = {1}, .page = page}, {});
    REQUIRE_FALSE(bool(started));
    return started.code();
  };
  const std::string readable = fresh_page();
  std::ofstream(readable) << "";
  ::chmod(readable.c_str(), 0644);
  CHECK(refused(readable) == errc::unauthenticated);
  const std::string small = fresh_page();
  std::ofstream(small) << "hello";
  ::chmod(small.c_str(), 0600);
  CHECK(refused(small) == errc::malformed);
  const std::string other = fresh_page();
  std::ofstream(other) << std::string(64 * 3, 'x');
  ::chmod(other.c_str(), 0600);
  CHECK(refused(other) == errc::malformed);
  const std::string link = fresh_page();
  std::filesystem::create_symlink("/dev/null", link);
  CHECK(refused(link) == errc::io);
  std::filesystem::remove(link);
  CHECK(refused("/nowhere/page") == errc::io);
  for (const auto& path : {readable, small, other}) std::filesystem::remove(path);
}

TEST_CASE("the page's name is derived from the job and the session's key") {
  const std::vector<std::byte> key(16, std::byte{1});
  const std::vector<std::byte> another(16, std::byte{2});
  CHECK(heartbeat::page_name(1, key) == heartbeat::page_name(1, key));
  CHECK(heartbeat::page_name(1, key) != heartbeat::page_name(1, another));
  CHECK(heartbeat::page_name(1, key) != heartbeat::page_name(2, key));
}

TEST_CASE("a heartbeat that cannot start a thread is an error, and leaves no page") {
  const std::string page = fresh_page();
  const auto refused = [&] {
    const auto started =
        heartbeat::start({.rank = 0, .world_size = 2, .watched = {1}, .page = page, .detection_ns = soon_ns}, {});
    return !started && started.reason().code() == errc::unavailable ? 0 : 1;
  };
  CHECK(parley::tests::without_processes(refused) == 0);
  CHECK_FALSE(std::filesystem::exists(page));
}

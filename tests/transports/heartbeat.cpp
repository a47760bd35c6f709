// Hearts that share a page: what is noticed, by whom, and what is not.
#include "../support/deadline.hpp"
#include "../support/fair_stopwatch.hpp"

#include <parley/transports/heartbeat.hpp>

#include <doctest/doctest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

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

/// A heart and what it has said.
struct listening {
  listening(rank_id rank, rank_id world, const std::string& page, parley::runtime::time_ns detection_ns = soon_ns) {
    heartbeat::options o{.rank = rank, .world_size = world, .watched = {}, .page = page, .detection_ns = detection_ns};
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

/// A process that beats as rank 2 of 3 until it is fenced; it then ends with status 7.
pid_t fork_rank_2(const std::string& page) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  {
    std::atomic<bool> fenced{false};
    heartbeat::options o{.rank = 2, .world_size = 3, .watched = {0, 1}, .page = page, .detection_ns = soon_ns};
    auto heart = heartbeat::start(std::move(o), {.on_lost = [](rank_id, const std::string&) {},
                                                 .on_fenced = [&](const std::string&) { fenced = true; }});
    if (heart && in_time([&] { return fenced.load(); }) && !(*heart)->fenced().empty()) ::_exit(7);
  }
  ::_exit(3);
}

}  // namespace

TEST_CASE("a heart that stops is noticed in time by all, which name one decider, and is fenced when it comes back") {
  const std::string page = fresh_page();
  const pid_t victim = fork_rank_2(page);
  listening zero(0, 3, page);
  listening one(1, 3, page);
  // All have found the page: its name is gone.
  REQUIRE(in_time([&] { return !std::filesystem::exists(page); }));
  // It has beaten for a while.
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

TEST_CASE("a heart that leaves in peace, or never came, is not lost") {
  const std::string page = fresh_page();
  listening zero(0, 3, page);
  {
    listening one(1, 3, page);
    std::this_thread::sleep_for(std::chrono::nanoseconds(soon_ns));
  }
  std::this_thread::sleep_for(2 * std::chrono::nanoseconds(soon_ns));
  CHECK(zero.lost().empty());
  // Somebody who leaves early takes the name along, so that nothing stays behind.
  zero.heart.reset();
  CHECK_FALSE(std::filesystem::exists(page));
}

TEST_CASE("a page that others may read, or that is something else, is refused") {
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

TEST_CASE("the page's name follows from the session's key") {
  const std::vector<std::byte> key(16, std::byte{1});
  const std::vector<std::byte> another(16, std::byte{2});
  CHECK(heartbeat::page_name(1, key) == heartbeat::page_name(1, key));
  CHECK(heartbeat::page_name(1, key) != heartbeat::page_name(1, another));
  CHECK(heartbeat::page_name(1, key) != heartbeat::page_name(2, key));
}

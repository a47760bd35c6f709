#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/folder.hpp>

#include <parley/transports/files/file_lock.hpp>
#include <parley/transports/files/file_storage.hpp>

#include <parley/tests/transports/launch/processes.hpp>

#include <doctest/doctest.h>

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

using namespace parley;
using parley::tests::is;
using parley::transports::file_lock;
using parley::transports::file_storage;
using runtime::errc;

namespace {

namespace fs = std::filesystem;
constexpr std::int64_t at_once_ns = 0;
constexpr std::int64_t patience_ns = 20'000'000'000;

using folder = parley::tests::scratch_folder;

std::string this_boot() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

void write(const std::string& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }

/// Adds one to the number in the file.
runtime::result<> count_up(file_storage& disk, const std::string& path) {
  return disk.update(path, [](const runtime::result<std::string>& there) -> std::optional<std::string> {
    return std::to_string((there ? std::stoi(*there) : 0) + 1);
  });
}

}  // namespace

TEST_CASE("only one holder has a lock at a time, and a released lock leaves no file") {
  const folder here;
  {
    const auto first = file_lock::take(here.file("f"), at_once_ns);
    REQUIRE(first);
    CHECK(fs::exists(here.file("f.lock")));
    const auto second = file_lock::take(here.file("f"), 5'000'000);
    CHECK(is(second, {.code = errc::timeout, .quotes = "f.lock is held by process " + std::to_string(::getpid())}));
    CHECK(file_lock::take(here.file("other"), at_once_ns));
    CHECK(here.files() == 1);
  }
  CHECK(here.files() == 0);
  CHECK(file_lock::take(here.file("f"), at_once_ns));
}

TEST_CASE("a waiting thread gets the lock when its holder releases it") {
  const folder here;
  std::optional<file_lock> held(file_lock::take(here.file("f"), at_once_ns).value());
  std::optional<runtime::result<file_lock>> got;
  std::thread waiting([&] { got.emplace(file_lock::take(here.file("f"), patience_ns)); });
  held.reset();
  waiting.join();
  CHECK(got->operator bool());
}

TEST_CASE("concurrent updates by several processes are all kept") {
  const folder here;
  const auto ended = tests::run_processes(4, [&](runtime::rank_id, tests::meeting&) {
    file_storage disk(patience_ns);
    for (int i = 0; i < 50; ++i) PARLEY_EXPECT(count_up(disk, here.file("count")));
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
  file_storage disk;
  CHECK(disk.read(here.file("count")).value() == "200");
  CHECK(here.files() == 1);
}

TEST_CASE("concurrent updates by several threads are all kept") {
  const folder here;
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t)
    all.emplace_back([&] {
      file_storage disk(patience_ns);
      for (int i = 0; i < 25; ++i) static_cast<void>(count_up(disk, here.file("count")));
    });
  for (auto& t : all) t.join();
  file_storage disk;
  CHECK(disk.read(here.file("count")).value() == "100");
}

TEST_CASE("a lock left by a dead process of this host is taken over, and a lock of another host is not") {
  const folder here;
  file_storage disk(10'000'000);
  write(here.file("f.lock"), this_boot() + "\nprocess 1 on here\n");
  CHECK(count_up(disk, here.file("f")));
  CHECK(here.files() == 1);

  write(here.file("f.lock"), "another-boot\nprocess 77 on elsewhere\n");
  const auto refused = count_up(disk, here.file("f"));
  CHECK(is(refused, {.code = errc::timeout, .quotes = "process 77 on elsewhere"}));
  CHECK(refused.reason().what().find("remove this file") != std::string::npos);
  CHECK(disk.read(here.file("f")).value() == "1");
  CHECK(here.files() == 2);
}

TEST_CASE("a process that is killed while it holds the lock does not block others") {
  const folder here;
  const auto ended = tests::run_processes(1, [&](runtime::rank_id, tests::meeting&) {
    auto held = file_lock::take(here.file("f"), at_once_ns);
    PARLEY_EXPECT(held);
    ::_exit(0);  // undoes nothing, as if killed by a signal
  });
  CHECK(fs::exists(here.file("f.lock")));
  CHECK(file_lock::take(here.file("f"), at_once_ns + 1'000'000'000));
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a foreign file at the lock's path makes updates time out, and stays") {
  const folder here;
  file_storage disk(10'000'000);
  write(here.file("a.lock"), "");
  write(here.file("b.lock"), std::string(100'000, '\0'));
  fs::create_directory(here.file("c.lock"));
  REQUIRE(::mkfifo(here.file("d.lock").c_str(), 0600) == 0);
  fs::create_symlink("/dev/null", here.file("e.lock"));
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    INFO(name);
    CHECK(count_up(disk, here.file(name)).code() == errc::timeout);
    CHECK_FALSE(fs::exists(here.file(name)));
  }
  CHECK(here.files() == 5);
}

TEST_CASE("an update in a missing folder, or in one where no file can be made, fails at once") {
  file_storage disk(patience_ns);
  const auto refused = count_up(disk, "/no/such/folder/f");
  CHECK(is(refused, {.code = errc::io, .quotes = "/no/such/folder/f.lock"}));
  CHECK(count_up(disk, "/proc/f").code() == errc::io);
}

TEST_CASE("an update that returns nothing, and one that cannot be written, leave the file unchanged") {
  const folder here;
  write(here.file("f"), "1");
  const auto ended = tests::run_processes(1, [&](runtime::rank_id, tests::meeting&) {
    file_storage disk;
    PARLEY_EXPECT(disk.update(here.file("f"), [](const auto&) { return std::nullopt; }));
    PARLEY_EXPECT(disk.read(here.file("f")).value() == "1");
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{4096, 4096};
    PARLEY_EXPECT(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const auto failed = disk.update(here.file("f"), [](const auto&) { return std::string(100'000, 'x'); });
    PARLEY_EXPECT(failed.code() == errc::io);
    PARLEY_EXPECT(disk.read(here.file("f")).value() == "1");
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
  CHECK(here.files() == 1);
}

TEST_CASE("an update repeats if the file changes without the lock, and fails if the file keeps changing") {
  const folder here;
  file_storage disk;
  write(here.file("f"), "10");
  int calls = 0;
  const auto done =
      disk.update(here.file("f"), [&](const runtime::result<std::string>& there) -> std::optional<std::string> {
        if (++calls == 1) write(here.file("f"), "200");
        return *there + "+1";
      });
  CHECK(done);
  CHECK(calls == 2);
  CHECK(disk.read(here.file("f")).value() == "200+1");

  const auto never = disk.update(here.file("f"), [&](const runtime::result<std::string>& there) {
    write(here.file("f"), *there + "x");
    return std::optional<std::string>("mine");
  });
  CHECK(never.code() == errc::io);
  CHECK(disk.read(here.file("f")).value().starts_with("200+1x"));
}

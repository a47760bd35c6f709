#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/folder.hpp>

#include <parley/transports/files/file_storage.hpp>

#include <parley/tests/transports/launch/processes.hpp>

#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

using namespace parley;
using parley::tests::is;
using parley::transports::file_storage;
using runtime::errc;

namespace {

namespace fs = std::filesystem;

using folder = parley::tests::scratch_folder;

}  // namespace

TEST_CASE("reading a missing file returns unavailable, with the path") {
  const folder here;
  file_storage disk;
  const auto text = disk.read(here.file("none.csv"));
  CHECK(is(text, {.code = errc::unavailable, .quotes = "none.csv"}));
}

TEST_CASE("written text is read back byte for byte, including empty text and zero bytes") {
  const folder here;
  file_storage disk;
  for (const std::string& text :
       {std::string(), std::string("a,b\n"), std::string("\0x\0", 3), std::string(1 << 20, 'z')}) {
    REQUIRE(disk.replace(here.file("f"), text));
    const auto back = disk.read(here.file("f"));
    REQUIRE(back);
    CHECK(back.value() == text);
  }
  CHECK(here.files() == 1);
}

TEST_CASE("replacing a file keeps the file's mode and the link that points to the file") {
  const folder here;
  file_storage disk;
  REQUIRE(disk.replace(here.file("real"), "old"));
  REQUIRE(::chmod(here.file("real").c_str(), 0640) == 0);
  fs::create_symlink(here.file("real"), here.file("link"));
  REQUIRE(disk.replace(here.file("link"), "new"));
  CHECK(fs::is_symlink(here.file("link")));
  CHECK(disk.read(here.file("real")).value() == "new");
  CHECK((fs::status(here.file("real")).permissions() & fs::perms::all) == static_cast<fs::perms>(0640));
}

TEST_CASE("a reader sees the old text or the new one, never a mixture") {
  const folder here;
  file_storage disk;
  const std::string a(300'000, 'a');
  const std::string b(200'000, 'b');
  REQUIRE(disk.replace(here.file("f"), a));
  std::atomic<bool> enough = false;
  std::thread writer([&] {
    file_storage own;
    for (int i = 0; i < 40; ++i) static_cast<void>(own.replace(here.file("f"), i % 2 == 0 ? b : a));
    enough = true;
  });
  bool mixed = false;
  while (!enough) {
    const auto text = disk.read(here.file("f"));
    mixed = mixed || !text || (text.value() != a && text.value() != b);
  }
  writer.join();
  CHECK_FALSE(mixed);
}

TEST_CASE("a failed replacement or append leaves the old file unchanged and no other file") {
  const folder here;
  const auto ended = tests::run_processes(1, [&](runtime::rank_id, tests::meeting&) {
    file_storage disk;
    PARLEY_EXPECT(disk.replace(here.file("f"), "old"));
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{4096, 4096};
    PARLEY_EXPECT(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const auto failed = disk.replace(here.file("f"), std::string(100'000, 'x'));
    PARLEY_EXPECT(failed.code() == errc::io);
    PARLEY_EXPECT(failed.reason().what().find("/f: cannot write") != std::string::npos);
    PARLEY_EXPECT(failed.reason().what().find("File too large") != std::string::npos);
    PARLEY_EXPECT(disk.read(here.file("f")).value() == "old");
    const auto added = disk.append(here.file("f"), std::string(100'000, 'x'));
    PARLEY_EXPECT(added.code() == errc::io);
    PARLEY_EXPECT(disk.read(here.file("f")).value() == "old");
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
  CHECK(here.files() == 1);
}

TEST_CASE("append creates the folder of its file, but only one level of folders") {
  const folder here;
  file_storage disk;
  PARLEY_EXPECT(disk.append(here.file("logs/rank-0.log"), "a\n"));
  PARLEY_EXPECT(disk.append(here.file("logs/rank-0.log"), "b\n"));
  CHECK(disk.read(here.file("logs/rank-0.log")).value() == "a\nb\n");
  CHECK(disk.append(here.file("no/such/file"), "a\n").code() == errc::io);
}

TEST_CASE("texts that several ranks append stay whole") {
  const folder here;
  const auto ended = tests::run_processes(3, [&](runtime::rank_id rank, tests::meeting&) {
    file_storage disk;
    const std::string line = std::string(5'000, static_cast<char>('a' + rank)) + "\n";
    for (int i = 0; i < 50; ++i) PARLEY_EXPECT(disk.append(here.file("trace"), line));
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
  std::ifstream in(here.file("trace"));
  std::string line;
  int lines = 0;
  bool whole = true;
  while (std::getline(in, line)) {
    ++lines;
    whole = whole && line == std::string(5'000, line.empty() ? 'a' : line[0]);
  }
  CHECK(lines == 150);
  CHECK(whole);
}

TEST_CASE("folders, pipes, missing folders and too large files are refused with a reason") {
  const folder here;
  file_storage disk;
  fs::create_directory(here.file("d"));
  REQUIRE(::mkfifo(here.file("p").c_str(), 0600) == 0);
  CHECK(disk.read(here.file("d")).code() == errc::io);
  CHECK(disk.read(here.file("p")).code() == errc::io);
  CHECK(disk.replace(here.file("d"), "x").code() == errc::io);
  CHECK(disk.append(here.file("d"), "x").code() == errc::io);
  CHECK(disk.append(here.file("p"), "x").code() == errc::io);
  CHECK(disk.replace(here.file("missing/f"), "x").reason().what().find("No such file or directory") !=
        std::string::npos);

  REQUIRE(disk.replace(here.file("big"), ""));
  fs::resize_file(here.file("big"), file_storage::max_file_bytes + 1);
  CHECK(disk.read(here.file("big")).code() == errc::io);
  CHECK(disk.append(here.file("big"), "x").code() == errc::io);
  CHECK(disk.replace(here.file("big2"), std::string(file_storage::max_file_bytes + 1, 'x')).code() == errc::io);
  CHECK_FALSE(fs::exists(here.file("big2")));
  fs::resize_file(here.file("big"), file_storage::max_file_bytes);
  CHECK(disk.read(here.file("big")).code() == errc::none);
}

TEST_CASE("another user's file is never written, by its name or through a link, not even by root" *
          doctest::skip(::geteuid() != 0)) {
  const folder here;
  file_storage disk;
  constexpr uid_t another = 12'345;
  here.write("theirs", "theirs");
  REQUIRE(::chown(here.file("theirs").c_str(), another, 0) == 0);
  fs::create_symlink(here.file("theirs"), here.file("mine"));
  for (const char* const name : {"theirs", "mine"}) {
    CAPTURE(name);
    const std::string path = here.file(name);
    CHECK(disk.read(path).value() == "theirs");
    CHECK(disk.replace(path, "x").code() == errc::io);
    CHECK(disk.append(path, "x").code() == errc::io);
    const auto updated = disk.update(path, [](const auto&) { return std::optional<std::string>("x"); });
    CHECK(is(updated, {.code = errc::io, .quotes = "belongs to user 12345"}));
  }
  CHECK(here.read("theirs") == "theirs");
  CHECK(fs::is_symlink(here.file("mine")));
  CHECK(here.files() == 2);  // neither a lock file nor a new file is left
}

TEST_CASE("writing through another user's link fails, and a chain of own links leads to the last file" *
          doctest::skip(::geteuid() != 0)) {
  const folder here;
  file_storage disk;
  here.write("real", "old");
  fs::create_symlink("real", here.file("second"));
  fs::create_symlink(here.file("second"), here.file("first"));
  REQUIRE(disk.replace(here.file("first"), "new"));
  CHECK(here.read("real") == "new");
  CHECK(fs::is_symlink(here.file("first")));
  CHECK(fs::is_symlink(here.file("second")));
  REQUIRE(disk.append(here.file("first"), "er"));
  CHECK(here.read("real") == "newer");
  REQUIRE(::lchown(here.file("second").c_str(), 12'345, 0) == 0);
  CHECK(disk.replace(here.file("first"), "x").code() == errc::io);
  CHECK(disk.append(here.file("first"), "x").code() == errc::io);
  CHECK(here.read("real") == "newer");
}

TEST_CASE("a dangling link leads to a new file, and circular links lead to an error") {
  const folder here;
  file_storage disk;
  fs::create_symlink("later", here.file("link"));
  REQUIRE(disk.replace(here.file("link"), "x"));
  CHECK(here.read("later") == "x");
  CHECK(fs::is_symlink(here.file("link")));
  fs::create_symlink("b", here.file("a"));
  fs::create_symlink("a", here.file("b"));
  CHECK(disk.replace(here.file("a"), "x").code() == errc::io);
}

TEST_CASE("a new file has the mode that the umask leaves, and the umask stays unchanged") {
  const folder here;
  file_storage disk;
  const mode_t before = ::umask(027);
  const auto made = disk.replace(here.file("f"), "x");
  CHECK(::umask(before) == 027);
  REQUIRE(made);
  CHECK((fs::status(here.file("f")).permissions() & fs::perms::all) == static_cast<fs::perms>(0640));
}

TEST_CASE("place_for_files accepts plain and missing files, and refuses devices, pipes and folders") {
  const folder here;
  file_storage disk;
  here.write("plain", "");
  REQUIRE(::mkfifo(here.file("pipe").c_str(), 0600) == 0);
  for (const std::string& path :
       {std::string("/dev/null"), std::string("/dev/zero"), here.file("pipe"), here.path.string()})
    CHECK(disk.place_for_files(path).code() == errc::io);
  CHECK(disk.place_for_files(here.file("plain")));
  CHECK(disk.place_for_files(here.file("none")));
}

#include <parley/tests/support/errors.hpp>

#include <parley/transports/join/meeting.hpp>
#include <parley/transports/join/rendezvous.hpp>

#include <doctest/doctest.h>

#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

using namespace parley::transports;
using namespace parley::runtime::literals;
using parley::runtime::errc;
using parley::runtime::rank_id;
using parley::tests::is;

namespace {

/// A temporary folder, removed at the end.
struct folder {
  folder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path); }
  std::string file() const { return path + "/parley-000000000000002a"; }
  std::string path = "/tmp/parley-meeting-XXXXXX";
};

placement place_in(const folder& at, rank_id rank) {
  placement place;
  place.rank = rank;
  place.world_size = 2;
  place.local_size = 2;
  place.job = 42;
  place.meeting = meeting_kind::file;
  place.private_folders = {at.path};
  return place;
}

bool same(const job_key& a, const job_key& b) {
  return a.secret().size() == b.secret().size() && std::equal(a.secret().begin(), a.secret().end(), b.secret().begin());
}

mode_t mode_of(const std::string& path) {
  struct stat found{};
  return ::stat(path.c_str(), &found) == 0 ? found.st_mode & 07777U : 0;
}

}  // namespace

TEST_CASE(
    "rank 0 publishes its address and a fresh key for ranks of its host, in a file that only this user can read") {
  const folder at;
  meeting first = find_meeting(place_in(at, 0), 1_s).value();
  CHECK(first.place.listening_fd >= 0);
  CHECK(first.key.secret().size() == 32);
  CHECK(mode_of(at.file()) == 0600);
  const meeting second = find_meeting(place_in(at, 1), 1_s).value();
  CHECK(second.place.rendezvous_host == "127.0.0.1");
  CHECK(second.place.rendezvous_port == first.place.rendezvous_port);
  CHECK(same(first.key, second.key));
  first.published.remove();
  CHECK(std::filesystem::is_empty(at.path));
  ::close(first.place.listening_fd);
  meeting later = find_meeting(place_in(at, 0), 1_s).value();
  CHECK_FALSE(same(first.key, later.key));
  ::close(later.place.listening_fd);
}

TEST_CASE("ranks that arrive first wait for rank 0") {
  const folder at;
  std::string told;
  std::thread early([&] { told = meeting_file::await(at.file(), 10_s).value(); });
  const auto file = meeting_file::publish(at.file(), "here").value();
  early.join();
  CHECK(told == "here");
}

TEST_CASE("a missing rank 0 is a timeout that names the file") {
  const folder at;
  const auto missing = find_meeting(place_in(at, 1), 20_ms);
  REQUIRE_FALSE(missing);
  CHECK(is(missing, {.code = errc::timeout, .quotes = at.file()}));
}

TEST_CASE("finding rank 0 and joining share one time limit") {
  using clock = std::chrono::steady_clock;
  const folder at;
  const meeting first = find_meeting(place_in(at, 0), 10_s).value();
  const auto began = clock::now();
  const meeting second = find_meeting(place_in(at, 1), 10_s).value();
  const auto took = std::chrono::nanoseconds(clock::now() - began).count();
  const auto left = options_for(second).join_timeout_ns;
  CHECK(left < 10_s);
  CHECK(left >= 10_s - took);
  ::close(first.place.listening_fd);
  const meeting late = find_meeting(place_in(at, 1), 0).value();
  CHECK(options_for(late).join_timeout_ns > 0);  // at the last moment there is still time for one answer
}

TEST_CASE("a file whose writer was killed is ignored, and the next rank 0 replaces it") {
  const folder at;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto left = meeting_file::publish(at.file(), "stale");
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  CHECK(std::filesystem::exists(at.file()));
  CHECK(meeting_file::await(at.file(), 20_ms).code() == errc::timeout);
  const auto file = meeting_file::publish(at.file(), "fresh").value();
  CHECK(meeting_file::await(at.file(), 1_s).value() == "fresh");
}

TEST_CASE("a second rank 0 of one job is refused, and the first one's file stays") {
  const folder at;
  const auto first = meeting_file::publish(at.file(), "first").value();
  const auto second = meeting_file::publish(at.file(), "second");
  REQUIRE_FALSE(second);
  CHECK(is(second, {.code = errc::bad_argument, .quotes = "rank 0 of this job already"}));
  CHECK(meeting_file::await(at.file(), 1_s).value() == "first");
}

TEST_CASE("a file that others can read, a link, and malformed content are refused") {
  const folder at;
  const auto file = meeting_file::publish(at.file(), "nonsense").value();
  CHECK(find_meeting(place_in(at, 1), 1_s).code() == errc::malformed);
  for (const char* bad : {"", "h", "h,1", "h,0,", "h,99999,", ",1,", "h,1x,", "h,1,abc", "127.0.0.1,5,zz"}) {
    const folder other;
    const auto spoiled = meeting_file::publish(other.file(), bad).value();
    CHECK(find_meeting(place_in(other, 1), 1_s).code() == errc::malformed);
  }
  ::chmod(at.file().c_str(), 0644);
  CHECK(find_meeting(place_in(at, 1), 1_s).code() == errc::unauthenticated);
  const folder linked;
  REQUIRE(::symlink(at.file().c_str(), linked.file().c_str()) == 0);
  CHECK_FALSE(find_meeting(place_in(linked, 1), 1_s));
}

TEST_CASE("only a folder that belongs to this user alone may hold a key") {
  const folder at;
  CHECK(private_folder({at.path}).value() == at.path);
  const std::string fallback = "/tmp/parley-" + std::to_string(::geteuid());
  for (const std::string& unfit : {std::string("relative"), std::string("/nonexistent"), std::string("/tmp")})
    CHECK(private_folder({unfit}).value() == fallback);
  CHECK(mode_of(fallback) == 0700);
  ::chmod(at.path.c_str(), 0750);
  CHECK(private_folder({at.path}).value() == fallback);
}

TEST_CASE("a key that the user has given is used, and the meeting file holds no key") {
  const folder at;
  const std::string path = at.path + "/key";
  std::ofstream(path) << std::string(32, 'k');
  ::chmod(path.c_str(), 0600);
  auto host = place_in(at, 0);
  host.key_file = path;
  const meeting first = find_meeting(host, 1_s).value();
  auto guest = place_in(at, 1);
  guest.key_file = path;
  CHECK(same(first.key, find_meeting(guest, 1_s).value().key));
  CHECK(find_meeting(place_in(at, 1), 1_s).value().key.empty());
  ::close(first.place.listening_fd);
}

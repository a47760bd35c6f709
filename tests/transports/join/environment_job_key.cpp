#include <parley/tests/support/errors.hpp>

#include <parley/transports/join/job_key.hpp>
#include <parley/transports/launch/environment.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

using namespace parley::transports;
using parley::runtime::errc;
using parley::tests::is;

namespace {

/// A temporary file, removed at the end.
struct key_file {
  explicit key_file(const std::string& content, mode_t mode = 0600) {
    const int fd = ::mkstemp(path.data());
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    ::fchmod(fd, mode);
    ::close(fd);
  }
  key_file(const key_file&) = delete;
  key_file& operator=(const key_file&) = delete;
  ~key_file() { ::unlink(path.c_str()); }
  std::string path = "/tmp/parley-key-XXXXXX";
};

int pipe_with(const std::string& content) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(::write(ends[1], content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  ::close(ends[1]);
  return ends[0];
}

const std::string secret = "0123456789abcdef0123456789abcdef";

bool same(const job_key& key, const std::string& text) {
  const auto bytes = key.secret();
  const auto expected = std::as_bytes(std::span(text));
  return std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end());
}

}  // namespace

TEST_CASE("a key is read from a pipe, and the pipe is closed") {
  const int fd = pipe_with(secret);
  const auto key = job_key::from_descriptor(fd);
  CHECK(same(key.value(), secret));
  CHECK(::fcntl(fd, F_GETFD) == -1);
}

TEST_CASE("a key of the wrong length is malformed, and the error shows nothing of the key") {
  for (const std::string& content : {std::string(), secret.substr(1), secret + "x"}) {
    const auto key = job_key::from_descriptor(pipe_with(content));
    REQUIRE_FALSE(key);
    CHECK(key.code() == errc::malformed);
    CHECK(key.reason().what().find("abcdef") == std::string::npos);
  }
  CHECK(job_key::from_descriptor(987).code() == errc::io);
}

TEST_CASE("a key file that other users can access is refused") {
  const key_file good(secret), readable(secret, 0640), writable(secret, 0602), read_only(secret, 0400);
  CHECK(same(job_key::from_file(good.path).value(), secret));
  CHECK(same(job_key::from_file(read_only.path).value(), secret));
  for (const auto* bad : {&readable, &writable}) {
    const auto key = job_key::from_file(bad->path);
    CHECK(is(key, {.code = errc::unauthenticated, .quotes = bad->path}));
    CHECK(key.reason().what().find("other users") != std::string::npos);
  }
  CHECK(job_key::from_file("/nonexistent/key").code() == errc::unavailable);
  CHECK(job_key::from_file("/tmp").code() == errc::unauthenticated);
}

TEST_CASE("generated keys differ, and moving a key clears its source") {
  auto first = job_key::generate();
  const auto second = job_key::generate();
  CHECK_FALSE(std::equal(first.secret().begin(), first.secret().end(), second.secret().begin()));
  const std::byte* const storage = first.secret().data();
  const auto moved = std::move(first);
  CHECK(moved.secret().size() == job_key::size_bytes);
  CHECK(std::all_of(storage, storage + job_key::size_bytes, [](std::byte b) { return b == std::byte{0}; }));
  CHECK(job_key().empty());
  CHECK(job_key().secret().empty());
}

TEST_CASE("read_key reads the key that a placement names") {
  placement place;
  CHECK(read_key(place).value().empty());
  const key_file file(secret);
  place.key_file = file.path;
  CHECK(same(read_key(place).value(), secret));
  place.key_file.clear();
  place.key_fd = pipe_with(secret);
  CHECK(same(read_key(place).value(), secret));
}

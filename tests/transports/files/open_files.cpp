#include <parley/transports/files/open_files.hpp>

#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

using namespace parley;
using namespace parley::transports;

namespace {

/// Asks for `more` open files in a child with these limits. Returns 0: they are allowed, and the soft limit is high enough; 1: refused,
/// with an error that names both; 2: anything else.
int asked_in_child(rlim_t soft, rlim_t hard, std::size_t more) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{soft, hard};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(2);
    const auto allowed = allow_open_files(more);
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    if (allowed) ::_exit(now.rlim_cur >= more && now.rlim_max == hard ? 0 : 2);
    const std::string text = allowed.reason().what();
    const bool named = allowed.code() == runtime::errc::unavailable && text.find(std::to_string(hard)) != text.npos &&
                       text.find("ulimit -n") != text.npos && now.rlim_cur == soft;
    ::_exit(named ? 1 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

}  // namespace

TEST_CASE("allow_open_files raises a low soft limit, and returns an error that names a hard limit that is too low") {
  CHECK(asked_in_child(200, 200, 50) == 0);
  CHECK(asked_in_child(40, 200, 100) == 0);
  CHECK(asked_in_child(28, 28, 100) == 1);
  CHECK(asked_in_child(28, 60, 100) == 1);
}

TEST_CASE("a rank needs more open files for more ranks that it reaches over TCP or serves as rendezvous host") {
  CHECK(files_of_rank(0, 64, ucx_reach::one_host) > files_of_rank(1, 64, ucx_reach::one_host));
  CHECK(files_of_rank(1, 64, ucx_reach::one_host) == files_of_rank(1, 4, ucx_reach::one_host));
  CHECK(files_of_rank(1, 64, ucx_reach::several_hosts) > files_of_rank(1, 4, ucx_reach::several_hosts));
}

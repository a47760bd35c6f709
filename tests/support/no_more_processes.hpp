#pragma once
/// Runs code where fork() and new threads fail.
///
///     CHECK(without_processes([] { return ::fork() == -1 ? 0 : 1; }) == 0);
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace parley::tests {

/// A user that nobody on this machine is: what it kills can only be what a test has started.
inline constexpr uid_t nobody_else = 60'123;

/// False if this process has not the right to; then it stays who it was.
inline bool become_nobody_else() { return ::setgid(nobody_else) == 0 && ::setuid(nobody_else) == 0; }

/// What `body` returns in a child that may make no processes and no threads; -1 if it does not return. The limit does not bind root,
/// so a child of root is `nobody_else`.
template <class Body>
int without_processes(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && !become_nobody_else()) ::_exit(255);
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(255);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) != 255 ? WEXITSTATUS(status) : -1;
}

}  // namespace parley::tests

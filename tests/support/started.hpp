#pragma once
/// Runs a command line as people do in a shell, and keeps the exit status and the output.
///
///     const started s = start_in(folder, "'" PROGRAM "' --sim 4");
///     CHECK(s.status == 0);
#include <parley/tests/support/folder.hpp>

#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace parley::tests {

struct started {
  int status = -1;  ///< exit status; -1: it did not exit by itself
  std::string out;
  std::string error;
};

inline started start_in(const scratch_folder& f, const std::string& line) {
  const int status = std::system(("cd '" + f.path.string() + "' && " + line + " >out 2>error").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, f.read("out"), f.read("error")};
}

}  // namespace parley::tests

#pragma once
/// A folder of a test's own in which `parley` is run as people run it. PARLEY_COMMAND comes from CMake.
#include "../support/folder.hpp"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace parley::tests {

struct command_folder : scratch_folder {
  struct ended {
    int status = -1;
    std::string out;
    std::string error;
    boost::json::object document() const {
      INFO(error);
      INFO(out);
      return boost::json::parse(out).as_object();
    }
  };
  /// Runs `parley WORDS` in this folder.
  ended parley(const std::string& words) const {
    const std::string line = "cd '" + path.string() + "' && '" PARLEY_COMMAND "' " + words + " >out 2>error";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("out"), read("error")};
  }
};

}  // namespace parley::tests

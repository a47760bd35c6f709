#pragma once
/// A folder of the test's own in which it runs `parley` as people do. PARLEY_COMMAND comes from CMake.
#include <parley/tests/support/started.hpp>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace parley::tests {

/// One sender and one receiver, with three message sizes in turn.
inline constexpr std::string_view three_sizes = R"json({"name": "three", "ranks": 2, "ops": [
  {"op": "transfer", "name": "messages", "edges": [[0, 1]], "dtype": "fp32",
   "configs": ["direct", "chunked(chunk_bytes=256 in_flight=2)", "chunked(chunk_bytes=512 in_flight=4)"],
   "messages": [{"bytes": "128KiB", "count": 1}, {"bytes": "32KiB", "count": 1}, {"bytes": 1000, "count": 1}]}]})json";

inline void has(const std::string& text, std::string_view part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

struct command_folder : scratch_folder {
  struct ended : started {
    boost::json::object document() const {
      INFO(error);
      INFO(out);
      return boost::json::parse(out).as_object();
    }
  };
  /// Runs `parley WORDS` in this folder; `variables` may precede the command.
  ended parley(const std::string& words, const std::string& variables = {}) const {
    return run(variables + " '" PARLEY_COMMAND "' " + words);
  }
  /// Runs `parley tune WORDS --json` so that all keys are agreed on. The number of calls that a search takes depends on how soon its
  /// rehearsals run, and on a busy machine one trial may cost as much as the usual budget earns in seconds. Therefore there are many times
  /// as many calls as an idle machine needs, no budget delays trials, and no search restarts because of drift.
  ended tune(const std::string& words) const {
    return run("PARLEY_TUNING_DRIFT=0 '" PARLEY_COMMAND "' tune --microbatches 3000 --budget 1000 --json " + words);
  }

 private:
  ended run(const std::string& line) const { return {start_in(*this, line)}; }
};

}  // namespace parley::tests

#pragma once
/// A folder of a test's own in which `parley` is run as people run it. PARLEY_COMMAND comes from CMake.
#include <parley/tests/support/started.hpp>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace parley::tests {

/// One sender and one receiver, three sizes in turn.
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
  /// Runs `parley WORDS` in this folder, with variables that may stand before it.
  ended parley(const std::string& words, const std::string& variables = {}) const {
    return run(variables + " '" PARLEY_COMMAND "' " + words);
  }
  /// Runs `parley tune WORDS --json` so that all keys are agreed on. How many calls a campaign takes depends on how soon its
  /// rehearsals get their turn, and on a busy machine one trial may cost what the usual budget earns in seconds: so there are
  /// many times as many calls as an idle machine takes, no budget holds trials back, and nothing is searched anew in the end.
  ended tune(const std::string& words) const {
    return run("PARLEY_TUNING_DRIFT=0 '" PARLEY_COMMAND "' tune --microbatches 3000 --budget 1000 --json " + words);
  }

 private:
  ended run(const std::string& line) const { return {start_in(*this, line)}; }
};

}  // namespace parley::tests

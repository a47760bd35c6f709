// Ranks that receive SIGUSR1: each writes its flight recorder, and goes on.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <csignal>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::deadline;
using parley::tests::pair_of;
using parley::tests::say;

namespace {

bool file_is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}
std::string flight_path(const rank& self) {
  return std::string(std::getenv("PARLEY_FLIGHT_DIR")) + "/parley-flight-" + std::to_string(self.id()) + ".json";
}

void signalled(job& here) {
  transfer t(here.self(), pair_of({direct()}));
  run(here.loop(), move_all(here.self(), t, {100, 200}, 0));
  ::kill(::getpid(), SIGUSR1);
  const std::string mine = flight_path(here.self());
  const auto until = [&](const auto& so) {
    for (const deadline limit; !so() && !limit.is_over();) run(here.loop(), rest(here.loop(), 10_ms));
  };
  until([&] { return file_is_there(mine); });
  say(file_is_there(mine) ? "written" : "never written");
  // When one rank leaves first, the other has lost a peer, and would write its file again. So each rank renames its file, and waits for
  // the other's.
  std::filesystem::rename(mine, mine + ".kept");
  const std::string other = std::string(std::getenv("PARLEY_FLIGHT_DIR")) + "/parley-flight-" +
                            std::to_string(1 - here.self().id()) + ".json.kept";
  until([&] { return file_is_there(other); });
}
const scenario as_signalled{"signalled", signalled};

}  // namespace

TEST_CASE("on SIGUSR1 each rank writes its flight recorder, and continues") {
  const folder where;
  const job_run run("signalled", 2, {{"PARLEY_FLIGHT_DIR", where.path.string()}});
  CHECK_MESSAGE(run.fine(), run.all);
  for (rank_id r = 0; r < 2; ++r) {
    CHECK_MESSAGE(run.says(r, {"written"}), run.all);
    std::ifstream file(where.path / ("parley-flight-" + std::to_string(r) + ".json.kept"));
    std::ostringstream text;
    text << file.rdbuf();
    CHECK(text.str().find("\"why\":\"signal SIGUSR1\"") != std::string::npos);
    CHECK(text.str().find("\"op\":\"activations 0->1\"") != std::string::npos);
    CHECK(text.str().find("\"config\":\"direct\"") != std::string::npos);
  }
}

namespace {

void signalled_without_folder(job& here) {
  ::kill(::getpid(), SIGUSR1);
  run(here.loop(), rest(here.loop(), 300_ms));
  say("goes on");
}
const scenario as_signalled_without_folder{"signalled_without_folder", signalled_without_folder};

}  // namespace

TEST_CASE("on SIGUSR1 a rank without a flight folder writes its record among the temporary files, and continues") {
  const folder temporary;
  const job_run run("signalled_without_folder", 1, {{"TMPDIR", temporary.path.string()}});
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(0, {"goes on"}), run.all);
  CHECK_MESSAGE(run.says(0, {temporary.path.c_str(), "parley-flight-0.json"}), run.all);
  std::string found;
  for (const auto& file : std::filesystem::recursive_directory_iterator(temporary.path)) {
    if (file.path().filename() == "parley-flight-0.json") found = text_of(file.path());
  }
  CHECK(found.find("\"why\":\"signal SIGUSR1\"") != std::string::npos);
}

namespace {

volatile std::sig_atomic_t own_handler_ran = 0;
void own_handler(int) { own_handler_ran = 1; }
void signalled_with_own_handler(job& here) {
  ::kill(::getpid(), SIGUSR1);
  run(here.loop(), rest(here.loop(), 100_ms));
  say(own_handler_ran != 0 ? "own handler" : "no handler");
  say(file_is_there(flight_path(here.self())) ? "written" : "not written");
}
int signalled_to_own_handler(job_options& o) {
  std::signal(SIGUSR1, own_handler);
  return ops::run(signalled_with_own_handler, o);
}
const scenario as_signalled_with_own_handler{"signalled_with_own_handler", signalled_to_own_handler};

}  // namespace

TEST_CASE("a program that handles SIGUSR1 itself keeps its handler") {
  const folder where;
  const job_run run("signalled_with_own_handler", 1, {{"PARLEY_FLIGHT_DIR", where.path.string()}});
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(0, {"own handler"}), run.all);
  CHECK_MESSAGE(run.says(0, {"not written"}), run.all);
}

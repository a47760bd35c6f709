// A rank's process forks: each call of the child is refused by name and sends nothing. The job goes on, however the child ends.
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/dataflow.hpp>
#include <parley/p2p.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using parley::tests::job_run;
using parley::tests::pair_of;
using parley::tests::pattern;
using parley::tests::say;
using parley::tests::scenario_variable;

namespace {

constexpr const char* one_rank = "this program as one rank that forks";
constexpr std::size_t messages = 20;
constexpr std::size_t size = 100;

void expect(bool holds, const std::string& what) {
  if (!holds) raise({errc::exception, "not so: " + what});
}

int status_of(pid_t child) {
  int status = 0;
  expect(::waitpid(child, &status, 0) == child, "the child can be waited for");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

task<> send_garbage(dataflow& flow, p2p* side) {
  const std::vector<std::byte> garbage(size, std::byte{0x77});
  const std::vector<p2p_operation> one{p2p::isend(garbage, {.to = 1})};
  const flow_work moving = side->start(flow, one);
  co_await moving;
}

/// Makes each kind of call in a child. Returns 0 if all are refused with `bad_argument`, else the number of the first that is not.
task<int> calls_of_child(rank* self, transfer t, p2p side) {
  const std::vector<std::byte> garbage(size, std::byte{0x77});
  std::vector<std::byte> large(1 << 20U, std::byte{0x77});
  const auto awaited = co_await attempt(t.send(garbage, {.to = 1}));
  if (awaited.code() != errc::bad_argument) co_return 1;
  const auto long_one = co_await attempt(t.send(large, {.to = 1}));
  if (long_one.code() != errc::bad_argument) co_return 2;
  const auto started = tests::thrown_by([&] { static_cast<void>(t.start_send(garbage, {.to = 1})); });
  if (started.code() != errc::bad_argument) co_return 3;
  const auto batch = co_await attempt(with_dataflow(send_garbage, &side));
  if (batch.code() != errc::bad_argument) co_return 4;
  const auto declared = tests::thrown_by([&] {
    auto late = pair_of({direct()});
    late.name = "late";
    static_cast<void>(transfer(*self, late));
  });
  if (declared.code() != errc::bad_argument) co_return 5;
  const auto dumped = tests::thrown_by([&] { static_cast<void>(self->dump_flight("a child", "/tmp")); });
  if (dumped.code() != errc::bad_argument) co_return 6;
  const auto written = tests::thrown_by([&] { static_cast<void>(self->write_results()); });
  if (written.code() != errc::bad_argument) co_return 7;
  const auto retuned = tests::thrown_by([&] { static_cast<void>(self->retune("activations")); });
  if (retuned.code() != errc::bad_argument) co_return 8;
  const auto awaited_restart = co_await attempt(self->until_restart(0, 1ns));
  if (awaited_restart.code() != errc::bad_argument) co_return 9;
  const auto asked = tests::thrown_by([&] { t.to(1).retune(); });
  if (asked.code() != errc::bad_argument) co_return 10;
  const auto decided = co_await attempt(t.to(1).decided(size));
  if (decided.code() != errc::bad_argument) co_return 11;
  co_return 0;
}

enum class child_does : std::uint8_t { calls, exits, leaves, awaits, returns };

task<> forking(rank& self, transfer t, p2p side) {
  for (std::size_t i = 0; i < messages; ++i) {
    if (self.id() == 1) {
      std::vector<std::byte> into(size);
      const auto got = co_await t.receive(into, {.from = 0});
      expect(got == size && into == pattern(size, i), "message " + std::to_string(i) + " has its bytes");
      continue;
    }
    const auto does = static_cast<child_does>(i % 5);
    const pid_t child = ::fork();
    if (child == 0) {
      if (does == child_does::calls) {
        const int refused = co_await calls_of_child(&self, t, side);
        ::_exit(refused);
      }
      if (does == child_does::exits) std::exit(0);
      if (does == child_does::leaves) ::_exit(0);
      if (does == child_does::awaits) {
        auto slept = co_await sleep_for(1ms);
        static_cast<void>(slept);
        ::_exit(77);  // not reached: the child must end at the await
      }
      co_return;
    }
    // A child that awaits ends with status 1 and prints the reason.
    const int status = status_of(child);
    expect(status == (does == child_does::awaits ? 1 : 0),
           "child " + std::to_string(i) + " ends as it should, and not with " + std::to_string(status));
    const auto data = pattern(size, i);
    co_await t.send(data, {.to = 1});
  }
}

}  // namespace

TEST_CASE("this program as one rank that forks" * doctest::skip()) {
  if (std::getenv(scenario_variable) == nullptr) return;
  const pid_t mine = ::getpid();
  const int status = ops::run([](job& here) {
    transfer t(here.self(), pair_of({direct(), chunked(16_KiB)}));
    p2p side(here.self(), {.name = "side", .configs = {direct()}});
    run(here.loop(), forking(here.self(), t, side));
    if (!here.loop().forked()) say("received all");
  });
  if (::getpid() != mine) ::_exit(status);
  REQUIRE(status == 0);
}

TEST_CASE("each call of a child that fork() made of a rank is refused and moves no message, however the child ends") {
  const job_run run(one_rank, "forks", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(0, {"received all"}), run.all);
  CHECK_MESSAGE(run.says(1, {"received all"}), run.all);
  const std::string refused = tests::thrown_by([] { refuse_fork("a call"); }).reason().text();
  const std::string why = refused.substr(refused.find(','));  // behind the call and the process
  CHECK_MESSAGE(run.says(0, {"bad_argument", why.c_str()}), run.all);
}

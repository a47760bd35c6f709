// Ranks that compute for long without polling: what becomes of the calls of their peers.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/cases/pattern.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::pair_of;
using parley::tests::pattern;

namespace {

constexpr std::array<std::size_t, 4> sizes{1'000, 30'000, 1'000'000, 6'000'000};
constexpr time_ns computes_ns = 5'000'000'000;

task<> send_in_time(rank& self, transfer t) {
  const time_ns began_ns = self.where().precise_now();
  for (std::uint32_t tag = 1; tag <= sizes.size(); ++tag) {
    const std::vector<std::byte> data = pattern(sizes[tag - 1], tag);
    const auto sent = co_await attempt(t.send(data, {.to = 1, .tag = tag, .timeout = std::chrono::milliseconds(300)}));
    expect(sent || sent.code() == errc::timeout, "a send ended with " + std::string(sent.reason().what()));
    if (tag == sizes.size()) expect(!sent, "the last send did not time out");
  }
  expect(self.where().precise_now() - began_ns < computes_ns - 1'000'000'000, "the sends outlasted their timeouts");
  const std::vector<std::byte> last = pattern(100, 0);
  co_await t.send(last, {.to = 1});
}
// What was given up comes whole, ends with an error, or had not begun.
task<> receive_what_comes(transfer t) {
  for (std::uint32_t tag = 1; tag <= sizes.size(); ++tag) {
    std::vector<std::byte> data(sizes[tag - 1]);
    const auto received =
        co_await attempt(t.receive(data, {.from = 0, .tag = tag, .timeout = std::chrono::milliseconds(300)}));
    const bool whole = received && data == pattern(data.size(), tag);
    expect(whole || received.code() == errc::send_failed || received.code() == errc::timeout,
           "a receive of " + std::to_string(data.size()) + " bytes ended otherwise");
  }
  std::vector<std::byte> data(100);
  co_await t.receive(data, {.from = 0});
  expect(data == pattern(100, 0), "the last message is wrong");
}

void computes_first(job& here) {
  transfer t(here.self(), pair_of({direct()}));
  if (here.self().id() == 0) return run(here.loop(), send_in_time(here.self(), t));
  std::this_thread::sleep_for(std::chrono::nanoseconds(computes_ns));
  run(here.loop(), receive_what_comes(t));
}
const scenario as_computes_first{"computes_first", computes_first};

}  // namespace

TEST_CASE("sends to a rank that computes from its start on end at their timeouts, whatever their size") {
  for (const char* transports : {"all", "tcp,self"}) {
    const job_run run("computes_first", 2, {{"UCX_TLS", transports}});
    CHECK_MESSAGE(run.end.status == 0, run.all);
  }
}

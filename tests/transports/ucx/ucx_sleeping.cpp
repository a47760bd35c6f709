// Arm, sleep on the descriptor, wake up: no event may be missed.
#include <parley/tests/transports/ucx/ucx_fixture.hpp>

#include <doctest/doctest.h>

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>

using namespace parley;
using namespace parley::tests;

namespace {

/// Sleeps until the link has an event; returns whether it slept.
bool sleep_on(ucx_link& wire, int limit_ms) {
  if (wire.arm() == runtime::poller::arm_state::busy) return false;
  pollfd waiting{wire.event_fd(), POLLIN, 0};
  if (::poll(&waiting, 1, limit_ms) == 0) throw std::runtime_error("a wake-up was lost");
  return true;
}

/// Puts both ranks on one core, so that neither runs before the other sleeps.
void share_one_core() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  PARLEY_EXPECT(::sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  CPU_ZERO(&allowed);
  CPU_SET(first, &allowed);
  PARLEY_EXPECT(::sched_setaffinity(0, sizeof allowed, &allowed) == 0);
}

long times_asleep() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_nvcsw;
}

}  // namespace

TEST_CASE("ten thousand round trips wake each side from its sleep, and no wake-up is lost") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    share_one_core();
    constexpr int rounds = 10'000;
    // Not every round sleeps: the kernel may run the woken rank before the other one sleeps, which is the rule on a busy machine. So the
    // rounds continue until each rank has slept this often.
    constexpr int sleeps = 1'000;
    const long asleep_before = times_asleep();
    int slept = 0;
    const auto wants_more = [&] { return slept <= sleeps || times_asleep() - asleep_before <= sleeps; };
    const auto say = [&](const std::string& text) {
      self.wire.send(1 - rank, channel::data, bytes_of(text), {}, nullptr);
    };
    const auto hear = [&] {
      while (self.data.got.empty()) {
        if (self.wire.poll()) continue;
        slept += sleep_on(self.wire, 60'000) ? 1 : 0;
      }
      const std::string text = text_of(self.data.got.front().header());
      self.data.got.clear();
      return text;
    };
    if (rank == 0) {
      bool more = true;
      const deadline limit;
      for (int round = 0; more && !limit.is_over(); ++round) {
        say("wake");
        const bool other_wants_more = hear() == "wants more";
        more = round + 1 < rounds || wants_more() || other_wants_more;
      }
      say("stop");
    } else {
      while (hear() == "wake") say(wants_more() ? "wants more" : "had enough");
    }
    PARLEY_EXPECT(slept > sleeps);
    PARLEY_EXPECT(times_asleep() - asleep_before > sleeps);
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("large transfers progress while both sides sleep between events") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    for (int round = 0; round < 50; ++round) {
      const blob payload = pattern(1 << 20, static_cast<std::uint64_t>(round));
      awaited ended_here;
      if (rank == 0) {
        if (self.wire.send(1, channel::data, bytes_of("big"), payload, &ended_here) != errc::pending)
          ended_here.calls = 1;
      }
      blob into(payload.size());
      while (ended_here.calls == 0) {
        if (!self.data.got.empty()) {
          arrival message = std::move(self.data.got.front());
          self.data.got.clear();
          if (self.wire.fetch(std::move(message), into, &ended_here) != errc::pending) ended_here.calls = 1;
        }
        if (self.wire.poll()) continue;
        if (ended_here.calls == 0) sleep_on(self.wire, 60'000);
      }
      if (rank == 1) PARLEY_EXPECT(into == payload);
    }
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("the link does not arm while it has something to deliver") {
  const outcomes ended = run_processes(1, [](rank_id rank, meeting& all) {
    node self(rank, 1, all);
    self.wire.send(0, channel::data, bytes_of("mine"), {}, nullptr);
    self.until([&] { return self.wire.statistics().received[1] == 1; });
    while (self.wire.poll()) {}
    self.until([&] { return self.wire.arm() == runtime::poller::arm_state::armed; });
    self.wire.listen(channel::data, &self.data);
    PARLEY_EXPECT(self.wire.arm() == runtime::poller::arm_state::busy);
    self.wire.poll();
    PARLEY_EXPECT(self.data.got.size() == 1);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

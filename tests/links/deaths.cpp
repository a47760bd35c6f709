// The promises of links about operations with a rank that dies.
#include <parley/tests/links/contract.hpp>

#include <algorithm>
#include <array>

namespace parley::tests {

namespace {

task<> offered_to_the_dead(end& self) {
  self.listen();
  const blob& large = self.memory(pattern(4 << 20, 1));
  if (self.rank == 1) {
    co_await self.until([&self] { return self.data.got.size() == 3; });
    const bool remote =
        std::all_of(self.data.got.begin(), self.data.got.end(), [](const arrival& m) { return m.remote(); });
    co_await self.gather(blob(remote ? 1 : 0));
    co_await self.die();
  }
  std::array<awaited*, 3> sent{};
  for (awaited*& each : sent) {
    each = &self.operation();
    PARLEY_EXPECT(self.wire().send(1, channel::data, bytes_of("x"), large, each) == errc::pending);
  }
  const auto all = co_await self.gather({});
  const bool with_their_sender = all[1].size() == 1;
  // No further message is sent: the operations in flight must reveal the death.
  const auto since = self.stopwatch();
  if (with_their_sender) co_await self.until([&self] { return self.failed.has(1); });
  PARLEY_EXPECT(since() < self.limits.detection_ns);
  co_await self.until_failed(1);
  for (const awaited* each : sent) {
    PARLEY_EXPECT(each->calls == 1);
    PARLEY_EXPECT(each->outcome == errc::peer_failed || (!with_their_sender && each->outcome == errc::none));
  }
  awaited& late = self.operation();
  const errc started = self.wire().send(1, channel::data, bytes_of("x"), large, &late);
  PARLEY_EXPECT(started == self.limits.to_the_dead);
  const errc refused = co_await self.outcome(started, late);
  PARLEY_EXPECT(refused == errc::peer_failed);
  PARLEY_EXPECT(self.wire().send(1, channel::data, bytes_of("x"), {}, nullptr) == errc::peer_failed);
  co_await self.meet();
  PARLEY_EXPECT(self.failed.peers == std::vector<rank_id>{1});
  PARLEY_EXPECT(late.calls == (started == errc::pending ? 1 : 0));
}

// Rank 0 holds messages from ranks 1 and 2, one of which dies.
task<> offered_by_the_dead(end& self) {
  self.listen();
  constexpr std::size_t bytes = 4 << 20;
  const std::string dead = "1";
  if (self.rank != 0) {
    const std::string from = std::to_string(self.rank);
    const blob& large = self.memory(pattern(bytes, self.rank));
    std::array<awaited*, 2> sent{};
    for (awaited*& each : sent) {
      each = &self.operation();
      PARLEY_EXPECT(self.wire().send(0, channel::data, bytes_of(from), large, each) == errc::pending);
    }
    PARLEY_EXPECT(self.wire().send(0, channel::data, bytes_of(from), std::span(large).first(5'000), nullptr) ==
                  errc::none);
    co_await self.meet();
    if (from == dead) co_await self.die();
    for (const awaited* each : sent) {
      const errc outcome = co_await self.outcome(errc::pending, *each);
      PARLEY_EXPECT(outcome == errc::none);
    }
    co_await self.meet();
    co_return;
  }
  co_await self.until([&self] { return self.data.got.size() == 6; });
  co_await self.meet();
  co_await self.until_failed(1);
  for (arrival& message : self.data.got) {
    const std::string from = text_of(message.header());
    const bool gone = from == dead && message.remote();
    blob& into = self.memory(blob(static_cast<std::size_t>(message.length())));
    awaited& fetched = self.operation();
    const errc started = self.wire().fetch(std::move(message), into, &fetched);
    const errc outcome = co_await self.outcome(started, fetched);
    PARLEY_EXPECT(outcome == (gone ? errc::peer_failed : errc::none));
    const blob wanted = pattern(bytes, from == dead ? 1 : 2);
    PARLEY_EXPECT(gone || std::equal(into.begin(), into.end(), wanted.begin()));
  }
  self.data.got.clear();
  PARLEY_EXPECT(self.failed.peers == std::vector<rank_id>{1});
  PARLEY_EXPECT(self.wire().send(2, channel::control, bytes_of("still there"), {}, nullptr) == errc::none);
  co_await self.meet();
}

// Fetches that are in flight when their sender dies.
task<> fetched_from_the_dead(end& self) {
  self.listen();
  const std::size_t bytes = self.limits.largest_bytes;
  if (self.rank == 1) {
    const blob& large = self.memory(pattern(bytes, 1));
    for (int n = 0; n < 3; ++n) self.wire().send(0, channel::data, bytes_of("x"), large, &self.operation());
    co_await self.meet();
    co_await self.die();
  }
  co_await self.until([&self] { return self.data.got.size() == 3; });
  std::vector<std::pair<const awaited*, const blob*>> fetches;
  self.bring({});
  for (arrival& message : self.data.got) {
    blob& into = self.memory(blob(bytes));
    awaited& fetched = self.operation();
    const errc started = self.wire().fetch(std::move(message), into, &fetched);
    if (started != errc::pending) awaited::note(fetched, started);
    fetches.emplace_back(&fetched, &into);
  }
  self.data.got.clear();
  co_await self.until([&self] { return self.brought(); });
  self.take();
  co_await self.until_failed(1);
  for (const auto& [fetched, into] : fetches) {
    PARLEY_EXPECT(fetched->calls == 1);
    PARLEY_EXPECT(fetched->outcome == errc::none || fetched->outcome == errc::peer_failed);
    if (fetched->outcome == errc::none) PARLEY_EXPECT(*into == pattern(bytes, 1));
  }
  PARLEY_EXPECT(self.failed.peers == std::vector<rank_id>{1});
}

constexpr contract_case cases[] = {
    {"what was offered to a rank that dies ends with peer_failed, once, and later sends are refused", 2,
     &offered_to_the_dead, needs::death, 1},
    {"of a dead rank's messages those that are here are read, the others fail, and no other rank's do", 3,
     &offered_by_the_dead, needs::death, 1},
    {"fetches that are in flight when their sender dies end, once, with all of it or peer_failed", 2,
     &fetched_from_the_dead, needs::death, 1},
};

}  // namespace

std::span<const contract_case> deaths_contract() { return cases; }

}  // namespace parley::tests

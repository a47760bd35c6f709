// What UCX adds to the tests of dead peers in tests/links: a peer can be given up, and closing does not wait for it.
#include <parley/tests/support/fair_stopwatch.hpp>
#include <parley/tests/transports/ucx/ucx_fixture.hpp>

#include <parley/config.hpp>
#include <parley/transports/ucx/carried_memory.hpp>

#include <doctest/doctest.h>

#include <csignal>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

using namespace parley;
using namespace parley::tests;

TEST_CASE("a peer that is given up fails at once, even if it lives") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    blob large = pattern(4 << 20, 1);
    const auto mine = self.wire.expose(large).value();
    const auto keys = all.gather(mine.key);
    if (rank == 0) {
      awaited sent;
      PARLEY_EXPECT(self.wire.send(1, channel::data, bytes_of("x"), large, &sent) == errc::pending);
      self.wire.give_up(1);
      self.wire.give_up(1);
      const fair_stopwatch since;
      self.until([&] { return !self.failed.peers.empty(); });
      PARLEY_EXPECT(since.took() < std::chrono::seconds(1));
      PARLEY_EXPECT(sent.calls == 1 && sent.outcome == errc::peer_failed);
      PARLEY_EXPECT(self.failed.peers == std::vector<rank_id>{1});
      awaited late;
      const auto address = transports::read_carried_key(keys[1])->address;
      PARLEY_EXPECT(self.wire.put(1, {keys[1], address}, large, &late) == errc::peer_failed);
      PARLEY_EXPECT(self.wire.get(1, {keys[1], address}, large, &late) == errc::peer_failed);
      PARLEY_EXPECT(self.wire.fence(1, &late) == errc::peer_failed);
      PARLEY_EXPECT(late.calls == 0);
    }
    all.barrier();
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("the first message of a process that died meanwhile does no harm, even while UCX checks its peers") {
  const auto body = [](rank_id rank, meeting& all) {
    node self(rank, 3, all);
    self.listen();
    if (rank == 1) {
      for (const std::size_t length : {0, 5'000, 300'000})
        self.wire.send(0, channel::control, bytes_of("x"), pattern(length, 1), nullptr);
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
      while (std::chrono::steady_clock::now() < until) self.wire.poll();
      all.barrier();
      ::kill(::getpid(), SIGKILL);
    }
    all.barrier();
    all.barrier();  // without rank 1
    if (rank == 0) {
      // The link checks all peers when it connects to its first one.
      self.wire.send(2, channel::control, bytes_of("x"), {}, nullptr);
      for (int i = 0; i < 1'000; ++i) self.wire.poll();
    } else {
      self.until([&] { return !self.control.got.empty(); });
    }
    all.barrier();
    self.control.got.clear();
  };
  const outcomes ended = run_processes(3, body, {.killed = {1}});
  CHECK_MESSAGE(ended.fine(), ended.text());
}

namespace {

/// Records how often the completion had been called when the failure was reported.
struct failure_after final : link::failure_handler {
  explicit failure_after(const awaited& c) : pending(c) {}
  void on_peer_failed(rank_id peer) noexcept override {
    failed = peer;
    calls_before = pending.calls;
  }
  const awaited& pending;
  std::optional<rank_id> failed;
  int calls_before = 0;
};

/// On completion, abandons another operation, which the link ends later, and polls until the link has dealt with a dead peer.
struct giving_up final : completion {
  giving_up(ucx_link& w, completion& o) noexcept : completion(&on_ended), wire(w), other(o) {}
  static void on_ended(completion& self, errc) noexcept {
    auto& mine = static_cast<giving_up&>(self);
    ++mine.calls;
    mine.wire.abandon(mine.other);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(150);
    while (std::chrono::steady_clock::now() < until) mine.wire.poll();
  }
  ucx_link& wire;
  completion& other;
  int calls = 0;
};

}  // namespace

TEST_CASE("operations with a peer have ended before its failure is reported, even if both happen in one turn") {
  const outcomes ended = run_processes(3, [](rank_id rank, meeting& all) {
    node self(rank, 3, all);
    self.listen();
    const blob large =
        pattern(5 << 20, 1);  // UCX itself sends so much, from the buffer once the peer has answered a question
    const blob first = pattern(1'000, 2);
    if (rank == 0) {
      for (const rank_id to : {rank_id{1}, rank_id{2}})
        PARLEY_EXPECT(self.send_and_wait(to, channel::data, bytes_of("first"), first) == errc::none);
      self.until([&] { return self.wire.statistics().received[std::size_t(channel::loans)] == 2; });
      awaited lost;
      giving_up taken(self.wire, lost);
      failure_after failed(lost);
      self.wire.on_failure(&failed);
      PARLEY_EXPECT(self.wire.send(1, channel::data, bytes_of("x"), large, &lost) == errc::pending);
      PARLEY_EXPECT(self.wire.send(2, channel::data, bytes_of("y"), large, &taken) == errc::pending);
      self.until([&] { return failed.failed.has_value(); });
      PARLEY_EXPECT(taken.calls == 1);
      PARLEY_EXPECT(*failed.failed == 1);
      PARLEY_EXPECT(failed.calls_before == 1);
      PARLEY_EXPECT(lost.calls == 1 && lost.outcome == errc::peer_failed);
    } else {
      blob into(large.size());
      for (rank_id left = rank; left > 0; --left) {  // rank 1 takes the first message only
        self.until([&] { return !self.data.got.empty(); });
        PARLEY_EXPECT(self.fetch_and_wait(std::move(self.data.got.front()), into) == errc::none);
        self.data.got.erase(self.data.got.begin());
      }
    }
    all.barrier();
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("closing does not wait for a dead peer, and ends pending operations") {
  const outcomes ended =
      run_processes(2,
                    [](rank_id rank, meeting& all) {
                      auto self = std::make_unique<node>(rank, 2, all);
                      self->listen();
                      const blob large = pattern(4 << 20, 1);
                      awaited sent;
                      if (rank == 1) {
                        self->until([&] { return self->data.got.size() == 1; });
                        ::kill(::getpid(), SIGKILL);
                      }
                      PARLEY_EXPECT(self->wire.send(1, channel::data, bytes_of("x"), large, &sent) == errc::pending);
                      std::atomic<bool> gone = false;
                      std::jthread waiting([&] {
                        all.barrier();
                        gone = true;
                      });
                      self->until([&] { return gone.load(); });
                      waiting.join();
                      const fair_stopwatch since;
                      self.reset();
                      PARLEY_EXPECT(since.took() < std::chrono::seconds(1));
                      PARLEY_EXPECT(sent.calls == 1);
                      // Over TCP the death is noticed before the link is closed.
                      PARLEY_EXPECT(sent.outcome == errc::closed || sent.outcome == errc::peer_failed);
                    },
                    {.killed = {1}});
  CHECK_MESSAGE(ended.fine(), ended.text());
}

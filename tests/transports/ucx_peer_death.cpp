// A peer that dies ends what was begun with it, soon and once.
#include "../support/fair_stopwatch.hpp"
#include "ucx_fixture.hpp"

#include <doctest/doctest.h>

#include <csignal>

#include <array>
#include <atomic>
#include <deque>
#include <thread>

using namespace parley;
using namespace parley::tests;

TEST_CASE("a killed peer ends pending sends with peer_failed within two seconds") {
  const outcomes ended =
      run_processes(2,
                    [](rank_id rank, meeting& all) {
                      node self(rank, 2, all);
                      self.listen();
                      const blob large = pattern(4 << 20, 1);
                      if (rank == 1) {
                        self.until([&] { return self.data.got.size() == 3; });
                        all.barrier();
                        ::kill(::getpid(), SIGKILL);
                      }
                      std::array<awaited, 3> sent;
                      for (awaited& each : sent)
                        PARLEY_EXPECT(self.wire.send(1, channel::data, bytes_of("x"), large, &each) == errc::pending);
                      std::jthread waiting([&] { all.barrier(); });
                      const fair_stopwatch since;
                      self.until([&] { return !self.failed.peers.empty(); });
                      waiting.join();
                      PARLEY_EXPECT(since.took() < std::chrono::seconds(2));
                      for (const awaited& each : sent)
                        PARLEY_EXPECT(each.calls == 1 && each.outcome == errc::peer_failed);
                      PARLEY_EXPECT(self.failed.peers == std::vector<rank_id>{1});
                      awaited late;
                      PARLEY_EXPECT(self.wire.send(1, channel::data, bytes_of("x"), large, &late) == errc::peer_failed);
                      PARLEY_EXPECT(self.wire.send(1, channel::data, bytes_of("x"), {}, nullptr) == errc::peer_failed);
                      for (int i = 0; i < 1000; ++i) self.wire.poll();
                      PARLEY_EXPECT(self.failed.peers.size() == 1 && late.calls == 0);
                    },
                    {.killed = {1}});
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("messages and fetches of a killed sender end, and others are not touched") {
  const outcomes ended =
      run_processes(3,
                    [](rank_id rank, meeting& all) {
                      node self(rank, 3, all);
                      self.listen();
                      const blob large = pattern(4 << 20, rank);
                      if (rank == 0) {
                        self.until([&] { return self.data.got.size() == 3; });
                        all.barrier();  // rank 1 dies after this one
                        const fair_stopwatch since;
                        all.barrier();  // and is gone, or about to be
                        std::size_t peer_failed = 0;
                        std::size_t good = 0;
                        std::deque<std::pair<awaited, blob>> fetches;
                        for (arrival& message : self.data.got) {
                          auto& [done, into] = fetches.emplace_back();
                          into.resize(large.size());
                          const errc started = self.wire.fetch(std::move(message), into, &done);
                          if (started != errc::pending) awaited::note(done, started);
                        }
                        // Before its death shows a fetch may still be answered; UCX tells the death of a peer only to
                        // those that talk.
                        self.until([&] {
                          self.wire.send(1, channel::control, bytes_of("are you there"), {}, nullptr);
                          for (const auto& each : fetches)
                            if (each.first.calls == 0) return false;
                          return !self.failed.peers.empty();
                        });
                        PARLEY_EXPECT(since.took() < std::chrono::seconds(2));
                        for (const auto& each : fetches) {
                          PARLEY_EXPECT(each.first.calls == 1);
                          good += each.first.outcome == errc::none ? 1 : 0;
                          peer_failed += each.first.outcome == errc::peer_failed ? 1 : 0;
                        }
                        PARLEY_EXPECT(good + peer_failed == 3);
                        PARLEY_EXPECT(good >= 1 && peer_failed == 2);
                        PARLEY_EXPECT(self.failed.peers == std::vector<rank_id>{1});
                        self.wire.send(2, channel::control, bytes_of("end"), {}, nullptr);
                      } else if (rank == 1) {
                        awaited one;
                        awaited two;
                        self.wire.send(0, channel::data, bytes_of("x"), large, &one);
                        self.wire.send(0, channel::data, bytes_of("x"), large, &two);
                        std::jthread waiting([&] {
                          all.barrier();
                          ::kill(::getpid(), SIGKILL);
                        });
                        self.until([&] { return false; });
                      } else {
                        awaited one;
                        self.wire.send(0, channel::data, bytes_of("x"), large, &one);
                        std::jthread waiting([&] {
                          all.barrier();
                          all.barrier();
                        });
                        self.until([&] { return one.calls == 1 && self.control.got.size() == 1; });
                        waiting.join();
                        PARLEY_EXPECT(one.outcome == errc::none);
                      }
                    },
                    {.killed = {1}});
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a peer that is given up fails at once, though it lives") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    const blob large = pattern(4 << 20, 1);
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
    }
    all.barrier();
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("closing does not wait for a peer that is gone, and ends what is pending") {
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
                      // Over TCP the death shows before the link is closed.
                      PARLEY_EXPECT(sent.outcome == errc::closed || sent.outcome == errc::peer_failed);
                    },
                    {.killed = {1}});
  CHECK_MESSAGE(ended.fine(), ended.text());
}

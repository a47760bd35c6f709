// What UCX adds to what tests/links says of peers that die: they can be given up, and closing does not wait for them.
#include "../support/fair_stopwatch.hpp"
#include "ucx_fixture.hpp"

#include <parley/transports/carried_memory.hpp>

#include <doctest/doctest.h>

#include <csignal>

#include <atomic>
#include <thread>

using namespace parley;
using namespace parley::tests;

TEST_CASE("a peer that is given up fails at once, though it lives") {
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

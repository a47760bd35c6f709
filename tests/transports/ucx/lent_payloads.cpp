// Payloads that the receiver's kernel copies out of a neighbour's memory: who may lend, and what becomes of abnormal ends.
#include <parley/tests/transports/ucx/ucx_fixture.hpp>

#include <parley/transports/ucx/carried_memory.hpp>
#include <parley/transports/ucx/lent_payloads.hpp>

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::tests;

namespace {

constexpr auto loans = static_cast<std::size_t>(channel::loans);
constexpr std::size_t large = 3'500'000;  // larger than one piece of a copy

/// Two ranks that have both found that they can read each other's memory.
struct neighbours : node {
  neighbours(rank_id rank, meeting& all) : node(rank, 2, all), other(1 - rank) {
    listen();
    const blob first = pattern(large, 7);
    awaited sent;
    const errc started = wire.send(other, channel::data, bytes_of("first"), first, &sent);
    // received: the question of the other rank, and its answer to ours
    until([&] { return !data.got.empty() && said() >= 2; });
    blob into(large);
    PARLEY_EXPECT(fetch_and_wait(std::move(data.got.front()), into) == errc::none);
    data.got.clear();
    until([&] { return started == errc::none || sent.calls == 1; });
    PARLEY_EXPECT(into == first);
    meet(all);
    before = wire.statistics();
  }
  /// Waits for the other rank and keeps polling the link meanwhile.
  void meet(meeting& all) {
    all.bring({});
    until([&] { return all.brought(); });
    static_cast<void>(all.take());
  }
  std::uint64_t said() const { return wire.statistics().received[loans]; }
  /// How many messages about loans (lent, returned) this rank has sent since the two know each other.
  std::uint64_t lent() const { return wire.statistics().sent[loans] - before.sent[loans]; }
  void lend(std::span<const std::byte> payload, awaited& done) {
    PARLEY_EXPECT(wire.send(other, channel::data, bytes_of("x"), payload, &done) == errc::pending);
  }
  arrival next() {
    until([&] { return !data.got.empty(); });
    arrival oldest = std::move(data.got.front());
    data.got.erase(data.got.begin());
    return oldest;
  }

  rank_id other;
  link::counters before;
};

/// Memory that can be made unreadable.
struct pages {
  explicit pages(std::size_t n)
      : size(n), at(::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    PARLEY_EXPECT(at != MAP_FAILED);
  }
  ~pages() { release(); }
  pages(const pages&) = delete;
  pages& operator=(const pages&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(at), size}; }
  void allow(int what) const { PARLEY_EXPECT(::mprotect(at, size, what) == 0); }
  void release() {
    if (at != nullptr) ::munmap(std::exchange(at, nullptr), size);
  }
  std::size_t size;
  void* at;
};

/// One rank's end of a link within this process. An operation with a completion never ends on it.
struct stubborn_link final : link {
  stubborn_link(rank_id r) : self(r) {}
  rank_id rank() const noexcept override { return self; }
  rank_id world_size() const noexcept override { return 2; }
  void listen(channel on, handler* to) override { handlers[static_cast<std::size_t>(on)] = to; }
  void on_failure(failure_handler*) override {}
  errc send(rank_id, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            completion* done) override {
    if (done != nullptr) return errc::pending;
    in_flight.emplace_back(on, arrival(header, payload));
    return errc::none;
  }
  /// Delivers the messages that were sent and are not pending.
  void deliver() {
    for (auto& [on, message] : std::exchange(in_flight, {}))
      other->handlers[static_cast<std::size_t>(on)]->on_arrival(std::move(message));
  }
  errc fetch(arrival&&, std::span<std::byte>, completion*) override { return errc::pending; }
  void cancel(completion&) override { ++cancelled; }
  const counters& statistics() const noexcept override { return counted; }
  void release(const void*, bool) noexcept override {}
  rank_id self;
  stubborn_link* other = nullptr;
  std::array<handler*, channels> handlers{};
  std::vector<std::pair<channel, arrival>> in_flight;
  counters counted;
  int cancelled = 0;
};

}  // namespace

TEST_CASE("when an unreadable loan is being sent instead, a message can be cancelled and a put cannot") {
  for (const channel on : {channel::data, channel::transfers}) {
    pages payload(large);
    blob into(large);
    awaited sent, fetched;
    stubborn_link mine(0), its(1);
    mine.other = &its;
    its.other = &mine;
    arrival came;
    transports::lent_payloads lender(mine, {}, [](channel, arrival&&) {});
    transports::lent_payloads reader(its, {}, [&](channel, arrival&& m) { came = std::move(m); });
    REQUIRE_FALSE(lender.may_lend(1, large));  // the lender asks the other rank first
    mine.deliver();
    its.deliver();
    REQUIRE(lender.may_lend(1, large));
    CHECK(lender.lend(1, on, bytes_of("header"), payload.bytes(), sent) == errc::pending);
    mine.deliver();
    payload.allow(PROT_NONE);
    CHECK(reader.fetch(came.surrender(), into, &fetched) == errc::pending);
    its.deliver();
    CHECK(lender.cancel(sent));
    CHECK(mine.cancelled == (on == channel::data ? 1 : 0));
    CHECK(lender.abandon(sent));
  }
}

TEST_CASE("neighbours read large payloads in place, in both directions at once") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    neighbours self(rank, all);
    std::uint64_t expected = 0;
    for (const std::size_t bytes :
         {std::size_t{512} << 10U, std::size_t{1} << 20U, (std::size_t{1} << 20U) + 1, large}) {
      const blob mine = pattern(bytes, rank + 1), theirs = pattern(bytes, self.other + 1);
      blob into(bytes);
      awaited sent;
      PARLEY_EXPECT(self.wire.send(self.other, channel::data, bytes_of("header"), mine, &sent) == errc::pending);
      arrival message = self.next();
      PARLEY_EXPECT(text_of(message.header()) == "header" && message.remote() && message.length() == bytes);
      PARLEY_EXPECT(self.fetch_and_wait(std::move(message), into) == errc::none);
      PARLEY_EXPECT(into == theirs);
      self.until([&] { return sent.calls == 1; });
      PARLEY_EXPECT(sent.outcome == errc::none);
      expected += 2;  // two messages sent: our loan, and the notice that the other's payload was read
    }
    PARLEY_EXPECT(self.lent() == expected);
    const blob shorter = pattern((32U << 10U) - 1, 1);
    PARLEY_EXPECT(self.send_and_wait(self.other, channel::data, bytes_of("short"), shorter) == errc::none);
    PARLEY_EXPECT(self.lent() == expected);
    self.next();
    self.meet(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a lent payload is returned when its receiver drops it, or abandons the fetch") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    neighbours self(rank, all);
    const blob payload = pattern(large, 3);
    blob into(large);
    for (const bool begun : {false, true}) {
      if (rank == 0) {
        awaited sent;
        self.lend(payload, sent);
        self.until([&] { return sent.calls == 1; });
        PARLEY_EXPECT(sent.outcome == errc::none);
      } else if (!begun) {
        self.next();  // drops the message
      } else {
        awaited fetched;
        PARLEY_EXPECT(self.wire.fetch(self.next(), into, &fetched) == errc::pending);
        self.wire.abandon(fetched);
        std::fill(into.begin(), into.end(), std::byte{0x5a});
        self.until([&] { return fetched.calls == 1; });
        PARLEY_EXPECT(fetched.outcome == errc::cancelled);
      }
      self.meet(all);
    }
    PARLEY_EXPECT(rank == 0 || std::all_of(into.begin(), into.end(), [](std::byte b) { return b == std::byte{0x5a}; }));
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a payload that its sender has taken back is not read, whether its memory is still mapped or not") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    neighbours self(rank, all);
    for (const bool unmapped : {false, true}) {
      if (rank == 0) {
        pages memory(large);
        awaited sent;
        self.lend(memory.bytes(), sent);
        self.wire.cancel(sent);
        self.until([&] { return sent.calls == 1; });
        PARLEY_EXPECT(sent.outcome == errc::cancelled);
        if (unmapped) memory.release();
        self.meet(all);
        self.meet(all);
      } else {
        arrival message = self.next();
        self.meet(all);
        blob into(large);
        PARLEY_EXPECT(self.fetch_and_wait(std::move(message), into) == errc::send_failed);
        self.meet(all);
      }
    }
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("taking back a payload during its read cancels the send, and fails the fetch") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    neighbours self(rank, all);
    blob payload = pattern(large, 3);
    if (rank == 0) {
      awaited sent;
      self.lend(payload, sent);
      all.barrier();  // the other rank has read the first piece
      self.wire.abandon(sent);
      std::fill(payload.begin(), payload.end(), std::byte{0});
      self.until([&] { return sent.calls == 1; });
      PARLEY_EXPECT(sent.outcome == errc::cancelled);
      all.barrier();
    } else {
      blob into(large);
      awaited fetched;
      PARLEY_EXPECT(self.wire.fetch(self.next(), into, &fetched) == errc::pending);
      all.barrier();
      all.barrier();
      self.until([&] { return fetched.calls == 1; });
      PARLEY_EXPECT(fetched.outcome == errc::send_failed);
    }
    self.meet(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a payload lent to a peer that is given up cannot be read from that moment on") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    neighbours self(rank, all);
    blob payload = pattern(large, 3);
    if (rank == 0) {
      awaited sent;
      self.lend(payload, sent);
      self.meet(all);
      self.wire.give_up(1);
      std::fill(payload.begin(), payload.end(), std::byte{0});  // the link has not been polled since
      all.barrier();
      all.barrier();
      self.until([&] { return sent.calls == 1; });
      PARLEY_EXPECT(sent.outcome == errc::peer_failed);
    } else {
      arrival message = self.next();
      self.meet(all);
      all.barrier();
      blob into(large);
      PARLEY_EXPECT(self.fetch_and_wait(std::move(message), into) == errc::send_failed);
      all.barrier();
    }
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE(
    "memory that the kernel cannot read is sent through the link, and after a few failures nothing more is lent") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    neighbours self(rank, all);
    const blob wanted = pattern(large, 5);
    blob into(large);
    for (int round = 0; round < 4; ++round) {
      if (rank == 0) {
        pages memory(large);
        std::memcpy(memory.bytes().data(), wanted.data(), large);
        awaited sent;
        self.lend(memory.bytes(), sent);
        memory.allow(PROT_NONE);
        all.barrier();
        all.barrier();  // the other rank has tried to read
        memory.allow(PROT_READ);
        self.until([&] { return sent.calls == 1; });
        PARLEY_EXPECT(sent.outcome == errc::none);
      } else {
        all.barrier();
        awaited fetched;
        PARLEY_EXPECT(self.wire.fetch(self.next(), into, &fetched) == errc::pending);
        PARLEY_EXPECT(fetched.calls == 0);
        all.barrier();
        self.until([&] { return fetched.calls == 1; });
        PARLEY_EXPECT(fetched.outcome == errc::none);
        PARLEY_EXPECT(into == wanted);
      }
    }
    if (rank == 0) {
      const std::uint64_t before = self.lent();
      PARLEY_EXPECT(self.send_and_wait(1, channel::data, bytes_of("y"), wanted) == errc::none);
      PARLEY_EXPECT(self.lent() == before);
    } else {
      PARLEY_EXPECT(self.fetch_and_wait(self.next(), into) == errc::none);
    }
    self.meet(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a put that could not be read, and is sent instead, cannot be cancelled: its target counts it") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    pages payload(large);
    blob memory(large);
    neighbours self(rank, all);
    const auto mine = self.wire.expose(memory).value();
    all.bring(mine.key);
    self.until([&] { return all.brought(); });
    const auto keys = all.take();
    awaited done, fenced;
    if (rank == 0) {
      const blob wanted = pattern(large, 5);
      std::memcpy(payload.bytes().data(), wanted.data(), large);
      const auto address = transports::read_carried_key(keys[1])->address;
      const std::uint64_t heard = self.said();
      PARLEY_EXPECT(self.wire.put(1, {keys[1], address}, payload.bytes(), &done) == errc::pending);
      payload.allow(PROT_NONE);
      all.barrier();
      all.barrier();  // the other rank has tried to read
      payload.allow(PROT_READ);
      self.until([&] { return self.said() > heard; });
      self.wire.cancel(done);
      PARLEY_EXPECT(self.wire.fence(1, &fenced) == errc::pending);
      all.barrier();
      self.until([&] { return done.calls == 1 && fenced.calls == 1; });
      PARLEY_EXPECT(done.outcome == errc::none);
      PARLEY_EXPECT(fenced.outcome == errc::none);
    } else {
      all.barrier();
      const std::uint64_t before = self.lent();
      self.until([&] { return self.lent() > before; });
      all.barrier();
      all.barrier();
    }
    self.meet(all);
    if (rank == 1) PARLEY_EXPECT(memory == pattern(large, 5));
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a link that closes while it sends an unreadable payload ends each completion once") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    pages memory(large);
    blob into(large);
    awaited done;
    {
      neighbours self(rank, all);
      if (rank == 0) {
        self.lend(memory.bytes(), done);
        memory.allow(PROT_NONE);
        all.barrier();
        all.barrier();
        memory.allow(PROT_READ);
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
        // rank 1 asks it to send the payload instead
        while (std::chrono::steady_clock::now() < until) self.wire.poll();
      } else {
        all.barrier();
        PARLEY_EXPECT(self.wire.fetch(self.next(), into, &done) == errc::pending);
        all.barrier();  // does not poll any more
      }
      all.barrier();
    }
    PARLEY_EXPECT(done.calls == 1);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a get ends once if its peer is given up during the read") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    blob memory(large, std::byte{1});
    blob into(large);
    awaited done;
    neighbours self(rank, all);
    const auto mine = self.wire.expose(memory).value();
    all.bring(mine.key);
    self.until([&] { return all.brought(); });
    const auto keys = all.take();
    if (rank == 0) {
      const auto address = transports::read_carried_key(keys[1])->address;
      PARLEY_EXPECT(self.wire.get(1, {keys[1], address}, into, &done) == errc::pending);
      self.until([&] { return into[0] == std::byte{1}; });
      PARLEY_EXPECT(done.calls == 0);
      self.wire.give_up(1);
      self.until([&] { return self.failed.has(1); });
      PARLEY_EXPECT(done.calls == 1 && done.outcome == errc::peer_failed);
      all.barrier();
    } else {
      all.bring({});
      self.until([&] { return all.brought(); });
      static_cast<void>(all.take());
    }
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a loan ends when its receiver dies, and a fetch of a dead neighbour's loan fails without waiting") {
  for (const bool known : {false, true}) {
    for (const rank_id dies : {rank_id{0}, rank_id{1}}) {
      if (known && dies == 1) continue;  // the surviving sender never learns of the death while it waits
      const outcomes ended = run_processes(2,
                                           [dies, known](rank_id rank, meeting& all) {
                                             neighbours self(rank, all);
                                             const blob payload = pattern(large, 3);
                                             blob into(large);
                                             awaited done;
                                             errc started = errc::pending;
                                             if (rank == 0) {
                                               self.lend(payload, done);
                                               if (dies == 0) {
                                                 self.meet(all);  // the other rank has the message
                                                 ::kill(::getpid(), SIGKILL);
                                               }
                                             } else {
                                               arrival message = self.next();
                                               if (dies == 1) ::kill(::getpid(), SIGKILL);
                                               self.meet(all);
                                               // returns only after the other rank's death
                                               static_cast<void>(all.gather({}));
                                               if (known) self.until([&] { return self.failed.has(0); });
                                               started = self.wire.fetch(std::move(message), into, &done);
                                               if (started != errc::pending) done.outcome = started;
                                             }
                                             self.until([&] { return done.calls == 1 || started != errc::pending; });
                                             PARLEY_EXPECT(done.outcome == errc::peer_failed);
                                           },
                                           {.killed = {dies}});
      CHECK_MESSAGE(ended.fine(), ended.text());
    }
  }
}

TEST_CASE("nothing is read into memory withdrawn in the middle of a put, nor out of memory withdrawn in the middle of "
          "a get") {
  for (const bool putting : {true, false}) {
    CAPTURE(putting);
    const outcomes ended = run_processes(2, [putting](rank_id rank, meeting& all) {
      blob memory(large, putting ? std::byte{0} : std::byte{1});
      blob other(large, putting ? std::byte{1} : std::byte{0});
      awaited done;
      neighbours self(rank, all);  // destroyed before the memory that it may still touch
      const auto mine = self.wire.expose(memory).value();
      const std::uint64_t said_before = self.lent();
      all.bring(mine.key);
      self.until([&] { return all.brought(); });
      const auto keys = all.take();
      if (rank == 0) {
        const auto address = transports::read_carried_key(keys[1])->address;
        const errc started = putting ? self.wire.put(1, {keys[1], address}, other, &done)
                                     : self.wire.get(1, {keys[1], address}, other, &done);
        PARLEY_EXPECT(started == errc::pending);
        if (!putting) self.until([&] { return other[0] == std::byte{1}; });
        if (!putting) PARLEY_EXPECT(done.calls == 0);
        all.barrier();
        all.barrier();  // the memory is withdrawn, and its owner has overwritten it
        self.until([&] { return done.calls == 1; });
        if (!putting) PARLEY_EXPECT(done.outcome == errc::send_failed);
      } else {
        if (putting) self.until([&] { return memory[0] == std::byte{1}; });
        if (!putting) self.until([&] { return self.lent() > said_before; });
        all.barrier();
        PARLEY_EXPECT(self.wire.withdraw(mine) == runtime::late_writes::fail);
        std::fill(memory.begin(), memory.end(), std::byte{0x5a});
        all.barrier();
        for (int turn = 0; turn < 10'000; ++turn) self.wire.poll();
        PARLEY_EXPECT(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0x5a}; }));
      }
      self.meet(all);
    });
    CHECK_MESSAGE(ended.fine(), ended.text());
  }
}

TEST_CASE("without cma a peer answers once that it cannot read, and nothing is lent") {
  for (const char* chosen : {"posix,sysv,self", "^cma,cuda", "tcp,self"}) {
    const outcomes ended = run_processes(2, [chosen](rank_id rank, meeting& all) {
      ::setenv("UCX_TLS", chosen, 1);
      node self(rank, 2, all);
      self.listen();
      const blob payload = pattern(large, 3);
      blob into(large);
      for (int round = 0; round < 3; ++round) {
        if (rank == 0) {
          PARLEY_EXPECT(self.send_and_wait(1, channel::data, bytes_of("x"), payload) == errc::none);
        } else {
          self.until([&] { return self.data.got.size() > std::size_t(round); });
          PARLEY_EXPECT(self.fetch_and_wait(std::move(self.data.got[std::size_t(round)]), into) == errc::none);
          PARLEY_EXPECT(into == payload);
        }
      }
      PARLEY_EXPECT(self.wire.statistics().sent[loans] == 1 && self.wire.statistics().received[loans] == 1);
      self.finish(all);
    });
    CHECK_MESSAGE(ended.fine(), ended.text());
  }
}

TEST_CASE(
    "sends to a rank that has not polled yet end at once when they are cancelled or abandoned, whatever their size") {
  for (const char* chosen : {"all", "posix,sysv,self", "tcp,self"}) {
    const outcomes ended = run_processes(2, [chosen](rank_id rank, meeting& all) {
      if (std::string_view(chosen) != "all") ::setenv("UCX_TLS", chosen, 1);
      constexpr std::array<std::size_t, 4> sizes{1'000, 16'384, 262'144, 6'000'000};
      std::array<blob, 2 * sizes.size()> payloads;
      std::array<awaited, 2 * sizes.size()> sent;
      node self(rank, 2, all);
      self.listen();
      if (rank == 0) {
        for (std::size_t i = 0; i < sent.size(); ++i) {
          payloads[i] = pattern(sizes[i / 2], 1);
          const errc started = self.wire.send(1, channel::data, bytes_of("old"), payloads[i], &sent[i]);
          if (started != errc::pending) awaited::note(sent[i], started);
        }
        for (int turn = 0; turn < 1'000; ++turn) self.wire.poll();
        for (std::size_t i = 0; i < sent.size(); ++i) {
          if (sent[i].calls != 0) continue;
          i % 2 == 0 ? self.wire.cancel(sent[i]) : self.wire.abandon(sent[i]);
          std::fill(payloads[i].begin(), payloads[i].end(), std::byte{0xee});
        }
        self.until(
            [&] { return std::all_of(sent.begin(), sent.end(), [](const awaited& a) { return a.calls == 1; }); });
        PARLEY_EXPECT(sent.back().outcome == errc::cancelled);
      }
      all.barrier();
      for (const std::size_t size : sizes) {
        if (rank == 0) {
          PARLEY_EXPECT(self.send_and_wait(1, channel::data, bytes_of("new"), pattern(size, 2)) == errc::none);
          continue;
        }
        for (bool is_old = true; is_old;) {  // what was cancelled comes whole, or not at all
          self.until([&] { return !self.data.got.empty(); });
          arrival message = std::move(self.data.got.front());
          self.data.got.erase(self.data.got.begin());
          is_old = text_of(message.header()) == "old";
          blob into(message.length());
          PARLEY_EXPECT(self.fetch_and_wait(std::move(message), into) == errc::none);
          PARLEY_EXPECT(into == pattern(into.size(), is_old ? 1 : 2));
          PARLEY_EXPECT(is_old || into.size() == size);
        }
      }
      self.finish(all);
    });
    CHECK_MESSAGE(ended.fine(), ended.text());
  }
}

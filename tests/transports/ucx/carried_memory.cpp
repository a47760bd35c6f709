// Which carried puts and gets a target accepts, what a fence reports, and what a withdrawal stops.
#include <parley/tests/transports/ucx/ucx_fixture.hpp>

#include <parley/transports/ucx/carried_memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

using namespace parley;
using namespace parley::tests;
using transports::carried_key;
using transports::landings;

namespace {

constexpr auto carrier = channel::transfers;

/// The header on the wire, written down independently: the format is fixed.
struct raw_message {
  std::uint32_t kind = 0;
  std::uint32_t from = 0;
  std::uint64_t region = 0;
  std::uint64_t token = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;
  std::uint64_t request = 0;
  std::uint64_t outcome = 0;
};
static_assert(sizeof(raw_message) == link::max_header_bytes);
constexpr std::uint32_t put_kind = 1;
constexpr std::uint32_t get_kind = 2;

std::span<const std::byte> bytes_of(const raw_message& m) { return std::as_bytes(std::span(&m, 1)); }

errc waited(node& self, errc started, const awaited& done) {
  if (started != errc::pending) return started;
  self.until([&] { return done.calls > 0; });
  return done.outcome;
}
bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == value; });
}

}  // namespace

TEST_CASE("a put that lands early does not count for a missing one") {
  landings book;
  REQUIRE(book.wait({7, 2}));
  book.landed(0, errc::none);
  book.landed(2, errc::none);
  book.landed(2, errc::none);
  CHECK(!book.take_done());
  book.landed(1, errc::none);
  const auto done = book.take_done();
  REQUIRE(done);
  CHECK(done->request == 7);
  CHECK(book.outcome_of(*done) == errc::none);
  CHECK(!book.take_done());
}

TEST_CASE("a refused put fails every fence behind it, in any order of waiting, and no fence before it") {
  landings book;
  book.landed(1, errc::unavailable);
  book.landed(0, errc::none);
  book.landed(2, errc::none);
  for (const std::uint64_t below : {3, 2, 1}) REQUIRE(book.wait({below, below}));
  for (const errc expected : {errc::unavailable, errc::unavailable, errc::none}) {
    const auto done = book.take_done();
    REQUIRE(done);
    CHECK(book.outcome_of(*done) == expected);
  }
  book.landed(3, errc::cancelled);
  CHECK(book.outcome_of({9, 4}) == errc::unavailable);  // the outcome of the first refused put
}

TEST_CASE("a target refuses fences of a hostile origin beyond a limit") {
  landings book;
  for (std::uint64_t n = 1; n < 2 * landings::most_beyond; ++n) book.landed(n, errc::none);
  for (std::uint64_t n = 0; n < landings::most_fences; ++n) CHECK(book.wait({n, 9}));
  CHECK(!book.wait({landings::most_fences, 9}));
}

TEST_CASE("a fence behind a put that was forgotten for lack of room fails, and no fence waits for ever") {
  landings book;
  for (std::uint64_t n = 1; n <= landings::most_beyond + 1; ++n) book.landed(n, errc::none);
  REQUIRE(book.wait({1, landings::most_beyond + 1}));
  CHECK(!book.take_done());  // request 1 waits for a put that has not landed, but all its puts fit in the record
  REQUIRE(book.wait({2, landings::most_beyond + 2}));
  const auto failed = book.take_done();
  REQUIRE(failed);
  CHECK(failed->request == 2);
  CHECK(book.outcome_of(*failed) == errc::full);
  book.landed(0, errc::none);
  const auto done = book.take_done();
  REQUIRE(done);
  CHECK(done->request == 1);
  CHECK(book.outcome_of(*done) == errc::none);
}

TEST_CASE("a key covers its own bytes, including at the ends of the address space") {
  constexpr std::uint64_t end = ~std::uint64_t{0};
  const carried_key key{.version = 0, .number = 1, .token = 2, .address = 1000, .bytes = 100};
  CHECK(transports::covers(key, 1000, 100));
  CHECK(transports::covers(key, 1100, 0));
  CHECK(!transports::covers(key, 999, 1));
  CHECK(!transports::covers(key, 1000, 101));
  CHECK(!transports::covers(key, 1050, end));
  CHECK(!transports::covers(key, end, 2));
  CHECK(!transports::covers({.version = 0, .number = 1, .token = 2, .address = end, .bytes = 100}, 5, 1));
}

TEST_CASE("puts and gets of memory that is not exposed change and reveal nothing, and the link continues") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    blob memory(100'000, std::byte{0x5a});
    const std::span<std::byte> exposed = std::span(memory).subspan(20'000, 50'000);
    const auto mine = self.wire.expose(exposed).value();
    const auto keys = all.gather(mine.key);
    if (rank == 0) {
      const carried_key theirs = *transports::read_carried_key(keys[1]);
      const blob data(10'000, std::byte{1});
      raw_message good{.kind = put_kind, .region = theirs.number, .token = theirs.token, .address = theirs.address};
      good.bytes = data.size();
      std::vector<raw_message> bad(9, good);
      bad[0].token ^= 1;
      bad[1].region += 1;
      bad[2].address -= 1;
      bad[3].address += theirs.bytes - data.size() + 1;
      bad[4].bytes += 1;
      bad[5].address = ~std::uint64_t{0} - 5;
      bad[6].kind = 99;
      bad[7].from = 77;
      bad[8].kind = 0;
      for (const raw_message& m : bad) PARLEY_EXPECT(self.send_and_wait(1, carrier, bytes_of(m), data) == errc::none);
      PARLEY_EXPECT(self.send_and_wait(1, carrier, std::span(data).first(13), data) == errc::none);
      for (raw_message m : bad) {
        if (m.kind == put_kind) m.kind = get_kind;
        PARLEY_EXPECT(self.send_and_wait(1, carrier, bytes_of(m), {}) == errc::none);
      }
      // Answers that nobody asked for.
      for (std::uint32_t kind = 3; kind < 6; ++kind) {
        raw_message m = good;
        m.kind = kind;
        m.request = 1;
        PARLEY_EXPECT(self.send_and_wait(1, carrier, bytes_of(m), data) == errc::none);
      }
      awaited done;
      PARLEY_EXPECT(self.wire.put(1, {keys[1], theirs.address - 1}, data, &done) == errc::bad_argument);
      PARLEY_EXPECT(self.wire.put(1, {keys[1], theirs.address + theirs.bytes - data.size() + 1}, data, &done) ==
                    errc::bad_argument);
      blob into(10, std::byte{3});
      PARLEY_EXPECT(self.wire.get(1, {keys[1], theirs.address + theirs.bytes}, into, &done) == errc::bad_argument);
      blob forged = keys[1];
      forged[16] ^= std::byte{1};  // the token
      PARLEY_EXPECT(waited(self, self.wire.get(1, {forged, theirs.address}, into, &done), done) == errc::unavailable);
      PARLEY_EXPECT(all_are(into, std::byte{3}));
    }
    self.finish(all);
    PARLEY_EXPECT(all_are(memory, std::byte{0x5a}));
    all.barrier();
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a message behind puts arrives once they have landed, even if its sender does nothing meanwhile") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    const std::string text = "all there";
    blob memory(std::size_t{1} << 20U);
    const blob data(memory.size(), std::byte{1});
    awaited put;
    awaited announced;
    node self(rank, 2, all);
    self.listen();
    const auto mine = self.wire.expose(memory).value();
    const auto keys = all.gather(mine.key);
    const std::span<const std::byte> small = std::span(data).first(50);
    if (rank == 0) {
      const auto address = transports::read_carried_key(keys[1])->address;
      PARLEY_EXPECT(self.wire.put(1, {keys[1], address}, data, &put) == errc::pending);
      PARLEY_EXPECT(waited(self, self.wire.announce(1, channel::data, tests::bytes_of(text), &announced), announced) ==
                    errc::none);
      self.until([&] { return put.calls > 0; });
      // The ranks are connected, so a small put has been sent when the call returns.
      const blob twos(small.size(), std::byte{2});
      awaited second;
      PARLEY_EXPECT(self.wire.put(1, {keys[1], address}, twos, &put) == errc::none);
      PARLEY_EXPECT(self.wire.announce(1, channel::data, tests::bytes_of(text), &second) == errc::pending);
      all.barrier();
      all.barrier();  // rank 1 does not poll meanwhile
      PARLEY_EXPECT(second.calls == 0);
      self.until([&] { return second.calls > 0; });
      PARLEY_EXPECT(second.outcome == errc::none);
    } else {
      self.until([&] { return !self.data.got.empty(); });
      PARLEY_EXPECT(tests::text_of(self.data.got.front().header()) == text);
      PARLEY_EXPECT(all_are(memory, std::byte{1}));
      all.barrier();
      self.until([&] { return self.data.got.size() > 1; });
      PARLEY_EXPECT(all_are(std::span(memory).first(small.size()), std::byte{2}));
      all.barrier();
    }
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a message behind a refused put does not arrive, and a hostile announcement reaches no channel") {
  constexpr std::uint32_t fence_kind = 4;
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    const std::string text = "all there";
    blob memory(1'000, std::byte{0x5a});
    awaited done;
    node self(rank, 2, all);
    self.listen();
    const auto mine = self.wire.expose(memory).value();
    const auto keys = all.gather(mine.key);
    if (rank == 0) {
      const blob data(50, std::byte{1});
      const auto address = transports::read_carried_key(keys[1])->address;
      blob forged = keys[1];
      forged[16] ^= std::byte{1};  // the token
      PARLEY_EXPECT(waited(self, self.wire.put(1, {forged, address}, data, &done), done) == errc::none);
      // Also behind a fence that has been reported already.
      for (int i = 0; i < 2; ++i) {
        awaited announced;
        PARLEY_EXPECT(waited(self, self.wire.announce(1, channel::data, tests::bytes_of(text), &announced),
                             announced) == errc::unavailable);
      }
      const blob too_long(link::max_header_bytes + 1, std::byte{1});
      PARLEY_EXPECT(self.wire.announce(1, channel::data, too_long, &done) == errc::bad_argument);
      // Invalid announcements: to the carrying channel, to a channel that does not exist, and with more than a header.
      raw_message m{.kind = fence_kind, .address = static_cast<std::uint64_t>(carrier)};
      PARLEY_EXPECT(self.send_and_wait(1, carrier, bytes_of(m), data) == errc::none);
      m.address = 77;
      PARLEY_EXPECT(self.send_and_wait(1, carrier, bytes_of(m), data) == errc::none);
      m.address = static_cast<std::uint64_t>(channel::data);
      PARLEY_EXPECT(self.send_and_wait(1, carrier, bytes_of(m), blob(10'000)) == errc::none);
      PARLEY_EXPECT(self.send_and_wait(1, carrier, bytes_of(m), too_long) == errc::none);
    }
    self.finish(all);
    PARLEY_EXPECT(self.wire.statistics().received[static_cast<std::size_t>(channel::data)] == 0);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a late put into withdrawn memory changes nothing, and fails no later put or message") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    const std::string text = "over";
    blob withdrawn(1'000, std::byte{0x5a});
    blob kept(1'000, std::byte{0x5a});
    node self(rank, 2, all);
    self.listen();
    const auto first = self.wire.expose(withdrawn).value();
    const auto second = self.wire.expose(kept).value();
    const auto keys_of_first = all.gather(first.key);
    const auto keys_of_second = all.gather(second.key);
    if (rank == 1) self.wire.withdraw(first);
    all.barrier();
    const blob data(50, std::byte{1});
    if (rank == 0) {
      for (const auto* keys : {&keys_of_first, &keys_of_second}) {
        awaited put, announced;
        const auto address = transports::read_carried_key((*keys)[1])->address;
        PARLEY_EXPECT(waited(self, self.wire.put(1, {(*keys)[1], address}, data, &put), put) == errc::none);
        PARLEY_EXPECT(waited(self, self.wire.announce(1, channel::data, tests::bytes_of(text), &announced),
                             announced) == errc::none);
      }
    }
    self.finish(all);
    PARLEY_EXPECT(all_are(withdrawn, std::byte{0x5a}));
    PARLEY_EXPECT(self.wire.statistics().received[static_cast<std::size_t>(channel::data)] == (rank == 1 ? 2 : 0));
    if (rank == 1) PARLEY_EXPECT(std::equal(data.begin(), data.end(), kept.begin()));
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("no data lands in memory that was withdrawn in the middle of a put") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    blob memory(std::size_t{32} << 20U);
    const blob data(memory.size(), std::byte{1});
    awaited done;
    node self(rank, 2, all);  // destroyed before the memory that it may still read
    self.listen();
    const auto mine = self.wire.expose(memory).value();
    const auto keys = all.gather(mine.key);
    if (rank == 0) {
      const auto address = transports::read_carried_key(keys[1])->address;
      PARLEY_EXPECT(self.wire.put(1, {keys[1], address}, data, &done) == errc::pending);
      self.until([&] { return !self.control.got.empty(); });
      PARLEY_EXPECT(done.calls == 0);
      all.barrier();
      all.barrier();  // rank 1 has withdrawn and overwritten its memory meanwhile
      for (int turn = 0; turn < 100'000; ++turn) self.wire.poll();
      all.barrier();
    } else {
      self.until([&] { return memory[0] == std::byte{1}; });
      self.wire.send(0, channel::control, tests::bytes_of(std::string("begun")), {}, nullptr);
      all.barrier();
      const auto late = self.wire.withdraw(mine);
      PARLEY_EXPECT(late == runtime::late_writes::fail);
      std::fill(memory.begin(), memory.end(), std::byte{0x5a});
      all.barrier();
      for (int turn = 0; turn < 100'000; ++turn) self.wire.poll();
      all.barrier();
      for (int turn = 0; turn < 100'000; ++turn) self.wire.poll();
      PARLEY_EXPECT(all_are(memory, std::byte{0x5a}));
    }
    all.barrier();
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("no data is written into the memory of an abandoned get") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    blob memory(std::size_t{32} << 20U, std::byte{1});
    blob into(rank == 0 ? memory.size() : 0, std::byte{0});
    awaited done;
    node self(rank, 2, all);  // destroyed before the memory that it may still write
    self.listen();
    const auto mine = self.wire.expose(memory).value();
    const auto keys = all.gather(mine.key);
    if (rank == 0) {
      const auto address = transports::read_carried_key(keys[1])->address;
      PARLEY_EXPECT(self.wire.get(1, {keys[1], address}, into, &done) == errc::pending);
      self.until([&] { return into[0] == std::byte{1}; });
      PARLEY_EXPECT(done.calls == 0);
      self.wire.send(1, channel::control, tests::bytes_of(std::string("begun")), {}, nullptr);
      self.wire.abandon(done);
      std::fill(into.begin(), into.end(), std::byte{0x5a});
      self.until([&] { return done.calls > 0; });
    } else {
      self.until([&] { return !self.control.got.empty(); });
    }
    all.barrier();
    for (int turn = 0; turn < 100'000; ++turn) self.wire.poll();
    all.barrier();
    PARLEY_EXPECT(all_are(into, std::byte{0x5a}));
    PARLEY_EXPECT(done.calls == (rank == 0 ? 1 : 0));
    self.control.got.clear();
    all.barrier();
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

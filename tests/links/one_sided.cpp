// The promises of links with one-sided transfers about puts, gets and fences.
#include <parley/tests/links/contract.hpp>

#include <algorithm>
#include <array>

namespace parley::tests {

namespace {

using runtime::remote_place;

/// A piece of exposed memory, as its owner describes it to other ranks.
struct described {
  std::uint64_t address = 0;
  blob key;
};

blob description_of(const runtime::exposed_memory& memory) {
  const auto address = reinterpret_cast<std::uint64_t>(memory.bytes.data());
  blob text(sizeof address + memory.key.size());
  std::memcpy(text.data(), &address, sizeof address);
  std::copy(memory.key.begin(), memory.key.end(), text.begin() + sizeof address);
  return text;
}
described read(const blob& text) {
  described d;
  std::memcpy(&d.address, text.data(), sizeof d.address);
  d.key.assign(text.begin() + sizeof d.address, text.end());
  return d;
}

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == value; });
}

task<errc> put(end& self, rank_id to, remote_place at, std::span<const std::byte> bytes) {
  awaited& done = self.operation();
  const errc started = self.wire().put(to, at, bytes, &done);
  const errc outcome = co_await self.outcome(started, done);
  co_return outcome;
}
task<errc> get(end& self, rank_id from, remote_place at, std::span<std::byte> into) {
  awaited& done = self.operation();
  const errc started = self.wire().get(from, at, into, &done);
  const errc outcome = co_await self.outcome(started, done);
  co_return outcome;
}
task<errc> fence(end& self, rank_id to) {
  awaited& done = self.operation();
  const errc started = self.wire().fence(to, &done);
  const errc outcome = co_await self.outcome(started, done);
  co_return outcome;
}

// Around the limits of UCX's short, bcopy and zcopy protocols.
std::vector<std::size_t> sizes_up_to(std::size_t largest) {
  std::vector<std::size_t> sizes = {0, 1, 7, 92, 128, 4095, 8193, 65537};
  std::erase_if(sizes, [largest](std::size_t size) { return size >= largest; });
  sizes.push_back(largest);
  return sizes;
}

task<> put_every_size(end& self) {
  self.listen();
  blob& memory = self.memory(blob(self.limits.largest_bytes + 20'000, std::byte{0x5a}));
  const auto mine = self.wire().expose(memory).value();
  PARLEY_EXPECT(mine.key.size() <= link::max_remote_key_bytes);
  const auto keys = co_await self.gather(description_of(mine));
  const described theirs = read(keys[1]);
  for (const std::size_t size : sizes_up_to(self.limits.largest_bytes)) {
    const blob wanted = pattern(size, size);
    if (self.rank == 0) {
      const blob& data = self.memory(wanted);
      const errc put_outcome = co_await put(self, 1, {theirs.key, theirs.address + 100}, data);
      PARLEY_EXPECT(put_outcome == errc::none);
      const errc fenced = co_await fence(self, 1);
      PARLEY_EXPECT(fenced == errc::none);
      self.wire().send(1, channel::data, bytes_of(std::to_string(size)), {}, nullptr);
    } else {
      co_await self.until([&self] { return !self.data.got.empty(); });
      PARLEY_EXPECT(text_of(self.data.got[0].header()) == std::to_string(size));
      self.data.got.clear();
      PARLEY_EXPECT(std::equal(wanted.begin(), wanted.end(), memory.begin() + 100));
      PARLEY_EXPECT(all_are(std::span(memory).first(100), std::byte{0x5a}));
      PARLEY_EXPECT(memory[100 + size] == std::byte{0x5a});
    }
    co_await self.meet();
  }
  self.wire().withdraw(mine);
}

task<> get_every_size(end& self) {
  self.listen();
  blob& memory = self.memory(pattern(self.limits.largest_bytes + 20'000, self.rank));
  const auto mine = self.wire().expose(memory).value();
  const auto keys = co_await self.gather(description_of(mine));
  if (self.rank == 1) {
    const described theirs = read(keys[0]);
    const blob whole = pattern(memory.size(), 0);
    for (const std::size_t size : sizes_up_to(self.limits.largest_bytes)) {
      blob& into = self.memory(blob(size + 3, std::byte{0x5a}));
      const errc got = co_await get(self, 0, {theirs.key, theirs.address + 77}, std::span(into).first(size));
      PARLEY_EXPECT(got == errc::none);
      PARLEY_EXPECT(std::equal(into.begin(), into.end() - 3, whole.begin() + 77));
      PARLEY_EXPECT(all_are(std::span(into).last(3), std::byte{0x5a}));
    }
  }
  co_await self.meet();
  self.wire().withdraw(mine);
}

task<> many_puts(end& self) {
  self.listen();
  constexpr std::size_t pieces = 200;
  constexpr std::size_t bytes = 10'007;
  blob& memory = self.memory(blob(pieces * bytes));
  const auto mine = self.wire().expose(memory).value();
  const auto keys = co_await self.gather(description_of(mine));
  const blob& data = self.memory(pattern(pieces * bytes, 9));
  std::vector<const awaited*> pending;
  if (self.rank == 0) {
    const described theirs = read(keys[1]);
    for (std::size_t i = 0; i < pieces; ++i) {
      awaited& done = self.operation();
      const errc started = self.wire().put(1, {theirs.key, theirs.address + i * bytes},
                                           std::span(data).subspan(i * bytes, bytes), &done);
      PARLEY_EXPECT(started == errc::none || started == errc::pending);
      if (started == errc::pending) pending.push_back(&done);
    }
    const errc fenced = co_await fence(self, 1);
    PARLEY_EXPECT(fenced == errc::none);
  }
  co_await self.meet();
  if (self.rank == 1) PARLEY_EXPECT(memory == data);
  for (const awaited* each : pending) {
    const errc outcome = co_await self.outcome(errc::pending, *each);
    PARLEY_EXPECT(outcome == errc::none);
  }
}

task<> refused(end& self) {
  self.listen();
  blob& memory = self.memory(blob(1'000, std::byte{0x5a}));
  const auto mine = self.wire().expose(memory).value();
  const auto keys = co_await self.gather(description_of(mine));
  const described theirs = read(keys[1 - self.rank]);
  const rank_id peer = 1 - self.rank;
  const errc fenced = co_await fence(self, peer);
  PARLEY_EXPECT(fenced == errc::none);
  blob& bytes = self.memory(blob(100, std::byte{1}));
  const blob long_key(link::max_remote_key_bytes + 1, std::byte{1});
  awaited& done = self.operation();
  for (const remote_place& at :
       {remote_place{{}, 0}, remote_place{long_key, 0}, remote_place{theirs.key, theirs.address - 1},
        remote_place{theirs.key, theirs.address + 901}, remote_place{theirs.key, ~std::uint64_t{0} - 5}}) {
    PARLEY_EXPECT(self.wire().put(peer, at, bytes, &done) == errc::bad_argument);
    PARLEY_EXPECT(self.wire().get(peer, at, bytes, &done) == errc::bad_argument);
  }
  PARLEY_EXPECT(self.wire().put(self.world, {theirs.key, theirs.address}, bytes, &done) == errc::bad_argument);
  PARLEY_EXPECT(self.wire().get(self.world, {theirs.key, theirs.address}, bytes, &done) == errc::bad_argument);
  PARLEY_EXPECT(self.wire().fence(self.world, &done) == errc::bad_argument);
  co_await self.meet();
  PARLEY_EXPECT(done.calls == 0);
  PARLEY_EXPECT(all_are(memory, std::byte{0x5a}));
  PARLEY_EXPECT(all_are(bytes, std::byte{1}));
}

task<> withdrawn(end& self) {
  self.listen();
  blob& memory = self.memory(blob(200'000, std::byte{0x5a}));
  const auto mine = self.wire().expose(memory).value();
  const auto keys = co_await self.gather(description_of(mine));
  const described theirs = read(keys[1 - self.rank]);
  const rank_id peer = 1 - self.rank;
  PARLEY_EXPECT(self.wire().withdraw(mine) == self.limits.late);
  co_await self.meet();
  for (const std::size_t size : {std::size_t{8}, std::size_t{5'000}, memory.size()}) {
    const blob& data = self.memory(blob(size, std::byte{1}));
    // The put may be refused at its origin; in any case it has ended for a fence.
    const errc left = co_await put(self, peer, {theirs.key, theirs.address}, data);
    const errc first = co_await fence(self, peer);
    PARLEY_EXPECT(left == errc::none || left == errc::bad_argument);
    PARLEY_EXPECT(first == errc::none);
    const errc second = co_await fence(self, peer);
    PARLEY_EXPECT(second == first);
    blob& into = self.memory(blob(size, std::byte{3}));
    const errc got = co_await get(self, peer, {theirs.key, theirs.address}, into);
    PARLEY_EXPECT(got != errc::none);
    PARLEY_EXPECT(all_are(into, std::byte{3}));
  }
  co_await self.meet();
  if (self.limits.late == runtime::late_writes::fail) PARLEY_EXPECT(all_are(memory, std::byte{0x5a}));
}

task<> abandoned(end& self) {
  self.listen();
  constexpr std::size_t bytes = 8'000'000;
  blob& memory = self.memory(blob(bytes, std::byte{1}));
  const auto mine = self.wire().expose(memory).value();
  const auto keys = co_await self.gather(description_of(mine));
  blob& into = self.memory(blob(self.rank == 0 ? bytes : 0));
  if (self.rank == 0) {
    const described theirs = read(keys[1]);
    awaited& got = self.operation();
    const errc started = self.wire().get(1, {theirs.key, theirs.address}, into, &got);
    PARLEY_EXPECT(started == self.limits.large_copy);
    if (started == errc::pending) self.wire().abandon(got);
    std::fill(into.begin(), into.end(), std::byte{0x5a});
    co_await self.until([&] { return started != errc::pending || got.calls > 0; });
    PARLEY_EXPECT(got.outcome != errc::none);
  }
  co_await self.meet();
  co_await self.meet();
  PARLEY_EXPECT(all_are(into, std::byte{0x5a}));
}

// The target has the original bytes or none, never the bytes that are written after the abandon.
task<> abandoned_put(end& self) {
  self.listen();
  constexpr std::size_t bytes = 8'000'000;
  blob& memory = self.memory(blob(bytes, std::byte{0}));
  const auto mine = self.wire().expose(memory).value();
  const auto keys = co_await self.gather(description_of(mine));
  if (self.rank == 0) {
    const described theirs = read(keys[1]);
    blob& data = self.memory(blob(bytes, std::byte{1}));
    awaited& sent = self.operation();
    const errc started = self.wire().put(1, {theirs.key, theirs.address}, data, &sent);
    PARLEY_EXPECT(started == self.limits.large_copy);
    if (started == errc::pending) self.wire().abandon(sent);
    std::fill(data.begin(), data.end(), std::byte{0xee});
    co_await self.until([&] { return started != errc::pending || sent.calls > 0; });
  }
  co_await self.meet();
  co_await self.meet();
  PARLEY_EXPECT(std::find(memory.begin(), memory.end(), std::byte{0xee}) == memory.end());
}

// Operations that wait for the dead rank's answer, and operations that start after its death is known.
task<> towards_the_dead(end& self) {
  self.listen();
  blob& memory = self.memory(blob(1 << 20, std::byte{1}));
  const auto mine = self.wire().expose(memory).value();
  const auto keys = co_await self.gather(description_of(mine));
  // Transports watch the peers to which they are connected.
  for (std::size_t n = 1; n <= 3; ++n) {
    self.wire().send(1 - self.rank, channel::control, bytes_of("here"), {}, nullptr);
    co_await self.until([&] { return self.control.got.size() >= n; });
  }
  const errc fenced = co_await fence(self, 1 - self.rank);
  PARLEY_EXPECT(fenced == errc::none);
  co_await self.meet();
  if (self.rank == 1) {
    co_await self.meet();
    co_await self.die();
  }
  const described theirs = read(keys[1]);
  const remote_place there{theirs.key, theirs.address};
  const blob& data = self.memory(blob(memory.size(), std::byte{2}));
  blob& into = self.memory(blob(memory.size()));
  std::vector<const awaited*> pending;
  const auto note = [&](errc started, const awaited& done) {
    if (started == errc::pending) pending.push_back(&done);
    PARLEY_EXPECT(started == errc::pending || started == errc::none);
  };
  awaited& put_done = self.operation();
  note(self.wire().put(1, there, data, &put_done), put_done);
  awaited& got = self.operation();
  note(self.wire().get(1, there, into, &got), got);
  awaited& fence_done = self.operation();
  note(self.wire().fence(1, &fence_done), fence_done);
  co_await self.meet();
  co_await self.until_failed(1);
  for (const awaited* each : pending) PARLEY_EXPECT(each->calls == 1);
  for (const awaited* each : {&got, &fence_done})
    PARLEY_EXPECT(each->outcome == errc::peer_failed || each->outcome == errc::none);
  awaited& late = self.operation();
  PARLEY_EXPECT(self.wire().put(1, there, data, &late) == errc::peer_failed);
  PARLEY_EXPECT(self.wire().get(1, there, into, &late) == errc::peer_failed);
  PARLEY_EXPECT(self.wire().fence(1, &late) == errc::peer_failed);
  PARLEY_EXPECT(late.calls == 0);
}

constexpr contract_case cases[] = {
    {"what was put and fenced is there, exactly, when a message that follows comes", 2, &put_every_size,
     needs::one_sided},
    {"a get brings exactly the peer's memory", 2, &get_every_size, needs::one_sided},
    {"many puts under one fence all are there", 2, &many_puts, needs::one_sided},
    {"a fence with nothing put ends, and keys and places that are none are refused", 2, &refused, needs::one_sided},
    {"what is put into withdrawn memory is over for a fence, and changes nothing unless it may land", 2, &withdrawn,
     needs::one_sided | needs::revoking},
    {"nothing is written where an abandoned get would have gone", 2, &abandoned, needs::one_sided | needs::stopping},
    {"nobody gets what memory holds after its put was abandoned", 2, &abandoned_put,
     needs::one_sided | needs::stopping},
    {"puts, gets and fences with a rank that dies end, once, and later ones are refused", 2, &towards_the_dead,
     needs::one_sided | needs::death | needs::revoking, 1},
};

}  // namespace

std::span<const contract_case> one_sided_contract() { return cases; }

}  // namespace parley::tests

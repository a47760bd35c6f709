// Puts, gets and the fence between real processes.
#include "ucx_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

using namespace parley;
using namespace parley::tests;

namespace {

using runtime::remote_place;
using transports::transfer_way;

/// A piece of exposed memory as its owner describes it to the others.
struct described {
  std::uint64_t address = 0;
  blob key;
};

blob text_of(const runtime::exposed_memory& memory) {
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

errc waited(node& self, errc started, const awaited& done) {
  if (started != errc::pending) return started;
  self.until([&] { return done.calls > 0; });
  PARLEY_EXPECT(done.calls == 1);
  return done.outcome;
}
errc put_and_wait(node& self, rank_id to, const remote_place& at, std::span<const std::byte> data) {
  awaited done;
  return waited(self, self.wire.put(to, at, data, &done), done);
}
errc get_and_wait(node& self, rank_id from, const remote_place& at, std::span<std::byte> into) {
  awaited done;
  return waited(self, self.wire.get(from, at, into, &done), done);
}
errc fence_and_wait(node& self, rank_id to) {
  awaited done;
  return waited(self, self.wire.fence(to, &done), done);
}

// Around the limits of UCX's short, bcopy and zcopy ways.
const std::vector<std::size_t> sizes = {0, 1, 7, 92, 128, 4095, 8193, 65537, 1 << 20, (64 << 20) + 12345};

void put_every_size(rank_id rank, meeting& all, transfer_way way) {
  node self(rank, 2, all, way);
  self.listen();
  blob memory((std::size_t{64} << 20U) + 20'000, std::byte{0x5a});
  const auto mine = self.wire.expose(memory).value();
  PARLEY_EXPECT(mine.key.size() <= link::max_remote_key_bytes);
  const auto keys = all.gather(text_of(mine));
  if (rank == 0) {
    const described theirs = read(keys[1]);
    for (const std::size_t size : sizes) {
      const blob data = pattern(size, size);
      PARLEY_EXPECT(put_and_wait(self, 1, {theirs.key, theirs.address + 100}, data) == errc::none);
      PARLEY_EXPECT(fence_and_wait(self, 1) == errc::none);
      PARLEY_EXPECT(self.send_and_wait(1, channel::data, bytes_of(std::to_string(size)), {}) == errc::none);
      self.until([&] { return !self.data.got.empty(); });  // the other one has looked
      self.data.got.clear();
    }
  } else {
    for (const std::size_t size : sizes) {
      self.until([&] { return !self.data.got.empty(); });
      PARLEY_EXPECT(tests::text_of(self.data.got.front().header()) == std::to_string(size));
      self.data.got.clear();
      const blob wanted = pattern(size, size);
      PARLEY_EXPECT(std::equal(wanted.begin(), wanted.end(), memory.begin() + 100));
      PARLEY_EXPECT(
          std::all_of(memory.begin(), memory.begin() + 100, [](std::byte b) { return b == std::byte{0x5a}; }));
      PARLEY_EXPECT(memory[100 + size] == std::byte{0x5a});
      PARLEY_EXPECT(self.send_and_wait(0, channel::data, bytes_of(std::string("seen")), {}) == errc::none);
    }
  }
  self.finish(all);
  self.wire.withdraw(mine);
}

void get_every_size(rank_id rank, meeting& all, transfer_way way) {
  node self(rank, 2, all, way);
  self.listen();
  blob memory = pattern((std::size_t{64} << 20U) + 20'000, rank);
  const auto mine = self.wire.expose(memory).value();
  const auto keys = all.gather(text_of(mine));
  if (rank == 1) {
    const described theirs = read(keys[0]);
    const blob whole = pattern(memory.size(), 0);
    for (const std::size_t size : sizes) {
      blob into(size + 3, std::byte{0x5a});
      const auto got = get_and_wait(self, 0, {theirs.key, theirs.address + 77}, std::span(into).first(size));
      PARLEY_EXPECT(got == errc::none);
      PARLEY_EXPECT(std::equal(into.begin(), into.end() - 3, whole.begin() + 77));
      PARLEY_EXPECT(std::all_of(into.end() - 3, into.end(), [](std::byte b) { return b == std::byte{0x5a}; }));
    }
  }
  self.finish(all);
  self.wire.withdraw(mine);
}

}  // namespace

TEST_CASE("what was put and fenced is there, exactly, when a message that follows comes") {
  for (const transfer_way way : {transfer_way::best, transfer_way::by_ucx}) {
    const outcomes ended = run_processes(2, [way](rank_id rank, meeting& all) { put_every_size(rank, all, way); });
    CHECK_MESSAGE(ended.fine(), ended.text());
  }
}

TEST_CASE("a get brings exactly the peer's memory") {
  for (const transfer_way way : {transfer_way::best, transfer_way::by_ucx}) {
    const outcomes ended = run_processes(2, [way](rank_id rank, meeting& all) { get_every_size(rank, all, way); });
    CHECK_MESSAGE(ended.fine(), ended.text());
  }
}

TEST_CASE("many puts under one fence all are there, without the owner's help") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    constexpr std::size_t pieces = 200;
    constexpr std::size_t bytes = 10'007;
    blob memory(pieces * bytes);
    const auto mine = self.wire.expose(memory).value();
    const auto keys = all.gather(text_of(mine));
    const blob data = pattern(pieces * bytes, 9);
    if (rank == 0) {
      const described theirs = read(keys[1]);
      std::array<awaited, pieces> done;
      for (std::size_t i = 0; i < pieces; ++i) {
        const remote_place at{theirs.key, theirs.address + i * bytes};
        const errc started = self.wire.put(1, at, std::span(data).subspan(i * bytes, bytes), &done[i]);
        PARLEY_EXPECT(started == errc::none || started == errc::pending);
        if (started == errc::none) done[i].calls = 1;
      }
      PARLEY_EXPECT(fence_and_wait(self, 1) == errc::none);
      self.until([&] { return std::all_of(done.begin(), done.end(), [](const awaited& a) { return a.calls == 1; }); });
    }
    self.finish(all);
    if (rank == 1) PARLEY_EXPECT(memory == data);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a fence with nothing put ends, and a key that is none is refused") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    PARLEY_EXPECT(fence_and_wait(self, 1 - rank) == errc::none);
    const blob data(100);
    const blob long_key(link::max_remote_key_bytes + 1, std::byte{1});
    awaited done;
    PARLEY_EXPECT(self.wire.put(1 - rank, {{}, 0}, data, &done) == errc::bad_argument);
    PARLEY_EXPECT(self.wire.put(1 - rank, {long_key, 0}, data, &done) == errc::bad_argument);
    PARLEY_EXPECT(self.wire.put(7, {long_key, 0}, data, &done) == errc::bad_argument);
    PARLEY_EXPECT(self.wire.fence(7, &done) == errc::bad_argument);
    PARLEY_EXPECT(done.calls == 0);
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("puts and fences towards a peer that was given up end with peer_failed") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    blob memory(1 << 20);
    const auto mine = self.wire.expose(memory).value();
    const auto keys = all.gather(text_of(mine));
    PARLEY_EXPECT(fence_and_wait(self, 1 - rank) == errc::none);
    all.barrier();
    const described theirs = read(keys[1 - rank]);
    if (rank == 0) {
      self.wire.give_up(1);
      self.until([&] { return self.failed.peers == std::vector<rank_id>{1}; });
      PARLEY_EXPECT(put_and_wait(self, 1, {theirs.key, theirs.address}, memory) == errc::peer_failed);
      PARLEY_EXPECT(fence_and_wait(self, 1) == errc::peer_failed);
    }
    all.barrier();
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

// A new process replaces one that has failed: the link continues with it, and later messages of the old process change nothing.
#include <parley/tests/transports/ucx/ucx_fixture.hpp>

#include <parley/transports/ucx/carried_memory.hpp>

#include <doctest/doctest.h>

#include <csignal>

using namespace parley;
using namespace parley::tests;

namespace {

/// Process 0 is rank 0; the other processes are rank 1, one after another.
struct successive : node {
  successive(rank_id process, meeting& all)
      : node({.rank = process == 0 ? rank_id{0} : rank_id{1}, .world_size = 2, .restarts = restarts_of(process)}),
        addresses(all.gather(wire.address())) {
    wire.connect(0, addresses[0]);
    if (process != 0) wire.connect(1, addresses[process], restarts_of(process));
    if (process == 0) wire.connect(1, addresses[1]);
    listen();
  }
  static std::uint32_t restarts_of(rank_id process) { return process == 0 ? 0 : process - 1; }
  /// Exchanges data with the other processes and keeps polling the link meanwhile.
  std::vector<blob> exchange(meeting& all, std::span<const std::byte> mine = {}) {
    all.bring(mine);
    until([&] { return all.brought(); });
    return all.take();
  }
  void put_and_fence(rank_id to, const blob& key, std::span<const std::byte> bytes) {
    const std::uint64_t address = transports::read_carried_key(key)->address;
    awaited put, fenced;
    const errc started = wire.put(to, {key, address}, bytes, &put);
    PARLEY_EXPECT(started == errc::none || started == errc::pending);
    const errc asked = wire.fence(to, &fenced);
    PARLEY_EXPECT(asked == errc::pending);
    until([&] { return fenced.calls > 0 && (started == errc::none || put.calls > 0); });
    PARLEY_EXPECT(fenced.outcome == errc::none);
  }
  /// Waits for the next large message and checks all of it.
  void expect(const blob& data_of_it) {
    until([&] { return !data.got.empty(); });
    blob into(data_of_it.size());
    PARLEY_EXPECT(fetch_and_wait(std::move(data.got.front()), into) == errc::none);
    data.got.erase(data.got.begin());
    PARLEY_EXPECT(into == data_of_it);
  }
  std::vector<blob> addresses;
};

constexpr std::size_t large = 4 << 20;

}  // namespace

TEST_CASE("a new process replaces a killed one, and nothing of the old one affects the exchange with the new one") {
  const outcomes ended = run_processes(
      3,
      [](rank_id process, meeting& all) {
        successive self(process, all);
        blob memory(large);
        const auto mine = self.wire.expose(memory).value();
        const auto keys = self.exchange(all, mine.key);
        const blob first = pattern(large, 1), second = pattern(large, 2), third = pattern(large, 3);
        awaited sent;
        if (process == 0) {
          self.put_and_fence(1, keys[1], first);  // so that its puts have numbers already
          PARLEY_EXPECT(self.wire.send(1, channel::data, bytes_of("x"), first, &sent) == errc::pending);
        } else if (process == 1) {
          self.until([&] { return self.data.got.size() == 1; });
          ::kill(::getpid(), SIGKILL);
        }
        if (process == 0) {
          PARLEY_EXPECT(!self.wire.has_failed(1));
          self.until([&] { return self.failed.peers == std::vector<rank_id>{1}; });
          PARLEY_EXPECT(sent.calls == 1 && sent.outcome == errc::peer_failed);
          PARLEY_EXPECT(self.wire.has_failed(1));
          PARLEY_EXPECT(self.wire.send(1, channel::data, bytes_of("x"), {}, nullptr) == errc::peer_failed);
          bool refused = false;  // the same process again is not a newer one
          try {
            self.wire.connect(1, self.addresses[1], 0);
          } catch (const runtime::failure&) {
            refused = true;
          }
          PARLEY_EXPECT(refused);
          self.wire.connect(1, self.addresses[2], 1);
          PARLEY_EXPECT(!self.wire.has_failed(1));
        }
        self.exchange(all);
        const rank_id other = process == 0 ? 1 : 0;
        awaited back;
        const errc started = self.wire.send(other, channel::data, bytes_of("y"), process == 0 ? second : third, &back);
        PARLEY_EXPECT(started == errc::pending || started == errc::none);
        self.expect(process == 0 ? third : second);
        self.until([&] { return started == errc::none || back.calls == 1; });
        self.put_and_fence(other, keys[process == 0 ? 2 : 0], process == 0 ? second : third);
        self.exchange(all);
        PARLEY_EXPECT(memory == (process == 0 ? third : second));
        PARLEY_EXPECT(self.failed.peers.size() == (process == 0 ? 1U : 0U));
      },
      {.killed = {1}});
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("messages and puts of a replaced process are not taken for its successor's") {
  const outcomes ended = run_processes(3, [](rank_id process, meeting& all) {
    successive self(process, all);
    blob memory(large);
    const auto mine = self.wire.expose(memory).value();
    const auto keys = self.exchange(all, mine.key);
    const std::uint64_t address = transports::read_carried_key(keys[0])->address;
    const blob old_data = pattern(large, 1), new_data = pattern(large, 2), part(8000, std::byte{7});
    std::vector<awaited> left(8);
    // the old process, which does not know that it was replaced; the first message connects it
    if (process == 1) {
      self.wire.send(0, channel::control, bytes_of("here"), {}, nullptr);
      self.exchange(all);
      self.exchange(all);
      static_cast<void>(self.wire.send(0, channel::data, bytes_of("old"), old_data, &left[0]));
      static_cast<void>(self.wire.send(0, channel::data, bytes_of("old"), part, &left[1]));
      for (std::size_t i = 2; i < 7; ++i) static_cast<void>(self.wire.put(0, {keys[0], address}, part, &left[i]));
      static_cast<void>(self.wire.put(0, {keys[0], address}, old_data, &left[7]));
      self.wire.send(0, channel::control, bytes_of("gone"), {}, nullptr);
    }
    if (process == 0) {
      self.until([&] { return self.control.got.size() == 1; });
      self.exchange(all);
      self.wire.give_up(1);
      self.until([&] { return self.wire.has_failed(1); });
      self.wire.connect(1, self.addresses[2], 1);
      self.exchange(all);
      self.until([&] { return self.control.got.size() == 2; });
      PARLEY_EXPECT(text_of(self.control.got[1].header()) == "gone");
      PARLEY_EXPECT(self.data.got.empty());
      PARLEY_EXPECT(memory == blob(large));
    }
    if (process == 2) {
      self.exchange(all);
      self.exchange(all);
    }
    self.exchange(all);
    if (process == 2) {
      self.put_and_fence(0, keys[0], new_data);
      PARLEY_EXPECT(self.send_and_wait(0, channel::data, bytes_of("new"), new_data) == errc::none);
    } else if (process == 0) {
      self.expect(new_data);
      PARLEY_EXPECT(memory == new_data);
    }
    self.exchange(all);
    if (process == 0) self.control.got.clear();
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a message that a new process sends before its peer knows of it arrives when the peer connects") {
  const outcomes ended = run_processes(3, [](rank_id process, meeting& all) {
    successive self(process, all);
    const blob data = pattern(large, 5);
    awaited sent;
    if (process == 2) {
      PARLEY_EXPECT(self.wire.send(0, channel::data, bytes_of("early"), data, &sent) == errc::pending);
      self.until([&] { return sent.calls == 1; });
      PARLEY_EXPECT(sent.outcome == errc::none);
    } else if (process == 0) {
      self.until([&] { return self.data.got.size() == 1; });
      self.wire.give_up(1);
      self.until([&] { return self.wire.has_failed(1); });
      self.wire.connect(1, self.addresses[2], 1);
      self.expect(data);
    }
    self.exchange(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE(
    "a fetch from a process that its peer does not know yet ends when that process dies, even if it stays unknown") {
  for (const bool known : {true, false}) {
    CAPTURE(known);
    const outcomes ended = run_processes(
        4,
        [known](rank_id process, meeting& all) {
          successive self(process, all);
          const blob data = pattern(large, 5);
          awaited done;
          if (process == 2) {  // its part of the transfer is still to come when it dies
            PARLEY_EXPECT(self.wire.send(0, channel::data, bytes_of("early"), data, &done) == errc::pending);
            self.exchange(all);
            all.barrier();
            ::kill(::getpid(), SIGKILL);
          }
          if (process == 0) {
            self.until([&] { return self.data.got.size() == 1; });
            self.exchange(all);
            self.wire.give_up(1);
            self.until([&] { return self.wire.has_failed(1); });
            blob into(large);
            PARLEY_EXPECT(self.wire.fetch(std::move(self.data.got.front()), into, &done) == errc::pending);
            self.data.got.clear();
            if (known) self.wire.connect(1, self.addresses[2], 1);
            self.exchange(all);
            self.exchange(all);  // process 2 has died
            if (!known) self.wire.connect(1, self.addresses[3], 2);
            self.until([&] { return done.calls == 1; });
            PARLEY_EXPECT(done.outcome == errc::peer_failed);
            if (known) self.until([&] { return self.failed.peers == std::vector<rank_id>{1, 1}; });
            if (!known) PARLEY_EXPECT(!self.wire.has_failed(1));
          } else {
            for (int i = 0; i < 3; ++i) self.exchange(all);
          }
          self.exchange(all);
        },
        {.killed = {2}});
    CHECK_MESSAGE(ended.fine(), ended.text());
  }
}

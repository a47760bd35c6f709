// Messages of every size between real processes.
#include "ucx_fixture.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

using namespace parley;
using namespace parley::tests;

namespace {

struct size_header {
  rank_id from;
  std::uint32_t number;
  std::uint64_t length;
};

std::span<const std::byte> bytes_of(const size_header& header) { return std::as_bytes(std::span(&header, 1)); }

size_header read_header(const arrival& message) {
  size_header header{};
  PARLEY_EXPECT(message.header().size() == sizeof header);
  std::memcpy(&header, message.header().data(), sizeof header);
  return header;
}

// Around every limit: an arrival's own room (128 with the header), UCX's short path, its fragments, its rendezvous.
const std::vector<std::uint64_t> sizes = {
    0, 1, 28, 29, 76, 77, 92, 112, 113, 128, 129, 4095, 8 * 1024, 8193, 65537, 1 << 20, (64 << 20) + 12345};

void everyone_sends_every_size(rank_id rank, meeting& all, rank_id world) {
  node self(rank, world, all);
  self.listen();
  std::deque<awaited> sent;
  std::vector<blob> payloads;
  for (std::uint32_t number = 0; number < sizes.size(); ++number)
    payloads.push_back(pattern(static_cast<std::size_t>(sizes[number]), rank * 1000 + number));
  std::size_t pending = 0;
  for (rank_id to = 0; to < world; ++to) {
    for (std::uint32_t number = 0; number < sizes.size(); ++number) {
      const size_header header{rank, number, sizes[number]};
      const errc started = self.wire.send(to, channel::data, bytes_of(header), payloads[number], &sent.emplace_back());
      PARLEY_EXPECT(started == errc::none || started == errc::pending);
      pending += started == errc::pending ? 1 : 0;
    }
  }
  std::size_t fetched = 0;
  while (fetched < sizes.size() * world) {
    self.until([&] { return !self.data.got.empty(); });
    arrival message = std::move(self.data.got.back());
    self.data.got.pop_back();
    const size_header header = read_header(message);
    PARLEY_EXPECT(header.length == sizes[header.number]);
    PARLEY_EXPECT(message.length() == header.length);
    blob into(static_cast<std::size_t>(header.length) + 3, std::byte{0x5a});
    PARLEY_EXPECT(self.fetch_and_wait(std::move(message), into) == errc::none);
    const blob wanted = pattern(static_cast<std::size_t>(header.length), header.from * 1000 + header.number);
    PARLEY_EXPECT(std::equal(wanted.begin(), wanted.end(), into.begin()));
    PARLEY_EXPECT(std::all_of(into.end() - 3, into.end(), [](std::byte b) { return b == std::byte{0x5a}; }));
    ++fetched;
  }
  self.until([&] {
    return static_cast<std::size_t>(
               std::count_if(sent.begin(), sent.end(), [](const awaited& a) { return a.calls > 0; })) == pending;
  });
  for (const awaited& each : sent) PARLEY_EXPECT(each.calls <= 1 && (each.calls == 0 || each.outcome == errc::none));
  self.finish(all);
}

}  // namespace

TEST_CASE("two ranks exchange every size, each also with itself") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) { everyone_sends_every_size(rank, all, 2); });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("three ranks exchange every size at once") {
  const outcomes ended = run_processes(3, [](rank_id rank, meeting& all) { everyone_sends_every_size(rank, all, 3); });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a world of one rank sends to itself") {
  const outcomes ended = run_processes(1, [](rank_id rank, meeting& all) { everyone_sends_every_size(rank, all, 1); });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("ten thousand messages in flight all arrive once, with their sender's payloads gone at once") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    constexpr std::uint32_t count = 10'000;
    for (std::uint32_t number = 0; number < count; ++number) {
      const size_header header{rank, number, number % 700};
      blob payload = pattern(number % 700, number);
      PARLEY_EXPECT(self.wire.send(1 - rank, channel::data, bytes_of(header), payload, nullptr) == errc::none);
      std::fill(payload.begin(), payload.end(), std::byte{0});
    }
    self.until([&] { return self.data.got.size() == count; });
    std::vector<int> seen(count);
    for (const arrival& message : self.data.got) {
      const size_header header = read_header(message);
      ++seen[header.number];
      const blob wanted = pattern(header.number % 700, header.number);
      PARLEY_EXPECT(std::equal(wanted.begin(), wanted.end(), message.payload().begin(), message.payload().end()));
    }
    PARLEY_EXPECT(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    PARLEY_EXPECT(self.wire.statistics().sent[1] == count);
    PARLEY_EXPECT(self.wire.statistics().received[1] == count);
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("messages that come before the first handler are kept, per channel") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    const blob large = pattern(300'000, 7);
    std::deque<awaited> sent;
    if (rank == 0) {
      for (const channel on : {channel::control, channel::data}) {
        self.wire.send(1, on, tests::bytes_of("small"), {}, nullptr);
        self.wire.send(1, on, tests::bytes_of("large"), large, &sent.emplace_back());
      }
      self.wire.send(1, channel::data, tests::bytes_of("last"), {}, nullptr);
    } else {
      self.until([&] { return self.wire.statistics().received[0] + self.wire.statistics().received[1] >= 5; });
      self.wire.poll();
      self.wire.listen(channel::control, &self.control);
      self.until([&] { return self.control.got.size() >= 2; });
      PARLEY_EXPECT(self.data.got.empty());
      self.wire.listen(channel::data, &self.data);
      self.until([&] { return self.data.got.size() == 3; });
      for (recorder* each : {&self.control, &self.data}) {
        std::vector<arrival> taken;  // for more may come meanwhile, and rank 0's last one is to stay
        for (arrival& message : each->got)
          if (text_of(message.header()) != "finished") taken.push_back(std::move(message));
        std::erase_if(each->got, [](const arrival& left) { return text_of(left.header()) != "finished"; });
        for (arrival& message : taken) {
          if (text_of(message.header()) != "large") continue;
          blob into(large.size());
          PARLEY_EXPECT(self.fetch_and_wait(std::move(message), into) == errc::none);
          PARLEY_EXPECT(into == large);
        }
      }
    }
    self.listen();
    self.until([&] {
      return std::all_of(sent.begin(), sent.end(), [](const awaited& a) { return a.outcome == errc::none; });
    });
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("kept arrivals can be fetched later, in any order") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    constexpr std::array<std::size_t, 6> lengths = {10, 500, 5'000, 60'000, 500'000, 2'000'000};
    std::vector<blob> payloads;
    std::deque<awaited> sent;
    std::size_t pending = 0;
    for (std::uint32_t number = 0; number < lengths.size(); ++number) {
      payloads.push_back(pattern(lengths[number], number));
      if (rank != 0) continue;
      const size_header header{rank, number, lengths[number]};
      pending +=
          self.wire.send(1, channel::data, bytes_of(header), payloads[number], &sent.emplace_back()) == errc::pending;
    }
    if (rank == 1) {
      self.until([&] { return self.data.got.size() == lengths.size(); });
      for (int i = 0; i < 1000; ++i) self.wire.poll();
      std::vector<arrival> kept = std::move(self.data.got);
      std::reverse(kept.begin(), kept.end());
      for (arrival& message : kept) {
        const size_header header = read_header(message);
        blob into(static_cast<std::size_t>(message.length()));
        PARLEY_EXPECT(self.fetch_and_wait(std::move(message), into) == errc::none);
        PARLEY_EXPECT(into == payloads[header.number]);
      }
    }
    self.until([&] {
      std::size_t done = 0;
      for (const awaited& each : sent) done += each.calls;
      return done == pending;
    });
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a message that is dropped, small or large, ends well at its sender") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    const blob large = pattern(3'000'000, 1);
    if (rank == 0) {
      for (const std::size_t length : {std::size_t{8}, std::size_t{9'000}, large.size()}) {
        const errc outcome =
            self.send_and_wait(1, channel::data, tests::bytes_of("drop"), std::span(large).first(length));
        PARLEY_EXPECT(outcome == errc::none);
      }
    } else {
      self.until([&] {
        self.data.got.clear();
        return self.wire.statistics().received[1] == 3;
      });
      self.data.got.clear();
    }
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("nothing touches the payload of a send that was abandoned") {
  for (const std::size_t length : {std::size_t{6'000}, std::size_t{3'000'000}}) {
    const outcomes ended = run_processes(2, [length](rank_id rank, meeting& all) {
      node self(rank, 2, all);
      self.listen();
      if (rank == 0) {
        // Where nothing else lies: whoever reads it afterwards dies.
        void* const memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        PARLEY_EXPECT(memory != MAP_FAILED);
        const std::span payload(static_cast<const std::byte*>(memory), length);
        std::array<awaited, 1'000> sent;  // the peer polls nothing, so that most of these queue up here
        for (awaited& each : sent) {
          if (self.wire.send(1, channel::data, tests::bytes_of("x"), payload, &each) != errc::pending) ++each.calls;
        }
        PARLEY_EXPECT(sent.back().calls == 0);
        for (awaited& each : sent)
          if (each.calls == 0) self.wire.abandon(each);
        PARLEY_EXPECT(::munmap(memory, length) == 0);
        self.until(
            [&] { return std::all_of(sent.begin(), sent.end(), [](const awaited& a) { return a.calls == 1; }); });
      }
      all.barrier();
    });
    CHECK_MESSAGE(ended.fine(), ended.text());
  }
}

TEST_CASE("a fetch into too small a buffer writes nothing and drops the message") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    const blob large = pattern(1'000'000, 1);
    if (rank == 0) {
      PARLEY_EXPECT(self.send_and_wait(1, channel::data, tests::bytes_of("x"), large) == errc::none);
    } else {
      self.until([&] { return self.data.got.size() == 1; });
      blob into(large.size() - 1, std::byte{1});
      PARLEY_EXPECT(self.wire.fetch(std::move(self.data.got[0]), into, nullptr) == errc::buffer_too_small);
      PARLEY_EXPECT(std::all_of(into.begin(), into.end(), [](std::byte b) { return b == std::byte{1}; }));
    }
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("the counters tell messages, payload bytes and copies") {
  const outcomes ended = run_processes(2, [](rank_id rank, meeting& all) {
    node self(rank, 2, all);
    self.listen();
    const blob large = pattern(1'000'000, 1);
    if (rank == 0) {
      self.wire.send(1, channel::control, tests::bytes_of("c"), {}, nullptr);
      self.wire.send(1, channel::data, tests::bytes_of("d"), std::span(large).first(1'000), nullptr);
      PARLEY_EXPECT(self.send_and_wait(1, channel::data, tests::bytes_of("d"), large) == errc::none);
      PARLEY_EXPECT(self.wire.statistics().sent[0] == 1);
      PARLEY_EXPECT(self.wire.statistics().sent[1] == 2);
      PARLEY_EXPECT(self.wire.statistics().payload_bytes_sent == 1'001'000);
    } else {
      self.until([&] { return self.data.got.size() == 2 && self.control.got.size() == 1; });
      for (arrival& message : self.data.got) {
        blob into(static_cast<std::size_t>(message.length()));
        PARLEY_EXPECT(self.fetch_and_wait(std::move(message), into) == errc::none);
      }
      PARLEY_EXPECT(self.wire.statistics().received[0] == 1);
      PARLEY_EXPECT(self.wire.statistics().received[1] == 2);
      PARLEY_EXPECT(self.wire.statistics().copied_bytes == 1'000);
    }
    all.barrier();  // before the messages of `finish` are counted too
    self.finish(all);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("misuse is refused with a name") {
  const outcomes ended = run_processes(1, [](rank_id, meeting&) {
    ucx_link wire({.rank = 0, .world_size = 2});
    const blob header(65);
    const auto refused = [&](auto&& call) {
      try {
        call();
      } catch (const runtime::failure& f) {
        return f.code();
      }
      return errc::none;
    };
    const blob address = wire.address();
    PARLEY_EXPECT(refused([&] { wire.connect(2, address); }) == errc::bad_argument);
    PARLEY_EXPECT(refused([&] { wire.connect(1, std::span(address).first(3)); }) == errc::bad_argument);
    PARLEY_EXPECT(refused([&] { wire.connect(1, blob(100'000)); }) == errc::bad_argument);
    PARLEY_EXPECT(refused([&] { wire.connect(0, address); }) == errc::none);
    PARLEY_EXPECT(refused([&] { wire.connect(0, address); }) == errc::bad_argument);
    PARLEY_EXPECT(wire.send(0, channel::data, header, {}, nullptr) == errc::bad_argument);
    PARLEY_EXPECT(wire.send(1, channel::data, {}, {}, nullptr) == errc::bad_argument);
    PARLEY_EXPECT(wire.send(2, channel::data, {}, {}, nullptr) == errc::bad_argument);
    PARLEY_EXPECT(refused([] { ucx_link outside({.rank = 3, .world_size = 3}); }) == errc::bad_argument);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}

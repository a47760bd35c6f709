// The promises of links about messages, about cancelled operations, and about abandoned ones, whose memory goes.
#include <parley/tests/links/contract.hpp>

#include <algorithm>
#include <array>

namespace parley::tests {

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

bool untouched(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0x5a}; });
}

task<> fetch_whole(end& self, arrival& message, const blob& wanted) {
  blob& into = self.memory(blob(wanted.size()));
  awaited& fetched = self.operation();
  const errc started = self.wire().fetch(std::move(message), into, &fetched);
  const errc outcome = co_await self.outcome(started, fetched);
  PARLEY_EXPECT(outcome == errc::none);
  PARLEY_EXPECT(into == wanted);
}

// Around every limit: the room in an arrival (128 with the header), and UCX's short path, fragments and rendezvous.
std::vector<std::uint64_t> sizes_up_to(std::uint64_t largest) {
  std::vector<std::uint64_t> sizes = {0, 1, 28, 29, 76, 77, 92, 112, 113, 128, 129, 4095, 8192, 8193, 65537, 1 << 20};
  std::erase_if(sizes, [largest](std::uint64_t size) { return size >= largest; });
  sizes.push_back(largest);
  return sizes;
}

task<> every_size(end& self) {
  self.listen();
  const std::vector<std::uint64_t> sizes = sizes_up_to(self.limits.largest_bytes);
  std::vector<const awaited*> pending;
  for (std::uint32_t number = 0; number < sizes.size(); ++number) {
    const blob& payload = self.memory(pattern(static_cast<std::size_t>(sizes[number]), self.rank * 1000 + number));
    for (rank_id to = 0; to < self.world; ++to) {
      const size_header header{self.rank, number, sizes[number]};
      awaited& sent = self.operation();
      const errc started = self.wire().send(to, channel::data, bytes_of(header), payload, &sent);
      PARLEY_EXPECT(started == errc::none || started == errc::pending);
      if (started == errc::pending) pending.push_back(&sent);
    }
  }
  std::vector<int> seen(sizes.size() * self.world);
  for (std::size_t left = seen.size(); left > 0; --left) {
    co_await self.until([&self] { return !self.data.got.empty(); });
    arrival message = std::move(self.data.got.back());
    self.data.got.pop_back();
    const size_header header = read_header(message);
    ++seen.at(header.from * sizes.size() + header.number);
    PARLEY_EXPECT(header.length == sizes[header.number]);
    PARLEY_EXPECT(message.length() == header.length);
    blob& into = self.memory(blob(static_cast<std::size_t>(header.length) + 3, std::byte{0x5a}));
    awaited& fetched = self.operation();
    const errc started = self.wire().fetch(std::move(message), into, &fetched);
    const errc outcome = co_await self.outcome(started, fetched);
    PARLEY_EXPECT(outcome == errc::none);
    const blob wanted = pattern(static_cast<std::size_t>(header.length), header.from * 1000 + header.number);
    PARLEY_EXPECT(std::equal(wanted.begin(), wanted.end(), into.begin()));
    PARLEY_EXPECT(untouched(std::span(into).last(3)));
    into = {};
  }
  PARLEY_EXPECT(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  for (const awaited* sent : pending) {
    const errc outcome = co_await self.outcome(errc::pending, *sent);
    PARLEY_EXPECT(outcome == errc::none);
  }
}

task<> ten_thousand(end& self) {
  self.listen();
  constexpr std::uint32_t count = 10'000;
  if (self.rank == 0) {
    for (std::uint32_t number = 0; number < count; ++number) {
      const size_header header{self.rank, number, number % 700};
      blob payload = pattern(number % 700, number);
      PARLEY_EXPECT(self.wire().send(1, channel::data, bytes_of(header), payload, nullptr) == errc::none);
      std::fill(payload.begin(), payload.end(), std::byte{0});
    }
    // The link may use the sender's memory for these, until they complete.
    for (std::uint32_t number = count; number < count + 100; ++number) {
      const size_header header{self.rank, number, 20'000};
      const blob& payload = self.memory(pattern(20'000, number));
      awaited& sent = self.operation();
      if (self.wire().send(1, channel::data, bytes_of(header), payload, &sent) != errc::pending) ++sent.calls;
    }
    co_await self.meet();
    co_await self.until([&self] { return self.wire().statistics().sent[1] == count + 100; });
  } else {
    co_await self.stand_still();
    co_await self.until([&self] { return self.data.got.size() == count + 100; });
    std::vector<int> seen(count + 100);
    for (arrival& message : self.data.got) {
      const size_header header = read_header(message);
      ++seen.at(header.number);
      const blob wanted = pattern(static_cast<std::size_t>(header.length), header.number);
      PARLEY_EXPECT(message.length() == wanted.size());
      co_await fetch_whole(self, message, wanted);
    }
    PARLEY_EXPECT(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    PARLEY_EXPECT(self.wire().statistics().received[1] == count + 100);
  }
}

task<> every_header(end& self) {
  self.listen();
  const blob bytes = pattern(300, 5);
  if (self.rank == 0) {
    for (std::size_t length = 0; length <= link::max_header_bytes; ++length) {
      const auto header = std::span(bytes).first(length);
      PARLEY_EXPECT(self.wire().send(1, channel::control, header, {}, nullptr) == errc::none);
      PARLEY_EXPECT(self.wire().send(1, channel::data, header, bytes, nullptr) == errc::none);
    }
    co_return;
  }
  for (recorder* each : {&self.control, &self.data}) {
    co_await self.until([each] { return each->got.size() == link::max_header_bytes + 1; });
    std::array<int, link::max_header_bytes + 1> seen{};
    for (const arrival& message : each->got) {
      const auto header = message.header();
      ++seen.at(header.size());
      PARLEY_EXPECT(std::equal(header.begin(), header.end(), bytes.begin()));
      PARLEY_EXPECT(message.length() == (each == &self.data ? bytes.size() : 0));
    }
    PARLEY_EXPECT(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

task<> before_a_handler(end& self) {
  if (self.rank == 0) {
    const blob& large = self.memory(pattern(300'000, 7));
    for (const channel on : {channel::control, channel::data}) {
      self.wire().send(1, on, tests::bytes_of("small"), {}, nullptr);
      const errc started = self.wire().send(1, on, tests::bytes_of("large"), large, &self.operation());
      PARLEY_EXPECT(started == errc::none || started == errc::pending);
    }
    self.wire().send(1, channel::data, tests::bytes_of("last"), {}, nullptr);
    co_return;
  }
  co_await self.until(
      [&self] { return self.wire().statistics().received[0] + self.wire().statistics().received[1] == 5; });
  self.wire().listen(channel::control, &self.control);
  PARLEY_EXPECT(self.control.got.empty());  // only `poll` calls handlers
  co_await self.until([&self] { return self.control.got.size() == 2; });
  PARLEY_EXPECT(self.data.got.empty());
  self.wire().listen(channel::data, &self.data);
  PARLEY_EXPECT(self.data.got.empty());
  co_await self.until([&self] { return self.data.got.size() == 3; });
  const blob wanted = pattern(300'000, 7);
  for (recorder* each : {&self.control, &self.data}) {
    for (arrival& message : each->got) {
      if (text_of(message.header()) != "large") continue;
      co_await fetch_whole(self, message, wanted);
    }
  }
}

task<> fetched_later(end& self) {
  self.listen();
  static constexpr std::array<std::size_t, 6> lengths = {10, 500, 5'000, 60'000, 500'000, 1'000'000};
  if (self.rank == 0) {
    for (std::uint32_t number = 0; number < lengths.size(); ++number) {
      const size_header header{self.rank, number, lengths[number]};
      const blob& payload = self.memory(pattern(lengths[number], number));
      awaited& sent = self.operation();
      const errc started = self.wire().send(1, channel::data, bytes_of(header), payload, &sent);
      PARLEY_EXPECT(started == errc::none || started == errc::pending);
    }
    co_await self.meet();
    co_return;
  }
  co_await self.until([&self] { return self.data.got.size() == lengths.size(); });
  co_await self.meet();
  std::vector<arrival> kept = std::move(self.data.got);
  std::sort(kept.begin(), kept.end(), [](const arrival& a, const arrival& b) { return a.length() > b.length(); });
  for (arrival& message : kept) {
    const size_header header = read_header(message);
    blob& into = self.memory(blob(static_cast<std::size_t>(message.length())));
    awaited& fetched = self.operation();
    const errc started = self.wire().fetch(std::move(message), into, &fetched);
    const errc outcome = co_await self.outcome(started, fetched);
    PARLEY_EXPECT(outcome == errc::none);
    PARLEY_EXPECT(into == pattern(lengths[header.number], header.number));
  }
}

task<> dropped(end& self) {
  self.listen();
  static constexpr std::array<std::size_t, 3> lengths = {8, 9'000, 3'000'000};
  if (self.rank == 0) {
    const blob& large = self.memory(pattern(lengths.back(), 1));
    for (const std::size_t length : lengths) {
      awaited& sent = self.operation();
      const errc started =
          self.wire().send(1, channel::data, tests::bytes_of("drop"), std::span(large).first(length), &sent);
      const errc outcome = co_await self.outcome(started, sent);
      PARLEY_EXPECT(outcome == errc::none);
    }
  } else {
    co_await self.until([&self] {
      self.data.got.clear();
      return self.wire().statistics().received[1] == lengths.size();
    });
    self.data.got.clear();
  }
}

task<> too_small(end& self) {
  self.listen();
  static constexpr std::array<std::size_t, 3> lengths = {100, 5'000, 1'000'000};
  if (self.rank == 0) {
    for (const std::size_t length : lengths) {
      const blob& payload = self.memory(pattern(length, 1));
      awaited& sent = self.operation();
      const errc started = self.wire().send(1, channel::data, tests::bytes_of("x"), payload, &sent);
      const errc outcome = co_await self.outcome(started, sent);
      PARLEY_EXPECT(outcome == errc::none);
    }
    co_return;
  }
  for (std::size_t taken = 0; taken < lengths.size(); ++taken) {
    co_await self.until([&self] { return !self.data.got.empty(); });
    arrival message = std::move(self.data.got.back());
    self.data.got.pop_back();
    const auto length = static_cast<std::size_t>(message.length());
    blob& into = self.memory(blob(length, std::byte{0x5a}));
    awaited& fetched = self.operation();
    const auto short_of_one = std::span(into).first(length - 1);
    PARLEY_EXPECT(self.wire().fetch(std::move(message), short_of_one, &fetched) == errc::buffer_too_small);
    PARLEY_EXPECT(fetched.calls == 0);
    PARLEY_EXPECT(untouched(into));
  }
}

task<> counted(end& self) {
  self.listen();
  if (self.rank == 0) {
    const blob& large = self.memory(pattern(1'000'000, 1));
    self.wire().send(1, channel::control, tests::bytes_of("c"), {}, nullptr);
    self.wire().send(1, channel::data, tests::bytes_of("d"), std::span(large).first(1'000), nullptr);
    awaited& sent = self.operation();
    const errc started = self.wire().send(1, channel::data, tests::bytes_of("d"), large, &sent);
    const errc outcome = co_await self.outcome(started, sent);
    PARLEY_EXPECT(outcome == errc::none);
    PARLEY_EXPECT(self.wire().statistics().sent[0] == 1);
    PARLEY_EXPECT(self.wire().statistics().sent[1] == 2);
    PARLEY_EXPECT(self.wire().statistics().payload_bytes_sent == 1'001'000);
    co_return;
  }
  co_await self.until([&self] { return self.data.got.size() == 2 && self.control.got.size() == 1; });
  bool remote = false;
  for (arrival& message : self.data.got) {
    remote = remote || message.remote();
    blob& into = self.memory(blob(static_cast<std::size_t>(message.length())));
    awaited& fetched = self.operation();
    const errc started = self.wire().fetch(std::move(message), into, &fetched);
    const errc outcome = co_await self.outcome(started, fetched);
    PARLEY_EXPECT(outcome == errc::none);
  }
  PARLEY_EXPECT(self.wire().statistics().received[0] == 1);
  PARLEY_EXPECT(self.wire().statistics().received[1] == 2);
  PARLEY_EXPECT(self.wire().statistics().copied_bytes == (remote ? 1'000 : 1'001'000));
}

task<> misuse(end& self) {
  self.listen();
  const blob header(link::max_header_bytes + 1);
  awaited& done = self.operation();
  PARLEY_EXPECT(self.wire().send(1 - self.rank, channel::data, header, {}, &done) == errc::bad_argument);
  PARLEY_EXPECT(self.wire().send(self.world, channel::data, {}, {}, &done) == errc::bad_argument);
  co_await self.meet();
  PARLEY_EXPECT(done.calls == 0);
  PARLEY_EXPECT(self.data.got.empty());
  PARLEY_EXPECT(self.wire().statistics().sent[1] == 0);
}

// A ball that handlers and completions pass on: they may start any operation.
struct juggler final : link::handler, completion {
  explicit juggler(end& e) : completion(&on_sent), self(e) {}
  static void on_sent(completion& me, errc outcome) noexcept {
    auto& mine = static_cast<juggler&>(me);
    mine.good = mine.good && outcome == errc::none;
    mine.busy = false;
    mine.pass_on();
  }
  void on_arrival(arrival&& message) noexcept override {
    ++caught;
    ++waiting;
    const arrival let_go = std::move(message);
    pass_on();
  }
  void pass_on() noexcept {
    while (!busy && waiting > 0 && thrown < rounds) {
      --waiting;
      ++thrown;
      const errc started = self.wire().send(1 - self.rank, channel::data, {}, ball, this);
      busy = started == errc::pending;
      good = good && (busy || started == errc::none);
    }
  }
  static constexpr int rounds = 50;
  end& self;
  blob ball = blob(100'000);
  int caught = 0;
  int thrown = 0;
  int waiting = 0;
  bool busy = false;
  bool good = true;
};

task<> juggled(end& self) {
  juggler mine(self);
  self.wire().listen(channel::data, &mine);
  if (self.rank == 0) {
    mine.waiting = 1;
    mine.pass_on();
  }
  co_await self.until(
      [&mine] { return mine.caught == juggler::rounds && mine.thrown == juggler::rounds && !mine.busy; });
  PARLEY_EXPECT(mine.good);
  self.wire().listen(channel::data, nullptr);
}

// --- Cancelled operations, and abandoned ones, whose memory goes ------------------------------------------------------------

task<> cancelled_sends(end& self) {
  self.listen();
  constexpr std::size_t count = 4;
  if (self.rank == 0) {
    std::array<awaited*, count> sent{};
    for (std::uint32_t number = 0; number < count; ++number) {
      const size_header header{0, number, 500'000};
      sent[number] = &self.operation();
      const blob& payload = self.memory(pattern(500'000, number));
      // A send that has completed at once cannot be cancelled.
      if (self.wire().send(1, channel::data, bytes_of(header), payload, sent[number]) != errc::pending)
        awaited::note(*sent[number], errc::none);
    }
    for (const std::size_t number : {1, 3, 3})
      if (sent[number]->calls == 0) self.wire().cancel(*sent[number]);
    for (std::size_t number = 0; number < count; ++number) {
      const errc outcome = co_await self.outcome(errc::pending, *sent[number]);
      PARLEY_EXPECT(outcome == errc::none || (number % 2 == 1 && outcome == errc::cancelled));
    }
    co_await self.meet();
    for (const awaited* each : sent) PARLEY_EXPECT(each->calls == 1);
    co_return;
  }
  // A cancelled message arrives whole, ends with an error, or does not arrive.
  std::array<int, count> seen{};
  bool all_sent = false;
  const auto others_came = [&] { return seen[0] + seen[2] == 2 && self.data.got.empty(); };
  while (!all_sent) {
    co_await self.until([&] { return !self.data.got.empty() || others_came(); });
    if (self.data.got.empty()) {
      co_await self.meet();
      all_sent = true;
      continue;
    }
    arrival message = std::move(self.data.got.back());
    self.data.got.pop_back();
    const size_header header = read_header(message);
    ++seen.at(header.number);
    blob& into = self.memory(blob(static_cast<std::size_t>(message.length())));
    awaited& fetched = self.operation();
    const errc started = self.wire().fetch(std::move(message), into, &fetched);
    const errc outcome = co_await self.outcome(started, fetched);
    if (header.number % 2 == 0) PARLEY_EXPECT(outcome == errc::none);
    if (outcome == errc::none) PARLEY_EXPECT(into == pattern(500'000, header.number));
  }
  PARLEY_EXPECT(std::all_of(seen.begin(), seen.end(), [](int n) { return n <= 1; }));
}

task<> cancelled_fetches(end& self) {
  self.listen();
  constexpr std::size_t count = 3;
  if (self.rank == 0) {
    for (std::uint32_t number = 0; number < count; ++number) {
      const size_header header{0, number, 3'000'000};
      awaited& sent = self.operation();
      const blob& payload = self.memory(pattern(3'000'000, number));
      self.wire().send(1, channel::data, bytes_of(header), payload, &sent);
    }
    co_await self.meet();
    co_return;
  }
  co_await self.until([&self] { return self.data.got.size() == count; });
  for (arrival& message : self.data.got) {
    const size_header header = read_header(message);
    blob& into = self.memory(blob(static_cast<std::size_t>(message.length())));
    awaited& fetched = self.operation();
    const errc started = self.wire().fetch(std::move(message), into, &fetched);
    if (started == errc::pending) self.wire().cancel(fetched);
    const errc outcome = co_await self.outcome(started, fetched);
    PARLEY_EXPECT(outcome == errc::none || outcome == errc::cancelled);
    if (outcome == errc::none) PARLEY_EXPECT(into == pattern(3'000'000, header.number));
  }
  co_await self.meet();
}

// The receiver may get the original bytes or an error, but never the bytes that are written afterwards.
task<> abandoned_sends(end& self) {
  self.listen();
  constexpr std::size_t count = 20;
  if (self.rank == 0) {
    std::array<awaited*, count> sent{};
    blob& payload = self.memory(pattern(1'000'000, 1));
    for (std::uint32_t number = 0; number < count; ++number) {
      const size_header header{0, number, number % 2 == 0 ? payload.size() : 6'000};
      sent[number] = &self.operation();
      const errc started =
          self.wire().send(1, channel::data, bytes_of(header), std::span(payload).first(header.length), sent[number]);
      PARLEY_EXPECT(started == errc::pending || started == errc::none);
      if (started == errc::none) ++sent[number]->calls;
    }
    PARLEY_EXPECT(sent[count - 2]->calls == 0);
    for (awaited* each : sent)
      if (each->calls == 0) self.wire().abandon(*each);
    std::fill(payload.begin(), payload.end(), std::byte{0xee});
    co_await self.meet();
    co_await self.until(
        [&sent] { return std::all_of(sent.begin(), sent.end(), [](awaited* a) { return a->calls > 0; }); });
    co_await self.meet();
    for (const awaited* each : sent) PARLEY_EXPECT(each->calls == 1);
    co_return;
  }
  co_await self.stand_still();
  const blob whole = pattern(1'000'000, 1);
  self.bring({});  // until all sends have ended at their sender
  for (;;) {
    co_await self.until([&self] { return !self.data.got.empty() || self.brought(); });
    if (self.data.got.empty()) break;
    arrival message = std::move(self.data.got.back());
    self.data.got.pop_back();
    const size_header header = read_header(message);
    PARLEY_EXPECT(message.length() == header.length);
    blob& into = self.memory(blob(static_cast<std::size_t>(header.length)));
    awaited& fetched = self.operation();
    const errc started = self.wire().fetch(std::move(message), into, &fetched);
    // A fetch may end only when the sender's death is reported, and a rank that sends is sure to hear of it.
    co_await self.until([&] {
      self.wire().send(0, channel::control, tests::bytes_of("are you there"), {}, nullptr);
      return started != errc::pending || fetched.calls > 0;
    });
    const errc outcome = started == errc::pending ? fetched.outcome : started;
    if (outcome == errc::none) PARLEY_EXPECT(std::equal(into.begin(), into.end(), whole.begin()));
  }
  self.take();
}

task<> abandoned_fetch(end& self) {
  self.listen();
  if (self.rank == 0) {
    const blob& payload = self.memory(pattern(8'000'000, 1));
    self.wire().send(1, channel::data, tests::bytes_of("x"), payload, &self.operation());
    co_await self.meet();
    co_await self.meet();
    co_return;
  }
  co_await self.until([&self] { return self.data.got.size() == 1; });
  blob& into = self.memory(blob(8'000'000));
  awaited& fetched = self.operation();
  const errc started = self.wire().fetch(std::move(self.data.got[0]), into, &fetched);
  if (started == errc::pending) self.wire().abandon(fetched);
  std::fill(into.begin(), into.end(), std::byte{0x5a});
  co_await self.until([&] { return started != errc::pending || fetched.calls > 0; });
  co_await self.meet();
  co_await self.meet();
  PARLEY_EXPECT(fetched.calls == (started == errc::pending ? 1 : 0));
  PARLEY_EXPECT(untouched(into));
}

constexpr contract_case cases[] = {
    {"every size arrives whole, from every rank at every rank, itself included", 3, &every_size},
    {"a rank alone sends itself every size", 1, &every_size},
    {"messages wait for a receiver that stands still, and each comes once and with its own payload", 2, &ten_thousand},
    {"a header of every length comes with its payload, on each channel", 2, &every_header},
    {"what comes before there is a handler is kept, per channel, and handed over by poll", 2, &before_a_handler},
    {"kept arrivals are fetched later, in any order", 2, &fetched_later},
    {"a message that nobody fetches ends well at its sender", 2, &dropped},
    {"a fetch into too small a buffer writes nothing and drops the message", 2, &too_small},
    {"the counters tell messages, payload bytes and copies", 2, &counted},
    {"a rank outside the world and too long a header are refused", 2, &misuse},
    {"handlers and completions may start what they like", 2, &juggled},
    {"a cancelled send ends once, and harms no other", 2, &cancelled_sends},
    {"a cancelled fetch ends once", 2, &cancelled_fetches},
    {"nobody gets what memory holds after its send was abandoned", 2, &abandoned_sends},
    {"nothing is written where an abandoned fetch would have gone", 2, &abandoned_fetch},
};

}  // namespace

std::span<const contract_case> messages_contract() { return cases; }

// Sends one message at a time, so that messages to a dead rank do not pile up.
task<> end::until_failed(rank_id peer) {
  const auto since = stopwatch();
  awaited* asked = nullptr;
  time_ns next = loop().now();
  const auto told = [&] {
    if (!failed.has(peer) && loop().now() >= next && (asked == nullptr || asked->calls > 0)) {
      asked = &operation();
      if (wire().send(peer, channel::control, bytes_of("are you there"), {}, asked) != errc::pending) ++asked->calls;
      next = loop().deadline_in(1'000'000);
    }
    return failed.has(peer);
  };
  co_await until(told);
  PARLEY_EXPECT(since() < limits.detection_ns);
}

}  // namespace parley::tests

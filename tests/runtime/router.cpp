#include <parley/runtime/wire/router.hpp>

#include <parley/runtime/invariant.hpp>

#include <parley/tests/runtime/script.hpp>
#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/memory_link.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace parley::runtime;
using parley::tests::memory_link_options;
using parley::tests::memory_world;

namespace {

struct note {
  static constexpr std::uint16_t message_type = 5;
  std::uint32_t number = 0;
  std::vector<std::uint8_t> padding;
  PARLEY_FIELDS(number, padding)
};

constexpr std::uint64_t desk = 40;

std::uint64_t add_up(void* context, std::span<const std::byte> header, std::span<const std::byte> body) noexcept {
  std::uint64_t sum = *static_cast<std::uint64_t*>(context);
  for (const auto part : {header, body}) {
    for (const std::byte b : part) sum = sum * 31 + static_cast<std::uint64_t>(b);
  }
  return sum;
}

/// Two ranks with a router each; keeps the notes that rank 1 receives.
struct mail_pair {
  explicit mail_pair(router::options o = {.window = 8})
      : world(play.clock, 2, lossy()), first(play.clock, world[0], o) {
    second.emplace(play.clock, world[1], o);
    second->bind<note>(desk, [this](envelope from, note&& n) {
      if (closed) return errc::full;
      CHECK(from.source == 0);
      CHECK(from.generation == 9);
      taken.push_back(n.number);
      return errc::none;
    });
  }
  memory_link_options lossy() {
    memory_link_options o;
    o.lose = [this](rank_id from, rank_id, link::channel) {
      if (lose == nullptr) return false;
      return lose(from);
    };
    return o;
  }
  errc send(std::uint32_t number, std::size_t padding = 0) {
    note n;
    n.number = number;
    n.padding.resize(padding);
    return first.send(1, desk, 9, n);
  }
  /// Sends `count` notes and retries each every `pause` ns, until there is room. Returns how many were accepted.
  std::uint32_t send_all(std::uint32_t count, time_ns pause = 5_ms, int tries = 50) {
    for (std::uint32_t i = 0; i < count; ++i) {
      errc sent = send(i);
      for (int t = 0; sent == errc::full && t < tries; ++t) {
        pass(pause);
        sent = send(i);
      }
      if (sent != errc::none) return i;
    }
    pass(1_ms);
    return count;
  }
  void pass(time_ns span) { play.until(play.clock.deadline_in(span)); }
  /// Delivers a frame as if rank 0 had sent it.
  void inject(frame_header h, std::vector<std::byte> body = {}) {
    h.destination = 1;
    h.body_bytes = static_cast<std::uint32_t>(body.size());
    inject_bytes(encode_frame(h, body, {}), body);
  }
  void inject_bytes(std::span<const std::byte> header, std::span<const std::byte> body = {}) {
    static_cast<void>(world[0].send(1, link::channel::control, header, body, nullptr));
    pass(1_ms);
  }
  static std::vector<std::byte> body_of(std::uint32_t number) {
    note n;
    n.number = number;
    std::vector<std::byte> bytes;
    encode(n, bytes);
    return bytes;
  }
  static frame_header header_of(std::uint64_t sequence) {
    frame_header h;
    h.type = note::message_type;
    h.actor = desk;
    h.generation = 9;
    h.sequence = sequence;
    return h;
  }

  script play;
  std::function<bool(rank_id from)> lose;
  memory_world world;
  router first;
  std::optional<router> second;
  std::vector<std::uint32_t> taken;
  bool closed = false;
};

std::vector<std::uint32_t> up_to(std::uint32_t count) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

}  // namespace

TEST_CASE("messages arrive once and in order, and a sender that keeps pace never meets a full window") {
  mail_pair m;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    REQUIRE(m.send(i) == errc::none);
    m.pass(10'000);
  }
  CHECK(m.taken == up_to(1000));
  CHECK(m.first.statistics().sent == 1000);
  CHECK(m.second->statistics().received == 1000);
  CHECK(m.second->statistics().credits_sent == 250);
  CHECK(m.first.statistics().questions_sent == 0);
}

TEST_CASE("a send beyond the window returns full, and succeeds once the peer has accepted") {
  mail_pair m;
  for (std::uint32_t i = 0; i < 8; ++i) CHECK(m.send(i) == errc::none);
  CHECK(m.send(8) == errc::full);
  m.pass(1_ms);
  CHECK(m.send(8) == errc::none);
  m.pass(1_ms);
  CHECK(m.taken == up_to(9));
}

TEST_CASE("a handler without room gets its messages later and in order, and its sender is held back meanwhile") {
  mail_pair m;
  m.closed = true;
  std::uint32_t sent = 0;
  for (; sent < 100 && m.send(sent) == errc::none; ++sent) m.pass(1_ms);
  CHECK(sent == 8);
  m.pass(1_s);
  CHECK(m.send(sent) == errc::full);
  m.closed = false;
  m.pass(1_ms);
  CHECK(m.taken == up_to(8));
  CHECK(m.send(8) == errc::none);
}

TEST_CASE("a full window recovers although the frames that would reopen it are lost") {
  mail_pair m;
  int lost = 0;
  m.lose = [&](rank_id from) { return from == 1 && ++lost <= 5; };
  CHECK(m.send_all(100) == 100);
  CHECK(lost > 5);
  CHECK(m.taken == up_to(100));
  CHECK(m.first.statistics().questions_sent > 0);
}

TEST_CASE("a window recovers when every frame in it is lost, and later messages arrive") {
  mail_pair m;
  int lost = 0;
  m.lose = [&](rank_id from) { return from == 0 && ++lost <= 11; };  // loses the window of 8 and three questions
  CHECK(m.send_all(20) == 20);
  std::vector<std::uint32_t> rest = up_to(20);
  rest.erase(rest.begin(), rest.begin() + 8);
  CHECK(m.taken == rest);
}

TEST_CASE("a sender that finds a window full of lost frames asks at once, so that a later try finds room") {
  mail_pair m;
  m.lose = [lost = 0](rank_id from) mutable { return from == 0 && ++lost <= 8; };
  for (std::uint32_t i = 0; i < 8; ++i) CHECK(m.send(i) == errc::none);
  CHECK(m.send(8) == errc::full);
  CHECK(m.first.statistics().questions_sent == 1);
  m.pass(32_ms);
  CHECK(m.send(9) == errc::none);
  m.pass(1_ms);
  CHECK(m.taken == std::vector<std::uint32_t>{9});
}

TEST_CASE("random loss in both directions never leaves a window full and never repeats a message") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    random_stream dice(seed, 3);
    mail_pair m;
    const std::uint64_t percent = dice.below(70);
    m.lose = [&](rank_id) { return dice.below(100) < percent; };
    REQUIRE(m.send_all(200, 20_ms, 500) == 200);
    CHECK(std::is_sorted(m.taken.begin(), m.taken.end()));
    CHECK(std::adjacent_find(m.taken.begin(), m.taken.end()) == m.taken.end());
  }
}

TEST_CASE("questions are sent after growing pauses, not at every try") {
  mail_pair m;
  m.lose = [](rank_id from) { return from == 1; };
  for (std::uint32_t i = 0; i < 8; ++i) CHECK(m.send(i) == errc::none);
  for (int i = 0; i < 10'000; ++i) {
    CHECK(m.send(8) == errc::full);
    m.pass(100'000);
  }
  CHECK(m.first.statistics().questions_sent >= 10);
  CHECK(m.first.statistics().questions_sent <= 20);  // in 1 s
}

TEST_CASE("a question does not make the peer accept messages that its actor holds back") {
  mail_pair m;
  m.closed = true;
  CHECK(m.send_all(20, 5_ms, 20) == 8);
  CHECK(m.first.statistics().questions_sent > 2);
  m.closed = false;
  CHECK(m.send_all(1) == 1);
  CHECK(m.taken.size() == 9);
}

TEST_CASE("each sequence number is accepted once, whatever the order of frames within 64 of each other") {
  mail_pair m(router::options{.window = 64});
  for (const std::uint32_t s : {3U, 1U, 2U, 3U, 1U, 66U, 4U, 2U, 65U, 66U, 4U}) m.inject(m.header_of(s), m.body_of(s));
  CHECK(m.taken == std::vector<std::uint32_t>{3, 1, 2, 66, 4, 65});
  CHECK(m.second->statistics().repeated == 5);
  m.inject(m.header_of(130), m.body_of(130));
  // 65 behind the newest: outside the memory of received numbers, so it counts as a repetition
  m.inject(m.header_of(65), m.body_of(65));
  m.inject(m.header_of(67), m.body_of(67));
  CHECK(m.taken.back() == 67);
  CHECK(m.taken.size() == 8);
  m.inject(m.header_of(0), m.body_of(0));
  CHECK(m.taken.size() == 8);
}

TEST_CASE("a peer that sends beyond its window is blamed, and no more than one window of its frames is kept") {
  mail_pair m;
  m.closed = true;
  std::vector<std::string> blamed;
  breach_watch watch([&](const breach& b) { blamed.push_back(std::string(b.name) + std::to_string(*b.culprit)); });
  for (std::uint32_t s = 1; s <= 1'000; ++s) m.inject(m.header_of(s), m.body_of(s));
  CHECK(m.second->statistics().received == 8);
  CHECK(m.second->statistics().beyond_window == 992);
  CHECK(blamed == std::vector<std::string>(992, "window0"));
  frame_header question = m.header_of(10);  // one behind the first frame for which it had no room
  question.type = 0;
  m.inject(question);
  CHECK(m.second->statistics().beyond_window == 993);
  m.closed = false;
  m.pass(10_ms);
  for (std::uint32_t s = 9; s <= 16; ++s) m.inject(m.header_of(s), m.body_of(s));
  CHECK(m.taken == std::vector<std::uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  CHECK(m.second->statistics().beyond_window == 993);
  // The window also limits bodies that are yet to be fetched; their frames cannot be verified before the fetch.
  const std::vector<std::byte> large(100'000);
  std::vector<parley::tests::awaited> sent(100);
  for (auto& done : sent) {
    frame_header h = m.header_of(17);
    h.destination = 1;
    CHECK(m.world[0].send(1, link::channel::control, encode_frame(h, large, {}), large, &done) == errc::pending);
  }
  m.pass(10_ms);
  CHECK(m.second->statistics().beyond_window == 993 + 92);
  for (const auto& done : sent) CHECK(done.calls == 1);
}

TEST_CASE("a peer that claims to have accepted unsent messages closes no window") {
  mail_pair m;
  CHECK(m.send(0) == errc::none);
  m.pass(1_ms);
  for (const std::uint32_t claim : {2U, 7U, 9U, 0x80000000U, 0xffffffffU}) {
    frame_header h;
    h.source = 1;
    h.destination = 0;
    h.accepted = claim;
    const frame_bytes bytes = encode_frame(h, {}, {});
    static_cast<void>(m.world[1].send(0, link::channel::control, bytes, {}, nullptr));
    m.pass(1_ms);
  }
  CHECK(m.send_all(50) == 50);
}

TEST_CASE("frames of another job, version, rank or length, and garbage, are counted and dropped") {
  mail_pair m;
  const auto spoilt = [&](auto&& spoil) {
    frame_header h = m.header_of(1);
    h.destination = 1;
    h.body_bytes = static_cast<std::uint32_t>(m.body_of(1).size());
    spoil(h);
    m.inject_bytes(encode_frame(h, m.body_of(1), {}), m.body_of(1));
  };
  spoilt([](frame_header& h) { h.magic = 1; });
  spoilt([](frame_header& h) { ++h.version; });
  spoilt([](frame_header& h) { h.session = 3; });
  spoilt([](frame_header& h) { h.destination = 0; });
  spoilt([](frame_header& h) { h.source = 2; });
  spoilt([](frame_header& h) { h.source = 0xffffffff; });
  spoilt([](frame_header& h) { --h.body_bytes; });
  m.inject_bytes({});
  m.inject_bytes(std::vector<std::byte>(63));
  CHECK(m.second->statistics().malformed == 8);
  CHECK(m.second->statistics().foreign == 1);
  m.inject(m.header_of(1), std::vector<std::byte>(3));  // a valid frame with an invalid body
  CHECK(m.second->statistics().malformed == 9);
  m.inject(m.header_of(2), m.body_of(2));
  CHECK(m.taken == std::vector<std::uint32_t>{2});
}

TEST_CASE("a late frame of a replaced process changes nothing for its successor") {
  mail_pair m;
  constexpr std::uint64_t old_process = 11;
  constexpr std::uint64_t new_process = 12;
  const auto says = [&](std::uint64_t process, std::uint64_t sequence, std::uint32_t number, std::uint32_t accepted) {
    frame_header h = m.header_of(sequence);
    h.session = session_of(0, process, 0);
    h.accepted = accepted;
    m.inject(h, m.body_of(number));
  };
  const auto foreign = [&] { return m.second->statistics().foreign; };
  m.second->forget(0, old_process);
  for (std::uint64_t s = 1; s <= 200; ++s) says(old_process, s, 1, 0);
  CHECK(m.taken.size() == 200);

  m.taken.clear();
  // rank 1 does not know of the new process yet; the frame will be sent again
  says(new_process, 1, 2, 0);
  CHECK(foreign() == 1);
  m.second->forget(0, new_process);
  note n;
  for (int i = 0; i < 8; ++i) CHECK(m.second->send(0, desk, 9, n) == errc::none);
  m.pass(1_ms);
  const std::uint64_t before = foreign();
  // if accepted, it would open the window for frames that the new process has not taken
  says(old_process, 201, 3, 8);
  CHECK(foreign() == before + 1);
  says(new_process, 1, 4, 0);
  CHECK(m.taken == std::vector<std::uint32_t>{4});
  frame_header for_another = m.header_of(2);  // for the process that was in our place before
  for_another.session = session_of(0, new_process, 5);
  m.inject(for_another, m.body_of(6));
  CHECK(foreign() == before + 2);
  CHECK(m.taken == std::vector<std::uint32_t>{4});
  CHECK(m.second->statistics().repeated == 0);
  CHECK(m.second->send(0, desk, 9, n) == errc::full);
}

TEST_CASE("interleaved frames of several peers are told apart, by each peer's own numbers and process") {
  script play;
  memory_world world(play.clock, 4, {});
  const incarnations known(std::vector<std::uint64_t>{5, 6, 7, 8});
  std::vector<std::unique_ptr<router>> mail;
  for (rank_id r = 0; r < 4; ++r)
    mail.push_back(std::make_unique<router>(play.clock, world[r], router::options{.job = 1}, known));
  std::vector<rank_id> from;
  mail[0]->bind<note>(desk, [&](envelope e, note&&) {
    from.push_back(e.source);
    return errc::none;
  });
  for (int round = 0; round < 3; ++round) {
    for (rank_id r = 1; r < 4; ++r) {
      CHECK(mail[r]->send(0, desk, 9, note{}) == errc::none);
      CHECK(mail[0]->send(r, desk, 9, note{}) == errc::none);
      play.until(play.clock.deadline_in(1_ms));
    }
  }
  CHECK(from == std::vector<rank_id>{1, 2, 3, 1, 2, 3, 1, 2, 3});
  CHECK(mail[0]->statistics().foreign + mail[0]->statistics().repeated == 0);
  for (rank_id r = 1; r < 4; ++r) {
    CHECK(mail[r]->statistics().received == 3);
    CHECK(mail[0]->sent_to(r) == 3);
    CHECK(mail[r]->sent_to(0) == 3);
    CHECK(mail[r]->sent_to(r % 3 + 1) == 0);
  }
}

TEST_CASE("a router survives random bytes as frames and counts most of them as malformed") {
  mail_pair m;
  random_stream dice(5, 1);
  for (int i = 0; i < 2000; ++i) {
    frame_header h = m.header_of(1);
    h.destination = 1;
    frame_bytes bytes = encode_frame(h, {}, {});
    for (std::uint64_t flips = dice.below(6); flips != 0; --flips)
      bytes[dice.below(bytes.size())] = static_cast<std::byte>(dice.below(256));
    std::vector<std::byte> body(dice.below(20));
    for (std::byte& b : body) b = static_cast<std::byte>(dice.below(256));
    m.inject_bytes(std::span(bytes).first(dice.below(4) == 0 ? dice.below(64) : 64), body);
  }
  const auto seen = m.second->statistics();
  CHECK(seen.malformed > 1000);
  CHECK(m.first.statistics().received == 0);
}

TEST_CASE("with a seal a router accepts only frames made with the key") {
  std::uint64_t key = 77;
  mail_pair m(router::options{.job = 0, .seal = {add_up, &key}, .window = 8});
  CHECK(m.send(1) == errc::none);
  m.pass(1_ms);
  m.inject(m.header_of(2), m.body_of(2));
  CHECK(m.taken == std::vector<std::uint32_t>{1});
  CHECK(m.second->statistics().unauthenticated == 1);
}

TEST_CASE("messages for an unknown actor are counted, and an actor bound later gets later messages") {
  mail_pair m;
  note n;
  CHECK(m.first.send(1, desk + 4, 9, n) == errc::none);
  m.pass(1_ms);
  CHECK(m.second->statistics().unclaimed == 1);
  bool got = false;
  m.second->bind<note>(desk + 4, [&](envelope, note&&) {
    got = true;
    return errc::none;
  });
  CHECK(m.first.send(1, desk + 4, 9, n) == errc::none);
  m.pass(1_ms);
  CHECK(got);
  m.second->unbind(desk + 4);
  CHECK(m.first.send(1, desk + 4, 9, n) == errc::none);
  m.pass(1_ms);
  CHECK(m.second->statistics().unclaimed == 2);
}

TEST_CASE(
    "a message to the sender's own rank arrives on a later turn, and is held back while the handler has no room") {
  mail_pair m;
  std::vector<std::uint32_t> got;
  bool room = false;
  m.first.bind<note>(desk, [&](envelope from, note&& n) {
    CHECK(from.source == 0);
    if (!room) return errc::full;
    got.push_back(n.number);
    return errc::none;
  });
  note n;
  n.number = 3;
  CHECK(m.first.send(0, desk, 9, n) == errc::none);
  CHECK(got.empty());
  m.pass(1_ms);
  CHECK(got.empty());
  room = true;
  m.pass(1_ms);
  CHECK(got == std::vector<std::uint32_t>{3});
  CHECK(m.first.statistics().sent == 0);
}

TEST_CASE(
    "a body too large for its header's frame is fetched, and the sender refuses more than 1 MiB or an unknown rank") {
  mail_pair m;
  CHECK(m.send(1, 500'000) == errc::none);
  m.pass(1_ms);
  CHECK(m.taken == std::vector<std::uint32_t>{1});
  CHECK(m.send(2, (1U << 20U) + 1) == errc::bad_argument);
  CHECK(m.first.send(2, desk, 9, note{}) == errc::bad_argument);  // there is no such rank
}

TEST_CASE("a router may be destroyed while frames for it are in flight") {
  mail_pair m;
  CHECK(m.send(1, 500'000) == errc::none);
  CHECK(m.send(2) == errc::none);
  m.second.reset();
  m.pass(10_ms);
  CHECK(m.taken.empty());
}

#include <parley/tests/support/edges.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using parley::tests::memory_world;

namespace {

struct seen_parts final : data_sink {
  void on_data(const stamp& s, arrival&& message) noexcept override {
    offsets.push_back(s.offset);
    bytes += message.length();
  }
  std::vector<std::uint64_t> offsets;
  std::uint64_t bytes = 0;
};

struct hub_fixture {
  void send(std::uint64_t op, std::uint64_t offset, std::size_t size = 8, std::uint64_t generation = 0) {
    stamp s;
    s.op = op;
    s.generation = generation;
    s.total_bytes = 1 << 20;
    s.offset = offset;
    const std::vector<std::byte> part(size);
    static_cast<void>(links[0].send(1, link::channel::data, bytes_of(s), part, nullptr));
  }
  void drain() {
    while (clock.wait()) clock.turn();
  }
  virtual_time clock;
  memory_world links{clock, 2};
  data_hub hub{links[1]};
};

}  // namespace

TEST_CASE_FIXTURE(hub_fixture, "data that arrives before its op is declared waits for the declaration, in order") {
  for (std::uint64_t i = 0; i < 5; ++i) send(4, i * 8);
  send(8, 0);
  drain();
  CHECK(hub.statistics().early == 6);
  seen_parts sink;
  hub.bind(4, sink);
  CHECK(sink.offsets == std::vector<std::uint64_t>{0, 8, 16, 24, 32});
  send(4, 40);
  drain();
  CHECK(sink.offsets.size() == 6);
  CHECK(hub.statistics().early == 6);
  hub.unbind(4);
}

TEST_CASE_FIXTURE(hub_fixture, "5,000 parts for an op that is not declared yet wait for it") {
  for (std::uint64_t i = 0; i < 5000; ++i) send(4, i);
  drain();
  seen_parts sink;
  hub.bind(4, sink);
  CHECK(sink.offsets.size() == 5000);
  CHECK(hub.statistics().refused == 0);
  CHECK_FALSE(hub.has_lost(4, 0));
  hub.unbind(4);
}

TEST_CASE_FIXTURE(
    hub_fixture,
    "all early data of an op that exceeds its limit is dropped, its sender is notified, and other ops get the room") {
  std::vector<stamp> told;
  hub.keep_up_to(100 * (sizeof(arrival) + 8), [&](const stamp& s) { told.push_back(s); });
  for (std::uint64_t i = 0; i < 100; ++i) send(4, i);
  drain();
  CHECK(hub.statistics().early == 100);
  CHECK(told.empty());
  for (std::uint64_t i = 100; i < 300; ++i) send(4, i);
  drain();
  CHECK(hub.statistics().refused == 200);
  // at the first refusal and at intervals after it, because a message to the sender may be lost
  REQUIRE(told.size() == 4);
  CHECK(told.front().op == 4);
  CHECK(told.front().offset == 100);
  CHECK(hub.has_lost(4, 0));
  CHECK_FALSE(hub.has_lost(4, 1));  // a new generation starts with nothing lost
  CHECK_FALSE(hub.has_lost(8, 0));
  for (std::uint64_t i = 0; i < 100; ++i) send(8, i);
  drain();
  seen_parts lost;
  seen_parts kept;
  hub.bind(4, lost);
  hub.bind(8, kept);
  CHECK(lost.offsets.empty());
  CHECK(kept.offsets.size() == 100);
  send(12, 0);  // there is room again
  drain();
  CHECK(hub.statistics().early == 201);
  hub.unbind(4);
  hub.unbind(8);
}

TEST_CASE_FIXTURE(hub_fixture,
                  "parts of one generation that are refused do not drop the waiting parts of another generation") {
  hub.keep_up_to(10 * (sizeof(arrival) + 8), nullptr);
  for (std::uint64_t i = 0; i < 5; ++i) send(4, i, 8, 1);
  for (std::uint64_t i = 0; i < 6; ++i) send(4, i, 8, 2);
  drain();
  CHECK(hub.has_lost(4, 2));
  seen_parts sink;
  hub.bind(4, sink);
  CHECK(sink.offsets == std::vector<std::uint64_t>{0, 1, 2, 3, 4});
  hub.unbind(4);
}

TEST_CASE_FIXTURE(hub_fixture, "a message whose header is no stamp is counted as malformed and dropped") {
  const std::vector<std::byte> garbage(63, std::byte{255});
  static_cast<void>(links[0].send(1, link::channel::data, garbage, {}, nullptr));
  static_cast<void>(links[0].send(1, link::channel::data, std::vector<std::byte>(64, std::byte{255}), {}, nullptr));
  drain();
  CHECK(hub.statistics().malformed == 2);
}

TEST_CASE_FIXTURE(hub_fixture,
                  "the 101st warning is replaced by a note that there are more, and no later warning is kept") {
  tests::node rank(clock, links[0]);
  std::vector<std::string> kept;
  rank.shared.warnings = &kept;
  for (int i = 0; i < 150; ++i) warn(rank.shared, "warning " + std::to_string(i));
  REQUIRE(kept.size() == most_warnings + 1);
  CHECK(kept[most_warnings - 1] == "warning 99");
  CHECK(kept.back().find("more than 100 warnings") != std::string::npos);
}

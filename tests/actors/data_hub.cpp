#include "../support/edges.hpp"

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
  void send(std::uint64_t op, std::uint64_t offset, std::size_t size = 8) {
    stamp s;
    s.op = op;
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

TEST_CASE_FIXTURE(hub_fixture, "data that comes before its op is declared waits for it, in order") {
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

TEST_CASE_FIXTURE(hub_fixture, "what waits for ops that nobody declares is bounded") {
  for (std::uint64_t i = 0; i < 5000; ++i) send(4, i);
  drain();
  CHECK(hub.statistics().early == 4096);
  CHECK(hub.statistics().refused == 5000 - 4096);
  seen_parts sink;
  hub.bind(4, sink);
  CHECK(sink.offsets.size() == 4096);
  send(8, 0);  // there is room again
  drain();
  CHECK(hub.statistics().early == 4097);
  hub.unbind(4);
}

TEST_CASE_FIXTURE(hub_fixture, "a header that is no stamp is counted and dropped") {
  const std::vector<std::byte> garbage(63, std::byte{255});
  static_cast<void>(links[0].send(1, link::channel::data, garbage, {}, nullptr));
  static_cast<void>(links[0].send(1, link::channel::data, std::vector<std::byte>(64, std::byte{255}), {}, nullptr));
  drain();
  CHECK(hub.statistics().malformed == 2);
}

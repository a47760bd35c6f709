#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::tests;

namespace {

constexpr time_ns second = 1'000'000'000;

const std::vector<ops::config_ptr> candidates{configs::direct(), configs::chunked(64 * 1024, 1),
                                              configs::chunked(256 * 1024, 4)};
constexpr std::array<std::size_t, 3> sizes{4 << 20, 2 << 20, 5000};

runtime::task<> rest(runtime::executor& ex, time_ns span) {
  auto woken = co_await runtime::sleep_until(ex.deadline_in(span));
  static_cast<void>(woken);
}

// The receiver is late by up to 3 ms, and the sender computes for 5 ms. The rounds then lie seconds apart, so that clock drift matters.
runtime::task<> feed(world& w, ops::transfer out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto data = pattern(sizes[i % sizes.size()], i);
    co_await out.send(data, {.to = 1});
    co_await rest(w.clock, 5'000'000);
  }
}
runtime::task<> drain(world& w, ops::transfer in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::byte> buffer(sizes[i % sizes.size()]);
    co_await rest(w.clock, static_cast<time_ns>(i % 4) * 1'000'000);
    co_await in.receive(buffer, {.from = 0});
  }
}

struct agreed {
  explicit agreed(const machines& clocks, std::size_t count = 900)
      : w(2, {}, {.latency_ns = 2'000, .ns_per_byte = 0.1, .eager_bytes = 8192, .lose = {}, .delay = {}}, clocks) {
    transfer out(w[0], pair_of(candidates));
    transfer in(w[1], pair_of(candidates));
    runtime::scope both(w.clock);
    both.spawn(feed(w, out, count));
    both.spawn(drain(w, in, count));
    runtime::run_until(w.clock, [&] { return both.running() == 0; });
  }
  const actors::search& of(const std::string& key) { return *search_of(w, key); }
  world w;
};

const std::array<std::string, 3> keys{"4MiB", "2MiB", "8KiB"};

}  // namespace

TEST_CASE("clocks that are seconds apart and drift lead to the same decisions as one clock") {
  agreed one_clock({});
  for (const machines& clocks :
       {machines{{1, 2}, {{}, {.offset_ns = 7 * second, .drift_ppb = 50'000}}},
        machines{{1, 2}, {{.offset_ns = 90 * second, .drift_ppb = -50'000}, {.offset_ns = -3 * second}}},
        machines{{4, 4}, {}}}) {
    agreed apart(clocks);
    for (const std::string& key : keys) {
      CAPTURE(key);
      const actors::search& a = one_clock.of(key);
      const actors::search& b = apart.of(key);
      REQUIRE(a.where() == actors::search::stage::decided);
      REQUIRE(b.where() == actors::search::stage::decided);
      CHECK(a.chosen().config == b.chosen().config);
      const bool is_tried = key != "8KiB";  // all candidates send 8 KiB as one message
      CHECK((a.chosen().source == actors::decision_source::trials) == is_tried);
      for (std::size_t i = 0; is_tried && i < a.aggregates().size(); ++i) {
        CAPTURE(i);
        REQUIRE(a.aggregates()[i].measured());
        REQUIRE(b.aggregates()[i].measured());
        // The clocks also run at different rates: up to 50 ppm of the time itself.
        const double off = std::abs(a.aggregates()[i].time_ns - b.aggregates()[i].time_ns);
        CHECK(off <= b.aggregates()[i].clock_error_ns + 1e-4 * a.aggregates()[i].time_ns);
        CHECK(b.aggregates()[i].clock_error_ns < 0.05 * second / 1000);
        CHECK(a.aggregates()[i].clock_error_ns == 0);
        CHECK((b.aggregates()[i].clock_error_ns == 0) == (clocks.hosts == std::vector<std::uint64_t>{4, 4}));
      }
    }
    CHECK(join_flights(apart.w).mismatches == 0);
  }
}

TEST_CASE("a group whose clocks are seconds apart and drift decides as on one clock") {
  struct agreed_group : world {
    explicit agreed_group(const machines& clocks)
        : world(3, eager_trials(),
                {.latency_ns = 2'000, .ns_per_byte = 0.1, .eager_bytes = 8192, .lose = {}, .delay = {}}, clocks),
          groups(declare_all(*this, led_by(0, {configs::star(), configs::star(4096), configs::chain(16'384)}))) {
      CHECK(reduce_all(*this, groups, std::vector<std::size_t>(600, 25'000)).failed() == 0);
      wait_a_while(*this, second);
      CHECK(reduce_all(*this, groups, std::vector<std::size_t>(200, 25'000)).failed() == 0);
    }
    const actors::search& search() { return *groups[0].details()->assigned()->find(100'000); }
    std::vector<ops::collective> groups;
  };
  agreed_group one_clock({});
  const actors::search& a = one_clock.search();
  REQUIRE(a.where() == actors::search::stage::decided);
  CHECK(a.chosen().source == actors::decision_source::trials);
  for (const machines& clocks :
       {machines{{1, 2, 3}, {{}, {.offset_ns = 7 * second, .drift_ppb = 50'000}, {.offset_ns = -second}}},
        machines{{1, 2, 2}, {{.offset_ns = 90 * second}, {.offset_ns = 3 * second}, {.offset_ns = 3 * second}}}}) {
    agreed_group apart(clocks);
    const actors::search& b = apart.search();
    REQUIRE(b.where() == actors::search::stage::decided);
    CHECK(a.chosen().config == b.chosen().config);
    for (std::size_t i = 0; i < a.aggregates().size(); ++i) {
      CAPTURE(i);
      REQUIRE(a.aggregates()[i].measured());
      REQUIRE(b.aggregates()[i].measured());
      const double off = std::abs(a.aggregates()[i].time_ns - b.aggregates()[i].time_ns);
      CHECK(off <= b.aggregates()[i].clock_error_ns + 1e-4 * a.aggregates()[i].time_ns);
      CHECK(b.aggregates()[i].clock_error_ns > 0);
      CHECK(b.aggregates()[i].clock_error_ns < 0.05 * second / 1000);
    }
    CHECK(join_group_flights(apart).mismatches == 0);
  }
}

TEST_CASE("clock comparison adds no messages except at most two reports and acknowledgements per key") {
  agreed one_clock({});
  agreed apart({{1, 2}, {{}, {.offset_ns = 7 * second, .drift_ppb = 50'000}}});
  for (rank_id r = 0; r < 2; ++r) {
    const auto& one = one_clock.w[r].mail().sent_by_type();
    const auto& two = apart.w[r].mail().sent_by_type();
    for (std::size_t type = 0; type < one.size(); ++type) {
      CAPTURE(type);
      // A clock error may require a further round or two, each with a report and its acknowledgement.
      const bool of_rounds = type == actors::report::message_type || type == actors::ack::message_type;
      CHECK(two[type] >= one[type]);
      CHECK(two[type] <= one[type] + (of_rounds ? 2 * keys.size() : 0));
    }
  }
}

TEST_CASE(
    "ranks that take two different clocks for one still decide, and both ends run the same config for each call") {
  agreed mistaken({{}, {{}, {.offset_ns = 7 * second}}});
  for (const std::string& key : keys) CHECK(mistaken.of(key).where() == actors::search::stage::decided);
  CHECK(join_flights(mistaken.w).mismatches == 0);
}

TEST_CASE("a gain that is smaller than the possible clock error keeps the default") {
  // Two parts in flight together take 400 us, and the rendezvous of one takes 800 us. Control messages take 400 us as well,
  // so the ranks know each other's clocks no better than that.
  const auto decided = [](std::vector<std::uint64_t> hosts) {
    world w(2, {}, {.latency_ns = 400'000, .ns_per_byte = 0.01, .eager_bytes = 8192, .lose = {}, .delay = {}},
            {std::move(hosts), {{}, {.offset_ns = second}}});
    if (w[0].world_size() != 2) return std::string();
    const std::vector<ops::config_ptr> two{configs::direct(), configs::chunked(8192, 2)};
    const auto moved = move_each(w, two, two, std::vector<std::size_t>(300, 16384));
    CHECK(moved.failed() == 0);
    const actors::search& c = *search_of(w, "16KiB");
    REQUIRE(c.is_decided());
    CAPTURE(c.chosen().why);
    CHECK(c.aggregates()[1].measured());
    CHECK(c.aggregates()[1].clock_error_ns > 350'000);
    CHECK(c.aggregates()[1].time_ns < c.aggregates()[0].time_ns - 300'000);
    return c.chosen().config;
  };
  CHECK(decided({1, 2}) == "direct");
}

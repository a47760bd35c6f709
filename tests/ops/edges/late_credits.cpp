// A call whose decided config lacks its credit for a moment waits as long as that is cheaper than another config, and then runs the other.
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t large = 200'000;  // `direct` takes some 20 us, and a put some 10 us

/// A pair that has agreed on put, on a link where puts take a tenth of the time per byte.
struct agreed_on_put : world {
  agreed_on_put() : world(2, eager_to_try(), fast_one_sided()) {
    out = transfer(*ranks[0], pair_of({staged(), put()}));
    in = transfer(*ranks[1], pair_of({staged(), put()}));
    room.resize(large);
    data = pattern(large, 1);
    memory = in.registered(room);
    pass(*this, 1'000'000'000);
    for (int i = 0; i < 100; ++i) call(-20'000);
    pass(*this, 1'000'000'000);
    REQUIRE(search().is_decided());
    REQUIRE(search().chosen().config == "put");
  }
  static rank_settings eager_to_try() {
    rank_settings s;
    s.plan.budget_fraction = 1e9;
    return s;
  }
  static memory_link_options fast_one_sided() {
    memory_link_options o;
    o.one_sided_ns_per_byte = 0.01;
    return o;
  }
  /// A config that sends like `direct`, but 400 us later.
  static config_ptr staged() {
    class slow final : public paired_config {
     public:
      slow() : paired_config({.name = "staged", .wire_class = "staged"}, 0, needs::nothing) {}
      task<> send(part_sender& to, std::span<const std::byte> bytes) const override {
        scope& here = co_await this_scope;
        auto slept = co_await sleep_until(here.where().deadline_in(400'000));
        if (!slept) raise(slept.reason());
        co_await direct_->send(to, bytes);
      }
      task<> receive(part_receiver& from, std::span<std::byte> bytes) const override {
        co_await direct_->receive(from, bytes);
      }

     private:
      config_ptr direct_ = direct();
    };
    return std::make_shared<slow>();
  }
  static task<> send_one(agreed_on_put& w, time_ns at, result<>& how, time_ns timeout_ns) {
    auto slept = co_await sleep_until(at);
    static_cast<void>(slept);
    const time_ns began_ns = w.clock.now();
    auto ended = co_await attempt(w.out.send(w.data, {.to = 1, .timeout = std::chrono::nanoseconds(timeout_ns)}));
    w.took_ns = w.clock.now() - began_ns;
    how = std::move(ended);
  }
  static task<> receive_one(agreed_on_put& w, time_ns at, std::span<std::byte> into, result<>& how) {
    auto slept = co_await sleep_until(at);
    static_cast<void>(slept);
    auto ended = co_await attempt(w.in.receive(into, {.from = 0}));
    how = ended ? result<>{} : result<>{ended.reason()};
  }
  /// Sends one message, whose receive is posted `late_ns` after the send, or before the send if `late_ns` is negative.
  void call(time_ns late_ns, time_ns timeout_ns = 0) { call_into(room, late_ns, timeout_ns); }
  void call_into(std::span<std::byte> into, time_ns late_ns, time_ns timeout_ns = 0) {
    result<> sent, received;
    const time_ns start = clock.deadline_in(1'000'000);
    scope calls(clock);
    calls.spawn(send_one(*this, start, sent, timeout_ns));
    calls.spawn(receive_one(*this, start + late_ns, into, received));
    run_until(clock, [&] { return calls.running() == 0; });
    CHECK(sent);
    CHECK(received);
    CHECK(std::equal(data.begin(), data.end(), into.begin()));
    std::fill(into.begin(), into.end(), std::byte{0});
  }
  const actors::search& search() { return *search_of(*this, "256KiB"); }
  std::uint64_t late() { return search().ran_others(actors::unmet_need::credit_in_time); }
  std::uint64_t landed() { return links.puts().landed; }

  transfer out, in;
  std::vector<std::byte> room, data;
  actors::registered_memory memory;
  time_ns took_ns = 0;
};

}  // namespace

TEST_CASE("a decided put waits for a credit that is late by less than the other config would cost") {
  agreed_on_put w;
  const auto before = w.landed();
  for (const time_ns late_ns : {1'000, 30'000, 200'000, 30'000, 300'000}) {
    CAPTURE(late_ns);
    w.call(late_ns);
    CHECK(w.took_ns < late_ns + 100'000);
  }
  CHECK(w.landed() == before + 5);
  CHECK(w.late() == 0);
  CHECK(w.out.to(1).decision(large).ran_other.empty());
}

TEST_CASE(
    "a send without a credit in time runs another config than the decided put, and the sender's decision counts it") {
  agreed_on_put w;
  const auto before = w.landed();
  w.call(5'000'000);
  CHECK(w.landed() == before);
  CHECK(w.late() == 1);
  const decision d = w.out.to(1).decision(large);
  CHECK(d.config == "put");
  CHECK(d.calls >= 1);
  REQUIRE(d.ran_other.size() == 1);
  CHECK(d.ran_other.front().why == "no credit in time");
  CHECK(d.ran_other.front().calls == 1);
  CHECK(w.in.from(0).decision(large).ran_other.empty());  // only the leader, the sender, counts them
  const auto lines = closing_lines(w[0], 2);
  CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.starts_with("activations 0->1 ") && line.find(": 1 of ") != line.npos &&
           line.ends_with(" ran another config: 1 for no credit in time");
  }));
  w.call(10'000);  // the vain wait has halved the next one, which still exceeds 10 us
  CHECK(w.landed() == before + 1);
  CHECK(w.late() == 1);
}

TEST_CASE("sends whose receives never give a credit wait in total for no more than two affordable waits") {
  agreed_on_put w;
  std::vector<std::byte> other(large);  // not registered, so its receives give no credit
  const auto before = w.landed();
  constexpr int calls = 100;
  time_ns longest_ns = 0, all_ns = 0;
  for (int i = 0; i < calls; ++i) {
    w.call_into(other, -20'000);
    longest_ns = std::max(longest_ns, w.took_ns);
    all_ns += w.took_ns;
  }
  CHECK(w.landed() == before);
  CHECK(w.late() == calls);
  CHECK(longest_ns < 1'000'000);                  // a staged call, and one full wait
  CHECK(all_ns < calls * 450'000 + 2 * 400'000);  // vain waits halve, down to a 64th
  w.call(-20'000);
  w.call(50'000);
  CHECK(w.landed() >= before + 1);
}

TEST_CASE("a send whose credit never arrives runs the other config and ends within its time-out") {
  agreed_on_put w;
  std::vector<std::byte> other(large);
  w.call_into(other, -20'000, 1'000'000);
  CHECK(w.took_ns < 1'000'000);
  CHECK(w.late() == 1);
}

TEST_CASE("several sends of one tag wait for their credits at the same time, and all of them put") {
  agreed_on_put w;
  const auto before = w.landed();
  constexpr int several = 4;
  std::vector<std::vector<std::byte>> rooms(several, std::vector<std::byte>(large));
  std::vector<actors::registered_memory> handles;
  for (auto& r : rooms) handles.push_back(w.in.registered(r));
  std::array<result<>, several> sent, received;
  const time_ns start = w.clock.deadline_in(1'000'000);
  scope calls(w.clock);
  for (std::size_t i = 0; i < several; ++i) {
    calls.spawn(agreed_on_put::send_one(w, start, sent[i], 0));
    calls.spawn(agreed_on_put::receive_one(w, start + 50'000, rooms[i], received[i]));
  }
  run_until(w.clock, [&] { return calls.running() == 0; });
  for (std::size_t i = 0; i < several; ++i) CHECK((sent[i] && received[i] && rooms[i] == w.data));
  CHECK(w.landed() == before + several);
  CHECK(w.took_ns < 150'000);
  CHECK(w.late() == 0);
}

// put and get as configs among others: the ranks agree on them if buffers are registered, and do not run them if buffers are not.
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

enum class side : std::uint8_t { none, sender, receiver, both };

bool has(side s, side one) { return s == one || s == side::both; }

// Waits 20 us before each send, so that its receive has been posted and its credit has arrived, as in a program that posts receives ahead.
task<> send_paced(transfer t, std::vector<std::size_t> sizes, side registers, call_outcomes& all) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    auto data = pattern(sizes[i], i);
    actors::registered_memory memory;
    if (has(registers, side::sender)) memory = t.registered(data);
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(20'000));
    static_cast<void>(slept);
    auto outcome = co_await attempt(t.send(data, {.to = 1}));
    all.sent.push_back(std::move(outcome));
  }
}

// `send_one` and `receive_one` make one call each, and note how it ended.
task<> send_one(transfer t, std::span<const std::byte> data, result<>& outcome, time_ns timeout_ns = 0) {
  auto ended = co_await attempt(t.send(data, {.to = 1, .timeout = std::chrono::nanoseconds(timeout_ns)}));
  outcome = std::move(ended);
}
task<> receive_one(transfer t, std::span<std::byte> into, result<>& outcome, time_ns timeout_ns = 0) {
  auto ended = co_await attempt(t.receive(into, {.from = 0, .timeout = std::chrono::nanoseconds(timeout_ns)}));
  outcome = ended ? result<>{} : result<>{ended.reason()};
}

task<> receive_registered(transfer t, std::vector<std::size_t> sizes, std::size_t spare, side registers,
                          call_outcomes& all) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> buffer(sizes[i] + spare, std::byte{0xEE});
    actors::registered_memory memory;
    if (has(registers, side::receiver)) memory = t.registered(buffer);
    auto outcome = co_await attempt(t.receive(buffer, {.from = 0}));
    if (!outcome) {
      all.received.emplace_back(outcome.reason());
      continue;
    }
    const bool rest_untouched = std::all_of(buffer.begin() + static_cast<std::ptrdiff_t>(*outcome), buffer.end(),
                                            [](std::byte b) { return b == std::byte{0xEE}; });
    buffer.resize(*outcome);
    if (buffer != pattern(sizes[i], i) || !rest_untouched) ++all.wrong;
    all.received.emplace_back();
  }
}

call_outcomes move(world& w, const transfer& out, const transfer& in, const std::vector<std::size_t>& sizes,
                   side registers, std::size_t spare = 0) {
  call_outcomes all;
  const auto both = [](transfer o, transfer i, std::vector<std::size_t> s, std::size_t sp, side r,
                       call_outcomes& c) -> task<> {
    auto done = co_await when_all(send_paced(o, s, r, c), receive_registered(i, s, sp, r, c));
    static_cast<void>(done);
  };
  runtime::run(w.clock, both(out, in, sizes, spare, registers, all));
  return all;
}

rank_settings eager_to_try() {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  return s;
}
/// One-sided transfers are ten times as fast.
memory_link_options fast_one_sided() {
  memory_link_options o;
  o.one_sided_ns_per_byte = 0.01;
  return o;
}
constexpr std::size_t large = 200'000;
const std::vector<std::size_t> many(60, large);

struct one_sided_world : world {
  explicit one_sided_world(const std::vector<config_ptr>& configs, memory_link_options o = fast_one_sided())
      : world(2, eager_to_try(), std::move(o)) {
    out = transfer(*ranks[0], pair_of(configs));
    in = transfer(*ranks[1], pair_of(configs));
  }
  call_outcomes tune(side registers) {
    pass(*this, 1'000'000'000);  // the rehearsals are over
    auto all = move(*this, out, in, many, registers);
    pass(*this, 1'000'000'000);
    return all;
  }
  const actors::search& search() { return *search_of(*this, "256KiB"); }
  transfer out, in;
};

/// A put that takes `before_ns` longer at the sender, before the put, and `after_ns` longer at the receiver, after it.
class staged_put final : public paired_config {
 public:
  staged_put(const std::string& name, time_ns before_ns, time_ns after_ns)
      : paired_config({.name = name, .wire_class = "staged"}, 0, needs::credit), before_ns_(before_ns),
        after_ns_(after_ns) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    co_await take(before_ns_);
    co_await put_->send(out, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    co_await put_->receive(in, data);
    co_await take(after_ns_);
  }

 private:
  static task<> take(time_ns span) {
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(span));
    if (!slept) raise(slept.reason());
  }
  time_ns before_ns_, after_ns_;
  config_ptr put_ = put();
};

}  // namespace

TEST_CASE("a pair agrees on put if the receiver's buffer is registered, and put moves every size exactly") {
  one_sided_world w({direct(), put(), put(100'000, 3)});
  const auto tuned = w.tune(side::receiver);
  CHECK(tuned.failed() == 0);
  CHECK(tuned.wrong == 0);
  REQUIRE(w.search().is_decided());
  CHECK(w.search().chosen().config.starts_with("put"));
  CHECK(w.links.puts().landed > 10);
  std::vector<std::size_t> sizes{0, 1, 7, 129, 4095, 8193, large, 199'999, (std::size_t{64} << 20U) + 12'345};
  const auto all = move(w, w.out, w.in, sizes, side::receiver, 77);
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w.links.puts().outside == 0);
  const auto joined = join_flights(w);
  CHECK(joined.mismatches == 0);
  CHECK(joined.pairs > 60);
}

TEST_CASE("a pair agrees on get if the sender's buffer is registered, and get moves every size exactly") {
  one_sided_world w({direct(), get(), get(64_KiB, 2)});
  const auto tuned = w.tune(side::sender);
  CHECK(tuned.failed() == 0);
  CHECK(tuned.wrong == 0);
  REQUIRE(w.search().is_decided());
  CHECK(w.search().chosen().config.starts_with("get"));
  std::vector<std::size_t> sizes{0, 1, 7, 129, 4095, 8193, large, 199'999, (std::size_t{64} << 20U) + 12'345};
  const auto all = move(w, w.out, w.in, sizes, side::sender, 77);
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(join_flights(w).mismatches == 0);
}

TEST_CASE("a get reads a registered buffer, however many others were registered after it") {
  one_sided_world w({direct(), get()});
  CHECK(w.tune(side::sender).failed() == 0);
  REQUIRE(w.search().chosen().config == "get");
  auto first = pattern(large, 1);
  const auto registered = w.out.registered(first);
  std::vector<std::vector<std::byte>> others(2 * actors::most_regions, std::vector<std::byte>(64));
  std::vector<actors::registered_memory> handles;
  for (auto& other : others) handles.push_back(w.out.registered(other));
  pass(w, 1'000'000'000);
  const std::uint64_t got = get()->digest();
  std::vector<bool> was_got;
  for (int i = 0; i < 2; ++i) {
    std::vector<std::byte> buffer(large);
    result<> sent;
    result<> received;
    const auto both = [&]() -> task<> {
      auto done = co_await when_all(send_one(w.out, first, sent), receive_one(w.in, buffer, received));
      static_cast<void>(done);
    };
    runtime::run(w.clock, both());
    CHECK(sent);
    CHECK(received);
    CHECK(buffer == first);
    std::uint64_t ran = 0;
    for (const auto& r : w[1].flight().in_order()) ran = r.what == flight_event::received ? r.digest : ran;
    was_got.push_back(ran == got);
    pass(w, 1'000'000'000);
  }
  // The first call tells the receiver of the buffer again, and waits for the receiver's confirmation.
  CHECK(was_got == std::vector<bool>{true, true});
}

TEST_CASE("without a registered receive buffer the search decides for another config than put") {
  for (const side registers : {side::none, side::sender}) {
    one_sided_world w({direct(), put(), chunked(50'000, 4)});
    auto all = w.tune(registers);
    CHECK(all.failed() == 0);
    all = move(w, w.out, w.in, many, registers);
    all = move(w, w.out, w.in, many, registers);
    pass(w, 1'000'000'000);
    CHECK(all.failed() == 0);
    REQUIRE(w.search().is_decided());
    CHECK(w.search().chosen().config != "put");
    CHECK(w.links.puts().landed > 0);  // by the rehearsal of put
    CHECK(w.links.puts().landed < 3);
  }
}

TEST_CASE("after a decision for put, a receive into unregistered memory runs another config") {
  one_sided_world w({direct(), put()});
  CHECK(w.tune(side::both).failed() == 0);
  REQUIRE(w.search().chosen().config == "put");
  const auto before = w.links.puts().landed;
  const auto all = move(w, w.out, w.in, {large, large, large}, side::none);
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w.links.puts().landed == before);
}

TEST_CASE("put and get are no candidates on a link without one-sided transfers") {
  auto o = fast_one_sided();
  o.one_sided = memory_link_options::memory::none;
  one_sided_world w({direct(), put(), get()}, std::move(o));
  const auto all = w.tune(side::both);
  CHECK(all.failed() == 0);
  CHECK(w.search().chosen().config == "direct");
  CHECK(w[0].agreements()[0].assigned->candidates().size() == 1);
}

TEST_CASE("a rehearsal detects a fence that does nothing, so that put is no candidate") {
  auto o = fast_one_sided();
  o.fence = memory_link_options::fences::do_nothing;
  one_sided_world w({direct(), put()}, std::move(o));
  const auto all = w.tune(side::both);
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w[0].agreements()[0].assigned->candidates().size() == 1);
}

TEST_CASE("a receiver whose credit is delayed by six seconds loses no candidate in its rehearsals") {
  auto o = fast_one_sided();
  runtime::executor* clock = nullptr;
  o.delay = [&clock](rank_id from, rank_id, link::channel on) -> time_ns {
    constexpr time_ns joined_ns = 10'000;
    constexpr time_ns over_ns = 6'000'000'000;
    const bool held = clock != nullptr && from == 1 && on == link::channel::control && clock->now() > joined_ns;
    return held ? std::max<time_ns>(over_ns - clock->now(), 0) : 0;
  };
  one_sided_world w({direct(), put()}, std::move(o));
  clock = &w.clock;
  pass(w, 20'000'000'000);
  CHECK(w[0].agreements()[0].warm_errors->empty());
  CHECK(w[0].agreements()[0].assigned->candidates().size() == 2);
}

TEST_CASE("a pair agrees on put even if a busy receiver's credits are late for a while") {
  auto o = fast_one_sided();
  runtime::executor* clock = nullptr;
  time_ns busy_until = 0;
  o.delay = [&](rank_id from, rank_id, link::channel on) -> time_ns {
    return from == 1 && on == link::channel::control && clock->now() < busy_until ? 5'000'000 : 0;
  };
  one_sided_world w({direct(), put()}, std::move(o));
  clock = &w.clock;
  pass(w, 1'000'000'000);
  busy_until = clock->deadline_in(200'000'000);
  std::size_t sent = 0;
  for (; clock->now() < busy_until; sent += many.size())
    CHECK(move(w, w.out, w.in, many, side::receiver).failed() == 0);
  CHECK(sent > 64);
  CHECK(w.search().excluded().empty());
  for (int i = 0; i < 10 && !w.search().is_decided(); ++i) w.tune(side::receiver);
  CHECK(w.search().chosen().config == "put");
}

TEST_CASE(
    "the reason for excluding put names the missing part: registered memory, or receives posted before their sends") {
  struct {
    bool registers;
    const char* words;
  } const cases[] = {{false, "put: rank 1 has registered no memory"},
                     {true, "put: many messages were sent before a credit from rank 1 had arrived"}};
  for (const auto& c : cases) {
    CAPTURE(c.registers);
    one_sided_world w({direct(), put()});
    std::vector<std::byte> buffer(large);
    const auto memory = c.registers ? w.in.registered(buffer) : actors::registered_memory();
    pass(w, 1'000'000'000);
    const auto send = [](transfer t, std::span<const std::byte> d) -> task<> { co_await t.send(d, {.to = 1}); };
    const auto receive = [](transfer t, std::span<std::byte> d) -> task<> {
      const std::uint64_t got = co_await t.receive(d, {.from = 0});
      static_cast<void>(got);
    };
    const std::vector<std::byte> data(large);
    for (int i = 0; i < 300; ++i) {
      scope calls(w.clock);
      calls.spawn(send(w.out, data));
      pass(w, 10'000'000);  // the message arrives before its receive is posted
      calls.spawn(receive(w.in, buffer));
      run_until(w.clock, [&] { return calls.running() == 0; });
    }
    REQUIRE(w.search().is_decided());
    REQUIRE(w.search().excluded().size() == 1);
    const std::string& why = w.search().excluded().front().why;
    CHECK_MESSAGE(why.find(c.words) != std::string::npos, why);
  }
}

TEST_CASE("a fence that stops working after the decision for put shows as wrong data") {
  one_sided_world w({direct(), put()});
  CHECK(w.tune(side::both).failed() == 0);
  REQUIRE(w.search().chosen().config == "put");
  w.links.options().fence = memory_link_options::fences::do_nothing;
  CHECK(move(w, w.out, w.in, {large, large}, side::both).wrong == 2);
}

TEST_CASE("the fence of a put is requested together with the put, and ends one latency after the put has landed") {
  one_sided_world w({direct(), put()});
  CHECK(w.tune(side::both).failed() == 0);
  REQUIRE(w.search().chosen().config == "put");
  auto& link = w.links.options();
  link.landing_ns = 0;
  CHECK(move(w, w.out, w.in, {large}, side::both).failed() == 0);
  const auto flight = w[0].flight().in_order();
  const auto last =
      std::find_if(flight.rbegin(), flight.rend(), [](const auto& r) { return r.what == flight_event::sent; });
  REQUIRE(last != flight.rend());
  REQUIRE(last->digest == put()->digest());
  const time_ns the_put = link.latency_ns + static_cast<time_ns>(link.one_sided_ns_per_byte * double{large});
  CHECK(last->ended_ns - last->began_ns == the_put + link.latency_ns);  // only the answer's latency is added
}

TEST_CASE("a put that exceeds its call's time-out fails that call on both ranks, and the next call succeeds") {
  one_sided_world w({direct(), put()});
  CHECK(w.tune(side::both).failed() == 0);
  REQUIRE(w.search().chosen().config == "put");
  w.links.options().one_sided_ns_per_byte = 10;  // a put takes 2 ms
  std::vector<std::byte> data(large);
  std::vector<std::byte> buffer(large);
  const auto from = w.out.registered(data);
  const auto into = w.in.registered(buffer);
  scope calls(w.clock);
  result<> sent = errc::pending;
  result<> received = errc::pending;
  calls.spawn(receive_one(w.in, buffer, received));
  pass(w, 100'000);
  calls.spawn(send_one(w.out, data, sent, 1'000'000));
  pass(w, 10'000'000);
  CHECK(sent.code() == errc::timeout);
  CHECK(received.code() == errc::send_failed);
  CHECK(w.links.puts().in_the_air == 0);
  CHECK(move(w, w.out, w.in, {large}, side::both).failed() == 0);
}

TEST_CASE(
    "after a failed fence the sender gets peer_failed and the receiver gets fenced, and no memory stays exposed") {
  // The receiver hears of the failure at once. If that message is lost, the receiver hears of it when it asks why its message is late.
  for (const bool lost : {false, true}) {
    CAPTURE(lost);
    one_sided_world w({direct(), put()});
    auto other = pair_of({direct()});
    other.name = "gradients";
    transfer out_other(*w.ranks[0], other);
    static_cast<void>(transfer(*w.ranks[1], other));
    CHECK(w.tune(side::both).failed() == 0);
    w.links.options().fence = memory_link_options::fences::fail;
    std::vector<std::byte> buffer(large);
    std::vector<std::byte> data(large);
    const auto into = w.in.registered(buffer);
    scope calls(w.clock);
    result<> sent = errc::pending;
    result<> again = errc::pending;
    result<> elsewhere = errc::pending;
    result<> received = errc::pending;
    calls.spawn(receive_one(w.in, buffer, received, 10'000'000));
    pass(w, 1'000'000);
    if (lost)
      w.links.options().lose = [](rank_id from, rank_id, link::channel on) {
        return from == 0 && on == link::channel::control;
      };
    calls.spawn(send_one(w.out, data, sent));
    pass(w, 1'000'000);
    CHECK(is(sent, {.code = errc::peer_failed, .rank = 0, .peer = 1, .quotes = "the fence after a put to it failed"}));
    calls.spawn(send_one(w.out, data, again));
    calls.spawn(send_one(out_other, data, elsewhere));
    pass(w, 1'000'000);
    CHECK(again.code() == errc::peer_failed);
    CHECK(elsewhere.code() == errc::peer_failed);
    w.links.options().lose = nullptr;
    pass(w, 100'000'000);
    CHECK(is(received, {.code = errc::fenced,
                        .rank = 1,
                        .peer = 0,
                        .quotes = "rank 0 has ended this generation of the op: it considers this rank dead"}));
    CHECK(calls.running() == 0);
    CHECK(into.region()->where == actors::memory_region::state::withdrawn);
  }
}

TEST_CASE("a receive whose memory is unregistered before the put fails with config_failed, and nothing is written") {
  one_sided_world w({direct(), put()});
  CHECK(w.tune(side::both).failed() == 0);
  REQUIRE(w.search().chosen().config.starts_with("put"));
  std::vector<std::byte> buffer(large);
  const std::vector<std::byte> data = pattern(large, 1);
  auto into = w.in.registered(buffer);
  scope calls(w.clock);
  result<> sent = errc::pending;
  result<> received = errc::pending;
  calls.spawn(receive_one(w.in, buffer, received, 10'000'000));
  pass(w, 1'000'000);
  into = {};
  calls.spawn(send_one(w.out, data, sent));
  pass(w, 100'000'000);
  CHECK(received.code() == errc::config_failed);
  CHECK(calls.running() == 0);
  CHECK(buffer == std::vector<std::byte>(large));
}

TEST_CASE("a get without a receive times out, and a later receive gets send_failed") {
  one_sided_world w({direct(), get()});
  CHECK(w.tune(side::both).failed() == 0);
  REQUIRE(w.search().chosen().config == "get");
  std::vector<std::byte> data = pattern(large, 1);
  const auto from = w.out.registered(data);
  pass(w, 1'000'000);
  scope calls(w.clock);
  result<> sent = errc::pending;
  result<> received = errc::pending;
  calls.spawn(send_one(w.out, data, sent, 10'000'000));
  pass(w, 2'000'000'000);
  CHECK(sent.code() == errc::timeout);
  std::vector<std::byte> buffer(large);
  calls.spawn(receive_one(w.in, buffer, received));
  pass(w, 1'000'000);
  CHECK(received.code() == errc::send_failed);
}

TEST_CASE("puts and gets succeed although every fourth control message is lost") {
  auto o = fast_one_sided();
  std::uint64_t sent = 0;
  o.lose = [&sent](rank_id, rank_id, link::channel on) { return on == link::channel::control && ++sent % 4 == 0; };
  one_sided_world w({direct(), put(), get()}, std::move(o));
  pass(w, 20'000'000'000);
  const auto all = w.tune(side::both);
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w[0].agreements()[0].assigned->candidates().size() == 3);
  CHECK(join_flights(w).mismatches == 0);
}

TEST_CASE("named_config knows put and get with their parameters, and put cannot be the default") {
  CHECK(named_config("put").value()->id() == put()->id());
  CHECK(named_config("put(chunk_bytes=1MiB)").value()->id() == put(1_MiB)->id());
  CHECK(named_config("get(chunk_bytes=1MiB in_flight=2)").value()->id() == get(1_MiB, 2)->id());
  CHECK(put()->digest() != put(1_MiB)->digest());
  CHECK_FALSE(named_config("put(depth=2)"));
  world w(2);
  CHECK_THROWS_WITH_AS(transfer(w[0], pair_of({put(), direct()})), doctest::Contains("needs registered memory"),
                       failure);
}

namespace {
// Every third receive has too small a buffer.
task<> receive_some_too_small(transfer t, std::size_t calls, std::size_t& refused) {
  for (std::size_t i = 0; i < calls; ++i) {
    std::vector<std::byte> buffer(i % 3 == 1 ? large / 2 : large);
    const actors::registered_memory memory = t.registered(buffer);
    auto got = co_await attempt(t.receive(buffer, {.from = 0}));
    if (got.code() == errc::buffer_too_small) ++refused;
  }
}
}  // namespace

TEST_CASE("a search of put or get or chunked ends within 2 s although a third of the receives are too small") {
  for (const config_ptr& config : {chunked(50'000, 4), put(), get()}) {
    CAPTURE(config->id());
    one_sided_world w({direct(), config});
    pass(w, 1'000'000'000);
    constexpr std::size_t calls = 60;
    call_outcomes sent;
    std::size_t refused = 0;
    const auto both = [](transfer out, transfer in, call_outcomes& s, std::size_t& r) -> task<> {
      auto done = co_await when_all(send_paced(out, std::vector<std::size_t>(calls, large), side::both, s),
                                    receive_some_too_small(in, calls, r));
      static_cast<void>(done);
    };
    const time_ns began = w.clock.now();
    runtime::run(w.clock, both(w.out, w.in, sent, refused));
    pass(w, 1'000'000'000);
    CHECK(refused == calls / 3);
    CHECK(w.search().is_decided());
    CHECK(w.clock.now() - began < 2'000'000'000);
  }
}

TEST_CASE("a mixture of two configs that put gets its credits, and wins as the fastest candidate") {
  memory_link_options o = fast_one_sided();
  o.ns_per_byte = 50;  // 10 ms for each message
  world w(2, eager_to_try(), std::move(o));
  auto op = pair_of({direct(), std::make_shared<staged_put>("late", 3'000'000, 3'000'000),
                     std::make_shared<staged_put>("early", 1'000'000, 3'000'000),
                     std::make_shared<staged_put>("newest", 1'000'000, 500'000)});
  op.can_run = [](rank_id r) { return std::vector<bool>{true, true, true, r == 1}; };  // the sender lacks the last one
  const transfer out = transfer(w[0], op), in = transfer(w[1], op);
  pass(w, 1'000'000'000);
  for (int round = 0; round < 3; ++round) {
    const auto all = move(w, out, in, many, side::receiver);
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    pass(w, 1'000'000'000);
  }
  const auto& c = *search_of(w, "256KiB");
  CHECK(c.excluded().empty());
  REQUIRE(c.aggregates().size() == 5);
  for (std::size_t i = 0; i < 4; ++i) CHECK(c.aggregates()[4].time_ns < c.aggregates()[i].time_ns);
  CHECK(c.chosen().candidate == 4);
  CHECK(w[0].agreements().front().assigned->mixture_of(4) != 0);
}

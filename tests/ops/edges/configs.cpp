#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/warnings.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

/// A user's config, written as a class. It sends the second half of the payload before the first half.
class halves final : public paired_config {
 public:
  halves() : paired_config({.name = "halves", .wire_class = "halves"}) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    const std::size_t half = data.size() / 2;
    out.keep_in_flight(2);
    co_await out.send(half, data.subspan(half));
    if (half != 0) co_await out.send(0, data.first(half));
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    const std::size_t half = data.size() / 2;
    in.keep_in_flight(2);
    if (half != 0) co_await in.receive(0, data.first(half));
    co_await in.receive(half, data.subspan(half));
  }
};

/// Moves payloads of up to 1000 bytes whole, without a call of its functions. The functions move larger payloads, also in one part, and
/// record their sizes in `cut`.
class whole_while_small final : public paired_config {
 public:
  explicit whole_while_small(std::vector<std::size_t>& cut)
      : paired_config({.name = "whole_while_small", .wire_class = "whole"}, 1000), cut_(cut) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    cut_.push_back(data.size());
    co_await out.send(0, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    cut_.push_back(data.size());
    co_await in.receive(0, data);
  }

 private:
  std::vector<std::size_t>& cut_;
};

task<> send_whole_data(part_sender& out, std::span<const std::byte> data) { co_await out.send(0, data); }
task<> receive_whole_data(part_receiver& in, std::span<std::byte> data) { co_await in.receive(0, data); }
task<> send_first_half_only(part_sender& out, std::span<const std::byte> data) {
  co_await out.send(0, data.first(data.size() / 2));
}
task<> receive_and_write_beyond(part_receiver& in, std::span<std::byte> data) {
  co_await in.receive(0, data);
  data.data()[data.size()] = std::byte{1};
}
task<> receive_and_write_before(part_receiver& in, std::span<std::byte> data) {
  co_await in.receive(0, data);
  *(data.data() - 1) = std::byte{1};
}
task<> receive_thirds(part_receiver& in, std::span<std::byte> data) {
  const std::size_t third = data.size() / 3;
  co_await in.receive(0, data.first(third));
  co_await in.receive(third, data.subspan(third));
}
task<> receive_from_the_middle(part_receiver& in, std::span<std::byte> data) {
  co_await in.receive(data.size() / 2, data.subspan(data.size() / 2));
}
// Both sides move the later part first. If their shares differ, neither side moves the part that the other side waits for.
template <std::size_t Share>
task<> send_cut_in(part_sender& out, std::span<const std::byte> data) {
  const std::size_t middle = data.size() / Share;
  co_await out.send(middle, data.subspan(middle));
  co_await out.send(0, data.first(middle));
}
template <std::size_t Share>
task<> receive_cut_in(part_receiver& in, std::span<std::byte> data) {
  const std::size_t middle = data.size() / Share;
  co_await in.receive(middle, data.subspan(middle));
  co_await in.receive(0, data.first(middle));
}
task<> receive_nothing(part_receiver&, std::span<std::byte>) { co_return; }
task<> send_that_throws(part_sender&, std::span<const std::byte>) {
  throw std::runtime_error("the sender's card is on fire");
  co_return;
}
task<> send_on_faulty_device(part_sender&, std::span<const std::byte>) {
  raise({errc::device_failed, "the device is on fire"});
  co_return;
}
task<> receive_on_faulty_device(part_receiver&, std::span<std::byte>) {
  raise({errc::device_failed, "the device is on fire"});
  co_return;
}
task<> receive_that_throws(part_receiver&, std::span<std::byte>) {
  throw std::runtime_error("the receiver's card is on fire");
  co_return;
}
// Moves payloads of the rehearsal's size, and throws for all other sizes.
constexpr std::size_t rehearsed = 300'000;
task<> send_good_once(part_sender& out, std::span<const std::byte> data) {
  if (data.size() != rehearsed) throw std::runtime_error("only rehearsed");
  co_await out.send(0, data);
}
task<> receive_good_once(part_receiver& in, std::span<std::byte> data) {
  if (data.size() != rehearsed) throw std::runtime_error("only rehearsed");
  co_await in.receive(0, data);
}
// Throws once: when the user's invocations, without rehearsals, have counted `good_calls_left` down to 0.
int good_calls_left = 0;
task<> send_good_for_a_while(part_sender& out, std::span<const std::byte> data) {
  if (data.size() != rehearsed && --good_calls_left == 0) throw std::runtime_error("worn out");
  co_await out.send(0, data);
}
task<> send_beyond(part_sender& out, std::span<const std::byte> data) { co_await out.send(data.size(), data); }

config_ptr made(const char* name, send_function s, receive_function r) {
  return paired({.name = name, .wire_class = name}, s, r);
}

tuning::plan_options eager_plan() {
  tuning::plan_options plan;
  plan.budget_fraction = 1e9;
  return plan;
}
rank_settings eager() {
  rank_settings s;
  s.plan = eager_plan();
  return s;
}

}  // namespace

TEST_CASE("making a config without a function for a role fails and names the config and the role") {
  CHECK_THROWS_WITH_AS(made("lonely", nullptr, receive_whole_data),
                       doctest::Contains("config lonely has no implementation for role sender"), failure);
  CHECK_THROWS_WITH_AS(made("lonely", send_whole_data, nullptr), doctest::Contains("role receiver"), failure);
}

TEST_CASE("impossible configs are refused and named_config restores a config from its id") {
  CHECK_THROWS_AS(chunked(0), failure);
  CHECK_THROWS_AS(chunked(1, 0), failure);
  CHECK_THROWS_AS(by_piece(0), failure);
  CHECK(says(check_catalogue("rims", {by_piece(), direct()}),
             "its default, by_piece(in_flight=4), needs payloads in pieces"));
  CHECK_THROWS_AS(made("with space", send_whole_data, receive_whole_data), failure);
  CHECK(named_config("direct").value()->id() == "direct");
  CHECK(named_config("chunked(chunk_bytes=1MiB in_flight=4)").value()->digest() == chunked(1_MiB, 4)->digest());
  CHECK(named_config("chunked(chunk_bytes=262144)").value()->digest() == chunked(256_KiB)->digest());
  CHECK(named_config("nccl").value()->digest() == configs::nccl()->digest());
  CHECK(by_piece()->id() == "by_piece(in_flight=4)");
  for (const auto& config : {by_piece(), by_piece(9)})
    CHECK(named_config(config->id()).value()->digest() == config->digest());
  CHECK(named_config("by_piece").value()->digest() == by_piece(4)->digest());
  CHECK(put(0, 4, {.kernel_blocks = 16})->id() == "put(kernel_blocks=16)");
  CHECK(get(4_MiB, 8, {.kernel_blocks = 4, .streams = 2})->id() ==
        "get(chunk_bytes=4194304 in_flight=8 kernel_blocks=4 streams=2)");
  for (const auto& config : {put(0, 4, {.kernel_blocks = 16}), put(0, 4, {.streams = 3}), get(1_MiB, 2, {.streams = 1}),
                             get(1_MiB, 2, {.kernel_blocks = most_of_a_copy})})
    CHECK(named_config(config->id()).value()->digest() == config->digest());
  CHECK_THROWS_AS(put(0, 4, {.kernel_blocks = most_of_a_copy + 1}), failure);
  CHECK_THROWS_AS(get(0, 4, {.streams = most_of_a_copy + 1}), failure);
  for (const char* text :
       {"put(streams=0)", "put(kernel_blocks=1025)", "ucx(streams=2)", "chunked(chunk_bytes=1MiB streams=2)",
        "telepathy", "nccl(chunk_bytes=1MiB)", "chunked", "chunked(chunk_bytes=0)", "chunked(chunk_bytes=1MiB speed=2)",
        "by_piece(chunk_bytes=1MiB)", "by_piece(in_flight=0)", "direct(a=1)", "", "chunked("}) {
    const auto none = named_config(text);
    REQUIRE_FALSE(none);
    CHECK(none.code() == errc::bad_argument);
    CHECK(none.reason().what().find("known are direct, chunked") != std::string::npos);
    CHECK(none.reason().what().find("by_piece(in_flight=COUNT)") != std::string::npos);
  }
}

TEST_CASE("configs that set how a GPU copies are unavailable for payloads in host memory, with that reason") {
  world w(2, eager());
  const std::vector<config_ptr> configs{direct(), put(), put(0, 4, {.kernel_blocks = 16}), get(0, 4, {.streams = 1})};
  const auto all = move_each(w, configs, configs, std::vector<std::size_t>(100, 50'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  const std::string why = ": kernel_blocks and streams say how a GPU copies, but the payload lies in host memory";
  CHECK(w[0].participants().front()->unavailable ==
        std::vector<std::string>{"put(kernel_blocks=16)" + why, "get(streams=1)" + why});
}

TEST_CASE("messages that lie in one piece exclude by_piece with that reason, and the campaign decides without it") {
  world w(2, eager());
  const std::vector<config_ptr> configs{direct(), by_piece(), chunked(4096, 2)};
  const auto all = move_each(w, configs, configs, std::vector<std::size_t>(100, 50'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  const auto* search = search_of(w, "64KiB");
  REQUIRE(search != nullptr);
  CHECK(search->is_decided());
  REQUIRE(search->excluded().size() == 1);
  CHECK(search->excluded().front().why.find("messages lie in one piece") != std::string::npos);
}

TEST_CASE("a user's own config moves every size, as a class and as two functions") {
  const std::vector<std::size_t> sizes{0, 1, 2, 3, 1000, 8193, 100'000, 1 << 20};
  for (const auto& config :
       {config_ptr(std::make_shared<halves>()), made("plain", send_whole_data, receive_whole_data)}) {
    world w(2);
    const auto all = move_each(w, {config}, {config}, sizes, 10);
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
  }
}

TEST_CASE("payloads up to a config's limit are sent whole without calling its functions, on both sides") {
  std::vector<std::size_t> cut;
  world w(2);
  const auto config = std::make_shared<whole_while_small>(cut);
  const auto all = move_each(w, {config}, {config}, {1, 1000, 1001, 0, 8}, 10);
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  std::erase(cut, rehearsed);
  CHECK(std::ranges::equal(cut, std::vector<std::size_t>{1001, 1001}));
  CHECK(chunked(64)->goes_whole(64));
  CHECK_FALSE(chunked(64)->goes_whole(65));
}

TEST_CASE(
    "a receiver that cuts a payload differently from its sender fails with config_failed, and empty payloads arrive") {
  for (const receive_function bad : {receive_thirds, receive_from_the_middle, receive_nothing}) {
    world w(2);
    const auto mine = made("askew", send_whole_data, bad);
    const auto all = move_each(w, {mine}, {mine}, {100, 100'000, 0, 30'000});
    REQUIRE(all.received.size() == 4);
    for (const std::size_t i : {0, 1, 3}) {
      CHECK(is(all.received[i], {.code = errc::config_failed,
                                 .op = "activations 0->1",
                                 .rank = 1,
                                 .role = "receiver",
                                 .invocation = i,
                                 .config = "askew"}));
    }
    CHECK(all.received[2]);
    CHECK(all.sent.size() == 4);
  }
}

TEST_CASE("a sender function that sends half of the payload fails with config_failed and its receive fails") {
  world w(2);
  const auto mine = made("half", send_first_half_only, receive_whole_data);
  const auto all = move_each(w, {mine}, {mine}, {100, 0, 100'000});
  CHECK(is(all.sent[0], {.code = errc::config_failed, .config = "half", .done_bytes = 50, .whole_bytes = 100}));
  CHECK_FALSE(all.received[0]);
  CHECK(all.sent[1]);
  CHECK(all.received[1]);
  CHECK(all.sent[2].code() == errc::config_failed);
  CHECK_FALSE(all.received[2]);
}

TEST_CASE("a sender function that sends beyond the payload gets bad_argument and its receive gets config_failed") {
  world w(2);
  const auto mine = made("beyond", send_beyond, receive_whole_data);
  const auto all = move_each(w, {mine}, {mine}, {100});
  CHECK(all.sent[0].code() == errc::bad_argument);
  CHECK(all.received[0].code() == errc::config_failed);
}

TEST_CASE(
    "a default config that throws on one side fails that side's call with config_failed, and quotes the exception") {
  SUBCASE("at the sender") {
    world w(2);
    const auto mine = made("fire", send_that_throws, receive_whole_data);
    const auto all = move_each(w, {mine}, {mine}, {100, 200});
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(is(all.sent[i], {.code = errc::config_failed, .config = "fire", .quotes = "the sender's card is on fire"}));
      CHECK(all.received[i].code() == errc::config_failed);
    }
  }
  SUBCASE("at the receiver") {
    world w(2);
    const auto mine = made("fire", send_whole_data, receive_that_throws);
    const auto all = move_each(w, {mine}, {mine}, {100, 200'000});
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(is(all.received[i],
               {.code = errc::config_failed, .config = "fire", .quotes = "the receiver's card is on fire"}));
    }
  }
}

TEST_CASE("a device failure on one side is reported as device_failed and not as config_failed, on either side") {
  SUBCASE("at the sender") {
    world w(2);
    const auto mine = made("fire", send_on_faulty_device, receive_whole_data);
    const auto all = move_each(w, {mine}, {mine}, {100, 200'000});
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(is(all.sent[i], {.code = errc::device_failed, .config = "fire", .quotes = "the device is on fire"}));
      CHECK(is(all.received[i], {.code = errc::device_failed, .peer = 0, .config = "fire"}));
    }
  }
  SUBCASE("at the receiver, after which the send may still succeed") {
    world w(2);
    const auto mine = made("fire", send_whole_data, receive_on_faulty_device);
    const auto all = move_each(w, {mine}, {mine}, {200'000});
    CHECK(is(all.received[0], {.code = errc::device_failed, .config = "fire", .quotes = "the device is on fire"}));
    if (!all.sent[0]) CHECK(is(all.sent[0], {.code = errc::device_failed, .peer = 1, .config = "fire"}));
  }
}

TEST_CASE("a candidate whose rehearsal throws on one side is excluded, and the other candidates are tried") {
  for (const bool at_sender : {true, false}) {
    world w(2, eager());
    const auto bad = at_sender ? made("bad", send_that_throws, receive_whole_data)
                               : made("bad", send_whole_data, receive_that_throws);
    const std::vector configs{direct(), bad, chunked(64_KiB, 4)};
    const auto all = move_each(w, configs, configs, std::vector<std::size_t>(200, 200'000));
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    const auto* c = search_of(w, "256KiB");
    REQUIRE(c != nullptr);
    CHECK(c->is_decided());
    CHECK(c->trials() > 0);
    const auto agreed = w[0].agreements();
    CHECK(agreed[0].assigned->ids() == std::vector<std::string>{"direct", chunked(64_KiB, 4)->id()});
    REQUIRE(agreed[0].warm_errors->size() >= 1);
    CHECK(agreed[0].warm_errors->front().find(at_sender ? "rank 0: bad" : "rank 1: bad") != std::string::npos);
    CHECK(c->chosen().why.find("not tried, because their rehearsals failed: bad") != std::string::npos);
    CHECK(warned(w[at_sender ? 0 : 1], {"activations 0->1", "config bad", "its rehearsal failed"}));
    CHECK(join_flights(w).mismatches == 0);
  }
}

TEST_CASE("a rehearsal rejects a candidate that cuts payloads inconsistently or delivers wrong data") {
  world w(2, eager());
  const std::vector configs{direct(), made("askew", send_whole_data, receive_thirds),
                            made("lazy", send_whole_data, receive_nothing)};
  const auto all = move_each(w, configs, configs, std::vector<std::size_t>(50, 200'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w[0].agreements()[0].assigned->ids() == std::vector<std::string>{"direct"});
  CHECK(warned(w[1], {"config askew", "its sender and receiver halves do not match: the part at offset 0 has"}));
  CHECK(warned(w[1], {"config lazy", "the rehearsal brought wrong data at byte 0"}));
}

TEST_CASE("a rehearsal rejects a candidate that writes outside of its buffer, before the candidate gets a message") {
  world w(2, eager());
  const std::vector configs{direct(), made("greedy", send_whole_data, receive_and_write_beyond),
                            made("early", send_whole_data, receive_and_write_before)};
  const auto all = move_each(w, configs, configs, std::vector<std::size_t>(50, 200'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w[0].agreements()[0].assigned->ids() == std::vector<std::string>{"direct"});
  CHECK(warned(w[1], {"config greedy", "the rehearsal wrote beyond its buffer of "}));
  CHECK(warned(w[1], {"config early", ", 1 bytes ahead of it"}));
}

TEST_CASE("a default that fails its rehearsal is reported as one that runs all the same") {
  world w(2, eager());
  const std::vector configs{made("greedy", send_whole_data, receive_and_write_beyond), direct()};
  std::vector<std::byte> room(300'000);  // also holds what the default writes beyond each message
  const auto sends = [](transfer t) -> task<> {
    const std::vector<std::byte> data(1'000);
    for (int i = 0; i < 20; ++i) co_await t.send(data, {.to = 1});
  };
  const auto receives = [](transfer t, std::span<std::byte> into) -> task<> {
    for (int i = 0; i < 20; ++i) co_await t.receive(into.first(1'000), {.from = 0});
  };
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  scope all(w.clock);
  all.spawn(sends(out));
  all.spawn(receives(in, room));
  run_until(w.clock, [&] { return all.running() == 0; });
  pass(w, 20'000'000'000);
  CHECK(warned(w[1], {"it still runs because it is the default; fix it"}));
}

TEST_CASE(
    "a rehearsal rejects a candidate whose sides wait for overlapping parts, whichever side's first part is larger") {
  world w(2, eager());
  const std::vector configs{direct(), made("quarters", send_cut_in<2>, receive_cut_in<4>),
                            made("halves", send_cut_in<4>, receive_cut_in<2>)};
  const auto all = move_each(w, configs, configs, std::vector<std::size_t>(50, 200'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w[0].agreements()[0].assigned->ids() == std::vector<std::string>{"direct"});
  CHECK(warned(w[1], {"config quarters", "but the receiver asked for"}));
  CHECK(warned(w[1], {"config halves", "but the receiver asked for"}));
}

TEST_CASE("a default config whose sides wait for overlapping parts fails its receive within a second") {
  world w(2);
  const auto mine = made("quarters", send_cut_in<2>, receive_cut_in<4>);
  const time_ns began = w.clock.now();
  const auto all = move_each(w, {mine}, {mine}, {200'000});
  CHECK(w.clock.now() - began < 1'000'000'000);
  CHECK(
      is(all.received[0], {.code = errc::config_failed, .config = "quarters", .quotes = "but the receiver asked for"}));
  if (!all.sent[0]) CHECK(is(all.sent[0], {.code = errc::config_failed, .config = "quarters"}));
}

TEST_CASE("a candidate that fails in its first trial fails only that call and is never tried again") {
  for (const bool at_sender : {true, false}) {
    world w(2, eager());
    const auto bad =
        at_sender ? made("bad", send_good_once, receive_whole_data) : made("bad", send_whole_data, receive_good_once);
    const std::vector configs{direct(), bad, chunked(64_KiB, 4)};
    const auto all = move_each(w, configs, configs, std::vector<std::size_t>(300, 200'000));
    const auto* c = search_of(w, "256KiB");
    REQUIRE(c != nullptr);
    CHECK(c->is_decided());
    CHECK(c->chosen().config != "bad");
    CHECK(all.wrong == 0);
    const auto failed_receives = static_cast<std::size_t>(
        std::count_if(all.received.begin(), all.received.end(), [](const auto& r) { return !r; }));
    CHECK(failed_receives == 1);
    CHECK(all.failed() <= 2);
    CHECK(join_flights(w).mismatches == 0);
  }
}

TEST_CASE("when a candidate fails in any of its trials, the campaign ends and another config wins") {
  for (int run = 0; run < 24; ++run) {
    const int good = run / 2 + 1;
    const time_ns pause_ns = run % 2 == 0 ? 0 : 1'000'000;  // with the pause, reports arrive between two invocations
    CAPTURE(good);
    CAPTURE(pause_ns);
    world w(2, eager());
    good_calls_left = good;
    const std::vector configs{direct(), made("wearing", send_good_for_a_while, receive_whole_data)};
    transfer out(w[0], pair_of(configs));
    transfer in(w[1], pair_of(configs));
    call_outcomes all;
    for (int i = 0; i < 100; ++i) {
      const auto one = move_each(w, out, in, {200'000});
      all.wrong += one.wrong;
      all.sent.insert(all.sent.end(), one.sent.begin(), one.sent.end());
      all.received.insert(all.received.end(), one.received.begin(), one.received.end());
      if (pause_ns != 0) pass(w, pause_ns);
    }
    pass(w, 2'000'000'000);
    CHECK(all.wrong == 0);
    CHECK(all.failed() == (good_calls_left <= 0 ? 2 : 0));
    const auto* c = search_of(w, "256KiB");
    REQUIRE(c != nullptr);
    CHECK(c->is_decided());
    CHECK(c->chosen().config == "direct");
  }
}

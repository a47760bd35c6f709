// Messages between ranks: of every size, from registered memory, many at once, and with configs that both ranks have.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/cases/pattern.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::deadline;
using parley::tests::pair_of;
using parley::tests::pattern;
using parley::tests::say;
using parley::tests::say_flights;

namespace {

void every_size(job& here) {
  transfer t(here.self(), pair_of({direct(), chunked(1_MiB, 2), chunked(100'000, 3)}));
  const std::vector<std::size_t> sizes{
      0,      1,       7,       64,      4095,          8192,          8193,
      65'537, 262'144, 999'999, 1 << 20, (1 << 20) + 1, (4 << 20) + 3, (64 << 20) + 12'345,
      0,      5};
  run(here.loop(), move_all(here.self(), t, sizes, 1000));
  say_flights(here.self());
}
const scenario as_every_size{"every_size", every_size};

}  // namespace

TEST_CASE("two ranks move messages of 0 bytes to 64 MiB exactly, and leave the rest of a larger buffer untouched") {
  const job_run run("every_size", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK(run.joined().first >= 16);
  CHECK(run.joined().second == 0);
}

namespace {

/// Moves messages between registered buffers: each size several times, sizes around the thresholds of UCX's protocols. The receives
/// are posted before their messages are sent, so that there are credits.
task<> move_registered(rank& self, transfer t, transfer beat, std::span<std::byte> buffer,
                       std::span<const std::size_t> sizes) {
  scope& here = co_await this_scope;
  const std::array<std::byte, 1> ready{};
  std::array<std::byte, 1> heard{};
  for (const std::size_t size : sizes) {
    for (std::size_t i = 0; i < (size > 1'000'000 ? 4 : 25); ++i) {
      const auto data = pattern(size, i);
      if (self.id() == 0) {
        std::copy(data.begin(), data.end(), buffer.begin());
        co_await beat.receive(heard, {.from = 1});
        co_await t.send(buffer.first(size), {.to = 1});
        continue;
      }
      const auto used = buffer.first(size + 4096);
      std::fill(used.begin(), used.end(), std::byte{0xEE});
      scope posted(here);
      std::uint64_t got = 0;
      const auto receive = [](transfer by, std::span<std::byte> into, std::uint64_t& came) -> task<> {
        came = co_await by.receive(into, {.from = 0});
      };
      posted.spawn(receive(t, buffer.first(size + 100), got));
      co_await yield;
      co_await beat.send(ready, {.to = 0});
      co_await posted.join();
      expect(got == size && std::equal(data.begin(), data.end(), buffer.begin()), "every byte is there");
      expect(std::all_of(used.begin() + static_cast<std::ptrdiff_t>(size), used.end(),
                         [](std::byte b) { return b == std::byte{0xEE}; }),
             "the rest is untouched");
    }
  }
}
/// Rank 1 decides for both ranks: it sends its `last` to rank 0, which adopts it.
task<> tell_of_the_last(rank& self, transfer beat, bool& last) {
  std::array<std::byte, 1> word{static_cast<std::byte>(last)};
  if (self.id() == 1) co_await beat.send(word, {.to = 0});
  if (self.id() == 0) co_await beat.receive(word, {.from = 1});
  last = word[0] != std::byte{0};
}
void one_sided(job& here) {
  const std::vector configs{direct(), put(), get(), put(1_MiB, 4)};
  rank& self = here.self();
  transfer t(self, pair_of(configs));
  transfer_options back;
  back.name = "beat";
  back.edges = {{1, 0}};
  transfer beat(self, back);
  std::vector<std::byte> buffer((std::size_t{64} << 20U) + 20'000);
  const auto memory = t.registered(buffer);
  expect(static_cast<bool>(memory), "the machine registers memory");
  const std::array<std::size_t, 7> sizes{0, 1, 4095, 8193, 65'537, 999'999, (std::size_t{64} << 20U) + 12'345};
  run(here.loop(), move_registered(self, t, beat, buffer, sizes));
  // The rehearsals may get their turn late, but puts and gets are tried as long as the search of some size is open. So more messages
  // move until all configs have run. `all_ran` notes them as it goes, because the recorder holds only the latest records.
  std::set<std::uint64_t> ran;
  const auto all_ran = [&] {
    for (const flight_record& r : self.flight().in_order()) {
      if (is_transfer(r.what) && (r.flags & 4U) == 0) ran.insert(r.digest);
    }
    return std::all_of(configs.begin(), configs.end(), [&](const config_ptr& c) { return ran.contains(c->digest()); });
  };
  const deadline limit;
  for (std::size_t i = 0;; ++i) {
    bool last = all_ran() || limit.is_over();
    run(here.loop(), tell_of_the_last(self, beat, last));
    if (last) break;
    run(here.loop(), move_registered(self, t, beat, buffer, std::span(sizes).subspan(2 + i % 4, 1)));
  }
  say_searches(self);
  expect(all_ran(), "puts and gets were run");
  say_flights(self);
}
const scenario as_one_sided{"one_sided", one_sided};

}  // namespace

TEST_CASE("put and get move every size exactly between registered buffers of two ranks") {
  const job_run run("one_sided", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(0, {"candidates direct put get put(chunk_bytes=1048576 in_flight=4)"}), run.all);
  CHECK(run.joined().first >= 150);
  CHECK(run.joined().second == 0);
}

namespace {

void different_catalogues(job& here) {
  tune_with(here, {direct(), chunked(64_KiB, 2), chunked(32_KiB, 4)},
            {direct(), chunked(32_KiB, 4), chunked(128_KiB, 1)});
}
void opposite_orders(job& here) {
  tune_with(here, {direct(), chunked(64_KiB, 2), chunked(32_KiB, 4)},
            {direct(), chunked(32_KiB, 4), chunked(64_KiB, 2)});
}
void one_side_only(job& here) { tune_with(here, {direct(), chunked(64_KiB, 2)}, {direct()}); }
const scenario as_different_catalogues{"different_catalogues", different_catalogues};
const scenario as_opposite_orders{"opposite_orders", opposite_orders};
const scenario as_one_side_only{"one_side_only", one_side_only};

}  // namespace

TEST_CASE("different catalogues are merged, and only configs that both ranks have are run") {
  const auto check = [](const char* scenario, std::initializer_list<const char*> candidates) {
    const job_run run(scenario, 2);
    CHECK_MESSAGE(run.fine(), run.all);
    CHECK_MESSAGE(run.says(0, candidates), run.all);
    CHECK_MESSAGE(run.says(0, {"search 256KiB", "decided"}), run.all);
    CHECK(run.joined().first >= 300);
    CHECK(run.joined().second == 0);
    return run.all;
  };
  const auto common = check("different_catalogues", {"candidates direct chunked(chunk_bytes=32768 in_flight=4)"});
  CHECK(common.find("candidates direct chunked(chunk_bytes=65536") == std::string::npos);
  check("opposite_orders", {"candidates direct ", "chunk_bytes=65536", "chunk_bytes=32768"});
  check("one_side_only", {"candidates direct."});
}

namespace {

task<> send_one(transfer t, std::size_t i, std::uint32_t tag) {
  const auto data = pattern(100 + i * 1500, i);
  co_await t.send(data, {.to = 1, .tag = tag});
}
task<> receive_one(transfer t, std::size_t i, std::uint32_t tag) {
  std::vector<std::byte> buffer(200'000);
  const auto got = co_await t.receive(buffer, {.from = 0, .tag = tag});
  buffer.resize(got);
  expect(buffer == pattern(100 + i * 1500, i), "message " + std::to_string(i) + " came to its receive");
}
task<> many_at_once(rank& self, transfer t) {
  scope& here = co_await this_scope;
  scope all(here);
  for (std::size_t i = 0; i < 64; ++i) {
    if (self.id() == 0) all.spawn(send_one(t, i, static_cast<std::uint32_t>(i % 4)));
  }
  // Rank 1 posts its receives tag after tag, the last tag first.
  for (std::uint32_t tag = 4; tag-- > 0;) {
    for (std::size_t i = tag; i < 64; i += 4) {
      if (self.id() == 1) all.spawn(receive_one(t, i, tag));
    }
  }
  co_await all.join();
}
void in_flight(job& here) {
  transfer t(here.self(), pair_of({direct(), chunked(16_KiB, 2)}));
  for (int round = 0; round < 3; ++round) run(here.loop(), many_at_once(here.self(), t));
  say_flights(here.self());
}
const scenario as_in_flight{"in_flight", in_flight};

}  // namespace

TEST_CASE(
    "sixty-four concurrent sends reach their receives, which are posted tag by tag from the last tag to the first") {
  const job_run run("in_flight", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK(run.joined().first >= 3 * 64);
  CHECK(run.joined().second == 0);
}

namespace {

void idle_third(job& here) {
  transfer t(here.self(), pair_of({direct(), chunked(64_KiB, 2)}));
  run(here.loop(), move_all(here.self(), t, std::vector<std::size_t>(200, 100'000), 0));
  if (here.self().id() != 2) return;
  run(here.loop(), rest(here.loop(), 300_ms));
  const auto& wire = here.wire().statistics();
  say("idle sent " + std::to_string(wire.sent[0] + wire.sent[1]) + " received " +
      std::to_string(wire.received[0] + wire.received[1]));
}
const scenario as_idle_third{"idle_third", idle_third};

}  // namespace

TEST_CASE("a rank outside the op neither sends nor receives a message") {
  const job_run run("idle_third", 3);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(2, {"idle sent 0 received 0"}), run.all);
}

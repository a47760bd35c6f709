// Real ranks in processes of their own, over UCX. This program is its own rank: the launcher starts it again with the name of
// a scenario, and the test reads what the ranks print.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/folder.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/membership/losses.hpp>
#include <parley/config.hpp>
#include <parley/contextual.hpp>
#include <parley/dataflow.hpp>
#include <parley/group_config.hpp>
#include <parley/leader_worker.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/p2p.hpp>
#include <parley/paired_transfer.hpp>
#include <parley/pipeline.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <csignal>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using parley::tests::deadline;
using parley::tests::is;
using parley::tests::pair_of;
using parley::tests::pattern;
using parley::tests::say;
using parley::tests::say_error;
using parley::tests::say_flights;
using parley::tests::scenario_variable;

namespace {

// ---- what the ranks do ------------------------------------------------------------------------------------------------

void expect(bool holds, const std::string& what) {
  if (!holds) raise({errc::exception, "not so: " + what});
}

/// The test is told of the error that ends this rank.
void run_to_its_error(job& here, task<> what) {
  try {
    run(here.loop(), std::move(what));
  } catch (const failure& f) {
    say_error("last call", f.reason());
    throw;
  }
}

task<> move_all(rank& self, transfer t, std::vector<std::size_t> sizes, std::size_t spare) {
  std::vector<std::byte> buffer;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (self.id() == 0) {
      const auto data = pattern(sizes[i], i);
      co_await t.send(data, {.to = 1});
    } else if (self.id() == 1) {
      buffer.assign(sizes[i] + spare, std::byte{0xEE});
      const auto got = co_await t.receive(buffer, {.from = 0});
      expect(got == sizes[i], "message " + std::to_string(i) + " has its size");
      for (std::size_t at = sizes[i]; at < buffer.size(); ++at)
        expect(buffer[at] == std::byte{0xEE}, "the rest is untouched");
      buffer.resize(sizes[i]);
      expect(buffer == pattern(sizes[i], i), "message " + std::to_string(i) + " has its bytes");
    }
  }
}

void say_campaigns(const rank& self) {
  for (const auto& agreed : self.agreements()) {
    for (const auto& c : agreed.assigned->searches()) {
      say("campaign " + c->key() + " trials " + std::to_string(c->trials()) +
          (c->chosen().from_results() ? " remembered " : " tried ") + (c->is_decided() ? "decided " : "open ") +
          c->chosen().config);
    }
    std::string ids;
    for (const auto& id : agreed.assigned->ids()) ids += " " + id;
    say("candidates" + ids + ".");
  }
}

void every_size(job& here) {
  auto t = here.self().declare(pair_of({direct(), chunked(1_MiB, 2), chunked(100'000, 3)}));
  const std::vector<std::size_t> sizes{
      0,      1,       7,       64,      4095,          8192,          8193,
      65'537, 262'144, 999'999, 1 << 20, (1 << 20) + 1, (4 << 20) + 3, (64 << 20) + 12'345,
      0,      5};
  run(here.loop(), move_all(here.self(), t, sizes, 1000));
  say_flights(here.self());
}

bool has_decided(const rank& self) {
  for (const auto& agreed : self.agreements()) {
    for (const auto& c : agreed.assigned->searches()) {
      if (c->is_decided()) return true;
    }
  }
  return false;
}

/// How many calls a campaign takes depends on how soon its rehearsals get their turn; an empty message is the last one.
task<> move_until_decided(rank& self, transfer t) {
  constexpr std::size_t size = 200'000;
  std::vector<std::byte> buffer(size);
  const deadline limit;
  for (std::size_t i = 0;; ++i) {
    if (self.id() == 0) {
      const bool last = i >= 300 && (has_decided(self) || limit.is_over());
      const auto data = pattern(last ? 0 : size, i);
      co_await t.send(data, {.to = 1});
      if (last) co_return;
    } else if (self.id() == 1) {
      const auto got = co_await t.receive(buffer, {.from = 0});
      if (got == 0) co_return;
      expect(got == size && buffer == pattern(size, i), "message " + std::to_string(i) + " has its bytes");
    }
  }
}

void tune_with(job& here, std::vector<config_ptr> at_sender, std::vector<config_ptr> at_receiver) {
  auto t = here.self().declare(pair_of(here.self().id() == 0 ? std::move(at_sender) : std::move(at_receiver)));
  run(here.loop(), move_until_decided(here.self(), t));
  say_campaigns(here.self());
  say_flights(here.self());
}

void different_catalogues(job& here) {
  tune_with(here, {direct(), chunked(64_KiB, 2), chunked(32_KiB, 4)},
            {direct(), chunked(32_KiB, 4), chunked(128_KiB, 1)});
}
void opposite_orders(job& here) {
  tune_with(here, {direct(), chunked(64_KiB, 2), chunked(32_KiB, 4)},
            {direct(), chunked(32_KiB, 4), chunked(64_KiB, 2)});
}
void one_side_only(job& here) { tune_with(here, {direct(), chunked(64_KiB, 2)}, {direct()}); }
void tuned(job& here) {
  const std::vector configs{direct(), chunked(64_KiB, 2), chunked(32_KiB, 4)};
  tune_with(here, configs, configs);
}

// Both know the decision when this returns.
task<> decide(rank& self, transfer t) {
  co_await move_until_decided(self, t);
  const agreement with = self.id() == 0 ? t.to(1) : t.from(0);
  const auto known = co_await with.decided(200'000, {.timeout_ns = 60'000_ms});
  expect(known.decided, "it is known here");
  co_await self.settle(60'000_ms);
}
void decide_here(job& here) {
  const auto t = here.self().declare(pair_of({direct(), chunked(64_KiB, 2)}));
  run(here.loop(), decide(here.self(), t));
}
// Its loop does not turn while it computes.
void killed_while_it_computes(job& here) {
  decide_here(here);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1100);
  while (std::chrono::steady_clock::now() < until) {}
  ::raise(SIGKILL);
}
void throws_after_deciding(job& here) {
  decide_here(here);
  throw std::runtime_error("the engine gives up");
}

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
  // The receiver takes the tags one after the other, the last one first.
  for (std::uint32_t tag = 4; tag-- > 0;) {
    for (std::size_t i = tag; i < 64; i += 4) {
      if (self.id() == 1) all.spawn(receive_one(t, i, tag));
    }
  }
  co_await all.join();
}
void in_flight(job& here) {
  auto t = here.self().declare(pair_of({direct(), chunked(16_KiB, 2)}));
  for (int round = 0; round < 3; ++round) run(here.loop(), many_at_once(here.self(), t));
  say_flights(here.self());
}

task<> rest(executor& ex, time_ns span) {
  auto woken = co_await sleep_until(ex.deadline_in(span));
  static_cast<void>(woken);
}
void idle_third(job& here) {
  auto t = here.self().declare(pair_of({direct(), chunked(64_KiB, 2)}));
  run(here.loop(), move_all(here.self(), t, std::vector<std::size_t>(200, 100'000), 0));
  if (here.self().id() != 2) return;
  run(here.loop(), rest(here.loop(), 300_ms));
  const auto& wire = here.wire().statistics();
  say("idle sent " + std::to_string(wire.sent[0] + wire.sent[1]) + " received " +
      std::to_string(wire.received[0] + wire.received[1]));
}

/// Ranks 0 and 2 both work with rank 1, which is killed.
task<> until_lost(rank& self, transfer t) {
  std::vector<std::byte> data(self.id() == 2 ? std::size_t{1} << 20U : 1000);
  for (std::size_t i = 0;; ++i) {
    if (self.id() == 0) co_await t.send(data, {.to = 1});
    if (self.id() == 2) co_await t.receive(data, {.from = 1});
    if (self.id() != 1) continue;
    co_await t.receive(data, {.from = 0});
    std::vector<std::byte> large(std::size_t{1} << 20U);
    co_await t.send(large, {.to = 2});
    if (i == 5) ::raise(SIGKILL);
  }
}
void killed(job& here) {
  paired_transfer op = pair_of({direct(), chunked(64_KiB, 2)});
  op.edges = {{0, 1}, {1, 2}};
  auto t = here.self().declare(op);
  run_to_its_error(here, until_lost(here.self(), t));
}

/// Ranks 0 to 2 tune a function with a kernel of two configs. In the third of its runs one of them is killed: when rank 1 waits
/// in its own third run for something that never comes. The last one has ended that run and waits for the other two.
task<> third_run_kills(rank_id self, rank_id victim, std::size_t run_number, transfer beat) {
  std::vector<std::byte> word(1);
  if (run_number != 3) co_return;
  if (self == victim) {
    co_await beat.receive(word, {.from = 1});
    ::raise(SIGKILL);
  }
  if (self != 1) co_return;
  co_await beat.send(word, {.to = victim});
  auto woken = co_await sleep_until(never - 1);
  if (!woken) raise(woken.reason());
}
task<> tune_until_lost(rank& self, contextual layer, transfer beat, rank_id victim) {
  std::size_t runs = 0;
  const auto config = [&](int) { return third_run_kills(self.id(), victim, ++runs, beat); };
  tunable_op<task<>(int)> kernel(self.kernels(),
                                 {.name = "kernel", .implementations = {{"one", config}, {"other", config}}});
  const auto thunk = [&] { return kernel(8); };
  for (const char* call : {"the call", "the call after it"}) {
    auto outcome = co_await attempt(layer.run(thunk));
    expect(!outcome && layer.end().best("kernel", "all").empty(), "nothing is decided without the rank that is gone");
    say_error(call, outcome.reason());
  }
}
void killed_while_they_tune(job& here, rank_id victim) {
  paired_transfer op;
  op.name = "beat";
  op.edges = {{1, victim}};
  auto beat = here.self().declare(op);
  contextual layer(here.self(), {.name = "layer", .log_folder = ""});
  run(here.loop(), tune_until_lost(here.self(), layer, beat, victim));
}
void leader_killed_in_campaign(job& here) { killed_while_they_tune(here, 0); }
void member_killed_in_campaign(job& here) { killed_while_they_tune(here, 2); }

// Messages from memory that goes with the frame which throws, to a rank that is busy meanwhile: they queue up at their sender.
task<> throw_amid_sends(rank& self, transfer t) {
  std::vector<std::byte> hello(100);
  scope& here = co_await this_scope;
  if (self.id() == 0) {
    co_await t.send(hello, {.to = 1});
    const std::vector<std::byte> large(2'000'000);
    scope sends(here);
    sends.spawn(t.send(large, {.to = 1}));
    co_await rest(self.where(), 20_ms);
    throw std::runtime_error("the engine gives up");
  }
  const auto got = co_await t.receive(hello, {.from = 0});
  static_cast<void>(got);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}
void throws_amid_sends(job& here) {
  auto t = here.self().declare(pair_of({chunked(4'000, 1'000)}));
  run(here.loop(), throw_amid_sends(here.self(), t));
}

// Rank 1 does not get that far: it waits until the others have told what they miss.
void never_comes(job&) {}
constexpr const char* meeting_point = "PARLEY_TEST_FOLDER";
std::filesystem::path told_by(rank_id rank) {
  return std::filesystem::path(std::getenv(meeting_point)) / ("told" + std::to_string(rank));
}
void stay_away() {
  while (!std::filesystem::exists(told_by(0)) || !std::filesystem::exists(told_by(2)))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

task<> say_outcome(transfer t, rank& self, std::size_t sent, std::size_t room, const char* call) {
  std::vector<std::byte> data(self.id() == 0 ? sent : room);
  const auto say_how = [call](const auto& outcome) {
    if (outcome) {
      say("fine");
    } else {
      say_error(call, outcome.reason());
    }
  };
  if (self.id() == 0) {
    auto outcome = co_await attempt(t.send(data, {.to = 1}));
    say_how(outcome);
  } else {
    auto outcome = co_await attempt(t.receive(data, {.from = 0}));
    say_how(outcome);
  }
}
void too_small(job& here) {
  auto t = here.self().declare(pair_of({direct()}));
  run(here.loop(), say_outcome(t, here.self(), 1000, 999, "first call"));
  run(here.loop(), say_outcome(t, here.self(), 1 << 20, (1 << 20) - 1, "second call"));
  run(here.loop(), say_outcome(t, here.self(), 1000, 1000, "last call"));
}
task<> until_refused(transfer t, rank& self) {
  const agreement with = self.id() == 0 ? t.to(1) : t.from(0);
  auto refused = co_await attempt(with.decided(1000, {.timeout_ns = 60'000_ms}));
  expect(!refused && refused.code() != errc::timeout, "the declaration is refused");
}
void mismatch(job& here) {
  auto op = pair_of({direct()});
  op.dtype = here.self().id() == 0 ? "bf16" : "fp32";
  auto t = here.self().declare(op);
  run(here.loop(), until_refused(t, here.self()));
  run(here.loop(), say_outcome(t, here.self(), 1000, 1000, "last call"));
}

struct adding final : pipeline_stage {
  adding(std::size_t s, std::size_t n) : stage(s), last(s + 1 == n) {}
  void forward(std::uint64_t microbatch, std::span<std::byte> activation) override {
    if (stage == 0) {
      const auto fresh = pattern(activation.size(), microbatch);
      std::copy(fresh.begin(), fresh.end(), activation.begin());
    }
    for (std::byte& b : activation) b = static_cast<std::byte>(static_cast<unsigned>(b) + stage + 1);
    if (!last) return;
    auto expected = pattern(activation.size(), microbatch);
    for (std::byte& b : expected) b = static_cast<std::byte>(static_cast<unsigned>(b) + (stage + 1) * (stage + 2) / 2);
    same = same && std::equal(expected.begin(), expected.end(), activation.begin());
  }
  std::size_t stage;
  bool last;
  bool same = true;
};
/// Whether all of them have seen enough; they learn it at the same place.
task<> tell_of_enough(rank_group all, std::size_t world, bool& enough) {
  std::array<float, 1> seen{enough ? 1.0F : 0.0F};
  co_await all.all_reduce(std::span<float>(seen));
  enough = seen[0] == static_cast<float>(world);
}
bool has_tried(const rank& self, const std::string& op, std::initializer_list<std::uint64_t> sizes) {
  const auto agreed = self.agreements();
  const auto at = std::find_if(agreed.begin(), agreed.end(), [&](const auto& a) { return a.op.starts_with(op); });
  return at != agreed.end() && std::all_of(sizes.begin(), sizes.end(), [&](std::uint64_t bytes) {
           const actors::search* const c = at->assigned->find(bytes);
           return c != nullptr && c->trials() > 0;
         });
}
void four_stages(job& here) {
  rank& self = here.self();
  auto pipe = self.declare(linear_pipeline{.name = "layers", .configs = {direct(), chunked(4_KiB, 2)}});
  leader_worker beside;
  beside.name = "enough";
  beside.role = [](rank_id r) { return std::string(r == 0 ? "leader" : "worker"); };
  beside.configs = {star()};
  const auto all = self.declare(beside);
  adding stage(pipe.stage(), pipe.stages());
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < 60; ++i) bytes.push_back(i % 2 == 0 ? 200'000 : 8192);
  const auto tried = [&] { return pipe.last() || has_tried(self, "layers", {200'000, 8192}); };
  const deadline limit;
  for (bool enough = false; !enough;) {
    run(here.loop(), pipe.run(bytes, stage));
    enough = tried() || limit.is_over();
    run(here.loop(), tell_of_enough(all, self.world_size(), enough));
  }
  expect(stage.same, "the last stage has what one process computes");
  expect(tried(), "each edge has made trials with both sizes");
  say_flights(self);
}

/// Sizes around the limits of UCX's ways, each several times, between registered buffers. The receives are posted before their
/// messages are sent, so that there are credits.
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
/// Rank 1 says whether both have seen enough.
task<> tell_of_the_last(rank& self, transfer beat, bool& last) {
  std::array<std::byte, 1> word{static_cast<std::byte>(last)};
  if (self.id() == 1) co_await beat.send(word, {.to = 0});
  if (self.id() == 0) co_await beat.receive(word, {.from = 1});
  last = word[0] != std::byte{0};
}
void one_sided(job& here) {
  const std::vector configs{direct(), put(), get(), put(1_MiB, 4)};
  rank& self = here.self();
  auto t = self.declare(pair_of(configs));
  paired_transfer back;
  back.name = "beat";
  back.edges = {{1, 0}};
  auto beat = self.declare(back);
  std::vector<std::byte> buffer((std::size_t{64} << 20U) + 20'000);
  const auto memory = t.registered(buffer);
  expect(static_cast<bool>(memory), "the machine registers memory");
  const std::array<std::size_t, 7> sizes{0, 1, 4095, 8193, 65'537, 999'999, (std::size_t{64} << 20U) + 12'345};
  run(here.loop(), move_registered(self, t, beat, buffer, sizes));
  // However late the rehearsals get their turn, while the campaign of some size is open puts and gets are tried. Seen as they
  // happen: the recorder holds only the latest.
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
  say_campaigns(self);
  expect(all_ran(), "puts and gets were run");
  say_flights(self);
}

// ---- the flight recorder on a signal

bool file_is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}
std::string flight_path(const rank& self) {
  return std::string(std::getenv("PARLEY_FLIGHT_DIR")) + "/parley-flight-" + std::to_string(self.id()) + ".json";
}
volatile std::sig_atomic_t own_handler_ran = 0;
void own_handler(int) { own_handler_ran = 1; }

// ---- a group with a leader

task<> reduce_often(rank_group g, rank_id self, std::size_t world, std::size_t count) {
  std::vector<float> x(50'000);
  const std::size_t sum_of_ranks = world * (world + 1) / 2;
  const auto sum = static_cast<float>(sum_of_ranks);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(self + 1) * static_cast<float>(k % 7 + 1);
    co_await g.all_reduce(std::span(x));
    std::size_t wrong = 0;
    for (std::size_t k = 0; k < x.size(); ++k) wrong += x[k] == sum * static_cast<float>(k % 7 + 1) ? 0 : 1;
    expect(wrong == 0, "sum " + std::to_string(i) + " is right");
  }
}
void leader_and_workers(job& here) {
  leader_worker op;
  op.name = "gradients";
  op.role = [](rank_id r) { return std::string(r == 1 ? "leader" : "worker"); };
  op.configs = {star(), star(16_KiB), chain(16_KiB)};
  rank& self = here.self();
  auto g = self.declare(op);
  const auto tried = [&] { return !g.leads() || has_tried(self, op.name, {200'000}); };
  const deadline limit;
  for (bool enough = false; !enough;) {
    run(here.loop(), reduce_often(g, self.id(), self.world_size(), 100));
    enough = tried() || limit.is_over();
    run(here.loop(), tell_of_enough(g, self.world_size(), enough));
  }
  expect(tried(), "the group has made trials");
  say_campaigns(here.self());
  say_flights(here.self());
}

void signalled(job& here) {
  auto t = here.self().declare(pair_of({direct()}));
  run(here.loop(), move_all(here.self(), t, {100, 200}, 0));
  ::kill(::getpid(), SIGUSR1);
  const std::string mine = flight_path(here.self());
  const auto until = [&](const auto& so) {
    for (const deadline limit; !so() && !limit.is_over();) run(here.loop(), rest(here.loop(), 10_ms));
  };
  until([&] { return file_is_there(mine); });
  say(file_is_there(mine) ? "written" : "never written");
  // Who leaves first is a peer that is gone to the other one, which would write its file again for that.
  std::filesystem::rename(mine, mine + ".kept");
  const std::string other = std::string(std::getenv("PARLEY_FLIGHT_DIR")) + "/parley-flight-" +
                            std::to_string(1 - here.self().id()) + ".json.kept";
  until([&] { return file_is_there(other); });
}
void signalled_without_folder(job& here) {
  ::kill(::getpid(), SIGUSR1);
  run(here.loop(), rest(here.loop(), 300_ms));
  say("goes on");
}
void signalled_with_own_handler(job& here) {
  ::kill(::getpid(), SIGUSR1);
  run(here.loop(), rest(here.loop(), 100_ms));
  say(own_handler_ran != 0 ? "own handler" : "no handler");
  say(file_is_there(flight_path(here.self())) ? "written" : "not written");
}

// ---- ranks that leave

task<> send_to_rank_1(transfer t) {
  const auto data = pattern(256 << 10, 0);
  co_await t.send(data, {.to = 1});
}

void returns_before_declaring(job& here) {
  if (here.self().id() == 1) return;
  auto t = here.self().declare(paired_transfer{.name = "activations", .edges = {{0, 1}}});
  run_to_its_error(here, send_to_rank_1(t));
}

paired_transfer towards_rank_0() {
  paired_transfer op;
  op.name = "activations";
  op.edges = {{1, 0}};
  return op;
}

task<> wait_for_a_message(transfer t) {
  std::vector<std::byte> buffer(1000);
  co_await t.receive(buffer, {.from = 1});
}

void throws_a_number(job& here) {
  auto t = here.self().declare(towards_rank_0());
  if (here.self().id() == 1) throw 42;
  run_to_its_error(here, wait_for_a_message(t));
}

void returns_at_once(job& here) {
  auto t = here.self().declare(towards_rank_0());
  if (here.self().id() == 0) run_to_its_error(here, wait_for_a_message(t));
}

task<> send_three(transfer t) {
  for (int i = 0; i < 3; ++i) {
    const auto data = pattern(100, 0);
    co_await t.send(data, {.to = 1});
  }
}

void takes_nothing(job& here) {
  auto t = here.self().declare(pair_of({direct()}));
  if (here.self().id() == 0) run(here.loop(), send_three(t));
}

void refused_after_sending(job& here) {
  auto op = pair_of({direct()});
  op.dtype = here.self().id() == 0 ? "bf16" : "fp32";
  auto t = here.self().declare(op);
  std::vector<std::byte> buffer(1000);
  if (here.self().id() == 0) run(here.loop(), send_three(t));
  say("no call has failed");
}

constexpr rank_id throws = 1;
constexpr int last_round = 10;
void compute(std::chrono::milliseconds span) { std::this_thread::sleep_for(span); }
/// `busy`: rank 2 comes late to the last round, so that it is to receive when the connection ends, and rank 0, which tells the others what
/// becomes of rank 1, computes meanwhile.
task<> around(rank& self, p2p ring, std::size_t bytes, bool busy) {
  const rank_id ranks = self.world_size();
  const rank_id next = (self.id() + 1) % ranks;
  const rank_id previous = (self.id() + ranks - 1) % ranks;
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> came(mine.size());
  for (int round = 0;; ++round) {
    dataflow flow(co_await this_scope);
    if (busy && round == last_round && self.id() == 2) compute(std::chrono::milliseconds(100));
    auto both = ring.start(flow, {p2p::isend(mine, {.to = next}), p2p::irecv(came, {.from = previous})});
    if (round == last_round && self.id() == throws) throw std::runtime_error("planted in the engine");
    if (busy && round == last_round && self.id() == 0) compute(std::chrono::milliseconds(500));
    co_await both;
    co_await flow.join();
  }
}
void throws_in_a_ring(job& here, std::size_t bytes, bool busy = false) {
  const p2p ring = here.self().declare(point_to_point{.name = "ring"});
  run(here.loop(), around(here.self(), ring, bytes, busy));
}
void throws_in_a_large_ring(job& here) { throws_in_a_ring(here, std::size_t{8} << 20U); }  // UCX moves them
void throws_in_a_ring_that_lends(job& here) {
  throws_in_a_ring(here, std::size_t{1} << 20U);
}  // their receivers read them
void throws_while_rank_0_computes(job& here) { throws_in_a_ring(here, std::size_t{8} << 20U, true); }

constexpr int first_torn_down = 3;
/// Rank 0 leaves a call from the third on while its payload moves. A busy machine may wake it after the payload has come: then the
/// next call is left.
task<> one_call(rank* self, p2p pair, std::span<std::byte> buffer, int call) {
  dataflow flow(co_await this_scope);
  std::vector<p2p_operation> mine;
  if (self->id() == 0) mine.push_back(p2p::isend(buffer, {.to = 1}));
  if (self->id() == 1) mine.push_back(p2p::irecv(buffer, {.from = 0}));
  auto moved = pair.start(flow, mine);
  if (self->id() == 0 && call >= first_torn_down) {
    (void)co_await sleep_for(1'000'000);
    if (flow.running() > 0) raise({errc::exception, "no more of it"});
  }
  co_await moved;
  co_await flow.join();
}
task<> call_until_it_ends(rank* self, p2p pair) {
  std::vector<std::byte> buffer(std::size_t{64} << 20U);
  for (int call = 0; call < 100; ++call) {
    auto ended = co_await attempt(one_call(self, pair, buffer, call));
    if (ended) continue;
    const bool torn_down = self->id() == 0 && ended.reason().code() == errc::exception;
    say_error(torn_down ? "call torn down" : "last call", ended.reason());
    if (!torn_down) co_return;
  }
}
void goes_on_after_tearing_down(job& here) {
  const p2p pair = here.self().declare(point_to_point{.name = "pair"});
  run(here.loop(), call_until_it_ends(&here.self(), pair));
}

const std::map<std::string, void (*)(job&)>& scenarios() {
  static const std::map<std::string, void (*)(job&)> all{{"every_size", every_size},
                                                         {"different_catalogues", different_catalogues},
                                                         {"opposite_orders", opposite_orders},
                                                         {"one_side_only", one_side_only},
                                                         {"tuned", tuned},
                                                         {"in_flight", in_flight},
                                                         {"idle_third", idle_third},
                                                         {"killed", killed},
                                                         {"leader_killed_in_campaign", leader_killed_in_campaign},
                                                         {"member_killed_in_campaign", member_killed_in_campaign},
                                                         {"killed_while_it_computes", killed_while_it_computes},
                                                         {"throws_after_deciding", throws_after_deciding},
                                                         {"never_comes", never_comes},
                                                         {"throws_amid_sends", throws_amid_sends},
                                                         {"goes_on_after_tearing_down", goes_on_after_tearing_down},
                                                         {"throws_in_a_large_ring", throws_in_a_large_ring},
                                                         {"throws_in_a_ring_that_lends", throws_in_a_ring_that_lends},
                                                         {"throws_while_rank_0_computes", throws_while_rank_0_computes},
                                                         {"too_small", too_small},
                                                         {"mismatch", mismatch},
                                                         {"one_sided", one_sided},
                                                         {"four_stages", four_stages},
                                                         {"leader_and_workers", leader_and_workers},
                                                         {"throws_a_number", throws_a_number},
                                                         {"returns_at_once", returns_at_once},
                                                         {"returns_before_declaring", returns_before_declaring},
                                                         {"takes_nothing", takes_nothing},
                                                         {"refused_after_sending", refused_after_sending},
                                                         {"signalled", signalled},
                                                         {"signalled_without_folder", signalled_without_folder},
                                                         {"signalled_with_own_handler", signalled_with_own_handler}};
  return all;
}

// ---- what the test sees -----------------------------------------------------------------------------------------------

/// A job whose ranks are this program in that scenario.
struct job_run : parley::tests::job_run {
  job_run(const std::string& scenario, rank_id ranks, std::vector<std::pair<std::string, std::string>> environment = {})
      : parley::tests::job_run("this program as one rank of a job", scenario, ranks, std::move(environment)) {}
};

using folder = parley::tests::scratch_folder;

/// How errors say that a rank has done all that its program does: no other end is put so.
std::string words_of_return(rank_id returned) {
  actors::losses gone(1 - returned, false);
  return "rank " + std::to_string(returned) + gone.add(returned, "", actors::departure::returned, 0)->what;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Takes the mark `thin` off the rows of a results file: a busy machine leaves it there, and the next job searches again.
void make_firm(const std::filesystem::path& path) {
  std::string rows = text_of(path);
  for (std::size_t at; (at = rows.find(",thin\n")) != std::string::npos;) rows.erase(at, 5);
  std::ofstream(path) << rows;
}

}  // namespace

TEST_CASE("this program as one rank of a job" * doctest::skip()) {
  const char* name = std::getenv(scenario_variable);
  if (name == nullptr) return;
  const auto at = scenarios().find(name);
  REQUIRE(at != scenarios().end());
  const std::string_view rank = std::getenv("PARLEY_RANK");
  if (at->second == never_comes && rank == "1") return stay_away();
  job_options o;
  o.settings.plan.budget_fraction = 1e9;
  o.settle_limit_ns = 60'000'000'000;  // however late the other rank gets its turn on a busy machine
  if (at->second == never_comes) o.join_timeout_ns = 3'000'000'000;
  if (at->second == signalled_with_own_handler) std::signal(SIGUSR1, own_handler);
  const int status = ops::run(at->second, o);
  if (at->second == never_comes) std::ofstream(told_by(rank == "0" ? 0 : 2)) << status;
  REQUIRE(status == 0);
}

TEST_CASE("two ranks move every size exactly, also into larger buffers") {
  const job_run run("every_size", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK(run.joined().first >= 16);
  CHECK(run.joined().second == 0);
}

TEST_CASE("put and get move every size exactly between registered buffers of two ranks") {
  const job_run run("one_sided", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(0, {"candidates direct put get put(chunk_bytes=1048576 in_flight=4)"}), run.all);
  CHECK(run.joined().first >= 150);
  CHECK(run.joined().second == 0);
}

TEST_CASE("catalogues that differ are merged, and only what both have is run") {
  const auto check = [](const char* scenario, std::initializer_list<const char*> candidates) {
    const job_run run(scenario, 2);
    CHECK_MESSAGE(run.fine(), run.all);
    CHECK_MESSAGE(run.says(0, candidates), run.all);
    CHECK_MESSAGE(run.says(0, {"campaign 256KiB", "decided"}), run.all);
    CHECK(run.joined().first >= 300);
    CHECK(run.joined().second == 0);
    return run.all;
  };
  const auto common = check("different_catalogues", {"candidates direct chunked(chunk_bytes=32768 in_flight=4)"});
  CHECK(common.find("candidates direct chunked(chunk_bytes=65536") == std::string::npos);
  check("opposite_orders", {"candidates direct ", "chunk_bytes=65536", "chunk_bytes=32768"});
  check("one_side_only", {"candidates direct."});
}

TEST_CASE("a second job takes its decisions from the results of the first, whichever rank has them") {
  const folder kept;
  const std::string file = (kept.path / "results.csv").string();
  const job_run first("tuned", 2, {{"PARLEY_RESULTS", file}});
  CHECK_MESSAGE(first.fine(), first.all);
  CHECK_MESSAGE(first.says(0, {"campaign 256KiB", " tried decided"}), first.all);
  for (const char* const name : {"results0.csv", "results1.csv"}) make_firm(kept.path / name);
  for (const char* lost : {"", "results0.csv", "results1.csv"}) {
    const folder copy;
    std::filesystem::copy(kept.path, copy.path, std::filesystem::copy_options::recursive);
    if (*lost != '\0') CHECK(std::filesystem::remove(copy.path / lost));
    const job_run again("tuned", 2, {{"PARLEY_RESULTS", (copy.path / "results.csv").string()}});
    CHECK_MESSAGE(again.fine(), again.all);
    CHECK_MESSAGE(again.says(0, {"campaign 256KiB trials 0 remembered decided"}), again.all);
    CHECK(again.joined().second == 0);
    // Who lost its file has it again.
    for (const char* name : {"results0.csv", "results1.csv"})
      CHECK(text_of(copy.path / name) == text_of(kept.path / name));
  }
}

TEST_CASE(
    "what was decided is in the files of ranks that throw at once, or are killed a second later while they compute") {
  for (const char* const scenario : {"throws_after_deciding", "killed_while_it_computes"}) {
    CAPTURE(scenario);
    const folder kept;
    const job_run run(scenario, 2, {{"PARLEY_RESULTS", kept.file("results.csv")}});
    CHECK_FALSE(run.fine());
    for (const char* const name : {"results0.csv", "results1.csv"})
      CHECK_MESSAGE(kept.read(name).find("\nactivations/0>1,256KiB,") != std::string::npos, run.all);
    const job_run again("tuned", 2, {{"PARLEY_RESULTS", kept.file("results.csv")}});
    CHECK_MESSAGE(again.says(0, {"campaign 256KiB trials 0 remembered decided"}), again.all);
  }
}

TEST_CASE("ranks whose files name different winners run the leader's, and both can say who said what") {
  const folder here;
  const std::vector<std::pair<std::string, std::string>> environment{
      {"PYTORCH_TUNABLEOP_FILENAME", "ignored.csv"},
      {"PARLEY_TUNABLEOP_FILENAME", (here.path / "r%d.csv").string()},
      {"PARLEY_TUNABLEOP_VERBOSE", "2"}};
  const job_run first("tuned", 2, environment);
  CHECK_MESSAGE(first.fine(), first.all);
  for (const char* const name : {"r0.csv", "r1.csv"}) make_firm(here.path / name);
  std::string theirs = text_of(here.path / "r1.csv");
  // A busy machine may have decided for other keys as well.
  const std::size_t begin = theirs.find("256KiB,") + 7;
  const std::string winner = theirs.substr(begin, theirs.find(',', begin) - begin);
  const std::string other = winner == "direct" ? "chunked(chunk_bytes=65536 in_flight=2)" : "direct";
  theirs.replace(begin, winner.size(), other);
  std::ofstream(here.path / "r1.csv") << theirs;

  const job_run again("tuned", 2, environment);
  CHECK_MESSAGE(again.fine(), again.all);
  CHECK_MESSAGE(again.says(0, {("campaign 256KiB trials 0 remembered decided " + winner).c_str()}), again.all);
  const std::string evidence = "256KiB: rank 0's results file says so; rank 1's says " + other;
  CHECK(again.joined().second == 0);
  for (const rank_id r : {rank_id{0}, rank_id{1}})
    CHECK_MESSAGE(
        again.all.find("parley: rank " + std::to_string(r) + ": activations 0->1 " + evidence) != std::string::npos,
        again.all);
  CHECK(text_of(here.path / "r0.csv") == text_of(here.path / "r1.csv"));
}

TEST_CASE("a variable that cannot be is named by every rank, and no job is started") {
  for (const std::string name : {"PARLEY_TUNABLEOP_TUNING", "PARLEY_UCX_CUDA"}) {
    const job_run run("tuned", 2, {{name, "perhaps"}});
    CHECK(run.end.status == 1);
    for (const rank_id r : {rank_id{0}, rank_id{1}})
      CHECK_MESSAGE(run.says(r, {"malformed", (name + "=perhaps").c_str()}), run.all);
  }
}

TEST_CASE("sixty-four sends at once, received tag by tag in the opposite order") {
  const job_run run("in_flight", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK(run.joined().first >= 3 * 64);
  CHECK(run.joined().second == 0);
}

TEST_CASE("a rank outside the op neither sends nor receives a message") {
  const job_run run("idle_third", 3);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(2, {"idle sent 0 received 0"}), run.all);
}

TEST_CASE("when a rank is killed the others say so within seconds, with op and ranks") {
  const job_run run("killed", 3);
  CHECK(run.end.status == 1);
  CHECK(run.end.ranks[1].kind == transports::rank_end::how::signalled);
  for (const rank_id survivor : {rank_id{0}, rank_id{2}}) {
    CAPTURE(survivor);
    const std::string op = survivor == 0 ? "activations 0->1" : "activations 1->2";
    CHECK_MESSAGE(is(run.error_of(survivor, "last call"),
                     {.code = errc::peer_failed, .op = op, .rank = survivor, .peer = 1, .culprit = 1}),
                  run.all);
    CHECK(run.end.ranks[survivor].kind == transports::rank_end::how::exited);
    CHECK_FALSE(run.end.ranks[survivor].by_launcher);
  }
  CHECK(run.seconds < 20);  // the op's own timeout is 30 s
}

TEST_CASE("when a rank is killed while a function is tuned the others say so within seconds, wherever they wait") {
  for (const rank_id victim : {rank_id{0}, rank_id{2}}) {
    CAPTURE(victim);
    const job_run run(victim == 0 ? "leader_killed_in_campaign" : "member_killed_in_campaign", 3);
    CHECK(run.end.ranks[victim].kind == transports::rank_end::how::signalled);
    for (const rank_id survivor : {rank_id{1}, rank_id{2} - victim}) {
      CAPTURE(survivor);
      for (const char* call : {"the call", "the call after it"}) {
        CAPTURE(call);
        const result<> ended = run.error_of(survivor, call);
        CHECK_MESSAGE(
            is(ended,
               {.code = errc::peer_failed, .op = "layer 0->1->2", .rank = survivor, .begun = true, .culprit = victim}),
            run.all);
        CHECK((!ended && ended.reason().about().invocation));
      }
      CHECK(run.end.ranks[survivor].kind == transports::rank_end::how::exited);
      CHECK_FALSE(run.end.ranks[survivor].by_launcher);
    }
    CHECK(run.seconds < 20);  // a run may take 30 s
  }
}

TEST_CASE("a rank that throws while it sends ends with what it threw, though its payload is gone") {
  const job_run run("throws_amid_sends", 2);
  CHECK(run.end.status == 1);
  for (const auto& rank : run.end.ranks)
    CHECK_MESSAGE((rank.kind == transports::rank_end::how::exited || rank.by_launcher), run.all);
  CHECK_MESSAGE(run.says(0, {"rank 0", "the engine gives up"}), run.all);
}

TEST_CASE("when one of a ring throws each of the others says so, also those who heard of it from their neighbour") {
  for (const char* ring : {"throws_in_a_large_ring", "throws_in_a_ring_that_lends"}) {
    for (int again = 0; again < 5; ++again) {
      const job_run run(ring, 4);
      CHECK(run.end.status == 1);
      for (const rank_id r : {rank_id{0}, rank_id{1}, rank_id{2}, rank_id{3}})
        CHECK_MESSAGE(run.says(r, {"parley: rank", "planted in the engine"}), run.all);
    }
  }
}

TEST_CASE("a rank whose connection ends before it is told why waits for that, as long as its peer lives") {
  const job_run run("throws_while_rank_0_computes", 4);
  CHECK(run.end.status == 1);
  for (const rank_id r : {rank_id{0}, rank_id{1}, rank_id{2}, rank_id{3}})
    CHECK_MESSAGE(run.says(r, {"parley: rank", "planted in the engine"}), run.all);
}

TEST_CASE(
    "a rank that has torn down a message reaches that peer no more, holds it not dead, and both are told in time") {
  const job_run run("goes_on_after_tearing_down", 2);
  CHECK_MESSAGE(is(run.error_of(0, "call torn down"), {.code = errc::exception, .quotes = "no more of it"}), run.all);
  CHECK_MESSAGE(
      is(run.error_of(0, "last call"), {.code = errc::peer_failed, .op = "pair 0->1", .peer = 1, .culprit = 0}),
      run.all);
  CHECK_MESSAGE(
      is(run.error_of(1, "last call"), {.code = errc::peer_failed, .op = "pair 0->1", .peer = 0, .culprit = 0}),
      run.all);
  CHECK(run.seconds < 20);
}

TEST_CASE("a rank that never comes is named by the others") {
  const folder where;
  const job_run run("never_comes", 3, {{meeting_point, where.path.string()}});
  CHECK(run.end.status == 1);
  for (const rank_id waiting : {rank_id{0}, rank_id{2}}) CHECK_MESSAGE(run.says(waiting, {"timeout", "rank"}), run.all);
  CHECK_MESSAGE(run.says(0, {"1"}), run.all);
}

TEST_CASE("a receive buffer that is too small is an error with both sizes, and the next call is fine") {
  const job_run run("too_small", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(is(run.error_of(1, "first call"), {.code = errc::buffer_too_small,
                                                   .op = "activations 0->1",
                                                   .rank = 1,
                                                   .role = "receiver",
                                                   .invocation = 0,
                                                   .whole_bytes = 1000,
                                                   .own_bytes = 999}),
                run.all);
  CHECK_MESSAGE(is(run.error_of(1, "second call"),
                   {.code = errc::buffer_too_small, .invocation = 1, .whole_bytes = 1'048'576, .own_bytes = 1'048'575}),
                run.all);
  CHECK_MESSAGE(run.says(1, {"fine"}), run.all);
}

TEST_CASE("declarations that differ are an error on both ranks, with both values") {
  const job_run run("mismatch", 2);
  for (const rank_id r : {rank_id{0}, rank_id{1}}) {
    CAPTURE(r);
    for (const char* declared : {"dtype bf16", "dtype fp32"})
      CHECK_MESSAGE(is(run.error_of(r, "last call"),
                       {.code = errc::declaration_mismatch, .op = "activations 0->1", .quotes = declared}),
                    run.all);
  }
}

TEST_CASE("what is thrown and is no std::exception ends its rank with status 1, and the others are told of it") {
  const job_run run("throws_a_number", 2);
  CHECK(run.end.ranks[1].kind == transports::rank_end::how::exited);
  // Only a rank that throws such a thing makes this sentence.
  const std::string said = "exception: the program threw something that is no std::exception; throw one, so that its "
                           "text can be shown";
  CHECK_MESSAGE(run.says(1, {("rank 1: " + said).c_str()}), run.all);
  CHECK_MESSAGE(
      is(run.error_of(0, "last call"),
         {.code = errc::peer_failed, .op = "activations 1->0", .rank = 0, .peer = 1, .culprit = 1, .quotes = said}),
      run.all);
}

TEST_CASE("a receive whose sender has returned is told that") {
  const job_run run("returns_at_once", 2);
  CHECK_MESSAGE(is(run.error_of(0, "last call"), {.code = errc::peer_failed,
                                                  .op = "activations 1->0",
                                                  .rank = 0,
                                                  .peer = 1,
                                                  .culprit = 1,
                                                  .quotes = words_of_return(1)}),
                run.all);
  CHECK(run.end.ranks[1].code == 0);
  CHECK(run.seconds < 20);
}

TEST_CASE("a send to a rank that has returned ends, and it is said that the message was not taken") {
  for (int times = 0; times < 3; ++times) {
    const job_run run("returns_before_declaring", 2);
    // A transport that is left with a message which nobody fetches either ends its send well or breaks off.
    if (run.end.ranks[0].code == 0) {
      CHECK_MESSAGE(run.says(0, {"warning: activations 0->1, on rank 0: rank 1 has not taken 1 of the 1 messages"}),
                    run.all);
    } else {
      CHECK(run.end.ranks[0].code == 1);
      CHECK_MESSAGE(
          is(run.error_of(0, "last call"), {.code = errc::peer_failed, .op = "activations 0->1", .rank = 0, .peer = 1}),
          run.all);
    }
    CHECK(run.end.ranks[1].code == 0);
    CHECK(run.seconds < 20);
  }
}

TEST_CASE("messages that nobody took are told when their sender leaves") {
  const job_run run("takes_nothing", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(
      run.says(0, {"warning: activations 0->1, on rank 0: rank 1 has not taken ", " messages that were sent to it"}),
      run.all);
}

TEST_CASE("a declaration that was refused makes the status 1, also where no call has seen it") {
  const job_run run("refused_after_sending", 2);
  for (const rank_id r : {rank_id{0}, rank_id{1}}) {
    CHECK_MESSAGE(run.says(r, {"no call has failed"}), run.all);
    CHECK_MESSAGE(run.says(r, {"declaration_mismatch: activations 0->1"}), run.all);
    CHECK(run.end.ranks[r].kind == transports::rank_end::how::exited);
    CHECK(run.end.ranks[r].code == 1);
  }
}

TEST_CASE("four ranks run a pipeline whose edges tune themselves, bit for bit") {
  const job_run run("four_stages", 4);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK(run.joined().first >= 3 * 60);
  CHECK(run.joined().second == 0);
}

TEST_CASE("four ranks reduce with a leader while they agree: every sum is right, and all run one config each time") {
  const job_run run("leader_and_workers", 4);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK(run.joined().first >= 3 * 100);
  CHECK(run.joined().second == 0);
  CHECK_MESSAGE(run.says(1, {"campaign", "trials"}), run.all);
  CHECK_MESSAGE(run.says(1, {"candidates star"}), run.all);
}

TEST_CASE("on SIGUSR1 each rank writes its flight recorder, and goes on") {
  const folder where;
  const job_run run("signalled", 2, {{"PARLEY_FLIGHT_DIR", where.path.string()}});
  CHECK_MESSAGE(run.fine(), run.all);
  for (rank_id r = 0; r < 2; ++r) {
    CHECK_MESSAGE(run.says(r, {"written"}), run.all);
    std::ifstream file(where.path / ("parley-flight-" + std::to_string(r) + ".json.kept"));
    std::ostringstream text;
    text << file.rdbuf();
    CHECK(text.str().find("\"why\":\"signal SIGUSR1\"") != std::string::npos);
    CHECK(text.str().find("\"op\":\"activations 0->1\"") != std::string::npos);
    CHECK(text.str().find("\"config\":\"direct\"") != std::string::npos);
  }
}

TEST_CASE("on SIGUSR1 without a folder for it the record goes among the temporary files, and the rank goes on") {
  const folder temporary;
  const job_run run("signalled_without_folder", 1, {{"TMPDIR", temporary.path.string()}});
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(0, {"goes on"}), run.all);
  CHECK_MESSAGE(run.says(0, {temporary.path.c_str(), "parley-flight-0.json"}), run.all);
  std::string found;
  for (const auto& file : std::filesystem::recursive_directory_iterator(temporary.path)) {
    if (file.path().filename() == "parley-flight-0.json") found = text_of(file.path());
  }
  CHECK(found.find("\"why\":\"signal SIGUSR1\"") != std::string::npos);
}

TEST_CASE("a program that handles SIGUSR1 itself keeps its handler") {
  const folder where;
  const job_run run("signalled_with_own_handler", 1, {{"PARLEY_FLIGHT_DIR", where.path.string()}});
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(run.says(0, {"own handler"}), run.all);
  CHECK_MESSAGE(run.says(0, {"not written"}), run.all);
}

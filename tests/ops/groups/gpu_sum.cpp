// Leased sums on GPUs, over fake CUDA and NCCL: two ranks that stand for processes, on one GPU or one each, and many ranks of one process.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/gpu_members.hpp>
#include <parley/tests/support/groups.hpp>

#include <doctest/doctest.h>
#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/cuda_space.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

/// Sums the data in two halves and then waits 20 ms, so that it is never the fastest.
class roundabout final : public symmetric_config {
 public:
  roundabout() : symmetric_config({.name = "roundabout", .wire_class = "roundabout"}) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    auto& world = dynamic_cast<gpu_world&>(*call.communicator);
    co_await world.run(gpu_sum::by_nccl(data.first(data.size() / 2 / 4 * 4)));
    co_await world.run(gpu_sum::by_nccl(data.subspan(data.size() / 2 / 4 * 4)));
    scope& here = co_await this_scope;
    auto rested = co_await sleep_until(here.where().precise_now() + 20'000'000);
    static_cast<void>(rested);
  }
};

TEST_CASE("NCCL sums are rehearsed on communicators of their own, reach a decision, and are right in every call") {
  two_members w({std::make_shared<roundabout>(), nccl_sum()});
  std::size_t wrong = 0;
  for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
  CHECK_FALSE(w.winner().empty());
  wrong += w.sum(20);
  CHECK(wrong == 0);
  CHECK(w.library.aborts == 0);
  CHECK(w.library.communicators() == 4);  // two for rehearsals, two of the user
  w.ranks.clear();
  CHECK(w.library.communicators() == 2);  // the user's
}

TEST_CASE("an NCCL sum is captured once for each buffer, and each member keeps at most 64 captures") {
  {
    two_members w({std::make_shared<roundabout>(), nccl_graph_sum()});
    std::size_t wrong = 0;
    for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
    CHECK_MESSAGE(w.winner() == "nccl_graph_sum", w.why());
    wrong += w.sum(20);
    CHECK(wrong == 0);
    w.ranks.clear();
    CHECK(w.gpu.graphs() <= 2);  // the graphs of rehearsals have ended with their communicators
  }
  two_members w({nccl_sum()});
  const auto sum_part = [](two_members& all, rank_id r, std::size_t from) -> task<> {
    auto& world = dynamic_cast<gpu_world&>(*all.worlds[r]);
    co_await world.run(gpu_sum::by_nccl(all.memory[r].bytes().subspan(from, 64)), true);
  };
  for (std::size_t part = 0; part < 100; ++part) {
    for (int again = 0; again < 2; ++again) {
      scope both(w.loop);
      for (rank_id r = 0; r < 2; ++r) both.spawn(sum_part(w, r, part * 4));
      const auto join = [](scope& s) -> task<> { co_await s.join(); };
      runtime::run(w.loop, join(both));
    }
  }
  CHECK(w.gpu.graphs() == 2 * 64);
}

TEST_CASE("kernel_sum is a candidate next to NCCL, the sums are right and no memory stays mapped afterwards") {
  {
    two_members w({std::make_shared<roundabout>(), kernel_sum(), nccl_sum()});
    std::size_t wrong = 0;
    for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
    CHECK_FALSE(w.winner().empty());
    CHECK(w.ends[0].end().assigned()->find(two_members::bytes)->excluded().empty());
    wrong += w.sum(20);
    CHECK(wrong == 0);
    CHECK(w.gpu.imported == 4);
    w.ranks.clear();
    w.worlds = {};
    w.sources.clear();
    CHECK(w.gpu.imported == 0);
  }
  CHECK_THROWS_AS(kernel_sum(0), failure);
  CHECK_THROWS_AS(kernel_sum(65), failure);
}

TEST_CASE("an op reports that it has no common config if one rank's user masks the only candidate") {
  two_members w({std::make_shared<roundabout>(), nccl_sum()}, {true, false});
  const auto missing = [&] {
    for (const auto& a : w.ranks[0]->agreements()) {
      if (a.op == "sums") return a.no_common_config;
    }
    return std::string();
  };
  std::size_t wrong = 0;
  for (const deadline limit; missing().empty() && !limit.is_over();) wrong += w.sum(5);
  wrong += w.sum(20);
  CHECK(wrong == 0);
  CHECK(missing().find("rank 1 (member) has roundabout") != std::string::npos);
}

namespace {
/// A call of rank 0 that rank 1 never joins.
task<errc> alone(two_members& w) {
  auto ended = co_await attempt(w.ends[0].run(w.memory[0].bytes(), {.timeout = 50ms}));
  co_return ended.code();
}
}  // namespace

namespace {
task<> call_alone(two_members& w, errc& outcome) { outcome = co_await alone(w); }
task<> message_after(two_members& w, time_ns span, std::uint64_t number, const errc& outcome, errc& seen) {
  static_cast<void>(co_await sleep_until(w.loop.deadline_in(span)));
  seen = outcome;
  w.copies[0]->came(number, errc::none);
}
}  // namespace

TEST_CASE("a failed sum whose stream waits for a message ends with its own error, once that message has arrived") {
  two_members w({nccl_sum()});
  CHECK(w.sum(3) == 0);
  const auto message = transports::cuda_memory::on_device(w.gpu, 0, 64);
  const transports::cuda_stream stream = w.gpu.make_stream(0);
  const std::uint64_t number = w.copies[0]->expect(message.bytes());
  CHECK(w.copies[0]->wait_on(message.bytes(), stream) == errc::none);
  w.gpu.launch(stream, 0, [] {});
  CHECK(w.copies[0]->after(w.memory[0].bytes(), stream) == errc::none);
  errc outcome = errc::pending;
  errc seen = errc::none;
  {
    scope both(w.loop);
    both.spawn(call_alone(w, outcome));
    both.spawn(message_after(w, 200'000'000, number, outcome, seen));  // long after the call has timed out
    const auto join = [](scope& s) -> task<> { co_await s.join(); };
    runtime::run(w.loop, join(both));
  }
  CHECK(seen == errc::pending);
  CHECK(outcome == errc::timeout);
  w.end();
  w.gpu.destroy(stream);
}

namespace {
task<> what_is_late(two_members& w, const errc& outcome, errc& seen) {
  static_cast<void>(co_await sleep_for(200ms));
  while (w.library.late() == 0) static_cast<void>(co_await sleep_for(1ms));  // on a busy machine the call ends later
  seen = outcome;
  w.library.come_late();
}
}  // namespace

TEST_CASE(
    "a communicator whose call was torn down while NCCL connected ends only when NCCL can no longer use a stream") {
  two_members w({nccl_sum()});
  CHECK(w.sum(3) == 0);
  w.library.asked_per_call = 1'000'000'000;
  w.library.aborts_are_late = true;
  {
    scope torn(w.loop);
    torn.spawn(two_members::call(w, 0));
    int turns = 0;
    run_until(w.loop, [&] { return ++turns > 2'000; });
  }
  // Stands for NCCL's own thread, while the rank's thread only waits.
  std::thread of_nccl([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    w.library.come_late();
  });
  w.end();
  CHECK(w.library.late() == 0);
  of_nccl.join();
}

// A job waits for the end of its kernels before it destroys anything else.
TEST_CASE("a torn-down sum whose kernel waits for another member releases its GPU") {
  two_members w({kernel_sum()});
  CHECK(w.sum(3) == 0);
  {
    scope torn(w.loop);
    torn.spawn(two_members::call(w, 0));
    int turns = 0;
    run_until(w.loop, [&] { return ++turns > 2'000; });
    CHECK(w.copies[0]->pending() != 0);
  }
  for (const deadline limit; w.copies[0]->pending() != 0 && !limit.is_over();) w.copies[0]->poll();
  CHECK(w.copies[0]->pending() == 0);
}

namespace {
/// A kernel sum. When it is rehearsed, rank 1 puts nothing into its stream.
class half_rehearsed final : public symmetric_config {
 public:
  half_rehearsed() : symmetric_config({.name = "half_rehearsed", .wire_class = "kernel_sum"}) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    if (call.self == 1 && call.on == symmetric_call::stream::rehearsal) {
      auto woken = co_await sleep_until(never);
      woken.value();
    }
    co_await dynamic_cast<gpu_world&>(*call.communicator).run(gpu_sum::by_kernel(data, 8));
  }
};
task<> calls(two_members& w) {
  for (;;) co_await two_members::both_call(w);
}
}  // namespace

TEST_CASE("a rank that ends while a rehearsal's kernel waits for another member releases its GPU") {
  two_members w({nccl_sum(), std::make_shared<half_rehearsed>()});
  scope working(w.loop);
  working.spawn(calls(w));
  const deadline limit;
  run_until(w.loop, [&] { return w.gpu.sums_that_wait() != 0 || limit.is_over(); });
  REQUIRE(w.gpu.sums_that_wait() == 1);
  // A job ends its ranks in this way.
  w.ranks[0]->abandon_rehearsals();
  while (w.copies[0]->pending() != 0 && !limit.is_over()) w.copies[0]->poll();
  CHECK(w.copies[0]->pending() == 0);
  CHECK(w.gpu.sums_that_wait() == 0);
}

namespace {
task<> note(std::function<task<>()> call, errc& outcome) {
  try {
    co_await call();
    outcome = errc::none;
  } catch (const failure& f) {
    outcome = f.code();
  }
}
}  // namespace

TEST_CASE("giving up a communicator that no call has used does not wait for NCCL to end it") {
  two_members w({nccl_sum()});
  w.library.asked_per_call = 1'000'000'000;
  w.library.aborts_are_late = true;
  std::atomic<bool> is_over{false};
  std::atomic<bool> was_late{false};
  std::thread of_nccl([&] {
    for (int i = 0; i < 20'000 && !is_over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    was_late = !is_over;
    w.library.come_late();
  });
  errc outcome = errc::none;
  scope connecting(w.loop);
  const auto id = w.sources[0]->make_id();
  connecting.spawn(note([&] { return two_members::connect_both(w, id); }, outcome));
  int turns = 0;
  run_until(w.loop, [&] { return ++turns > 2'000; });
  connecting.cancel(errc::cancelled);
  run_until(w.loop, [&] { return connecting.running() == 0; });
  is_over = true;
  of_nccl.join();
  CHECK(outcome == errc::cancelled);
  CHECK_FALSE(was_late);
}

TEST_CASE("a stream into which NCCL may still capture a sum is kept until NCCL is done with it") {
  two_members w({nccl_graph_sum()});
  CHECK(w.sum(3) == 0);
  w.library.asked_per_call = 1'000'000'000;
  w.library.aborts_are_late = true;
  const auto other = transports::cuda_memory::on_device(w.gpu, 0, 64);  // no sum over it is captured yet
  errc outcome = errc::pending;
  scope one(w.loop);
  one.spawn(note([&] { return w.world(0).run(gpu_sum::by_nccl(other.bytes()), true); }, outcome));
  const std::size_t streams = w.gpu.streams();
  int turns = 0;
  run_until(w.loop, [&] { return ++turns > 1'000; });
  CHECK(w.gpu.streams() == streams + 1);
  one.cancel(errc::timeout);
  run_until(w.loop, [&] { return ++turns > 2'000; });
  CHECK(w.library.late() == 1);
  CHECK(w.gpu.streams() == streams + 1);
  w.library.come_late();
  run_until(w.loop, [&] { return one.running() == 0; });
  CHECK(outcome == errc::timeout);
  CHECK(w.gpu.streams() == streams);  // NCCL frees no communicator that a capture names
  w.end();
}

TEST_CASE("a call cancelled before its turn ends with its own error, and the call ahead of it ends with unavailable") {
  two_members w({nccl_sum()});
  CHECK(w.sum(3) == 0);
  w.library.asked_per_call = 1'000'000'000;
  errc first = errc::pending;
  errc second = errc::pending;
  scope one(w.loop);
  scope another(w.loop);
  const auto sum = [&] { return w.world(0).run(gpu_sum::by_nccl(w.memory[0].bytes())); };
  one.spawn(note(sum, first));
  int turns = 0;
  run_until(w.loop, [&] { return ++turns > 1'000; });
  another.spawn(note(sum, second));
  run_until(w.loop, [&] { return ++turns > 2'000; });
  another.cancel(errc::timeout);
  const deadline limit;
  run_until(w.loop, [&] { return (one.running() == 0 && another.running() == 0) || limit.is_over(); });
  CHECK(second == errc::timeout);
  CHECK(first == errc::unavailable);
  one.cancel(errc::cancelled);  // if it has not ended yet
}

namespace {
task<> sum_both(two_members* w, rank_id r, std::span<std::byte> once_more, int later) {
  scope& here = co_await this_scope;
  scope two(here);
  two.spawn(w->world(r).run(gpu_sum::by_nccl(w->memory[r].bytes()), true));
  for (int turn = 0; turn < later; ++turn) co_await yield;
  two.spawn(w->world(r).run(gpu_sum::by_nccl(once_more), true));
  co_await two.join();
}
}  // namespace

TEST_CASE("two members make their captured sums in one order, although one member starts its second sum later") {
  two_members w({nccl_sum()});
  constexpr std::size_t count = two_members::bytes / sizeof(float);
  std::vector<transports::cuda_memory> second;
  for (rank_id r = 0; r < 2; ++r) second.push_back(transports::cuda_memory::on_device(w.gpu, int(r), w.bytes));
  const auto first_of = [&](rank_id r) { return reinterpret_cast<float*>(w.gpu.shadow(w.memory[r].bytes().data())); };
  const auto second_of = [&](rank_id r) { return reinterpret_cast<float*>(w.gpu.shadow(second[r].bytes().data())); };
  for (rank_id r = 0; r < 2; ++r) {
    std::fill_n(first_of(r), count, r == 0 ? 1.0F : 10.0F);
    std::fill_n(second_of(r), count, r == 0 ? 100.0F : 1000.0F);
  }
  scope all(w.loop);
  for (rank_id r = 0; r < 2; ++r) all.spawn(sum_both(&w, r, second[r].bytes(), r == 0 ? 0 : 500));
  const auto join = [](scope& s) -> task<> { co_await s.join(); };
  runtime::run(w.loop, join(all));
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(first_of(r)[0] == 11);
    CHECK(second_of(r)[count - 1] == 1100);
  }
  w.end();
}

TEST_CASE("a sum that times out while NCCL connects ends only when NCCL can no longer use its stream") {
  two_members w({nccl_sum()});
  CHECK(w.sum(3) == 0);
  w.library.asked_per_call = 1'000'000'000;
  w.library.aborts_are_late = true;
  errc outcome = errc::pending;
  errc seen = errc::none;
  scope both(w.loop);
  both.spawn(call_alone(w, outcome));
  both.spawn(what_is_late(w, outcome, seen));
  const auto join = [](scope& s) -> task<> { co_await s.join(); };
  runtime::run(w.loop, join(both));
  CHECK(seen == errc::pending);
  CHECK(outcome == errc::timeout);
}

namespace {
// A message that arrives 30 ms after the calls have started, and sets all numbers to `value`.
task<> message_into(two_members& w, std::uint64_t number, float* to, std::size_t count, float value) {
  static_cast<void>(co_await sleep_until(w.loop.deadline_in(30'000'000)));
  std::fill_n(to, count, value);
  w.copies[0]->came(number, errc::none);
}
}  // namespace

TEST_CASE("a sum runs after a kernel on its numbers that itself waits for a message") {
  for (const auto& how : {nccl_sum(), kernel_sum(), gathered_sum()}) {
    CAPTURE(how->id());
    two_members w({how});
    constexpr std::size_t count = two_members::bytes / sizeof(float);
    std::array<float*, 2> numbers{};
    for (std::size_t r = 0; r < 2; ++r) {
      numbers[r] = reinterpret_cast<float*>(w.gpu.shadow(w.memory[r].bytes().data()));
      std::fill_n(numbers[r], count, 1.0F);
    }
    const transports::cuda_stream stream = w.gpu.make_stream(0);
    const std::uint64_t number = w.copies[0]->expect(w.memory[0].bytes());
    CHECK(w.copies[0]->wait_on(w.memory[0].bytes(), stream) == errc::none);
    w.gpu.launch(stream, 50, [&] { std::for_each_n(numbers[0], count, [](float& n) { n *= 2; }); });
    CHECK(w.copies[0]->after(w.memory[0].bytes(), stream) == errc::none);
    {
      scope all(w.loop);
      for (rank_id r = 0; r < 2; ++r) all.spawn(two_members::call(w, r));
      all.spawn(message_into(w, number, numbers[0], count, 100));
      const auto join = [](scope& s) -> task<> { co_await s.join(); };
      runtime::run(w.loop, join(all));
    }
    CHECK(numbers[1][0] == 201);
    CHECK(numbers[1][count - 1] == 201);
    w.end();
    w.gpu.destroy(stream);
  }
}

TEST_CASE("an NCCL sum times out if the other member never joins, and its communicator is aborted") {
  two_members w({nccl_sum()});
  CHECK(w.sum(3) == 0);
  CHECK(runtime::run(w.loop, alone(w)) == errc::timeout);
  CHECK(w.library.communicators() == 1);
  CHECK(w.copies[0]->pending() == 0);
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, w.world(0).run(gpu_sum::by_nccl(w.memory[0].bytes()))),
                       doctest::Contains("was aborted"), failure);
}

TEST_CASE("a kernel_sum times out and its kernel stops if the other member never joins") {
  two_members w({kernel_sum()});
  CHECK(w.sum(3) == 0);
  CHECK(runtime::run(w.loop, alone(w)) == errc::timeout);
  CHECK(w.copies[0]->pending() == 0);
}

TEST_CASE("a gathered_sum times out if the other member never joins, and later calls are refused") {
  two_members w({gathered_sum()}, {}, false, /*devices=*/1);
  CHECK(w.sum(3) == 0);
  CHECK(runtime::run(w.loop, alone(w)) == errc::timeout);
  CHECK(w.copies[0]->pending() == 0);
  CHECK(w.world(0).aborted());
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, w.world(0).run(gpu_sum::by_gathering(w.memory[0].bytes(), 8))),
                       doctest::Contains("was aborted"), failure);
}

namespace {
task<> sums(two_members& w, rank_id r, gpu_sum::way how) { co_await w.world(r).run({how, w.memory[r].bytes(), 8}); }
/// Both members make one call. Both must get the sum.
void both_sum(two_members& w, gpu_sum::way how) {
  w.put(0, 1);
  w.put(1, 5);
  scope both(w.loop);
  for (rank_id r = 0; r < 2; ++r) both.spawn(sums(w, r, how));
  const auto join = [](scope& s) -> task<> { co_await s.join(); };
  runtime::run(w.loop, join(both));
  CHECK(w.holds(0, 6));
  CHECK(w.holds(1, 6));
}
task<errc> how_it_ends(two_members& w, rank_id r, gpu_sum::way how, std::size_t bytes) {
  auto ended = co_await attempt(w.world(r).run({how, w.memory[r].bytes().first(bytes), 8}));
  co_return ended.code();
}
}  // namespace

namespace {
task<> waits_for_the_other(two_members& w, errc* outcome) {
  *outcome = co_await how_it_ends(w, 0, gpu_sum::way::gathered, two_members::bytes);
}
constexpr int once_it_has_told = 0;
task<errc> aborted_after(two_members& w, int turns) {
  scope& here = co_await this_scope;
  errc ended = errc::none;
  scope waiting(here);
  waiting.spawn(waits_for_the_other(w, &ended));
  for (int i = 0; i < turns; ++i) co_await yield;
  if (turns == once_it_has_told) {
    const deadline limit;
    while (w.copies[0]->pending() == 0 && !limit.is_over()) co_await yield;
    while (w.copies[0]->pending() != 0 && !limit.is_over()) co_await yield;
    for (int i = 0; i < 20; ++i) co_await yield;
  }
  CHECK(ended == errc::none);
  w.world(0).abort();
  co_await waiting.join();
  co_return ended;
}
}  // namespace

TEST_CASE("aborting a communicator ends a waiting gathered_sum with unavailable, at whatever moment") {
  for (const int turns : {1, 2, 5, 10, 20, 100, once_it_has_told}) {
    CAPTURE(turns);
    two_members w({gathered_sum()}, {}, false, /*devices=*/1);
    CHECK(runtime::run(w.loop, aborted_after(w, turns)) == errc::unavailable);
  }
}

TEST_CASE("members that call gathered_sum with different sizes both get config_mismatch") {
  two_members w({gathered_sum()}, {}, false, /*devices=*/1);
  const auto differ = [](two_members& all) -> task<> {
    scope& here = co_await this_scope;
    scope both(here);
    const auto one = [](two_members& of, rank_id r) -> task<> {
      const errc how = co_await how_it_ends(of, r, gpu_sum::way::gathered, 64 + 64 * r);
      CHECK(how == errc::config_mismatch);
    };
    both.spawn(one(all, 0));
    both.spawn(one(all, 1));
    co_await both.join();
  };
  runtime::run(w.loop, differ(w));
}

TEST_CASE("only gathered sums are candidates for members that share a GPU, and every member knows the reason") {
  two_members w({nccl_sum(), nccl_graph_sum(), kernel_sum(), gathered_sum(8), gathered_sum(32)}, {}, false,
                /*devices=*/1);
  std::size_t wrong = w.sum_until_decided();
  CHECK(w.winner().starts_with("gathered_sum"));
  wrong += w.sum(20);
  CHECK(wrong == 0);
  for (rank_id r = 0; r < 2; ++r) {
    CAPTURE(r);
    for (const auto& config : {nccl_sum(), nccl_graph_sum()}) {
      const std::string why = w.why_excluded(r, config);
      CHECK_MESSAGE(why.find("NCCL needs one process and one GPU per member, but members 0 and 1 share GPU-fake-0") !=
                        std::string::npos,
                    why);
    }
    const std::string why = w.why_excluded(r, kernel_sum());
    CHECK_MESSAGE(
        why.find("its kernels wait for each other, but members 0 and 1 share GPU-fake-0") != std::string::npos, why);
    for (const auto& config : {gathered_sum(8), gathered_sum(32)}) CHECK(w.why_excluded(r, config) == "");
  }
  CHECK(w.library.communicators() == 0);
  CHECK(w.gpu.imported > 0);
  w.end();
  CHECK(w.gpu.imported == 0);
}

TEST_CASE("successive communicators reuse the same boxes, whatever values were left in them") {
  two_members w({gathered_sum()});
  runtime::run(w.loop, two_members::connect_both(w, w.sources[0]->make_id()));
  runtime::run(w.loop, two_members::connect_both(w, w.sources[0]->make_id()));
  const std::size_t blocks = w.gpu.blocks();
  for (int times = 0; times < 5; ++times) {
    for (int calls = 0; calls <= times; ++calls) {
      both_sum(w, gpu_sum::way::kernel);
      both_sum(w, gpu_sum::way::gathered);
    }
    runtime::run(w.loop, two_members::connect_both(w, w.sources[0]->make_id()));
    CHECK(w.gpu.blocks() == blocks);
  }
}

TEST_CASE("gathered sums are candidates next to NCCL and kernel sums if each member has its own GPU") {
  two_members w({std::make_shared<roundabout>(), nccl_sum(), nccl_graph_sum(), kernel_sum(), gathered_sum(8)});
  std::size_t wrong = w.sum_until_decided();
  CHECK_FALSE(w.winner().empty());
  CHECK(w.ends[0].end().assigned()->find(two_members::bytes)->excluded().empty());
  wrong += w.sum(20);
  CHECK(wrong == 0);
  for (int turn = 0; turn < 3; ++turn) {
    for (const auto how : {gpu_sum::way::gathered, gpu_sum::way::kernel, gpu_sum::way::nccl}) both_sum(w, how);
  }
}

namespace {
/// Makes one call after the other, without waiting for the other member's calls.
task<> sums_in_a_row(two_members& w, rank_id r) {
  for (int call = 0; call < 30; ++call) {
    w.put(r, static_cast<float>(call * (1 + r)));
    co_await sums(w, r, gpu_sum::way::gathered);
    CHECK(w.holds(r, static_cast<float>(call * 3)));
  }
}
}  // namespace

// One member's kernel reads for so long that the other member would fill its box again meanwhile.
TEST_CASE("a member does not overwrite a box that another member still reads") {
  two_members w({gathered_sum()});
  w.gpu.ticks_of_sums[1] = 300;
  scope both(w.loop);
  for (rank_id r = 0; r < 2; ++r) both.spawn(sums_in_a_row(w, r));
  const auto join = [](scope& s) -> task<> { co_await s.join(); };
  runtime::run(w.loop, join(both));
}

TEST_CASE("NCCL, shared memory or a config that one rank is set to do without is excluded on all ranks") {
  const std::vector<symmetric_config_ptr> all{gathered_sum(8), nccl_sum(), kernel_sum(), gathered_sum(32)};
  {
    two_members w(all, {true, true, true, false});
    CHECK(w.sum_until_decided() == 0);
    CHECK(w.sum(20) == 0);
    for (rank_id r = 0; r < 2; ++r) {
      const decision d = w.ends[r].decision(two_members::bytes);
      CHECK(d.evidence.size() >= 3);
      for (const auto& e : d.evidence) CHECK((e.config != gathered_sum(32)->id() || e.status != "measured"));
    }
  }
  two_members without_nccl(all, {}, false, 2, "1:nccl");
  CHECK(without_nccl.library.communicators() == 0);
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(without_nccl.world(r).lacks(gpu_sum::way::nccl).find("member 1 has no NCCL: ") == 0);
    CHECK(without_nccl.world(r).lacks(gpu_sum::way::kernel).empty());
    CHECK(without_nccl.world(r).lacks(gpu_sum::way::gathered).empty());
  }
  CHECK(without_nccl.sum_until_decided() == 0);
  two_members without_ipc({nccl_sum(), gathered_sum(8)}, {}, false, 2, "0:ipc");
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(without_ipc.world(r).lacks(gpu_sum::way::nccl).empty());
    const std::string why = without_ipc.world(r).lacks(gpu_sum::way::gathered);
    CHECK_MESSAGE(why.find("member 0 cannot share memory with the others: ") != std::string::npos, why);
  }
  both_sum(without_ipc, gpu_sum::way::nccl);
  two_members without_reach({nccl_sum(), gathered_sum(8)}, {}, false, 2, "peer_access");
  CHECK_FALSE(without_reach.world(0).lacks(gpu_sum::way::gathered).empty());
  two_members on_one({gathered_sum(8)}, {}, false, 1, "peer_access");  // one GPU needs no peer access
  CHECK(on_one.sum(3) == 0);
  CHECK_THROWS_WITH_AS(two_members({nccl_sum(), gathered_sum(8)}, {}, false, 1, "0:ipc"),
                       doctest::Contains("its members cannot sum: NCCL needs one process and one GPU per member"),
                       failure);
}

TEST_CASE("if NCCL refuses to connect, at once or later, the members sum without it and report why") {
  for (const auto how : {fake_nccl::connecting_state::refused, fake_nccl::connecting_state::fails}) {
    two_members w({nccl_sum(), gathered_sum(8)});
    w.library.connecting = how;
    runtime::run(w.loop, two_members::connect_both(w, w.sources[0]->make_id()));
    w.library.connecting = fake_nccl::connecting_state::works;
    for (rank_id r = 0; r < 2; ++r) {
      const std::string why = w.world(r).lacks(gpu_sum::way::nccl);
      CHECK_MESSAGE(why.find("NCCL has refused member 0: NCCL: ") == 0, why);
    }
    CHECK(w.library.communicators() == 2);  // of the worlds that `two_members` made
    both_sum(w, gpu_sum::way::gathered);
    both_sum(w, gpu_sum::way::kernel);
    const auto order = default_first(*w.worlds[0], {nccl_sum(), gathered_sum(8)});
    CHECK(order[0]->id() == gathered_sum(8)->id());
    CHECK(order[1]->id() == nccl_sum()->id());
    CHECK_THROWS_WITH_AS(default_first(*w.worlds[0], {nccl_sum()}), doctest::Contains("NCCL has refused member 0"),
                         failure);
  }
}

TEST_CASE("concurrent sums run in the order of their calls, whatever one member does between its calls") {
  constexpr std::size_t calls = 5;
  constexpr std::size_t part = two_members::bytes / calls;
  const auto all_at_once = [](two_members& w, rank_id r, gpu_sum::way how) -> task<> {
    scope& here = co_await this_scope;
    scope at_once(here);
    for (std::size_t i = 0; i < calls; ++i) {
      at_once.spawn(w.world(r).run({how, w.memory[r].bytes().subspan(i * part, part), 8}));
      for (std::size_t turn = 0; turn < 2 * r * i; ++turn) co_await runtime::yield;
    }
    co_await at_once.join();
  };
  const auto on_both = [&](two_members& w, gpu_sum::way how) -> task<> {
    scope& here = co_await this_scope;
    scope both(here);
    both.spawn(all_at_once(w, 0, how));
    both.spawn(all_at_once(w, 1, how));
    co_await both.join();
  };
  for (const auto how : {gpu_sum::way::gathered, gpu_sum::way::nccl, gpu_sum::way::kernel}) {
    CAPTURE(static_cast<int>(how));
    two_members w({nccl_sum(), gathered_sum(8)});
    w.put(0, 1);
    w.put(1, 1'000);
    runtime::run(w.loop, on_both(w, how));
    CHECK(w.holds(0, 1'001));
    CHECK(w.holds(1, 1'001));
  }
}

TEST_CASE("if NCCL refuses one member the other one stops waiting and both sum without NCCL") {
  two_members w({nccl_sum(), gathered_sum(8)});
  w.library.refuses_place = 1;
  runtime::run(w.loop, two_members::connect_both(w, w.sources[0]->make_id()));
  for (rank_id r = 0; r < 2; ++r) CHECK(w.world(r).lacks(gpu_sum::way::nccl).find("NCCL has refused member 1") == 0);
  CHECK(w.library.communicators() == 2);  // of the worlds that `two_members` made
  both_sum(w, gpu_sum::way::gathered);
}

namespace {
constexpr std::size_t floats_of_many = 1'000;

struct one_of_many {
  std::string winner;
  std::size_t wrong = 0;
  std::vector<std::pair<std::string, std::string>> excluded;
};

/// Makes calls until all ranks know the decision, and about 20 calls more.
task<> sums_among_many(one_process* job, fake_nccl* nccl, rank_id me, std::vector<one_of_many>* all, int* last_call) {
  rank& self = (*job)[me];
  one_of_many& mine = (*all)[me];
  transports::cuda_space& space = *job->gpu_memory(me);
  auto& gpu = dynamic_cast<fake_cuda&>(job->gpu(me)->driver());
  const gpu_world_source::options with{.nccl = nccl, .kernel_bytes = floats_of_many * sizeof(float)};
  const auto source = std::make_shared<gpu_world_source>(self, "sums", *job->gpu(me), with);
  symmetric_options op{.name = "sums", .rehearse = source};
  op.communicator = co_await source->connect_all();
  op.configs =
      default_first(*op.communicator, {nccl_sum(), nccl_graph_sum(), kernel_sum(), gathered_sum(8), gathered_sum(32)});
  op.memory = &space;
  symmetric sums(self, op);
  const auto block = space.make(floats_of_many * sizeof(float));
  std::byte* const at = gpu.shadow(block->bytes().data());
  const deadline limit;
  for (int call = 0; *last_call < 0 || call <= *last_call; ++call) {
    std::vector<float> numbers = contribution(me, floats_of_many);
    std::memcpy(at, numbers.data(), block->bytes().size());
    co_await sums.run(block->bytes());
    std::memcpy(numbers.data(), at, block->bytes().size());
    mine.wrong += wrong_sums(numbers, self.world_size());
    for (int i = 0; i < 20; ++i) co_await yield;
    const decision d = sums.decision(block->bytes().size());
    mine.excluded.clear();
    for (const auto& e : d.evidence) {
      if (e.status != "measured") mine.excluded.emplace_back(e.config, e.detail);
    }
    if (d.decided) mine.winner = d.config;
    const bool all_know = std::ranges::none_of(*all, [](const one_of_many& m) { return m.winner.empty(); });
    if (*last_call < 0 && (all_know || limit.is_over())) *last_call = call + 20;
  }
}
}  // namespace

TEST_CASE("many ranks of one process sum on one GPU, or on two that reach each other, using only gathered_sum") {
  const transports::cuda_device first{
      .name = "fake", .compute_capability = 90, .multiprocessors = 1, .uuid = "GPU-A", .peers = {1}};
  const transports::cuda_device second{
      .name = "fake", .compute_capability = 90, .multiprocessors = 1, .uuid = "GPU-B", .peers = {0}};
  for (const auto& devices : {std::vector{first}, std::vector{first, second}}) {
    for (const rank_id ranks : {2, 4, 8}) {
      CAPTURE(devices.size());
      CAPTURE(ranks);
      fake_cuda gpu(devices);
      fake_nccl nccl(gpu);
      std::vector<one_of_many> seen(ranks);
      int last_call = -1;
      {
        one_process job({.ranks = ranks, .settings = eager_trials(), .gpu = &gpu});
        job.run([&](rank& self) { return sums_among_many(&job, &nccl, self.id(), &seen, &last_call); });
      }
      for (const one_of_many& s : seen) {
        CHECK(s.wrong == 0);
        CHECK(s.winner.starts_with("gathered_sum"));
        CHECK(s.winner == seen[0].winner);
        REQUIRE(s.excluded.size() == 3);
        for (const auto& [config, why] : s.excluded) {
          CAPTURE(config);
          const char* const shared = devices.size() == 1 || ranks > 2 ? "share GPU-" : "shares its process";
          CHECK_MESSAGE(why.find(shared) != std::string::npos, why);
        }
      }
      CHECK(gpu.imported == 0);
    }
  }
}

TEST_CASE("ranks of one process whose GPUs cannot reach each other fail to sum, and name the reason") {
  fake_cuda gpu(2);
  fake_nccl nccl(gpu);
  one_process job({.ranks = 2, .gpu = &gpu});
  std::vector<one_of_many> seen(2);
  int last_call = -1;
  CHECK_THROWS_WITH_AS(job.run([&](rank& self) { return sums_among_many(&job, &nccl, self.id(), &seen, &last_call); }),
                       doctest::Contains("cannot share memory with the others"), failure);
}

TEST_CASE(
    "if a member cannot share or import memory, all refuse kernel and gathered sums with the reason, and NCCL works") {
  for (const bool imports : {false, true}) {
    CAPTURE(imports);
    two_members w({nccl_sum()});
    (imports ? w.gpu.imports_nothing : w.gpu.exports_nothing) = 1;
    runtime::run(w.loop, two_members::connect_both(w, w.sources[0]->make_id()));
    for (rank_id r = 0; r < 2; ++r) {
      const std::string why = std::string("member 1 cannot share memory with the others: ") +
                              (imports ? "cudaErrorInvalidDevice" : "cudaErrorNotSupported");
      for (const auto how : {gpu_sum::way::kernel, gpu_sum::way::gathered})
        CHECK_THROWS_WITH_AS(runtime::run(w.loop, sums(w, r, how)), doctest::Contains(why.c_str()), failure);
      CHECK_FALSE(w.world(r).aborted());
    }
    both_sum(w, gpu_sum::way::nccl);
  }
}

TEST_CASE("a kernel_sum that one member lacks is excluded, and the op agrees on another config") {
  two_members w({std::make_shared<roundabout>(), kernel_sum(), nccl_sum()});
  w.gpu.exports_nothing = 1;
  std::size_t wrong = 0;
  for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
  CHECK_MESSAGE(w.winner() == "nccl_sum", w.why());
  wrong += w.sum(20);
  CHECK(wrong == 0);
  const auto& excluded = w.ends[0].end().assigned()->find(two_members::bytes)->excluded();
  REQUIRE(excluded.size() == 1);
  CHECK_MESSAGE(excluded.front().why.find("member 1 cannot share memory") != std::string::npos, excluded.front().why);
}

TEST_CASE("a sum of unaligned numbers is refused and does not count as a call") {
  two_members w({nccl_sum()});
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, w.ends[1].run(w.memory[1].bytes().subspan(2, 64))),
                       doctest::Contains("do not begin at a multiple of 4"), failure);
  CHECK(w.sum(3) == 0);
}

TEST_CASE("a member whose buffer cannot be summed aborts its communicator and its next call is refused") {
  for (const auto& config : {nccl_sum(), gathered_sum()}) {
    CAPTURE(config->id());
    two_members w({config});
    const auto how = config->id() == "nccl_sum" ? gpu_sum::way::nccl : gpu_sum::way::gathered;
    const auto sum = [&](std::size_t from) {
      gpu_sum what = gpu_sum::by_nccl(w.memory[1].bytes().subspan(from, 64));
      what.how = how;
      runtime::run(w.loop, w.world(1).run(what));
    };
    CHECK_THROWS_WITH_AS(sum(2), doctest::Contains("for an op whose buffers lie on device 1"), failure);
    CHECK_THROWS_WITH_AS(sum(0), doctest::Contains("was aborted"), failure);
  }
}

TEST_CASE("a buffer that holds no whole floats, and impossible communicators, are refused with the reason") {
  two_members w({nccl_sum()});
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, w.world(0).run(gpu_sum::by_nccl(w.memory[0].bytes().first(7)))),
                       doctest::Contains("not 7"), failure);
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, w.sources[0]->connect(std::vector<std::byte>(128))),
                       doctest::Contains("bytes, not 128"), failure);
  w.library.connecting = fake_nccl::connecting_state::refused;
  w.gpu.exports_nothing = 0;
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, two_members::connect_both(w, w.sources[0]->make_id())),
                       doctest::Contains("duplicate GPU"), failure);
  w.library.connecting = fake_nccl::connecting_state::works;
}

}  // namespace

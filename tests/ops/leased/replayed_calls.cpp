// Steps that a device replays and that contain a sum over the members, on the fake GPU and fake NCCL.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/gpu_members.hpp>

#include <doctest/doctest.h>
#include <parley/config.hpp>
#include <parley/replayed_calls.hpp>
#include <parley/transfer.hpp>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

/// Sums one eighth after another, and takes long in its rehearsals.
class eighths final : public symmetric_config {
 public:
  explicit eighths(bool capturable = true)
      : symmetric_config({.name = "eighths", .wire_class = "eighths"}), capturable_(capturable) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    auto& world = dynamic_cast<gpu_world&>(*call.communicator);
    for (std::size_t i = 0; i < 8; ++i) co_await world.run(part(data, i), call.replayed);
    static_cast<void>(co_await sleep_for(20ms));  // longer than any other delay on this machine
  }
  bool can_be_captured() const noexcept override { return capturable_; }
  task<> capture(symmetric_call call, std::span<std::byte> data, device_stream stream) const override {
    auto& world = dynamic_cast<gpu_world&>(*call.communicator);
    for (std::size_t i = 0; i < 8; ++i)
      co_await world.capture(part(data, i), static_cast<transports::cuda_stream>(stream));
  }

 private:
  static gpu_sum part(std::span<std::byte> data, std::size_t i) {
    const std::size_t each = data.size() / 8;
    return gpu_sum::by_nccl(data.subspan(i * each, each));
  }
  bool capturable_;
};

/// Each rank's step: write numbers, sum them over the ranks, and check the sums.
struct steps_of_two : two_members {
  explicit steps_of_two(const std::vector<symmetric_config_ptr>& configs, time_ns timeout_ns = 30'000'000'000)
      : two_members(configs, {}, true) {
    for (rank_id r = 0; r < 2; ++r) {
      streams.push_back(gpu.make_stream(0));
      const auto captured = [this, r](transports::cuda_stream s, captured_call sum) { return step(this, r, s, sum); };
      steps.push_back(std::make_unique<replayed_calls>(
          ends[r], *copies[r], captured,
          symmetric_call_options{.bytes = bytes, .timeout = std::chrono::nanoseconds(timeout_ns)}));
    }
  }
  ~steps_of_two() { steps.clear(); }
  static task<> step(steps_of_two* w, rank_id r, transports::cuda_stream s, captured_call sum) {
    w->gpu.launch(s, 3, [w, r] { w->put(r, static_cast<float>(++w->replayed[r])); });
    co_await sum(w->memory[r].bytes());
    w->gpu.launch(s, 3, [w, r] { w->wrong += w->holds(r, 2 * static_cast<float>(w->replayed[r])) ? 0 : 1; });
  }
  static task<> often(steps_of_two* w, rank_id r, int times) {
    for (int i = 0; i < times; ++i) {
      co_await w->steps[r]->replay(w->streams[r]);
      w->seen[r].push_back(w->steps[r]->captures());
      for (int turn = 0; turn < 20; ++turn) co_await yield;
    }
  }
  static task<> both(steps_of_two* w, int times) {
    scope& here = co_await this_scope;
    scope working(here);
    working.spawn(often(w, 0, times));
    working.spawn(often(w, 1, times));
    co_await working.join();
  }
  void replay(int times) { run(loop, both(this, times)); }

  std::array<unsigned, 2> replayed{};
  std::size_t wrong = 0;
  std::vector<transports::cuda_stream> streams;
  std::array<std::vector<std::uint64_t>, 2> seen;  // number of captures at the end of each replay
  std::vector<std::unique_ptr<replayed_calls>> steps;
};

TEST_CASE(
    "a replayed step is captured once for each config, before the same replay on all members, and its sums are right") {
  for (const symmetric_config_ptr& better : {nccl_sum(), kernel_sum(4)}) {
    CAPTURE(better->id());
    steps_of_two w({std::make_shared<eighths>(), better});
    for (const deadline limit; w.winner().empty() && !limit.is_over();) w.replay(5);
    CHECK(w.winner() == better->id());
    const auto anew = [&] { return w.steps[0]->captures() == 2 && w.steps[1]->captures() == 2; };
    for (const deadline limit; !anew() && !limit.is_over();) w.replay(5);  // the lease takes effect at a later replay
    w.replay(20);
    CHECK(w.wrong == 0);
    CHECK(w.replayed[0] == w.seen[0].size());
    CHECK(w.seen[0] == w.seen[1]);
    CHECK(w.seen[0].front() == 1);
    CHECK(w.seen[0].back() == 2);
    CHECK(w.library.aborts == 0);
  }
}

task<> call_by_kernel(steps_of_two* w, rank_id r, std::span<std::byte> floats) {
  co_await w->world(r).run(gpu_sum::by_kernel(floats, 4));
}

task<> in_two_streams(steps_of_two* w, rank_id r, transports::cuda_stream other, std::span<std::byte> floats) {
  scope& here = co_await this_scope;
  for (int i = 0; i < 20; ++i) {
    scope three(here);
    three.spawn(w->steps[r]->replay(w->streams[r]));
    three.spawn(w->steps[r]->replay(other));
    for (int turn = 0; turn < 300; ++turn) co_await yield;
    three.spawn(call_by_kernel(w, r, floats));
    co_await three.join();
  }
}

TEST_CASE("replays of a step in two streams, and calls made meanwhile, never run at the same time") {
  steps_of_two w({kernel_sum(4)});
  std::vector<transports::cuda_stream> others;
  std::vector<transports::cuda_memory> floats;
  for (int r = 0; r < 2; ++r) {
    others.push_back(w.gpu.make_stream(r));
    floats.push_back(transports::cuda_memory::on_device(w.gpu, r, 64));
  }
  w.replay(1);  // captures the step
  scope both(w.loop);
  for (rank_id r = 0; r < 2; ++r) both.spawn(in_two_streams(&w, r, others[r], floats[r].bytes()));
  const auto join = [](scope& s) -> task<> { co_await s.join(); };
  run(w.loop, join(both));
  CHECK(w.replayed[0] == 41);
  CHECK(w.wrong == 0);
  CHECK(w.gpu.sums_at_once == 0);
  w.steps.clear();
  w.end();
  for (const auto s : others) w.gpu.destroy(s);
}

TEST_CASE("a config that cannot be captured is no candidate of an op whose calls are replayed, and the op reports it") {
  steps_of_two w({nccl_sum(), std::make_shared<eighths>(false)});
  for (const deadline limit; w.winner().empty() && !limit.is_over();) w.replay(5);
  CHECK(w.winner() == "nccl_sum");
  const auto& missing = w.ends[0].end().participant().unavailable;
  REQUIRE(missing.size() == 1);
  CHECK(missing[0] == "eighths: the op's calls are replayed, and it cannot be captured");
  CHECK(w.wrong == 0);
}

/// Rank 0 replays; the other member never does.
task<errc> alone(steps_of_two* w) {
  auto ended = co_await attempt(w->steps[0]->replay(w->streams[0]));
  co_return ended.code();
}

TEST_CASE("a replay that another member never makes times out, destroys its captures and aborts the communicator") {
  for (const symmetric_config_ptr& config : {nccl_sum(), kernel_sum(4)}) {
    CAPTURE(config->id());
    steps_of_two w({config}, 50'000'000);
    w.replay(3);
    CHECK(w.gpu.graphs() == 2);
    CHECK(run(w.loop, alone(&w)) == errc::timeout);
    CHECK(w.gpu.graphs() == 1);  // the other member's
    CHECK(w.worlds[0]->aborted());
    CHECK(run(w.loop, alone(&w)) == errc::config_failed);
    for (const deadline limit; w.copies[0]->pending() != 0 && !limit.is_over();) static_cast<void>(w.copies[0]->poll());
    CHECK(w.copies[0]->pending() == 0);
  }
}

TEST_CASE("replayed steps are refused if their op is not declared as replayed, has no size, or its default cannot be "
          "captured") {
  two_members plain({nccl_sum()});
  const auto nothing = [](transports::cuda_stream, captured_call) -> task<> { co_return; };
  CHECK_THROWS_WITH_AS(replayed_calls(plain.ends[0], *plain.copies[0], nothing, {.bytes = 4}),
                       doctest::Contains("is not declared as replayed"), failure);
  two_members sums({nccl_sum()}, {}, true);
  CHECK_THROWS_WITH_AS(replayed_calls(sums.ends[0], *sums.copies[0], nothing, {}),
                       doctest::Contains("say how many bytes"), failure);
  CHECK_THROWS_WITH_AS(two_members({std::make_shared<eighths>(false)}, {}, true),
                       doctest::Contains("put one first that can"), failure);
}

}  // namespace

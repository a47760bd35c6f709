// Sums on GPUs by NCCL, leased: two ranks that would be processes, over the fakes.
#include "../support/deadline.hpp"
#include "../support/fake_nccl.hpp"

#include <doctest/doctest.h>
#include <parley/ops/gpu_sum.hpp>
#include <parley/ops/rank.hpp>
#include <parley/runtime/reactor.hpp>
#include <parley/runtime/run.hpp>
#include <parley/transports/cuda_space.hpp>
#include <parley/transports/process_world.hpp>

#include <array>
#include <memory>
#include <vector>

namespace {

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

/// Sums, and then sums nothing, which takes longer.
class roundabout final : public symmetric_config {
 public:
  roundabout() : symmetric_config({.name = "roundabout", .wire_class = "roundabout"}) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    auto& world = dynamic_cast<gpu_world&>(*call.over);
    co_await world.sum(data.first(data.size() / 2 / 4 * 4));
    co_await world.sum(data.subspan(data.size() / 2 / 4 * 4));
  }
};

struct two_members {
  explicit two_members(const std::vector<symmetric_config_ptr>& configs, const std::vector<bool>& mask_of_rank_1 = {})
      : below(2) {
    loop.attach(below);
    rank_settings settings;
    settings.plan.budget_fraction = 1e9;
    std::vector<std::byte> id;
    for (rank_id r = 0; r < 2; ++r) {
      copies.push_back(std::make_unique<transports::cuda_copies>(gpu, 0));
      loop.attach(*copies.back());
      spaces.push_back(std::make_unique<transports::cuda_space>(*copies.back()));
      sources.push_back(std::make_shared<gpu_world_source>(
          library, *copies.back(), gpu_world_source::options{.members = 2, .place = r, .kernel_bytes = bytes}));
      ranks.push_back(std::make_unique<rank>(rank_foundation{loop, below[r], nullptr, {{11, 12}}}, settings));
      memory.push_back(transports::cuda_memory::on_device(gpu, 0, bytes));
    }
    id = sources[0]->make_id();
    runtime::run(loop, connect_both(*this, id));
    for (rank_id r = 0; r < 2; ++r) {
      symmetric_op op{.name = "sums", .configs = configs, .over = worlds[r], .rehearse = sources[r]};
      op.memory = spaces[r].get();
      if (r == 1 && !mask_of_rank_1.empty()) op.capable = [mask_of_rank_1](rank_id) { return mask_of_rank_1; };
      ends.push_back(ranks[r]->declare(op));
    }
  }
  ~two_members() {
    ranks.clear();
    worlds = {};
    sources.clear();
  }
  static task<> connect_one(two_members& w, rank_id r, std::vector<std::byte> id) {
    auto made = co_await w.sources[r]->connect(std::move(id));
    w.worlds[r] = std::move(made);
  }
  static task<> connect_both(two_members& w, std::vector<std::byte> id) {
    runtime::scope& here = co_await this_scope;
    runtime::scope both(here);
    both.spawn(connect_one(w, 0, id));
    both.spawn(connect_one(w, 1, id));
    co_await both.join();
  }
  void put(rank_id r, float first) {
    std::vector<float> values(bytes / sizeof(float));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
    std::memcpy(gpu.shadow(memory[r].bytes().data()), values.data(), bytes);
  }
  bool holds(rank_id r, float first) {
    std::vector<float> values(bytes / sizeof(float));
    std::memcpy(values.data(), gpu.shadow(memory[r].bytes().data()), bytes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != first + 2 * static_cast<float>(i)) return false;
    }
    return true;
  }
  static task<> call(two_members& w, rank_id r) { co_await w.ends[r].run(w.memory[r].bytes()); }
  static task<> both_call(two_members& w) {
    runtime::scope& here = co_await this_scope;
    runtime::scope both(here);
    both.spawn(call(w, 0));
    both.spawn(call(w, 1));
    co_await both.join();
    for (int i = 0; i < 20; ++i) co_await yield;
  }
  std::size_t sum(int times) {
    std::size_t wrong = 0;
    for (int i = 0; i < times; ++i) {
      put(0, 1);
      put(1, static_cast<float>(i));
      runtime::run(loop, both_call(*this));
      wrong += holds(0, 1 + static_cast<float>(i)) && holds(1, 1 + static_cast<float>(i)) ? 0 : 1;
    }
    return wrong;
  }
  std::string winner() {
    const auto* c = ends[0].end().assigned()->find(bytes);
    return c == nullptr || c->where != actors::campaign::stage::decided ? "" : c->winner;
  }

  static constexpr std::size_t bytes = 4'000;
  fake_cuda gpu;
  fake_nccl library{gpu};
  reactor loop;
  transports::process_world below;
  std::vector<std::unique_ptr<transports::cuda_copies>> copies;
  std::vector<std::unique_ptr<transports::cuda_space>> spaces;
  std::vector<transports::cuda_memory> memory;
  std::vector<std::shared_ptr<gpu_world_source>> sources;
  std::array<std::shared_ptr<communicator>, 2> worlds;
  std::vector<std::unique_ptr<rank>> ranks;
  std::vector<symmetric> ends;
};

TEST_CASE("sums by NCCL are rehearsed on communicators of their own, agreed on, and right in every call") {
  two_members w({std::make_shared<roundabout>(), nccl_sum()});
  std::size_t wrong = 0;
  for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
  CHECK_FALSE(w.winner().empty());
  wrong += w.sum(20);
  CHECK(wrong == 0);
  CHECK(w.library.aborts == 0);
  CHECK(w.library.communicators() == 4);  // two of rehearsals
  w.ranks.clear();
  CHECK(w.library.communicators() == 2);  // and the users' own
}

TEST_CASE("a kernel of our own sums over the members' memory, beside NCCL, and nothing stays mapped") {
  {
    two_members w({std::make_shared<roundabout>(), kernel_sum(), nccl_sum()});
    std::size_t wrong = 0;
    for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
    CHECK_FALSE(w.winner().empty());
    CHECK(w.ends[0].end().assigned()->find(two_members::bytes)->excluded.empty());
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

TEST_CASE("what a rank's user masks is agreed on nowhere") {
  two_members w({std::make_shared<roundabout>(), nccl_sum()}, {true, false});
  const auto missing = [&] { return w.ranks[0]->agreements().front().no_common_config; };
  std::size_t wrong = 0;
  for (const deadline limit; missing().empty() && !limit.is_over();) wrong += w.sum(5);
  wrong += w.sum(20);
  CHECK(wrong == 0);
  CHECK(missing().find("rank 1 (member) has roundabout") != std::string::npos);
}

namespace {
/// A call of rank 0 that rank 1 never joins.
task<errc> alone(two_members& w) {
  auto ended = co_await attempt(w.ends[0].run(w.memory[0].bytes(), {.timeout_ns = 50'000'000}));
  co_return ended.code();
}
}  // namespace

TEST_CASE("a member that never comes ends the call in its time, its communicator is aborted and its memory free") {
  two_members w({nccl_sum()});
  CHECK(w.sum(3) == 0);
  CHECK(runtime::run(w.loop, alone(w)) == errc::timeout);
  CHECK(w.library.communicators() == 1);
  CHECK(w.copies[0]->pending() == 0);
  auto* const world = dynamic_cast<gpu_world*>(w.worlds[0].get());
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, world->sum(w.memory[0].bytes())), doctest::Contains("was aborted"),
                       failure);
}

TEST_CASE("a kernel whose other members never come is stopped in the call's time") {
  two_members w({kernel_sum()});
  CHECK(w.sum(3) == 0);
  CHECK(runtime::run(w.loop, alone(w)) == errc::timeout);
  CHECK(w.copies[0]->pending() == 0);
}

TEST_CASE("where memory cannot be reached, all members hear of it") {
  two_members w({nccl_sum()});
  w.gpu.ipc = fake_cuda::ipc_state::refused;
  const auto id = w.sources[0]->make_id();
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, two_members::connect_both(w, id)), doctest::Contains("not all members can"),
                       failure);
}

TEST_CASE("floats that are none, and a communicator that cannot be made, are named") {
  two_members w({nccl_sum()});
  auto* const world = dynamic_cast<gpu_world*>(w.worlds[0].get());
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, world->sum(w.memory[0].bytes().first(7))), doctest::Contains("not 7"),
                       failure);
  w.library.connecting = fake_nccl::connecting_state::refused;
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, w.sources[0]->connect(w.sources[0]->make_id())),
                       doctest::Contains("duplicate GPU"), failure);
  w.library.connecting = fake_nccl::connecting_state::works;
}

}  // namespace

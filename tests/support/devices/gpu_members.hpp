#pragma once
/// Two ranks in one process, which stand for processes with a GPU each or with one GPU, as members of an op over a
/// gpu_world with a fake NCCL.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/fake_nccl.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/cuda_link.hpp>
#include <parley/cuda_space.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>
#include <parley/transports/in_process/process_world.hpp>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests {

struct two_members {
  explicit two_members(const std::vector<ops::symmetric_config_ptr>& configs,
                       const std::vector<bool>& mask_of_rank_1 = {}, bool replayed = false, int devices = 2,
                       const std::string& masks = {})
      : gpu(devices), below(2) {
    loop.attach(below);
    ops::rank_settings settings;
    settings.plan.budget_fraction = 1e9;
    settings.masked = ops::parse_masks(masks).value();
    for (runtime::rank_id r = 0; r < 2; ++r) {
      copies.push_back(std::make_unique<transports::cuda_copies>(gpu, static_cast<int>(r) % devices));
      loop.attach(*copies.back());
      spaces.push_back(std::make_unique<transports::cuda_space>(*copies.back()));
      wires.push_back(std::make_unique<transports::cuda_link>(below[r], *copies.back()));
    }
    for (runtime::rank_id r = 0; r < 2; ++r) {
      ranks.push_back(
          std::make_unique<ops::rank>(ops::rank_foundation{loop, *wires[r], nullptr, {{11, 12}}}, settings));
      memory.push_back(transports::cuda_memory::on_device(gpu, copies[r]->device(), bytes));
      sources.push_back(std::make_shared<ops::gpu_world_source>(
          *ranks[r], "sums", *copies[r], ops::gpu_world_source::options{.nccl = &library, .kernel_bytes = bytes}));
    }
    runtime::run(loop, connect_both(*this, sources[0]->make_id()));
    for (runtime::rank_id r = 0; r < 2; ++r) {
      ops::symmetric_options op{.name = "sums",
                                .configs = ops::default_first(*worlds[r], configs),
                                .communicator = worlds[r],
                                .rehearse = sources[r]};
      op.memory = spaces[r].get();
      op.replayed = replayed;
      if (r == 1 && !mask_of_rank_1.empty()) op.can_run = [mask_of_rank_1](runtime::rank_id) { return mask_of_rank_1; };
      ends.emplace_back(*ranks[r], op);
    }
  }
  ~two_members() { end(); }
  void end() {
    ranks.clear();
    worlds = {};
    sources.clear();
  }
  ops::gpu_world& world(runtime::rank_id r) { return dynamic_cast<ops::gpu_world&>(*worlds[r]); }
  static runtime::task<> connect_one(two_members& w, runtime::rank_id r, std::vector<std::byte> id) {
    auto made = co_await w.sources[r]->connect(std::move(id));
    w.worlds[r] = std::move(made);
  }
  static runtime::task<> connect_both(two_members& w, std::vector<std::byte> id) {
    runtime::scope& here = co_await runtime::this_scope;
    runtime::scope both(here);
    both.spawn(connect_one(w, 0, id));
    both.spawn(connect_one(w, 1, id));
    co_await both.join();
  }
  void put(runtime::rank_id r, float first) {
    std::vector<float> values(bytes / sizeof(float));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
    std::memcpy(gpu.shadow(memory[r].bytes().data()), values.data(), bytes);
  }
  bool holds(runtime::rank_id r, float first) {
    std::vector<float> values(bytes / sizeof(float));
    std::memcpy(values.data(), gpu.shadow(memory[r].bytes().data()), bytes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != first + 2 * static_cast<float>(i)) return false;
    }
    return true;
  }
  static runtime::task<> call(two_members& w, runtime::rank_id r) { co_await w.ends[r].run(w.memory[r].bytes()); }
  static runtime::task<> both_call(two_members& w) {
    runtime::scope& here = co_await runtime::this_scope;
    runtime::scope both(here);
    both.spawn(call(w, 0));
    both.spawn(call(w, 1));
    co_await both.join();
    for (int i = 0; i < 20; ++i) co_await runtime::yield;
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
  /// Sums until a config is decided on. Returns the number of wrong sums.
  std::size_t sum_until_decided() {
    std::size_t wrong = 0;
    for (const deadline limit; winner().empty() && !limit.is_over();) wrong += sum(5);
    return wrong;
  }
  /// The reason that rank `r` gives for not trying a config; empty: the config was tried, or is unknown.
  std::string why_excluded(runtime::rank_id r, const ops::symmetric_config_ptr& config) {
    for (const auto& e : ends[r].decision(bytes).evidence) {
      if (e.config == config->id() && e.status != "measured") return e.status + ": " + e.detail;
    }
    return {};
  }
  std::string winner() {
    const auto* c = ends[0].end().assigned()->find(bytes);
    return c == nullptr || !c->is_decided() ? "" : c->chosen().config;
  }
  std::string why() {
    const auto* c = ends[0].end().assigned()->find(bytes);
    std::string all = c == nullptr ? "nothing has begun" : c->chosen().why;
    if (c == nullptr) return all;
    for (const auto& e : c->excluded()) all += "; " + e.why;
    return all;
  }

  static constexpr std::size_t bytes = 4'000;
  fake_cuda gpu;
  fake_nccl library{gpu};
  runtime::reactor loop;
  transports::process_world below;
  std::vector<std::unique_ptr<transports::cuda_copies>> copies;
  std::vector<std::unique_ptr<transports::cuda_space>> spaces;
  std::vector<std::unique_ptr<transports::cuda_link>> wires;
  std::vector<transports::cuda_memory> memory;
  std::vector<std::shared_ptr<ops::gpu_world_source>> sources;
  std::array<std::shared_ptr<ops::communicator>, 2> worlds;
  std::vector<std::unique_ptr<ops::rank>> ranks;
  std::vector<ops::symmetric> ends;
};

}  // namespace parley::tests

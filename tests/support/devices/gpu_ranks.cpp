#include <parley/tests/support/devices/gpu_ranks.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <numeric>

namespace parley::tests {

using namespace std::chrono_literals;

runtime::task<> reaches(transports::cuda_copies& copies, transports::cuda_stream stream) {
  auto ended = co_await transports::reached(copies, stream);
  ended.value();
}

two_ranks::two_ranks(fake_cuda& gpu, const std::vector<ops::config_ptr>& configs, fake_nccl* nccl,
                     runtime::rank_id world)
    : below(world) {
  transports::cuda_link::options planes;
  planes.nccl = nccl;
  ops::rank_settings settings;
  settings.plan.budget_fraction = 1e9;
  settings.flight_records = std::size_t{1} << 16U;
  gpu.queues_there *= world;  // each process has its own queues
  loop.attach(below);
  std::vector<std::uint64_t> lives(world);
  std::iota(lives.begin(), lives.end(), 11);
  for (runtime::rank_id r = 0; r < world; ++r) {
    copies.push_back(std::make_unique<transports::cuda_copies>(gpu, static_cast<int>(r % gpu.devices().size())));
    loop.attach(*copies.back());
    wires.push_back(std::make_unique<transports::cuda_link>(below[r], *copies.back(), planes));
    if (nccl != nullptr) loop.attach(*wires.back()->nccl());
    spaces.push_back(std::make_unique<transports::cuda_space>(*copies.back()));
  }
  for (runtime::rank_id r = 0; r < world; ++r) {
    ranks.push_back(std::make_unique<ops::rank>(ops::rank_foundation{loop, *wires[r], nullptr, lives}, settings));
    if (world > 1)
      ends.push_back(ops::transfer(
          *ranks[r],
          {.name = "buffers", .edges = {{0, 1}}, .configs = configs, .memory = spaces[r].get(), .timeout = 20s}));
  }
}

two_ranks::~two_ranks() {
  for (auto& w : wires) {
    if (w->nccl() != nullptr) loop.detach(*w->nccl());
    w->end_joint();
  }
  for (auto& c : copies) c->drain();
  ranks.clear();
  wires.clear();
}

void two_ranks::move(std::span<std::byte> from, std::span<std::byte> to, int times) {
  runtime::run(loop, both(*this, from, to, times));
}

runtime::task<> two_ranks::sends(ops::transfer t, std::span<std::byte> from, int times) {
  const auto handle = t.registered(from);
  for (int i = 0; i < times; ++i) {
    for (int turn = 0; turn < 8; ++turn)
      co_await runtime::yield;  // so that the receive is posted and its credit has arrived
    co_await t.send(from, {.to = 1});
  }
}

runtime::task<> two_ranks::receives(ops::transfer t, std::span<std::byte> to, int times) {
  const auto handle = t.registered(to);
  for (int i = 0; i < times; ++i) {
    const std::uint64_t got = co_await t.receive(to, {.from = 0});
    CHECK(got == to.size());
  }
}

runtime::task<> two_ranks::takes(ops::transfer t, std::span<std::byte> into, ops::receive_options o) {
  const std::uint64_t got = co_await t.receive(into, o);
  CHECK(got == into.size());
}

runtime::task<> two_ranks::both(two_ranks& w, std::span<std::byte> from, std::span<std::byte> to, int times) {
  runtime::scope& here = co_await runtime::this_scope;
  runtime::scope working(here);
  working.spawn(sends(w.ends[0], from, times));
  working.spawn(receives(w.ends[1], to, times));
  co_await working.join();
}

const actors::search* two_ranks::search(std::uint64_t bytes) const {
  const auto all = ranks[0]->agreements();
  return all.empty() ? nullptr : all.front().assigned->find(bytes);
}

bool two_ranks::decided(std::uint64_t bytes) const {
  const auto* const found = search(bytes);
  return found != nullptr && found->is_decided();
}

}  // namespace parley::tests

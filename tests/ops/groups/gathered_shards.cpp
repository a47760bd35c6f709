// The example that gathers rows by copy engines: in every way and order, with many calls enqueued at once.
#include <parley/examples/gpu/gathered_shards.hpp>

#include <parley/tests/support/devices/gpu_ranks.hpp>

#include <algorithm>
#include <array>
#include <random>

namespace {

using namespace parley;
using namespace parley::runtime;
using namespace parley::tests;
using examples::copy_plan;
using examples::copy_way;
using examples::gathered_shards;

constexpr std::uint64_t rows = 10;
constexpr std::uint64_t row_bytes = 48;
constexpr unsigned calls = 12;

unsigned seed_of(rank_id r, unsigned call) { return 1 + r * 37 + call * 5; }

struct user {
  user(fake_cuda& g, two_ranks& w, rank_id self, rank_id world)
      : gpu(g), me(self), ranks(world), shards(*w.copies[self], *w.spaces[self], {self, world, rows, row_bytes}) {
    for (auto& s : streams) s = gpu.make_stream(0);
    joined = gpu.make_event(0);
  }
  user(const user&) = delete;
  user& operator=(const user&) = delete;
  ~user() {
    for (const auto s : streams) gpu.destroy(s);
    gpu.destroy(joined);
  }

  // Enqueues one call: makes this rank's shard, uses the chunks of all shards in two streams in turn, and orders the next call behind these
  // uses.
  void enqueue(const copy_plan& plan, unsigned call, std::mt19937& dice) {
    const auto main = streams[0];
    gpu.launch(main, dice() % 300, [this, call] { fill(gpu, shards.shard(me), seed_of(me, call)); });
    shards.begin(plan, main);
    unsigned turn = 0;
    for (rank_id i = 0; i < ranks; ++i) {
      for (unsigned c = 0; c < plan.chunks; ++c) {
        const auto s = streams[turn++ % 2];
        const rank_id from = shards.source(i);
        shards.wait_for(from, c, s);
        const auto offset = static_cast<std::size_t>(shards.chunk(from, c).data() - shards.shard(from).data());
        gpu.launch(s, dice() % 300, [this, from, call, offset, part = shards.chunk(from, c)] {
          const std::byte* const at = gpu.shadow(part.data());
          for (std::size_t k = 0; k < part.size(); ++k) {
            const std::size_t j = offset + k;
            wrong += at[k] == static_cast<std::byte>(j * 31 + j / 256 + seed_of(from, call)) ? 0 : 1;
          }
          seen += part.size();
        });
      }
    }
    gpu.record(joined, streams[1]);
    gpu.wait(main, joined);
    shards.end(main);
  }

  fake_cuda& gpu;
  rank_id me;
  rank_id ranks;
  gathered_shards shards;
  std::array<transports::cuda_stream, 2> streams{};
  transports::cuda_event joined{};
  std::size_t wrong = 0;
  std::size_t seen = 0;
};

task<> meet(user* u, ops::rank* r) { co_await u->shards.meet(*r); }

TEST_CASE(
    "every call gathers its own rows, pulled or pushed, in chunks and in any order, however far hosts run ahead") {
  for (const rank_id world : {1, 2, 4}) {
    for (const rank_id step : {rank_id{1}, world - 1}) {
      if (step == 0) continue;
      CAPTURE(world);
      CAPTURE(step);
      fake_cuda gpu;
      two_ranks w(gpu, {configs::direct()}, nullptr, world);
      std::vector<std::unique_ptr<user>> users;
      for (rank_id r = 0; r < world; ++r) users.push_back(std::make_unique<user>(gpu, w, r, world));
      {
        scope all(w.loop);
        for (auto& u : users) all.spawn(meet(u.get(), w.ranks[u->me].get()));
        run_until(w.loop, [&] { return all.running() == 0; });
      }
      std::mt19937 dice(5);
      for (unsigned call = 0; call < calls; ++call) {
        // The way changes from call to call, and is the same on all ranks.
        const copy_plan plan{call % 3 == 1 ? copy_way::push : copy_way::pull, 1 + call % 4, step};
        const copy_plan other{call % 3 == 1 ? copy_way::pull : copy_way::push, 1 + call % 4, step};
        for (auto& u : users) {
          gpu.ticks_per_copy = dice() % 400;  // some ranks' copies take longer
          u->enqueue(call < calls / 2 ? plan : other, call, dice);
        }
      }
      for (auto& u : users) runtime::run(w.loop, reaches(*w.copies[u->me], u->streams[0]));
      for (const auto& u : users) {
        CHECK(u->wrong == 0);
        CHECK(u->seen == calls * world * rows * row_bytes);
      }
      users.clear();
      CHECK(gpu.imported == 0);
    }
  }
}

}  // namespace

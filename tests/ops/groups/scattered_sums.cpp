// The example that brings parts of sums to their owners by copy engines: in every way and order, with many calls enqueued at once,
// whichever rank is slow.
#include <parley/examples/gpu/scattered_sums.hpp>

#include <parley/tests/support/devices/gpu_ranks.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

namespace {

using namespace parley;
using namespace parley::runtime;
using namespace parley::tests;
using examples::copy_plan;
using examples::copy_way;
using examples::scattered_sums;

constexpr std::uint64_t rows = 10;
constexpr std::uint64_t row_bytes = 48;
constexpr unsigned calls = 12;

struct ticks {
  std::uint64_t making = 0;
  std::uint64_t copying = 0;
  std::uint64_t adding = 0;
};

// Byte i of the part that rank `by` makes for the rows of rank `whose`.
unsigned made_at(std::size_t i, rank_id by, rank_id whose, unsigned call) {
  return static_cast<unsigned char>(i * 31 + i / 256 + 1 + by * 37 + whose * 91 + call * 5);
}

struct user {
  user(fake_cuda& g, two_ranks& w, rank_id self, rank_id world)
      : gpu(g), me(self), ranks(world), parts(*w.copies[self], *w.spaces[self], {self, world, rows, row_bytes}),
        sum(rows * row_bytes) {
    for (auto& s : streams) s = gpu.make_stream(0);
    added = gpu.make_event(0);
  }
  user(const user&) = delete;
  user& operator=(const user&) = delete;
  ~user() {
    for (const auto s : streams) gpu.destroy(s);
    gpu.destroy(added);
  }

  // Enqueues one call: makes the parts in two streams in turn, adds them up in a third stream, and reads the sums in the first stream.
  void enqueue(const copy_plan& plan, unsigned call, const ticks& t) {
    const auto main = streams[0];
    const auto adding = streams[2];
    gpu.ticks_per_copy = t.copying;
    parts.begin(plan, main);
    for (const auto s : {streams[1], adding}) parts.follow(s);
    unsigned turn = 0;
    for (rank_id i = 1; i <= ranks; ++i) {
      for (unsigned c = 0; c < plan.chunks; ++c) make(parts.target(i), c, call, t.making, streams[turn++ % 2]);
    }
    for (unsigned c = 0; c < plan.chunks; ++c) {
      parts.wait_for(c, adding);
      add_up(c, t.adding, adding);
    }
    gpu.record(added, adding);
    gpu.wait(main, added);
    parts.end(main);
    gpu.launch(main, t.adding, [this, call] {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        unsigned right = 0;
        for (rank_id by = 0; by < ranks; ++by) right += made_at(i, by, me, call);
        wrong += sum[i] == right ? 0 : 1;
      }
      seen += sum.size();
    });
  }

  // A kernel writes as long as it runs: it first writes 0xee, and the right bytes at its end.
  void make(rank_id whose, unsigned chunk, unsigned call, std::uint64_t takes, transports::cuda_stream s) {
    const auto at = parts.mine(whose, chunk);
    gpu.launch(s, 0, [this, at] { std::fill_n(gpu.shadow(at.data()), at.size(), std::byte{0xee}); });
    gpu.launch(s, takes, [this, at, whose, call, first = parts.rows_of(chunk).first * row_bytes] {
      for (std::size_t i = 0; i < at.size(); ++i)
        gpu.shadow(at.data())[i] = static_cast<std::byte>(made_at(first + i, me, whose, call));
    });
    parts.made(whose, chunk, s);
  }
  void add_up(unsigned chunk, std::uint64_t takes, transports::cuda_stream s) {
    const std::size_t first = parts.rows_of(chunk).first * row_bytes;
    const std::size_t count = parts.part(me, chunk).size();
    std::vector<std::span<const std::byte>> all;
    for (rank_id r = 0; r < ranks; ++r) all.push_back(parts.part(r, chunk));
    const auto at = sum.begin() + static_cast<std::ptrdiff_t>(first);
    gpu.launch(s, 0, [at, count] { std::fill_n(at, count, 0U); });
    // The kernel reads one half of the parts when it starts, and the other half when it ends.
    gpu.launch(s, 0, [this, at, all, count] { add(at, all, 0, count / 2); });
    gpu.launch(s, takes, [this, at, all, count] { add(at, all, count / 2, count); });
  }
  void add(std::vector<unsigned>::iterator at, const std::vector<std::span<const std::byte>>& all, std::size_t from,
           std::size_t to) {
    for (const auto part : all) {
      const std::byte* const bytes = gpu.shadow(part.data());
      for (std::size_t i = from; i < to; ++i) at[static_cast<std::ptrdiff_t>(i)] += static_cast<unsigned>(bytes[i]);
    }
  }

  fake_cuda& gpu;
  rank_id me;
  rank_id ranks;
  scattered_sums parts;
  std::vector<unsigned> sum;
  std::array<transports::cuda_stream, 3> streams{};
  transports::cuda_event added{};
  std::size_t wrong = 0;
  std::size_t seen = 0;
};

task<> meet(user* u, ops::rank* r) { co_await u->parts.meet(*r); }

struct all_users {
  explicit all_users(rank_id world) : w(gpu, {configs::direct()}, nullptr, world) {
    for (rank_id r = 0; r < world; ++r) users.push_back(std::make_unique<user>(gpu, w, r, world));
    scope all(w.loop);
    for (auto& u : users) all.spawn(meet(u.get(), w.ranks[u->me].get()));
    run_until(w.loop, [&] { return all.running() == 0; });
  }
  void finish() {
    for (auto& u : users) runtime::run(w.loop, reaches(*w.copies[u->me], u->streams[0]));
    for (const auto& u : users) {
      CHECK(u->wrong == 0);
      CHECK(u->seen == calls * rows * row_bytes);
    }
    users.clear();
    CHECK(gpu.imported == 0);
  }
  fake_cuda gpu;
  two_ranks w;
  std::vector<std::unique_ptr<user>> users;
};

TEST_CASE("every call gets its own scattered sums, pulled or pushed, in chunks and in any order, however far hosts run "
          "ahead") {
  for (const rank_id world : {1, 2, 4}) {
    for (const rank_id step : {rank_id{1}, world - 1}) {
      if (step == 0) continue;
      CAPTURE(world);
      CAPTURE(step);
      all_users all(world);
      std::mt19937 dice(5);
      for (unsigned call = 0; call < calls; ++call) {
        // The way changes from call to call, and is the same on all ranks.
        const bool pushed = (call % 3 == 1) == (call < calls / 2);
        const copy_plan plan{pushed ? copy_way::push : copy_way::pull, 1 + call % 4, step};
        for (auto& u : all.users) u->enqueue(plan, call, {dice() % 300, dice() % 400, dice() % 300});
      }
      all.finish();
    }
  }
}

TEST_CASE("scattered sums wait for a slow rank: for its products, its copies or its additions") {
  for (const copy_way way : {copy_way::pull, copy_way::push}) {
    for (const ticks& slow : {ticks{500, 5, 5}, ticks{5, 500, 5}, ticks{5, 5, 500}}) {
      for (const rank_id late : {0, 2}) {
        CAPTURE(static_cast<int>(way));
        CAPTURE(slow.making);
        CAPTURE(slow.copying);
        CAPTURE(late);
        all_users all(3);
        for (unsigned call = 0; call < calls; ++call) {
          for (auto& u : all.users) u->enqueue({way, 2, 1}, call, u->me == late ? slow : ticks{5, 5, 5});
        }
        all.finish();
      }
    }
  }
}

}  // namespace

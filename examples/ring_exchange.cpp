// Two rounds around a ring, with no copies, and computation during each round. Each step names the buffers that it
// reads and writes, and parley derives from them which steps wait for which.
//
//     parley run -n 4 ./ring_exchange [--rounds 20] [--elements 1048576]
//     ./ring_exchange --sim 16 --elements 65536
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

using namespace parley::literals;

namespace {

std::size_t count = 1'048'576;
constexpr float c = 1.000244140625F;
int rounds = 20;

using numbers = std::vector<float>;

struct kernel_buffers {
  numbers x0 = numbers(count);
  numbers t0 = numbers(count);
  numbers y0 = numbers(count);
  numbers a = numbers(count);
  numbers t1 = numbers(count);
  numbers y1 = numbers(count);
  numbers out = numbers(count);
};

float x0_of(parley::rank_id r, std::size_t i) { return static_cast<float>((17 * r + i) % 512); }
// Expected value of `a` on rank r after the first round.
float sum_of_first(parley::rank_id r, std::size_t i, parley::rank_id world) {
  return x0_of((r + world - 1) % world, i) + 2 * x0_of(r, i) + 1;
}

template <class F>
void for_each_element(F f) {
  for (std::size_t i = 0; i < count; ++i) f(i);
}

parley::task<> exchange_twice(parley::dataflow& flow, parley::rank* self, parley::p2p ring, kernel_buffers* k) {
  const parley::rank_id world = self->world_size();
  const parley::rank_id next = (self->id() + 1) % world;
  const parley::rank_id previous = (self->id() + world - 1) % world;
  auto& [x0, t0, y0, a, t1, y1, out] = *k;

  auto first = ring.start(flow, {ring.isend(x0, {.to = next}), ring.irecv(y0, {.from = previous})});
  auto beside_first = flow.compute({parley::reads(x0), parley::writes(t0)},
                                   [k] { for_each_element([k](std::size_t i) { k->t0[i] = 2 * k->x0[i] + 1; }); });
  auto sum = flow.compute({parley::reads(y0), parley::reads(t0), parley::writes(a)},
                          [k] { for_each_element([k](std::size_t i) { k->a[i] = k->y0[i] + k->t0[i]; }); });
  auto second = ring.start(flow, {ring.isend(a, {.to = next}), ring.irecv(y1, {.from = previous})});
  auto beside_second = flow.compute({parley::reads(a), parley::writes(t1)},
                                    [k] { for_each_element([k](std::size_t i) { k->t1[i] = k->a[i] * c; }); });
  auto result = flow.compute({parley::reads(y1), parley::reads(t1), parley::writes(out)},
                             [k] { for_each_element([k](std::size_t i) { k->out[i] = k->y1[i] + k->t1[i]; }); });
  co_await result;
}

parley::task<> rank_main(parley::rank& self) {
  parley::p2p ring(self, {.name = "ring",
                          .configs = {parley::configs::direct(), parley::configs::chunked(256_KiB),
                                      parley::configs::chunked(1_MiB, /*in_flight=*/4)}});
  kernel_buffers k;
  for_each_element([&](std::size_t i) { k.x0[i] = x0_of(self.id(), i); });
  for (int round = 0; round < rounds; ++round) co_await parley::with_dataflow(exchange_twice, &self, ring, &k);

  const parley::rank_id previous = (self.id() + self.world_size() - 1) % self.world_size();
  for (std::size_t i = 0; i < count; ++i) {
    const float right =
        sum_of_first(previous, i, self.world_size()) + sum_of_first(self.id(), i, self.world_size()) * c;
    if (k.out[i] != right)
      parley::runtime::raise({parley::errc::config_failed, "element " + std::to_string(i) + " is " +
                                                               std::to_string(k.out[i]) + " instead of " +
                                                               std::to_string(right)});
  }
  const double total = std::accumulate(k.out.begin(), k.out.end(), 0.0);
  std::printf("rank %u: out sums to %.0f, bytes copied by the library: %llu\n", self.id(), total,
              static_cast<unsigned long long>(ring.copied_bytes()));
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("Two rounds around a ring, in place, each with computation at the same time.");
  line.count("--rounds", rounds, "of both rounds");
  line.count("--elements", count, "floats that each rank sends");
  return line.run(argc, argv, rank_main);
}

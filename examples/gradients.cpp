// All-reduce in two levels. Ranks form groups of 4, led by ranks 0, 4, 8, …; the leaders then sum among themselves.
// Every rank computes its next layer while the gradients are summed.
//
//     parley run -n 4 ./gradients [--steps 50] [--elements 262144]
//     ./gradients --sim 16
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace {

int steps = 50;
std::size_t elements = 262'144;
constexpr parley::time_ns modelled_layer_ns = 500'000;

parley::task<> reduce(parley::hierarchy* all, std::vector<float>* weights, std::vector<float>* biases) {
  co_await all->all_reduce_each(std::span(*weights), std::span(*biases));  // two buffers at once
}

parley::task<> rank_main(parley::rank& self) {
  parley::hierarchy all(self, {.name = "gradients", .leads = [](parley::rank_id r) { return r % 4 == 0; }});
  const std::size_t sum_of_ranks = self.world_size() * (self.world_size() + 1) / 2;
  const auto ranks = static_cast<float>(sum_of_ranks);
  const parley::time_ns begin = self.where().precise_now();
  float next_layer = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<float> weights(elements);
    std::vector<float> biases(64);
    for (std::size_t i = 0; i < elements; ++i)
      weights[i] = static_cast<float>(self.id() + 1) * static_cast<float>(i % 7 + 1);
    for (std::size_t i = 0; i < biases.size(); ++i) biases[i] = weights[i % elements];
    parley::scope& here = co_await parley::this_scope;
    parley::scope moving(here);
    moving.spawn(reduce(&all, &weights, &biases));
    auto layer = [&next_layer] {
      for (int i = 0; i < 100'000; ++i) next_layer += 1e-6F;
    };
    co_await parley::compute(layer, modelled_layer_ns);
    co_await moving.join();
    for (std::size_t i = 0; i < elements; ++i) {
      if (weights[i] != ranks * static_cast<float>(i % 7 + 1))
        parley::runtime::raise({parley::errc::config_failed, "the sum of element " + std::to_string(i) + " is wrong"});
    }
  }
  const double took_ms = static_cast<double>(self.where().precise_now() - begin) / 1e6;
  std::printf("rank %u (%s of a group of %zu): %d exact sums of %zu elements in %.1f ms\n", self.id(),
              all.leads() ? "leader" : "worker", all.group_size(), steps, elements, took_ms);
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("All-reduce in two levels, of two buffers at once, while all ranks compute.");
  line.count("--steps", steps, "of training");
  line.count("--elements", elements, "of the larger buffer");
  return line.run(argc, argv, rank_main);
}

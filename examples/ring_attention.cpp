// Attention over a sequence that is split over the ranks: keys and values go around the ring while every rank
// computes.
//
//     parley run -n 4 ./ring_attention [--rows 256] [--heads 4] [--dimensions 64] [--causal]
//     ./ring_attention --sim 16 --rows 16
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

parley::attention_shape shape{.heads = 4, .rows = 256, .dimensions = 64};

// Every rank can compute the number at any place of the sequence, so it can check its result alone.
float number(std::uint64_t seed, std::uint64_t row, std::uint64_t i) {
  return static_cast<float>(std::sin(static_cast<double>(seed * 7919 + row * 104'729 + i * 1'299'709)));
}

std::vector<float> rows_of(std::uint64_t seed, std::uint64_t rank) {
  std::vector<float> all(shape.elements());
  for (std::uint64_t i = 0; i < all.size(); ++i) {
    const std::uint64_t row = i / shape.dimensions % shape.rows + rank * shape.rows;
    const std::uint64_t head = i / shape.dimensions / shape.rows;
    all[i] = number(seed, row, head * shape.dimensions + i % shape.dimensions);
  }
  return all;
}

parley::task<> rank_main(parley::rank& self) {
  parley::ring_attention ring(self, {.name = "attention"});
  const auto q = rows_of(1, self.id());
  const auto k = rows_of(2, self.id());
  const auto v = rows_of(3, self.id());
  std::vector<float> out(shape.elements());
  const parley::time_ns begin = self.where().precise_now();
  co_await ring.forward<float>(shape, q, k, v, std::span(out));
  const double took_ms = static_cast<double>(self.where().precise_now() - begin) / 1e6;

  // Dense attention for this rank's last row in head 0, to compare with.
  const std::uint64_t row = self.id() * shape.rows + shape.rows - 1;
  const std::uint64_t sequence = shape.rows * self.world_size();
  std::vector<double> right(shape.dimensions);
  double total = 0;
  for (std::uint64_t j = 0; j < (shape.causal ? row + 1 : sequence); ++j) {
    double score = 0;
    for (std::uint64_t d = 0; d < shape.dimensions; ++d) score += number(1, row, d) * number(2, j, d);
    const double weight = std::exp(score / std::sqrt(static_cast<double>(shape.dimensions)));
    total += weight;
    for (std::uint64_t d = 0; d < shape.dimensions; ++d) right[d] += weight * number(3, j, d);
  }
  double farthest = 0;
  for (std::uint64_t d = 0; d < shape.dimensions; ++d)
    farthest = std::max(farthest, std::abs(out[(shape.rows - 1) * shape.dimensions + d] - right[d] / total));
  std::printf("rank %u: %llu rows of %llu in %.1f ms, at most %.1e from dense attention\n", self.id(),
              static_cast<unsigned long long>(shape.rows), static_cast<unsigned long long>(sequence), took_ms,
              farthest);
  if (!(farthest < 2e-5)) parley::runtime::raise({parley::errc::config_failed, "attention came out wrong"});
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("Attention over a sequence that the ranks share.");
  line.count("--rows", shape.rows, "of the sequence, on each rank");
  line.count("--heads", shape.heads, "of the attention");
  line.count("--dimensions", shape.dimensions, "of each head");
  line.flag("--causal", shape.causal, "no row looks at later ones");
  return line.run(argc, argv, rank_main);
}

// A function with two kernels, tuned while it runs: parley times each implementation of a kernel inside the whole
// function, next to the other kernel, on all ranks. All ranks then use the same implementations.
//
//     ./contextual                          one rank
//     parley run -n 2 ./contextual          the slower rank's time counts
//     ./contextual --sim 16
//
// The kernels are a matrix product and a row-wise softmax of its result. Each run is logged in
// .autotune_logs/rank-R.log. With PARLEY_RESULTS=results.csv, the next start reuses the winners.
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

namespace {

using numbers = std::span<float>;
using operand = std::span<const float>;
constexpr std::size_t width = 96;

/// c = a * b; all three are n x n matrices in row-major order.
void multiply_by_dots(operand a, operand b, numbers c, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < n; ++k) sum += a[i * n + k] * b[k * n + j];
      c[i * n + j] = sum;
    }
  }
}

void multiply_by_rows(operand a, operand b, numbers c, std::size_t n) {
  std::fill(c.begin(), c.end(), 0.0F);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      const float factor = a[i * n + k];
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += factor * b[k * n + j];
    }
  }
}

void multiply_in_blocks(operand a, operand b, numbers c, std::size_t n) {
  constexpr std::size_t block = 32;
  std::fill(c.begin(), c.end(), 0.0F);
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t end = std::min(n, first + block);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = first; k < end; ++k) {
        const float factor = a[i * n + k];
        for (std::size_t j = 0; j < n; ++j) c[i * n + j] += factor * b[k * n + j];
      }
    }
  }
}

/// Each row becomes exp(x) / sum(exp(x)).
void softmax_in_three_passes(operand x, numbers y, std::size_t n) {
  for (std::size_t row = 0; row < x.size(); row += n) {
    const float largest = *std::max_element(x.begin() + static_cast<std::ptrdiff_t>(row),
                                            x.begin() + static_cast<std::ptrdiff_t>(row + n));
    float sum = 0;
    for (std::size_t i = row; i < row + n; ++i) sum += std::exp(x[i] - largest);
    for (std::size_t i = row; i < row + n; ++i) y[i] = std::exp(x[i] - largest) / sum;
  }
}

void softmax_keeping_exponentials(operand x, numbers y, std::size_t n) {
  for (std::size_t row = 0; row < x.size(); row += n) {
    const float largest = *std::max_element(x.begin() + static_cast<std::ptrdiff_t>(row),
                                            x.begin() + static_cast<std::ptrdiff_t>(row + n));
    float sum = 0;
    for (std::size_t i = row; i < row + n; ++i) sum += y[i] = std::exp(x[i] - largest);
    for (std::size_t i = row; i < row + n; ++i) y[i] /= sum;
  }
}

/// Computes on another thread, so that the actor thread keeps moving messages. In virtual time the kernel takes
/// `modelled_ns`.
template <void kernel(operand, operand, numbers, std::size_t), parley::time_ns modelled_ns>
parley::task<> away(operand a, operand b, numbers c, std::size_t n) {
  co_await parley::compute([a, b, c, n] { kernel(a, b, c, n); }, modelled_ns);
}

using multiplication = parley::tunable_op<parley::task<>(operand, operand, numbers, std::size_t)>;
using normalization = parley::tunable_op<void(operand, numbers, std::size_t)>;

struct layer_memory {
  std::vector<float> a = std::vector<float>(width * width);
  std::vector<float> b = std::vector<float>(width * width);
  std::vector<float> product = std::vector<float>(width * width);
  std::vector<float> y = std::vector<float>(width * width);
};

parley::task<> forward(multiplication* multiply, normalization* softmax, layer_memory* m) {
  co_await (*multiply)(m->a, m->b, m->product, width);
  (*softmax)(m->product, m->y, width);
}

parley::task<> rank_main(parley::rank& self) {
  multiplication multiply(self.kernels(),
                          {.name = "multiply",
                           .key = [](operand, operand, numbers, std::size_t n) { return parley::kernel_key{{"n", n}}; },
                           .implementations = {{"dots", away<multiply_by_dots, 900'000>},
                                               {"rows", away<multiply_by_rows, 200'000>},
                                               {"blocks(of=32)", away<multiply_in_blocks, 150'000>}}});
  normalization softmax(
      self.kernels(),
      {.name = "softmax",
       .key = [](operand, numbers, std::size_t n) { return parley::kernel_key{{"n", n}}; },
       .implementations = {{"three_passes", softmax_in_three_passes}, {"two_passes", softmax_keeping_exponentials}}});
  parley::contextual layer(self, {.name = "layer", .iterations = 3});

  layer_memory m;
  for (std::size_t i = 0; i < m.a.size(); ++i) {
    m.a[i] = static_cast<float>(i % 7) / 7;
    m.b[i] = static_cast<float>(i % 5) / 5;
  }
  const auto thunk = [&] { return forward(&multiply, &softmax, &m); };
  for (int step = 0; step < 3; ++step) co_await layer.run(thunk);

  for (std::size_t row = 0; row < m.y.size(); row += width) {
    float sum = 0;
    for (std::size_t i = row; i < row + width; ++i) sum += m.y[i];
    if (!(std::abs(sum - 1) < 1e-3F))
      parley::runtime::raise({parley::errc::config_failed, "a row of probabilities adds up to " + std::to_string(sum)});
  }
  std::printf("rank %u ran the layer %llu times: multiply %s, softmax %s\n", self.id(),
              static_cast<unsigned long long>(layer.runs()), layer.best("multiply", "n=96").c_str(),
              layer.best("softmax", "n=96").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return examples::command_line("A function with tunable kernels inside, tuned as it runs.").run(argc, argv, rank_main);
}

// Multiplies matrices of the sizes of a small transformer layer. The ranks try the libraries and thread counts that this machine has, each
// rank some of them, and all take the fastest. The table shows what was chosen, and how much faster that is than the default.
//
//     ./gemm [--tokens 128] [--hidden 512] [--repeat 20]
//     parley run -n 2 gemm                          two ranks share the trials
//     PARLEY_RESULTS=gemm.csv ./gemm                the next start reuses the winners
//
// The results are compared with plain loops.
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <list>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::size_t tokens = 128;
std::size_t hidden = 512;
int repeat = 20;

struct layer {
  const char* name;
  std::size_t inputs, outputs;
};

/// The usual time of a call, in us.
template <class Call>
double usual_us(Call&& call) {
  std::vector<double> all;
  for (int i = 0; i < repeat; ++i) {
    const auto began = std::chrono::steady_clock::now();
    call();
    all.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count());
  }
  std::nth_element(all.begin(), all.begin() + repeat / 2, all.end());
  return all[static_cast<std::size_t>(repeat) / 2];
}

struct layer_data {
  explicit layer_data(const layer& l)
      : name(l.name), inputs(l.inputs), x(tokens * l.inputs), weights(l.outputs * l.inputs), bias(l.outputs, 1.0F),
        y(tokens * l.outputs) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 5) - 2;
    // y = x weights^T + bias, all of them row by row
    call = {.m = tokens,
            .n = l.outputs,
            .k = l.inputs,
            .trans_b = true,
            .a = x,
            .b = weights,
            .c = y,
            .bias = bias,
            .order = parley::matrix_order::row_major};
  }
  void check() const {
    const std::size_t row = tokens - 1, column = bias.size() / 2;
    double sum = bias[column];
    for (std::size_t i = 0; i < inputs; ++i) sum += double(x[row * inputs + i]) * double(weights[column * inputs + i]);
    if (std::abs(sum - double(y[row * bias.size() + column])) > 1e-3)
      throw std::runtime_error(std::string(name) + ": a product is wrong");
  }
  const char* name;
  std::size_t inputs;
  std::vector<float> x, weights, bias, y;
  parley::gemm_call<float> call;
  double default_us = 0;
};

parley::task<> rank_main(parley::rank& self) {
  parley::tunable_context& kernels = self.kernels();
  parley::gemm<float> multiply(kernels);
  std::list<layer_data> layers;  // calls refer to their matrices, so these stay where they are
  for (const layer& each : {layer{"attention", hidden, 3 * hidden}, layer{"output", hidden, hidden},
                            layer{"up", hidden, 4 * hidden}, layer{"down", 4 * hidden, hidden}})
    layers.emplace_back(each);
  for (layer_data& l : layers) l.default_us = usual_us([&] { multiply(l.call); });

  kernels.enable_tunable_op(true);
  parley::contextual together(self, {.name = "layers", .share = true, .log_folder = ""});
  const auto step = [&] {
    for (const layer_data& l : layers) multiply(l.call);
  };
  co_await together.run(step);

  std::printf("%-10s %-38s %-24s %10s %10s\n", "layer", "key", "chosen", "us", "default us");
  for (const layer_data& l : layers) {
    const double tuned_us = usual_us([&] { multiply(l.call); });
    std::printf("%-10s %-38s %-24s %10.1f %10.1f\n", l.name, multiply.decision(l.call).parameters.c_str(),
                multiply.runs(l.call).c_str(), tuned_us, l.default_us);
    l.check();
  }
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("Multiplies matrices of the sizes of a transformer layer, tuned.");
  line.count("--tokens", tokens, "rows of the input");
  line.count("--hidden", hidden, "columns of the input");
  line.count("--repeat", repeat, "timed calls of each size");
  return line.run(argc, argv, rank_main);
}

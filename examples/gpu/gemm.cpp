// Multiplies matrices of the sizes of a transformer layer on a GPU, in bf16. The first call of each size tries what cuBLASLt has; the table
// shows what was chosen, and how much faster that is than cuBLAS's own choice.
//
//     ./gpu_gemm [--tokens 128] [--hidden 4096] [--repeat 20]
//     PARLEY_RESULTS=gemm.csv ./gpu_gemm            the next start reuses the winners
//
// Each rank multiplies on its own GPU. A product of each size is compared with plain loops.
#include "device.hpp"

#include <parley/cuda_gemm.hpp>
#include <parley/cuda_kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <list>
#include <string>
#include <vector>

namespace {

using parley::runtime::bf16;

std::size_t tokens = 128;
std::size_t hidden = 4'096;
int repeat = 20;

/// y = weights^T x in column-major order, which is y = x weights in PyTorch's: a row of x for each token.
struct layer {
  layer(parley::transports::cuda_space& space, const char* of, std::size_t ins, std::size_t outs)
      : name(of), inputs(ins), outputs(outs), weights(space, ins * outs), x(space, ins * tokens),
        y(space, outs * tokens) {
    call = {.m = outputs, .n = tokens, .k = inputs, .trans_a = true};
    call.a = weights.all(), call.b = x.all(), call.c = y.all();
  }
  const char* name;
  std::size_t inputs, outputs;
  examples::device_array<bf16> weights, x, y;
  parley::ops::gemm_call<bf16> call;
  double default_us = 0;
};

std::vector<bf16> small_numbers(std::size_t count, std::size_t period) {
  std::vector<bf16> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<float>(i % period) - static_cast<float>(period / 2);
  return all;
}

parley::task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  const int device = here.gpu()->device();
  parley::tunable_context& kernels = self.kernels();
  parley::transports::cublas_library& cublas = *parley::transports::cublas_runtime().value();
  parley::ops::cuda_gemm<bf16> multiply(kernels, here.gpu()->driver(), cublas, {.device = device});
  parley::tunable_context untuned(self.where(), nullptr, {});
  parley::ops::cuda_gemm<bf16> by_default(untuned, here.gpu()->driver(), cublas, {.device = device});
  const examples::stream stream;
  parley::ops::cuda_kernels gpu(self.where(), here.gpu()->driver(), device, stream);
  const auto usual_us = [&](parley::ops::cuda_gemm<bf16>& by, const layer& l) {
    std::vector<double> all;
    for (int i = 0; i < repeat; ++i) {
      gpu.evict(gpu.cache_bytes(), false);
      parley::ops::device_timer timer(gpu);
      by(l.call, stream);
      timer.end();
      all.push_back(timer.took_ns() / 1e3);
    }
    std::nth_element(all.begin(), all.begin() + repeat / 2, all.end());
    return all[static_cast<std::size_t>(repeat) / 2];
  };

  std::list<layer> layers;
  for (const auto& [name, inputs, outputs] : {std::tuple("attention", hidden, 3 * hidden),
                                              {"output", hidden, hidden},
                                              {"up", hidden, 4 * hidden},
                                              {"down", 4 * hidden, hidden}}) {
    layer& l = layers.emplace_back(space, name, inputs, outputs);
    const auto weights = small_numbers(inputs * outputs, 5), x = small_numbers(inputs * tokens, 7);
    co_await space.copy(l.weights.bytes(), std::as_bytes(std::span(weights)));
    co_await space.copy(l.x.bytes(), std::as_bytes(std::span(x)));
    l.default_us = usual_us(by_default, l);
  }
  kernels.enable_tunable_op(true);
  std::printf("%-10s %-22s %10s %10s  %s\n", "layer", "key", "us", "default us", "chosen");
  for (const layer& l : layers) {
    multiply(l.call, stream);  // tries
    const double tuned_us = usual_us(multiply, l);
    std::printf("%-10s %-22s %10.1f %10.1f  %s\n", l.name, multiply.decision(l.call).parameters.c_str(), tuned_us,
                l.default_us, multiply.runs(l.call).c_str());
    std::vector<bf16> y(l.y.size());
    co_await space.copy(std::as_writable_bytes(std::span(y)), l.y.bytes());
    const std::size_t row = l.outputs / 3, column = tokens - 1;
    float sum = 0;
    for (std::size_t i = 0; i < l.inputs; ++i)
      sum += (static_cast<float>((row * l.inputs + i) % 5) - 2) * (static_cast<float>((column * l.inputs + i) % 7) - 3);
    if (std::abs(sum - float(y[column * l.outputs + row])) > std::abs(sum) / 100 + 1)
      parley::runtime::raise({parley::errc::config_failed, std::string(l.name) + ": a product is wrong"});
  }
}

}  // namespace

int main(int argc, char** argv) {
  examples::option_list known;
  known.number("--tokens", tokens, std::size_t{1})
      .number("--hidden", hidden, std::size_t{1})
      .number("--repeat", repeat, 1);
  known.take(argc, argv);
  return examples::run_on_gpus(rank_main);
}

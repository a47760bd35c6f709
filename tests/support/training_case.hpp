#pragma once
/// CASES section 2: a model in stages, and its gradients by one process.
#include <parley/ops/rank.hpp>
#include <parley/ops/training_pipeline.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace parley::tests::training_case {

using namespace parley::ops;
using namespace parley::runtime;

// A model of stages y = tanh(w x + b), element by element, with mean squares as its loss: small, and with real gradients.
struct model {
  explicit model(std::uint32_t n) : stages(n), weight(n), weight_gradient(n) {
    for (std::uint32_t s = 0; s < n; ++s) weight[s] = 0.5 + 0.1 * s;
  }
  std::uint32_t stages;
  std::vector<double> weight;
  std::vector<double> weight_gradient;
};

inline constexpr std::size_t width = 50;

inline double input(std::uint32_t microbatch, std::size_t i) {
  return std::sin(0.3 * static_cast<double>(microbatch * width + i));
}

struct part_of_model final : pipeline_stages {
  part_of_model(std::uint32_t stages, time_ns unit_ns) : m(stages), forward_ns(unit_ns) {}
  std::uint64_t activation_bytes(std::uint32_t) const override { return elements * sizeof(double); }
  void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in,
               std::span<std::byte> out) override {
    if (throws_at == static_cast<int>(microbatch)) raise({errc::exception, "the model is on fire"});
    const auto* x = reinterpret_cast<const double*>(in.data());
    auto* y = reinterpret_cast<double*>(out.data());
    for (std::size_t i = 0; i < width; ++i)
      y[i] = std::tanh(m.weight[stage] * (stage == 0 ? input(microbatch, i) : x[i]));
    order.push_back(text_of({stage, pipeline_action::kind::forward, microbatch}));
  }
  void backward(std::uint32_t stage, std::uint32_t microbatch, const pipeline_memory& memory) override {
    const auto* x = reinterpret_cast<const double*>(memory.in.data());
    const auto* y = reinterpret_cast<const double*>(memory.out.data());
    const auto* after = reinterpret_cast<const double*>(memory.gradient_out.data());
    auto* before = reinterpret_cast<double*>(memory.gradient_in.data());
    CHECK(memory.gradient_out.empty() == (stage + 1 == m.stages));
    CHECK(memory.gradient_in.empty() == (stage == 0));
    for (std::size_t i = 0; i < width; ++i) {
      const double given = stage + 1 == m.stages ? y[i] : after[i];
      const double inside = given * (1 - y[i] * y[i]);
      m.weight_gradient[stage] += inside * (stage == 0 ? input(microbatch, i) : x[i]);
      if (stage != 0) before[i] = inside * m.weight[stage];
    }
    order.push_back(text_of({stage, pipeline_action::kind::backward, microbatch}));
  }
  time_ns modelled_ns(const pipeline_action& a) const override {
    return (a.what == pipeline_action::kind::forward ? 1 : 2) * forward_ns + (a == late ? late_ns : 0);
  }
  model m;
  time_ns forward_ns;
  pipeline_action late{99, pipeline_action::kind::forward, 0};
  time_ns late_ns = 0;
  int throws_at = -1;
  std::size_t elements = width;  // at least
  std::vector<std::string> order;
};

inline std::vector<double> gradients_alone(std::uint32_t stages, std::uint32_t microbatches) {
  part_of_model all(stages, 0);
  for (std::uint32_t m = 0; m < microbatches; ++m) {
    std::vector<std::vector<double>> x(stages + 1, std::vector<double>(width));
    for (std::uint32_t s = 0; s < stages; ++s)
      all.forward(s, m, std::as_bytes(std::span(x[s])), std::as_writable_bytes(std::span(x[s + 1])));
    std::vector<double> gradient;
    for (std::uint32_t s = stages; s-- > 0;) {
      std::vector<double> before(s == 0 ? 0 : width);
      all.backward(s, m,
                   {std::as_bytes(std::span(x[s])), std::as_writable_bytes(std::span(x[s + 1])),
                    std::as_bytes(std::span(gradient)), std::as_writable_bytes(std::span(before))});
      gradient = before;
    }
  }
  return all.m.weight_gradient;
}

}  // namespace parley::tests::training_case

#pragma once
/// CASES section 2: a model in stages, and its gradients computed by one process.
#include <parley/tests/support/place.hpp>

#include <parley/compute.hpp>
#include <parley/rank.hpp>
#include <parley/training_pipeline.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace parley::tests::training_case {

using namespace parley::ops;
using namespace parley::runtime;

// A model of stages y = tanh(w x), element by element, with mean squares as its loss: small, and with real gradients.
struct model {
  explicit model(std::uint32_t n) : stages(n), weight(n), weight_gradient(n) {
    for (std::uint32_t s = 0; s < n; ++s) weight[s] = 0.5 + 0.1 * s;
  }
  std::uint32_t stages;
  std::vector<double> weight;
  std::vector<double> weight_gradient;
};

inline constexpr std::uint32_t width = 50;

struct part_of_model final : pipeline_stages {
  part_of_model(std::uint32_t stages, time_ns unit_ns) : m(stages), forward_ns(unit_ns) {}
  std::uint64_t activation_bytes(std::uint32_t) const override { return elements * sizeof(double); }
  void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in,
               std::span<std::byte> out) override {
    if (throws_at == static_cast<int>(microbatch)) raise({errc::exception, "the model is on fire"});
    kernels::run(kernels::forward{of(stage, microbatch, in), reinterpret_cast<double*>(out.data())}, width);
    order.push_back(text_of({stage, pipeline_action::kind::forward, microbatch}));
  }
  void backward(std::uint32_t stage, std::uint32_t microbatch, const pipeline_memory& memory) override {
    CHECK(memory.gradient_out.empty() == (stage + 1 == m.stages));
    CHECK(memory.gradient_in.empty() == (stage == 0));
    std::vector<double> parts(width);
    kernels::run(kernels::backward{of(stage, microbatch, memory.in), reinterpret_cast<double*>(memory.out.data()),
                                   reinterpret_cast<const double*>(memory.gradient_out.data()),
                                   reinterpret_cast<double*>(memory.gradient_in.data()), parts.data()},
                 width);
    for (const double part : parts) m.weight_gradient[stage] += part;
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
  std::size_t elements = width;  // in an activation; at least `width`
  std::vector<std::string> order;

 private:
  kernels::stage of(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in) const {
    return {stage == 0 ? nullptr : reinterpret_cast<const double*>(in.data()), m.weight[stage], microbatch, width};
  }
};

/// The same model, computed by kernels on any place.
class placed_part final : public training_work {
 public:
  placed_part(std::uint32_t stages, place& at) : m_(stages), at_(at) {
    for (std::uint32_t s = 0; s < stages; ++s) gradients_.emplace_back(at, width);
  }
  std::uint64_t activation_bytes(std::uint32_t) const override { return width * sizeof(double); }
  bool waits_on_device() const override { return at_.stream() != nullptr; }
  task<> begin() {
    const std::vector<double> zeros(width);
    for (const auto& g : gradients_) co_await bring(at_, g, std::span<const double>(zeros));
  }
  task<> work(pipeline_action a, pipeline_memory memory) override {
    const bool forward = a.what == pipeline_action::kind::forward;
    at_.behind_messages(forward ? memory.in : memory.gradient_out);
    const kernels::stage of{numbers(memory.in), m_.weight[a.stage], a.microbatch, width};
    if (forward) {
      at_.compute(kernels::forward{of, numbers(memory.out)}, width);
    } else {
      at_.compute(kernels::backward{of, numbers(memory.out), numbers(memory.gradient_out), numbers(memory.gradient_in),
                                    at_.seen(gradients_[a.stage])},
                  width);
    }
    // The output of a forward pass is read in the backward pass, too. No message overwrites it, and a message that still sends it must not
    // wait for the backward kernel, so this is done only after the forward kernel.
    if (forward) at_.before_messages(memory.out);
    at_.before_messages(memory.in);
    at_.before_messages(memory.gradient_out);
    at_.before_messages(memory.gradient_in);
    co_return;
  }
  task<double> weight_gradient(std::uint32_t stage) {
    const std::vector<double> parts = co_await taken(at_, gradients_[stage]);
    double sum = 0;
    for (const double part : parts) sum += part;
    co_return sum;
  }

 private:
  template <class Byte>
  using number_in = std::conditional_t<std::is_const_v<Byte>, const double, double>;
  template <class Byte>
  number_in<Byte>* numbers(std::span<Byte> bytes) {
    return bytes.empty() ? nullptr : at_.seen(reinterpret_cast<number_in<Byte>*>(bytes.data()));
  }
  model m_;
  place& at_;
  std::vector<array<double>> gradients_;
};

/// The gradients computed by one process. Each stage sums its microbatches in the order of its list.
inline std::vector<double> gradients_alone(const pipeline_schedule& s) {
  part_of_model all(s.stages, 0);
  using numbers = std::vector<double>;
  std::vector<std::vector<numbers>> x(s.stages + 1, std::vector<numbers>(s.microbatches, numbers(width)));
  for (std::uint32_t m = 0; m < s.microbatches; ++m) {
    for (std::uint32_t stage = 0; stage < s.stages; ++stage)
      all.forward(stage, m, std::as_bytes(std::span(x[stage][m])), std::as_writable_bytes(std::span(x[stage + 1][m])));
  }
  std::vector<numbers> gradients(s.microbatches);
  for (std::uint32_t stage = s.stages; stage-- > 0;) {
    for (const pipeline_action& a : s.ranks[s.rank_of(stage)]) {
      if (a.stage != stage || a.what != pipeline_action::kind::backward) continue;
      numbers before(stage == 0 ? 0 : width);
      numbers& gradient = gradients[a.microbatch];
      all.backward(stage, a.microbatch,
                   {std::as_bytes(std::span(x[stage][a.microbatch])),
                    std::as_writable_bytes(std::span(x[stage + 1][a.microbatch])), std::as_bytes(std::span(gradient)),
                    std::as_writable_bytes(std::span(before))});
      gradient = before;
    }
  }
  return all.m.weight_gradient;
}
inline std::vector<double> gradients_alone(std::uint32_t stages, std::uint32_t microbatches) {
  return gradients_alone(gpipe(stages, microbatches));
}

}  // namespace parley::tests::training_case

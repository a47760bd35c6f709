#include <parley/ops/kernels/gpu_tuner.hpp>

#include <parley/cuda_gemm.hpp>
#include <parley/cuda_kernels.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace parley::ops {

using runtime::bf16;
using runtime::f16;
using runtime::f8_e4m3;
using transports::cuda_memory;

namespace {

class gpu_tuner final : public product_tuner {
 public:
  gpu_tuner(tunable_context& c, transports::cuda_driver& driver, transports::cublas_library& cublas, int device)
      : driver_(driver), cublas_(cublas), device_(device), stream_(driver.make_stream(device)),
        work_(c.where(), driver, device, stream_), floats_(make<float, float>(c)),
        rounded_(make<float, float>(c, true)), doubles_(make<double, double>(c)), halves_(make<f16, f16>(c)),
        brains_(make<bf16, bf16>(c)), to_floats_(make<f8_e4m3, float>(c)), to_halves_(make<f8_e4m3, f16>(c)),
        to_brains_(make<f8_e4m3, bf16>(c)) {}
  ~gpu_tuner() override { driver_.destroy(stream_); }
  std::string where() const override { return "a GPU"; }
  const kernel_entry* tune(const listed_gemm& g, std::string& chosen) override {
    if (g.type == "float") return tune(floats_, g, chosen);
    if (g.type == "tf32") return tune(rounded_, g, chosen);
    if (g.type == "double") return tune(doubles_, g, chosen);
    if (g.type == "Half") return tune(halves_, g, chosen);
    if (g.type == "BFloat16") return tune(brains_, g, chosen);
    if (g.type == "Float8_e4m3fn_Float8_e4m3fn_Float") return tune(to_floats_, g, chosen);
    if (g.type == "Float8_e4m3fn_Float8_e4m3fn_Half") return tune(to_halves_, g, chosen);
    if (g.type == "Float8_e4m3fn_Float8_e4m3fn_BFloat16") return tune(to_brains_, g, chosen);
    return nullptr;
  }

 private:
  template <class T, class Out>
  cuda_gemm<T, Out> make(tunable_context& c, bool tf32 = false) const {
    return {c, driver_, cublas_, {.device = device_, .tf32 = tf32}};
  }
  /// Random numbers, the same ones again and again.
  template <class N>
  cuda_memory numbers(std::size_t count, std::uint64_t seed) {
    constexpr std::size_t at_a_time = std::size_t{1} << 20U;
    cuda_memory all = cuda_memory::on_device(driver_, device_, count * sizeof(N));
    const std::vector<N> some = random_numbers<N>(std::min(count, at_a_time), seed);
    for (std::size_t done = 0; done < count; done += some.size())
      work_.copy(all.bytes().data() + done * sizeof(N), some.data(), std::min(some.size(), count - done) * sizeof(N));
    return all;
  }
  template <class N>
  static std::span<N> in(const cuda_memory& m) {
    return {reinterpret_cast<N*>(m.bytes().data()), m.bytes().size() / sizeof(N)};
  }
  template <class T, class Out>
  const kernel_entry* tune(cuda_gemm<T, Out>& multiply, const listed_gemm& g, std::string& chosen) {
    gemm_call<T, Out> call = g.call<T, Out>();
    const gemm_memory needs = multiply.needs(call);
    const cuda_memory a = numbers<T>(needs.a, 1), b = numbers<T>(needs.b, 2);
    const cuda_memory bias = numbers<Out>(g.has_bias ? g.m : 0, 3);
    const cuda_memory scales = numbers<float>(g.scales_by_row ? g.m + g.n : 0, 4);
    if (g.scales_by_row) call.scale_a = in<const float>(scales).data(), call.scale_b = call.scale_a + g.m;
    const cuda_memory c = cuda_memory::on_device(driver_, device_, needs.c * sizeof(Out));
    call.a = in<const T>(a), call.b = in<const T>(b), call.c = in<Out>(c), call.bias = in<const Out>(bias);
    multiply(call, stream_);
    chosen = multiply.runs(call);
    return &multiply.decision(call);
  }

  transports::cuda_driver& driver_;
  transports::cublas_library& cublas_;
  int device_;
  transports::cuda_stream stream_;
  cuda_kernels work_;
  cuda_gemm<float> floats_, rounded_;
  cuda_gemm<double> doubles_;
  cuda_gemm<f16> halves_;
  cuda_gemm<bf16> brains_;
  cuda_gemm<f8_e4m3, float> to_floats_;
  cuda_gemm<f8_e4m3, f16> to_halves_;
  cuda_gemm<f8_e4m3, bf16> to_brains_;
};

}  // namespace

std::unique_ptr<product_tuner> make_gpu_tuner(tunable_context& kernels, transports::cuda_driver& driver,
                                              transports::cublas_library& cublas, int device) {
  return std::make_unique<gpu_tuner>(kernels, driver, cublas, device);
}

}  // namespace parley::ops

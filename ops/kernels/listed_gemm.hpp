#pragma once
// A multiplication as a line of a file names it: `GemmTunableOp_float_NT,nt_25088_4096_64`.
#include <parley/gemm_call.hpp>
#include <parley/ops/kernels/kernel_core.hpp>
#include <parley/runtime/random.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

/// In column-major order.
struct listed_gemm {
  std::string_view type;  ///< of a scaled product, all three: `Float8_e4m3fn_Float8_e4m3fn_BFloat16`
  bool has_bias = false, is_batched = false, is_scaled = false, scales_by_row = false;
  bool trans_a = false, trans_b = false;
  std::size_t m = 0, n = 0, k = 0, batch = 1, lda = 0, ldb = 0, ldc = 0;

  /// Without memory.
  template <class T, class Out>
  gemm_call<T, Out> call() const {
    gemm_call<T, Out> c{.m = m, .n = n, .k = k, .trans_a = trans_a, .trans_b = trans_b};
    c.scales_by_row = scales_by_row;
    c.lda = lda, c.ldb = ldb, c.ldc = ldc, c.batch = batch;
    return c;
  }
};

/// The type and layout in the op's name, as in `GemmTunableOp_float_NT`; nothing: it is no multiplication.
std::optional<listed_gemm> parse_gemm_op(std::string_view op);
/// Adds the sizes in the key, as in `nt_25088_4096_64_B_2_ld_25088_4096_25088`; false: it is no such key.
bool parse_gemm_key(std::string_view key, listed_gemm& g);

class product_tuner {
 public:
  product_tuner() = default;
  product_tuner(const product_tuner&) = delete;
  product_tuner& operator=(const product_tuner&) = delete;
  virtual ~product_tuner() = default;
  virtual std::string where() const = 0;
  /// Tunes the product, says what was chosen, and returns its entry; null: there is no such type. Throws what the multiplication throws.
  virtual const kernel_entry* tune(const listed_gemm& g, std::string& chosen) = 0;
};

template <class T>
std::vector<T> random_numbers(std::size_t count, std::uint64_t seed) {
  std::vector<T> all(count);
  for (T& each : all) each = static_cast<T>(static_cast<float>(runtime::mix(++seed) % 2'048) / 1'024.0F - 1.0F);
  return all;
}

}  // namespace parley::ops

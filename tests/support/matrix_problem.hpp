#pragma once
// Matrix products with small whole numbers, and what their results must be.
#include <parley/gemm_call.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace parley::tests {

// Small whole numbers: sums of products are exact in each type.
template <class T>
std::vector<T> numbers(std::size_t count, unsigned seed) {
  std::vector<T> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back(static_cast<T>(static_cast<float>((i * 7 + seed * 13) % 5) - 2.0F));
  return all;
}

/// A multiplication with its memory, which may be copied to a device.
template <class T, class Out = T>
struct matrix_problem {
  ops::gemm_call<T, Out> call;
  std::vector<T> a, b;
  std::vector<Out> c, bias;
  std::size_t lda, ldb, ldc;  // as given or smallest
  bool by_rows() const { return call.order == ops::matrix_order::row_major; }

  explicit matrix_problem(const ops::gemm_call<T, Out>& given) : call(given) {
    const auto least = [&](std::size_t rows, std::size_t columns) { return by_rows() ? columns : rows; };
    const auto across = [&](std::size_t rows, std::size_t columns) { return by_rows() ? rows : columns; };
    const std::size_t rows_a = call.trans_a ? call.k : call.m, columns_a = call.trans_a ? call.m : call.k;
    const std::size_t rows_b = call.trans_b ? call.n : call.k, columns_b = call.trans_b ? call.k : call.n;
    lda = call.lda != 0 ? call.lda : least(rows_a, columns_a);
    ldb = call.ldb != 0 ? call.ldb : least(rows_b, columns_b);
    ldc = call.ldc != 0 ? call.ldc : least(call.m, call.n);
    stride_a = lda * across(rows_a, columns_a);
    stride_b = ldb * across(rows_b, columns_b);
    stride_c = ldc * across(call.m, call.n);
    a = numbers<T>(stride_a * call.batch, 1);
    b = numbers<T>(stride_b * call.batch, 2);
    c = numbers<Out>(stride_c * call.batch, 3);
  }
  void add_bias() { bias = numbers<Out>(by_rows() ? call.n : call.m, 4); }
  ops::gemm_call<T, Out> with_memory() {
    ops::gemm_call<T, Out> full = call;
    full.a = a, full.b = b, full.c = c, full.bias = bias;
    return full;
  }
  std::size_t at(std::size_t row, std::size_t column, std::size_t leading) const {
    return by_rows() ? row * leading + column : column * leading + row;
  }
  std::vector<Out> expected() const {
    std::vector<Out> out = c;
    for (std::size_t x = 0; x < call.batch; ++x)
      for (std::size_t i = 0; i < call.m; ++i)
        for (std::size_t j = 0; j < call.n; ++j) {
          double sum = 0;
          for (std::size_t p = 0; p < call.k; ++p)
            sum += double(a[x * stride_a + (call.trans_a ? at(p, i, lda) : at(i, p, lda))]) *
                   double(b[x * stride_b + (call.trans_b ? at(j, p, ldb) : at(p, j, ldb))]);
          Out& here = out[x * stride_c + at(i, j, ldc)];
          const double before = call.beta == 0 ? 0 : double(call.beta) * double(here);
          const double more = bias.empty() ? 0 : double(bias[by_rows() ? j : i]);
          here = static_cast<Out>(static_cast<ops::gemm_scalar<T>>(double(call.alpha) * sum + before + more));
        }
    return out;
  }
  std::size_t stride_a, stride_b, stride_c;
};

/// Sums of small whole numbers are exact in each type, so nothing is rounded.
template <class T>
void check_equal(const std::vector<T>& seen, const std::vector<T>& expected, const std::string& what) {
  REQUIRE(seen.size() == expected.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) wrong += double(seen[i]) == double(expected[i]) ? 0 : 1;
  CHECK_MESSAGE(wrong == 0, what, ": ", wrong, " of ", seen.size(), " numbers are wrong");
}

}  // namespace parley::tests

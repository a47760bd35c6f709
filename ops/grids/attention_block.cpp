#include <parley/attention_block.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace parley::ops {

template <class T>
void add_attention_block(attention_state<T>& state, std::span<const T> q, std::span<const T> k, std::span<const T> v,
                         std::uint64_t first_query, std::uint64_t first_key) {
  using sum = attention_sum<T>;
  const attention_shape& s = state.shape;
  const auto scale = static_cast<sum>(s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<double>(s.dimensions)));
  constexpr sum masked = -std::numeric_limits<sum>::infinity();
  std::vector<sum> score(s.rows);
  for (std::uint64_t row = 0; row < s.heads * s.rows; ++row) {
    const std::uint64_t head = row / s.rows;
    const std::uint64_t query = first_query + row % s.rows;
    const std::uint64_t visible = s.causal ? (query < first_key ? 0 : std::min(query - first_key + 1, s.rows)) : s.rows;
    if (visible == 0) continue;
    const T* const mine = q.data() + row * s.dimensions;
    const T* const keys = k.data() + head * s.rows * s.dimensions;
    const T* const values = v.data() + head * s.rows * s.dimensions;
    sum highest = state.maximum[row];
    for (std::uint64_t j = 0; j < visible; ++j) {
      sum product = 0;
      for (std::uint64_t d = 0; d < s.dimensions; ++d)
        product += static_cast<sum>(mine[d]) * static_cast<sum>(keys[j * s.dimensions + d]);
      score[j] = product * scale;
      highest = std::max(highest, score[j]);
    }
    // If all keys of a row so far score -inf, 0 is subtracted in place of -inf, so that the results are numbers.
    const sum base = highest == masked ? 0 : highest;
    const sum shrink = std::exp(state.maximum[row] - base);
    sum* const out = state.weighted.data() + row * s.dimensions;
    for (std::uint64_t d = 0; d < s.dimensions; ++d) out[d] *= shrink;
    state.weight[row] *= shrink;
    for (std::uint64_t j = 0; j < visible; ++j) {
      if (score[j] == masked) continue;
      const sum weight = std::exp(score[j] - base);
      state.weight[row] += weight;
      for (std::uint64_t d = 0; d < s.dimensions; ++d)
        out[d] += weight * static_cast<sum>(values[j * s.dimensions + d]);
    }
    state.maximum[row] = highest;
  }
}

template <class T>
void attention_state<T>::divide_into(std::span<T> out) const {
  for (std::uint64_t row = 0; row < weight.size(); ++row) {
    for (std::uint64_t d = 0; d < shape.dimensions; ++d) {
      const std::uint64_t i = row * shape.dimensions + d;
      out[i] = static_cast<T>(weight[row] == 0 ? sum{0} : weighted[i] / weight[row]);
    }
  }
}

#define PARLEY_ATTENTION_OF(T)                                                                      \
  template struct attention_state<T>;                                                               \
  template void add_attention_block<T>(attention_state<T>&, std::span<const T>, std::span<const T>, \
                                       std::span<const T>, std::uint64_t, std::uint64_t)
PARLEY_ATTENTION_OF(float);
PARLEY_ATTENTION_OF(double);
PARLEY_ATTENTION_OF(runtime::bf16);
PARLEY_ATTENTION_OF(runtime::f16);
#undef PARLEY_ATTENTION_OF

}  // namespace parley::ops

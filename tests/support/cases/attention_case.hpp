#pragma once
/// CASES section 5: attention over the whole sequence, and one rank's part of it in a ring.
#include <parley/rank.hpp>
#include <parley/ring_attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::tests::attention_case {

using namespace parley::ops;
using namespace parley::runtime;

inline constexpr std::uint64_t sequence = 64;
inline constexpr std::uint64_t dimensions = 16;
inline constexpr std::uint64_t heads = 2;

// The whole sequence, [heads][rows][dimensions].
template <class T>
struct problem {
  problem() : q(heads * sequence * dimensions), k(q.size()), v(q.size()) {
    std::mt19937 dice(11);
    for (auto* all : {&q, &k, &v}) {
      for (T& x : *all) x = static_cast<T>(static_cast<float>(static_cast<int>(dice() % 2001) - 1000) / 500.0F);
    }
  }
  /// Sets keys that score -inf, with values that must not be seen, like those of a padded sequence.
  void mask(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t row = 0; row < heads * sequence; ++row) {
      const std::uint64_t at = row * dimensions;
      q[at] = 1;
      k[at] = 0;
      if (row % sequence < from || row % sequence >= to) continue;
      k[at] = static_cast<T>(-std::numeric_limits<float>::infinity());
      std::fill_n(v.begin() + static_cast<std::ptrdiff_t>(at), dimensions, std::numeric_limits<float>::quiet_NaN());
    }
  }
  std::vector<T> q, k, v;
};

// Attention over the whole sequence, summed as `Sum`. Rows without keys are zero.
template <class Sum, class T>
std::vector<double> dense(const problem<T>& p, bool causal) {
  std::vector<double> out(p.q.size());
  const Sum scale = static_cast<Sum>(1 / std::sqrt(static_cast<double>(dimensions)));
  for (std::uint64_t row = 0; row < heads * sequence; ++row) {
    const std::uint64_t head = row / sequence;
    const std::uint64_t seen = causal ? row % sequence + 1 : sequence;
    std::vector<Sum> score(seen);
    for (std::uint64_t j = 0; j < seen; ++j) {
      for (std::uint64_t d = 0; d < dimensions; ++d)
        score[j] += static_cast<Sum>(p.q[row * dimensions + d]) *
                    static_cast<Sum>(p.k[(head * sequence + j) * dimensions + d]) * scale;
    }
    const Sum highest = *std::max_element(score.begin(), score.end());
    if (highest == -std::numeric_limits<Sum>::infinity()) continue;
    Sum total = 0;
    for (Sum& s : score) total += s = std::exp(s - highest);
    for (std::uint64_t d = 0; d < dimensions; ++d) {
      Sum sum = 0;
      for (std::uint64_t j = 0; j < seen; ++j) {
        if (score[j] != 0) sum += score[j] * static_cast<Sum>(p.v[(head * sequence + j) * dimensions + d]);
      }
      out[row * dimensions + d] = static_cast<double>(static_cast<T>(sum / total));
    }
  }
  return out;
}

template <class T>
struct part {
  part(const problem<T>& p, std::uint64_t ranks, std::uint64_t mine)
      : rows(sequence / ranks), out(heads * rows * dimensions) {
    for (const auto& [from, to] : {std::pair(&p.q, &q), {&p.k, &k}, {&p.v, &v}}) {
      for (std::uint64_t h = 0; h < heads; ++h) {
        const auto begin = from->begin() + static_cast<std::ptrdiff_t>((h * sequence + mine * rows) * dimensions);
        to->insert(to->end(), begin, begin + static_cast<std::ptrdiff_t>(rows * dimensions));
      }
    }
  }
  std::uint64_t rows;
  std::vector<T> q, k, v, out;
};

/// The largest difference between this part and the right output; infinite if the part has a NaN.
template <class T>
double farthest_from(const std::vector<double>& right, const part<T>& p, std::uint64_t mine) {
  double most = 0;
  for (std::uint64_t i = 0; i < p.out.size(); ++i) {
    const std::uint64_t head = i / (p.rows * dimensions);
    const std::uint64_t at = (head * sequence + mine * p.rows) * dimensions + i % (p.rows * dimensions);
    const double off = std::abs(static_cast<double>(p.out[i]) - right[at]);
    most = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(most, off);
  }
  return most;
}

/// The right output, and how far from it a part of elements T may be.
struct expected {
  std::vector<double> right;
  double tolerance = 0;
};
template <class T>
expected expect(const problem<T>& all, bool causal) {
  problem<double> same;
  std::copy(all.q.begin(), all.q.end(), same.q.begin());
  std::copy(all.k.begin(), all.k.end(), same.k.begin());
  std::copy(all.v.begin(), all.v.end(), same.v.begin());
  expected e{dense<double>(same, causal)};
  if (std::is_same_v<T, double>) {
    e.tolerance = 1e-13;
  } else if (std::is_same_v<T, float>) {
    e.tolerance = 2e-6;
  } else {
    const auto dense_half = dense<float>(all, causal);
    for (std::size_t i = 0; i < e.right.size(); ++i)
      e.tolerance = std::max(e.tolerance, 2.5 * std::abs(e.right[i] - dense_half[i]));
    e.tolerance += 2e-3;
  }
  return e;
}

}  // namespace parley::tests::attention_case

#pragma once
/// The sizes and numbers of repetitions of bench/exchange.cpp and of its peer, which have to be the same.
#include <parley/bench/measure.hpp>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace parley::bench {

/// Bytes, or of a halo the cells along an edge.
inline std::vector<std::int64_t> sizes_of(std::string_view what) {
  std::vector<std::int64_t> sizes;
  if (what == "halo") {
    for (std::int64_t n = 64; n <= 4'096; n *= 2) sizes.push_back(n - 2);
  } else {
    for (std::int64_t n = 8; n <= (what == "pairs" ? 4 << 20 : 64 << 20); n *= 4) sizes.push_back(n);
    if (what == "all_reduce") sizes.push_back(64 << 20);
  }
  return sizes;
}

struct step_plan {
  std::int64_t warm_ups;
  std::int64_t repetitions;
};

/// More warm-ups than a campaign needs, for both.
inline step_plan plan_for(std::int64_t bytes) {
  constexpr std::int64_t bytes_in_all = 256 << 20;
  const std::int64_t affordable = bytes_in_all / std::max<std::int64_t>(bytes, 1);
  return {std::clamp<std::int64_t>(affordable, 60, 600), std::clamp<std::int64_t>(affordable, 40, 4'000)};
}

}  // namespace parley::bench

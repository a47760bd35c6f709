#pragma once
/// The sizes and repetitions of bench/exchange.cpp and peers/mpi_exchange.cpp, which must be equal, and the further
/// times that their ranks report in addition to the median time of a size. columns.py makes tables of them.
#include <parley/bench/measure.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace parley::bench {

/// Sizes in bytes; for a halo, cells along an edge. `--size` replaces them by one size.
inline std::vector<std::int64_t> sizes_of(std::string_view what, const arguments& given) {
  std::vector<std::int64_t> sizes;
  if (const std::int64_t only = given.number("size", 0); only != 0) return {only};
  if (what == "halo") {
    for (std::int64_t n = 64; n <= 4'096; n *= 2) sizes.push_back(n - 2);
  } else {
    for (std::int64_t n = 8; n <= (what == "all_reduce" ? 64 << 20 : 4 << 20); n *= 4) sizes.push_back(n);
    if (what == "all_reduce") sizes.push_back(64 << 20);
  }
  return sizes;
}

/// Messages of a batch in each direction.
inline constexpr int batch_messages = 8;

struct step_plan {
  std::int64_t warm_ups;
  std::int64_t repetitions;
};

/// The warm-ups exceed what a search needs; both programs make the same number. There are fewer steps if ranks
/// share cores, because each rank then waits milliseconds for the others' time slices. `--steps` sets the number of
/// measured steps.
inline step_plan plan_for(std::int64_t bytes, unsigned ranks, const arguments& given) {
  constexpr std::int64_t bytes_in_all = 256 << 20;
  const std::int64_t affordable = bytes_in_all / std::max<std::int64_t>(bytes, 1);
  step_plan plan{std::clamp<std::int64_t>(affordable, 60, 600), std::clamp<std::int64_t>(affordable, 40, 4'000)};
  if (ranks > std::thread::hardware_concurrency())
    plan = {std::clamp<std::int64_t>(affordable, 40, 200), std::clamp<std::int64_t>(affordable, 40, 200)};
  plan.repetitions = given.number("steps", plan.repetitions);
  return plan;
}

/// Reports the number, average, minimum and maximum of this rank's times as NAME/RANK/PHASE/…. A phase is a whole
/// step or a part of each step.
inline void report_phase(const std::string& name, unsigned rank, const std::string& phase,
                         const std::vector<double>& times) {
  const std::string at = name + "/" + std::to_string(rank) + "/" + phase + "/";
  const auto [shortest, longest] = std::minmax_element(times.begin(), times.end());
  report(at + "num", double(times.size()), "steps");
  report(at + "avg", std::accumulate(times.begin(), times.end(), 0.0) / double(times.size()), "ns");
  report(at + "min", *shortest, "ns");
  report(at + "max", *longest, "ns");
}

}  // namespace parley::bench

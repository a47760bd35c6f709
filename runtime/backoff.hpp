#pragma once
/// The pauses between attempts: each twice as long as the one before, up to the longest, and each shortened by up to half at random, so
/// that many who wait for the same thing do not ask for it at the same moment.
///
///     backoff<1'000'000, 100'000'000> pauses;                // nanoseconds
///     ex.arm(again, ex.now() + pauses.next(jitter));         // 0.5 to 1 ms, then 1 to 2 ms, …
///     pauses.restart();                                      // there was progress
#include <parley/runtime/identifiers.hpp>
#include <parley/runtime/random.hpp>

#include <algorithm>
#include <cstdint>

namespace parley::runtime {

template <time_ns first, time_ns longest>
class backoff {
  static_assert(0 < first && first <= longest);

 public:
  constexpr time_ns next(random_stream& jitter) noexcept {
    const time_ns whole = pause_;
    pause_ = std::min(2 * pause_, longest);
    return whole - static_cast<time_ns>(jitter.below(static_cast<std::uint64_t>(whole / 2)));
  }
  /// Begins anew, with `from` where it is known how long an answer takes.
  constexpr void restart(time_ns from = first) noexcept { pause_ = from; }

 private:
  time_ns pause_ = first;
};

}  // namespace parley::runtime

#pragma once
/// Computes the pauses between attempts. Each pause is twice as long as the one before, up to the longest. Each is shortened by up to half
/// at random, so that ranks that wait for the same thing do not all ask for it at the same moment.
///
///     backoff<1'000'000, 100'000'000> pauses;                // nanoseconds
///     ex.arm_in(again, pauses.next(jitter));         // 0.5 to 1 ms, then 1 to 2 ms, …
///     pauses.restart();                                      // there was progress
#include <parley/identifiers.hpp>
#include <parley/runtime/random.hpp>

#include <algorithm>
#include <cstdint>

namespace parley::runtime {

/// Random numbers for pauses. As a fault for simulations, `hurried` of a thousand pauses are almost zero: a retry that is too early must do
/// no harm.
class pause_chance : public random_stream {
 public:
  using random_stream::random_stream;
  constexpr bool hurries() noexcept { return hurried != 0 && below(1000) < hurried; }
  std::uint64_t hurried = 0;
};

template <time_ns first, time_ns longest>
class backoff {
  static_assert(0 < first && first <= longest);

 public:
  constexpr time_ns next(random_stream& jitter) noexcept {
    const time_ns whole = pause_;
    pause_ = std::min(2 * pause_, longest);
    return whole - static_cast<time_ns>(jitter.below(static_cast<std::uint64_t>(whole / 2)));
  }
  constexpr time_ns next(pause_chance& jitter) noexcept {
    const time_ns pause = next(static_cast<random_stream&>(jitter));
    return jitter.hurries() ? pause / hurry : pause;
  }
  /// Starts again with the shortest pause, or with `from` if the time of an answer is known.
  constexpr void restart(time_ns from = first) noexcept { pause_ = from; }

 private:
  static constexpr time_ns hurry = 10'000;
  time_ns pause_ = first;
};

}  // namespace parley::runtime

#pragma once
/// Random numbers that are a pure function of (seed, stream, counter), equal on every compiler and machine. Each purpose has its own
/// stream, so that numbers drawn for one purpose do not change those for another.
///
///     random_stream jitter = executor.rng(streams::jitter);
///     jitter.below(10);     // 0 … 9
#include <cstdint>

namespace parley::runtime {

/// A good 64-bit mixing function (the finaliser of SplitMix64).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

class random_stream {
 public:
  constexpr random_stream(std::uint64_t seed, std::uint64_t stream) noexcept
      : state_(mix(seed ^ mix(stream + 0x9e3779b97f4a7c15U))) {}

  constexpr std::uint64_t next() noexcept { return mix(state_ += 0x9e3779b97f4a7c15U); }
  /// Uniform in [0, bound); 0 when `bound` is 0.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    __extension__ typedef unsigned __int128 wide;  // NOLINT(modernize-use-using): the extension needs a typedef
    return static_cast<std::uint64_t>((static_cast<wide>(next()) * bound) >> 64U);
  }

 private:
  std::uint64_t state_;
};

/// The purposes that the library draws numbers for.
enum class streams : std::uint64_t { jitter = 1, order = 2, user = 1000 };

}  // namespace parley::runtime

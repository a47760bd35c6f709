#pragma once
/// Numbers for property tests: splitmix64, so the same on every machine.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace parley::tuning::testing {

class generator {
 public:
  explicit generator(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  /// Uniform from -1 to 1.
  double symmetric() { return static_cast<double>(next() >> 11U) * 0x1p-52 - 1.0; }
  /// Roughly normal, with standard deviation 1.
  double normal() { return symmetric() + symmetric() + symmetric(); }
  std::string text(std::size_t longest, const std::string& letters) {
    std::string out(below(longest + 1), ' ');
    for (char& c : out) c = letters.empty() ? static_cast<char>(next()) : letters[below(letters.size())];
    return out;
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace parley::tuning::testing

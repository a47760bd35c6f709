#pragma once
/// A fixed number of bits, as in an offer: they say which configs a rank has, or has warmed.
///
///     bits available(catalogue.size(), bit::set);
///     available.clear(3);
///     message.words = available.words();                          // 64 to a word, the lowest index first
///     outcome<bits> back = bits::from_words(message.words, count); // unused high bits must be zero
///
/// An index past the end reads as clear; setting or clearing it throws `invalid`.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

enum class bit : bool { clear = false, set = true };

class bits {
 public:
  bits() = default;
  explicit bits(std::size_t size, bit fill = bit::clear);
  static outcome<bits> from_words(std::vector<std::uint64_t> words, std::size_t size);

  std::size_t size() const noexcept { return size_; }
  bool test(std::size_t index) const noexcept {
    return index < size_ && ((words_[index / 64] >> (index % 64)) & 1U) != 0;
  }
  void set(std::size_t index);
  void clear(std::size_t index);
  std::size_t count() const noexcept;
  const std::vector<std::uint64_t>& words() const noexcept { return words_; }
  friend bool operator==(const bits&, const bits&) = default;

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_ = 0;
};

}  // namespace parley::tuning

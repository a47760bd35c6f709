#include <parley/tuning/bits.hpp>

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

constexpr std::size_t word_count(std::size_t size) { return size / 64 + (size % 64 != 0 ? 1 : 0); }

/// The bits of the last word that are in use.
constexpr std::uint64_t last_mask(std::size_t size) {
  return size % 64 == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << (size % 64)) - 1;
}

void require(std::size_t index, std::size_t size) {
  if (index >= size) throw invalid({fault::malformed, fmt::format("bit {} of {} does not exist", index, size)});
}

}  // namespace

bits::bits(std::size_t size, bit fill)
    : words_(word_count(size), fill == bit::set ? ~std::uint64_t{0} : std::uint64_t{0}), size_(size) {
  if (!words_.empty()) words_.back() &= last_mask(size);
}

outcome<bits> bits::from_words(std::vector<std::uint64_t> words, std::size_t size) {
  if (words.size() != word_count(size)) {
    return problem{fault::malformed,
                   fmt::format("{} bits need {} words of 64, not {}", size, word_count(size), words.size())};
  }
  if (!words.empty() && (words.back() & ~last_mask(size)) != 0) {
    return problem{fault::malformed, fmt::format("bits past the {} that are in use must be zero", size)};
  }
  bits made;
  made.words_ = std::move(words);
  made.size_ = size;
  return made;
}

void bits::set(std::size_t index) {
  require(index, size_);
  words_[index / 64] |= std::uint64_t{1} << (index % 64);
}

void bits::clear(std::size_t index) {
  require(index, size_);
  words_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
}

std::size_t bits::count() const noexcept {
  std::size_t total = 0;
  for (std::uint64_t word : words_) total += static_cast<std::size_t>(std::popcount(word));
  return total;
}

}  // namespace parley::tuning

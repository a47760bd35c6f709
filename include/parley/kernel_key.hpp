#pragma once
/// The key of a kernel's decision: a few numbers and words that the kernel's speed depends on, chosen by the kernel's user.
///
///     kernel_key key{{"m", rows}, {"n", columns}, {"dtype", "f32"}};
///     parameters_text(key);          // "dtype=f32 m=64 n=128": the second field of a results line
///     kernel_key bucket{{"bytes", size_bucket::of(bytes).largest_bytes()}};     // sizes that share a decision
///
/// Names and words are literals, so that a key can be made, compared and hashed without an allocation. The text of a key is sorted by
/// name, so the order of the parameters never matters. `parameters_text` returns a `problem` for two equal names, and for characters that
/// a results line cannot hold. The constructor throws `invalid` for more than `kernel_key::most` parameters.
#include <parley/tuning/outcome.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace parley::tuning {

/// A string literal. Its text lives as long as the program.
class literal_text {
 public:
  constexpr literal_text() noexcept = default;
  template <std::size_t N>
  consteval literal_text(const char (&text)[N]) noexcept  // NOLINT(google-explicit-constructor,*-c-arrays)
      : text_(&text[0]) {}
  constexpr const char* data() const noexcept { return text_; }
  constexpr explicit operator bool() const noexcept { return text_ != nullptr; }
  std::string_view view() const noexcept { return text_ == nullptr ? std::string_view() : std::string_view(text_); }
  friend constexpr bool operator==(literal_text, literal_text) noexcept = default;

 private:
  const char* text_ = nullptr;
};

struct kernel_parameter {
  constexpr kernel_parameter() noexcept = default;
  constexpr kernel_parameter(literal_text n, std::unsigned_integral auto value) noexcept : name(n), number(value) {}
  constexpr kernel_parameter(literal_text n, literal_text value) noexcept : name(n), word(value) {}
  friend constexpr bool operator==(const kernel_parameter&, const kernel_parameter&) noexcept = default;

  literal_text name;
  literal_text word;  ///< the value, unless it is a number
  std::uint64_t number = 0;
};

class kernel_key {
 public:
  static constexpr std::size_t most = 8;

  constexpr kernel_key() noexcept = default;
  constexpr kernel_key(std::initializer_list<kernel_parameter> parameters) {
    if (parameters.size() > most) refuse_more();
    for (const kernel_parameter& p : parameters) parameters_[count_++] = p;
  }
  constexpr std::size_t size() const noexcept { return count_; }
  constexpr const kernel_parameter* begin() const noexcept { return parameters_.data(); }
  constexpr const kernel_parameter* end() const noexcept { return parameters_.data() + count_; }

  /// True if both keys have the same literals and numbers, as keys made by one key function do. Keys from different literals are different
  /// here even if their texts are equal, so code that stores decisions must also compare the texts.
  friend constexpr bool operator==(const kernel_key& a, const kernel_key& b) noexcept {
    if (a.count_ != b.count_) return false;
    for (std::size_t i = 0; i < a.count_; ++i) {
      if (!(a.parameters_[i] == b.parameters_[i])) return false;
    }
    return true;
  }
  /// Hashes the count of parameters and their numbers, not their names or words. For tables in memory only.
  constexpr std::size_t hash() const noexcept {
    std::uint64_t h = count_;
    for (const kernel_parameter& p : *this) h = (h ^ p.number) * 0x9e3779b97f4a7c15U + (h >> 29U);
    return h ^ (h >> 32U);
  }

 private:
  [[noreturn]] static void refuse_more();
  std::array<kernel_parameter, most> parameters_{};
  std::size_t count_ = 0;
};

/// `dtype=f32 m=64 n=128`; `all` for a key without parameters.
outcome<std::string> parameters_text(const kernel_key& key);

}  // namespace parley::tuning

#pragma once
/// The key of a decision: an op, a bucket of sizes and an element type.
///
///     tuning_key key{"activations", size_bucket::of(16 << 20), "bf16"};
///     key.op;                   // "activations": the first field of a results line
///     parameters_text(key);     // "16MiB_bf16": the second one
///     parse_byte_size("256KiB").value();   // 262144
///
/// A bucket holds the sizes from one power of two (exclusive) to the next (inclusive); 0 B has its own bucket. Only the sender derives the
/// key, so the size of the receive buffer does not matter.
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

/// Named by its largest size: 0, 1, 2, 4, ... 2^63. The last bucket also holds all larger sizes.
class size_bucket {
 public:
  constexpr size_bucket() = default;
  static size_bucket of(std::uint64_t bytes) noexcept;

  std::uint64_t smallest_bytes() const noexcept;
  std::uint64_t largest_bytes() const noexcept;
  bool contains(std::uint64_t bytes) const noexcept { return of(bytes) == *this; }
  /// 0 for 0 B, 1 for 1 B, 2 for 2 B, 3 for 3..4 B: a small dense index.
  unsigned index() const noexcept { return index_; }
  static constexpr unsigned count = 65;
  friend constexpr auto operator<=>(const size_bucket&, const size_bucket&) = default;

 private:
  unsigned index_ = 0;
};

/// Ordered by op, then size, then type.
struct tuning_key {
  std::string op;
  size_bucket size{};
  std::string dtype{};  ///< may be empty: plain bytes
  friend auto operator<=>(const tuning_key&, const tuning_key&) = default;
};

/// `16MiB_bf16`, or `16MiB` without a type.
std::string parameters_text(const tuning_key& key);
/// `activations 16MiB_bf16`, for people.
std::string to_string(const tuning_key& key);
/// Reads the key from the two fields of a results line.
outcome<tuning_key> parse_key(std::string_view op, std::string_view parameters);
/// Checks that results files can hold the names of op and type: no commas, control characters or outer spaces; not `Validator`.
outcome<tuning_key> checked(tuning_key key);

/// `0B`, `12345B`, `8KiB`, `16MiB`: the largest unit that leaves no remainder.
std::string byte_size_text(std::uint64_t bytes);
/// `262144`, `262144B`, `256KiB`, `256 KiB`; units B, KiB, MiB, GiB, TiB, PiB, EiB.
outcome<std::uint64_t> parse_byte_size(std::string_view text);

}  // namespace parley::tuning

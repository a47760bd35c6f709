#pragma once
/// A user's demands on every config, which apply before times decide: a limit for its error, and a limit for its memory.
///
///     const demands needs{.relative_error = 1e-2, .memory_per_byte = 4};       // what a config says of itself
///     const constraints user{.relative_error = 1e-3, .memory_bytes = 64 << 20};
///     for (const broken_constraint& b : broken_by(needs, user)) b.largest_bytes;   // of a payload that may still use it
///
/// The error is the deviation of the config's result from the default's result, relative to the latter. The memory is the config's memory
/// in addition to the caller's buffers, on the rank that asks. No constraint excludes the default, because the others are compared with it.
///
/// With `compare_trials` results are checked. A config has failed if it claims to be exact and produces other bytes, or if its numbers
/// deviate by more than the allowed error.
#include <parley/tuning/results/settings.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace parley::tuning {

struct demands {
  double relative_error = 0;
  std::uint64_t memory_bytes = 0;                                            ///< fixed part, for a payload of any size
  double memory_per_byte = 0;                                                ///< and per byte of the payload
  std::uint64_t memory_at_most = std::numeric_limits<std::uint64_t>::max();  ///< limit of the total, as with chunks
};

struct constraints {
  double relative_error = std::numeric_limits<double>::infinity();
  std::uint64_t memory_bytes = std::numeric_limits<std::uint64_t>::max();
  bool compare_trials = false;  ///< compare a trial's result with the sent data, or with the default's result
  double absolute_error = numerical_check{}.atol;  ///< allowed for compared numbers, in addition to the relative error
  bool any() const noexcept {
    return compare_trials || relative_error < std::numeric_limits<double>::infinity() ||
           memory_bytes < std::numeric_limits<std::uint64_t>::max();
  }
};

enum class constraint_kind : std::uint8_t { accuracy, memory, last = memory };
std::string_view name(constraint_kind kind) noexcept;

struct broken_constraint {
  constraint_kind kind = constraint_kind::accuracy;
  std::uint64_t largest_bytes = 0;  ///< largest payload that may use the config
  double needs = 0;                 ///< a relative error, or bytes of memory for a payload that is one byte larger
  double allowed = 0;
  friend bool operator==(const broken_constraint&, const broken_constraint&) = default;
};

/// The constraints that satisfy both.
constexpr constraints both(const constraints& a, const constraints& b) noexcept {
  return {std::min(a.relative_error, b.relative_error), std::min(a.memory_bytes, b.memory_bytes),
          a.compare_trials || b.compare_trials, std::min(a.absolute_error, b.absolute_error)};
}

/// How numbers are compared under these constraints.
constexpr numerical_check tolerance_of(const constraints& user) noexcept {
  const bool said = user.relative_error < std::numeric_limits<double>::infinity();
  return {user.compare_trials, user.absolute_error, said ? user.relative_error : numerical_check{}.rtol};
}

/// Returns at most one of each kind. A demand that is negative or NaN counts as infinite.
std::vector<broken_constraint> broken_by(const demands& d, const constraints& user);

/// `constraint on memory: payloads of more than 1024 bytes need at least 4096 bytes of extra memory, and 4095 are allowed`
std::string sentence(const broken_constraint& b);

}  // namespace parley::tuning

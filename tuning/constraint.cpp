#include <parley/tuning/constraint.hpp>

#include <cmath>
#include <cstdio>

namespace parley::tuning {

namespace {

constexpr double most_bytes = 9e18;  // below 2^63

double at_worst(double demand) noexcept {
  return demand >= 0 ? demand : std::numeric_limits<double>::infinity();  // also for NaN
}

std::string in_words(const char* format, double needs, double allowed) {
  char text[160];
  std::snprintf(text, sizeof text, format, needs, allowed);
  return text;
}

}  // namespace

std::string_view name(constraint_kind kind) noexcept {
  return kind == constraint_kind::accuracy ? "accuracy" : "memory";
}

std::vector<broken_constraint> broken_by(const demands& d, const constraints& user) {
  std::vector<broken_constraint> all;
  const double error = at_worst(d.relative_error);
  if (!(error <= user.relative_error)) all.push_back({constraint_kind::accuracy, 0, error, user.relative_error});
  if (d.memory_at_most <= user.memory_bytes) return all;
  const auto allowed = static_cast<double>(user.memory_bytes);
  const auto fixed = static_cast<double>(d.memory_bytes);
  const double each = at_worst(d.memory_per_byte);
  if (d.memory_bytes > user.memory_bytes) {
    all.push_back({constraint_kind::memory, 0, fixed, allowed});
  } else if (each > 0) {
    const double largest = std::floor((allowed - fixed) / each);
    if (largest < most_bytes)
      all.push_back(
          {constraint_kind::memory, static_cast<std::uint64_t>(largest), fixed + each * (largest + 1), allowed});
  }
  return all;
}

std::string sentence(const broken_constraint& b) {
  const std::string on = "constraint on " + std::string(name(b.kind)) + ": ";
  if (b.kind == constraint_kind::accuracy)
    return on + in_words("its results are off by up to %.3g, and %.3g is allowed", b.needs, b.allowed);
  const std::string which =
      b.largest_bytes == 0 ? "it needs " : "payloads of more than " + std::to_string(b.largest_bytes) + " bytes need ";
  return on + which + in_words("at least %.0f bytes of extra memory, and %.0f are allowed", b.needs, b.allowed);
}

}  // namespace parley::tuning

#include <parley/ops/kernel_output.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace parley::ops {

std::vector<std::byte> kernel_outputs::save() const {
  std::vector<std::byte> all;
  for (const part& p : parts_) all.insert(all.end(), p.bytes.begin(), p.bytes.end());
  return all;
}

void kernel_outputs::restore(const std::vector<std::byte>& saved) const noexcept {
  std::size_t at = 0;
  for (const part& p : parts_) {
    std::copy_n(saved.begin() + static_cast<std::ptrdiff_t>(at), p.bytes.size(), p.bytes.begin());
    at += p.bytes.size();
  }
}

void kernel_outputs::fill() const noexcept {
  for (const part& p : parts_) std::fill(p.bytes.begin(), p.bytes.end(), std::byte{0xFF});
}

std::string kernel_outputs::compare(const std::vector<std::byte>& reference,
                                    const tuning::numerical_check& within) const {
  std::size_t at = 0;
  for (std::size_t which = 0; which < parts_.size(); ++which) {
    const part& p = parts_[which];
    for (std::size_t i = 0; i < p.bytes.size(); i += p.element_bytes) {
      const double got = p.load(p.bytes.data() + i);
      const double expected = p.load(reference.data() + at + i);
      // Equal covers infinities; a NaN is right only where the default has one.
      const bool same = got == expected || (std::isnan(got) && std::isnan(expected)) ||
                        std::abs(got - expected) <= within.atol + within.rtol * std::abs(expected);
      if (!same)
        return fmt::format("element {} of output {} is {:.9g} where the default has {:.9g} (atol {:.6g}, rtol {:.6g})",
                           i / p.element_bytes, which, got, expected, within.atol, within.rtol);
    }
    at += p.bytes.size();
  }
  return {};
}

}  // namespace parley::ops

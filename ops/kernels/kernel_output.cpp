#include <parley/ops/kernels/kernel_output.hpp>
#include <parley/tuning/numbers.hpp>

#include <algorithm>
#include <span>

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
    const auto expected = std::span(reference).subspan(at, p.bytes.size());
    if (const auto bad = tuning::first_unlike(p.bytes, expected, p.element_bytes, p.load, within))
      return tuning::sentence(*bad, within, " of output " + std::to_string(which));
    at += p.bytes.size();
  }
  return {};
}

}  // namespace parley::ops

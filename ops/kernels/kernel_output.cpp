#include <parley/ops/kernels/kernel_output.hpp>
#include <parley/tuning/numbers.hpp>

#include <algorithm>
#include <cstring>
#include <span>

namespace parley::ops {

void kernel_outputs::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return;
  if (device_ != nullptr) return device_->copy(to, from, bytes);
  std::memcpy(to, from, bytes);
}

std::vector<std::byte> kernel_outputs::save() const {
  std::size_t bytes = 0;
  for (const part& p : parts_) bytes += p.bytes.size();
  std::vector<std::byte> all(bytes);
  std::size_t at = 0;
  for (const part& p : parts_) {
    copy(all.data() + at, p.bytes.data(), p.bytes.size());
    at += p.bytes.size();
  }
  return all;
}

void kernel_outputs::restore(const std::vector<std::byte>& saved) const {
  std::size_t at = 0;
  for (const part& p : parts_) {
    copy(p.bytes.data(), saved.data() + at, p.bytes.size());
    at += p.bytes.size();
  }
}

void kernel_outputs::fill() const {
  constexpr std::byte with{0xFF};
  for (const part& p : parts_) {
    if (device_ != nullptr) {
      device_->fill(p.bytes, with);
    } else {
      std::fill(p.bytes.begin(), p.bytes.end(), with);
    }
  }
}

std::string kernel_outputs::compare(const std::vector<std::byte>& reference,
                                    const tuning::numerical_check& within) const {
  std::size_t at = 0;
  for (std::size_t which = 0; which < parts_.size(); ++which) {
    const part& p = parts_[which];
    std::vector<std::byte> fetched(device_ == nullptr ? 0 : p.bytes.size());
    std::span<const std::byte> written = p.bytes;
    if (device_ != nullptr) {
      copy(fetched.data(), p.bytes.data(), p.bytes.size());
      written = fetched;
    }
    const auto expected = std::span(reference).subspan(at, p.bytes.size());
    if (const auto bad = tuning::first_unlike(written, expected, p.element_bytes, p.load, within))
      return tuning::sentence(*bad, within, " of output " + std::to_string(which));
    at += p.bytes.size();
  }
  return {};
}

}  // namespace parley::ops

#pragma once
/// The memory that a kernel writes, so that a candidate's numbers can be compared with the default's.
///
///     .outputs = [](std::span<const float> in, std::span<float> out) { return out; }
///     .outputs = [](…) { return kernel_outputs(sums, counts); }                       // several
///     .outputs = [](…) { return kernel_outputs::updated(accumulators); }              // read as well: `y += a * x`
///
/// Before a candidate's check, outputs that are only written are filled with 0xFF (which is NaN), so that a candidate that does nothing
/// does not count as a fast one. Updated outputs are restored before each compared run, and before the run that makes the caller's result.
/// An output is any span of numbers. The caller owns the memory, which has to stay in place during the call. Of a kernel that runs on a
/// device, it is the device's memory.
#include <parley/ops/kernels/kernel_device.hpp>
#include <parley/tuning/results/settings.hpp>

#include <concepts>
#include <cstddef>
#include <cstring>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::ops {

class kernel_outputs {
 public:
  kernel_outputs() = default;
  template <class... Spans>
    requires(sizeof...(Spans) > 0 && (std::ranges::contiguous_range<Spans> && ...))
  kernel_outputs(Spans&&... spans) {  // NOLINT(google-explicit-constructor,*-forwarding-reference-overload)
    (add(std::span(spans)), ...);
  }
  template <class... Spans>
  static kernel_outputs updated(Spans&&... spans) {
    kernel_outputs made{std::span(spans)...};
    made.updated_ = true;
    return made;
  }

  /// The outputs are in the memory of this device; null: in the host's.
  kernel_outputs on(kernel_device* device) && {
    device_ = device;
    return std::move(*this);
  }

  bool updated() const noexcept { return updated_; }
  bool empty() const noexcept { return parts_.empty(); }
  std::vector<std::byte> save() const;
  void restore(const std::vector<std::byte>& saved) const;
  void fill() const;
  /// Empty if all numbers are within tolerance of `reference`; otherwise says which one is not.
  std::string compare(const std::vector<std::byte>& reference, const tuning::numerical_check& within) const;

 private:
  struct part {
    std::span<std::byte> bytes;
    std::size_t element_bytes;
    double (*load)(const std::byte* at) noexcept;
  };
  template <class T, std::size_t N>
  void add(std::span<T, N> numbers) {
    static_assert(std::is_convertible_v<T, float> && !std::is_const_v<T>,
                  "an output is a span of numbers that can be written");
    parts_.push_back({std::as_writable_bytes(numbers), sizeof(T), [](const std::byte* at) noexcept {
                        T value;
                        std::memcpy(&value, at, sizeof value);
                        return static_cast<double>(value);
                      }});
  }
  void copy(void* to, const void* from, std::size_t bytes) const;
  std::vector<part> parts_;
  bool updated_ = false;
  kernel_device* device_ = nullptr;
};

}  // namespace parley::ops

#pragma once
/// Memory of Python objects: whatever has DLPack or the buffer protocol, in place.
#include "calls.hpp"

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace parley::python {

/// The types of elements that parley names.
enum class element : std::uint8_t { bytes, boolean, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64 };

/// The memory stays in place as long as `owner`: a bytearray, for instance, cannot be resized meanwhile.
struct buffer {
  keep owner;
  std::span<std::byte> bytes;
  element of = element::bytes;
  bool is_on_gpu = false;
  static constexpr int unknown_device = -1;
  int device = unknown_device;
  nb::object producer{};  ///< of memory on a GPU: the object, which knows the stream that writes it
};

enum class access : std::uint8_t { reads, writes };
/// `what` names the argument in errors. Throws `bad_argument` if the object is no memory, has gaps, lies on a GPU, or is only readable and
/// `writes` is asked for. Never copies.
buffer memory_of(nb::handle object, access how, const char* what);
/// Like `memory_of`, and also for memory of CUDA, by DLPack or by `__cuda_array_interface__`.
buffer any_memory_of(nb::handle object, access how, const char* what);
/// The `shape` of an array. Throws `bad_argument` if it is no tuple of sizes.
std::vector<std::uint64_t> shape_of(nb::handle array, const char* what);
/// The type as messages carry it: see `element_type_of`.
std::uint16_t message_type(element e) noexcept;

}  // namespace parley::python

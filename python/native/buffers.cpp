#include "buffers.hpp"

#include <parley/ops/core/call_type.hpp>

#include <memory>
#include <string_view>
#include <utility>

namespace parley::python {

using runtime::errc;

namespace {

[[noreturn]] void refuse(const char* what, const std::string& why) {
  runtime::raise({errc::bad_argument, std::string(what) + ": " + why});
}

element element_of(nb::dlpack::dtype t) {
  using code = nb::dlpack::dtype_code;
  if (t.lanes == 1) {
    switch (static_cast<code>(t.code)) {
      case code::Int:
        if (t.bits == 8) return element::i8;
        if (t.bits == 16) return element::i16;
        if (t.bits == 32) return element::i32;
        if (t.bits == 64) return element::i64;
        break;
      case code::UInt:
        if (t.bits == 8) return element::u8;
        if (t.bits == 16) return element::u16;
        if (t.bits == 32) return element::u32;
        if (t.bits == 64) return element::u64;
        break;
      case code::Float:
        if (t.bits == 16) return element::f16;
        if (t.bits == 32) return element::f32;
        if (t.bits == 64) return element::f64;
        break;
      case code::Bfloat: return element::bf16;
      case code::Bool: return element::boolean;
      default: break;
    }
  }
  return element::bytes;
}

bool has_gaps(const nb::ndarray<nb::ro>& a) {
  for (std::size_t i = 0; i < a.ndim(); ++i)
    if (a.shape(i) == 0) return false;
  std::int64_t next = 1;
  for (std::size_t i = a.ndim(); i-- > 0;) {
    if (a.shape(i) != 1 && a.stride(i) != next) return true;
    next *= static_cast<std::int64_t>(a.shape(i));
  }
  return false;
}

std::string name_of(nb::handle object) { return nb::cast<std::string>(object.type().attr("__name__")); }

/// Of the struct module, in native byte order and sizes.
element element_of(const char* format) {
  if (format == nullptr) return element::u8;
  std::string_view text = format;
  if (text.starts_with('@') || text.starts_with('=') || text.starts_with('<')) text.remove_prefix(1);
  if (text.size() != 1) return element::bytes;
  constexpr bool long_is_64 = sizeof(long) == 8;
  switch (text.front()) {
    case '?': return element::boolean;
    case 'b': return element::i8;
    case 'B':
    case 'c': return element::u8;
    case 'h': return element::i16;
    case 'H': return element::u16;
    case 'i': return element::i32;
    case 'I': return element::u32;
    case 'l': return long_is_64 ? element::i64 : element::i32;
    case 'L': return long_is_64 ? element::u64 : element::u32;
    case 'q': return element::i64;
    case 'Q': return element::u64;
    case 'e': return element::f16;
    case 'f': return element::f32;
    case 'd': return element::f64;
    default: return element::bytes;
  }
}

/// The buffer protocol keeps the memory in place.
struct view {
  Py_buffer of{};
  view() = default;
  view(const view&) = delete;
  view& operator=(const view&) = delete;
  ~view() {
    if (of.obj != nullptr) PyBuffer_Release(&of);
  }
};

buffer exported(nb::handle object, access how, const char* what) {
  const auto owner = std::make_shared<view>();
  Py_buffer& seen = owner->of;
  if (PyObject_GetBuffer(object.ptr(), &seen, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    refuse(what, "its elements do not follow each other in memory; pass a contiguous copy of it");
  }
  if (how == access::writes && seen.readonly != 0) refuse(what, "this " + name_of(object) + " is read-only");
  return {owner, {static_cast<std::byte*>(seen.buf), static_cast<std::size_t>(seen.len)}, element_of(seen.format)};
}

}  // namespace

buffer memory_of(nb::handle object, access how, const char* what) {
  // The buffer protocol costs a tenth of DLPack.
  if (PyObject_CheckBuffer(object.ptr()) != 0) return exported(object, how, what);
  nb::ndarray<nb::ro> a;
  if (!nb::hasattr(object, "__dlpack__") || !nb::try_cast(object, a, false)) {
    PyErr_Clear();
    refuse(what, "an object of type " + name_of(object) +
                     " is no memory; pass one with DLPack or the buffer protocol, such as an array or a bytearray");
  }
  if (how == access::writes) {
    nb::ndarray<> writable;
    if (!nb::try_cast(object, writable, false)) refuse(what, "this " + name_of(object) + " is read-only");
  }
  if (a.device_type() != nb::device::cpu::value)
    refuse(what, "the memory of devices is not supported from Python yet; copy it to the host");
  if (has_gaps(a)) refuse(what, "its elements do not follow each other in memory; pass a contiguous copy of it");
  const std::size_t bytes = a.size() * ((std::size_t{a.dtype().bits} * a.dtype().lanes + 7) / 8);
  const element of = element_of(a.dtype());
  auto* const at = const_cast<std::byte*>(static_cast<const std::byte*>(a.data()));
  return {
      std::make_shared<std::pair<nb::object, nb::ndarray<nb::ro>>>(nb::borrow(object), std::move(a)), {at, bytes}, of};
}

std::uint16_t message_type(element e) noexcept {
  switch (e) {
    case element::bytes:
    case element::u8: return 0;
    case element::boolean: return ops::element_type_of<bool>();
    case element::i8: return ops::element_type_of<std::int8_t>();
    case element::i16: return ops::element_type_of<std::int16_t>();
    case element::i32: return ops::element_type_of<std::int32_t>();
    case element::i64: return ops::element_type_of<std::int64_t>();
    case element::u16: return ops::element_type_of<std::uint16_t>();
    case element::u32: return ops::element_type_of<std::uint32_t>();
    case element::u64: return ops::element_type_of<std::uint64_t>();
    case element::f16: return ops::element_type_of<runtime::f16>();
    case element::bf16: return ops::element_type_of<runtime::bf16>();
    case element::f32: return ops::element_type_of<float>();
    case element::f64: return ops::element_type_of<double>();
  }
  return 0;
}

}  // namespace parley::python

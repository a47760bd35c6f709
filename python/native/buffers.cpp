#include "buffers.hpp"

#include <parley/ops/core/call_type.hpp>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

[[noreturn]] void refuse_gaps(const char* what, access how) {
  refuse(what, std::string("its elements do not follow each other in memory, row by row; ") +
                   (how == access::reads ? "pass a contiguous copy of it"
                                         : "pass contiguous memory, and copy the result from there"));
}
[[noreturn]] void refuse_byte_order(const char* what, nb::handle object) {
  refuse(what, "this " + name_of(object) + " has another byte order than this machine; pass a copy in native order");
}

/// What of a tensor of torch its memory does not show.
void check_tensor(nb::handle object, const char* what) {
  const nb::object asks = nb::getattr(object, "requires_grad", nb::none());
  if (asks.is_none()) return;
  if (asks.is(nb::handle(Py_True)))
    refuse(what, "this " + name_of(object) + " requires grad, and parley computes none; pass its detach()");
  for (const auto& [is, resolved] : {std::pair("is_conj", "resolve_conj()"), std::pair("is_neg", "resolve_neg()")}) {
    const nb::object ask = nb::getattr(object, is, nb::none());
    if (!ask.is_none() && ask().is(nb::handle(Py_True)))
      refuse(what, "this " + name_of(object) + " is a view that changes what lies in its memory (" + is + "); pass " +
                       resolved + " of it");
  }
}

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

/// Pointers mean nothing to another rank, and Python would follow those that a receive has written.
bool has_pointers(const char* format) {
  if (format == nullptr) return false;
  bool is_name = false;
  for (const char* at = format; *at != 0; ++at) {
    if (*at == ':') is_name = !is_name;
    const bool is_complex = at[1] == 'f' || at[1] == 'd' || at[1] == 'g';
    if (!is_name && (std::string_view("O&PzX").find(*at) != std::string_view::npos || (*at == 'Z' && !is_complex)))
      return true;
  }
  return false;
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
    const nb::python_error why;
    if (PyObject_GetBuffer(object.ptr(), &seen, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      refuse(what, "the memory of this " + name_of(object) + " cannot be shared: " + plain_text(why.value()));
    }
    refuse_gaps(what, how);
  }
  if (has_pointers(seen.format))
    refuse(what, "this " + name_of(object) +
                     " has Python objects or pointers as elements; exchange bytes, such as those of pickle.dumps");
  if (seen.itemsize > 1 && seen.format != nullptr && (*seen.format == '>' || *seen.format == '!'))
    refuse_byte_order(what, object);
  if (how == access::writes && seen.readonly != 0) refuse(what, "this " + name_of(object) + " is read-only");
  return {owner, {static_cast<std::byte*>(seen.buf), static_cast<std::size_t>(seen.len)}, element_of(seen.format)};
}

/// The text of the exception with which an object refuses DLPack.
std::string why_not_shared(nb::handle object) {
  try {
    object.attr("__dlpack__")();
  } catch (nb::python_error& e) {
    return nb::cast<std::string>(nb::str(e.value()));
  }
  return "its DLPack has a form that parley does not know";
}

/// Of NumPy's `typestr`, such as `<f4`.
element element_of_typestr(std::string_view text) {
  if (text.size() < 3) return element::bytes;
  text.remove_prefix(1);
  constexpr std::pair<std::string_view, element> all[] = {
      {"b1", element::boolean}, {"i1", element::i8},  {"i2", element::i16}, {"i4", element::i32},
      {"i8", element::i64},     {"u1", element::u8},  {"u2", element::u16}, {"u4", element::u32},
      {"u8", element::u64},     {"f2", element::f16}, {"f4", element::f32}, {"f8", element::f64}};
  for (const auto& [name, of] : all)
    if (text == name) return of;
  return element::bytes;
}

/// By `__cuda_array_interface__`.
buffer array_of_cuda(nb::handle object, access how, const char* what) {
  buffer made;
  try {
    const nb::dict facts = nb::cast<nb::dict>(object.attr("__cuda_array_interface__"));
    const auto type = nb::cast<std::string>(facts["typestr"]);
    const auto shape = nb::cast<std::vector<std::int64_t>>(facts["shape"]);
    const auto element_bytes =
        static_cast<std::int64_t>(std::stoul(type.substr(std::min<std::size_t>(2, type.size()))));
    const nb::object at = facts["data"];
    if (how == access::writes && nb::cast<bool>(at[1])) refuse(what, "this " + name_of(object) + " is read-only");
    std::int64_t bytes = element_bytes;
    for (const std::int64_t n : shape) {
      if (n < 0) throw std::invalid_argument("a negative shape");
      bytes *= n;
    }
    if (bytes != 0 && facts.contains("strides") && !facts["strides"].is_none()) {
      const auto strides = nb::cast<std::vector<std::int64_t>>(facts["strides"]);
      std::int64_t next = element_bytes;
      for (std::size_t i = shape.size(); i-- > 0; next *= shape[i])
        if (shape[i] != 1 && strides.at(i) != next) refuse_gaps(what, how);
    }
    made.bytes = {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(at[0])), static_cast<std::size_t>(bytes)};
    if (type.starts_with('>')) refuse_byte_order(what, object);
    made.of = element_of_typestr(type);
  } catch (const runtime::failure&) {
    throw;
  } catch (const std::exception& e) {
    refuse(what,
           "the `__cuda_array_interface__` of this " + name_of(object) + " is not as its protocol says: " + e.what());
  }
  made.owner = std::make_shared<nb::object>(nb::borrow(object));
  made.is_on_gpu = true;
  made.producer = nb::borrow(object);
  return made;
}

}  // namespace

buffer any_memory_of(nb::handle object, access how, const char* what) {
  // The buffer protocol costs a tenth of DLPack.
  if (PyObject_CheckBuffer(object.ptr()) != 0) return exported(object, how, what);
  check_tensor(object, what);
  nb::ndarray<nb::ro> a;
  const bool has_dlpack = nb::hasattr(object, "__dlpack__");
  nb::ndarray<> writable;
  const bool may_write = how == access::writes && has_dlpack && nb::try_cast(object, writable, false);
  if (may_write) {
    a = nb::ndarray<nb::ro>(writable);
  } else if (!has_dlpack || !nb::try_cast(object, a, false)) {
    PyErr_Clear();
    if (nb::hasattr(object, "__cuda_array_interface__")) return array_of_cuda(object, how, what);
    if (has_dlpack) refuse(what, "this " + name_of(object) + " cannot be shared: " + why_not_shared(object));
    refuse(what, "an object of type " + name_of(object) +
                     " is no memory; pass one with DLPack or the buffer protocol, such as an array or a bytearray");
  }
  if (how == access::writes && !may_write) refuse(what, "this " + name_of(object) + " is read-only");
  const int kind = a.device_type();
  const bool is_host = kind == nb::device::cpu::value || kind == nb::device::cuda_host::value;
  const bool is_cuda = kind == nb::device::cuda::value || kind == nb::device::cuda_managed::value;
  if (!is_host && !is_cuda)
    refuse(what, "it lies on a device that is neither the processor nor a GPU of CUDA; copy it to the host");
  // On a GPU, arrays of CuPy without gaps were refused here. Their other description decides.
  if (has_gaps(a) && is_cuda && nb::hasattr(object, "__cuda_array_interface__"))
    return array_of_cuda(object, how, what);
  if (has_gaps(a)) refuse_gaps(what, how);
  const std::size_t bytes = a.size() * ((std::size_t{a.dtype().bits} * a.dtype().lanes + 7) / 8);
  const element of = element_of(a.dtype());
  auto* const at = const_cast<std::byte*>(static_cast<const std::byte*>(a.data()));
  const int device = is_cuda ? a.device_id() : buffer::unknown_device;
  buffer made{
      std::make_shared<std::pair<nb::object, nb::ndarray<nb::ro>>>(nb::borrow(object), std::move(a)), {at, bytes}, of};
  if (is_cuda) made.is_on_gpu = true, made.device = device, made.producer = nb::borrow(object);
  return made;
}

buffer memory_of(nb::handle object, access how, const char* what) {
  buffer made = any_memory_of(object, how, what);
  if (made.is_on_gpu)
    refuse(what, "it lies on a GPU, and this is for host memory; memory of GPUs is for Transfer, P2P, Collective and "
                 "Kernel, made with device=\"cuda\"; copy it to the host");
  return made;
}

std::vector<std::uint64_t> shape_of(nb::handle array, const char* what) {
  const nb::object given = array.attr("shape");
  std::vector<std::uint64_t> shape;
  if (nb::try_cast(given, shape)) return shape;
  refuse(what, "its shape is " + plain_text(nb::repr(given)) + ", which is no tuple of sizes");
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

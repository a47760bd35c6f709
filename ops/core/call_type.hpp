#pragma once
/// The type of a call: the type of its elements, and the function that combines them. All ranks of a group must call with the same type.
/// Every stamp carries it, so that a call with two types fails on all ranks before anything is combined.
///
///     work.type = call_type_of<float, std::plus<>>();
///     words_of(work.type);                            // `f32 elements combined by plus`
///
/// Arithmetic types, `f16`, `bf16` and the function objects of <functional> are identified exactly; `long` counts as the integer type of
/// its size. The program's own types are identified by their names, of which 31 bits of a hash are sent. All ranks must use the same type,
/// so a lambda that each rank writes for itself does not work.
#include <parley/actors/call_type.hpp>
#include <parley/runtime/narrow_floats.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>

namespace parley::ops {

namespace call_types {
inline constexpr std::array<std::string_view, 16> elements{"",    "f32",         "f64", "byte", "bool", "i8",
                                                           "u8",  "i16",         "u16", "i32",  "u32",  "i64",
                                                           "u64", "long double", "f16", "bf16"};
inline constexpr std::array<std::string_view, 10> combinations{
    "", "plus", "multiplies", "minus", "bit_and", "bit_or", "bit_xor", "logical_and", "logical_or", "divides"};
inline constexpr unsigned combination_bits = actors::call_type_tag_bits - 4;
static_assert(elements.size() <= 16);
// Message types from here up to the program's own types (0x8000) mark an activation: they contain its run and its run's number of
// microbatches.
inline constexpr std::uint16_t of_a_run = 0x4000;
inline constexpr unsigned run_bits = 6;
inline constexpr unsigned microbatch_bits = 8;

/// Returns 0 if the name is not listed: the type or function is the program's own.
constexpr std::uint32_t place_in(std::span<const std::string_view> names, std::string_view name) noexcept {
  for (std::uint32_t i = 1; i < names.size(); ++i) {
    if (names[i] == name) return i;
  }
  return 0;
}

template <class T>
constexpr std::uint32_t element_of() noexcept {
  std::string_view name;
  if constexpr (std::is_same_v<T, float>) name = "f32";
  if constexpr (std::is_same_v<T, double>) name = "f64";
  if constexpr (std::is_same_v<T, long double>) name = "long double";
  if constexpr (std::is_same_v<T, runtime::f16>) name = "f16";
  if constexpr (std::is_same_v<T, runtime::bf16>) name = "bf16";
  if constexpr (std::is_same_v<T, std::byte>) name = "byte";
  if constexpr (std::is_same_v<T, bool>) name = "bool";
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr std::array<std::string_view, 4> with_sign{"i8", "i16", "i32", "i64"};
    constexpr std::array<std::string_view, 4> without{"u8", "u16", "u32", "u64"};
    constexpr std::size_t size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    name = (std::is_signed_v<T> ? with_sign : without)[size];
  }
  return place_in(elements, name);
}

template <class Combine>
inline constexpr std::string_view name_of_combination{};
template <>
inline constexpr std::string_view name_of_combination<void> = "none";
template <class T>
inline constexpr std::string_view name_of_combination<std::plus<T>> = "plus";
template <class T>
inline constexpr std::string_view name_of_combination<std::multiplies<T>> = "multiplies";
template <class T>
inline constexpr std::string_view name_of_combination<std::minus<T>> = "minus";
template <class T>
inline constexpr std::string_view name_of_combination<std::bit_and<T>> = "bit_and";
template <class T>
inline constexpr std::string_view name_of_combination<std::bit_or<T>> = "bit_or";
template <class T>
inline constexpr std::string_view name_of_combination<std::bit_xor<T>> = "bit_xor";
template <class T>
inline constexpr std::string_view name_of_combination<std::logical_and<T>> = "logical_and";
template <class T>
inline constexpr std::string_view name_of_combination<std::logical_or<T>> = "logical_or";
template <class T>
inline constexpr std::string_view name_of_combination<std::divides<T>> = "divides";

/// A hash of type names, for calls with a type of the program's own. Its low bits lie above the known combinations. The bits above
/// `call_type_tag_bits` do not fit into a stamp's tag; the stamp carries them separately.
std::uint64_t own_combination(std::string_view element, std::string_view combine) noexcept;
}  // namespace call_types

/// The element type that a message carries for a type of the program's own: 15 bits of a hash of its name, with the top bit set.
std::uint16_t own_element(std::string_view name) noexcept;
/// The element type of a message with elements of several types. Call it once for each type; `before` is the result so far, at first 0.
std::uint16_t elements_together(std::uint16_t before, std::uint16_t next) noexcept;

/// The element type that messages between two ranks carry. Bytes have no type: they are 0, which matches every type.
template <class T>
std::uint16_t element_type_of() noexcept {
  constexpr std::uint32_t known = call_types::element_of<T>();
  if constexpr (sizeof(T) == 1 &&
                (std::is_same_v<T, std::byte> || std::is_same_v<T, char> || std::is_same_v<T, unsigned char>)) {
    return 0;
  } else if constexpr (known != 0) {
    return static_cast<std::uint16_t>(known);
  } else {
    static const std::uint16_t own = own_element(typeid(T).name());
    return own;
  }
}
/// A contiguous container or span of plain values.
template <class R>
concept buffer = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                 std::is_trivially_copyable_v<std::ranges::range_value_t<R>>;

/// A buffer that a call may read. A temporary that owns its memory, such as a vector, does not qualify: it could end before the call does.
template <class R>
concept readable_buffer = buffer<R> && std::ranges::borrowed_range<R>;
/// A buffer that a call may write to.
template <class R>
concept writable_buffer =
    readable_buffer<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

/// The type of a buffer's elements, as messages carry it: see `element_type_of`.
template <buffer B>
std::uint16_t type_of_elements() noexcept {
  return element_type_of<std::ranges::range_value_t<B>>();
}

/// The type of a pipeline's activations, which are bytes: the last bits of the run's number and of its number of microbatches.
constexpr std::uint16_t type_of_run(std::uint64_t run, std::uint64_t microbatches) noexcept {
  using namespace call_types;
  constexpr std::uint64_t one = 1;
  return static_cast<std::uint16_t>(of_a_run | run % (one << run_bits) << microbatch_bits |
                                    microbatches % (one << microbatch_bits));
}
bool is_of_a_run(std::uint16_t type) noexcept;
/// `f32 elements`; `an activation of run 0 (mod 64), of 8 (mod 256) microbatches`.
std::string words_of_elements(std::uint16_t type);

/// `Combine` is void where nothing is combined.
template <class T, class Combine = void>
actors::call_type call_type_of() noexcept {
  constexpr std::uint32_t element = call_types::element_of<T>();
  constexpr std::string_view name = call_types::name_of_combination<Combine>;
  if constexpr (element != 0 && !name.empty()) {
    constexpr std::uint32_t known = name == "none" ? 0 : call_types::place_in(call_types::combinations, name);
    return static_cast<actors::call_type>(element << call_types::combination_bits | known);
  } else {
    static const std::uint64_t own =
        call_types::own_combination(element != 0 ? "" : typeid(T).name(), typeid(Combine).name());
    return static_cast<actors::call_type>(std::uint64_t{element} << call_types::combination_bits | own);
  }
}

/// `i32 elements combined by plus`.
std::string words_of(actors::call_type type);

}  // namespace parley::ops

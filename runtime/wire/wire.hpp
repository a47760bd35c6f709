#pragma once
/// Encodes and decodes messages. A message is a plain struct that lists its fields once; encoding, decoding, printing and fuzzing use that
/// list.
///
///     struct greeting {
///       static constexpr std::uint16_t message_type = 7;
///       std::uint32_t number = 0;
///       std::vector<std::string> names;
///       PARLEY_FIELDS(number, names)
///     };
///     std::vector<std::byte> bytes;  encode(g, bytes);
///     result<greeting> back = decode<greeting>(bytes);
///
/// Little-endian and bounded: every length is checked against a limit and against the bytes that are left before anything is
/// allocated. Truncated, trailing or impossible bytes are `malformed`, never an abort. Enumerations end in `last`.
#include <parley/error.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define PARLEY_FIELDS(...)                                       \
  auto fields() noexcept { return std::tie(__VA_ARGS__); }       \
  auto fields() const noexcept { return std::tie(__VA_ARGS__); } \
  [[maybe_unused]] static constexpr std::string_view field_names = #__VA_ARGS__;

namespace parley::runtime {

/// No message body is larger.
inline constexpr std::size_t max_body_bytes = std::size_t{1} << 20U;
inline constexpr std::uint32_t max_elements = 1U << 16U;

static_assert(std::endian::native == std::endian::little, "the wire format is written by copying");

template <class T>
concept has_fields = requires(T& t) { t.fields(); };

template <class T>
concept wire_number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

class wire_writer {
 public:
  explicit wire_writer(std::vector<std::byte>& out) noexcept : out_(out) {}

  template <class T>
  void put(const T& value) {
    if constexpr (has_fields<T>) {
      std::apply([this](const auto&... field) { (this->put(field), ...); }, value.fields());
    } else if constexpr (std::is_enum_v<T>) {
      put(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::same_as<T, bool>) {
      put(static_cast<std::uint8_t>(value ? 1 : 0));
    } else if constexpr (wire_number<T>) {
      bytes(&value, sizeof value);
    } else {  // a string or a vector
      put(static_cast<std::uint32_t>(value.size()));
      if constexpr (wire_number<typename T::value_type>) {
        bytes(value.data(), value.size() * sizeof(typename T::value_type));
      } else {
        for (const auto& element : value) put(element);
      }
    }
  }

 private:
  void bytes(const void* from, std::size_t count) {
    const auto* first = static_cast<const std::byte*>(from);
    out_.insert(out_.end(), first, first + count);
  }
  std::vector<std::byte>& out_;
};

class wire_reader {
 public:
  explicit wire_reader(std::span<const std::byte> in) noexcept : left_(in) {}

  template <class T>
  [[nodiscard]] bool get(T& value) {
    if constexpr (has_fields<T>) {
      return std::apply([this](auto&... field) { return (this->get(field) && ...); }, value.fields());
    } else if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number{};
      if (!get(number) || std::cmp_less(number, 0) || number > std::underlying_type_t<T>(T::last)) return false;
      value = static_cast<T>(number);
      return true;
    } else if constexpr (std::same_as<T, bool>) {
      std::uint8_t number = 0;
      if (!get(number) || number > 1) return false;
      value = number == 1;
      return true;
    } else if constexpr (wire_number<T>) {
      return bytes(&value, sizeof value);
    } else {
      return get_sequence(value);
    }
  }
  bool at_end() const noexcept { return left_.empty(); }

 private:
  template <class T>
  bool get_sequence(T& value) {
    using element = typename T::value_type;
    std::uint32_t count = 0;
    if (!get(count)) return false;
    if constexpr (wire_number<element>) {
      if (count > left_.size() / sizeof(element)) return false;
      value.resize(count);
      return bytes(value.data(), count * sizeof(element));
    } else {
      // Each element takes at least a byte, so at most as many elements are allocated as bytes were sent.
      if (count > max_elements || count > left_.size()) return false;
      value.clear();
      for (std::uint32_t i = 0; i < count; ++i) {
        if (!get(value.emplace_back())) return false;
      }
      return true;
    }
  }
  bool bytes(void* to, std::size_t count) noexcept {
    if (count > left_.size()) return false;
    if (count != 0) std::memcpy(to, left_.data(), count);
    left_ = left_.subspan(count);
    return true;
  }
  std::span<const std::byte> left_;
};

/// Appends the encoded message to `out`.
template <has_fields M>
void encode(const M& message, std::vector<std::byte>& out) {
  wire_writer(out).put(message);
}

template <has_fields M>
result<M> decode(std::span<const std::byte> in) {
  if (in.size() > max_body_bytes) return error{errc::malformed, "a message body is larger than 1 MiB"};
  M message{};
  wire_reader reader(in);
  if (!reader.get(message)) return error{errc::malformed, "a message body ends early or holds an impossible value"};
  if (!reader.at_end()) return error{errc::malformed, "a message body has bytes after its last field"};
  return message;
}

/// Removes the first name from a list such as `field_names`, and returns it.
constexpr std::string_view take_name(std::string_view& names) noexcept {
  const std::size_t comma = std::min(names.find(','), names.size());
  const std::string_view first = names.substr(0, comma);
  names.remove_prefix(std::min(comma + 1, names.size()));
  while (names.starts_with(' ')) names.remove_prefix(1);
  return first;
}

/// `{number=3, names=[a, b]}`, for traces and test failures.
template <class T>
std::string print(const T& value) {
  if constexpr (has_fields<T>) {
    std::string text = "{";
    std::string_view names = T::field_names;
    std::apply(
        [&](const auto&... field) {
          [[maybe_unused]] const auto one = [&](const auto& f) {
            text.append(text.size() > 1 ? ", " : "").append(take_name(names)).append("=").append(print(f));
          };
          (one(field), ...);
        },
        value.fields());
    return text + "}";
  } else if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::same_as<T, std::string>) {
    return value;
  } else {
    std::string text = "[";
    for (const auto& element : value) text.append(text.size() > 1 ? ", " : "").append(print(element));
    return text + "]";
  }
}

}  // namespace parley::runtime

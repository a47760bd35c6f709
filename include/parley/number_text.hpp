#pragma once
/// Reads numbers that people and launchers write: options of commands and examples, environment variables, specs and scenarios. All of
/// parley uses this reader, except for results files and the settings of TunableOp, whose formats have their own rules (tuning/).
///
///     const auto ranks = read_number<std::uint32_t>(text, {1, 64});
///     if (!ranks) … text + " must be " + words_of<std::uint32_t>({1, 64}) …     // a whole number from 1 to 64
///
/// The reader accepts plain decimal digits, for signed types also a minus sign, and for `double` also a fraction and an exponent. It
/// refuses texts that other readers guess at: an empty text, blanks, `+`, `0x1F`, trailing letters, `-0`, `nan`, infinities, numbers
/// outside the range, and numbers too small to be told from 0.
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace parley::runtime {

template <class Number>
struct number_range {
  Number least;
  Number most;
};

template <class Number>
std::string number_words(Number n) {
  char text[64];
  const auto [end, problem] = std::to_chars(text, text + sizeof text, n);
  return problem == std::errc() ? std::string(text, end) : std::to_string(n);
}

/// `a whole number from 1 to 64`, `a number from 0 to 3600`.
template <class Number>
std::string words_of(number_range<Number> within) {
  return std::string(std::is_floating_point_v<Number> ? "a number from " : "a whole number from ") +
         number_words(within.least) + " to " + number_words(within.most);
}

/// Returns no value unless the whole text is one such number.
template <class Number>
std::optional<Number> read_number(std::string_view text, number_range<Number> within) {
  static_assert(std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>);
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end) return std::nullopt;
  if (text.front() == '-' && number == Number{}) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) return std::nullopt;
  }
  if (number < within.least || number > within.most) return std::nullopt;
  return number;
}

/// Like `read_number`, for hexadecimal digits without `0x`.
template <class Number>
std::optional<Number> read_hexadecimal(std::string_view text, number_range<Number> within) {
  static_assert(std::is_unsigned_v<Number>);
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number, 16);
  if (problem != std::errc() || stop != end || number < within.least || number > within.most) return std::nullopt;
  return number;
}

/// For options of a command line. Returns what is wrong with the text. If nothing is wrong, returns an empty text and rewrites `text` so
/// that every reader understands the same number (CLI11 reads 010 as 8).
template <class Number>
std::string fault_of_number(std::string& text, number_range<Number> within) {
  const auto number = read_number<Number>(text, within);
  if (!number) return "`" + text + "` is no " + words_of(within).substr(2);
  text = number_words(*number);
  return {};
}

}  // namespace parley::runtime

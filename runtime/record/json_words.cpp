#include <parley/runtime/record/json_words.hpp>

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace parley::runtime {

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte > 0x7e) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string measured(double ns) { return std::isfinite(ns) ? fmt::format("{:.1f}", ns) : "null"; }

}  // namespace parley::runtime

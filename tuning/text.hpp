#pragma once
/// Takes text apart: lines, items of a list, and the blanks around a word.
#include <algorithm>
#include <string_view>

namespace parley::tuning {

inline std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

/// Returns what comes before the first `end`, and removes both from `text`. Without an `end` that is all of it.
inline std::string_view take_until(char end, std::string_view& text) {
  const std::string_view first = text.substr(0, text.find(end));
  text.remove_prefix(std::min(first.size() + 1, text.size()));
  return first;
}

}  // namespace parley::tuning

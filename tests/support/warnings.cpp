#include <parley/tests/support/warnings.hpp>

#include <algorithm>
#include <string>

namespace parley::tests {

bool warned(const ops::rank& r, std::initializer_list<std::string_view> words) {
  const auto has_all = [&](const std::string& text) {
    return std::all_of(words.begin(), words.end(),
                       [&](std::string_view word) { return text.find(word) != std::string::npos; });
  };
  return std::any_of(r.warnings().begin(), r.warnings().end(), has_all);
}

}  // namespace parley::tests

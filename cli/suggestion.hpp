#pragma once
/// The word that a user probably meant by a misspelt word:
///
///     suggestion("tnue", {"run", "tune"});      // `; did you mean `tune`?`, or nothing where no word is like it
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace parley::cli {

/// How many letters must be inserted, removed, changed, or swapped with their neighbour to make one word the other.
inline std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

inline std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& one : known) {
    const std::size_t off = distance(word, one);
    if (off < least) {
      least = off;
      best = &one;
    }
  }
  return best == nullptr ? std::string() : "; did you mean `" + *best + "`?";
}

}  // namespace parley::cli

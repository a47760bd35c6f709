#pragma once
/// Ranks in an error text: `rank 2`, `ranks 0, 3`, or `none`.
#include <parley/identifiers.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace parley::actors {

inline std::string listed(const std::vector<runtime::rank_id>& ranks) {
  if (ranks.empty()) return "none";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace parley::actors

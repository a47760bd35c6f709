#include <parley/cli/spec/halo_shape.hpp>

#include <algorithm>
#include <numeric>
#include <set>

namespace parley::cli {

using runtime::rank_id;

rank_id halo_shape::blocks() const noexcept {
  return std::accumulate(ranks.begin(), ranks.end(), rank_id{1}, std::multiplies<>());
}

std::uint64_t halo_shape::elements() const noexcept {
  std::uint64_t all = 1;
  for (std::size_t d = 0; d < dimensions(); ++d) all *= cells[d] + 2 * width[d];
  return all;
}

std::vector<rank_id> halo_shape::place_of(rank_id r) const {
  std::vector<rank_id> place(dimensions());
  for (std::size_t d = dimensions(); d-- > 0;) {
    place[d] = r % ranks[d];
    r /= ranks[d];
  }
  return place;
}

std::optional<rank_id> halo_shape::neighbour_of(const std::vector<rank_id>& place, const offsets& to) const {
  rank_id r = 0;
  for (std::size_t d = 0; d < dimensions(); ++d) {
    const bool beyond = to[d] < 0 ? place[d] == 0 : to[d] > 0 && place[d] + 1 == ranks[d];
    if (beyond && !periodic[d]) return std::nullopt;
    r = r * ranks[d] + (place[d] + ranks[d] + static_cast<rank_id>(to[d])) % ranks[d];
  }
  return r;
}

std::vector<halo_shape::offsets> halo_shape::directions() const {
  std::vector<offsets> all;
  offsets to(dimensions(), -1);
  const auto next = [&] {
    for (std::size_t d = dimensions(); d-- > 0;) {
      if (++to[d] <= 1) return true;
      to[d] = -1;
    }
    return false;
  };
  do {
    const auto along = dimensions() - static_cast<std::size_t>(std::count(to.begin(), to.end(), 0));
    if (along == 1 || (along > 1 && corners)) all.push_back(to);
  } while (next());
  return all;
}

std::vector<std::pair<rank_id, rank_id>> halo_shape::edges() const {
  std::set<std::pair<rank_id, rank_id>> all;
  for (rank_id r = 0; r < blocks(); ++r) {
    for (const offsets& to : directions()) {
      const auto other = neighbour_of(place_of(r), to);
      if (other && *other != r) all.emplace(r, *other);
    }
  }
  return {all.begin(), all.end()};
}

}  // namespace parley::cli

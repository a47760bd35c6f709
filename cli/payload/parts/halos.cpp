// Halos: the value of a cell is computed from its place in the grid and the exchange, so that each rank knows the value of every ghost.
#include <parley/cli/payload/parts/part.hpp>
#include <parley/halo.hpp>
#include <parley/runtime/random.hpp>

#include <algorithm>
#include <span>

namespace parley::cli {

using runtime::task;

namespace {

template <class Element>
class halo_part final : public part {
 public:
  halo_part(const part_terms& t, ops::halo rims)
      : part(t.op, t.engine, t.on_step), grid_(t.op.grid), rank_(t.self.id()), place_(grid_.place_of(rank_)),
        cells_(grid_.elements(), Element{}), rims_(std::move(rims)) {
    output_from(rank_);
    find_border_and_ghosts();
  }
  task<> run() override {
    ops::halo_plan plan = rims_.plan({ops::grid_field(cells_, grid_.cells)});  // it ends before the rank
    for (std::uint64_t i = 0; i < op_.sizes.size(); ++i) {
      for (const std::size_t at : border_) cells_[at] = value_of(rank_, at, i);
      co_await plan.exchange();
      const bool right = std::all_of(ghosts_.begin(), ghosts_.end(),
                                     [&](const ghost& g) { return cells_[g.at] == value_of(g.owner, g.at_owner, i); });
      came_out_.front().digests.push_back(right ? 1 : 0);
      step_();
    }
  }

 private:
  /// An element of the rim, and its index in its owner's block.
  struct ghost {
    std::size_t at;
    rank_id owner;
    std::size_t at_owner;
  };
  static Element value_of(rank_id owner, std::size_t at, std::uint64_t exchange) noexcept {
    return static_cast<Element>(runtime::mix((exchange * most_ranks + owner) << 32U ^ at));
  }
  // Visits all elements of the block, rim included, by their index along each dimension. Neighbours need only the cells at the block's
  // border.
  void find_border_and_ghosts() {
    const std::size_t dimensions = grid_.dimensions();
    std::vector<std::uint64_t> index(dimensions, 0);
    for (std::size_t at = 0; at < cells_.size(); ++at) {
      halo_shape::offsets to(dimensions, 0);
      std::size_t beyond = 0;
      for (std::size_t d = 0; d < dimensions; ++d) {
        to[d] = index[d] < grid_.width[d] ? -1 : index[d] >= grid_.width[d] + grid_.cells[d] ? 1 : 0;
        beyond += to[d] != 0 ? 1 : 0;
      }
      bool at_border = false;
      for (std::size_t d = 0; d < dimensions; ++d)
        at_border = at_border || index[d] < 2 * grid_.width[d] || index[d] >= grid_.cells[d];
      if (beyond == 0 && at_border) border_.push_back(at);
      if (beyond == 1 || (beyond > 1 && grid_.corners)) {
        if (const auto owner = grid_.neighbour_of(place_, to)) ghosts_.push_back({at, *owner, there(index, to)});
      }
      for (std::size_t d = dimensions; d-- > 0;) {
        if (++index[d] < grid_.cells[d] + 2 * grid_.width[d]) break;
        index[d] = 0;
      }
    }
  }
  // Returns the index of a ghost in its owner's block. All blocks have the same size, so the ghost lies one block's length farther there.
  std::size_t there(const std::vector<std::uint64_t>& index, const halo_shape::offsets& to) const {
    std::size_t at = 0;
    for (std::size_t d = 0; d < grid_.dimensions(); ++d) {
      const std::uint64_t along = to[d] < 0   ? index[d] + grid_.cells[d]
                                  : to[d] > 0 ? index[d] - grid_.cells[d]
                                              : index[d];
      at = at * (grid_.cells[d] + 2 * grid_.width[d]) + along;
    }
    return at;
  }

  const halo_shape& grid_;
  rank_id rank_;
  std::vector<rank_id> place_;
  std::vector<Element> cells_;
  std::vector<std::size_t> border_;
  std::vector<ghost> ghosts_;
  ops::halo rims_;
};

}  // namespace

part_list halo_parts(const part_terms& t) {
  ops::halo_options declared;
  declared.name = t.op.name;
  declared.ranks = t.op.grid.ranks;
  declared.periodic = t.op.grid.periodic;
  declared.width = t.op.grid.width;
  declared.reach = t.op.grid.corners ? ops::halo_reach::corners : ops::halo_reach::faces;
  declared.configs = t.op.configs;
  declared.dtype = t.op.dtype;
  const ops::halo rims(t.self, declared);
  part_list parts;
  if (t.self.id() >= t.op.grid.blocks()) return parts;
  if (t.op.grid.element_bytes == sizeof(std::uint32_t)) {
    parts.push_back(std::make_unique<halo_part<std::uint32_t>>(t, rims));
  } else {
    parts.push_back(std::make_unique<halo_part<std::uint64_t>>(t, rims));
  }
  return parts;
}

}  // namespace parley::cli

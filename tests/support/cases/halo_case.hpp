#pragma once
/// CASES section 4, more than faces: one rank's block of a grid of up to three dimensions, or its part of a mesh, in any memory. Each cell
/// holds its position in the whole, so the right value of every ghost is known. Elements that no rank owns must stay as they were.
#include <parley/tests/support/place.hpp>

#include <parley/halo.hpp>
#include <parley/ops/core/neighbours.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace parley::tests::halo_case {

using namespace parley::ops;
using namespace parley::runtime;

struct shape {
  halo_options op;
  std::vector<std::uint64_t> cells{};  ///< of each block
  std::uint64_t padding = 0;           ///< elements between its rows
  std::size_t fields = 1;
};

inline constexpr std::uint32_t nothing = 0xffffffff;

/// Fields, each with a margin of elements that do not belong to the op.
class fields_of {
 public:
  fields_of(std::size_t fields, std::size_t elements, place& at) : at_(at), elements_(elements) {
    for (std::size_t f = 0; f < fields; ++f) all_.emplace_back(at, elements + 2 * margin);
  }
  std::size_t size() const noexcept { return all_.size(); }
  std::span<std::uint32_t> operator[](std::size_t f) const noexcept { return {all_[f].data() + margin, elements_}; }

  /// Writes `value(field, element)` to each element, and `nothing` to the margins.
  template <class Value>
  task<> bring_all(Value value) {
    for (std::size_t f = 0; f < size(); ++f) {
      const std::vector<std::uint32_t> numbers = with_margins(f, value);
      co_await bring(at_, all_[f], std::span(numbers));
    }
  }
  /// Number of elements that are not `value(field, element)`, or not `nothing` in the margins.
  template <class Value>
  task<std::size_t> wrong(Value value) {
    std::size_t count = 0;
    for (std::size_t f = 0; f < size(); ++f) {
      const std::vector<std::uint32_t> right = with_margins(f, value);
      const std::vector<std::uint32_t> seen = co_await taken(at_, all_[f]);
      for (std::size_t i = 0; i < right.size(); ++i) count += seen[i] == right[i] ? 0 : 1;
    }
    co_return count;
  }

 private:
  static constexpr std::size_t margin = 16;
  template <class Value>
  std::vector<std::uint32_t> with_margins(std::size_t f, const Value& value) const {
    std::vector<std::uint32_t> all(elements_ + 2 * margin, nothing);
    for (std::size_t i = 0; i < elements_; ++i) all[margin + i] = value(f, i);
    return all;
  }
  place& at_;
  std::size_t elements_;
  std::vector<array<std::uint32_t>> all_;
};

/// Exchanges `times` times; every other time it opens the rims before the start.
inline task<> exchange(dataflow& flow, halo_plan* plan, int times, device_stream stream = nullptr) {
  for (int i = 0; i < times; ++i) {
    if (i % 2 == 1) {
      plan->open(flow, stream);  // otherwise `start` does this
      scope& here = co_await this_scope;
      auto slept = co_await sleep_until(here.where().deadline_in(10'000));
      static_cast<void>(slept);
    }
    auto moving = plan->start(flow, stream);
    co_await moving;
  }
}

class block {
 public:
  block(const halo& h, const shape& s, place& at = on_host())
      : place_(h.place()), shape_(with_widths(s)), strides_(strides_of(shape_)), fields_(s.fields, elements(), at) {
    std::vector<halo_field> all;
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      auto memory = fields_[f];
      all.push_back(grid_field(memory, shape_.cells, strides_));
    }
    plan_ = h.plan(all);
  }
  halo_plan& plan() noexcept { return plan_; }
  /// Writes the block's own cells, and `nothing` to all ghosts.
  task<> begin() {
    const auto own = values([](int outside) { return outside == 0; });
    co_await fields_.bring_all([&](std::size_t f, std::size_t i) { return own[f][i]; });
  }
  /// Number of wrong elements after an exchange. Ghosts that it does not reach, padding of rows, and margins must be untouched.
  task<std::size_t> wrong() {
    const bool corners = shape_.op.reach == halo_reach::corners;
    const auto right = values([corners](int outside) { return outside <= 1 || corners; });
    const std::size_t count = co_await fields_.wrong([&](std::size_t f, std::size_t i) { return right[f][i]; });
    co_return count;
  }

 private:
  using coordinates = std::array<std::int64_t, 3>;

  static shape with_widths(shape s) {
    if (s.op.width.empty()) s.op.width.assign(s.op.ranks.size(), 1);
    return s;
  }
  static std::vector<std::uint64_t> strides_of(const shape& s) {
    std::vector<std::uint64_t> strides(s.cells.size());
    std::uint64_t elements = 1;
    for (std::size_t d = s.cells.size(); d-- > 0;) {
      strides[d] = elements;
      elements *= s.cells[d] + 2 * s.op.width[d];
      if (d + 1 == s.cells.size() && s.cells.size() > 1) elements += s.padding;
    }
    return strides;
  }
  std::size_t elements() const { return strides_[0] * (shape_.cells[0] + 2 * shape_.op.width[0]); }

  // The values of all fields. `is_there` gets the number of dimensions in which a cell lies in the rim, and says if the cell has a value.
  template <class Which>
  std::vector<std::vector<std::uint32_t>> values(Which is_there) const {
    std::vector<std::vector<std::uint32_t>> all(fields_.size(), std::vector<std::uint32_t>(elements(), nothing));
    coordinates low{};
    coordinates high{1, 1, 1};
    for (std::size_t d = 0; d < shape_.cells.size(); ++d) {
      low[d] = -static_cast<std::int64_t>(shape_.op.width[d]);
      high[d] = static_cast<std::int64_t>(shape_.cells[d] + shape_.op.width[d]);
    }
    coordinates at{};
    for (at[0] = low[0]; at[0] < high[0]; ++at[0]) {
      for (at[1] = low[1]; at[1] < high[1]; ++at[1]) {
        for (at[2] = low[2]; at[2] < high[2]; ++at[2]) {
          std::uint64_t index = 0;
          int outside = 0;
          for (std::size_t d = 0; d < shape_.cells.size(); ++d) {
            index += static_cast<std::uint64_t>(at[d] - low[d]) * strides_[d];
            outside += at[d] < 0 || at[d] >= static_cast<std::int64_t>(shape_.cells[d]) ? 1 : 0;
          }
          for (std::size_t f = 0; f < all.size() && is_there(outside); ++f) all[f][index] = value(at, f);
        }
      }
    }
    return all;
  }

  // The value of a cell. In the rim: that of the cell which lies there in the whole grid, or `nothing` if there is none.
  std::uint32_t value(const coordinates& at, std::size_t field) const {
    auto code = static_cast<std::uint32_t>(field);
    for (std::size_t d = 0; d < shape_.cells.size(); ++d) {
      const auto whole = static_cast<std::int64_t>(shape_.op.ranks[d] * shape_.cells[d]);
      const std::int64_t x = static_cast<std::int64_t>(place_[d] * shape_.cells[d]) + at[d];
      const bool wraps = !shape_.op.periodic.empty() && shape_.op.periodic[d];
      if ((x < 0 || x >= whole) && !wraps) return nothing;
      code = code * 100 + static_cast<std::uint32_t>((x + whole) % whole);
    }
    return code;
  }

  std::vector<rank_id> place_;
  shape shape_;
  std::vector<std::uint64_t> strides_;
  fields_of fields_;
  halo_plan plan_;
};

/// A rank's part of a ring. Each field has four elements of its own, of which the last two are sent on in reverse order, and two ghosts of
/// the rank before.
class part_of_ring {
 public:
  static halo_options op_of(rank_id self, rank_id ranks) {
    halo_options op;
    op.name = "mesh";
    op.neighbours = {(self + 1) % ranks};
    if (ranks > 2) op.neighbours.push_back((self + ranks - 1) % ranks);
    return op;
  }
  part_of_ring(const halo& mesh, rank_id self, rank_id ranks, std::size_t fields, place& at = on_host())
      : self_(self), before_((self + ranks - 1) % ranks), fields_(fields, 6, at) {
    std::vector<halo_field> all;
    for (std::size_t f = 0; f < fields; ++f) {
      auto memory = fields_[f];
      if (ranks == 2)
        all.push_back(index_field(memory, {{3, 2}}, {{5, 4}}));
      else
        all.push_back(index_field(memory, {{3, 2}, {}}, {{}, {5, 4}}));
    }
    plan_ = mesh.plan(all);
  }
  halo_plan& plan() noexcept { return plan_; }
  task<> begin() {
    co_await fields_.bring_all([this](std::size_t f, std::size_t i) { return i < 4 ? value(self_, f, i) : nothing; });
  }
  task<std::size_t> wrong() {
    const auto right = [this](std::size_t f, std::size_t i) {
      return i < 4 ? value(self_, f, i) : value(before_, f, i == 5 ? 3 : 2);
    };
    const std::size_t count = co_await fields_.wrong(right);
    co_return count;
  }

 private:
  static std::uint32_t value(rank_id r, std::size_t field, std::size_t i) {
    return static_cast<std::uint32_t>(100 * r + 10 * field + i);
  }
  rank_id self_;
  rank_id before_;
  fields_of fields_;
  halo_plan plan_;
};

}  // namespace parley::tests::halo_case

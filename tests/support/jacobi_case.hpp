#pragma once
/// CASES section 4: one rank's part of Jacobi's iteration, whatever it runs on.
#include <parley/ops/halo.hpp>
#include <parley/ops/rank.hpp>
#include <parley/runtime/dataflow.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace parley::tests::jacobi_case {

using namespace parley::ops;
using namespace parley::runtime;

inline halo_exchange rims(std::vector<rank_id> ranks) {
  halo_exchange op;
  op.name = "rims";
  op.ranks = std::move(ranks);
  op.configs = {direct(), chunked(256, 2), put(), get()};
  op.timeout_ns = 1'000'000'000;
  return op;
}

inline constexpr std::size_t size = 62;

struct sheet {
  sheet(std::size_t r, std::size_t c) : rows(r), columns(c), cells((r + 2) * (c + 2)) {}
  double& at(std::size_t r, std::size_t c) { return cells[r * (columns + 2) + c]; }
  std::size_t rows, columns;
  std::vector<double> cells;
};

/// One sweep; the sum of the squares of what changes.
inline double sweep(sheet& from, sheet& to) {
  double sum = 0;
  for (std::size_t r = 1; r <= from.rows; ++r) {
    for (std::size_t c = 1; c <= from.columns; ++c) {
      const double next = 0.25 * (from.at(r - 1, c) + from.at(r + 1, c) + from.at(r, c - 1) + from.at(r, c + 1));
      sum += (next - from.at(r, c)) * (next - from.at(r, c));
      to.at(r, c) = next;
    }
  }
  return sum;
}

/// One rank's part of `sweeps` Jacobi sweeps over the eigenvector (1, 1); the squares of what each changes.
inline task<> jacobi(dataflow& flow, halo h, sheet* u, sheet* v, int sweeps, std::vector<double>* changes) {
  halo_plan of_u = h.plan({grid_field(u->cells, {u->rows, u->columns})});
  halo_plan of_v = h.plan({grid_field(v->cells, {v->rows, v->columns})});
  for (int k = 0; k < sweeps; ++k) {
    auto ghosts = (k % 2 == 0 ? of_u : of_v).start(flow);
    co_await ghosts;
    changes->push_back(k % 2 == 0 ? sweep(*u, *v) : sweep(*v, *u));
  }
}

/// What a rank holds when the grid is cut into that many rows and columns of blocks.
struct block {
  block(const halo& h, rank_id in_rows, rank_id in_columns)
      : block(part(in_rows, h.place()[0]), part(in_columns, h.place()[1])) {}
  /// The whole grid.
  block() : block(part(1, 0), part(1, 0)) {}
  /// Of 62 rows or columns: how many, and from which one on.
  static std::pair<std::size_t, std::size_t> part(rank_id parts, rank_id mine) {
    const std::size_t each = size / parts;
    const std::size_t more = size % parts;
    return {each + (mine < more ? 1 : 0), mine * each + std::min<std::size_t>(mine, more)};
  }
  std::size_t top, left;
  sheet u, v;
  std::vector<double> changes{};

 private:
  block(std::pair<std::size_t, std::size_t> of_rows, std::pair<std::size_t, std::size_t> of_columns)
      : top(of_rows.second), left(of_columns.second), u(of_rows.first, of_columns.first),
        v(of_rows.first, of_columns.first) {
    for (std::size_t i = 1; i <= u.rows; ++i) {
      for (std::size_t j = 1; j <= u.columns; ++j)
        u.at(i, j) = std::sin(std::numbers::pi * static_cast<double>(top + i) / 63) *
                     std::sin(std::numbers::pi * static_cast<double>(left + j) / 63);
    }
  }
};

}  // namespace parley::tests::jacobi_case

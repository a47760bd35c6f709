#pragma once
/// CASES section 4: one rank's part of Jacobi's iteration, on any place.
#include <parley/tests/support/place.hpp>

#include <parley/compute.hpp>
#include <parley/config.hpp>
#include <parley/dataflow.hpp>
#include <parley/halo.hpp>
#include <parley/rank.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

namespace parley::tests::jacobi_case {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

inline halo_options rims(std::vector<rank_id> ranks) {
  halo_options op;
  op.name = "rims";
  op.ranks = std::move(ranks);
  op.configs = {direct(), chunked(256, 2), put(), get()};
  op.timeout = 1s;
  return op;
}

inline constexpr std::size_t size = 62;

struct sheet {
  sheet(std::size_t r, std::size_t c, place& where = on_host())
      : at(where), rows(r), columns(c), cells(at, (r + 2) * (c + 2)) {}
  place& at;
  std::size_t rows, columns;
  array<double> cells;
};

/// One rank's part of `sweeps` Jacobi sweeps over the eigenvector (1, 1). `squares` gets the squares of the changes of each sweep.
inline task<> jacobi(dataflow& flow, halo h, sheet* u, sheet* v, int sweeps, std::vector<array<double>>* squares) {
  place& at = u->at;
  halo_plan of_u = h.plan({grid_field(u->cells, {u->rows, u->columns})});
  halo_plan of_v = h.plan({grid_field(v->cells, {v->rows, v->columns})});
  const std::size_t count = u->rows * u->columns;
  flow_work sent;
  for (int k = 0; k < sweeps; ++k) {
    const sheet& from = k % 2 == 0 ? *u : *v;
    const sheet& to = k % 2 == 0 ? *v : *u;
    flow_work ghosts = (k % 2 == 0 ? of_u : of_v).start(flow, at.stream());
    // A stream waits for ghosts itself. But only this wait keeps a sweep in a stream from overwriting cells that are still to be sent.
    flow_work& before = at.stream() == nullptr || k == 0 ? ghosts : sent;
    co_await before;
    sent = std::move(ghosts);
    const array<double>& changes = squares->emplace_back(at, count);
    at.compute(kernels::sweep{at.seen(to.cells), at.seen(changes), at.seen(from.cells), from.columns}, count);
  }
  co_await flow.join();
}

/// A rank's block of a grid that is cut into so many rows and columns of blocks.
struct block {
  block(const halo& h, rank_id in_rows, rank_id in_columns, place& at = on_host())
      : block(part(in_rows, h.place()[0]), part(in_columns, h.place()[1]), at) {}
  /// The whole grid.
  block() : block(part(1, 0), part(1, 0), on_host()) {}
  /// The number of rows or columns of one part of 62, and the first of them.
  static std::pair<std::size_t, std::size_t> part(rank_id parts, rank_id mine) {
    const std::size_t each = size / parts;
    const std::size_t more = size % parts;
    return {each + (mine < more ? 1 : 0), mine * each + std::min<std::size_t>(mine, more)};
  }
  std::size_t cell(std::size_t row, std::size_t column) const { return row * (u.columns + 2) + column; }
  task<> begin() {
    std::vector<double> first(u.cells.size());
    co_await bring(u.at, v.cells, std::span<const double>(first));
    for (std::size_t i = 1; i <= u.rows; ++i) {
      for (std::size_t j = 1; j <= u.columns; ++j)
        first[cell(i, j)] = std::sin(std::numbers::pi * static_cast<double>(top + i) / 63) *
                            std::sin(std::numbers::pi * static_cast<double>(left + j) / 63);
    }
    co_await bring(u.at, u.cells, std::span<const double>(first));
  }
  /// The sum of the squares of all changes of sweep `k`.
  task<double> sum_of_squares(std::size_t k) const {
    const std::vector<double> all = co_await taken(u.at, squares[k]);
    co_return std::accumulate(all.begin(), all.end(), 0.0);
  }
  std::size_t top, left;
  sheet u, v;
  std::vector<array<double>> squares{};

 private:
  block(std::pair<std::size_t, std::size_t> of_rows, std::pair<std::size_t, std::size_t> of_columns, place& at)
      : top(of_rows.second), left(of_columns.second), u(of_rows.first, of_columns.first, at),
        v(of_rows.first, of_columns.first, at) {}
};

/// All sweeps of a block.
inline task<> sweep_block(halo h, block* mine, int sweeps) {
  co_await mine->begin();
  co_await with_dataflow(jacobi, std::move(h), &mine->u, &mine->v, sweeps, &mine->squares);
  co_await mine->u.at.reached();
}

}  // namespace parley::tests::jacobi_case

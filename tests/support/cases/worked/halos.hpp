#pragma once
/// Worked case 4: Jacobi, and rims that are more than faces.
#include <parley/tests/support/cases/halo_case.hpp>
#include <parley/tests/support/cases/jacobi_case.hpp>
#include <parley/tests/support/cases/worked/each_config.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/place.hpp>

#include <parley/config.hpp>
#include <parley/halo.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

constexpr int sweeps = 100;

inline task<> sweep_and_compare(here* h, halo cut, rank_id rows, rank_id columns, const jacobi_case::block* alone) {
  jacobi_case::block mine(cut, rows, columns, h->at);
  co_await jacobi_case::sweep_block(cut, &mine, sweeps);
  const std::vector<double> field = co_await taken(h->at, mine.u.cells);
  std::size_t wrong = 0;
  for (std::size_t i = 1; i <= mine.u.rows; ++i) {
    for (std::size_t j = 1; j <= mine.u.columns; ++j)
      wrong += field[mine.cell(i, j)] == alone->u.cells[alone->cell(mine.top + i, mine.left + j)] ? 0 : 1;
  }
  CHECK(wrong == 0);
  const double first_of_mine = co_await mine.sum_of_squares(0);
  const double first = co_await total(h, first_of_mine);
  CHECK(std::sqrt(first) == doctest::Approx(0.03915698160394615).epsilon(1e-11));
  const double last_of_mine = co_await mine.sum_of_squares(sweeps - 1);
  const double last = co_await total(h, last_of_mine);
  CHECK(std::sqrt(last) == doctest::Approx(0.03462020197359978).epsilon(1e-11));
}

inline task<> jacobi(here* h) {
  jacobi_case::block alone;
  co_await alone.begin();
  std::vector<double> squares(alone.u.cells.size());
  for (int k = 0; k < sweeps; ++k) {
    const auto& from = k % 2 == 0 ? alone.u : alone.v;
    const auto& to = k % 2 == 0 ? alone.v : alone.u;
    kernels::run(kernels::sweep{to.cells.data(), squares.data(), from.cells.data(), from.columns},
                 from.rows * from.columns);
  }
  std::vector<std::pair<rank_id, rank_id>> cuts{{1, h->ranks}, {h->ranks, 1}};
  if (h->ranks == 4) cuts.emplace_back(2, 2);
  for (const auto& [rows, columns] : cuts) {
    auto op = jacobi_case::rims({rows, columns});
    op.name += std::to_string(rows) + "x" + std::to_string(columns);
    op.configs = h->with_others(op.configs);
    op.timeout = std::chrono::nanoseconds(h->patience);
    op.memory = h->at.memory();
    const halo cut(h->self, op);
    const auto sweeps_of_cut = [h, cut, rows, columns, &alone] {
      return sweep_and_compare(h, cut, rows, columns, &alone);
    };
    co_await until_each_ran(h, op.name, sweeps_of_cut);
  }
}

template <class Part>
task<> exchange_from_the_start(here* h, Part* mine, int times) {
  co_await mine->begin();
  co_await with_dataflow(halo_case::exchange, &mine->plan(), times, h->at.stream());
  co_await h->at.reached();
  const std::size_t wrong = co_await mine->wrong();
  CHECK(wrong == 0);
}

/// Corners, wider rims, rims of another width in each dimension, periodic edges, several fields, padding, and lists of indices.
inline task<> more_than_faces(here* h) {
  const auto with = [h](std::string name, halo_options op) {
    op.name = std::move(name);
    op.configs = h->with_others({direct(), chunked(64, 2)});
    op.timeout = std::chrono::nanoseconds(h->patience);
    op.memory = h->at.memory();
    return op;
  };
  halo_options wide;
  wide.ranks = {h->ranks, 1};
  wide.width = {2, 3};
  wide.periodic = {true, false};
  wide.reach = halo_reach::corners;
  halo_options cube = wide;
  cube.ranks = h->ranks == 4 ? std::vector<rank_id>{2, 1, 2} : std::vector<rank_id>{1, h->ranks, 1};
  cube.width = {1, 2, 1};
  cube.periodic = {false, true, true};
  for (const auto& s : {halo_case::shape{with("wide", wide), {4, 5}, 3, 2}, {with("cube", cube), {3, 4, 5}, 2, 1}}) {
    CAPTURE(s.op.name);
    const halo cut(h->self, s.op);
    halo_case::block mine(cut, s, h->at);
    co_await exchange_from_the_start(h, &mine, 4);
  }
  // Rows that are long enough to be sent by the piece, once they are no longer packed.
  halo_options rows = wide;
  rows.width = {2, 1};
  halo_case::shape s{with("rows", rows), {4, 600}, 3, 2};
  s.op.configs.push_back(by_piece(2));
  const halo cut(h->self, s.op);
  halo_case::block block(cut, s, h->at);
  const auto exchanges = [h, &block] { return exchange_from_the_start(h, &block, 16); };
  for (int i = 0; i < 2; ++i) co_await exchanges();
  co_await until_each_ran(h, s.op.name, exchanges);
  const halo mesh(h->self, with("mesh", halo_case::part_of_ring::op_of(h->me, h->ranks)));
  halo_case::part_of_ring mine(mesh, h->me, h->ranks, 2, h->at);
  co_await exchange_from_the_start(h, &mine, 4);
}

}  // namespace parley::tests::worked_cases

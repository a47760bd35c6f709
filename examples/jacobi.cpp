// Jacobi sweeps over a grid that the ranks share: each rank computes the interior of its block while the edges are
// exchanged. 5-point stencil, Dirichlet boundary 0.
//
//     parley run -n 4 ./jacobi [-nx 4096] [-ny 4096] [-niter 100] [-nccheck 100] [-px 2] [-csv]
//     ./jacobi --sim 16 -nx 512 -ny 512
//
// -nx columns, -ny rows, -niter sweeps, -nccheck sweeps between two checks of the norm, -px blocks along the rows.
// The initial field is an eigenvector, sin(pi i / (ny+1)) sin(pi j / (nx+1)), so the norm of step k is known:
// lambda^k (1 - lambda) sqrt((nx+1)(ny+1)) / 2 with lambda = (cos(pi/(ny+1)) + cos(pi/(nx+1))) / 2.
//
// -csv prints one line with the columns of NVIDIA's multi-GPU Jacobi: type, nx, ny, niter, nccheck, ranks, 1, seconds
// of all ranks together, seconds of one rank alone. Rank 0 first makes all sweeps alone while the others wait.
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <cmath>
#include <cstdio>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

struct settings {
  std::uint64_t nx = 1024;
  std::uint64_t ny = 1024;
  int niter = 100;
  int nccheck = 100;
  unsigned px = 0;  // 0: as square as possible
  bool csv = false;
} options;

// Size of this rank's block, and its first row and column in the grid.
struct block {
  std::uint64_t rows, columns, first_row, first_column;
};

std::pair<std::uint64_t, std::uint64_t> share(std::uint64_t all, unsigned parts, unsigned mine) {
  const std::uint64_t each = all / parts;
  const std::uint64_t more = all % parts;
  return {each + (mine < more ? 1 : 0), mine * each + std::min<std::uint64_t>(mine, more)};
}

unsigned squarest(unsigned ranks) {
  unsigned best = 1;
  for (unsigned p = 1; p * p <= ranks; ++p) best = ranks % p == 0 ? p : best;
  return best;
}

constexpr std::chrono::hours longest_alone(1);

// Compute time in virtual time: two billion cells per second.
parley::time_ns modelled_ns(const block& b) { return static_cast<parley::time_ns>(b.rows * b.columns / 2); }

class field {
 public:
  field(const block& b) : columns_(b.columns + 2), cells_((b.rows + 2) * columns_) {}
  double& at(std::uint64_t row, std::uint64_t column) { return cells_[row * columns_ + column]; }
  std::vector<double>& cells() { return cells_; }

 private:
  std::uint64_t columns_;
  std::vector<double> cells_;
};

// Sweeps rows [r0, r1) and columns [c0, c1) of the block. Returns the sum of the squared changes.
double sweep(field& from, field& to, std::uint64_t r0, std::uint64_t r1, std::uint64_t c0, std::uint64_t c1) {
  double sum = 0;
  for (std::uint64_t r = r0; r < r1; ++r) {
    for (std::uint64_t c = c0; c < c1; ++c) {
      const double next = 0.25 * (from.at(r - 1, c) + from.at(r + 1, c) + from.at(r, c - 1) + from.at(r, c + 1));
      const double changed = next - from.at(r, c);
      sum += changed * changed;
      to.at(r, c) = next;
    }
  }
  return sum;
}

// Sweeps the cells at the edges of the block, which need the neighbours' values.
double sweep_edges(field& from, field& to, const block& b) {
  const std::uint64_t last_row = b.rows;
  const std::uint64_t last_column = b.columns;
  double sum = sweep(from, to, 1, 2, 1, last_column + 1);
  if (last_row > 1) sum += sweep(from, to, last_row, last_row + 1, 1, last_column + 1);
  if (last_row > 2) sum += sweep(from, to, 2, last_row, 1, 2);
  if (last_row > 2 && last_column > 1) sum += sweep(from, to, 2, last_row, last_column, last_column + 1);
  return sum;
}

// Half a sine wave along each side of the grid.
void begin_with_eigenvector(field& u, const block& b) {
  const double pi = std::numbers::pi;
  const auto nx = static_cast<double>(options.nx + 1);
  const auto ny = static_cast<double>(options.ny + 1);
  for (std::uint64_t r = 1; r <= b.rows; ++r) {
    for (std::uint64_t c = 1; c <= b.columns; ++c)
      u.at(r, c) = std::sin(pi * static_cast<double>(b.first_row + r) / ny) *
                   std::sin(pi * static_cast<double>(b.first_column + c) / nx);
  }
}

parley::task<double> seconds_alone(parley::rank* self) {
  const block all{options.ny, options.nx, 0, 0};
  field u(all);
  field v(all);
  begin_with_eigenvector(u, all);
  field* from = &u;
  field* to = &v;
  const parley::time_ns begin = self->where().precise_now();
  for (int k = 0; k < options.niter; ++k) {
    auto whole = [from, to, all] { sweep(*from, *to, 1, all.rows + 1, 1, all.columns + 1); };
    co_await parley::compute(whole, modelled_ns(all));
    std::swap(from, to);
  }
  co_return static_cast<double>(self->where().precise_now() - begin) / 1e9;
}

parley::task<> iterate(parley::rank* self, parley::halo halo, parley::collective norms, block b, double alone_s) {
  field u(b);
  field v(b);
  const double pi = std::numbers::pi;
  const auto nx = static_cast<double>(options.nx + 1);
  const auto ny = static_cast<double>(options.ny + 1);
  begin_with_eigenvector(u, b);
  parley::halo_plan of_u = halo.plan({parley::grid_field(u.cells(), {b.rows, b.columns})});
  parley::halo_plan of_v = halo.plan({parley::grid_field(v.cells(), {b.rows, b.columns})});

  parley::scope& here = co_await parley::this_scope;
  parley::dataflow flow(here);  // after its buffers, so that it ends before they are destroyed

  const double lambda = (std::cos(pi / ny) + std::cos(pi / nx)) / 2;
  field* from = &u;
  field* to = &v;
  const parley::time_ns begin = self->where().precise_now();
  for (int k = 0; k < options.niter; ++k) {
    auto ghosts = (from == &u ? of_u : of_v).start(flow);
    double changed = 0;
    if (b.rows > 2 && b.columns > 2) {
      auto interior = [from, to, b] { return sweep(*from, *to, 2, b.rows, 2, b.columns); };
      changed = co_await parley::compute(interior, modelled_ns(b));
    }
    co_await ghosts;
    changed += sweep_edges(*from, *to, b);
    std::swap(from, to);
    if ((k + 1) % options.nccheck != 0 && k + 1 != options.niter && k != 0) continue;
    if (!norms.idle()) co_await norms.all_reduce(std::span(&changed, 1));
    const double norm = std::sqrt(changed);
    const double expected = std::pow(lambda, k) * (1 - lambda) * std::sqrt(nx * ny) / 2;
    if (self->id() == 0 && !options.csv) std::printf("%5d, %.15f\n", k, norm);
    if (std::abs(norm - expected) > 1e-9 * expected + 1e-13)
      parley::runtime::raise({parley::errc::config_failed, "the norm of sweep " + std::to_string(k) + " is " +
                                                               std::to_string(norm) + " instead of " +
                                                               std::to_string(expected)});
  }
  co_await flow.join();
  const double took_s = static_cast<double>(self->where().precise_now() - begin) / 1e9;
  if (self->id() != 0) co_return;
  if (options.csv)
    std::printf("parley, %llu, %llu, %d, %d, %u, 1, %f, %f\n", static_cast<unsigned long long>(options.nx),
                static_cast<unsigned long long>(options.ny), options.niter, options.nccheck, self->world_size(), took_s,
                alone_s);
  else
    std::printf("%llu x %llu, %u ranks: %.4f s, %.1f million cells/s\n", static_cast<unsigned long long>(options.ny),
                static_cast<unsigned long long>(options.nx), self->world_size(), took_s,
                static_cast<double>(options.nx * options.ny) * options.niter / took_s / 1e6);
}

parley::task<> rank_main(parley::rank& self) {
  const unsigned ranks = self.world_size();
  const unsigned px = options.px == 0 ? ranks / squarest(ranks) : options.px;
  const unsigned py = ranks / px;
  if (px * py != ranks) parley::runtime::raise({parley::errc::bad_argument, "-px does not divide the number of ranks"});
  parley::halo halo(self, {.name = "rims",
                           .ranks = {py, px},
                           .configs = {parley::configs::direct(), parley::configs::chunked(64 * 1024, 4),
                                       parley::configs::put(), parley::configs::get()}});
  parley::collective norms(self, {.name = "norms"});
  const auto [rows, first_row] = share(options.ny, py, halo.place()[0]);
  const auto [columns, first_column] = share(options.nx, px, halo.place()[1]);
  const block mine{rows, columns, first_row, first_column};
  double alone_s = 0;
  if (options.csv && self.id() == 0) alone_s = co_await seconds_alone(&self);
  if (options.csv && !norms.idle()) co_await norms.all_reduce(std::span(&alone_s, 1), {.timeout = longest_alone});
  co_await iterate(&self, halo, norms, mine, alone_s);
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line(
      "Jacobi sweeps over a grid that the ranks share, the interior computed while the rims move.");
  line.count("-nx", options.nx, "columns");
  line.count("-ny", options.ny, "rows");
  line.count("-niter", options.niter, "sweeps");
  line.count("-nccheck", options.nccheck, "sweeps between two checks of the norm");
  line.number("-px", options.px, "blocks along the rows; 0: as square as possible");
  line.flag("-csv", options.csv, "one line, as NVIDIA's multi-GPU Jacobi prints it");
  return line.run(argc, argv, rank_main);
}

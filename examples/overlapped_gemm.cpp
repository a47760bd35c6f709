// Matrix products that overlap their own communication, each tuned as a whole on all ranks.
//
//     parley run -n 4 ./overlapped_gemm
//     ./overlapped_gemm --sim 8
//
// All-gather + GEMM: rank r holds the r-th block of rows of A and the r-th block of columns of B, and computes those
// columns of A * B. A producer sends this rank's shard of A to all others, while the consumer multiplies the shards
// that have arrived.
//
// GEMM + reduce-scatter: rank r holds the r-th block of columns of A and the r-th block of rows of B, and wants the
// r-th block of rows of A * B. It makes its product block by block, and sends each block to its owner while it makes
// the next ones.
//
// The best way to copy, time to send, order and kernel depend on how fast the shards or blocks arrive. parley
// therefore times each candidate inside the whole call, including the time spent waiting for data. The program
// compares every result with a product made by one process, and the time of the whole call with the times of its
// parts run one after the other.
#include "command_line.hpp"

#include <parley/news.hpp>
#include <parley/parley.hpp>
#include <parley/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using parley::rank_id;
using matrix = std::vector<float>;  // in row-major order

constexpr std::size_t rows = 48;     // of a shard
constexpr std::size_t inner = 64;    // the depth that each rank sums over
constexpr std::size_t columns = 48;  // of a rank's result

// Small whole numbers: every order of summing gives the same bits.
float a_at(std::size_t row, std::size_t column) { return static_cast<float>((row * 7 + column * 3) % 5) - 2; }
float b_at(std::size_t row, std::size_t column) { return static_cast<float>((row * 5 + column) % 7) - 3; }

template <class At>
matrix filled(std::size_t height, std::size_t width, At at) {
  matrix m(height * width);
  for (std::size_t i = 0; i < m.size(); ++i) m[i] = at(i / width, i % width);
  return m;
}

struct product {
  std::span<const float> a;  // height x depth
  std::span<const float> b;  // depth x width
  std::span<float> c;
  std::size_t depth;
  std::size_t width;
};

void by_dots(product p) {
  for (std::size_t i = 0; i < p.c.size(); ++i) {
    float sum = 0;
    for (std::size_t k = 0; k < p.depth; ++k) sum += p.a[i / p.width * p.depth + k] * p.b[k * p.width + i % p.width];
    p.c[i] = sum;
  }
}

void by_rows(product p) {
  std::fill(p.c.begin(), p.c.end(), 0.0F);
  for (std::size_t i = 0; i * p.width < p.c.size(); ++i) {
    for (std::size_t k = 0; k < p.depth; ++k) {
      for (std::size_t j = 0; j < p.width; ++j) p.c[i * p.width + j] += p.a[i * p.depth + k] * p.b[k * p.width + j];
    }
  }
}

using gemm = void (*)(product);

/// Computes on another thread, so that the actor thread keeps moving shards. In virtual time the product takes
/// `modelled_ns`, which is about as long as a shard takes to arrive.
parley::task<> multiply(gemm how, product p) {
  const auto flops = static_cast<parley::time_ns>(2 * p.c.size() * p.depth);
  const parley::time_ns modelled_ns = how == by_dots ? flops / 50 : flops / 100;
  co_await parley::compute([how, p] { how(p); }, modelled_ns);
}

void check(const matrix& c, const matrix& expected, const char* what) {
  if (c != expected)
    parley::runtime::raise({parley::errc::config_failed, std::string(what) + " differs from one process's product"});
}

// ---- all-gather + GEMM ------------------------------------------------------------------------------------------------

struct gathering {
  rank_id self;
  rank_id world;
  parley::transfer shards;
  matrix a{};  // (world * rows) x inner; this rank's shard is filled in at the start
  matrix b{};
  matrix c{};
  std::vector<bool> here{};
  parley::runtime::news arrived{};

  std::span<float> shard(rank_id r) { return std::span(a).subspan(r * rows * inner, rows * inner); }
};

parley::task<> send_shard(gathering* g, rank_id to) { co_await g->shards.send(g->shard(g->self), {.to = to}); }

/// The producer: sends this rank's shard to all others, nearest first. Sends that are in flight together share the
/// wire; one at a time, each arrives earlier.
parley::task<> copy_all(gathering* g, bool at_once) {
  parley::scope& around = co_await parley::this_scope;
  parley::scope all(around);
  for (rank_id i = 1; i < g->world; ++i) {
    all.spawn(send_shard(g, (g->self + g->world - i) % g->world));
    if (!at_once) co_await all.join();
  }
  co_await all.join();
}

parley::task<> receive_shard(gathering* g, rank_id from) {
  co_await g->shards.receive(g->shard(from), {.from = from});
  g->here[from] = true;
  g->arrived.tell();
}

/// The consumer: multiplies one shard at a time, beginning with its own. `step` is added, modulo the world size, to
/// get the rank of the next shard.
parley::task<> consume(gathering* g, rank_id step, gemm how) {
  rank_id r = g->self;
  for (rank_id i = 0; i < g->world; ++i, r = (r + step) % g->world) {
    while (!g->here[r]) {
      auto woken = co_await g->arrived.next(parley::runtime::never);
      if (!woken) parley::runtime::raise(woken.reason());
    }
    const auto part = std::span(g->c).subspan(r * rows * columns, rows * columns);
    co_await multiply(how, {g->shard(r), g->b, part, inner, columns});
  }
}

using part_of_it = parley::tunable_op<parley::task<>(gathering*)>;

parley::task<> run_part(part_of_it* kernel, gathering* g) { co_await (*kernel)(g); }

/// A null producer or consumer is skipped, so that the other part can be timed alone.
parley::task<> gather_and_multiply(gathering* g, part_of_it* producer, part_of_it* consumer) {
  if (producer != nullptr) {
    for (rank_id r = 0; r < g->world; ++r) g->here[r] = r == g->self;
  }
  parley::scope& around = co_await parley::this_scope;
  parley::scope all(around);  // if a receive fails, the scope cancels the consumer's wait
  for (rank_id i = 1; i < g->world && producer != nullptr; ++i) all.spawn(receive_shard(g, (g->self + i) % g->world));
  if (producer != nullptr) all.spawn(run_part(producer, g));
  if (consumer != nullptr) all.spawn(run_part(consumer, g));
  co_await all.join();
}

/// Time of the agreed config on this rank, in microseconds: the fastest of five runs.
template <class Thunk>
parley::task<double> time_of(parley::rank* self, parley::contextual whole, Thunk thunk) {
  parley::time_ns fastest = parley::runtime::never;
  for (int i = 0; i < 5; ++i) {
    const parley::time_ns began = self->where().precise_now();
    co_await whole.run(thunk);
    fastest = std::min(fastest, self->where().precise_now() - began);
  }
  co_return static_cast<double>(fastest) / 1000;
}

parley::task<> all_gather_gemm(parley::rank* self, parley::transfer shards) {
  gathering g{.self = self->id(), .world = self->world_size(), .shards = std::move(shards)};
  g.a.resize(g.world * rows * inner);
  g.c.resize(g.world * rows * columns);
  g.here.resize(g.world);
  const std::size_t first = g.self * columns;
  const matrix own = filled(rows, inner, [&](auto i, auto j) { return a_at(g.self * rows + i, j); });
  std::copy(own.begin(), own.end(), g.shard(g.self).begin());
  g.b = filled(inner, columns, [&](auto i, auto j) { return b_at(i, first + j); });

  part_of_it producer(self->kernels(),
                      {.name = "copy",
                       .implementations = {{"at_once", [](gathering* x) { return copy_all(x, true); }},
                                           {"one_by_one", [](gathering* x) { return copy_all(x, false); }}}});
  const rank_id back = g.world - 1;
  part_of_it consumer(
      self->kernels(),
      {.name = "consume",
       .implementations = {{"ascending_dots", [](gathering* x) { return consume(x, 1, by_dots); }},
                           {"ascending_rows", [](gathering* x) { return consume(x, 1, by_rows); }},
                           {"descending_rows", [back](gathering* x) { return consume(x, back, by_rows); }}}});
  parley::contextual whole(*self, {.name = "all_gather_gemm", .iterations = 3});
  const auto thunk = [&] { return gather_and_multiply(&g, &producer, &consumer); };
  for (int step = 0; step < 3; ++step) {
    co_await whole.run(thunk);
    matrix expected(g.c.size());
    const matrix a = filled(g.world * rows, inner, a_at);
    by_dots({a, g.b, expected, inner, columns});
    check(g.c, expected, "all-gather + GEMM");
  }
  const auto copies_alone = [&] { return gather_and_multiply(&g, &producer, nullptr); };
  const auto consumes_alone = [&] { return gather_and_multiply(&g, nullptr, &consumer); };
  const double overlapped = co_await time_of(self, whole, thunk);
  const double gathers = co_await time_of(self, whole, copies_alone);
  const double multiplies = co_await time_of(self, whole, consumes_alone);
  std::printf(
      "rank %u: all-gather + GEMM takes %s, copied %s: %.1f us; alone the gather takes %.1f us, the product %.1f us\n",
      g.self, whole.best("consume", "all").c_str(), whole.best("copy", "all").c_str(), overlapped, gathers, multiplies);
}

// ---- GEMM + reduce-scatter --------------------------------------------------------------------------------------------

struct scattering {
  rank_id self;
  rank_id world;
  parley::transfer blocks;
  matrix a{};         // this rank's columns of A, all rows
  matrix b{};         // this rank's rows of B
  matrix partial{};   // this rank's product: one block of rows per rank
  matrix received{};  // this rank's block as computed by each other rank
  matrix c{};
  std::vector<bool> made{};  // by rank: whether its block is ready
  parley::runtime::news progress{};

  std::span<float> block(rank_id r) { return std::span(partial).subspan(r * rows * columns, rows * columns); }
  std::span<float> from(rank_id r) { return std::span(received).subspan(r * rows * columns, rows * columns); }
};

using block_kernel = parley::tunable_op<parley::task<>(product)>;
using scatter_kernel = parley::tunable_op<parley::task<>(scattering*)>;

parley::task<> send_block(scattering* s, rank_id to) { co_await s->blocks.send(s->block(to), {.to = to}); }
parley::task<> receive_block(scattering* s, rank_id from) { co_await s->blocks.receive(s->from(from), {.from = from}); }

/// Makes this rank's own block last, because no other rank waits for it.
parley::task<> make_blocks(scattering* s, block_kernel* kernel) {
  for (rank_id i = 1; i <= s->world; ++i) {
    const rank_id r = (s->self + i) % s->world;
    const auto part = std::span<const float>(s->a).subspan(r * rows * inner, rows * inner);
    const product p{part, s->b, s->block(r), inner, columns};
    co_await (*kernel)(p);
    s->made[r] = true;
    s->progress.tell();
  }
}

/// When a block is sent: as soon as it is made; after the previous block has been sent, so that each has the wire to
/// itself; or when all blocks have been made.
enum class leaving : std::uint8_t { as_made, one_by_one, at_the_end };

parley::task<> scatter(scattering* s, leaving when) {
  parley::scope& around = co_await parley::this_scope;
  parley::scope all(around);
  const rank_id last = (s->self + s->world - 1) % s->world;
  for (rank_id i = 1; i < s->world; ++i) {
    const rank_id r = (s->self + i) % s->world;
    while (!s->made[when == leaving::at_the_end ? last : r]) {
      auto woken = co_await s->progress.next(parley::runtime::never);
      if (!woken) parley::runtime::raise(woken.reason());
    }
    all.spawn(send_block(s, r));
    if (when == leaving::one_by_one) co_await all.join();
  }
  co_await all.join();
}

parley::task<> run_scatter(scatter_kernel* kernel, scattering* s) { co_await (*kernel)(s); }

/// A null kernel is skipped, so that the other part can be timed alone.
parley::task<> multiply_and_scatter(scattering* s, block_kernel* multiplies, scatter_kernel* scatters) {
  if (multiplies != nullptr) s->made.assign(s->world, false);
  parley::scope& around = co_await parley::this_scope;
  parley::scope all(around);
  for (rank_id r = 0; r < s->world && scatters != nullptr; ++r) {
    if (r != s->self) all.spawn(receive_block(s, r));
  }
  if (scatters != nullptr) all.spawn(run_scatter(scatters, s));
  if (multiplies != nullptr) all.spawn(make_blocks(s, multiplies));
  co_await all.join();
  s->c.assign(rows * columns, 0.0F);
  for (rank_id r = 0; r < s->world; ++r) {  // in rank order, so that every run gives the same bits
    const auto part = r == s->self ? s->block(r) : s->from(r);
    for (std::size_t i = 0; i < s->c.size(); ++i) s->c[i] += part[i];
  }
}

parley::task<> gemm_reduce_scatter(parley::rank* self, parley::transfer blocks) {
  scattering s{.self = self->id(), .world = self->world_size(), .blocks = std::move(blocks)};
  const std::size_t first = s.self * inner;
  s.a = filled(s.world * rows, inner, [&](auto i, auto j) { return a_at(i, first + j); });
  s.b = filled(inner, columns, [&](auto i, auto j) { return b_at(first + i, j); });
  s.partial.resize(s.world * rows * columns);
  s.received.resize(s.world * rows * columns);

  // This kernel is called once per block, so one run advances its tuning by as many steps as there are ranks.
  block_kernel multiplies(self->kernels(),
                          {.name = "block",
                           .key = [](product p) { return parley::kernel_key{{"k", p.depth}}; },
                           .implementations = {{"dots", [](product p) { return multiply(by_dots, p); }},
                                               {"rows", [](product p) { return multiply(by_rows, p); }}}});
  scatter_kernel scatters(
      self->kernels(),
      {.name = "scatter",
       .implementations = {{"as_made", [](scattering* x) { return scatter(x, leaving::as_made); }},
                           {"one_by_one", [](scattering* x) { return scatter(x, leaving::one_by_one); }},
                           {"at_the_end", [](scattering* x) { return scatter(x, leaving::at_the_end); }}}});
  parley::contextual whole(*self, {.name = "gemm_reduce_scatter", .iterations = 6});
  const auto thunk = [&] { return multiply_and_scatter(&s, &multiplies, &scatters); };
  for (int step = 0; step < 3; ++step) {
    co_await whole.run(thunk);
    const matrix a = filled(rows, s.world * inner, [&](auto i, auto j) { return a_at(s.self * rows + i, j); });
    const matrix b = filled(s.world * inner, columns, b_at);
    matrix expected(rows * columns);
    by_dots({a, b, expected, s.world * inner, columns});
    check(s.c, expected, "GEMM + reduce-scatter");
  }
  const auto runs = static_cast<unsigned long long>(whole.runs());
  const auto multiplies_alone = [&] { return multiply_and_scatter(&s, &multiplies, nullptr); };
  const auto scatters_alone = [&] { return multiply_and_scatter(&s, nullptr, &scatters); };
  const double overlapped = co_await time_of(self, whole, thunk);
  const double products = co_await time_of(self, whole, multiplies_alone);
  const double alone = co_await time_of(self, whole, scatters_alone);
  std::printf("rank %u: GEMM + reduce-scatter takes %s, blocks leave %s, after %llu runs: %.1f us; alone the product "
              "takes %.1f "
              "us, the scatter %.1f us\n",
              s.self, whole.best("block", "k=64").c_str(), whole.best("scatter", "all").c_str(), runs, overlapped,
              products, alone);
}

parley::transfer_options between_all(const parley::rank& self, const char* name) {
  parley::transfer_options op;
  op.name = name;
  op.configs = {parley::configs::direct(), parley::configs::chunked(8 << 10)};
  for (rank_id from = 0; from < self.world_size(); ++from) {
    for (rank_id to = 0; to < self.world_size(); ++to) {
      if (from != to) op.edges.emplace_back(from, to);
    }
  }
  return op;
}

parley::task<> rank_main(parley::rank& self) {
  if (self.world_size() == 1)
    parley::runtime::raise({parley::errc::bad_argument,
                            "one rank has no other rank to gather from; start several: parley run -n 4 PROGRAM"});
  co_await all_gather_gemm(&self, parley::transfer(self, between_all(self, "shards")));
  co_await gemm_reduce_scatter(&self, parley::transfer(self, between_all(self, "blocks")));
}

}  // namespace

int main(int argc, char** argv) {
  return examples::command_line("Products of matrices that overlap their communication, tuned as a whole.")
      .run(argc, argv, rank_main);
}

// How much of a halo exchange is hidden behind the interior of a sweep. A sweep starts the exchange, computes its
// interior, then waits; the program compares its time with those of the exchange and the interior alone. The interior
// takes twice as long as the exchange.
//
//     halo_overlap [--cells 1024] [--latency_us 50] [--sweeps 200]
//
// Runs on 2 x 2 virtual ranks. Rows of the field are sent in place; the rank itself packs columns. When started as a
// rank of a job, it runs in real time on the transport between the ranks, which form a column; the interior is then
// Jacobi's.
//
// The time of a sweep beyond its own interior counts as not hidden. A second figure, by the clock, also counts as not
// hidden how much longer the interior takes than alone. In virtual time both figures are equal.
#include <parley/bench/measure.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/parley.hpp>
#include <parley/simulation/world/world.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using parley::task;
using parley::time_ns;

struct settings {
  std::uint64_t cells;
  time_ns latency_ns;
  int sweeps;
};
struct parts {
  bool exchange;
  time_ns interior_ns;
};

task<> sweeps(parley::rank* self, settings s, parts with) {
  parley::halo halo(*self, {.name = "rims", .ranks = {2, 2}, .configs = {parley::configs::direct()}});
  std::vector<double> field((s.cells + 2) * (s.cells + 2));
  parley::halo_plan plan = halo.plan({parley::grid_field(field, {s.cells, s.cells})});
  parley::scope& here = co_await parley::this_scope;
  parley::dataflow flow(here);
  const auto interior = [] {};
  for (int n = 0; n < s.sweeps; ++n) {
    parley::runtime::flow_work ghosts;
    if (with.exchange) ghosts = plan.start(flow);
    if (with.interior_ns != 0) co_await parley::compute(interior, with.interior_ns);
    if (with.exchange) co_await ghosts;
  }
  co_await flow.join();
}

// ---- in real time

struct block {
  explicit block(std::uint64_t n) : cells(n), from((n + 2) * (n + 2), 1.0), to(from) {}
  std::uint64_t cells;
  std::vector<double> from, to;
};

/// Sweeps all cells that need no ghosts.
void jacobi(block& b, std::int64_t times) {
  const std::uint64_t row = b.cells + 2;
  for (; times > 0; --times) {
    for (std::uint64_t r = 2; r < b.cells; ++r) {
      for (std::uint64_t at = r * row + 2; at < r * row + b.cells; ++at)
        b.to[at] = 0.25 * (b.from[at - 1] + b.from[at + 1] + b.from[at - row] + b.from[at + row]);
    }
  }
}

/// Median time of one sweep. Measures for 200 ms, so that all ranks sweep at the same time: cores may share execution
/// resources.
double time_of_interior(block& b) {
  std::vector<double> times;
  for (const std::int64_t end = now_ns() + 200'000'000; now_ns() < end;) {
    const std::int64_t begin = now_ns();
    jacobi(b, 1);
    times.push_back(double(now_ns() - begin));
  }
  return median(std::move(times));
}

enum class sweep_of : std::uint8_t { exchange_alone, interior_alone, both };
struct sweep_time {
  double whole = 0;
  double interior = 0;
};

task<sweep_time> time_sweep(parley::dataflow* flow, parley::halo_plan* plan, block* b, sweep_of what,
                            std::int64_t times) {
  const auto interior = [b, times] { jacobi(*b, times); };
  sweep_time took;
  const std::int64_t begin = now_ns();
  parley::runtime::flow_work ghosts;
  if (what != sweep_of::interior_alone) ghosts = plan->start(*flow);
  if (what != sweep_of::exchange_alone) {
    const std::int64_t before = now_ns();
    co_await parley::compute(interior);
    took.interior = double(now_ns() - before);
  }
  if (what != sweep_of::interior_alone) co_await ghosts;
  took.whole = double(now_ns() - begin);
  co_return took;
}

/// Mean over all ranks.
task<double> mean(parley::collective& all, double mine) {
  co_await all.all_reduce(std::span(&mine, 1));
  co_return mine / double(all.size());
}

task<> on_the_machine(parley::dataflow& flow, parley::rank& self, settings s) {
  parley::halo halo(self, {.name = "rims", .ranks = {self.world_size(), 1}, .configs = {parley::configs::direct()}});
  parley::collective all(self, {.name = "all"});
  block mine(s.cells);
  parley::halo_plan plan = halo.plan({parley::grid_field(mine.from, {s.cells, s.cells})});
  const double sweep_ns = co_await mean(all, time_of_interior(mine));
  std::int64_t interior = 1;
  double exchange = 0;
  double alone = 0;
  double during = 0;
  double beyond = 0;
  double both = 0;
  for (const int sweeps : {20, s.sweeps}) {  // the first pass finds how many sweeps the interior needs
    std::vector<double> exchanges, interiors, overlapped, waits, wholes;
    for (int n = 0; n < sweeps; ++n) {
      auto took = co_await time_sweep(&flow, &plan, &mine, sweep_of::exchange_alone, interior);
      exchanges.push_back(took.whole);
      took = co_await time_sweep(&flow, &plan, &mine, sweep_of::both, interior);
      overlapped.push_back(took.interior);
      waits.push_back(took.whole - took.interior);
      wholes.push_back(took.whole);
      took = co_await time_sweep(&flow, &plan, &mine, sweep_of::interior_alone, interior);
      interiors.push_back(took.whole);
    }
    exchange = co_await mean(all, median(std::move(exchanges)));
    alone = co_await mean(all, median(std::move(interiors)));
    during = co_await mean(all, median(std::move(overlapped)));
    beyond = co_await mean(all, median(std::move(waits)));
    both = co_await mean(all, median(std::move(wholes)));
    interior = std::int64_t(std::ceil(2 * exchange / sweep_ns));
  }
  co_await flow.join();
  if (self.id() != 0) co_return;
  report("halo_overlap", 100 * (1 - beyond / exchange), "percent");
  report("halo_overlap_by_clock", 100 * (exchange + alone - both) / exchange, "percent");
  report("halo_exchange", exchange, "ns");
  report("halo_interior_alone", alone, "ns");
  report("halo_interior", during, "ns");
  report("halo_not_hidden", beyond, "ns");
}

// ---- on virtual ranks

double time_of(settings s, parts with) {
  parley::simulation::world_options o;
  o.ranks = 4;
  o.link.latency_ns = s.latency_ns;
  parley::simulation::world w(o, nullptr);
  w.start_all([&](parley::rank_id r) { w.programs_of(r).spawn(sweeps(&w[r], s, with)); });
  if (!w.stage().run_until([&] { return w.all_ended(); }, parley::runtime::never)) give_up("the sweeps hang");
  return double(w.stage().now());
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const settings s{std::uint64_t(given.number("cells", 1'024)), given.number("latency_us", 50) * 1'000,
                   int(given.number("sweeps", 200))};
  if (is_rank()) {
    return parley::run([&](parley::job& here) {
      auto body = [&](parley::dataflow& flow) { return on_the_machine(flow, here.self(), s); };
      parley::runtime::run(here.loop(), parley::runtime::with_dataflow(body));
    });
  }
  const double exchanges = time_of(s, {true, 0});
  const auto interior_ns = time_ns(2 * exchanges / s.sweeps);
  const double interiors = time_of(s, {false, interior_ns});
  const double both = time_of(s, {true, interior_ns});
  report("halo_overlap", 100 * (exchanges + interiors - both) / exchanges, "percent");
  report("halo_exchange", exchanges / s.sweeps, "ns");
  report("halo_interior", interiors / s.sweeps, "ns");
  report("halo_sweep", both / s.sweeps, "ns");
}

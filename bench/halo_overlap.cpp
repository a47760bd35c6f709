// How much of a halo exchange is hidden behind the interior of a sweep, on 2 x 2 virtual ranks: the time of a sweep that starts
// the exchange, computes its interior and then waits, beside that of each of them alone.
//
//     halo_overlap [--cells 1024] [--latency_us 50] [--sweeps 200]
//
// The interior takes twice as long as the exchange. Rows of the field are sent in place, columns are packed by the rank itself.
#include <parley/bench/measure.hpp>
#include <parley/parley.hpp>
#include <parley/simulation/world.hpp>

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
  parley::halo halo =
      self->declare(parley::halo_exchange{.name = "rims", .ranks = {2, 2}, .configs = {parley::direct()}});
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
  const double exchanges = time_of(s, {true, 0});
  const auto interior_ns = time_ns(2 * exchanges / s.sweeps);
  const double interiors = time_of(s, {false, interior_ns});
  const double both = time_of(s, {true, interior_ns});
  report("halo_overlap", 100 * (exchanges + interiors - both) / exchanges, "percent");
  report("halo_exchange", exchanges / s.sweeps, "ns");
  report("halo_interior", interiors / s.sweeps, "ns");
  report("halo_sweep", both / s.sweeps, "ns");
}

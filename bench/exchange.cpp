// Exchanges that ranks repeat: the median time of each size, for comparison with MPI in peers/mpi_exchange.cpp.
//
//     exchange --only pairs [--ranks 2]         send to a neighbour and receive from it at once, 8 B to 4 MiB
//     exchange --only batch [--ranks 2]         8 messages of that size each way at once
//     exchange --only halo [--ranks 2]          the rims of a grid of doubles, 62 x 62 to 4,094 x 4,094 on each rank
//     exchange --only pieces [--ranks 2]        faces of several pieces: with packing only, then with all configs, and their trial times
//     exchange --only all_reduce [--ranks 2]    sums of floats, 8 B to 64 MiB
//
// `--size` measures one size only, `--steps` sets the number of steps. Besides the medians, each rank reports the
// average, shortest and longest step; for a halo also separately for the time until its messages were posted, and for
// the rest.
#include <parley/bench/measure.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/bench/steps.hpp>
#include <parley/parley.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using parley::dataflow;
using parley::task;

/// Times the steps of `once`, which may set `posted` to the time at which all messages were posted.
template <class Once>
task<> measure(parley::rank& self, std::string name, step_plan plan, Once once) {
  std::vector<double> whole;
  std::vector<double> posting;
  std::vector<double> waiting;
  for (std::int64_t n = -plan.warm_ups; n < plan.repetitions; ++n) {
    const std::int64_t start = now_ns();
    std::int64_t posted = 0;
    co_await once(posted);
    const std::int64_t end = now_ns();
    if (n < 0) continue;
    whole.push_back(double(end - start));
    if (posted == 0) continue;
    posting.push_back(double(posted - start));
    waiting.push_back(double(end - posted));
  }
  report_phase(name, self.id(), "step", whole);
  if (!posting.empty()) {
    report_phase(name, self.id(), "post-send", posting);
    report_phase(name, self.id(), "wait-recv", waiting);
  }
  if (self.id() == 0) report(name, median(std::move(whole)), "ns");
}

task<> exchange_once(dataflow& flow, parley::p2p& pairs, parley::rank_id other, std::vector<std::byte>& out,
                     std::vector<std::byte>& in) {
  auto both = pairs.start(flow, {parley::p2p::irecv(in, {.from = other}), parley::p2p::isend(out, {.to = other})});
  co_await both;
}

task<> pairs(dataflow& flow, parley::rank& self, const arguments& given) {
  parley::p2p op(self, {.name = "pairs", .configs = catalogue(4)});
  const parley::rank_id other = self.id() ^ 1U;
  for (const std::int64_t bytes : sizes_of("pairs", given)) {
    std::vector<std::byte> out(static_cast<std::size_t>(bytes), std::byte{1});
    std::vector<std::byte> in(out.size());
    auto once = [&](std::int64_t&) { return exchange_once(flow, op, other, out, in); };
    co_await measure(self, "pairs_" + std::to_string(bytes), plan_for(bytes, self.world_size(), given), once);
  }
}

task<> batch_once(dataflow& flow, parley::p2p& pairs, const std::vector<parley::p2p_operation>& operations) {
  auto all = pairs.start(flow, operations);
  co_await all;
}

task<> batch(dataflow& flow, parley::rank& self, const arguments& given) {
  parley::p2p op(self, {.name = "pairs", .configs = catalogue(4)});
  const parley::rank_id other = self.id() ^ 1U;
  for (const std::int64_t bytes : sizes_of("batch", given)) {
    const auto each = static_cast<std::size_t>(bytes);
    std::vector<std::byte> out(batch_messages * each, std::byte{1});
    std::vector<std::byte> in(out.size());
    std::vector<parley::p2p_operation> operations;
    for (std::size_t i = 0; i < batch_messages; ++i)
      operations.push_back(parley::p2p::irecv(std::span(in).subspan(i * each, each), {.from = other}));
    for (std::size_t i = 0; i < batch_messages; ++i)
      operations.push_back(parley::p2p::isend(std::span(out).subspan(i * each, each), {.to = other}));
    auto once = [&](std::int64_t&) { return batch_once(flow, op, operations); };
    const auto plan = plan_for(batch_messages * bytes, self.world_size(), given);
    co_await measure(self, "batch_" + std::to_string(bytes), plan, once);
  }
}

task<> halo_once(dataflow& flow, parley::halo_plan& plan, std::int64_t& posted) {
  auto ghosts = plan.start(flow);
  posted = now_ns();
  co_await ghosts;
}

task<> halo(dataflow& flow, parley::rank& self, const arguments& given) {
  parley::halo op(self, {.name = "rims", .ranks = {self.world_size() / 2, 2}, .configs = catalogue(4)});
  for (const std::int64_t n : sizes_of("halo", given)) {
    const auto cells = static_cast<std::uint64_t>(n);
    std::vector<double> field((cells + 2) * (cells + 2));
    parley::halo_plan plan = op.plan({parley::grid_field(field, {cells, cells})});
    auto once = [&](std::int64_t& posted) { return halo_once(flow, plan, posted); };
    co_await measure(self, "halo_" + std::to_string(n), plan_for(n * 8, self.world_size(), given), once);
    co_await flow.join();  // before the field is destroyed
  }
}

struct face {
  const char* name;
  std::uint64_t fields;
  std::uint64_t rows;
  std::uint64_t doubles;  // per row
};

task<> exchange_faces(dataflow& flow, parley::rank& self, const arguments& given, const face& f, const char* way,
                      std::vector<parley::config_ptr> configs) {
  const std::string name = std::string("pieces_") + f.name + "_" + way;
  const parley::rank_id ranks = self.world_size();
  parley::halo op(self, {.name = name, .ranks = {ranks, 1, 1}, .width = {1, 0, 1}, .configs = std::move(configs)});
  std::vector<std::vector<double>> memory(f.fields, std::vector<double>(4 * f.rows * (f.doubles + 2)));
  std::vector<parley::ops::halo_field> fields;
  for (auto& each : memory) fields.push_back(parley::grid_field(each, {2, f.rows, f.doubles}));
  parley::halo_plan plan = op.plan(fields);
  const auto bytes = static_cast<std::int64_t>(f.fields * f.rows * f.doubles * sizeof(double));
  auto once = [&](std::int64_t& posted) { return halo_once(flow, plan, posted); };
  co_await measure(self, name, plan_for(bytes, ranks, given), once);
  co_await flow.join();  // before the fields are destroyed
  if (self.id() != 0) co_return;
  for (const auto& of : op.to(1).decision(static_cast<std::uint64_t>(bytes)).evidence)
    report(name + "/" + of.config, of.time_ns, "ns");
}

task<> pieces(dataflow& flow, parley::rank& self, const arguments& given) {
  const face faces[] = {{"4_fields_of_32KiB", 4, 1, 4096}, {"64_rows_of_4KiB", 1, 64, 512},
                        {"64_rows_of_1KiB", 1, 64, 128},   {"8_rows_of_1KiB", 1, 8, 128},
                        {"8_rows_of_4KiB", 1, 8, 512},     {"8_rows_of_16KiB", 1, 8, 2048},
                        {"8_rows_of_64KiB", 1, 8, 8192},   {"2_fields_of_1MiB", 2, 1, 131'072}};
  for (const face& f : faces) {
    const std::vector<parley::config_ptr> packing{parley::configs::direct(), parley::configs::chunked(64 * 1024, 4)};
    const std::vector<parley::config_ptr> all = parley::halo_options{}.configs;
    co_await exchange_faces(flow, self, given, f, "packed", packing);
    co_await exchange_faces(flow, self, given, f, "agreed", all);
  }
}

task<> all_reduce(dataflow&, parley::rank& self, const arguments& given) {
  parley::collective op(
      self, {.name = "sums",
             .configs = {parley::configs::star(), parley::configs::chain(), parley::configs::chain(256 << 10),
                         parley::configs::tree(), parley::configs::one_shot(), parley::configs::two_shot(),
                         parley::configs::two_shot(256 << 10)}});
  for (const std::int64_t bytes : sizes_of("all_reduce", given)) {
    std::vector<float> values(static_cast<std::size_t>(bytes) / sizeof(float));
    auto once = [&](std::int64_t&) { return op.all_reduce(std::span(values)); };
    co_await measure(self, "all_reduce_" + std::to_string(bytes), plan_for(bytes, self.world_size(), given), once);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  if (!is_rank()) {
    const auto figures = run_ranks(parley::rank_id(given.number("ranks", 2)), argc, argv);
    for (const auto& of_rank : figures) {
      for (const auto& [name, value] : of_rank) report(name, value, name.ends_with("/num") ? "steps" : "ns");
    }
    return 0;
  }
  const std::string only = given.text("only", "pairs");
  const auto measured = only == "pairs"        ? pairs
                        : only == "batch"      ? batch
                        : only == "halo"       ? halo
                        : only == "pieces"     ? pieces
                        : only == "all_reduce" ? all_reduce
                                               : nullptr;
  if (measured == nullptr) give_up("--only takes pairs, batch, halo, pieces or all_reduce, not " + only);
  return as_rank([&](parley::job& here) {
    auto body = [&](dataflow& flow) { return measured(flow, here.self(), given); };
    parley::runtime::run(here.loop(), parley::runtime::with_dataflow(body));
  });
}

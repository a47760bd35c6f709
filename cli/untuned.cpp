#include <parley/cli/untuned.hpp>

#include <parley/actors/services.hpp>
#include <parley/cli/payload/cuda.hpp>
#include <parley/offline_tuning.hpp>
#include <parley/ops/job/results_store.hpp>
#include <parley/run.hpp>
#include <parley/transports/files/file_storage.hpp>
#include <parley/tuning/results/results.hpp>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

namespace parley::cli {

namespace json = boost::json;

namespace {

void print(const ops::offline_report& all, output_format format) {
  if (format == output_format::json) {
    json::array left_out(all.left_out.begin(), all.left_out.end());
    const json::object document{{"tuned", all.tuned}, {"known", all.known}, {"left_out", std::move(left_out)}};
    std::puts(json::serialize(document).c_str());
    return;
  }
  for (const std::string& each : all.left_out) std::fprintf(stderr, "parley: %s\n", each.c_str());
  fmt::print("{} tuned, {} known before, {} left out\n", all.tuned, all.known, all.left_out.size());
}

/// Adds the results to the file that the ranks of all jobs read, whatever their number.
void publish(ops::rank& self) {
  const std::string& of_rank = self.settings().results_path;
  const std::string& path = of_rank.empty() ? self.kernels().settings().file : of_rank;
  const tuning::results_file all = self.kernels().get_tuning_results();
  tuning::results_file kernels;
  for (const tuning::validator& v : ops::without_world(all.validators())) static_cast<void>(kernels.add(v));
  for (const tuning::result_entry& e : all.entries()) {
    if (e.is_of_kernel() && !e.pins_default()) static_cast<void>(kernels.add(e));
  }
  transports::file_storage disk;
  if (!disk.place_for_files(path)) return;
  const auto kept = ops::keep_results(disk, path, kernels);
  if (!kept) return;  // the rank has its own file, or has said why not
  for (const std::string& w : kept->warnings) std::fprintf(stderr, "parley: warning: %s\n", w.c_str());
}

/// True if two ranks run on one host.
bool has_neighbours(ops::rank& self) {
  std::set<std::uint64_t> hosts;
  for (runtime::rank_id r = 0; r < self.world_size(); ++r) hosts.insert(self.services().clocks.host_of(r));
  return hosts.size() != self.world_size();
}

/// True if this rank has written its results.
bool were_kept(const std::string& path, std::uint32_t rank) {
  transports::file_storage disk;
  const auto mine = disk.read(tuning::name_with_ordinal(path, rank));
  if (!mine) std::fprintf(stderr, "parley: no results were kept: %s\n", mine.reason().what().c_str());
  return static_cast<bool>(mine);
}

}  // namespace

int tune_untuned(const untuned_options& o) {
  constexpr int status_left_out = 1, status_unreadable = 2;
  // An option overrides the environment.
  if (o.no_results || !o.results_path.empty()) ::setenv("PARLEY_RESULTS", o.results_path.c_str(), 1);
  int status = 0;
  std::uint32_t rank = 0;
  ops::job_options job;
  transports::cublas_library* blas = nullptr;
  if (o.on_gpu) {
    const auto driver = find_cuda();
    const auto cublas = find_cublas();
    if (!driver || !cublas) {
      std::fprintf(stderr, "parley: --device cuda: %s\n", (driver ? cublas.reason() : driver.reason()).what().c_str());
      return 1;
    }
    job.gpu = *driver;
    blas = *cublas;
  }
  const auto tune = [&](ops::job& here) {
    rank = here.self().id();
    if (!o.on_gpu && has_neighbours(here.self()))
      runtime::raise({runtime::errc::bad_argument,
                      "tune --untuned times with all processors of a host: start one rank on each host"});
    ops::offline_report all;
    ops::offline_options how{.share = rank, .of = here.self().world_size()};
    if (o.on_gpu) how.gpu.emplace(ops::offline_gpu{here.gpu()->driver(), *blas, here.gpu()->device()});
    how.on_progress = [&](std::size_t done, std::size_t of, const std::string& what) {
      if (o.format == output_format::json || what.empty()) return;
      fmt::print("[{}/{}] {}\n", done, of, what);
      std::fflush(stdout);
    };
    for (const std::string& file : o.files) {
      auto report = ops::tune_in_file(here.self().kernels(), file, how);
      if (!report) {
        std::fprintf(stderr, "parley: %s\n", report.reason().what().c_str());
        status = status_unreadable;
        continue;
      }
      all.tuned += report->tuned;
      all.known += report->known;
      all.left_out.insert(all.left_out.end(), report->left_out.begin(), report->left_out.end());
    }
    if (!here.self().settings().no_results) publish(here.self());
    print(all, o.format);
    if (status == 0 && !all.left_out.empty()) status = status_left_out;
  };
  const int ended = ops::run(tune, std::move(job));
  if (ended != 0) return ended;
  if (!o.results_path.empty() && !were_kept(o.results_path, rank)) return status_left_out;
  return status;
}

}  // namespace parley::cli

// All-reduces of floats on GPUs, one process per GPU, timed in turns with plain NCCL in the same processes.
//
//     parley run -n 2 -- gpu_all_reduce [-b SIZE] [-e SIZE] [-f FACTOR] [-n CALLS] [-w CALLS] [-c 0|1] [-g 1]
//
// Options, time and bandwidths are those of nccl-tests' all_reduce_perf. The ranks agree during the first `-w` calls
// of each size; the printed time is the median of five rounds of `-n` calls each. Both parley's and NCCL's calls are
// waited for on the host. The result of one more call of each size is compared with the expected sum.
#include "sums.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

namespace {

using parley::task;
namespace transports = parley::transports;

examples::size_sweep options{.largest = 256 << 20, .factor = 2, .timed = 100, .before = 3'000};
constexpr int rounds = 5;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// NCCL in its simplest use: one communicator, one stream.
class nccl_alone {
 public:
  nccl_alone(transports::nccl_library& library, transports::cuda_copies& copies) noexcept
      : library_(library), copies_(copies), stream_(copies.driver().make_stream(copies.device())) {}
  ~nccl_alone() {
    if (world_ != nullptr) library_.abort(world_);
  }
  nccl_alone(const nccl_alone&) = delete;
  nccl_alone& operator=(const nccl_alone&) = delete;

  task<> meet(parley::rank& self) {
    transports::nccl_id id;
    if (self.id() == 0) id = library_.make_id().value();
    if (self.world_size() > 1) {
      parley::transfer ids(self, {.name = "NCCL's id", .edges = edges_from_first(self)});
      if (self.id() != 0) co_await ids.receive(id.bytes, {.from = 0});
      for (parley::rank_id r = 1; self.id() == 0 && r < self.world_size(); ++r) co_await ids.send(id.bytes, {.to = r});
    }
    world_ = library_.connect(id, int(self.world_size()), int(self.id()), copies_.device()).value();
    while (library_.state(world_) == parley::errc::pending) co_await parley::runtime::yield;
  }
  void sum(std::span<std::byte> data) {
    must(library_.sum_floats(data, world_, stream_));
    must(library_.state(world_));
    transports::cuda_driver& gpu = copies_.driver();
    must(gpu.record(event_, stream_));
    parley::errc seen = parley::errc::pending;
    while (seen == parley::errc::pending) seen = gpu.query(event_);
    must(seen);
  }

 private:
  static std::vector<std::pair<parley::rank_id, parley::rank_id>> edges_from_first(const parley::rank& self) {
    std::vector<std::pair<parley::rank_id, parley::rank_id>> edges;
    for (parley::rank_id r = 1; r < self.world_size(); ++r) edges.emplace_back(0, r);
    return edges;
  }
  void must(parley::errc e) {
    while (e == parley::errc::pending) e = library_.state(world_);
    if (e != parley::errc::none)
      parley::runtime::raise({e, "NCCL alone: " + library_.fault() + copies_.driver().fault()});
  }
  transports::nccl_library& library_;
  transports::cuda_copies& copies_;
  transports::cuda_stream stream_;
  transports::cuda_event event_ = copies_.driver().make_event(copies_.device());
  transports::nccl_communicator world_ = nullptr;
};

/// Makes one more sum and returns the number of its wrong elements.
task<std::size_t> wrong_in_one(parley::rank& self, transports::cuda_space& space, parley::ops::symmetric& sums,
                               std::span<std::byte> data) {
  std::vector<float> values(data.size() / sizeof(float));
  const auto host = std::as_writable_bytes(std::span(values));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float((self.id() + 1) * (1 + i % 1'000));
  co_await space.copy(data, host);
  co_await sums.run(data);
  co_await space.copy(host, data);
  std::size_t wrong = 0;
  const auto ranks = std::size_t(self.world_size());
  const std::size_t sum_of_ones = ranks * (ranks + 1) / 2;  // if rank r gives r + 1
  for (std::size_t i = 0; i < values.size(); ++i) wrong += values[i] == float(sum_of_ones * (1 + i % 1'000)) ? 0 : 1;
  co_return wrong;
}

task<> sweep(parley::job& here, transports::cuda_space& space) {
  parley::rank& self = here.self();
  parley::ops::symmetric_options op = co_await examples::sums_of_all(here, space, "sums");
  op.configs = {parley::configs::nccl_sum(), parley::configs::nccl_graph_sum(), parley::configs::kernel_sum(8),
                parley::configs::kernel_sum(32)};
  parley::ops::symmetric short_sums(self, op);
  op.name = "long_sums";  // sums that are too long for the kernel's memory
  op.configs.resize(2);
  parley::ops::symmetric long_sums(self, op);
  nccl_alone alone(examples::nccl(), *here.gpu());
  co_await alone.meet(self);

  const double bus = 2.0 * (self.world_size() - 1) / self.world_size();
  if (self.id() == 0)
    std::printf("#%13s %12s %8s %6s %6s %10s %8s %8s %8s %12s %8s  %s\n", "size (B)", "count", "type", "redop", "root",
                "time (us)", "algbw", "busbw", "#wrong", "NCCL (us)", "ratio", "config");
  std::size_t all_wrong = 0;
  for (std::uint64_t bytes = options.smallest; bytes <= options.largest; bytes *= options.factor) {
    const auto block = space.make(bytes);
    const auto data = block->bytes();
    std::vector<float> values(bytes / sizeof(float));
    const auto host = std::as_writable_bytes(std::span(values));
    std::fill(values.begin(), values.end(), 0.0F);
    co_await space.copy(data, host);
    const bool is_long = bytes > examples::largest_for_kernel;
    parley::ops::symmetric& sums = is_long ? long_sums : short_sums;
    const int before = is_long ? options.before / 3 : options.before;
    for (int i = 0; i < before; ++i) co_await sums.run(data);
    for (int i = 0; i < std::min(before, 50); ++i) alone.sum(data);
    std::vector<double> mine, theirs;
    for (int round = 0; round < rounds; ++round) {
      parley::time_ns began = self.where().precise_now();
      for (int i = 0; i < options.timed; ++i) co_await sums.run(data);
      mine.push_back(double(self.where().precise_now() - began) / options.timed);
      began = self.where().precise_now();
      for (int i = 0; i < options.timed; ++i) alone.sum(data);
      theirs.push_back(double(self.where().precise_now() - began) / options.timed);
    }
    std::size_t wrong = 0;
    if (options.check != 0) wrong = co_await wrong_in_one(self, space, sums, data);
    all_wrong += wrong;
    if (self.id() == 0) {
      const parley::decision agreed = sums.decision(bytes);
      const double t = median(mine);
      const double n = median(theirs);
      std::printf("%14zu %12zu %8s %6s %6d %10.2f %8.2f %8.2f %8s %12.2f %8.3f  %s\n", data.size(), values.size(),
                  "float", "sum", -1, t / 1e3, double(bytes) / t, bus * double(bytes) / t, options.wrong(wrong).c_str(),
                  n / 1e3, t / n, agreed.decided ? agreed.config.c_str() : "(not yet)");
      std::fflush(stdout);
    }
  }
  if (all_wrong != 0) parley::runtime::raise({parley::errc::config_failed, "sums are wrong"});
}

}  // namespace

int main(int argc, char** argv) {
  options.options().take(argc, argv);
  options.smallest = std::max(options.smallest, sizeof(float));
  parley::job_options job;
  job.settings.plan.budget_fraction = 0.5;  // the program has seconds, not days, to agree
  return examples::run_on_gpus(sweep, std::move(job));
}

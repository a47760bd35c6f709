// All-reduces of gradients on GPUs, one process per GPU, in two levels like ../gradients.cpp: each group sums, and
// the leaders sum among themselves. A sum starts as soon as the backward kernel has written its data, and is made by
// copies and kernels; no rank waits for all others.
//
//     parley run -n 4 -- gpu_gradients [-b 8] [-e 16M] [-f 8] [-n 20] [-w 60] [-c 1] [-g 1] [--ranks-per-group 2]
//
// Options and columns are those of nccl-tests' all_reduce_perf: -b smallest size in bytes, -e largest, -f factor from
// one size to the next, -n timed sums, -w sums before them, in which the ranks agree, -c 0 to skip the comparison of
// results, -g GPUs per rank, always 1. --ranks-per-group N makes ranks 0, N, 2 N, … the leaders; the last group may
// be smaller. For large sums in which all ranks have the same role, use NCCL (gpu_all_reduce).
#include "device.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace {

using examples::device_array;
using examples::must;

examples::size_sweep options{.largest = 16 << 20, .timed = 20, .before = 60};
parley::rank_id in_a_group = 2;

class gradients {
 public:
  gradients(parley::job& here, parley::transports::cuda_space& space, parley::hierarchy& all, std::size_t count)
      : space_(space), self_(here.self()), all_(all), ones_(space, count), sum_(space, count) {}

  parley::task<> begin() {
    std::vector<float> pattern(sum_.size());
    for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<float>(i % 7 + 1);
    co_await space_.copy(ones_.bytes(), std::as_bytes(std::span(pattern)));
  }
  parley::task<> sums(int count) {
    for (int i = 0; i < count; ++i) {
      const auto mine = static_cast<float>(self_.id() + 1);
      must(examples::launch_scale(sum_.data(), ones_.data(), mine, 0, sum_.size(), stream_), "kernel");
      space_.after(sum_.bytes(), static_cast<cudaStream_t>(stream_));  // the sum waits for the kernel
      co_await all_.all_reduce(sum_.all());
    }
  }
  parley::task<std::size_t> wrong() {
    std::vector<float> seen(sum_.size());
    co_await space_.copy(std::as_writable_bytes(std::span(seen)), sum_.bytes());
    const std::size_t ranks = self_.world_size();
    const std::size_t sum_of_ones = ranks * (ranks + 1) / 2;  // if rank r gives r + 1
    std::size_t count = 0;
    for (std::size_t i = 0; i < seen.size(); ++i)
      count += seen[i] == static_cast<float>(sum_of_ones * (i % 7 + 1)) ? 0 : 1;
    co_return count;
  }

 private:
  parley::transports::cuda_space& space_;
  parley::rank& self_;
  parley::hierarchy& all_;
  device_array<float> ones_;
  device_array<float> sum_;
  examples::stream stream_;
};

parley::task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  parley::hierarchy all(
      self, {.name = "gradients", .leads = [](parley::rank_id r) { return r % in_a_group == 0; }, .memory = &space});
  std::fprintf(stderr, "rank %u is a %s of a group of %zu\n", self.id(), all.leads() ? "leader" : "worker",
               all.group_size());
  if (self.id() == 0)
    std::printf("#%13s %12s %8s %6s %6s %12s %10s %10s %8s\n#%13s %12s %8s %6s %6s %12s %10s %10s\n", "size", "count",
                "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "(B)", "(elements)", "", "", "", "(us)",
                "(GB/s)", "(GB/s)");
  const double ranks = self.world_size();
  for (std::uint64_t bytes = options.smallest; bytes <= options.largest; bytes *= options.factor) {
    gradients g(here, space, all, std::max<std::size_t>(bytes / sizeof(float), 1));
    co_await g.begin();
    co_await g.sums(options.before);
    const parley::time_ns began = self.where().precise_now();
    co_await g.sums(options.timed);
    const double us = static_cast<double>(self.where().precise_now() - began) / 1e3 / options.timed;
    std::size_t wrong = 0;
    if (options.check != 0) wrong = co_await g.wrong();
    const std::size_t count = std::max<std::size_t>(bytes / sizeof(float), 1);
    const double bandwidth = static_cast<double>(count * sizeof(float)) / us / 1e3;
    if (self.id() == 0)
      std::printf("%14zu %12zu %8s %6s %6d %12.2f %10.2f %10.2f %8s\n", count * sizeof(float), count, "float", "sum",
                  -1, us, bandwidth, 2 * (ranks - 1) / ranks * bandwidth, options.wrong(wrong).c_str());
    std::fflush(stdout);
    if (wrong != 0)
      parley::runtime::raise({parley::errc::config_failed, std::to_string(wrong) + " elements are wrong"});
  }
}

}  // namespace

int main(int argc, char** argv) {
  options.options().number("--ranks-per-group", in_a_group, parley::rank_id{1}).take(argc, argv);
  return examples::run_on_gpus(rank_main);
}

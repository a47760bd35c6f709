#include <parley/ops/job/one_process.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/transports/files/open_files.hpp>
#include <parley/transports/join/rendezvous.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace parley::ops {

using runtime::task;

namespace {

// By count, the loop, signals and its threads open 11 files. The rest is for files that are open for a moment, such as results files.
constexpr std::size_t files_of_process = 16;

runtime::reactor::options with_files(const one_process::options& o) {
  transports::allow_open_files(files_of_process).value();
  return {.compute_threads = o.compute_threads};
}

}  // namespace

one_process::one_process(const options& o) : loop_(with_files(o)) {
  std::vector<transports::cuda_copies*> copies(o.ranks, nullptr);
  for (rank_id r = 0; o.gpu != nullptr && r < o.ranks; ++r) {
    const std::size_t devices = o.gpu->devices().size();
    const auto at_each = static_cast<unsigned>((o.ranks + devices - 1) / devices);
    const auto with = transports::cuda_copies::shared_by(*o.gpu, at_each, o.copies);
    const auto device = static_cast<int>(r % devices);
    copies[r] = copies_.emplace_back(std::make_unique<transports::cuda_copies>(*o.gpu, device, with)).get();
    spaces_.push_back(std::make_unique<transports::cuda_space>(*copies[r]));
    loop_.attach(*copies[r]);
  }
  world_ = std::make_unique<transports::process_world>(copies);
  loop_.attach(*world_);
  std::vector<std::uint64_t> made(o.ranks);
  for (std::uint64_t& i : made) i = transports::this_process({}).incarnation;
  const runtime::incarnations incarnations(std::move(made));
  for (rank_id r = 0; r < o.ranks; ++r) {
    rank_foundation on{loop_, (*world_)[r], &disk_, incarnations};
    on.has = o.gpu == nullptr ? machine::without_gpu() : machine::with_gpu(*o.gpu, copies[r]->device());
    ranks_.push_back(std::make_unique<rank>(std::move(on), o.settings));
  }
}

one_process::~one_process() {
  // Work in progress, such as a rehearsal, is destroyed with its buffers. So it is abandoned first, and copies are waited for.
  for (const auto& r : ranks_) r->abandon_rehearsals();
  for (const auto& c : copies_) c->drain();
  ranks_.clear();
  loop_.detach(*world_);
  world_.reset();
  for (const auto& c : copies_) loop_.detach(*c);
}

namespace {

task<> all_of(one_process& job, const std::function<task<>(rank&)>& program) {
  runtime::scope& here = co_await runtime::this_scope;
  runtime::scope working(here);
  for (rank_id r = 0; r < job.size(); ++r) working.spawn(program(job[r]));
  co_await working.join();
}

}  // namespace

void one_process::run(const std::function<task<>(rank& self)>& program) { runtime::run(loop_, all_of(*this, program)); }

void one_process::settle(std::chrono::nanoseconds limit) {
  run([limit](rank& self) { return self.settle(limit); });
}

std::vector<tuning::validator> gpu_validators(const transports::cuda_driver& gpu) {
  std::vector<std::string> devices;
  for (const auto& d : gpu.devices())
    devices.push_back(fmt::format("{} sm_{} {} MiB reaches {} NVLink {} {}", d.name, d.compute_capability,
                                  d.memory_bytes >> 20U, fmt::join(d.peers, "+"), fmt::join(d.nvlink, "+"),
                                  d.ipc ? "IPC" : "no IPC"));
  return {{"PARLEY_GPUS", fmt::format("{}", fmt::join(devices, "; "))},
          {"PARLEY_CUDA", fmt::format("{}/{}", gpu.driver_version(), gpu.runtime_version())}};
}

}  // namespace parley::ops

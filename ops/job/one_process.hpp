#pragma once
/// All ranks of a job in this process and thread: for many ranks on one GPU, and for trying out a program without processes.
///
///     one_process job({.ranks = 8, .gpu = &driver});
///     job.run([](rank& self) { return rank_main(self); });          // runs all ranks concurrently, to their ends
///     job.gpu(3)->after(activation, stream);                        // rank 3's copies; null without a GPU
///
/// Actors and ops are those of a job of processes; only the link differs (transports/in_process/process_world.hpp). Ranks take the GPU's
/// devices in turn. The first rank that throws ends all ranks, and `run` throws its exception. `run` may be called again.
#include <parley/cuda_copies.hpp>
#include <parley/cuda_space.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/transports/files/file_storage.hpp>
#include <parley/transports/in_process/process_world.hpp>

#include <functional>
#include <memory>
#include <vector>

namespace parley::ops {

class one_process {
 public:
  struct options {
    rank_id ranks = 1;
    rank_settings settings{};
    transports::cuda_driver* gpu = nullptr;  ///< null: buffers lie in host memory only
    transports::cuda_copies::options copies{};
    unsigned compute_threads = 1;  ///< shared by all ranks
  };
  explicit one_process(const options& o);
  one_process(const one_process&) = delete;
  one_process& operator=(const one_process&) = delete;
  ~one_process();

  rank_id size() const noexcept { return static_cast<rank_id>(ranks_.size()); }
  rank& operator[](rank_id r) { return *ranks_.at(r); }
  runtime::reactor& loop() noexcept { return loop_; }
  transports::cuda_copies* gpu(rank_id r) noexcept { return copies_.empty() ? nullptr : copies_.at(r).get(); }
  /// The memory of rank r's GPU, for `.memory` of its ops. It lives as long as the ranks. Null without a GPU.
  transports::cuda_space* gpu_memory(rank_id r) noexcept { return spaces_.empty() ? nullptr : spaces_.at(r).get(); }
  const runtime::link& wire(rank_id r) noexcept { return (*world_)[r]; }

  void run(const std::function<runtime::task<>(rank& self)>& program);
  /// Waits until the ranks have received all messages that they need from each other; see `rank::settle`.
  void settle(std::chrono::nanoseconds limit);

 private:
  runtime::reactor loop_;
  transports::file_storage disk_;
  std::vector<std::unique_ptr<transports::cuda_copies>> copies_;
  std::vector<std::unique_ptr<transports::cuda_space>> spaces_;
  std::unique_ptr<transports::process_world> world_;
  std::vector<std::unique_ptr<rank>> ranks_;
};

/// Validators of results for buffers on GPUs, in addition to `machine_validators`: the devices, the pairs of devices that reach each other
/// and how, whether other processes can access their memory, and the versions of CUDA.
std::vector<tuning::validator> gpu_validators(const transports::cuda_driver& gpu);

}  // namespace parley::ops

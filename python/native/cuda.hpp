#pragma once
/// The GPU of a rank, for ops whose buffers lie in its memory.
#include "buffers.hpp"
#include "ranks.hpp"

#include <parley/registered_memory.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace parley::python {

/// Sets the options of a job for `device`: `cpu`: no GPU; `cuda`: the ranks of a host take its GPUs in turn; `cuda:1`: that one. Throws
/// `bad_argument`, or `unavailable` with the reason.
void choose_gpu(ops::job_options& o, const std::string& device);

/// Asks CUDA for as many queues as there are, unless the program has set their number or has used CUDA already.
void ask_for_queues();

/// A stream of the program: a number, or an object that has one (`cuda_stream` of torch, `ptr` of CuPy, `__cuda_stream__`). Null for None.
runtime::device_stream stream_of(nb::handle stream);

/// The stream into which torch or CuPy launch work now; null: CUDA's default stream.
transports::cuda_stream current_stream(int device);

/// The GPU of one rank.
class rank_gpu {
 public:
  /// Of the job, which must outlive it.
  explicit rank_gpu(ops::job& job) noexcept : job_(job) {}
  rank_gpu(const rank_gpu&) = delete;
  rank_gpu& operator=(const rank_gpu&) = delete;
  ~rank_gpu();
  transports::cuda_space& space() const noexcept { return *job_.gpu_memory(); }
  transports::cuda_copies& copies() const noexcept { return *job_.gpu(); }
  /// Messages of the buffer come after the work in `stream`; null: after the work that has been given to its owner's current stream.
  void after_producer(const buffer& b, runtime::device_stream stream);

 private:
  ops::job& job_;
  transports::cuda_stream stream_ = nullptr;  // waits for the streams of producers; made at the first use
};

/// Throws `unavailable` if streams of the process share so few queues that one that waits could hold up the others.
void check_queues(const rank_gpu& gpu);

/// Where the buffers of an op lie: on its rank's GPU, or in host memory.
class op_memory {
 public:
  op_memory() noexcept = default;
  op_memory(const op_memory&) = delete;
  op_memory(op_memory&&) noexcept = default;
  op_memory& operator=(const op_memory&) = delete;
  op_memory& operator=(op_memory&&) = delete;
  ~op_memory();
  /// `device`: `cpu` or `cuda`. Throws `bad_argument` that names the op.
  op_memory(const rank_home& rank, const std::string& device, const std::string& op);
  bool is_gpu() const noexcept { return gpu_ != nullptr; }
  /// For the options of ops. Null: host memory.
  runtime::memory_space* space() const noexcept;
  /// Throws `bad_argument` if the buffer lies on another GPU, or on a GPU and the op is for host memory.
  void check(const buffer& b, const char* what) const;
  /// Before a call: see `rank_gpu::after_producer`. Does nothing for host memory.
  void after_producer(const buffer& b, runtime::device_stream stream) const {
    if (gpu_ != nullptr) gpu_->after_producer(b, stream);
  }
  using registration = std::function<actors::registered_memory(std::span<std::byte>)>;
  /// Lets peers write into the buffer's whole allocation, and read it, which `put`, `get` and `nccl` need. `registers` runs once for each
  /// allocation; if it throws `unavailable`, messages of that memory run other configs.
  void let_peers_in(const buffer& b, const registration& registers);

 private:
  struct allocation {
    std::uint64_t id;  // CUDA's own: another one after the memory was freed
    actors::registered_memory handle;
  };
  const rank_home* home_ = nullptr;
  rank_gpu* gpu_ = nullptr;
  std::map<std::uintptr_t, allocation> registered_;
};

}  // namespace parley::python

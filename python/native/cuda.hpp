#pragma once
/// The GPU of a rank, for ops whose buffers lie in its memory.
#include "buffers.hpp"
#include "ranks.hpp"

#include <parley/dataflow.hpp>
#include <parley/p2p.hpp>
#include <parley/registered_memory.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

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

  /// In which batches of streams run, one for all ops, so that those that share memory run in their order.
  const std::shared_ptr<runtime::dataflow>& flow_of_streams(const rank_home& where);
  /// A call that was started with a stream, by an op whose batches run in the flow or by another one, uses the memory.
  struct use {
    std::span<const std::byte> memory;
    bool sends;
    bool in_flow;
    std::uint64_t stream_waits;        ///< of the rank when the call began
    std::shared_ptr<const bool> over;  ///< its `device_end` sets it
  };
  void note(use u);
  template <class Is>
  bool any_use(std::span<const std::byte> memory, const Is& is_it) const {
    return std::any_of(uses_.begin(), uses_.end(), [&](const use& u) {
      const bool apart =
          u.memory.data() + u.memory.size() <= memory.data() || memory.data() + memory.size() <= u.memory.data();
      return !apart && !*u.over && is_it(u);
    });
  }

 private:
  std::shared_ptr<runtime::dataflow> flow_;
  std::vector<use> uses_;
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
  op_memory(rank_home& rank, const std::string& device, const std::string& op);
  bool is_gpu() const noexcept { return gpu_ != nullptr; }
  /// For the options of ops. Null: host memory.
  runtime::memory_space* space() const noexcept;
  /// Throws `bad_argument` if the buffer lies on another GPU, or on a GPU and the op is for host memory.
  void check(const buffer& b, const char* what) const;
  /// Before a call: see `rank_gpu::after_producer`. First waits for calls of streams that use the memory, because a copy that starts
  /// meanwhile would not wait for the stream's later work. Does nothing for host memory. With a `hold`.
  void after_producer(const buffer& b, runtime::device_stream stream) const;
  /// Before a batch of a stream. A send that starts follows all work that was noted for its memory. If that has work of a stream that
  /// waits for this send, neither goes on. So once streams wait, the memory of a send in flight is noted no more.
  void until_sent(const ops::p2p_operation& o) const;
  using registration = std::function<actors::registered_memory(std::span<std::byte>)>;
  /// Lets peers write into the buffer's whole allocation, and read it, which `put`, `get` and `nccl` need. `registers` runs once for each
  /// allocation; if it throws `unavailable`, messages of that memory run other configs.
  void let_peers_in(const buffer& b, const registration& registers);

 private:
  struct allocation {
    std::uint64_t id;  // CUDA's own: another one after the memory was freed
    actors::registered_memory handle;
  };
  rank_home* home_ = nullptr;
  rank_gpu* gpu_ = nullptr;
  std::map<std::uintptr_t, allocation> registered_;
};

}  // namespace parley::python

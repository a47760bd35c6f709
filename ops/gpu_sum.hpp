#pragma once
/// All-reduces of floats in device memory, by NCCL and by a kernel of parley's own, as configs of a `symmetric_op`: each member
/// calls it, and leases say which config all of them run.
///
///     gpu_world_source::options who{.members = 2, .place = self.id(), .kernel_bytes = 1_MiB};
///     auto source = std::make_shared<gpu_world_source>(nccl, *here.gpu(), who);
///     std::shared_ptr<communicator> world = co_await connect_all(self, *source, "gradients");
///     auto sums = self.declare(symmetric_op{.name = "gradients", .configs = {nccl_sum(), kernel_sum()}, .over = world,
///                                           .rehearse = source, .memory = &space});
///     co_await sums.run(gradients);                                                       // in place
///
/// The kernel reads the other members' memory, which takes GPUs of one host that reach each other; it is for small sums. Where one of
/// them does not its rehearsal fails on all, with the reason, and it is no candidate. A user who wants it left out on some ranks
/// says so with `symmetric_op::capable`: then it runs nowhere.
///
/// Rehearsals run over communicators of their own, each from a fresh id. A call comes after what `cuda_copies::after` said of its
/// buffer and ends when the sum is there; no thread waits in CUDA or NCCL. One whose deadline passes or whose member has died
/// aborts the communicator it runs over: its kernels end, the call throws what ended it, and later calls throw
/// `unavailable` until the user has made another one. Members of one process or of one GPU cannot be connected: NCCL says so.
#include <parley/ops/symmetric_config.hpp>
#include <parley/transports/cuda_copies.hpp>
#include <parley/transports/nccl_library.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

class rank;

/// Memory of communicators that have ended. CUDA frees it once the device is idle, which it may not be before this thread has
/// aborted another communicator: it is freed with the source.
struct gpu_world_remains {
  explicit gpu_world_remains(transports::cuda_driver& d) noexcept : driver(d) {}
  ~gpu_world_remains() {
    for (void* const m : mapped) driver.close_imported(m);
  }
  gpu_world_remains(const gpu_world_remains&) = delete;
  gpu_world_remains& operator=(const gpu_world_remains&) = delete;
  transports::cuda_driver& driver;
  std::vector<void*> mapped;
  std::vector<transports::cuda_memory> memory;
};

/// A sum of all members' floats, in place.
struct gpu_sum {
  enum class way : std::uint8_t { nccl, kernel } how = way::nccl;
  std::span<std::byte> floats;
  unsigned blocks = 0;  ///< of the kernel
  static gpu_sum by_nccl(std::span<std::byte> floats) { return {way::nccl, floats, 0}; }
  static gpu_sum by_kernel(std::span<std::byte> floats, unsigned blocks) { return {way::kernel, floats, blocks}; }
  friend bool operator==(const gpu_sum& a, const gpu_sum& b) noexcept {
    return a.how == b.how && a.blocks == b.blocks && a.floats.data() == b.floats.data() &&
           a.floats.size() == b.floats.size();
  }
};

/// One communicator of NCCL, with a stream of its own and, where asked for, memory that the other members reach.
class gpu_world final : public communicator {
 public:
  struct options {
    unsigned members = 1;
    unsigned place = 0;            ///< of this rank among the members
    std::size_t kernel_bytes = 0;  ///< the largest sum that the kernel can do; 0: none
  };
  /// Owns `handle`, which may be connecting yet. Library and copies outlive it.
  gpu_world(transports::nccl_library& library, transports::cuda_copies& copies, transports::nccl_communicator handle,
            options o, std::shared_ptr<gpu_world_remains> remains);
  ~gpu_world() override;
  /// Connects, with all others. Throws `device_failed` with NCCL's words, and what cancelled it. Where a member's memory cannot be reached
  /// the kernel's sums are `unavailable` on all, with the reason, and NCCL's go on.
  runtime::task<> meet();
  /// Calls are enqueued in the order of calling, which is the same on all members. `replayed`: from a capture of just this,
  /// which is made by the first one and kept.
  runtime::task<> run(gpu_sum what, bool replayed = false);
  /// Into a stream that is being captured; each replay is a call. Captures end before the communicator does.
  runtime::task<> capture(gpu_sum what, transports::cuda_stream stream);
  void abort() noexcept override;
  bool aborted() const noexcept override { return handle_ == nullptr; }

 private:
  struct captured_sum {
    gpu_sum what;
    transports::cuda_capture graph;
  };
  void check(const gpu_sum& what);
  runtime::task<> enqueue(gpu_sum what, transports::cuda_stream stream);
  runtime::task<> replay(gpu_sum what);
  runtime::task<> ready();
  struct box_address {
    transports::cuda_ipc_handle handle;
    std::uint64_t offset = 0;
  };
  runtime::task<> exchange_boxes();
  box_address make_box(std::size_t stage_bytes);
  std::byte* reach(const box_address& theirs);
  runtime::task<std::vector<float>> added_up(std::vector<float> numbers);
  runtime::task<> move(std::span<std::byte> to, std::span<const std::byte> from);
  void see_to_its_end() noexcept;
  std::uint32_t& stop() noexcept { return *reinterpret_cast<std::uint32_t*>(stop_.bytes().data()); }

  transports::nccl_library& library_;
  transports::cuda_copies& copies_;
  options options_;
  transports::nccl_communicator handle_;
  transports::cuda_stream stream_;
  bool calling_ = false;
  transports::cuda_memory stop_;
  transports::cuda_memory box_;
  std::vector<void*> mapped_;
  std::shared_ptr<gpu_world_remains> remains_;
  transports::peer_boxes boxes_;
  std::string no_kernel_;  // why, where some member lacks it
  std::vector<captured_sum> captures_;
};

class gpu_world_source final : public communicator_source {
 public:
  using options = gpu_world::options;
  gpu_world_source(transports::nccl_library& library, transports::cuda_copies& copies, options o)
      : library_(library), copies_(copies), options_(o),
        remains_(std::make_shared<gpu_world_remains>(copies.driver())) {}
  std::vector<std::byte> make_id() override;
  /// Ends when all members have called it. Throws as `gpu_world::meet`; cancelling gives up.
  runtime::task<std::shared_ptr<communicator>> connect(std::vector<std::byte> id) override;

 private:
  transports::nccl_library& library_;
  transports::cuda_copies& copies_;
  options options_;
  std::shared_ptr<gpu_world_remains> remains_;
};

/// A communicator of all ranks of the job: rank 0 makes the id and sends it around, as messages of an op `<name>_id`. All call it.
/// Throws as `gpu_world_source::connect`.
runtime::task<std::shared_ptr<communicator>> connect_all(rank& self, gpu_world_source& source, std::string name);

/// By NCCL, over the call's communicator.
symmetric_config_ptr nccl_sum();
/// The same from a CUDA graph, which takes the host less than half of the time: the first call of a buffer captures it, later ones
/// replay that; the latest 64 buffers are kept. For programs in which all members call with their buffers in the same order, as in
/// steps that are alike: a member that captures while another replays may wait for it until the call's deadline.
symmetric_config_ptr nccl_graph_sum();
/// By parley's kernel, of 1 to 64 blocks.
symmetric_config_ptr kernel_sum(unsigned blocks = 32);

}  // namespace parley::ops

#pragma once
/// All-reduces of floats in device memory, by NCCL or by kernels of parley, as configs of a `symmetric` operation: every member makes the
/// call, and leases say which config all members run.
///
///     gpu_world_source::options with{.nccl = &nccl, .kernel_bytes = 1_MiB};
///     auto source = std::make_shared<gpu_world_source>(self, "gradients", *here.gpu(), with);
///     std::shared_ptr<communicator> world = co_await source->connect_all();
///     symmetric sums(self, {.name = "gradients",
///                           .configs = default_first(*world, {configs::nccl_sum(), configs::kernel_sum(), configs::gathered_sum()}),
///                           .memory = here.gpu_memory(), .communicator = world, .rehearse = source});
///     co_await sums.run(gradients);                                                       // in place
///
/// | config | needs | how |
/// |---|---|---|
/// | `nccl_sum`, `nccl_graph_sum` | NCCL, and a process and a GPU for each member | NCCL's all-reduce, called or replayed |
/// | `kernel_sum` | a process and a GPU for each member; GPUs of one host that reach each other | kernels that wait for each other |
/// | `gathered_sum` | as `kernel_sum`, but members may share a process or a GPU | messages, and a kernel that waits for no member |
///
/// `kernel_sum` is for small sums: one kernel runs on each GPU, and these kernels wait for each other. For `gathered_sum` each member
/// copies its floats into its box and announces that by a message. When all members have done so, a kernel on each adds up all boxes.
///
/// Members exchange their capabilities by messages of an op `<name>_id`. If one member lacks something that a config needs, the config is
/// `unavailable` on all members, with the reason: its rehearsal fails, and it is no candidate. To exclude a config on some ranks, use
/// `symmetric_options::can_run` or a mask; the config then runs nowhere.
///
/// Each rehearsal runs over its own communicator, which is made from a fresh id. A call runs after the work that `cuda_copies::after` noted
/// for its buffer, and ends when the sum is in the buffer. No thread waits in CUDA or NCCL.
///
/// Failure: if the deadline of a call passes or a member has died, the call aborts its communicator. The kernels of parley then end soon.
/// The kernels of NCCL end once no stream waits for a message, after 10 s at most (device_rest.hpp); if NCCL was still connecting, up to 30
/// s later. The call throws the error that ended it. Later calls throw `unavailable` until the user has made another communicator.
#include <parley/cuda_copies.hpp>
#include <parley/symmetric_config.hpp>
#include <parley/transfer.hpp>
#include <parley/transports/nccl/nccl_library.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

class rank;
struct gpu_world_remains;
template <class T>
class all_exchange;

/// One sum of all members' floats, in place.
struct gpu_sum {
  enum class way : std::uint8_t { nccl, kernel, gathered } how = way::nccl;
  std::span<std::byte> floats;
  unsigned blocks = 0;  ///< blocks of the kernel
  static gpu_sum by_nccl(std::span<std::byte> floats) { return {way::nccl, floats, 0}; }
  static gpu_sum by_kernel(std::span<std::byte> floats, unsigned blocks) { return {way::kernel, floats, blocks}; }
  static gpu_sum by_gathering(std::span<std::byte> floats, unsigned blocks) { return {way::gathered, floats, blocks}; }
  friend bool operator==(const gpu_sum& a, const gpu_sum& b) noexcept {
    return a.how == b.how && a.blocks == b.blocks && a.floats.data() == b.floats.data() &&
           a.floats.size() == b.floats.size();
  }
};

/// The communicator of all ranks of a job. If available, it has an NCCL communicator, and boxes in device memory that all ranks reach.
class gpu_world final : public communicator {
 public:
  struct options {
    transports::nccl_library* nccl = nullptr;  ///< null: no NCCL, for the reason in `no_nccl`
    std::string no_nccl = "no NCCL was given to it";
    std::size_t kernel_bytes = 0;  ///< of the largest sum by kernels; 0: none. A box has four times that size.
  };
  /// `number` must differ from the number of every other world that uses these messages. The copies must outlive the world.
  gpu_world(transports::cuda_copies& copies, options o, transfer messages, std::uint32_t number,
            std::shared_ptr<gpu_world_remains> remains);
  ~gpu_world() override;
  /// Connects this member with all others. Throws `unavailable` if no way to sum is available, or the error that ended the meeting.
  runtime::task<> meet(rank& self, transports::nccl_id id);
  /// Makes one call. All members must make their calls in the same order. `replayed`: replays a captured graph of exactly this sum; the
  /// first such call captures and keeps the graph.
  runtime::task<> run(gpu_sum what, bool replayed = false);
  /// Captures the sum in `stream`, which is being captured; each replay is then a call. All captures must end before the communicator is
  /// destroyed.
  runtime::task<> capture(gpu_sum what, transports::cuda_stream stream);
  void abort() noexcept override;
  bool aborted() const noexcept override { return aborted_; }
  runtime::task<> in_turn(runtime::device_stream stream, const std::function<void()>& launch) override;
  /// The reason why the members cannot sum in this way, the same text on all members; empty: they can.
  const std::string& lacks(gpu_sum::way how) const noexcept;

 private:
  struct captured_sum {
    gpu_sum what;
    transports::cuda_capture graph;
  };
  struct introduction;
  struct verdict;
  void check(const gpu_sum& what) const;
  void raise_if_aborted() const;
  runtime::task<> own_turn();
  enum class place : std::uint8_t { stream, capture };
  runtime::task<> enqueue(gpu_sum what, transports::cuda_stream into, place where);
  runtime::task<> put(gpu_sum what, transports::cuda_stream into);
  void order_behind(std::span<const std::byte> floats);
  void order_behind_latest(transports::cuda_stream stream);
  void note_latest(transports::cuda_stream stream);
  void launch_in_turn(transports::cuda_stream stream, const std::function<void()>& launch);
  runtime::task<> replay(gpu_sum what);
  runtime::task<> gather(gpu_sum what);
  runtime::task<> ready();
  runtime::task<> ended(transports::cuda_stream stream);
  introduction introduce(rank& self);
  void make_box();
  void judge(std::span<const introduction> all);
  std::string reach_all(rank& self, std::span<const introduction> all);
  std::byte* reach(rank& self, const introduction& theirs, bool in_this_process);
  runtime::task<std::string> connect_nccl(transports::nccl_id id, all_exchange<verdict>& others);
  runtime::task<> move(std::span<std::byte> to, std::span<const std::byte> from);
  runtime::task<> until_its_end();
  std::uint32_t& stop() noexcept { return *reinterpret_cast<std::uint32_t*>(stop_.bytes().data()); }

  transports::cuda_copies& copies_;
  options options_;
  transfer messages_;
  std::uint32_t number_;
  transports::nccl_communicator handle_ = nullptr;
  transports::cuda_stream stream_ = nullptr;  // of NCCL's and other kernels that wait for each other, if any
  // Calls take turns in the order in which they were made, which is the same on all members. The two numbers count the calls that were made
  // and the turns that have ended.
  std::uint64_t asked_ = 0;
  std::uint64_t served_ = 0;
  transports::cuda_stream latest_in_ = nullptr;  // stream of the latest call
  transports::cuda_copies::moment latest_;       // work of that call; null for a call in `stream_`: noted when needed
  bool aborted_ = false;
  bool has_called_nccl_ = false;
  transports::nccl_library::nothing_more nothing_more_;  // of the aborted communicator, if a call was ever made on it
  runtime::scope* telling_ = nullptr;
  std::uint32_t gathered_ = 0;  // number of gathered calls
  transports::cuda_memory stop_;
  transports::cuda_memory box_;
  std::vector<void*> mapped_;
  std::shared_ptr<gpu_world_remains> remains_;
  transports::peer_boxes boxes_;
  std::string no_nccl_;  // why NCCL is missing; empty: all members have NCCL
  std::string no_kernel_;
  std::string no_boxes_;
  std::vector<captured_sum> captures_;
  // Kept if its call fails: NCCL may still put the call into its stream.
  std::optional<transports::capture_stream> capturing_;
};

class gpu_world_source final : public communicator_source {
 public:
  using options = gpu_world::options;
  /// Construct it on all ranks; it declares the op `<name>_id`. The NCCL library and the copies must outlive it. Masks of `nccl`, `ipc` and
  /// `peer_access` (parley/machine.hpp) also apply here.
  gpu_world_source(rank& self, const std::string& name, transports::cuda_copies& copies, options o);
  std::vector<std::byte> make_id() override;
  /// Ends when all members have called it. Throws what `gpu_world::meet` throws. Cancelling it gives up the meeting.
  runtime::task<std::shared_ptr<communicator>> connect(std::vector<std::byte> id) override;
  /// Like `connect`, with an id that rank 0 makes and sends to all others.
  runtime::task<std::shared_ptr<communicator>> connect_all();

 private:
  rank& self_;
  transports::cuda_copies& copies_;
  options options_;
  transfer messages_;
  std::uint32_t made_ = 0;  // number of ids made
  std::shared_ptr<gpu_world_remains> remains_;
};

/// Returns the list with a new default: the first config that all members of `over` can run is moved to the front. Throws `unavailable` if
/// there is no such config.
std::vector<symmetric_config_ptr> default_first(const communicator& over, std::vector<symmetric_config_ptr> configs);

}  // namespace parley::ops

namespace parley::configs {

/// NCCL's all-reduce over the call's communicator.
ops::symmetric_config_ptr nccl_sum();
/// NCCL's all-reduce from a CUDA graph. A replay costs the host less than half of the time of a call. The first call with a buffer captures
/// a graph, later calls replay it; the graphs of the 64 buffers captured last are kept. For programs in which all members use their buffers
/// in the same order, as in steps that repeat. Otherwise a member that captures may wait for a member that replays, until the call's
/// deadline.
ops::symmetric_config_ptr nccl_graph_sum();
/// Sums by kernels of parley, with 1 to 64 blocks each.
ops::symmetric_config_ptr kernel_sum(unsigned blocks = 32);
ops::symmetric_config_ptr gathered_sum(unsigned blocks = 32);

}  // namespace parley::configs

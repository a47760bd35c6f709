#pragma once
/// All-reduces of floats in device memory, by NCCL and by kernels of parley's own, as configs of a `symmetric` operation: each member
/// calls it, and leases say which config all of them run.
///
///     gpu_world_source::options with{.nccl = &nccl, .kernel_bytes = 1_MiB};
///     auto source = std::make_shared<gpu_world_source>(self, "gradients", *here.gpu(), with);
///     std::shared_ptr<communicator> world = co_await source->connect_all();
///     symmetric sums(self, {.name = "gradients",
///                           .configs = default_first(*world, {configs::nccl_sum(), configs::kernel_sum(), configs::gathered_sum()}),
///                           .memory = here.gpu_memory(), .communicator = world, .rehearse = source});
///     co_await sums.run(gradients);                                                       // in place
///
/// | config | is there where | how |
/// |---|---|---|
/// | `nccl_sum`, `nccl_graph_sum` | each member has NCCL, and a process and a GPU to itself | NCCL's all-reduce, called or replayed |
/// | `kernel_sum` | the same without NCCL; GPUs of one host that reach each other | one kernel on each, which wait for each other; for small sums |
/// | `gathered_sum` | members share a process or a GPU, too; else as `kernel_sum` | each copies its floats into a box and says so by a message; when all have, each adds up all boxes by a kernel that waits for nobody |
///
/// Members tell each other by messages of an op `<name>_id` what they have. What one of them lacks is `unavailable` on all, with the
/// reason, so that its rehearsal fails there and it is no candidate. A user who wants a config left out on some ranks says so with
/// `symmetric_options::can_run` or masks it: then it runs nowhere.
///
/// Rehearsals run over communicators of their own, each from a fresh id. A call comes after what `cuda_copies::after` said of its
/// buffer and ends when the sum is there; no thread waits in CUDA or NCCL. One whose deadline passes or whose member has died
/// aborts the communicator it runs over: its kernels end, NCCL's once no stream waits for a message, or after 10 s (device_rest.hpp),
/// and 30 s later at most where NCCL was still connecting; the call throws what ended it, and later calls throw `unavailable` until the
/// user has made another one.
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
template <class T>
class said_by_all;

/// Memory of communicators that have ended. CUDA frees it once the device is idle, which it may not be before this thread has aborted
/// another communicator, and other members may still read it: it is freed with the source, which its op keeps until the rank ends. The
/// next communicator takes a box from here, and writes to it when all have met: by then nobody uses one of before.
struct gpu_world_remains {
  explicit gpu_world_remains(transports::cuda_driver& d) noexcept : driver(d) {}
  ~gpu_world_remains() {
    for (void* const m : mapped) driver.close_imported(m);
  }
  gpu_world_remains(const gpu_world_remains&) = delete;
  gpu_world_remains& operator=(const gpu_world_remains&) = delete;
  transports::cuda_driver& driver;
  std::vector<void*> mapped;
  std::vector<transports::cuda_memory> boxes;
  std::vector<transports::cuda_memory> memory;
};

/// A sum of all members' floats, in place.
struct gpu_sum {
  enum class way : std::uint8_t { nccl, kernel, gathered } how = way::nccl;
  std::span<std::byte> floats;
  unsigned blocks = 0;  ///< of the kernel
  static gpu_sum by_nccl(std::span<std::byte> floats) { return {way::nccl, floats, 0}; }
  static gpu_sum by_kernel(std::span<std::byte> floats, unsigned blocks) { return {way::kernel, floats, blocks}; }
  static gpu_sum by_gathering(std::span<std::byte> floats, unsigned blocks) { return {way::gathered, floats, blocks}; }
  friend bool operator==(const gpu_sum& a, const gpu_sum& b) noexcept {
    return a.how == b.how && a.blocks == b.blocks && a.floats.data() == b.floats.data() &&
           a.floats.size() == b.floats.size();
  }
};

/// All ranks of a job, as far as it is there with a communicator of NCCL's, and with boxes in device memory that all of them reach.
class gpu_world final : public communicator {
 public:
  struct options {
    transports::nccl_library* nccl = nullptr;  ///< null: why there is none stands in `no_nccl`
    std::string no_nccl = "no NCCL was given to it";
    std::size_t kernel_bytes = 0;  ///< the largest sum that kernels can do; 0: none. A box takes four times as much.
  };
  /// `number` is that of no other world of these messages. The copies outlive it.
  gpu_world(transports::cuda_copies& copies, options o, transfer messages, std::uint32_t number,
            std::shared_ptr<gpu_world_remains> remains);
  ~gpu_world() override;
  /// Meets all others. Throws `unavailable` where there is no way to sum, and what ended it.
  runtime::task<> meet(rank& self, transports::nccl_id id);
  /// Calls are made in the order of calling, which is the same on all members. `replayed`: from a capture of just this,
  /// which is made by the first one and kept.
  runtime::task<> run(gpu_sum what, bool replayed = false);
  /// Into a stream that is being captured; each replay is a call. Captures end before the communicator does.
  runtime::task<> capture(gpu_sum what, transports::cuda_stream stream);
  void abort() noexcept override;
  bool aborted() const noexcept override { return aborted_; }
  runtime::task<> in_turn(runtime::device_stream stream, const std::function<void()>& launch) override;
  /// Why its members cannot sum so, the same on all of them; empty: they can.
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
  runtime::task<std::string> connect_nccl(transports::nccl_id id, said_by_all<verdict>& others);
  runtime::task<> move(std::span<std::byte> to, std::span<const std::byte> from);
  runtime::task<> until_its_end();
  std::uint32_t& stop() noexcept { return *reinterpret_cast<std::uint32_t*>(stop_.bytes().data()); }

  transports::cuda_copies& copies_;
  options options_;
  transfer messages_;
  std::uint32_t number_;
  transports::nccl_communicator handle_ = nullptr;
  transports::cuda_stream stream_ = nullptr;  // of kernels that wait for each other, where there are any
  // Calls that take turns, in the order in which they were made, which is the same on all members.
  std::uint64_t asked_ = 0;
  std::uint64_t served_ = 0;
  transports::cuda_stream latest_in_ = nullptr;  // the latest call's
  transports::cuda_copies::moment latest_;       // of that; null where it is in our own, and can still be noted
  bool aborted_ = false;
  bool has_called_nccl_ = false;
  transports::nccl_library::nothing_more nothing_more_;  // of the communicator that was aborted, if it was ever called
  runtime::scope* telling_ = nullptr;
  std::uint32_t gathered_ = 0;  // calls
  transports::cuda_memory stop_;
  transports::cuda_memory box_;
  std::vector<void*> mapped_;
  std::shared_ptr<gpu_world_remains> remains_;
  transports::peer_boxes boxes_;
  std::string no_nccl_;  // why, where some member lacks it
  std::string no_kernel_;
  std::string no_boxes_;
  std::vector<captured_sum> captures_;
  std::optional<transports::capture_stream>
      capturing_;  // of a call that failed it stays: NCCL may put the call there later
};
class gpu_world_source final : public communicator_source {
 public:
  using options = gpu_world::options;
  /// On all ranks; declares `<name>_id`. Library and copies outlive it. A rank that is told to do without `nccl`, `ipc` or `peer_access`
  /// (parley/machine.hpp) has none of them here.
  gpu_world_source(rank& self, const std::string& name, transports::cuda_copies& copies, options o);
  std::vector<std::byte> make_id() override;
  /// Ends when all members have called it. Throws as `gpu_world::meet`; cancelling gives up.
  runtime::task<std::shared_ptr<communicator>> connect(std::vector<std::byte> id) override;
  /// The same with an id that rank 0 makes and sends around.
  runtime::task<std::shared_ptr<communicator>> connect_all();

 private:
  rank& self_;
  transports::cuda_copies& copies_;
  options options_;
  transfer messages_;
  std::uint32_t made_ = 0;  // ids
  std::shared_ptr<gpu_world_remains> remains_;
};

/// The same list, but that the first config, the default, is one that all members of `over` can run. Throws `unavailable` where none is.
std::vector<symmetric_config_ptr> default_first(const communicator& over, std::vector<symmetric_config_ptr> configs);

}  // namespace parley::ops

namespace parley::configs {

/// By NCCL, over the call's communicator.
ops::symmetric_config_ptr nccl_sum();
/// The same from a CUDA graph, which takes the host less than half of the time: the first call of a buffer captures it, later ones
/// replay that; the latest 64 buffers are kept. For programs in which all members call with their buffers in the same order, as in
/// steps that are alike: a member that captures while another replays may wait for it until the call's deadline.
ops::symmetric_config_ptr nccl_graph_sum();
/// By kernels of parley's, of 1 to 64 blocks.
ops::symmetric_config_ptr kernel_sum(unsigned blocks = 32);
ops::symmetric_config_ptr gathered_sum(unsigned blocks = 32);

}  // namespace parley::configs

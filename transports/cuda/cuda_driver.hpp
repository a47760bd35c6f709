#pragma once
/// The thin layer over CUDA: all that the GPU planes ask of a driver, and nothing that a CPU cannot compile. The real one is in
/// `parley::cuda` (parley/cuda_runtime.hpp); tests have a fake that runs on virtual time.
///
///     cuda_driver& gpu = …;
///     auto buffer = cuda_memory::on_device(gpu, /*device=*/0, 1_MiB);
///     gpu.copy(buffer.bytes().data(), from, 1_MiB, stream);     // errc::none, or what `gpu.fault()` says in words
///     gpu.record(event, stream);
///     while (gpu.query(event) == errc::pending) …
///
/// Everything is enqueued; nothing here waits for a stream or a device. Functions that run with every transfer answer an
/// `errc`: `device_failed` when CUDA refused, and `fault()` then has CUDA's name and text of the latest error. An error that
/// CUDA calls sticky ends everything on that device in this process: each later call answers it again. What is made or
/// freed, outside of transfers, throws `failure` (`unavailable`). One thread, unless it says otherwise.
#include <parley/error.hpp>
#include <parley/runtime/dataflow/memory_pieces.hpp>
#include <parley/runtime/summand.hpp>

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// CUDA's own types: a cudaStream_t is a CUstream_st*, whoever made it.
struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace parley::transports {

using cuda_stream = CUstream_st*;
using cuda_event = CUevent_st*;
using cuda_graph = CUgraphExec_st*;

/// What the driver says of one GPU.
struct cuda_device {
  std::string name;
  int compute_capability = 0;  ///< 90 for sm_90
  std::uint64_t memory_bytes = 0;
  int multiprocessors = 0;
  std::string uuid;
  std::vector<int> peers{};   ///< devices whose memory it reaches directly
  std::vector<int> nvlink{};  ///< those among them that it has a link with, rather than a bus
  bool ipc = true;            ///< whether other processes may be given its memory
};

/// Where an address points, as the driver sees it: what it does not know, such as memory that was freed, is the host's to it.
struct memory_place {
  enum class kind : std::uint8_t { host, pinned, device } what = kind::host;
  int device = -1;
};

/// What another process needs to reach device memory. The handle names a whole allocation.
struct cuda_ipc_handle {
  std::array<std::byte, 64> bytes{};
  friend auto operator<=>(const cuda_ipc_handle&, const cuda_ipc_handle&) = default;
};
struct exported_memory {
  cuda_ipc_handle handle;
  std::uint64_t offset = 0;  ///< of the memory in its allocation
};

/// What a kernel needs to sum together with those of other GPUs. Each member has a box in its own memory, which the others
/// reach: flags and counters, then two stages that calls use in turn, and two for sums whose kernels do not wait (`add_up`).
struct peer_boxes {
  static constexpr unsigned most_members = 8;
  static constexpr unsigned most_blocks = 64;
  static constexpr std::size_t flag_bytes = sizeof(std::uint32_t) * most_members * most_blocks;
  static constexpr std::size_t head_bytes = flag_bytes + 256;  ///< with two words of the owner's own; stages begin here
  std::byte* box[most_members]{};                              ///< by place, as this process reaches them
  unsigned members = 0;
  unsigned place = 0;
  unsigned blocks = 0;
  std::uint32_t* calls = nullptr;  ///< in this member's memory: how many were made, and blocks that ended of the next
  std::size_t stage_bytes = 0;     ///< at least as large as what is summed
  const std::uint32_t* stop = nullptr;  ///< pinned; once it is not 0 the kernel ends, whatever the others do
};

/// Whether two pieces of memory have a byte in common.
inline bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

enum class pieces_way : std::uint8_t { gather, scatter };

class cuda_driver {
 public:
  virtual ~cuda_driver() = default;
  virtual const std::vector<cuda_device>& devices() const noexcept = 0;
  /// Versions of the driver and the runtime, such as `13000`.
  virtual int driver_version() const noexcept = 0;
  virtual int runtime_version() const noexcept = 0;
  /// How many streams of this process run beside each other on a device. Those beyond share queues: one that waits holds up others.
  virtual unsigned queues() const noexcept = 0;

  /// For this thread, where other libraries look for it. Nothing here needs it. Throws.
  virtual void make_current(int device) = 0;

  virtual cuda_stream make_stream(int device) = 0;
  virtual void destroy(cuda_stream s) noexcept = 0;
  virtual cuda_event make_event(int device) = 0;
  /// The same for one that also notes when: slower, for measuring.
  virtual cuda_event make_timed_event(int device) = 0;
  virtual void destroy(cuda_event e) noexcept = 0;
  virtual void* allocate(int device, std::size_t bytes) = 0;
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void release(void* memory, memory_place::kind what) noexcept = 0;

  virtual runtime::errc record(cuda_event e, cuda_stream after) noexcept = 0;
  /// What is enqueued into `s` from here on waits for the latest record of `e`.
  virtual runtime::errc wait(cuda_stream s, cuda_event e) noexcept = 0;
  /// `none` once all before the latest record has happened, `pending`, or `device_failed`.
  virtual runtime::errc query(cuda_event e) noexcept = 0;
  /// How long after one timed event the other one happened, once both have.
  virtual runtime::result<double> elapsed_ns(cuda_event from, cuda_event to) = 0;
  /// Between any two addresses that the stream's device reaches, host memory included.
  virtual runtime::errc copy(void* to, const void* from, std::size_t bytes, cuda_stream s) noexcept = 0;
  /// The same by a kernel of so many blocks, for device memory only.
  virtual runtime::errc copy_by_kernel(void* to, const void* from, std::size_t bytes, unsigned blocks,
                                       cuda_stream s) noexcept = 0;
  /// The sum of all members' floats, in place, in the order of their places, by one kernel on each GPU.
  virtual runtime::errc sum_with_peers(std::span<std::byte> floats, const peer_boxes& with, cuda_stream s) noexcept = 0;
  /// The sum of floats that lie in so many places, in their order, by one kernel of so many blocks, which waits for nobody. At most
  /// `peer_boxes::most_members` places, which the stream's device reaches.
  virtual runtime::errc add_up(std::span<std::byte> floats, std::span<const std::byte* const> parts, unsigned blocks,
                               cuda_stream s) noexcept = 0;
  /// Pieces of device memory into `packed`, one behind the other, or back from there, by a kernel.
  virtual runtime::errc move_pieces(void* packed, const runtime::memory_pieces& p, pieces_way way,
                                    cuda_stream s) noexcept = 0;
  /// into = into + from, number by number, by a kernel.
  virtual runtime::errc add(void* into, const void* from, std::size_t bytes, runtime::summand of,
                            cuda_stream s) noexcept = 0;
  /// What is enqueued into `s` from here on waits until the word at `at` has come to `value`, or beyond it, counted in a circle.
  /// The word lies in memory of the stream's device.
  virtual runtime::errc wait_value(cuda_stream s, const void* at, std::uint32_t value) noexcept = 0;
  /// Writes a word, which may lie in memory of another device, after all that is in `s`: whoever sees it sees that as well.
  virtual runtime::errc write_value(cuda_stream s, void* at, std::uint32_t value) noexcept = 0;
  /// What a device has written into a word of pinned memory.
  virtual std::uint32_t look_at(const std::uint32_t* word) noexcept {
    return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
  }
  /// What `s` gets from here on is captured instead of done, by whichever thread it comes.
  virtual runtime::errc begin_capture(cuda_stream s) noexcept = 0;
  /// What `s` has got since then, to be replayed as often as wanted. `unavailable` where something in it cannot be captured.
  virtual runtime::result<cuda_graph> end_capture(cuda_stream s) = 0;
  virtual runtime::errc replay(cuda_graph g, cuda_stream s) noexcept = 0;
  /// Also while it is being replayed.
  virtual void destroy(cuda_graph g) noexcept = 0;
  virtual memory_place place_of(const void* address) noexcept = 0;
  /// Whether memory of that device was allocated in a context that is none of this driver's: what is enqueued here does not reach it.
  virtual bool is_of_other_context(const void* address, int device) noexcept = 0;

  virtual runtime::result<exported_memory> export_memory(const void* address) = 0;
  /// The whole allocation, as it is mapped here.
  virtual runtime::result<std::span<std::byte>> import_memory(int device, const cuda_ipc_handle& handle) = 0;
  virtual void close_imported(void* memory) noexcept = 0;

  /// The latest error in words: `cudaErrorIllegalAddress: an illegal memory access was encountered, in cudaEventQuery`.
  virtual std::string fault() const = 0;
};

/// Memory of a device, or pinned memory of the host, owned.
class cuda_memory {
 public:
  cuda_memory() noexcept = default;
  cuda_memory(cuda_memory&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), bytes_(std::exchange(other.bytes_, {})), what_(other.what_) {}
  cuda_memory& operator=(cuda_memory&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(bytes_, other.bytes_);
    std::swap(what_, other.what_);
    return *this;
  }
  ~cuda_memory() {
    if (driver_ != nullptr && !bytes_.empty()) driver_->release(bytes_.data(), what_);
  }
  static cuda_memory on_device(cuda_driver& d, int device, std::size_t bytes) {
    return {d, bytes == 0 ? nullptr : d.allocate(device, bytes), bytes, memory_place::kind::device};
  }
  static cuda_memory pinned(cuda_driver& d, std::size_t bytes) {
    return {d, bytes == 0 ? nullptr : d.allocate_pinned(bytes), bytes, memory_place::kind::pinned};
  }
  /// Of device memory: addresses for CUDA, not for the processor.
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  cuda_memory(cuda_driver& d, void* at, std::size_t bytes, memory_place::kind what) noexcept
      : driver_(&d), bytes_(static_cast<std::byte*>(at), bytes), what_(what) {}
  cuda_driver* driver_ = nullptr;
  std::span<std::byte> bytes_;
  memory_place::kind what_ = memory_place::kind::host;
};

/// Whether memory of a device may be given to other processes, tried out.
inline runtime::result<> can_export(cuda_driver& d, int device) {
  try {
    const auto memory = cuda_memory::on_device(d, device, 1);
    const auto exported = d.export_memory(memory.bytes().data());
    return exported ? runtime::result<>() : exported.reason();
  } catch (const runtime::failure& f) {
    return f.reason();
  }
}

/// What was captured, owned.
class cuda_capture {
 public:
  cuda_capture(cuda_driver& d, cuda_graph graph) noexcept : driver_(&d), graph_(graph) {}
  cuda_capture(cuda_capture&& other) noexcept : driver_(other.driver_), graph_(std::exchange(other.graph_, nullptr)) {}
  cuda_capture& operator=(cuda_capture&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~cuda_capture() {
    if (graph_ != nullptr) driver_->destroy(graph_);
  }
  runtime::errc replay(cuda_stream s) const noexcept { return driver_->replay(graph_, s); }

 private:
  cuda_driver* driver_;
  cuda_graph graph_;
};

/// A stream of its own that is captured from here on.
class capture_stream {
 public:
  capture_stream(cuda_driver& d, int device) : driver_(d), stream_(d.make_stream(device)) {
    const runtime::errc begun = d.begin_capture(stream_);
    if (begun == runtime::errc::none) return;
    d.destroy(stream_);
    runtime::raise({begun, d.fault()});
  }
  capture_stream(const capture_stream&) = delete;
  capture_stream& operator=(const capture_stream&) = delete;
  ~capture_stream() {
    if (stream_ != nullptr) driver_.destroy(stream_);
  }
  cuda_stream stream() const noexcept { return stream_; }
  /// What was captured. Throws `unavailable`.
  cuda_capture end() {
    const auto made = driver_.end_capture(stream_);
    driver_.destroy(std::exchange(stream_, nullptr));
    return {driver_, made.value()};
  }

 private:
  cuda_driver& driver_;
  cuda_stream stream_;
};

}  // namespace parley::transports

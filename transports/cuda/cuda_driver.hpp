#pragma once
/// The thin layer over CUDA: everything that the GPU planes need from a driver, compilable without CUDA. The real implementation is
/// in `parley::cuda` (parley/cuda_runtime.hpp); tests have a fake that runs on virtual time.
///
///     cuda_driver& gpu = …;
///     auto buffer = cuda_memory::on_device(gpu, /*device=*/0, 1_MiB);
///     gpu.copy(buffer.bytes().data(), from, 1_MiB, stream);     // errc::none, or an error that `gpu.fault()` describes
///     gpu.record(event, stream);
///     while (gpu.query(event) == errc::pending) …
///
/// Everything is enqueued; nothing here waits for a stream or a device. Functions that run with every transfer return an
/// `errc`: `device_failed` when CUDA refused, and `fault()` then has CUDA's name and text of the latest error. After a sticky
/// error, as CUDA calls it, nothing works on that device in this process: each later call returns the error again. Functions
/// that make something, outside of transfers, throw `failure` (`unavailable`). One thread.
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

// CUDA's own types: a cudaStream_t is a CUstream_st*, for streams of the runtime and of the driver.
struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace parley::transports {

using cuda_stream = CUstream_st*;
using cuda_event = CUevent_st*;
using cuda_graph = CUgraphExec_st*;

/// One GPU, as the driver describes it.
struct cuda_device {
  std::string name;
  int compute_capability = 0;  ///< 90 for sm_90
  std::uint64_t memory_bytes = 0;
  int multiprocessors = 0;
  std::uint64_t l2_bytes = 0;
  std::string uuid;
  std::vector<int> peers{};   ///< devices whose memory it reaches directly
  std::vector<int> nvlink{};  ///< those of `peers` that it reaches over NVLink rather than a bus
  bool ipc = true;            ///< whether its memory can be exported to other processes
};

/// The kind of memory that an address points to, as the driver sees it. The driver reports memory that it does not know, such as freed
/// memory, as `host`.
struct memory_place {
  enum class kind : std::uint8_t { host, pinned, device } what = kind::host;
  int device = -1;
};

/// Lets another process reach device memory. The handle names a whole allocation.
struct cuda_ipc_handle {
  std::array<std::byte, 64> bytes{};
  friend auto operator<=>(const cuda_ipc_handle&, const cuda_ipc_handle&) = default;
};
struct exported_memory {
  cuda_ipc_handle handle;
  std::uint64_t offset = 0;  ///< of the memory in its allocation
};

/// The arguments of a kernel that sums together with kernels of other GPUs. Each member has a box in its own device memory, which
/// the other members reach. A box holds flags and counters, then two stages that calls use alternately, and two stages for sums
/// whose kernels do not wait (`add_up`).
struct peer_boxes {
  static constexpr unsigned most_members = 8;
  static constexpr unsigned most_blocks = 64;
  static constexpr std::size_t flag_bytes = sizeof(std::uint32_t) * most_members * most_blocks;
  static constexpr std::size_t head_bytes = flag_bytes + 256;  ///< flags and the owner's `calls`; the stages follow
  std::byte* box[most_members]{};                              ///< by place, as this process reaches them
  unsigned members = 0;
  unsigned place = 0;
  unsigned blocks = 0;
  std::uint32_t* calls = nullptr;       ///< in this member's box: calls made, and blocks of the current call that ended
  std::size_t stage_bytes = 0;          ///< at least the size of the data to sum
  const std::uint32_t* stop = nullptr;  ///< pinned word; if not 0, the kernel ends without waiting for other members
};

/// True if two pieces of memory have a byte in common.
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
  /// How many streams of this process a device runs independently. Further streams share queues: a stream that waits delays the others of
  /// its queue.
  virtual unsigned queues() const noexcept = 0;

  /// Makes `device` this thread's current CUDA device, for other libraries; the functions here do not need it. Throws `failure`.
  virtual void make_current(int device) = 0;

  virtual cuda_stream make_stream(int device) = 0;
  virtual void destroy(cuda_stream s) noexcept = 0;
  virtual cuda_event make_event(int device) = 0;
  /// An event that also records the time: slower, for measuring.
  virtual cuda_event make_timed_event(int device) = 0;
  virtual void destroy(cuda_event e) noexcept = 0;
  virtual void* allocate(int device, std::size_t bytes) = 0;
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void release(void* memory, memory_place::kind what) noexcept = 0;

  virtual runtime::errc record(cuda_event e, cuda_stream after) noexcept = 0;
  /// Work enqueued into `s` from here on waits for the latest record of `e`.
  virtual runtime::errc wait(cuda_stream s, cuda_event e) noexcept = 0;
  /// `none` if all work before the latest record has happened, else `pending`, or `device_failed`.
  virtual runtime::errc query(cuda_event e) noexcept = 0;
  /// The time between two timed events that have both happened.
  virtual runtime::result<double> elapsed_ns(cuda_event from, cuda_event to) = 0;
  /// Copies between any two addresses that the stream's device reaches, including host memory.
  virtual runtime::errc copy(void* to, const void* from, std::size_t bytes, cuda_stream s) noexcept = 0;
  /// Sets each byte of device memory.
  virtual runtime::errc fill(std::span<std::byte> memory, std::byte with, cuda_stream s) noexcept = 0;
  /// Runs a kernel that is larger than the caches of instructions, on all processors.
  virtual runtime::errc flush_instructions(cuda_stream s) noexcept = 0;
  /// True while work that is put into `s` is captured instead of executed.
  virtual bool is_capturing(cuda_stream s) noexcept = 0;
  /// Copies device memory by a kernel of `blocks` blocks.
  virtual runtime::errc copy_by_kernel(void* to, const void* from, std::size_t bytes, unsigned blocks,
                                       cuda_stream s) noexcept = 0;
  /// Sums all members' floats, in place and in the order of the members' places, by one kernel on each GPU.
  virtual runtime::errc sum_with_peers(std::span<std::byte> floats, const peer_boxes& with, cuda_stream s) noexcept = 0;
  /// Writes the sum of `parts`, added in their order, into `floats`, by one kernel of `blocks` blocks that waits for no other GPU. At
  /// most `peer_boxes::most_members` parts, all reachable from the stream's device.
  virtual runtime::errc add_up(std::span<std::byte> floats, std::span<const std::byte* const> parts, unsigned blocks,
                               cuda_stream s) noexcept = 0;
  /// Copies pieces of device memory into `packed`, one after the other, or back from there, by a kernel.
  virtual runtime::errc move_pieces(void* packed, const runtime::memory_pieces& p, pieces_way way,
                                    cuda_stream s) noexcept = 0;
  /// into = into + from, element by element, by a kernel.
  virtual runtime::errc add(void* into, const void* from, std::size_t bytes, runtime::summand of,
                            cuda_stream s) noexcept = 0;
  /// Work enqueued into `s` from here on waits until the word at `at` is at least `value`, in arithmetic that wraps around. The word
  /// must lie in memory of the stream's device.
  virtual runtime::errc wait_value(cuda_stream s, const void* at, std::uint32_t value) noexcept = 0;
  /// Writes a word, possibly in another device's memory, after all earlier work in `s`. A reader that sees the word also sees what that
  /// work wrote.
  virtual runtime::errc write_value(cuda_stream s, void* at, std::uint32_t value) noexcept = 0;
  /// Reads a word of pinned memory that a device writes.
  virtual std::uint32_t look_at(const std::uint32_t* word) noexcept {
    return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
  }
  /// From here on, work enqueued into `s` by any thread is captured instead of executed.
  virtual runtime::errc begin_capture(cuda_stream s) noexcept = 0;
  /// Ends the capture and returns the captured work, which can be replayed any number of times. `unavailable` if some of it cannot be
  /// captured.
  virtual runtime::result<cuda_graph> end_capture(cuda_stream s) = 0;
  virtual runtime::errc replay(cuda_graph g, cuda_stream s) noexcept = 0;
  /// Allowed while the graph is being replayed.
  virtual void destroy(cuda_graph g) noexcept = 0;
  virtual memory_place place_of(const void* address) noexcept = 0;
  /// True if memory of that device was allocated in a context that this driver does not use: work enqueued here cannot reach it.
  virtual bool is_of_other_context(const void* address, int device) noexcept = 0;

  virtual runtime::result<exported_memory> export_memory(const void* address) = 0;
  /// Maps a peer's allocation into this process; returns all of it.
  virtual runtime::result<std::span<std::byte>> import_memory(int device, const cuda_ipc_handle& handle) = 0;
  virtual void close_imported(void* memory) noexcept = 0;

  /// The latest error in words: `cudaErrorIllegalAddress: an illegal memory access was encountered, in cudaEventQuery`.
  virtual std::string fault() const = 0;
};

/// Owns memory of a device, or pinned host memory.
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
  /// For device memory these are addresses for CUDA, not for the processor.
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  cuda_memory(cuda_driver& d, void* at, std::size_t bytes, memory_place::kind what) noexcept
      : driver_(&d), bytes_(static_cast<std::byte*>(at), bytes), what_(what) {}
  cuda_driver* driver_ = nullptr;
  std::span<std::byte> bytes_;
  memory_place::kind what_ = memory_place::kind::host;
};

/// Success if memory of a device can be exported to other processes, else an error with the reason. Tries it with one byte.
inline runtime::result<> can_export(cuda_driver& d, int device) {
  try {
    const auto memory = cuda_memory::on_device(d, device, 1);
    const auto exported = d.export_memory(memory.bytes().data());
    return exported ? runtime::result<>() : exported.reason();
  } catch (const runtime::failure& f) {
    return f.reason();
  }
}

/// Owns a captured graph.
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

/// A new stream whose work is captured until `end`.
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
  /// Ends the capture and returns it. Throws `unavailable`.
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

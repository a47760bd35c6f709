#include <parley/cuda_runtime.hpp>
#include <parley/transports/cuda/device/kernels.hpp>
#include <parley/transports/cuda/device/on_device.hpp>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <type_traits>
#include <unordered_map>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::result;

namespace {

std::string in_words(cudaError_t e, const char* where) {
  return fmt::format("{}: {}, in {}", cudaGetErrorName(e), cudaGetErrorString(e), where);
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        static_cast<unsigned char>(uuid.bytes[i]));
  return text;
}

constexpr const char* queues_variable = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr unsigned most_queues = 32;
constexpr std::size_t streams_at_a_time = 128;  // 0.55 MiB each on an H200
constexpr unsigned of_cuda_itself = 8;

unsigned queues_asked_for() {
  const char* const said = std::getenv(queues_variable);
  const auto number = said == nullptr ? 0UL : std::strtoul(said, nullptr, 10);
  return number == 0 ? of_cuda_itself : static_cast<unsigned>(std::min<unsigned long>(number, most_queues));
}

class runtime_driver final : public cuda_driver {
 public:
  /// `too_late`: the number of queues was not set before this call, so a context that exists already has CUDA's default number.
  runtime_driver(int count, bool too_late) {
    if (too_late && has_context(count)) queues_ = of_cuda_itself;
    must(cudaDriverGetVersion(&driver_version_), "cudaDriverGetVersion");
    must(cudaRuntimeGetVersion(&runtime_version_), "cudaRuntimeGetVersion");
    for (int d = 0; d < count; ++d) {
      cudaDeviceProp p{};
      must(cudaGetDeviceProperties(&p, d), "cudaGetDeviceProperties");
      cuda_device seen{.name = p.name,
                       .compute_capability = 10 * p.major + p.minor,
                       .memory_bytes = p.totalGlobalMem,
                       .multiprocessors = p.multiProcessorCount,
                       .l2_bytes = static_cast<std::uint64_t>(p.l2CacheSize),
                       .uuid = uuid_text(p.uuid),
                       .ipc = says_yes(cudaDeviceGetAttribute, cudaDevAttrIpcEventSupport, d)};
      for (int other = 0; other < count; ++other) {
        if (other == d || !says_yes(cudaDeviceCanAccessPeer, d, other)) continue;
        seen.peers.push_back(other);
        // Native atomics work over NVLink, not over a bus.
        if (says_yes(cudaDeviceGetP2PAttribute, cudaDevP2PAttrNativeAtomicSupported, d, other))
          seen.nvlink.push_back(other);
      }
      devices_.push_back(std::move(seen));
    }
  }

  const std::vector<cuda_device>& devices() const noexcept override { return devices_; }
  int driver_version() const noexcept override { return driver_version_; }
  int runtime_version() const noexcept override { return runtime_version_; }
  unsigned queues() const noexcept override { return queues_; }

  void make_current(int device) override { must(cudaSetDevice(device), "cudaSetDevice"); }
  cuda_stream make_stream(int device) override {
    const on_device here(device);
    must(here.outcome(), "cudaSetDevice");
    const beside_captures relaxed;
    const bool first = used_.insert(device).second;
    if (first) {
      let_in_peers(device);
      make_room_for_streams();
    }
    cudaStream_t made = nullptr;
    must(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    device_of_own_.emplace(made, device);
    if (first) {
      must(launch_copies_once(made), "a first launch of the kernels that copy");
      must(launch_peer_sums_once(made), "a first launch of the kernels that sum with peers");
      must(launch_pieces_once(made), "a first launch of the kernels that pack");
      must(launch_adds_once(made), "a first launch of the kernels that add");
      must(launch_long_code(1, made), "a first launch of the kernel that flushes the caches of instructions");
    }
    return made;
  }
  void destroy(cuda_stream s) noexcept override {
    device_of_own_.erase(s);
    const beside_captures relaxed;
    note(cudaStreamDestroy(s), "cudaStreamDestroy");
  }
  cuda_event make_event(int device) override { return make_event(device, cudaEventDisableTiming); }
  cuda_event make_timed_event(int device) override { return make_event(device, cudaEventDefault); }
  void destroy(cuda_event e) noexcept override {
    const beside_captures relaxed;
    note(cudaEventDestroy(e), "cudaEventDestroy");
  }

  void* allocate(int device, std::size_t bytes) override {
    const on_device here(device);
    must(here.outcome(), "cudaSetDevice");
    const beside_captures relaxed;
    void* made = nullptr;
    must(cudaMalloc(&made, bytes), fmt::format("cudaMalloc of {} bytes on device {}", bytes, device).c_str());
    return made;
  }
  void* allocate_pinned(std::size_t bytes) override {
    const beside_captures relaxed;
    void* made = nullptr;
    must(cudaHostAlloc(&made, bytes, cudaHostAllocPortable), fmt::format("cudaHostAlloc of {} bytes", bytes).c_str());
    return made;
  }
  void release(void* memory, memory_place::kind what) noexcept override {
    const beside_captures relaxed;
    if (what == memory_place::kind::device) {
      note(cudaFree(memory), "cudaFree");
    } else {
      note(cudaFreeHost(memory), "cudaFreeHost");
    }
  }

  errc record(cuda_event e, cuda_stream after) noexcept override {
    return note(cudaEventRecord(e, after), "cudaEventRecord");
  }
  errc wait(cuda_stream s, cuda_event e) noexcept override {
    return note(cudaStreamWaitEvent(s, e, 0), "cudaStreamWaitEvent");
  }
  errc query(cuda_event e) noexcept override {
    const beside_captures relaxed;
    const cudaError_t seen = cudaEventQuery(e);
    if (seen != cudaErrorNotReady) return note(seen, "cudaEventQuery");
    cudaGetLastError();  // CUDA stores cudaErrorNotReady like an error: clear it
    return errc::pending;
  }
  result<double> elapsed_ns(cuda_event from, cuda_event to) override {
    const beside_captures relaxed;
    float ms = 0;
    if (const cudaError_t e = cudaEventElapsedTime(&ms, from, to); e != cudaSuccess)
      return refused(e, "cudaEventElapsedTime");
    return double{ms} * 1e6;
  }
  errc copy(void* to, const void* from, std::size_t bytes, cuda_stream s) noexcept override {
    return note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s), "cudaMemcpyAsync");
  }
  errc fill(std::span<std::byte> memory, std::byte with, cuda_stream s) noexcept override {
    return note(cudaMemsetAsync(memory.data(), std::to_integer<int>(with), memory.size(), s), "cudaMemsetAsync");
  }
  errc flush_instructions(cuda_stream s) noexcept override {
    int device = 0;
    if (const errc known = find_device(s, device); known != errc::none) return known;
    const on_device here(device);
    const auto processors = static_cast<unsigned>(devices_[static_cast<std::size_t>(device)].multiprocessors);
    return note(launch_long_code(processors, s), "the kernel that flushes the caches of instructions");
  }
  bool is_capturing(cuda_stream s) noexcept override {
    cudaStreamCaptureStatus seen = cudaStreamCaptureStatusNone;
    const errc asked = note(cudaStreamIsCapturing(s, &seen), "cudaStreamIsCapturing");
    return asked == errc::none && seen != cudaStreamCaptureStatusNone;
  }
  errc copy_by_kernel(void* to, const void* from, std::size_t bytes, unsigned blocks, cuda_stream s) noexcept override {
    int device = 0;
    if (const errc known = find_device(s, device); known != errc::none) return known;
    const on_device here(device);
    return note(launch_copy(to, from, bytes, blocks, s), "the copy kernel");
  }
  errc sum_with_peers(std::span<std::byte> floats, const peer_boxes& with, cuda_stream s) noexcept override {
    int device = 0;
    if (const errc known = find_device(s, device); known != errc::none) return known;
    const on_device here(device);
    return note(launch_peer_sum(floats.data(), floats.size(), with, s), "the kernel that sums with peers");
  }
  errc add_up(std::span<std::byte> floats, std::span<const std::byte* const> parts, unsigned blocks,
              cuda_stream s) noexcept override {
    int device = 0;
    if (const errc known = find_device(s, device); known != errc::none) return known;
    const on_device here(device);
    return note(launch_add_up(floats.data(), floats.size(), parts, blocks, s), "the kernel that adds up");
  }
  errc move_pieces(void* packed, const runtime::memory_pieces& p, pieces_way way, cuda_stream s) noexcept override {
    int device = 0;
    if (const errc known = find_device(s, device); known != errc::none) return known;
    const on_device here(device);
    return note(launch_pieces(packed, p, way, s), "the kernel that packs");
  }
  errc add(void* into, const void* from, std::size_t bytes, runtime::summand of, cuda_stream s) noexcept override {
    int device = 0;
    if (const errc known = find_device(s, device); known != errc::none) return known;
    const on_device here(device);
    return note(launch_add(into, from, bytes, of, s), "the kernel that adds");
  }
  errc wait_value(cuda_stream s, const void* at, std::uint32_t value) noexcept override {
    static void* const found = entry_point("cuStreamWaitValue32");
    constexpr unsigned at_least = 0;  // CU_STREAM_WAIT_VALUE_GEQ
    return word_operation(found, s, at, value, at_least, "cuStreamWaitValue32");
  }
  errc write_value(cuda_stream s, void* at, std::uint32_t value) noexcept override {
    static void* const found = entry_point("cuStreamWriteValue32");
    constexpr unsigned behind_all = 0;  // CU_STREAM_WRITE_VALUE_DEFAULT: with a barrier for earlier writes
    return word_operation(found, s, at, value, behind_all, "cuStreamWriteValue32");
  }
  // Relaxed: CUDA calls that this thread or others, such as NCCL's, make during the capture do not affect it.
  errc begin_capture(cuda_stream s) noexcept override {
    return note(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  }
  result<cuda_graph> end_capture(cuda_stream s) override {
    const beside_captures relaxed;
    cudaGraph_t captured = nullptr;
    if (const cudaError_t e = cudaStreamEndCapture(s, &captured); e != cudaSuccess)
      return refused(e, "cudaStreamEndCapture");
    cudaGraphExec_t made = nullptr;
    const cudaError_t e = cudaGraphInstantiate(&made, captured, 0);
    note(cudaGraphDestroy(captured), "cudaGraphDestroy");
    if (e != cudaSuccess) return refused(e, "cudaGraphInstantiate");
    return made;
  }
  errc replay(cuda_graph g, cuda_stream s) noexcept override { return note(cudaGraphLaunch(g, s), "cudaGraphLaunch"); }
  void destroy(cuda_graph g) noexcept override {
    const beside_captures relaxed;
    note(cudaGraphExecDestroy(g), "cudaGraphExecDestroy");
  }
  memory_place place_of(const void* address) noexcept override {
    cudaPointerAttributes a{};
    if (note(cudaPointerGetAttributes(&a, address), "cudaPointerGetAttributes") != errc::none) return {};
    switch (a.type) {
      case cudaMemoryTypeDevice:
      case cudaMemoryTypeManaged: return {memory_place::kind::device, a.device};
      case cudaMemoryTypeHost: return {memory_place::kind::pinned, -1};
      default: return {};
    }
  }

  bool is_of_other_context(const void* address, int device) noexcept override {
    static void* const found = entry_point("cuPointerGetAttribute");
    using function = int (*)(void*, int, unsigned long long);
    constexpr int of_which_context = 1;  // CU_POINTER_ATTRIBUTE_CONTEXT
    void* its = nullptr;
    if (found == nullptr) return false;
    const int e = reinterpret_cast<function>(found)(static_cast<void*>(&its), of_which_context,
                                                    reinterpret_cast<unsigned long long>(address));
    // Memory from pools belongs to no context.
    if (e != 0 || its == nullptr) return false;
    void* const ours = context_of(device);
    return ours != nullptr && its != ours;
  }

  result<exported_memory> export_memory(const void* address) override {
    exported_memory made;
    const on_device here(place_of(address).device);  // only an allocation's own context knows it
    const beside_captures relaxed;
    cudaIpcMemHandle_t handle{};
    static_assert(sizeof handle == sizeof made.handle.bytes);
    // In CUDA 13 only the driver's API, which the runtime has loaded, tells where an allocation begins.
    std::span<std::byte> all;
    if (const cudaError_t e = allocation_of(address, all); e != cudaSuccess) return refused(e, "cuMemGetAddressRange");
    const cudaError_t e = cudaIpcGetMemHandle(&handle, all.data());
    if (e != cudaSuccess) return refused(e, "cudaIpcGetMemHandle");
    std::memcpy(made.handle.bytes.data(), &handle, sizeof handle);
    made.offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - all.data());
    return made;
  }
  result<std::span<std::byte>> import_memory(int device, const cuda_ipc_handle& handle) override {
    const on_device here(device);
    const beside_captures relaxed;
    cudaIpcMemHandle_t theirs{};
    std::memcpy(&theirs, handle.bytes.data(), sizeof theirs);
    void* mapped = nullptr;
    const cudaError_t e = cudaIpcOpenMemHandle(&mapped, theirs, cudaIpcMemLazyEnablePeerAccess);
    if (e != cudaSuccess) return refused(e, "cudaIpcOpenMemHandle");
    std::span<std::byte> all;
    if (const cudaError_t known = allocation_of(mapped, all); known != cudaSuccess) {
      close_imported(mapped);
      return refused(known, "cuMemGetAddressRange");
    }
    return all;
  }
  void close_imported(void* memory) noexcept override {
    const beside_captures relaxed;
    note(cudaIpcCloseMemHandle(memory), "cudaIpcCloseMemHandle");
  }

  std::string fault() const override { return fault_; }

 private:
  template <class... Words>
  static bool says_yes(cudaError_t (*question)(int*, Words...), std::type_identity_t<Words>... words) {
    int answer = 0;
    const cudaError_t e = question(&answer, words...);
    if (e != cudaSuccess) cudaGetLastError();  // clear it, so that no other call reports it
    return e == cudaSuccess && answer != 0;
  }
  cuda_event make_event(int device, unsigned how) {
    const on_device here(device);
    must(here.outcome(), "cudaSetDevice");
    const beside_captures relaxed;
    cudaEvent_t made = nullptr;
    must(cudaEventCreateWithFlags(&made, how), "cudaEventCreateWithFlags");
    return made;
  }
  errc note(cudaError_t e, const char* where) noexcept {
    if (e == cudaSuccess) return errc::none;
    cudaGetLastError();  // clears the error unless it is sticky
    try {
      fault_ = in_words(e, where);
    } catch (...) {
      fault_.clear();
    }
    return errc::device_failed;
  }
  // CUDA does not tell the device of a stream that is being captured, so look the driver's own streams up first.
  errc find_device(cuda_stream s, int& device) noexcept {
    if (const auto own = device_of_own_.find(s); own != device_of_own_.end()) {
      device = own->second;
      return errc::none;
    }
    // To ask a stream that is being captured ends the capture. Who captures has made the stream's device current.
    if (is_capturing(s)) return note(cudaGetDevice(&device), "cudaGetDevice");
    return note(cudaStreamGetDevice(s, &device), "cudaStreamGetDevice");
  }
  error refused(cudaError_t e, const char* where) {
    note(e, where);
    return {errc::unavailable, in_words(e, where)};
  }
  void must(cudaError_t e, const char* where) {
    if (e == cudaSuccess) return;
    note(e, where);
    runtime::raise({errc::unavailable, in_words(e, where) + "; see `parley doctor`"});
  }
  // A function of the driver, which the runtime has loaded; null if the driver does not have it.
  static void* entry_point(const char* name) noexcept {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult how{};
    const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &how);
    if (e != cudaSuccess) cudaGetLastError();
    return e == cudaSuccess ? found : nullptr;
  }
  errc word_operation(void* found, cuda_stream s, const void* at, std::uint32_t value, unsigned flags,
                      const char* name) noexcept {
    using function = int (*)(cuda_stream, unsigned long long, std::uint32_t, unsigned);
    if (found == nullptr) return note(cudaErrorSymbolNotFound, name);
    const int e = reinterpret_cast<function>(found)(s, reinterpret_cast<unsigned long long>(at), value, flags);
    return note(static_cast<cudaError_t>(e), name);
  }
  // CUDA has room for a limited number of streams on a device. Before it makes room for more, it waits for all work there
  // (bench/gpu/streams.cpp); if a kernel waits for this process, it waits for ever. NCCL makes several streams for each communicator. So
  // this makes the room in advance.
  static void make_room_for_streams() noexcept {
    std::array<cudaStream_t, streams_at_a_time> all{};
    for (cudaStream_t& s : all) {
      if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess) continue;
      cudaGetLastError();  // out of memory: the room made so far must do
      break;
    }
    for (const cudaStream_t s : all) {
      if (s != nullptr) cudaStreamDestroy(s);
    }
  }
  static bool has_context(int count) noexcept {
    using function = int (*)(int, unsigned*, int*);
    void* const found = entry_point("cuDevicePrimaryCtxGetState");
    for (int d = 0; found != nullptr && d < count; ++d) {
      unsigned flags = 0;
      int active = 0;
      if (reinterpret_cast<function>(found)(d, &flags, &active) == 0 && active != 0) return true;
    }
    return false;
  }
  // The context that this driver uses for the device; null if it is not known.
  static void* context_of(int device) noexcept {
    static void* const found = entry_point("cuCtxGetCurrent");
    const on_device here(device);
    void* current = nullptr;
    if (found != nullptr) reinterpret_cast<int (*)(void**)>(found)(&current);
    return current;
  }
  static cudaError_t allocation_of(const void* address, std::span<std::byte>& all) {
    using function = int (*)(unsigned long long*, std::size_t*, unsigned long long);
    void* const found = entry_point("cuMemGetAddressRange");
    if (found == nullptr) return cudaErrorSymbolNotFound;
    unsigned long long start = 0;
    std::size_t bytes = 0;
    const int seen = reinterpret_cast<function>(found)(&start, &bytes, reinterpret_cast<unsigned long long>(address));
    all = {reinterpret_cast<std::byte*>(start), bytes};
    return static_cast<cudaError_t>(seen);
  }
  // Enables access to peers' memory, so that copies between devices are direct where possible. A device that cannot be accessed, because
  // its memory is full or another process uses it exclusively, is removed from the peers.
  void let_in_peers(int device) {
    std::erase_if(devices_.at(static_cast<std::size_t>(device)).peers, [](int peer) {
      const cudaError_t e = cudaDeviceEnablePeerAccess(peer, 0);
      if (e != cudaSuccess) cudaGetLastError();
      return e != cudaSuccess && e != cudaErrorPeerAccessAlreadyEnabled;
    });
  }

  std::vector<cuda_device> devices_;
  std::set<int> used_;
  std::unordered_map<cuda_stream, int> device_of_own_;
  int driver_version_ = 0;
  int runtime_version_ = 0;
  unsigned queues_ = queues_asked_for();
  std::string fault_;
};

result<std::unique_ptr<runtime_driver>> open_driver() {
  // Streams that share a hardware queue of the GPU wait for each other, even if one of them waits for a word that the other sets. So ask
  // for as many queues as there are. CUDA reads the variable at its first call.
  const bool too_late = std::getenv(queues_variable) == nullptr;
  ::setenv(queues_variable, std::to_string(most_queues).c_str(), 0);
  int count = 0;
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e != cudaSuccess) {
    int version = 0;
    const bool has_driver = cudaDriverGetVersion(&version) != cudaSuccess || version != 0;
    cudaGetLastError();
    if (!has_driver) return error{errc::unavailable, "no NVIDIA driver was found (libcuda.so.1)"};
    return error{errc::unavailable, in_words(e, "cudaGetDeviceCount")};
  }
  if (count == 0)
    return error{errc::unavailable, "the CUDA driver works and shows no device; see CUDA_VISIBLE_DEVICES"};
  try {
    return std::make_unique<runtime_driver>(count, too_late);
  } catch (const runtime::failure& f) {
    return f.reason();
  }
}

}  // namespace

result<cuda_driver*> cuda_runtime() {
  // Never destroyed: CUDA's own state may be destroyed first.
  static const auto* const opened = new result<std::unique_ptr<runtime_driver>>(open_driver());
  if (!*opened) return opened->reason();
  return static_cast<cuda_driver*>(opened->value().get());
}

}  // namespace parley::transports

#include <parley/nccl_runtime.hpp>
#include <parley/transports/cuda/device/loaded_function.hpp>
#include <parley/transports/cuda/device/on_device.hpp>
#include <parley/transports/cuda/device_rest.hpp>
#include <parley/transports/thread_family.hpp>

#if __has_include(<nccl.h>)

#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <utility>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::result;

namespace {

// From this version on communicators can be made without blocking, and aborted while NCCL is making them.
constexpr int oldest_version = 21'800;
constexpr std::chrono::milliseconds pause{10};

// The functions of libnccl.so.2 that are used.
// NOLINTBEGIN(readability-identifier-naming): NCCL's own names, by which they are looked up
struct functions {
  decltype(&ncclGetVersion) GetVersion = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
  decltype(&ncclAllReduce) AllReduce = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
};
// NOLINTEND(readability-identifier-naming)

// For calls whose outcome is handled here: clears CUDA's stored error, so that no other call reports it. CUDA also stores `not ready`,
// which only says that a stream has work left, as an error.
cudaError_t cleared(cudaError_t e) noexcept {
  if (e != cudaSuccess) cudaGetLastError();
  return e;
}

bool load_all(void* library, functions& f) {
  return load(library, "ncclGetVersion", f.GetVersion) && load(library, "ncclGetUniqueId", f.GetUniqueId) &&
         load(library, "ncclCommInitRankConfig", f.CommInitRankConfig) &&
         load(library, "ncclCommGetAsyncError", f.CommGetAsyncError) && load(library, "ncclCommAbort", f.CommAbort) &&
         load(library, "ncclGroupStart", f.GroupStart) && load(library, "ncclGroupEnd", f.GroupEnd) &&
         load(library, "ncclSend", f.Send) && load(library, "ncclRecv", f.Recv) &&
         load(library, "ncclAllReduce", f.AllReduce) && load(library, "ncclGetErrorString", f.GetErrorString) &&
         load(library, "ncclGetLastError", f.GetLastError);
}

class loaded_nccl final : public nccl_library {
 public:
  loaded_nccl(functions f, int version) : nccl_(f), version_(version) {}

  int version() const noexcept override { return version_; }

  // Makes a communicator of one member, so that NCCL loads all its kernels. When the first of these is launched, CUDA notices that they
  // need more device memory, and allocates it once all streams are idle. So this also launches one now.
  void prepare(int device) noexcept override {
    try {
      if (!prepared_.insert(device).second) return;
      const auto id = make_id();
      if (!id) return;
      const auto alone = initialise(*id, 1, 0, device, blocks::yes);
      if (!alone) return;
      send_to_itself(*alone, device);
      static_cast<void>(nccl_.CommAbort(*alone));
    } catch (...) {
      fault_.clear();
    }
  }
  result<nccl_id> make_id() override {
    ncclUniqueId made{};
    nccl_id id;
    static_assert(sizeof made == sizeof id.bytes);
    if (const ncclResult_t r = nccl_.GetUniqueId(&made); r != ncclSuccess) return refused(r, "ncclGetUniqueId");
    std::memcpy(id.bytes.data(), &made, sizeof made);
    return id;
  }
  result<nccl_communicator> connect(const nccl_id& id, int members, int place, int device) override {
    return initialise(id, members, place, device, blocks::no);
  }
  errc state(nccl_communicator c) noexcept override {
    ncclResult_t seen = ncclSuccess;
    const ncclResult_t r = nccl_.CommGetAsyncError(c, &seen);
    return note(r == ncclSuccess ? seen : r, "a communicator");
  }
  errc send(std::span<const std::byte> from, int to, nccl_communicator c, CUstream_st* stream) noexcept override {
    return note(nccl_.Send(from.data(), from.size(), ncclInt8, to, c, stream), "ncclSend");
  }
  errc receive(std::span<std::byte> into, int from, nccl_communicator c, CUstream_st* stream) noexcept override {
    return note(nccl_.Recv(into.data(), into.size(), ncclInt8, from, c, stream), "ncclRecv");
  }
  errc sum_floats(std::span<std::byte> data, nccl_communicator c, CUstream_st* stream) noexcept override {
    return note(nccl_.AllReduce(data.data(), data.data(), data.size() / sizeof(float), ncclFloat32, ncclSum, c, stream),
                "ncclAllReduce");
  }
  // NCCL first tells the communicator's kernels to end, then frees its memory. CUDA frees memory only when the device is idle, which means
  // that the kernels of other communicators must also have ended, and this thread may have to abort those. So each abort runs in its own
  // thread, and until it ends no stream may wait for a message. The outcome is ignored: the communicator is not used again in any case.
  //
  // If NCCL is still making the communicator, the thread first waits until it is made, 30 s at most. Without that wait, NCCL 2.28.9's own
  // thread crashed the process with a segmentation fault if making the communicator took long, as it does under memcheck.
  //
  // With communicators that do not block, `ncclCommAbort` returns at once, and threads of NCCL free the memory afterwards. If CUDA has shut
  // down by then, because the process is exiting, one of them crashes with a segmentation fault while it looks up the text of CUDA's error.
  // So this waits for NCCL's threads, and the process's exit waits for this (`wait_at_exit`).
  nothing_more abort(nccl_communicator c) noexcept override {
    aborting_.fetch_add(1);
    try {
      wait_at_exit();
      const auto over = std::make_shared<std::atomic<bool>>(!is_busy(c));
      std::thread([this, c, over] {
        const thread_family its_threads("nccl abort");
        wait_until_made(c);
        if (!is_busy(c)) over->store(true);
        const device_rest::quiet now(device_rest::of_this_process(), device_rest::longest);
        static_cast<void>(nccl_.CommAbort(c));
        over->store(true);
        for (int looks = 0; looks < 2; looks = its_threads.has_others() ? 0 : looks + 1)
          std::this_thread::sleep_for(pause);
        aborting_.fetch_sub(1);
      }).detach();
      return over;
    } catch (...) {  // no thread could be started
      static_cast<void>(nccl_.CommAbort(c));
      aborting_.fetch_sub(1);
      return nullptr;
    }
  }

  std::string fault() const override { return fault_; }

 private:
  enum class blocks : std::uint8_t { no, yes };
  result<nccl_communicator> initialise(const nccl_id& id, int members, int place, int device, blocks b) {
    const on_device here(device);
    ncclUniqueId theirs{};
    std::memcpy(&theirs, id.bytes.data(), sizeof theirs);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = b == blocks::yes ? 1 : 0;
    ncclComm_t made = nullptr;
    const ncclResult_t r = nccl_.CommInitRankConfig(&made, members, theirs, place, &config);
    if (r != ncclSuccess && r != ncclInProgress) return refused(r, "ncclCommInitRankConfig");
    return made;
  }
  // CUDA also shuts down in an exit handler. Exit handlers run in reverse order of registration, and CUDA registers its own before any
  // communicator is made, so this one runs before CUDA's.
  void wait_at_exit() {
    static loaded_nccl* waited_for = nullptr;
    if (std::exchange(waited_for, this) != nullptr) return;
    std::atexit([] {
      const loaded_nccl* const own = std::exchange(waited_for, nullptr);  // a later abort registers again
      for (int i = 0; i < 6000 && own->aborting_.load() != 0; ++i) std::this_thread::sleep_for(pause);
    });
  }
  void send_to_itself(nccl_communicator alone, int device) {
    const on_device here(device);
    char* two = nullptr;
    cudaStream_t stream = nullptr;
    if (cleared(cudaMalloc(&two, 2)) != cudaSuccess) return;
    if (cleared(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) == cudaSuccess) {
      static_cast<void>(nccl_.GroupStart());
      static_cast<void>(nccl_.Send(two, 1, ncclInt8, 0, alone, stream));
      static_cast<void>(nccl_.Recv(two + 1, 1, ncclInt8, 0, alone, stream));
      static_cast<void>(nccl_.GroupEnd());
      for (int i = 0; i < 1000 && cleared(cudaStreamQuery(stream)) == cudaErrorNotReady; ++i)
        std::this_thread::sleep_for(pause);
      cleared(cudaStreamDestroy(stream));
    }
    cleared(cudaFree(two));
  }
  bool is_busy(nccl_communicator c) const {
    ncclResult_t seen = ncclSuccess;
    return nccl_.CommGetAsyncError(c, &seen) == ncclSuccess && seen == ncclInProgress;
  }
  void wait_until_made(nccl_communicator c) const {
    for (int i = 0; i < 3000 && is_busy(c); ++i) std::this_thread::sleep_for(pause);
  }
  std::string words(ncclResult_t r, const char* where) const {
    const char* const more = nccl_.GetLastError(nullptr);
    return fmt::format("NCCL: {}, in {}{}{}", nccl_.GetErrorString(r), where,
                       more == nullptr || *more == '\0' ? "" : ": ", more == nullptr ? "" : more);
  }
  errc note(ncclResult_t r, const char* where) noexcept {
    if (r == ncclSuccess) return errc::none;
    if (r == ncclInProgress) return errc::pending;
    try {
      fault_ = words(r, where);
    } catch (...) {
      fault_.clear();
    }
    return errc::device_failed;
  }
  error refused(ncclResult_t r, const char* where) {
    note(r, where);
    return {errc::unavailable, fault_};
  }

  functions nccl_;
  int version_;
  std::string fault_;
  std::set<int> prepared_;
  std::atomic<int> aborting_{0};
};

result<std::unique_ptr<loaded_nccl>> load_nccl() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return error{errc::unavailable, fmt::format("NCCL was not found: {}; set LD_LIBRARY_PATH to the folder that has it",
                                                why == nullptr ? "libnccl.so.2" : why)};
  }
  functions f;
  int version = 0;
  if (!load_all(library, f) || f.GetVersion(&version) != ncclSuccess || version < oldest_version)
    return error{errc::unavailable,
                 fmt::format("the libnccl.so.2 that was found is older than 2.18{}",
                             version == 0 ? std::string() : ": it is " + nccl_version_text(version))};
  return std::make_unique<loaded_nccl>(f, version);
}

}  // namespace

result<nccl_library*> nccl_runtime() {
  // Never destroyed, like the CUDA driver: threads of NCCL may outlive static objects.
  static const auto* const loaded = new result<std::unique_ptr<loaded_nccl>>(load_nccl());
  if (!*loaded) return loaded->reason();
  return static_cast<nccl_library*>(loaded->value().get());
}

}  // namespace parley::transports

#else

namespace parley::transports {

runtime::result<nccl_library*> nccl_runtime() {
  return runtime::error{runtime::errc::unavailable, "this build has no NCCL: its header nccl.h was not found"};
}

}  // namespace parley::transports

#endif

// The lower bound for transfers between two GPUs of one host, in one process with one thread: only CUDA, and only
// NCCL. A copy is timed from its call until an event, polled in a loop, says that it has ended.
//
//     gpu_raw [--repetitions R]      peer_copy/BYTES, kernel_16/BYTES (parley's copy kernel, 16 blocks), kernel_64/BYTES and
//                                    nccl_raw/BYTES, medians, from 8 B to 256 MiB
//
// NCCL's case is a send on one GPU and a receive on the other in one group, on blocking communicators. NCCL is loaded
// at run time and left out if it is not found.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <parley/bench/measure.hpp>
#include <parley/transports/cuda/device/kernels.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) give_up(std::string(what) + ": " + cudaGetErrorString(e));
}
void check(ncclResult_t r, const char* what) {
  if (r != ncclSuccess) give_up(std::string(what) + ": NCCL's error " + std::to_string(int(r)));
}

std::vector<std::uint64_t> sizes() {
  std::vector<std::uint64_t> all{64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20};
  for (std::uint64_t bytes = 8; bytes <= (256 << 20); bytes *= 8) all.push_back(bytes);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

struct gpu {
  explicit gpu(int number) : device(number) {
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaDeviceEnablePeerAccess(1 - device, 0), "cudaDeviceEnablePeerAccess");
    check(cudaMalloc(&memory, 256 << 20), "cudaMalloc");
    check(cudaMemset(memory, device + 1, 256 << 20), "cudaMemset");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void wait() const {
    check(cudaEventRecord(event, stream), "cudaEventRecord");
    cudaError_t seen = cudaSuccess;
    while ((seen = cudaEventQuery(event)) == cudaErrorNotReady) {}
    check(seen, "cudaEventQuery");
  }
  int device;
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
};

template <class Step>
void measure(const std::string& name, std::int64_t repetitions, Step step) {
  for (const std::uint64_t bytes : sizes()) {
    const std::int64_t turns = bytes > (16 << 20) ? std::max<std::int64_t>(repetitions / 8, 5) : repetitions;
    std::vector<double> times;
    for (std::int64_t n = -5; n < turns; ++n) {
      const std::int64_t start = now_ns();
      step(bytes);
      if (n >= 0) times.push_back(double(now_ns() - start));
    }
    report(name + "/" + std::to_string(bytes), median(std::move(times)), "ns");
  }
}

template <class F>
F function_of(void* library, const char* name) {
  auto* const found = reinterpret_cast<F>(dlsym(library, name));
  if (found == nullptr) give_up(std::string("libnccl has no ") + name);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::int64_t repetitions = given.number("repetitions", 200);
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count < 2) give_up("two GPUs are needed; this machine shows " + std::to_string(count));
  pin_to_core(0);
  const gpu from(0);
  const gpu to(1);
  measure("peer_copy", repetitions, [&](std::uint64_t bytes) {
    check(cudaMemcpyPeerAsync(to.memory, 1, from.memory, 0, bytes, to.stream), "cudaMemcpyPeerAsync");
    to.wait();
  });
  for (const unsigned blocks : {16U, 64U}) {
    measure("kernel_" + std::to_string(blocks), repetitions, [&](std::uint64_t bytes) {
      check(parley::transports::launch_copy(to.memory, from.memory, bytes, blocks, to.stream), "the copy kernel");
      to.wait();
    });
  }

  void* const library = dlopen("libnccl.so.2", RTLD_NOW);
  if (library == nullptr) return 0;
  std::array<ncclComm_t, 2> both{};
  const std::array<int, 2> devices{0, 1};
  check(function_of<decltype(&ncclCommInitAll)>(library, "ncclCommInitAll")(both.data(), 2, devices.data()),
        "ncclCommInitAll");
  auto* const begin = function_of<decltype(&ncclGroupStart)>(library, "ncclGroupStart");
  auto* const end = function_of<decltype(&ncclGroupEnd)>(library, "ncclGroupEnd");
  auto* const send = function_of<decltype(&ncclSend)>(library, "ncclSend");
  auto* const receive = function_of<decltype(&ncclRecv)>(library, "ncclRecv");
  measure("nccl_raw", repetitions, [&](std::uint64_t bytes) {
    check(begin(), "ncclGroupStart");
    check(send(from.memory, bytes, ncclInt8, 1, both[0], from.stream), "ncclSend");
    check(receive(to.memory, bytes, ncclInt8, 0, both[1], to.stream), "ncclRecv");
    check(end(), "ncclGroupEnd");
    to.wait();
    from.wait();
  });
  return 0;
}

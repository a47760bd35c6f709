// Which copies one that waits holds up, on two GPUs of one host: nothing but CUDA, one process. A stream waits for a word in its GPU's
// memory and then copies; copies of every kind in streams of their own come after it, and must not wait as well.
//
//     gpu_queues      a line for each kind of copy that waits, with those that it held up
//
// A GPU copies out of another one's memory through one queue, whichever streams it is asked in; so transports/cuda_copies.hpp lets such
// copies wait in the host's memory.
#include <cuda_runtime_api.h>
#include <parley/bench/measure.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

constexpr std::size_t bytes = 1 << 20;
constexpr std::int64_t long_enough_ns = 50'000'000;

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) give_up(std::string(what) + ": " + cudaGetErrorString(e));
}
void* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how{};
  check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &how), name);
  return found;
}
// cuStreamWaitValue32 and cuStreamWriteValue32 look alike.
void word(const char* name, cudaStream_t s, void* at, unsigned value) {
  using function = int (*)(cudaStream_t, unsigned long long, unsigned, unsigned);
  if (reinterpret_cast<function>(driver_function(name))(s, reinterpret_cast<unsigned long long>(at), value, 0) != 0)
    give_up(std::string(name) + " was refused");
}

struct gpu {
  explicit gpu(int number) : device(number) {
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaDeviceEnablePeerAccess(1 - device, 0), "cudaDeviceEnablePeerAccess");
    check(cudaMalloc(reinterpret_cast<void**>(&memory), 2 * bytes), "cudaMalloc");
    check(cudaMalloc(&flag, sizeof(unsigned)), "cudaMalloc");
    check(cudaMemset(flag, 0, sizeof(unsigned)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  cudaStream_t stream() const {
    cudaStream_t made = nullptr;
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return made;
  }
  bool ends(cudaStream_t s) const {
    cudaEvent_t event = nullptr;
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check(cudaEventRecord(event, s), "cudaEventRecord");
    const std::int64_t start = now_ns();
    cudaError_t seen = cudaErrorNotReady;
    while (seen == cudaErrorNotReady && now_ns() - start < long_enough_ns) seen = cudaEventQuery(event);
    static_cast<void>(cudaGetLastError());
    return seen == cudaSuccess;
  }
  int device;
  char* memory = nullptr;
  void* flag = nullptr;
};

enum kind : std::uint8_t { out_of_the_other, into_the_other, within, from_host, to_host };
constexpr std::array<const char*, 5> names{"out of the other GPU", "into the other GPU", "within the GPU",
                                           "from the host", "to the host"};

void copy(kind k, const gpu& on, const gpu& other, char* host, cudaStream_t s) {
  const std::array<std::array<char*, 2>, 5> ends{{{on.memory, other.memory},
                                                  {other.memory, on.memory},
                                                  {on.memory, on.memory + bytes},
                                                  {on.memory, host},
                                                  {host, on.memory}}};
  check(cudaMemcpyAsync(ends[k][0], ends[k][1], bytes, cudaMemcpyDefault, s), "cudaMemcpyAsync");
}

}  // namespace

int main() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count < 2) give_up("two GPUs are needed; this machine shows " + std::to_string(count));
  const std::array<gpu, 2> gpus{gpu(0), gpu(1)};
  char* host = nullptr;
  check(cudaHostAlloc(reinterpret_cast<void**>(&host), bytes, cudaHostAllocPortable), "cudaHostAlloc");
  unsigned round = 0;
  for (const gpu& on : gpus) {
    const gpu& other = gpus[1 - on.device];
    for (const kind waiting : {out_of_the_other, into_the_other, within, from_host, to_host}) {
      const cudaStream_t held = on.stream();
      word("cuStreamWaitValue32", held, on.flag, ++round);
      copy(waiting, on, other, host, held);
      std::string behind;
      std::vector<cudaStream_t> streams{held};
      for (const gpu& asked : gpus) {
        for (const kind k : {out_of_the_other, into_the_other, within, from_host, to_host}) {
          streams.push_back(asked.stream());
          copy(k, asked, gpus[1 - asked.device], host, streams.back());
          if (!asked.ends(streams.back()))
            behind += std::string("; GPU ") + std::to_string(asked.device) + ": " + names[k];
        }
      }
      word("cuStreamWriteValue32", on.stream(), on.flag, round);
      for (const gpu& g : gpus) {
        check(cudaSetDevice(g.device), "cudaSetDevice");
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      }
      std::printf("GPU %d copies %s, and waits. Held up%s\n", on.device, names[waiting],
                  behind.empty() ? ": nothing" : behind.c_str());
    }
  }
  return 0;
}

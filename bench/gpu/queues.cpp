// Which copies does a waiting copy block, on two GPUs of one host? Uses only CUDA, in one process. A stream waits for
// a word that the host writes, and then copies. Copies of every kind follow in separate streams, and should not have
// to wait.
//
//     gpu_queues      prints a line per kind of waiting copy, with the copies that it blocked
//
// A GPU has a single queue for copies out of another GPU's memory, whatever their streams. parley/cuda_copies.hpp
// therefore keeps such copies in host memory while they wait.
#include <parley/bench/gpu/flag.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using namespace parley::bench;

constexpr std::size_t bytes = 1 << 20;
constexpr std::int64_t long_enough_ns = 50'000'000;
constexpr std::int64_t too_long_ns = 5'000'000'000;

/// A stream, and an event for its end. Streams are made before anything waits and are reused, because streams beyond
/// a GPU's number of queues share queues.
struct queue {
  explicit queue(int on) : device(on) {
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreateWithFlags(&end, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  /// True if all work in the stream ends within that time.
  bool ends(std::int64_t within_ns) const {
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    const std::int64_t start = now_ns();
    cudaError_t seen = cudaErrorNotReady;
    while (seen == cudaErrorNotReady && now_ns() - start < within_ns) seen = cudaEventQuery(end);
    static_cast<void>(cudaGetLastError());
    return seen == cudaSuccess;
  }
  int device;
  cudaStream_t stream = nullptr;
  cudaEvent_t end = nullptr;
};

enum kind : std::uint8_t { out_of_the_other, into_the_other, within, from_host, to_host };
constexpr std::array all_kinds{out_of_the_other, into_the_other, within, from_host, to_host};
constexpr std::array<const char*, 5> names{"out of the other GPU", "into the other GPU", "within the GPU",
                                           "from the host", "to the host"};

struct gpu {
  explicit gpu(int number)
      : device(number), held(number), asked{queue(number), queue(number), queue(number), queue(number), queue(number)} {
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaDeviceEnablePeerAccess(1 - device, 0), "cudaDeviceEnablePeerAccess");
    check(cudaMalloc(reinterpret_cast<void**>(&memory), 2 * bytes), "cudaMalloc");
  }
  int device;
  queue held;
  std::array<queue, 5> asked;  // by kind
  char* memory = nullptr;
};

void copy(kind k, const gpu& on, const gpu& other, char* host, const queue& in) {
  const std::array<std::array<char*, 2>, 5> ends{{{on.memory, other.memory},
                                                  {other.memory, on.memory},
                                                  {on.memory, on.memory + bytes},
                                                  {on.memory, host},
                                                  {host, on.memory}}};
  check(cudaSetDevice(on.device), "cudaSetDevice");
  check(cudaMemcpyAsync(ends[k][0], ends[k][1], bytes, cudaMemcpyDefault, in.stream), "cudaMemcpyAsync");
}

/// Makes copies of all kinds on both GPUs, and names those that do not end within that time.
std::string do_not_end(const std::array<gpu, 2>& gpus, char* host, std::int64_t within_ns) {
  std::string late;
  for (const gpu& g : gpus) {
    for (const kind k : all_kinds) {
      copy(k, g, gpus[1 - g.device], host, g.asked[k]);
      if (!g.asked[k].ends(within_ns)) late += std::string("; GPU ") + std::to_string(g.device) + ": " + names[k];
    }
  }
  return late;
}

}  // namespace

int main() {
  // By default CUDA gives a process 8 queues per GPU.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count < 2) give_up("two GPUs are needed; this machine shows " + std::to_string(count));
  const std::array<gpu, 2> gpus{gpu(0), gpu(1)};
  char* host = nullptr;
  check(cudaHostAlloc(reinterpret_cast<void**>(&host), bytes, cudaHostAllocPortable), "cudaHostAlloc");
  const flag released;
  // The first copy of a kind may make CUDA load something and wait for the device, so each kind is run once first.
  if (const std::string late = do_not_end(gpus, host, too_long_ns); !late.empty())
    give_up("copies that wait for nothing do not end" + late);
  unsigned round = 0;
  for (const gpu& on : gpus) {
    for (const kind waiting : all_kinds) {
      released.hold(on.held.stream, ++round);
      copy(waiting, on, gpus[1 - on.device], host, on.held);
      const std::string behind = do_not_end(gpus, host, long_enough_ns);
      released.write(round);
      for (const gpu& g : gpus) {
        bool over = g.held.ends(too_long_ns);
        for (const queue& q : g.asked) over = over && q.ends(too_long_ns);
        if (!over) give_up("copies do not end, although the word that they waited for was written");
      }
      std::printf("GPU %d copies %s, and waits. Held up%s\n", on.device, names[waiting],
                  behind.empty() ? ": nothing" : behind.c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}

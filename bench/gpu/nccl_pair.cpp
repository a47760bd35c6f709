// The time of a message from NCCL's send on one GPU to the end of its receive on the other, in two processes, and how
// much that time depends on which side must first get a signal from the other. Uses only CUDA and NCCL; the ranks
// signal each other by words in shared memory.
//
//     gpu_nccl_pair [--repetitions R]
//
// Prints WHEN/COMMUNICATOR/BYTES, each a median; all cases are measured in turns. WHEN is one of:
//
//     ahead   the receive has been in its stream for some time, as with look-ahead
//     told    the receiver enqueues it after the sender has signalled that its send is enqueued, as a stamp could
//     asked   the receiver gets a signal of a message, enqueues its receive and asks; then the sender enqueues its
//             send: parley's `nccl`
//
// COMMUNICATOR is `blocking`, or `free`: a non-blocking one, whose calls continue in a thread of NCCL. parley uses free
// ones, because they can be aborted.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <parley/bench/measure.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

constexpr std::int64_t patience_ns = 60'000'000'000;
constexpr std::int64_t ahead_ns = 200'000;  // longer than a kernel takes to start
constexpr std::size_t largest = 256 << 20;
constexpr std::array<std::size_t, 8> sizes{8, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, largest};

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) give_up(std::string(what) + ": " + cudaGetErrorString(e));
}
void check(ncclResult_t r, const char* what) {
  if (r != ncclSuccess && r != ncclInProgress) give_up(std::string(what) + ": NCCL's error " + std::to_string(int(r)));
}

template <class F>
F function_of(void* library, const char* name) {
  auto* const found = reinterpret_cast<F>(dlsym(library, name));
  if (found == nullptr) give_up(std::string("libnccl has no ") + name);
  return found;
}

enum class when : std::uint8_t { ahead, told, asked };
constexpr std::array<const char*, 3> names{"ahead", "told", "asked"};

/// Shared by the two processes. Each word is the number of the latest message that has reached that state.
struct words {
  std::array<ncclUniqueId, 2> ids{};
  std::atomic<std::int64_t> ids_here{0};
  std::atomic<std::int64_t> ready{0};  // the receiver is ready for a signal, or its receive is enqueued
  std::atomic<std::int64_t> told{0};   // the receiver knows that there is a message
  std::atomic<std::int64_t> asked{0};  // the receiver has asked for it
  std::atomic<std::int64_t> ended{0};  // its receive has ended
  std::atomic<std::int64_t> began_ns{0};
};

void wait_for(const std::atomic<std::int64_t>& word, std::int64_t number) {
  const std::int64_t until = now_ns() + patience_ns;
  while (word.load() < number) {
    if (now_ns() > until) give_up("the other process does not come");
  }
}

class end_of_pair {
 public:
  end_of_pair(words& shared, int place) : shared_(shared), place_(place) {
    check(cudaSetDevice(place), "cudaSetDevice");
    check(cudaMalloc(&memory_, largest), "cudaMalloc");
    check(cudaMemset(memory_, place + 1, largest), "cudaMemset");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    void* const library = dlopen("libnccl.so.2", RTLD_NOW);
    if (library == nullptr) give_up("NCCL was not found");
    send_ = function_of<decltype(send_)>(library, "ncclSend");
    receive_ = function_of<decltype(receive_)>(library, "ncclRecv");
    state_ = function_of<decltype(state_)>(library, "ncclCommGetAsyncError");
    if (place == 0) {
      for (auto& id : shared.ids)
        check(function_of<decltype(&ncclGetUniqueId)>(library, "ncclGetUniqueId")(&id), "ncclGetUniqueId");
      shared.ids_here = 1;
    }
    wait_for(shared.ids_here, 1);
    for (int blocking = 0; blocking < 2; ++blocking) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking;
      check(function_of<decltype(&ncclCommInitRankConfig)>(library, "ncclCommInitRankConfig")(
                &both_[blocking], 2, shared.ids[blocking], place, &config),
            "ncclCommInitRankConfig");
      until_done(both_[blocking]);
      connect(blocking);
    }
  }

  void send(when w, int blocking, std::size_t bytes, std::int64_t number) {
    wait_for(shared_.ready, number);
    if (w == when::ahead) rest(ahead_ns);
    shared_.began_ns = now_ns();
    if (w == when::asked) {
      shared_.told = number;
      wait_for(shared_.asked, number);
    }
    check(send_(memory_, bytes, ncclInt8, 1, both_[blocking], stream_), "ncclSend");
    if (w == when::told) shared_.told = number;
    until_done(both_[blocking]);
    until_empty();
    wait_for(shared_.ended, number);
  }

  double receive(when w, int blocking, std::size_t bytes, std::int64_t number) {
    if (w != when::ahead) {
      shared_.ready = number;
      wait_for(shared_.told, number);
    }
    if (w == when::asked) shared_.asked = number;
    check(receive_(memory_, bytes, ncclInt8, 0, both_[blocking], stream_), "ncclRecv");
    until_done(both_[blocking]);
    if (w == when::ahead) shared_.ready = number;
    until_empty();
    const auto took = double(now_ns() - shared_.began_ns);
    shared_.ended = number;
    return took;
  }

  /// Checks that the payload is the sender's.
  void look(std::size_t bytes) {
    std::byte last{};
    check(cudaMemcpy(&last, static_cast<const std::byte*>(memory_) + bytes - 1, 1, cudaMemcpyDefault), "cudaMemcpy");
    if (last != std::byte{1}) give_up("what was received is not what was sent");
    check(cudaMemset(memory_, place_ + 1, largest), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  /// Connects both ends: the first call on a blocking communicator waits for the other end's call.
  void connect(int blocking) {
    for (const std::size_t bytes : sizes) {
      check(place_ == 0 ? send_(memory_, bytes, ncclInt8, 1, both_[blocking], stream_)
                        : receive_(memory_, bytes, ncclInt8, 0, both_[blocking], stream_),
            "the first call");
      until_done(both_[blocking]);
      until_empty();
    }
  }
  static void rest(std::int64_t for_ns) {
    for (const std::int64_t until = now_ns() + for_ns; now_ns() < until;) {}
  }
  void until_done(ncclComm_t c) const {
    ncclResult_t seen = ncclInProgress;
    while (seen == ncclInProgress) check(state_(c, &seen), "ncclCommGetAsyncError");
    check(seen, "a communicator");
  }
  void until_empty() const {
    check(cudaEventRecord(event_, stream_), "cudaEventRecord");
    cudaError_t seen = cudaErrorNotReady;
    while (seen == cudaErrorNotReady) seen = cudaEventQuery(event_);
    check(seen, "cudaEventQuery");
  }

  words& shared_;
  int place_;
  void* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  std::array<ncclComm_t, 2> both_{};  // [0] free, [1] blocking
  decltype(&ncclSend) send_ = nullptr;
  decltype(&ncclRecv) receive_ = nullptr;
  decltype(&ncclCommGetAsyncError) state_ = nullptr;
};

void run(words& shared, int place, std::int64_t repetitions) {
  end_of_pair here(shared, place);
  std::int64_t number = 0;
  for (const std::size_t bytes : sizes) {
    std::map<std::string, std::vector<double>> times;
    const std::int64_t turns = bytes > (16 << 20) ? std::max<std::int64_t>(repetitions / 8, 5) : repetitions;
    for (std::int64_t n = -5; n < turns; ++n) {
      for (const when w : {when::ahead, when::told, when::asked}) {
        for (int blocking = 0; blocking < 2; ++blocking) {
          ++number;
          if (place == 0) {
            here.send(w, blocking, bytes, number);
            continue;
          }
          const double took = here.receive(w, blocking, bytes, number);
          const std::string name = names[std::size_t(w)] + std::string(blocking == 1 ? "/blocking/" : "/free/");
          if (n >= 0) times[name + std::to_string(bytes)].push_back(took);
          if (n == -5) here.look(bytes);
        }
      }
    }
    for (auto& [name, all] : times) report(name, median(std::move(all)), "ns");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::int64_t repetitions = given.number("repetitions", 200);
  void* const page = mmap(nullptr, sizeof(words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) give_up("no shared memory");
  auto& shared = *new (page) words;
  const pid_t other = fork();
  if (other < 0) give_up("no second process");
  if (other == 0) die_with_parent();
  run(shared, other == 0 ? 1 : 0, repetitions);
  if (other == 0) return 0;
  int status = 0;
  waitpid(other, &status, 0);
  return status == 0 ? 0 : 1;
}

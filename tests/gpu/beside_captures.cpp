// A program may capture a CUDA graph while parley works, in the rank's thread or in another one. CUDA's global capture mode, the default,
// forbids all threads the calls that CUDA calls unsafe: a capture during which such a call is made cannot be ended.
#include <parley/tests/gpu/must.hpp>

#include <parley/cuda_copies.hpp>
#include <parley/cuda_runtime.hpp>

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>

using namespace parley;
using runtime::errc;
using tests::must;
using transports::cuda_copies;
using transports::cuda_driver;
using transports::cuda_memory;

namespace {

constexpr std::size_t bytes = 4'096;

void wait_for(void* may_end) { static_cast<std::atomic<bool>*>(may_end)->wait(false); }

class graph_of_the_program {
 public:
  explicit graph_of_the_program(void* memory) : memory_(memory) {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  graph_of_the_program(const graph_of_the_program&) = delete;
  graph_of_the_program& operator=(const graph_of_the_program&) = delete;
  ~graph_of_the_program() { cudaStreamDestroy(stream_); }
  void begin() { must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture"); }
  cudaError_t end() {
    const cudaError_t put = cudaMemsetAsync(memory_, 7, bytes, stream_);
    cudaGraph_t made = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &made);
    if (made != nullptr) cudaGraphDestroy(made);
    cudaGetLastError();
    return put != cudaSuccess ? put : ended;
  }

 private:
  void* memory_;
  cudaStream_t stream_ = nullptr;
};

/// Does what parley does for messages, and checks that all of it succeeds.
void work(cuda_driver& gpu, cuda_copies& copies) {
  const auto from = cuda_memory::on_device(gpu, 0, bytes);
  const auto to = cuda_memory::on_device(gpu, 0, bytes);
  const auto pinned = cuda_memory::pinned(gpu, bytes);
  const transports::cuda_stream s = gpu.make_stream(0);
  const transports::cuda_event e = gpu.make_event(0);
  std::atomic<bool> may_end = false;
  CHECK(gpu.copy(to.bytes().data(), from.bytes().data(), bytes, s) == errc::none);
  CHECK(cudaLaunchHostFunc(s, wait_for, &may_end) == cudaSuccess);
  CHECK(gpu.record(e, s) == errc::none);
  CHECK(gpu.query(e) == errc::pending);
  may_end = true;
  may_end.notify_one();
  errc seen = errc::pending;
  while (seen == errc::pending) seen = gpu.query(e);
  CHECK(seen == errc::none);
  CHECK(copies.check(to.bytes(), 1));
  CHECK(gpu.export_memory(to.bytes().data()));
  gpu.destroy(e);
  gpu.destroy(s);
}

}  // namespace

TEST_CASE("a graph that another thread captures in CUDA's global mode goes on during all CUDA calls of parley") {
  cuda_driver& gpu = *transports::cuda_runtime().value();
  cuda_copies copies(gpu, 0);
  const auto memory = cuda_memory::on_device(gpu, 0, bytes);
  work(gpu, copies);
  std::atomic<int> step = 0;
  cudaError_t ended = cudaErrorUnknown;
  std::thread program([&] {
    graph_of_the_program graph(memory.bytes().data());
    graph.begin();
    step = 1;
    step.notify_one();
    step.wait(1);
    ended = graph.end();
  });
  step.wait(0);
  work(gpu, copies);
  step = 2;
  step.notify_one();
  program.join();
  CHECK(ended == cudaSuccess);
}

TEST_CASE("a graph that the rank's own thread captures goes on during parley's calls, and the thread's unsafe calls "
          "still fail") {
  cuda_driver& gpu = *transports::cuda_runtime().value();
  cuda_copies copies(gpu, 0);
  const auto memory = cuda_memory::on_device(gpu, 0, bytes);
  graph_of_the_program graph(memory.bytes().data());
  graph.begin();
  work(gpu, copies);
  CHECK(graph.end() == cudaSuccess);
  graph.begin();
  void* made = nullptr;
  CHECK(cudaMalloc(&made, bytes) != cudaSuccess);  // the program's own unsafe calls still fail
  CHECK(graph.end() != cudaSuccess);
}

// What tests/ops/devices/device_buffers.cpp tests with the fake, here with real CUDA: the errors name buffers that an op on a GPU cannot
// use. CUDA keeps the last error of a thread: an error of the program stays, and parley leaves none of its own.
#include <parley/tests/gpu/must.hpp>

#include <parley/tests/support/awaited.hpp>

#include <parley/cuda_copies.hpp>
#include <parley/cuda_runtime.hpp>

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::runtime;
using namespace parley::tests;
using transports::cuda_copies;
using transports::cuda_driver;
using transports::cuda_memory;
using transports::memory_place;

namespace {

constexpr std::size_t bytes = 4'096;

/// A function of the driver that the runtime has loaded, in its form of CUDA 4. Looked up before other contexts exist, because the
/// runtime's look-up works in the current context.
template <class... Parameters>
class driver_function {
 public:
  explicit driver_function(const char* name) : name_(name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult how{};
    must(cudaGetDriverEntryPointByVersion(name, &found, 4000, cudaEnableDefault, &how), name);
    if (found == nullptr) raise({errc::unavailable, std::string("the driver has no ") + name});
    function_ = reinterpret_cast<int (*)(Parameters...)>(found);
  }
  void operator()(Parameters... parameters) const { must(static_cast<cudaError_t>(function_(parameters...)), name_); }

 private:
  const char* name_;
  int (*function_)(Parameters...) = nullptr;
};

/// Memory of a separate context on a device. The current context of this thread stays the same.
class other_context {
 public:
  explicit other_context(int device) {
    create_(&context_, 0, device);
    unsigned long long made = 0;
    allocate_(&made, bytes);
    memory_ = {reinterpret_cast<std::byte*>(made), bytes};
    void* popped = nullptr;
    pop_(&popped);
  }
  ~other_context() { destroy_(context_); }
  other_context(const other_context&) = delete;
  other_context& operator=(const other_context&) = delete;
  std::span<std::byte> memory() const { return memory_; }

 private:
  driver_function<void**, unsigned, int> create_{"cuCtxCreate"};
  driver_function<unsigned long long*, std::size_t> allocate_{"cuMemAlloc"};
  driver_function<void**> pop_{"cuCtxPopCurrent"};
  driver_function<void*> destroy_{"cuCtxDestroy"};
  void* context_ = nullptr;
  std::span<std::byte> memory_;
};

struct first_gpu {
  first_gpu() {
    driver.make_current(0);
    cudaGetLastError();  // clears the error of an earlier case
  }
  cuda_driver& driver = *transports::cuda_runtime().value();
  cuda_copies copies{driver, 0};
};

void is_refused(cuda_copies& copies, std::span<const std::byte> memory, const std::string& why) {
  CAPTURE(why);
  const result<> how = copies.check(memory, sizeof(float));
  REQUIRE(how.code() == errc::bad_argument);
  const std::string& text = how.reason().text();
  CHECK_MESSAGE(text.find(why) != std::string::npos, text);
  CHECK_MESSAGE(text.find(fmt::format("{} bytes at {}, for an op whose buffers lie on device 0", memory.size(),
                                      fmt::ptr(memory.data()))) != std::string::npos,
                text);
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

/// The error of a call of the program, which has not asked for it yet.
constexpr cudaError_t left_error = cudaErrorInvalidDevice;
void leave_error() { REQUIRE(cudaSetDevice(-1) == left_error); }

std::vector<std::byte> read(std::span<const std::byte> there) {
  std::vector<std::byte> here(there.size());
  must(cudaMemcpy(here.data(), there.data(), there.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return here;
}

void CUDART_CB wait_for(void* word) { static_cast<std::atomic<bool>*>(word)->wait(false); }

}  // namespace

TEST_CASE("memory that a GPU's copies cannot use is refused with the reason, and other memory is accepted") {
  first_gpu gpu;
  const auto mine = cuda_memory::on_device(gpu.driver, 0, bytes);
  const auto pinned = cuda_memory::pinned(gpu.driver, bytes);
  CHECK(gpu.copies.check(mine.bytes(), sizeof(float)));
  CHECK(gpu.copies.check(mine.bytes().subspan(4), sizeof(float)));
  CHECK(gpu.copies.check(pinned.bytes(), sizeof(float)));

  SUBCASE("freed, in a block with other memory and in a block without") {
    for (const std::size_t size : {bytes, std::size_t{64} << 20U}) {
      auto* const freed = static_cast<std::byte*>(gpu.driver.allocate(0, size));
      CHECK(gpu.copies.check({freed, size}, sizeof(float)));
      gpu.driver.release(freed, memory_place::kind::device);
      is_refused(gpu.copies, {freed, size}, "lie in host memory, or were freed");
    }
  }
  SUBCASE("of the host") {
    const std::vector<std::byte> here(bytes);
    is_refused(gpu.copies, here, "lie in host memory, or were freed");
  }
  SUBCASE("unaligned") {
    is_refused(gpu.copies, mine.bytes().subspan(2, bytes - 4), "do not begin at a multiple of 4");
    CHECK(gpu.copies.check(mine.bytes().subspan(2, bytes - 4), 1));
  }
  SUBCASE("of another context") {
    const other_context other(0);
    is_refused(gpu.copies, other.memory(), "belong to another context");
    CHECK(gpu.copies.check(mine.bytes(), sizeof(float)));
  }
  SUBCASE("of another device") {
    if (gpu.driver.devices().size() < 2) {
      MESSAGE("there is one GPU: not looked at");
      return;
    }
    const auto theirs = cuda_memory::on_device(gpu.driver, 1, bytes);
    is_refused(gpu.copies, theirs.bytes(), "lie on device 1");
  }
}

TEST_CASE("a copy by a kernel succeeds in a thread that has an error left, and does not clear that error") {
  first_gpu gpu;
  const auto from = cuda_memory::on_device(gpu.driver, 0, bytes);
  const auto to = cuda_memory::on_device(gpu.driver, 0, bytes);
  must(cudaMemset(from.bytes().data(), 7, bytes), "cudaMemset");
  must(cudaMemset(to.bytes().data(), 0, bytes), "cudaMemset");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  // The kernel copies words of 16 bytes, of 4 bytes and of 1 byte.
  for (const std::size_t size : {bytes, bytes - 4, bytes - 1}) {
    CAPTURE(size);
    parley::tests::awaited done;
    leave_error();
    CHECK(gpu.copies.copy(to.bytes().first(size), from.bytes().first(size), &done, nullptr, {.kernel_blocks = 16}) ==
          errc::pending);
    CHECK(cudaGetLastError() == left_error);
    gpu.copies.drain();
    CHECK(done.outcome == errc::none);
    CHECK(read(to.bytes().first(size)) == std::vector<std::byte>(size, std::byte{7}));
    must(cudaMemset(to.bytes().data(), 0, bytes), "cudaMemset");
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  CHECK(gpu.copies.statistics().by_kernel == 3);
}

TEST_CASE("all other kernels start in a thread that has an error left, and do not clear that error") {
  first_gpu gpu;
  const auto a = cuda_memory::on_device(gpu.driver, 0, bytes);
  const auto b = cuda_memory::on_device(gpu.driver, 0, bytes);
  must(cudaMemset(a.bytes().data(), 0, bytes), "cudaMemset");
  must(cudaMemset(b.bytes().data(), 0, bytes), "cudaMemset");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const transports::cuda_stream s = gpu.copies.prompt();
  const memory_pieces rows{.base = b.bytes().data(), .bytes = 64, .outer = {{{1, 0}, {8, 128}}}};
  const std::array<const std::byte*, 1> parts{b.bytes().data()};
  leave_error();
  CHECK(gpu.driver.add(a.bytes().data(), b.bytes().data(), bytes, summand::f32, s) == errc::none);
  CHECK(gpu.driver.add_up(a.bytes(), parts, 4, s) == errc::none);
  for (const auto way : {transports::pieces_way::gather, transports::pieces_way::scatter})
    CHECK(gpu.driver.move_pieces(a.bytes().data(), rows, way, s) == errc::none);
  CHECK(cudaGetLastError() == left_error);
  must(cudaStreamSynchronize(s), "cudaStreamSynchronize");
}

TEST_CASE("querying an event that a stream has not reached yet leaves no error behind") {
  first_gpu gpu;
  const transports::cuda_stream s = gpu.driver.make_stream(0);
  const transports::cuda_event e = gpu.driver.make_event(0);
  std::atomic<bool> may_end = false;
  must(cudaLaunchHostFunc(s, wait_for, &may_end), "cudaLaunchHostFunc");
  CHECK(gpu.driver.record(e, s) == errc::none);
  CHECK(gpu.driver.query(e) == errc::pending);
  CHECK(cudaGetLastError() == cudaSuccess);
  may_end = true;
  may_end.notify_one();
  must(cudaStreamSynchronize(s), "cudaStreamSynchronize");
  CHECK(gpu.driver.query(e) == errc::none);
  gpu.driver.destroy(e);
  gpu.driver.destroy(s);
}

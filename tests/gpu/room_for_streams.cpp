// Creates streams while one stream waits. CUDA must have room for the new streams, or creating them blocks until that stream goes on.
#include <parley/cuda_copies.hpp>
#include <parley/cuda_runtime.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

using namespace parley;
using transports::cuda_driver;
using transports::cuda_memory;

TEST_CASE("a hundred streams are made while one waits for a message") {
  cuda_driver& gpu = *transports::cuda_runtime().value();
  transports::cuda_copies copies(gpu, 0);
  const auto word = cuda_memory::pinned(gpu, sizeof(std::uint32_t));
  auto& came = *reinterpret_cast<std::uint32_t*>(word.bytes().data());
  came = 0;
  const transports::cuda_stream waits = gpu.make_stream(0);
  REQUIRE(gpu.wait_value(waits, &came, 1) == runtime::errc::none);
  std::atomic<bool> all_made = false;
  std::atomic<bool> was_held = false;
  std::thread lets_go([&] {
    for (int i = 0; i < 2'000 && !all_made; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    was_held = !all_made;
    std::atomic_ref(came).store(1);
  });
  std::vector<transports::cuda_stream> made;
  for (std::size_t i = 0; i < 100; ++i) made.push_back(gpu.make_stream(0));
  all_made = true;
  lets_go.join();
  CHECK_FALSE(was_held);
  for (const transports::cuda_stream s : made) gpu.destroy(s);
  gpu.destroy(waits);
}

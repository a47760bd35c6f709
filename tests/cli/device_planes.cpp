#include <parley/cli/payload/device_planes.hpp>

#include <parley/tests/support/devices/fake_cuda.hpp>

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

using namespace parley;
using namespace parley::cli;
using namespace parley::tests;

TEST_CASE("doctor sends a message by cuda_copy and one by staged, on one device or between two") {
  for (const int devices : {1, 2}) {
    CAPTURE(devices);
    fake_cuda gpu(devices);
    CHECK(try_cuda_copy(gpu));
    CHECK(gpu.copies() == 3);  // host to device, device to device, device to host
    CHECK(try_staged(gpu));
    CHECK(gpu.copies() == 7);  // 4 more: host to device, device to host, host to device, device to host
    CHECK(gpu.blocks() == 0);
    CHECK(gpu.pinned() == 0);
  }
}

TEST_CASE("doctor reports a plane that fails as missing, with the device's error") {
  fake_cuda gpu;
  SUBCASE("during a copy") {
    gpu.break_at_copy = 2;
    CHECK(try_cuda_copy(gpu).reason().what() == "device_failed: device 0: cudaErrorIllegalAddress: planted");
  }
  SUBCASE("without enough memory") {
    gpu.memory_left = 5'000;
    CHECK(try_staged(gpu).reason().text().find("cudaErrorMemoryAllocation") != std::string::npos);
  }
  SUBCASE("on a device that cannot signal the end of a copy") {
    gpu.word_operations = false;
    CHECK(try_cuda_copy(gpu).reason().text().find("cannot write a word to memory") != std::string::npos);
  }
}

TEST_CASE("doctor says why UCX does not move device memory on a machine without GPUs") {
  if (std::filesystem::exists("/dev/nvidia0")) return;
  fake_cuda gpu;
  CHECK(ask_ucx(gpu).reason().text().find("says that it takes no CUDA memory") != std::string::npos);
}

TEST_CASE("doctor says on a machine with one GPU that NCCL does not let two ranks share it") {
  CHECK(std::string(what_nccl_takes(1)).find("this machine has one GPU") != std::string::npos);
  CHECK(std::string(what_nccl_takes(2)).find("this machine has one GPU") == std::string::npos);
}

#include <parley/tests/support/devices/fake_cuda.hpp>

#include <string>
#include <utility>

namespace parley::tests {

fake_cuda::fake_cuda(int devices) {
  for (int d = 0; d < devices; ++d)
    devices_.push_back({.name = "fake",
                        .compute_capability = 90,
                        .memory_bytes = 1U << 30U,
                        .multiprocessors = 1,
                        .uuid = "GPU-fake-" + std::to_string(d)});
}
fake_cuda::fake_cuda(std::vector<transports::cuda_device> devices) : devices_(std::move(devices)) {}
fake_cuda::~fake_cuda() {
  for (auto& [at, held] : blocks_) ::munmap(at, held.reserved);
}

}  // namespace parley::tests

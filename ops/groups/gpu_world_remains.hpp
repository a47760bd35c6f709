#pragma once
/// What the communicators of a `gpu_world_source` (gpu_sum.hpp) leave behind.
#include <parley/transports/cuda/cuda_driver.hpp>

#include <vector>

namespace parley::ops {

/// Keeps the memory of communicators that have ended, until the source is destroyed; the op keeps the source until the rank ends. The
/// memory cannot be freed earlier, for two reasons. Other members may still read it. And CUDA frees memory only once the device is idle,
/// which may require that this thread first aborts another communicator. The next communicator reuses a box from here. It writes to the box
/// only after all members have met, and by then no member uses the old boxes.
struct gpu_world_remains {
  explicit gpu_world_remains(transports::cuda_driver& d) noexcept : driver(d) {}
  ~gpu_world_remains() {
    for (void* const m : mapped) driver.close_imported(m);
  }
  gpu_world_remains(const gpu_world_remains&) = delete;
  gpu_world_remains& operator=(const gpu_world_remains&) = delete;
  transports::cuda_driver& driver;
  std::vector<void*> mapped;
  std::vector<transports::cuda_memory> boxes;
  std::vector<transports::cuda_memory> memory;
};

}  // namespace parley::ops

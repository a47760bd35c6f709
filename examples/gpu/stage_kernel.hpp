#pragma once
// The GPU work of a stage of the measured pipeline: it computes every element, then spins until its time is over.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace examples {

/// x(i) = in[i], or base + i % 1000 if `in` is null; out[i] = x(i) * factor + term. Counts in `wrong` the elements of
/// `in` that differ from (base + i % 1000) * expected_factor.
struct stage_step {
  const float* in = nullptr;
  float* out = nullptr;
  std::size_t count = 0;
  float base = 0;
  float expected_factor = 1;
  float factor = 1;
  float term = 0;
  std::uint64_t spin_ns = 0;
  unsigned* wrong = nullptr;
  std::uint64_t* times = nullptr;  ///< if not null, receives the times at which the kernel began and ended
};
cudaError_t launch_stage(const stage_step& step, int device, cudaStream_t stream);

}  // namespace examples

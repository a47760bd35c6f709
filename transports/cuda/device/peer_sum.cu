// Sums over the memory of GPUs that reach each other.
//
// `peer_sum` runs as one kernel on each member: it writes the member's numbers into the member's own box, sets flags in
// the others' boxes, and reads their boxes. A block waits only for the blocks with the same number in the other kernels,
// so that no grid has to be resident as a whole.
#include <parley/transports/cuda/device/kernels.hpp>
#include <parley/transports/cuda/device/launch.hpp>

#include <cstdint>
#include <cuda/atomic>

namespace parley::transports {

namespace {

constexpr unsigned threads_per_block = 512;

using flag = cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>;

__device__ std::uint32_t& flag_of(const peer_boxes& with, unsigned owner, unsigned from) {
  return reinterpret_cast<std::uint32_t*>(with.box[owner])[from * peer_boxes::most_blocks + blockIdx.x];
}

// The device counts the calls, so that calls replayed from a capture also count. The block that ends last advances the count: by then
// all blocks have read it.
__device__ void count_call(const peer_boxes& with, std::uint32_t number) {
  std::uint32_t& blocks_over = with.calls[1];
  if (atomicAdd(&blocks_over, 1U) != gridDim.x - 1) return;
  blocks_over = 0;
  with.calls[0] = number;
}

__global__ void __launch_bounds__(threads_per_block) peer_sum(float* data, std::size_t count, const peer_boxes with) {
  if (with.members == 0) return;  // from `launch_peer_sums_once`
  const std::uint32_t number = with.calls[0] + 1;
  // A stage is written again two calls later. By then its readers have set their flags for the call in between, so their kernels of
  // this call have ended.
  const std::size_t stage = peer_boxes::head_bytes + (number % 2) * with.stage_bytes;
  const std::size_t step = std::size_t{gridDim.x} * threads_per_block;
  const std::size_t first = std::size_t{blockIdx.x} * threads_per_block + threadIdx.x;
  auto* const mine = reinterpret_cast<float*>(with.box[with.place] + stage);
  for (std::size_t i = first; i < count; i += step) mine[i] = data[i];
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x < with.members && threadIdx.x != with.place) {
    flag(flag_of(with, threadIdx.x, with.place)).store(number, cuda::memory_order_release);
    const flag theirs(flag_of(with, with.place, threadIdx.x));
    while (static_cast<std::int32_t>(theirs.load(cuda::memory_order_acquire) - number) < 0 &&
           *const_cast<const volatile std::uint32_t*>(with.stop) == 0) {}
    __threadfence_system();
  }
  __syncthreads();
  for (std::size_t i = first; i < count; i += step) {
    float sum = 0;
    for (unsigned m = 0; m < with.members; ++m)
      sum += *const_cast<const volatile float*>(reinterpret_cast<const float*>(with.box[m] + stage) + i);
    data[i] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) count_call(with, number);
}

// The arguments of `add_parts`. All parts were complete before the kernel began, so it waits for nothing.
struct sum_parts {
  const float* part[peer_boxes::most_members];
  unsigned count;
};

__global__ void __launch_bounds__(threads_per_block) add_parts(float* sums, std::size_t count, const sum_parts of) {
  const std::size_t step = std::size_t{gridDim.x} * threads_per_block;
  for (std::size_t i = std::size_t{blockIdx.x} * threads_per_block + threadIdx.x; i < count; i += step) {
    float sum = of.part[0][i];
    for (unsigned m = 1; m < of.count; ++m) sum += of.part[m][i];
    sums[i] = sum;
  }
}

unsigned grid_for(std::size_t count, unsigned blocks) {
  const std::size_t useful = (count + threads_per_block - 1) / threads_per_block;
  return static_cast<unsigned>(useful < blocks ? useful : blocks);
}

}  // namespace

cudaError_t launch_peer_sums_once(cudaStream_t s) {
  return first_failure({launch_kernel(peer_sum, 1, threads_per_block, s, nullptr, 0, peer_boxes{}),
                        launch_kernel(add_parts, 1, threads_per_block, s, nullptr, 0, sum_parts{})});
}

cudaError_t launch_peer_sum(void* floats, std::size_t bytes, const peer_boxes& with, cudaStream_t s) {
  const std::size_t count = bytes / sizeof(float);
  if (count == 0) return cudaSuccess;
  // All members must start the same number of blocks, because there is one flag for each block.
  return launch_kernel(peer_sum, grid_for(count, with.blocks), threads_per_block, s, static_cast<float*>(floats), count,
                       with);
}

cudaError_t launch_add_up(void* floats, std::size_t bytes, std::span<const std::byte* const> parts, unsigned blocks,
                          cudaStream_t s) {
  const std::size_t count = bytes / sizeof(float);
  if (count == 0) return cudaSuccess;
  if (parts.empty() || parts.size() > peer_boxes::most_members) return cudaErrorInvalidValue;
  sum_parts of{};
  for (const std::byte* const p : parts) of.part[of.count++] = reinterpret_cast<const float*>(p);
  return launch_kernel(add_parts, grid_for(count, blocks), threads_per_block, s, static_cast<float*>(floats), count,
                       of);
}

}  // namespace parley::transports

// A sum over the memory of GPUs that reach each other, in one kernel: each member writes its numbers into its own box, tells
// the others, and reads theirs. A block waits for the blocks of its own number only, so that no grid has to be resident
// as a whole.
#include <parley/transports/cuda/kernels.hpp>

#include <cstdint>
#include <cuda/atomic>

namespace parley::transports {

namespace {

constexpr unsigned threads_per_block = 512;

using flag = cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>;

__device__ std::uint32_t& flag_of(const peer_boxes& with, unsigned owner, unsigned from) {
  return reinterpret_cast<std::uint32_t*>(with.box[owner])[from * peer_boxes::most_blocks + blockIdx.x];
}

// Calls are counted on the device, so that one that is replayed from a capture counts, too. The block that ends last does it: all
// have read the number by then.
__device__ void count_call(const peer_boxes& with, std::uint32_t number) {
  std::uint32_t& blocks_over = with.calls[1];
  if (atomicAdd(&blocks_over, 1U) != gridDim.x - 1) return;
  blocks_over = 0;
  with.calls[0] = number;
}

__global__ void __launch_bounds__(threads_per_block) peer_sum(float* data, std::size_t count, const peer_boxes with) {
  const std::uint32_t number = with.calls[0] + 1;
  // A stage is written again two calls later. By then its readers have told of the call between, and so ended this one.
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

}  // namespace

cudaError_t load_peer_sum() {
  cudaFuncAttributes a{};
  return cudaFuncGetAttributes(&a, reinterpret_cast<const void*>(&peer_sum));
}

cudaError_t launch_peer_sum(void* floats, std::size_t bytes, const peer_boxes& with, cudaStream_t s) {
  const std::size_t count = bytes / sizeof(float);
  if (count == 0) return cudaSuccess;
  // All members start as many blocks: their flags are by block.
  const std::size_t useful = (count + threads_per_block - 1) / threads_per_block;
  const auto grid = static_cast<unsigned>(useful < with.blocks ? useful : with.blocks);
  peer_sum<<<grid, threads_per_block, 0, s>>>(static_cast<float*>(floats), count, with);
  return cudaGetLastError();
}

}  // namespace parley::transports

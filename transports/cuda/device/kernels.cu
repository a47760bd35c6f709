// Copies memory by a kernel, for sizes where starting a copy engine takes longer than the copy.
#include <parley/transports/cuda/device/kernels.hpp>
#include <parley/transports/cuda/device/launch.hpp>

#include <cstdint>

namespace parley::transports {

namespace {

constexpr unsigned threads_per_block = 512;
constexpr unsigned unroll = 4;  // loads in flight per thread, before the first store

// Both addresses and the size must be multiples of `sizeof(Word)`.
template <class Word>
__global__ void __launch_bounds__(threads_per_block)
    copy_words(Word* __restrict__ to, const Word* __restrict__ from, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * threads_per_block;
  std::size_t at = std::size_t{blockIdx.x} * threads_per_block + threadIdx.x;
  for (; at + (unroll - 1) * step < count; at += unroll * step) {
    Word held[unroll];
#pragma unroll
    for (unsigned k = 0; k < unroll; ++k) held[k] = from[at + k * step];
#pragma unroll
    for (unsigned k = 0; k < unroll; ++k) to[at + k * step] = held[k];
  }
  for (; at < count; at += step) to[at] = from[at];
}

template <class Word>
cudaError_t launch(void* to, const void* from, std::size_t bytes, unsigned blocks, cudaStream_t s) {
  const std::size_t count = bytes / sizeof(Word);
  const std::size_t useful = (count + threads_per_block - 1) / threads_per_block;
  const auto grid = static_cast<unsigned>(useful < blocks ? useful : blocks);
  return launch_kernel(copy_words<Word>, grid, threads_per_block, s, static_cast<Word*>(to),
                       static_cast<const Word*>(from), count);
}

template <class Word>
cudaError_t launch_once(cudaStream_t s) {
  return launch_kernel(copy_words<Word>, 1, threads_per_block, s, nullptr, nullptr, 0);
}

}  // namespace

cudaError_t launch_copies_once(cudaStream_t s) {
  return first_failure({launch_once<uint4>(s), launch_once<std::uint32_t>(s), launch_once<unsigned char>(s)});
}

cudaError_t launch_copy(void* to, const void* from, std::size_t bytes, unsigned blocks, cudaStream_t s) {
  if (bytes == 0) return cudaSuccess;
  if (blocks == 0) blocks = 1;
  const auto alignment = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | bytes;
  if (alignment % sizeof(uint4) == 0) return launch<uint4>(to, from, bytes, blocks, s);
  if (alignment % sizeof(std::uint32_t) == 0) return launch<std::uint32_t>(to, from, bytes, blocks, s);
  return launch<unsigned char>(to, from, bytes, blocks, s);
}

}  // namespace parley::transports

#include <parley/cli/payload/payload_kernels.hpp>

namespace parley::cli {

namespace {

constexpr unsigned threads = 256;
constexpr unsigned most_blocks = 1024;

unsigned blocks_for(std::size_t lanes) {
  const std::size_t wanted = (lanes + threads) / threads;  // one more for a last odd byte
  return static_cast<unsigned>(wanted < most_blocks ? wanted : most_blocks);
}

// Payloads may begin at any address and have an odd length, so 16-bit lanes are read and written byte by byte.
__device__ unsigned load(const unsigned char* at) { return at[0] | (unsigned{at[1]} << 8U); }
__device__ void store(unsigned char* at, unsigned value) {
  at[0] = static_cast<unsigned char>(value);
  at[1] = static_cast<unsigned char>(value >> 8U);
}

__global__ void make(unsigned slope, unsigned offset, unsigned char* into, std::size_t bytes) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t lanes = bytes / 2;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i <= lanes; i += step) {
    const auto value = static_cast<unsigned>(slope * i + offset);
    if (i < lanes) {
      store(into + 2 * i, value);
    } else if (bytes % 2 != 0) {
      into[2 * i] = static_cast<unsigned char>(value);
    }
  }
}

__global__ void multiply(unsigned char* payload, std::size_t bytes, unsigned factor) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t lanes = bytes / 2;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i <= lanes; i += step) {
    if (i < lanes) {
      store(payload + 2 * i, load(payload + 2 * i) * factor);
    } else if (bytes % 2 != 0) {
      payload[2 * i] = static_cast<unsigned char>(payload[2 * i] * factor);
    }
  }
}

}  // namespace

cudaError_t make_payload_kernel(std::uint16_t slope, std::uint16_t offset, std::byte* into, std::size_t bytes,
                                int device, cudaStream_t stream) {
  if (const cudaError_t e = cudaSetDevice(device); e != cudaSuccess) return e;
  make<<<blocks_for(bytes / 2), threads, 0, stream>>>(slope, offset, reinterpret_cast<unsigned char*>(into), bytes);
  return cudaGetLastError();
}

cudaError_t multiply_kernel(std::byte* payload, std::size_t bytes, std::uint16_t factor, int device,
                            cudaStream_t stream) {
  if (const cudaError_t e = cudaSetDevice(device); e != cudaSuccess) return e;
  multiply<<<blocks_for(bytes / 2), threads, 0, stream>>>(reinterpret_cast<unsigned char*>(payload), bytes, factor);
  return cudaGetLastError();
}

}  // namespace parley::cli

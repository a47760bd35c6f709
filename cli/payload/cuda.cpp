#include <parley/cli/payload/cuda.hpp>
#include <parley/cli/payload/payload.hpp>

#ifdef PARLEY_WITH_CUDA
#include <parley/cli/payload/payload_kernels.hpp>
#include <parley/cublas_runtime.hpp>
#include <parley/cuda_runtime.hpp>
#include <parley/nccl_runtime.hpp>
#endif

namespace parley::cli {

#ifdef PARLEY_WITH_CUDA

namespace {

std::string words(cudaError_t e, const char* kernel) {
  return e == cudaSuccess ? std::string()
                          : std::string(cudaGetErrorName(e)) + ": " + cudaGetErrorString(e) + ", in kernel " + kernel;
}

}  // namespace

runtime::result<transports::cuda_driver*> find_cuda() { return transports::cuda_runtime(); }
runtime::result<transports::nccl_library*> find_nccl() { return transports::nccl_runtime(); }
runtime::result<transports::cublas_library*> find_cublas() { return transports::cublas_runtime(); }

std::string launch_make_payload(std::uint64_t number, std::span<std::byte> into, int device,
                                transports::cuda_stream stream) {
  const payload_ramp ramp = ramp_of(number);
  return words(make_payload_kernel(ramp.slope, ramp.offset, into.data(), into.size(), device, stream), "make_payload");
}

std::string launch_multiply(std::span<std::byte> payload, std::uint16_t factor, int device,
                            transports::cuda_stream stream) {
  return words(multiply_kernel(payload.data(), payload.size(), factor, device, stream), "multiply");
}

#else

namespace {
const char* const without = "this build has no GPU planes; build with the CUDA toolkit installed (cmake --preset cuda)";
}

runtime::result<transports::cuda_driver*> find_cuda() { return runtime::error{runtime::errc::unavailable, without}; }
runtime::result<transports::nccl_library*> find_nccl() { return runtime::error{runtime::errc::unavailable, without}; }
runtime::result<transports::cublas_library*> find_cublas() {
  return runtime::error{runtime::errc::unavailable, without};
}
std::string launch_make_payload(std::uint64_t, std::span<std::byte>, int, transports::cuda_stream) { return without; }
std::string launch_multiply(std::span<std::byte>, std::uint16_t, int, transports::cuda_stream) { return without; }

#endif

}  // namespace parley::cli

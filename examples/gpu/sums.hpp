#pragma once
// Shared by the examples that sum over all ranks: the op, on an NCCL communicator.
#include "device.hpp"

#include <parley/cuda_space.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/nccl_runtime.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace examples {

constexpr std::size_t largest_for_kernel = 16 << 20;

inline parley::transports::nccl_library& nccl() {
  const auto library = parley::transports::nccl_runtime();
  if (!library) parley::runtime::raise(library.reason());
  return **library;
}

/// Options for sums of floats in device memory. The caller adds the configs.
inline parley::task<parley::ops::symmetric_options> sums_of_all(parley::job& here,
                                                                parley::transports::cuda_space& space,
                                                                std::string name) {
  parley::rank& self = here.self();
  const parley::ops::gpu_world_source::options with{.nccl = &nccl(), .kernel_bytes = largest_for_kernel};
  const auto source = std::make_shared<parley::ops::gpu_world_source>(self, name, *here.gpu(), with);
  parley::ops::symmetric_options op;
  op.communicator = co_await source->connect_all();
  op.name = std::move(name);
  op.rehearse = source;
  op.memory = &space;
  co_return op;
}

}  // namespace examples

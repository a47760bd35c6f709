#pragma once
/// Loads the NCCL library of this machine. Part of `parley::cuda`.
///
///     result<nccl_library*> nccl = nccl_runtime();        // or why there is none
///
/// The first call looks for libnccl.so.2 in the places where the dynamic linker looks for libraries (LD_LIBRARY_PATH). The library stays
/// loaded until the process ends. A program that has no GPU needs no NCCL.
#include <parley/transports/nccl/nccl_library.hpp>

namespace parley::transports {

/// The error says what is missing: the library, or a version that is new enough.
runtime::result<nccl_library*> nccl_runtime();

}  // namespace parley::transports

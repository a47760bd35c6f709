#pragma once
/// The algorithms of cuBLASLt that are worth a trial for a product.
///
///     for (gemm_algorithm& g : algorithms_for(library, product, guesses, workspace_bytes, 2048)) … id_of(g) …
///
/// cuBLASLt has some 100,000 algorithms for a product on an H200, most of them several times slower than the best. The list begins with
/// `guesses`, which cuBLASLt's heuristic chose. Those that differ from them in one setting follow, and then some at random. cuBLASLt has
/// accepted each one. The same library gives the same list.
#include <parley/transports/cuda/cublas_library.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

std::vector<transports::gemm_algorithm> algorithms_for(transports::cublas_library& library,
                                                       const transports::matrix_product& p,
                                                       const std::vector<transports::gemm_algorithm>& guesses,
                                                       std::size_t workspace_bytes, std::size_t most);

/// `cublaslt(algo=66 cluster=5 stages=35 tile=24)`, in cuBLASLt's numbers, without those that are 0, and without `splitk=1`.
std::string id_of(const transports::gemm_algorithm& g);
/// The reverse; nothing: it is not such a text.
std::optional<transports::gemm_algorithm> algorithm_of(std::string_view id);

}  // namespace parley::ops

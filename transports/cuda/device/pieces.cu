// Copies pieces of device memory into one packed buffer, and back.
#include <parley/transports/cuda/device/kernels.hpp>
#include <parley/transports/cuda/device/launch.hpp>

#include <cstdint>

namespace parley::transports {

namespace {

constexpr unsigned threads_per_block = 256;
constexpr std::size_t most_blocks = 256;

struct table {
  unsigned char* base;
  const std::uint64_t* offsets;  // null: the pieces lie at regular distances
  std::uint64_t inner_count;
  std::uint64_t outer_stride;
  std::uint64_t inner_stride;
  std::uint64_t words_per_piece;
  std::uint64_t words;
};

// All addresses and sizes must be multiples of `sizeof(Word)`.
template <class Word, pieces_way way>
__global__ void __launch_bounds__(threads_per_block) move_pieces(Word* packed, table t) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * threads_per_block;
  for (std::uint64_t at = std::uint64_t{blockIdx.x} * threads_per_block + threadIdx.x; at < t.words; at += step) {
    const std::uint64_t piece = at / t.words_per_piece;
    const std::uint64_t offset = t.offsets != nullptr
                                     ? t.offsets[piece]
                                     : piece / t.inner_count * t.outer_stride + piece % t.inner_count * t.inner_stride;
    Word* const there = reinterpret_cast<Word*>(t.base + offset) + at % t.words_per_piece;
    if constexpr (way == pieces_way::gather) {
      packed[at] = *there;
    } else {
      *there = packed[at];
    }
  }
}

template <class Word>
cudaError_t launch(void* packed, table t, std::uint64_t piece_bytes, pieces_way way, cudaStream_t s) {
  t.words_per_piece = piece_bytes / sizeof(Word);
  t.words /= sizeof(Word);
  const std::uint64_t useful = (t.words + threads_per_block - 1) / threads_per_block;
  const auto grid = static_cast<unsigned>(useful < most_blocks ? useful : most_blocks);
  auto* const to = static_cast<Word*>(packed);
  if (way == pieces_way::gather)
    return launch_kernel(move_pieces<Word, pieces_way::gather>, grid, threads_per_block, s, to, t);
  return launch_kernel(move_pieces<Word, pieces_way::scatter>, grid, threads_per_block, s, to, t);
}

template <class Word>
cudaError_t launch_once(cudaStream_t s) {
  const auto once = [s](auto* kernel) { return launch_kernel(kernel, 1, threads_per_block, s, nullptr, table{}); };
  return first_failure({once(move_pieces<Word, pieces_way::gather>), once(move_pieces<Word, pieces_way::scatter>)});
}

}  // namespace

cudaError_t launch_pieces_once(cudaStream_t s) {
  return first_failure({launch_once<uint4>(s), launch_once<std::uint64_t>(s), launch_once<std::uint32_t>(s),
                        launch_once<unsigned char>(s)});
}

cudaError_t launch_pieces(void* packed, const runtime::memory_pieces& p, pieces_way way, cudaStream_t s) {
  if (p.total_bytes() == 0) return cudaSuccess;
  const table t{reinterpret_cast<unsigned char*>(p.base),
                p.offsets.empty() ? nullptr : p.offsets_there.get(),
                p.outer[1].count,
                p.outer[0].stride_bytes,
                p.outer[1].stride_bytes,
                0,
                p.total_bytes()};
  // Listed offsets are multiples of the piece size, so they need no check.
  const auto alignment = reinterpret_cast<std::uintptr_t>(packed) | reinterpret_cast<std::uintptr_t>(p.base) | p.bytes |
                         p.outer[0].stride_bytes | p.outer[1].stride_bytes;
  if (alignment % sizeof(uint4) == 0) return launch<uint4>(packed, t, p.bytes, way, s);
  if (alignment % sizeof(std::uint64_t) == 0) return launch<std::uint64_t>(packed, t, p.bytes, way, s);
  if (alignment % sizeof(std::uint32_t) == 0) return launch<std::uint32_t>(packed, t, p.bytes, way, s);
  return launch<unsigned char>(packed, t, p.bytes, way, s);
}

}  // namespace parley::transports

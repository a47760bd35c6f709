#include "attention.hpp"
#include "hash.cuh"
#include "ptx.cuh"

#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include <cmath>

namespace examples {

namespace {

using bf16 = __nv_bfloat16;

constexpr float log2_of_e = 1.44269504088896341F;
constexpr float nothing = -INFINITY;

// Scale of the scores, times log2(e), because the hardware computes powers of two.
__device__ float unit_of(std::uint64_t dimensions) { return log2_of_e * rsqrtf(static_cast<float>(dimensions)); }

// The maximum to subtract: 0 for a row without keys, whose maximum is -inf.
__device__ float finite(float maximum) { return maximum == nothing ? 0.0F : maximum; }
// The weight to divide by: 1 for a row without keys, whose sums are zero.
__device__ float share_of(float weight) { return weight == 0.0F ? 1.0F : weight; }

// ---- bf16, by tensor cores ----------------------------------------------------------------------------------------------

// Twelve warps are the most that the registers allow with 128 dimensions. Each warp has 16 queries, so a tile of keys
// and values serves 192.
constexpr unsigned warps = 12;
constexpr unsigned tile_rows = 16 * warps;
constexpr unsigned tile_keys = 64;

// A tile of keys or values in shared memory: rows of 16-byte chunks, permuted so that 8 rows of one column lie in
// different banks.
template <unsigned D>
struct tile {
  static constexpr unsigned chunks = D / 8;
  uint4 memory[tile_keys * chunks];

  __device__ uint4* at(unsigned row, unsigned chunk) {
    constexpr unsigned rows_together = chunks < 8 ? 8 / chunks : 1;  // that share 128 bytes
    constexpr unsigned mask = chunks < 8 ? chunks - 1 : 7;
    return &memory[row * chunks + (chunk ^ ((row / rows_together) & mask))];
  }
  // Starts the copy; rows beyond the end become zeros.
  __device__ void fetch(const bf16* from, unsigned first, unsigned rows) {
    for (unsigned i = threadIdx.x; i < tile_keys * chunks; i += 32 * warps) {
      const unsigned row = i / chunks;
      const bool there = first + row < rows;
      const bf16* const source = from + std::size_t{there ? first + row : 0} * D + i % chunks * 8;
      __pipeline_memcpy_async(at(row, i % chunks), source, 16, there ? 0 : 16);
    }
  }
};

template <unsigned D>
struct stage {
  tile<D> keys;
  tile<D> values;
};

[[maybe_unused]] __device__ std::uint32_t packed(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

// Loads rows of the queries as the left operand of products; rows beyond the end become zeros.
template <unsigned D>
__device__ void load_queries(std::uint32_t (&q)[D / 16][4], const bf16* from, unsigned first, unsigned rows) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = first + lane / 4 + 8 * half;
#pragma unroll
    for (unsigned k = 0; k < D / 16; ++k) {
      const auto* const at =
          reinterpret_cast<const std::uint32_t*>(from + std::size_t{row} * D + k * 16 + lane % 4 * 2);
      q[k][half] = row < rows ? at[0] : 0;
      q[k][half + 2] = row < rows ? at[4] : 0;
    }
  }
}

// Each lane holds two rows, and a quarter of the columns of each. Each lane also sums the weights of its own columns
// only, until the end.
template <unsigned D>
__global__ void __launch_bounds__(32 * warps) attend_bf16(attention_block b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ uint4 shared[];
  auto* const stages = reinterpret_cast<stage<D>*>(shared);
  const unsigned lane = threadIdx.x % 32;
  // The blocks whose rows see most keys start first.
  const unsigned first_row = (gridDim.x - 1 - blockIdx.x) * tile_rows;
  const unsigned warp_row = first_row + threadIdx.x / 32 * 16;
  const unsigned row = warp_row + lane / 4;
  const auto rows = static_cast<unsigned>(b.rows);
  const std::uint64_t head = std::uint64_t{blockIdx.y} * b.rows;
  const bf16* const k = static_cast<const bf16*>(b.k) + head * D;
  const bf16* const v = static_cast<const bf16*>(b.v) + head * D;
  const float unit = unit_of(D);
  const unsigned column = lane % 4 * 2;

  std::uint32_t q[D / 16][4];
  load_queries<D>(q, static_cast<const bf16*>(b.q) + head * D, warp_row, rows);
  float out[D / 8][4];
  float maximum[2];
  float weight[2];
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const std::uint64_t mine = head + row + 8 * half;
    const bool kept = !b.first && row + 8 * half < rows;
    maximum[half] = kept ? b.maximum[mine] : nothing;
    weight[half] = kept && lane % 4 == 0 ? b.weight[mine] : 0.0F;
#pragma unroll
    for (unsigned n = 0; n < D / 8; ++n) {
      const float2 sums =
          kept ? *reinterpret_cast<const float2*>(b.weighted + mine * D + n * 8 + column) : make_float2(0, 0);
      out[n][2 * half] = sums.x;
      out[n][2 * half + 1] = sums.y;
    }
  }

  const unsigned end = b.diagonal ? min(rows, first_row + tile_rows) : rows;
  stages[0].keys.fetch(k, 0, rows);
  stages[0].values.fetch(v, 0, rows);
  __pipeline_commit();
  for (unsigned key = 0; key < end; key += tile_keys) {
    stage<D>& here = stages[key / tile_keys % 2];
    stage<D>& next = stages[(key / tile_keys + 1) % 2];
    __pipeline_wait_prior(0);
    __syncthreads();  // this tile has arrived, and no thread still reads the previous one
    if (key + tile_keys < end) {
      next.keys.fetch(k, key + tile_keys, rows);
      next.values.fetch(v, key + tile_keys, rows);
      __pipeline_commit();
    }

    float score[tile_keys / 8][4];
#pragma unroll
    for (auto& s : score) s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (unsigned d = 0; d < D / 16; ++d) {
#pragma unroll
      for (unsigned n = 0; n < tile_keys / 16; ++n) {
        std::uint32_t m[4];
        ptx::load_matrices(m, here.keys.at(n * 16 + lane / 16 * 8 + lane % 8, d * 2 + lane / 8 % 2));
        ptx::multiply_add(score[2 * n], q[d], m[0], m[1]);
        ptx::multiply_add(score[2 * n + 1], q[d], m[2], m[3]);
      }
    }
    if (key + tile_keys > rows || (b.diagonal && key + tile_keys > warp_row)) {
#pragma unroll
      for (unsigned n = 0; n < tile_keys / 8; ++n) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          const unsigned at = key + n * 8 + column + i % 2;
          if (at >= rows || (b.diagonal && at > row + i / 2 * 8)) score[n][i] = nothing;
        }
      }
    }

#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float highest = maximum[half];
#pragma unroll
      for (const auto& s : score) highest = fmaxf(highest, fmaxf(s[2 * half], s[2 * half + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffU, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffU, highest, 2));
      const float base = finite(highest) * unit;
      const float shrink = ptx::power_of_two(maximum[half] * unit - base);
      maximum[half] = highest;
      weight[half] *= shrink;
#pragma unroll
      for (auto& o : out) {
        o[2 * half] *= shrink;
        o[2 * half + 1] *= shrink;
      }
#pragma unroll
      for (auto& s : score) {
        s[2 * half] = ptx::power_of_two(s[2 * half] * unit - base);
        s[2 * half + 1] = ptx::power_of_two(s[2 * half + 1] * unit - base);
        weight[half] += s[2 * half] + s[2 * half + 1];
      }
    }

    // The weights are already in the lanes that the left operand of the next product needs.
#pragma unroll
    for (unsigned j = 0; j < tile_keys / 16; ++j) {
      const std::uint32_t p[4] = {packed(score[2 * j][0], score[2 * j][1]), packed(score[2 * j][2], score[2 * j][3]),
                                  packed(score[2 * j + 1][0], score[2 * j + 1][1]),
                                  packed(score[2 * j + 1][2], score[2 * j + 1][3])};
#pragma unroll
      for (unsigned n = 0; n < D / 16; ++n) {
        std::uint32_t m[4];
        ptx::load_transposed(m, here.values.at(j * 16 + lane % 16, n * 2 + lane / 16));
        ptx::multiply_add(out[2 * n], p, m[0], m[1]);
        ptx::multiply_add(out[2 * n + 1], p, m[2], m[3]);
      }
    }
  }

#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    weight[half] += __shfl_xor_sync(0xffffffffU, weight[half], 1);
    weight[half] += __shfl_xor_sync(0xffffffffU, weight[half], 2);
    const std::uint64_t mine = head + row + 8 * half;
    if (row + 8 * half >= rows) continue;
    if (!b.last && lane % 4 == 0) {
      b.maximum[mine] = maximum[half];
      b.weight[mine] = weight[half];
    }
#pragma unroll
    for (unsigned n = 0; n < D / 8; ++n) {
      const std::uint64_t at = mine * D + n * 8 + column;
      const float2 sums = make_float2(out[n][2 * half], out[n][2 * half + 1]);
      if (b.last) {
        *reinterpret_cast<std::uint32_t*>(static_cast<bf16*>(b.out) + at) =
            packed(sums.x / share_of(weight[half]), sums.y / share_of(weight[half]));
      } else {
        *reinterpret_cast<float2*>(b.weighted + at) = sums;
      }
    }
  }
#endif
}

// ---- fp32 -----------------------------------------------------------------------------------------------------------------

// 16 x 16 threads, each with 4 queries and, per tile, 4 keys. The keys of a thread are 16 apart, so that neighbouring
// threads read different banks.
constexpr unsigned side = 16;
constexpr unsigned each = 4;
constexpr unsigned square = side * each;

template <unsigned D>
struct fp32_tiles {
  float q[square][D + 4];
  float k[square][D + 4];
  float v[square][D + 4];
  float p[square][square + 4];
};

template <unsigned D>
__device__ void fetch(float (*to)[D + 4], const float* from, std::uint64_t first, std::uint64_t rows) {
  for (unsigned i = threadIdx.x; i < square * D / 4; i += side * side) {
    const unsigned row = i / (D / 4);
    const unsigned column = i % (D / 4) * 4;
    const bool there = first + row < rows;
    *reinterpret_cast<float4*>(&to[row][column]) =
        there ? *reinterpret_cast<const float4*>(from + (first + row) * D + column) : make_float4(0, 0, 0, 0);
  }
}

template <unsigned D>
__global__ void __launch_bounds__(side* side) attend_fp32(attention_block b) {
  extern __shared__ uint4 shared[];
  auto& t = *reinterpret_cast<fp32_tiles<D>*>(shared);
  const unsigned x = threadIdx.x % side;
  const unsigned mine = threadIdx.x / side * each;  // this thread's first row in the tile
  const std::uint64_t first_row = std::uint64_t{gridDim.x - 1 - blockIdx.x} * square;
  const std::uint64_t row = first_row + mine;
  const std::uint64_t head = std::uint64_t{blockIdx.y} * b.rows;
  const float unit = unit_of(D);
  fetch<D>(t.q, static_cast<const float*>(b.q) + head * D, first_row, b.rows);

  float out[each][D / side];
  float maximum[each];
  float weight[each];
#pragma unroll
  for (unsigned i = 0; i < each; ++i) {
    const bool kept = !b.first && row + i < b.rows;
    maximum[i] = kept ? b.maximum[head + row + i] : nothing;
    weight[i] = kept && x == 0 ? b.weight[head + row + i] : 0.0F;
#pragma unroll
    for (unsigned d = 0; d < D / side; ++d) out[i][d] = kept ? b.weighted[(head + row + i) * D + d * side + x] : 0.0F;
  }

  const std::uint64_t end = b.diagonal ? min(b.rows, first_row + square) : b.rows;
  for (std::uint64_t key = 0; key < end; key += square) {
    __syncthreads();
    fetch<D>(t.k, static_cast<const float*>(b.k) + head * D, key, b.rows);
    fetch<D>(t.v, static_cast<const float*>(b.v) + head * D, key, b.rows);
    __syncthreads();

    float score[each][each] = {};
#pragma unroll 4
    for (unsigned d = 0; d < D; d += 4) {
      float4 keys[each];
#pragma unroll
      for (unsigned j = 0; j < each; ++j) keys[j] = *reinterpret_cast<const float4*>(&t.k[x + side * j][d]);
#pragma unroll
      for (unsigned i = 0; i < each; ++i) {
        const float4 query = *reinterpret_cast<const float4*>(&t.q[mine + i][d]);
#pragma unroll
        for (unsigned j = 0; j < each; ++j)
          score[i][j] += query.x * keys[j].x + query.y * keys[j].y + query.z * keys[j].z + query.w * keys[j].w;
      }
    }
#pragma unroll
    for (unsigned i = 0; i < each; ++i) {
      float highest = maximum[i];
#pragma unroll
      for (unsigned j = 0; j < each; ++j) {
        const std::uint64_t at = key + x + side * j;
        const bool seen = at < b.rows && (!b.diagonal || at <= row + i);
        score[i][j] = seen ? score[i][j] * unit : nothing;
        highest = fmaxf(highest, score[i][j]);
      }
      for (unsigned lanes = side / 2; lanes != 0; lanes /= 2)
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffU, highest, lanes));
      const float base = finite(highest);
      const float shrink = exp2f(maximum[i] - base);
      maximum[i] = highest;
      weight[i] *= shrink;
#pragma unroll
      for (float& o : out[i]) o *= shrink;
#pragma unroll
      for (unsigned j = 0; j < each; ++j) {
        const float w = exp2f(score[i][j] - base);
        weight[i] += w;
        t.p[mine + i][x + side * j] = w;
      }
    }
    __syncwarp();  // all weights of a row are written and read by one warp
#pragma unroll 2
    for (unsigned j = 0; j < square; j += 4) {
      float4 p[each];
#pragma unroll
      for (unsigned i = 0; i < each; ++i) p[i] = *reinterpret_cast<const float4*>(&t.p[mine + i][j]);
#pragma unroll
      for (unsigned d = 0; d < D / side; ++d) {
        const float* const at = &t.v[j][d * side + x];
        const float values[4] = {at[0], at[D + 4], at[2 * (D + 4)], at[3 * (D + 4)]};
#pragma unroll
        for (unsigned i = 0; i < each; ++i)
          out[i][d] += p[i].x * values[0] + p[i].y * values[1] + p[i].z * values[2] + p[i].w * values[3];
      }
    }
  }

#pragma unroll
  for (unsigned i = 0; i < each; ++i) {
    for (unsigned lanes = side / 2; lanes != 0; lanes /= 2) weight[i] += __shfl_xor_sync(0xffffffffU, weight[i], lanes);
    if (row + i >= b.rows) continue;
    if (!b.last && x == 0) {
      b.maximum[head + row + i] = maximum[i];
      b.weight[head + row + i] = weight[i];
    }
#pragma unroll
    for (unsigned d = 0; d < D / side; ++d) {
      const std::uint64_t at = (head + row + i) * D + d * side + x;
      if (b.last) {
        static_cast<float*>(b.out)[at] = out[i][d] / share_of(weight[i]);
      } else {
        b.weighted[at] = out[i][d];
      }
    }
  }
}

// ---- the reference
// ----------------------------------------------------------------------------------------------------------

// The test number at one place of the sequence.
__device__ float number(std::uint64_t seed, std::uint64_t row, std::uint64_t column) {
  return static_cast<float>(static_cast<int>(hash_of(seed, row, column) % 2001) - 1000) / 500.0F;
}

template <class T>
__device__ float rounded(float x) {
  return static_cast<float>(static_cast<T>(x));
}

template <class T>
__global__ void numbers(T* to, std::uint64_t heads, std::uint64_t rows, std::uint64_t dimensions, sequence_numbers n) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < heads * rows * dimensions;
       i += step) {
    const std::uint64_t row = n.first_row + i / dimensions % rows;
    to[i] = static_cast<T>(number(n.seed, row, i / dimensions / rows * dimensions + i % dimensions));
  }
}

constexpr unsigned dense_threads = 256;

template <class Sum, class Combine>
__device__ Sum over_threads(Sum mine, Combine combine) {
  __shared__ Sum all[dense_threads];
  all[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = dense_threads / 2; half != 0; half /= 2) {
    if (threadIdx.x < half) all[threadIdx.x] = combine(all[threadIdx.x], all[threadIdx.x + half]);
    __syncthreads();
  }
  const Sum result = all[0];
  __syncthreads();
  return result;
}

// Each block of threads computes one row of one head.
template <class T, class Sum>
__global__ void __launch_bounds__(dense_threads) dense(double* to, Sum* scores, dense_rows d) {
  const std::uint64_t head = blockIdx.y;
  const std::uint64_t row = d.first + blockIdx.x * d.step;
  const std::uint64_t column = head * d.dimensions;
  const std::uint64_t seen = d.causal ? row + 1 : d.sequence;
  Sum* const score = scores + (head * d.count + blockIdx.x) * d.sequence;
  const Sum scale = Sum{1} / sqrt(static_cast<Sum>(d.dimensions));
  Sum highest = -INFINITY;
  for (std::uint64_t j = threadIdx.x; j < seen; j += dense_threads) {
    Sum product = 0;
    for (std::uint64_t i = 0; i < d.dimensions; ++i)
      product += static_cast<Sum>(rounded<T>(number(d.seed_q, row, column + i))) *
                 static_cast<Sum>(rounded<T>(number(d.seed_k, j, column + i)));
    score[j] = product * scale;
    highest = score[j] > highest ? score[j] : highest;
  }
  highest = over_threads(highest, [](Sum a, Sum b) { return a > b ? a : b; });
  Sum total = 0;
  for (std::uint64_t j = threadIdx.x; j < seen; j += dense_threads) total += score[j] = exp(score[j] - highest);
  total = over_threads(total, [](Sum a, Sum b) { return a + b; });
  // All threads run the same iterations, because they synchronize inside.
  for (std::uint64_t i = 0; i < d.dimensions; ++i) {
    Sum sum = 0;
    for (std::uint64_t j = threadIdx.x; j < seen; j += dense_threads)
      sum += score[j] * static_cast<Sum>(rounded<T>(number(d.seed_v, j, column + i)));
    sum = over_threads(sum, [](Sum a, Sum b) { return a + b; }) / total;
    if (threadIdx.x != 0) continue;
    const bool exact = sizeof(Sum) == sizeof(double);
    to[(head * d.count + blockIdx.x) * d.dimensions + i] =
        exact ? static_cast<double>(sum) : static_cast<double>(rounded<T>(static_cast<float>(sum)));
  }
}

template <class T, class Sum>
cudaError_t launch_dense_of(double* to, Sum* scores, const dense_rows& d, cudaStream_t s) {
  const dim3 grid(static_cast<unsigned>(d.count), static_cast<unsigned>(d.heads));
  dense<T, Sum><<<grid, dense_threads, 0, s>>>(to, scores, d);
  return cudaGetLastError();
}

// ---- launches ---------------------------------------------------------------------------------------------------------------

using kernel = void (*)(attention_block);

struct launcher {
  kernel run = nullptr;
  unsigned rows = 0;  // rows of a tile, per block of threads
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
};

template <unsigned D>
launcher launcher_of(element e) {
  if (e == element::bf16) return {attend_bf16<D>, tile_rows, 32 * warps, 2 * sizeof(stage<D>)};
  return {attend_fp32<D>, square, side * side, sizeof(fp32_tiles<D>)};
}

launcher launcher_for(std::uint64_t dimensions, element e) {
  switch (dimensions) {
    case 16: return launcher_of<16>(e);
    case 32: return launcher_of<32>(e);
    case 64: return launcher_of<64>(e);
    case 128: return launcher_of<128>(e);
    default: return {};
  }
}

}  // namespace

cudaError_t launch_attention(const attention_block& b, element e, cudaStream_t s) {
  const launcher l = launcher_for(b.dimensions, e);
  if (l.run == nullptr || b.rows > 1U << 30U) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((b.rows + l.rows - 1) / l.rows), static_cast<unsigned>(b.heads));
  l.run<<<grid, l.threads, l.shared_bytes, s>>>(b);
  return cudaGetLastError();
}

cudaError_t launch_numbers(void* to, element e, std::uint64_t heads, std::uint64_t rows, std::uint64_t dimensions,
                           sequence_numbers n, cudaStream_t s) {
  constexpr unsigned blocks = 1024;
  if (e == element::bf16) {
    numbers<<<blocks, 256, 0, s>>>(static_cast<bf16*>(to), heads, rows, dimensions, n);
  } else {
    numbers<<<blocks, 256, 0, s>>>(static_cast<float*>(to), heads, rows, dimensions, n);
  }
  return cudaGetLastError();
}

cudaError_t launch_dense(double* to, double* scores, const dense_rows& d, element e, cudaStream_t s) {
  return e == element::bf16 ? launch_dense_of<bf16>(to, scores, d, s) : launch_dense_of<float>(to, scores, d, s);
}

cudaError_t launch_dense_rounded(double* to, float* scores, const dense_rows& d, element e, cudaStream_t s) {
  return e == element::bf16 ? launch_dense_of<bf16>(to, scores, d, s) : launch_dense_of<float>(to, scores, d, s);
}

cudaError_t load_attention_kernels() {
  for (const element e : {element::bf16, element::fp32}) {
    for (const unsigned dimensions : {16U, 32U, 64U, 128U}) {
      const launcher l = launcher_for(dimensions, e);
      // CUDA requires a request for more than 48 KiB of shared memory.
      const cudaError_t asked =
          cudaFuncSetAttribute(reinterpret_cast<const void*>(l.run), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(l.shared_bytes));
      if (asked != cudaSuccess) return asked;
      cudaFuncAttributes a{};
      const cudaError_t loaded = cudaFuncGetAttributes(&a, reinterpret_cast<const void*>(l.run));
      if (loaded != cudaSuccess) return loaded;
    }
  }
  return cudaSuccess;
}

}  // namespace examples

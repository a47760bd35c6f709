#pragma once
// PTX instructions that CUDA C++ does not offer, for sm_80 and newer. A load reads matrices of 8 x 8 elements of 16
// bits: lane l of a warp gives the address of row l % 8 of matrix l / 8, and gets two elements of each matrix, in row
// l / 4, columns 2 (l % 4) and the next. In a transposed load it gets those of column l / 4, rows 2 (l % 4) and the
// next.
#include <cuda_bf16.h>

#include <cstdint>

namespace examples::ptx {

__device__ inline std::uint32_t in_shared(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

__device__ inline void load_matrices(std::uint32_t (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(in_shared(row))
               : "memory");
}

__device__ inline void load_transposed(std::uint32_t (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(in_shared(row))
               : "memory");
}

// c (16 x 8) += a (16 x 16) * b (16 x 8). Lane l holds rows l / 4 and l / 4 + 8 of c, columns 2 (l % 4) and the next.
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace examples::ptx

#pragma once
// A hash that lets any rank compute the number at any place: the finalizer of splitmix64.
#include <cstdint>

namespace examples {

__device__ inline std::uint64_t hash_of(std::uint64_t seed, std::uint64_t row, std::uint64_t column) {
  std::uint64_t x = (seed << 48U) + (row << 16U) + column + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

}  // namespace examples

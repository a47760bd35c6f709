#pragma once
/// The status with which `parley run` ends: that of the first rank that failed; 128 plus the signal, as in a shell, if a signal killed it.
#include <parley/transports/launch/launcher.hpp>

namespace parley::cli {

/// timeout(1) also uses this status.
inline constexpr int status_out_of_time = 124;

inline int status_of(const transports::launch_end& end) {
  if (end.out_of_time) return status_out_of_time;
  if (!end.first_failed) return end.status;
  const transports::rank_end& first = end.ranks.at(*end.first_failed);
  return first.kind == transports::rank_end::how::signalled ? 128 + first.code : first.code;
}

}  // namespace parley::cli

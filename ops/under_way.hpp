#pragma once
/// Why a call ends that was under way when its op was ended:
///
///     throw failure(while_under_way(*failed_, invocation));     // `…; invocation 3 was under way`
///
/// What ended the op may be the same call's failure on another rank, which says so already.
#include <parley/runtime/error.hpp>

#include <cstdint>
#include <string>

namespace parley::ops {

inline runtime::error while_under_way(const runtime::error& ended, std::uint64_t invocation) {
  const std::string which = "invocation " + std::to_string(invocation) + " was under way";
  if (ended.text().find(which) != std::string::npos) return ended;
  return {ended.code(), ended.text() + "; " + which};
}

}  // namespace parley::ops

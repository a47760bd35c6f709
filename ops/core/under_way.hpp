#pragma once
/// Why a call ends that was under way when its op was ended:
///
///     throw failure(while_under_way(*failed_, invocation));     // `…; invocation 3 was under way`
///
/// What ended the op may be the same call's failure on another rank, which says so already.
#include <parley/error.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstdint>
#include <string>

namespace parley::ops {

inline runtime::error while_under_way(const runtime::error& ended, std::uint64_t invocation) {
  const std::string which = "invocation " + std::to_string(invocation) + " was under way";
  const bool is_said = ended.text().find(which) != std::string::npos;
  runtime::error_facts about = ended.about();
  about.invocation = invocation;
  return runtime::error::in_words(ended.code(), std::move(about), ended.text() + (is_said ? "" : "; " + which),
                                  ended.began_with());
}

/// `; device 0: cudaErrorMemoryAllocation: out of memory`: what a device had to say of what ended a call, unless `text` has that.
inline std::string said_by(const runtime::memory_space* device, runtime::errc why, const std::string& text) {
  const std::string words = device == nullptr ? std::string() : device->words_of(why);
  return words.empty() || text.find(words) != std::string::npos ? std::string() : "; " + words;
}

}  // namespace parley::ops

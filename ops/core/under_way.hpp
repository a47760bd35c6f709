#pragma once
/// Why a call ends that was under way when its op was ended:
///
///     throw failure(while_under_way(*failed_, about));     // `…; invocation 3 was under way`
///
/// What ended the op may be the same call's failure on another rank, which says so already.
#include <parley/error.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstdint>
#include <string>

namespace parley::ops {

/// What ended an op and the rank that it is told on, with the facts of one of the op's calls.
inline runtime::error_facts about_call(runtime::error_facts ended, const runtime::error_facts& call) {
  ended.invocation = call.invocation;
  ended.begun = call.invocation && call.begun;
  ended.tag = call.tag;
  ended.unmet = call.unmet;
  ended.config = call.config;
  ended.done_bytes = call.done_bytes;
  ended.whole_bytes = call.whole_bytes;
  ended.own_bytes = call.own_bytes;
  return ended;
}

inline runtime::error while_under_way(const runtime::error& ended, const runtime::error_facts& call) {
  const std::string which = "invocation " + std::to_string(call.invocation.value()) + " was under way";
  const bool is_said = ended.text().find(which) != std::string::npos;
  return runtime::error::in_words(ended.code(), about_call(ended.about(), call),
                                  ended.text() + (is_said ? "" : "; " + which), ended.began_with());
}

/// `; device 0: cudaErrorMemoryAllocation: out of memory`: what a device had to say of what ended a call, unless `text` has that.
inline std::string said_by(const runtime::memory_space* device, runtime::errc why, const std::string& text) {
  const std::string words = device == nullptr ? std::string() : device->words_of(why);
  return words.empty() || text.find(words) != std::string::npos ? std::string() : "; " + words;
}

}  // namespace parley::ops

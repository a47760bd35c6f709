#pragma once
/// The error of a call that was in flight when its op was ended:
///
///     throw failure(while_in_flight(*failed_, about));     // `…; invocation 3 was in flight`
///
/// The text names the invocation once. If the same call failed on another rank and so ended the op, the other rank's error names it
/// already.
#include <parley/error.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstdint>
#include <string>

namespace parley::ops {

/// The facts of the error that ended an op on this rank, combined with the facts of one of the op's calls.
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

inline runtime::error while_in_flight(const runtime::error& ended, const runtime::error_facts& call) {
  const std::string which = "invocation " + std::to_string(call.invocation.value()) + " was in flight";
  const bool is_said = ended.text().find(which) != std::string::npos;
  return runtime::error::in_words(ended.code(), about_call(ended.about(), call),
                                  ended.text() + (is_said ? "" : "; " + which), ended.began_with());
}

/// The device's words about the error that ended a call: `; device 0: cudaErrorMemoryAllocation: out of memory`. Empty if `text` has them.
inline std::string said_by(const runtime::memory_space* device, runtime::errc why, const std::string& text) {
  const std::string words = device == nullptr ? std::string() : device->words_of(why);
  return words.empty() || text.find(words) != std::string::npos ? std::string() : "; " + words;
}

}  // namespace parley::ops

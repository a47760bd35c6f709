#include <parley/error_facts.hpp>

namespace parley::runtime {

std::string_view name(awaited what) noexcept {
  switch (what) {
    case awaited::none: return "none";
    case awaited::message: return "message";
    case awaited::payload: return "payload";
    case awaited::receive: return "receive";
    case awaited::room: return "room";
    case awaited::declaration: return "declaration";
    case awaited::kernels: return "kernels";
    case awaited::members: return "members";
    case awaited::rehearsals: return "rehearsals";
    case awaited::schedule: return "schedule";
    case awaited::config: return "config";
  }
  return "unknown";
}

std::string words_of(const error_facts& about) {
  std::string words = about.op;
  const auto add = [&](std::string_view label, std::uint64_t number) {
    words.append(words.empty() ? "" : ", ").append(label).append(std::to_string(number));
  };
  if (about.invocation && about.begun) add("invocation ", *about.invocation);
  if (about.rank) add("on rank ", *about.rank);
  if (!about.role.empty()) words.append(" (").append(about.role).append(")");
  return words;
}

}  // namespace parley::runtime

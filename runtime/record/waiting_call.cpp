#include <parley/runtime/record/waiting_call.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace parley::runtime {

std::string span_in_words(time_ns span_ns) {
  const auto span = static_cast<double>(std::max<time_ns>(span_ns, 0));
  if (span >= 1e9) return fmt::format("{:.1f} s", span / 1e9);
  if (span >= 1e6) return fmt::format("{:.0f} ms", span / 1e6);
  return fmt::format("{:.0f} us", span / 1e3);
}

std::string words_of(const waiting_call& call, time_ns now_ns) {
  std::string text = fmt::format("{} of {}", call.what, call.op);
  if (call.rehearsal) text += ", rehearsal";
  if (call.invocation) text += fmt::format(", call {}", *call.invocation);
  if (call.tag) text += fmt::format(", tag {}", *call.tag);
  text += fmt::format(", {} bytes", call.bytes);
  if (call.batch != 0) text += fmt::format(", of batch {}", call.batch);
  text += ": waits for ";
  if (call.peers.empty()) {
    text += call.lacks;
  } else {
    constexpr std::size_t most = 4;
    text += call.peers.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(call.peers.size(), most); ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ", ", call.peers[i]);
    if (call.peers.size() > most) text += fmt::format(" and {} others", call.peers.size() - most);
    text += fmt::format(" ({})", call.lacks);
  }
  return text + " since " + span_in_words(now_ns - call.since_ns);
}

}  // namespace parley::runtime

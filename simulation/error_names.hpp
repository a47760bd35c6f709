#pragma once
/// What the errors of failed calls say of themselves, for checkers.
#include <parley/runtime/error.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace parley::simulation {

/// What the text of a failed call names:
///
///     OP 0->1, invocation 3, on rank 0 (sender): …             // `call 3` where the op is contextual
///     OP 0->1, on rank 0: …; invocation 3 was under way        // the op has ended on its rank
///     OP 0->1, on rank 1: … was not met: invocation 3 had not begun
///     OP 0->1, on rank 0: … invocation 3 would have been the next one
///     OP 0->1, on rank 0: …; the call had not begun            // of an op made of several edges
///     op OP, rank 0: a send to itself, tag 3: …                // calls of a rank to itself have no invocations
///
/// where the peer is gone, the third and fourth with `; rank 0 is gone; restart the job to continue` behind it.
/// What comes behind the first colon may be told of another rank and its calls, but for its end.
struct named_by {
  named_by(runtime::errc why, std::string_view text) {
    if (const std::string code = std::string(runtime::name(why)) + ": "; text.starts_with(code))
      text.remove_prefix(code.size());
    const std::string_view head = text.substr(0, text.find(": "));
    std::string_view told = text.substr(head.size());
    constexpr std::string_view gone = "; rank ";
    if (const auto its = last(gone, told); its && its->behind == " is gone; restart the job to continue")
      told = told.substr(0, told.rfind(gone));
    if (told.starts_with(": a send to itself, ") || told.starts_with(": a receive from itself, ")) {
      op = head.substr(0, head.rfind(", rank "));
      if (const auto on = last(", rank ", head)) rank = on->number;
      if (op.starts_with("op ")) op.remove_prefix(3);
      to_itself = true;
      return;
    }
    op = head.substr(0, head.find(", "));
    op = op.substr(0, op.rfind(' '));  // without its ranks
    if (const auto on = last(", on rank ", head)) rank = on->number;
    for (const std::string_view word : {", invocation ", ", call "}) {
      if (const auto its = last(word, head)) begun = its->number;
    }
    if (const auto its = last("; invocation ", told); its && its->behind == " was under way") begun = its->number;
    if (const auto next = last(": invocation ", told)) {
      const bool is_late =
          why == runtime::errc::timeout && next->behind.starts_with(" had not begun; that rank is late");
      // What follows is what the peer said, or that it has said nothing.
      const bool had_no_room =
          next->behind == " would have been the next one" ||
          (why == runtime::errc::timeout && next->behind.starts_with(" would have been the next one; "));
      not_begun = is_late || next->behind == " had not begun" || had_no_room;
    }
    not_begun = not_begun || told.ends_with("; the call had not begun");
  }
  std::string_view op;
  std::optional<std::uint64_t> rank;
  std::optional<std::uint64_t> begun;  // the number of the invocation
  bool not_begun = false;              // it is the number of one to come
  bool to_itself = false;

 private:
  struct numbered {
    std::uint64_t number;
    std::string_view behind;
  };
  static std::optional<numbered> last(std::string_view word, std::string_view text) {
    const std::size_t at = text.rfind(word);
    if (at == std::string_view::npos) return std::nullopt;
    numbered found{0, text.substr(at + word.size())};
    const char* const end = found.behind.data() + found.behind.size();
    const auto [behind, failed] = std::from_chars(found.behind.data(), end, found.number);
    if (failed != std::errc()) return std::nullopt;
    found.behind.remove_prefix(static_cast<std::size_t>(behind - found.behind.data()));
    return found;
  }
};

/// The op of which a text speaks as a whole, as one of its ranks has found out, whose calls are not those of the rank that is told:
/// `op layers: rank 0 calls with …, and rank 1 with …`, `op layers: a call has failed on rank 1 (…), …`.
inline std::optional<std::string_view> whole_op(std::string_view text) {
  constexpr std::string_view word = "op ";
  const std::size_t end = text.find(": ");
  if (!text.starts_with(word) || end == std::string_view::npos) return std::nullopt;
  const std::string_view name = text.substr(word.size(), end - word.size());
  const bool is_of_a_rank = name.find(", rank ") != std::string_view::npos;
  if (is_of_a_rank || text.find("rank ", end) == std::string_view::npos) return std::nullopt;
  return name;
}

/// The ranks of which a text says that they are gone: `rank 3 is gone`.
inline std::vector<std::uint64_t> said_to_be_gone(std::string_view text) {
  std::vector<std::uint64_t> all;
  constexpr std::string_view word = " is gone";
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    std::size_t digits = at;
    while (digits != 0 && text[digits - 1] >= '0' && text[digits - 1] <= '9') --digits;
    std::uint64_t rank = 0;
    const auto [behind, failed] = std::from_chars(text.data() + digits, text.data() + at, rank);
    if (failed == std::errc() && text.substr(0, digits).ends_with("rank ")) all.push_back(rank);
  }
  return all;
}

}  // namespace parley::simulation

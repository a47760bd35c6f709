#pragma once
/// Compares an error with the facts that a test is about. The wording is checked in each folder's wording.cpp.
///
///     CHECK(is(outcome, {.code = errc::timeout, .op = "acts 0->1", .rank = 1, .peer = 0, .unmet = awaited::message}));
///
/// Only the facts that are given are compared. A check that fails prints both sides and the whole text.
#include <parley/error.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

namespace parley::tests {

struct expected_error {
  std::optional<runtime::errc> code{};
  std::optional<std::string> op{};
  std::optional<runtime::rank_id> rank{};
  std::optional<std::string> role{};
  std::optional<std::uint64_t> invocation{};
  std::optional<bool> begun{};
  std::optional<runtime::rank_id> peer{};
  std::optional<std::uint32_t> tag{};
  std::optional<runtime::awaited> unmet{};
  std::optional<std::string> config{};
  std::optional<std::uint64_t> done_bytes{};
  std::optional<std::uint64_t> whole_bytes{};
  std::optional<std::uint64_t> own_bytes{};
  std::optional<runtime::rank_id> culprit{};  ///< the rank where the error began
  /// Words in the text that are not parley's: those of the test's own exception, the test's reason why a rank is gone, the name of a
  /// config. Also a sentence that no wording.cpp checks, because only this test can provoke it.
  std::string quotes{};
};

/// The facts that differ, with both sides of each; empty if all are as expected.
struct comparison {
  explicit operator bool() const noexcept { return differences.empty(); }
  std::string differences;

  friend std::ostream& operator<<(std::ostream& out, const comparison& c) {
    return out << (c ? "the error is as expected" : c.differences);
  }
};

namespace comparing {
inline std::string shown(runtime::errc code) { return std::string(runtime::name(code)); }
inline std::string shown(runtime::awaited what) { return std::string(runtime::name(what)); }
inline std::string shown(const std::string& text) { return "`" + text + "`"; }
inline std::string shown(bool is) { return is ? "yes" : "no"; }
template <class Number>
std::string shown(Number number) {
  return std::to_string(number);
}
template <class Fact>
std::string shown(const std::optional<Fact>& fact) {
  return fact ? shown(*fact) : "nothing";
}
}  // namespace comparing

inline comparison is(const runtime::error& why, const expected_error& expected) {
  comparison found;
  const auto compare = [&](const char* fact, const auto& is, const auto& should_be) {
    if (should_be && is != should_be)
      found.differences +=
          std::string(fact) + " is " + comparing::shown(is) + ", expected " + comparing::shown(should_be) + "; ";
  };
  const runtime::error_facts& about = why.about();
  const runtime::root_cause* const first = why.began_with();
  compare("code", std::optional(why.code()), expected.code);
  compare("op", std::optional(about.op), expected.op);
  compare("rank", about.rank, expected.rank);
  compare("role", std::optional(about.role), expected.role);
  compare("invocation", about.invocation, expected.invocation);
  compare("begun", std::optional(about.begun), expected.begun);
  compare("peer", about.peer, expected.peer);
  compare("tag", about.tag, expected.tag);
  compare("unmet", std::optional(about.unmet), expected.unmet);
  compare("config", std::optional(about.config), expected.config);
  compare("done_bytes", about.done_bytes, expected.done_bytes);
  compare("whole_bytes", about.whole_bytes, expected.whole_bytes);
  compare("own_bytes", about.own_bytes, expected.own_bytes);
  compare("culprit", first == nullptr ? std::nullopt : std::optional(first->rank), expected.culprit);
  if (why.text().find(expected.quotes) == std::string::npos)
    found.differences += "it does not quote `" + expected.quotes + "`; ";
  if (!found) found.differences += "the error is `" + why.what() + "`";
  return found;
}

template <class T>
comparison is(const runtime::result<T>& outcome, const expected_error& expected) {
  return outcome ? comparison{"there is no error"} : is(outcome.reason(), expected);
}

}  // namespace parley::tests

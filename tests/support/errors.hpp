#pragma once
/// Compares an error with the facts that a test is about. The wording is checked in each folder's wording.cpp.
///
///     CHECK(is(outcome, {.code = errc::timeout, .op = "acts 0->1", .rank = 1, .peer = 0, .unmet = awaited::message}));
///
/// Only the facts that are given are compared. A check that fails prints both sides and the whole text.
#include <parley/error.hpp>

#include <cstdint>
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

comparison is(const runtime::error& why, const expected_error& expected);

template <class T>
comparison is(const runtime::result<T>& outcome, const expected_error& expected) {
  return outcome ? comparison{"there is no error"} : is(outcome.reason(), expected);
}

}  // namespace parley::tests

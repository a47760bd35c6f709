#pragma once
/// Checks whole sentences of errors, in a table. Other tests compare facts (errors.hpp), so a better sentence changes only the table and
/// the code.
///
///     TEST_CASE("what the errors of edges say, in whole sentences") {
///       check_sentences({{sentence_of(outcome_of_a_late_call()), "timeout: acts 0->1, on rank 1: …"}, …});
///     }
#include <parley/error.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

namespace parley::tests {

struct sentence {
  std::string said;
  const char* text;
};

inline void check_sentences(std::initializer_list<sentence> all) {
  for (const sentence& one : all) CHECK(one.said == one.text);
}

template <class T>
std::string sentence_of(const runtime::result<T>& outcome) {
  return outcome ? "it went well" : outcome.reason().what();
}

}  // namespace parley::tests

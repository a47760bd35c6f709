#pragma once
/// Writes an error with its facts as one line of text, and reads it back. A rank in another process reports errors to its test this way.
///
///     say(line_of_error("first send", why));                   // `error of first send  code=timeout  op=acts 0->1 …`
///     if (const auto why = error_in_line(line, "first send")) …
#include <parley/error.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace parley::tests {

namespace error_lines {
constexpr char between_facts = '\t';

inline std::string first_words_of(const std::string& which) { return "error of " + which + between_facts; }

/// The value of an enumeration that has this name.
template <class Enum>
Enum named(std::string_view text, Enum last) {
  for (unsigned i = 0; i < static_cast<unsigned>(last); ++i) {
    if (name(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  return last;
}

/// The facts of a line, by name.
inline std::map<std::string, std::string, std::less<>> facts_of(std::string_view line) {
  std::map<std::string, std::string, std::less<>> all;
  while (!line.empty()) {
    const std::string_view fact = line.substr(0, line.find(between_facts));
    const std::size_t sign = fact.find('=');
    if (sign != std::string_view::npos) all.emplace(fact.substr(0, sign), fact.substr(sign + 1));
    line.remove_prefix(std::min(line.size(), fact.size() + 1));
  }
  return all;
}

/// Calls `of(name, fact)` for each fact that is a number.
template <class Facts, class Of>
void each_number(Facts& about, const Of& of) {
  of("rank", about.rank);
  of("invocation", about.invocation);
  of("peer", about.peer);
  of("tag", about.tag);
  of("done_bytes", about.done_bytes);
  of("whole_bytes", about.whole_bytes);
  of("own_bytes", about.own_bytes);
}
}  // namespace error_lines

inline std::string line_of_error(const std::string& which, const runtime::error& why) {
  const runtime::error_facts& about = why.about();
  std::string line = error_lines::first_words_of(which);
  const auto add = [&line](const char* fact, const std::string& value) {
    line += std::string(fact) + '=' + value + error_lines::between_facts;
  };
  add("code", std::string(name(why.code())));
  add("op", about.op);
  add("role", about.role);
  add("begun", about.begun ? "yes" : "no");
  add("unmet", std::string(name(about.unmet)));
  add("config", about.config);
  error_lines::each_number(about, [&add](const char* fact, const auto& number) {
    if (number) add(fact, std::to_string(*number));
  });
  if (const runtime::root_cause* const first = why.began_with()) {
    add("culprit", std::to_string(first->rank));
    add("became", first->what);
  }
  add("text", why.text());
  return line;
}

/// The error in a line, if the line is about `which`.
inline std::optional<runtime::error> error_in_line(std::string_view line, const std::string& which) {
  if (!line.starts_with(error_lines::first_words_of(which))) return std::nullopt;
  const auto all = error_lines::facts_of(line);
  const auto fact = [&](std::string_view of) {
    const auto at = all.find(of);
    return at == all.end() ? std::string() : at->second;
  };
  const auto number = [&]<class Number>(std::string_view of, std::optional<Number>& into) {
    if (all.contains(of)) into = static_cast<Number>(std::stoull(fact(of)));
  };
  runtime::error_facts about;
  about.op = fact("op");
  about.role = fact("role");
  about.begun = fact("begun") == "yes";
  about.unmet = error_lines::named(fact("unmet"), runtime::awaited::config);
  about.config = fact("config");
  error_lines::each_number(about, number);
  std::optional<runtime::rank_id> culprit;
  number("culprit", culprit);
  const runtime::root_cause first{culprit.value_or(0), fact("became")};
  return runtime::error::in_words(error_lines::named(fact("code"), runtime::errc::exception), about, fact("text"),
                                  culprit ? &first : nullptr);
}

}  // namespace parley::tests

#include <parley/tests/support/errors.hpp>

namespace parley::tests {

namespace {
std::string shown(runtime::errc code) { return std::string(runtime::name(code)); }
std::string shown(runtime::awaited what) { return std::string(runtime::name(what)); }
std::string shown(const std::string& text) { return "`" + text + "`"; }
std::string shown(bool is) { return is ? "yes" : "no"; }
template <class Number>
std::string shown(Number number) {
  return std::to_string(number);
}
template <class Fact>
std::string shown(const std::optional<Fact>& fact) {
  return fact ? shown(*fact) : "nothing";
}
}  // namespace

comparison is(const runtime::error& why, const expected_error& expected) {
  comparison found;
  const auto compare = [&](const char* fact, const auto& is, const auto& should_be) {
    if (should_be && is != should_be)
      found.differences += std::string(fact) + " is " + shown(is) + ", expected " + shown(should_be) + "; ";
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

}  // namespace parley::tests

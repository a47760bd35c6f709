#pragma once
/// One value of a spec's JSON, together with its place in the file:
///
///     const place root(file);                                  // a json_text
///     root.expect_object("a spec", {"name", "ops"});
///     const std::string name = root.at("name", "what this job is called").text("name");
///
/// Each reader throws `text_error` with file, line and column, and with what to write instead.
#include <parley/cli/json_text.hpp>
#include <parley/error.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::cli {

class place {
 public:
  explicit place(const json_text& file);

  /// The error points `further` characters behind the beginning of the value.
  [[noreturn]] void fail(const std::string& what, std::size_t further = 0) const;
  /// Throws unless it is an object whose keys are all in `known`.
  void expect_object(std::string_view what, std::initializer_list<std::string_view> known) const;
  /// The value of a key of this object; nothing if the key is missing.
  std::optional<place> find(std::string_view key) const;
  /// `what` describes the expected value, for the error.
  place at(std::string_view key, std::string_view what) const;
  std::string text(std::string_view what) const;
  bool truth(std::string_view what) const;
  bool is_object() const;
  bool is_text() const;
  bool is_list() const;
  std::uint64_t number(std::string_view what, std::uint64_t least, std::uint64_t most) const;
  std::vector<place> list(std::string_view what) const;
  /// True if `shown` appears character by character in the file, so that an error can point into the value.
  bool literal(std::string_view shown) const;

 private:
  place(const json_text& file, const boost::json::value& v, std::string pointer);
  const json_text& file_;
  const boost::json::value& value_;
  std::string pointer_;
};

/// An error's sentence without the name of its code, which is of no use in an error about a file.
std::string sentence(const runtime::error& e);

}  // namespace parley::cli

#pragma once
/// A JSON file that people have written: the parsed value, and the place of each of its parts in the text.
///
///     const json_text file("spec.json", text);                    // throws text_error: spec.json:3:7: …
///     file.value_at("/ops/0/name");                               // offset of that value
///     throw file.error(file.key_at("/ops/0/nmae"), "unknown key \"nmae\"");
///
/// A key that occurs twice in one object is also an error, because one of the two values would be silently ignored.
#include <boost/json/value.hpp>

#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

namespace parley::cli {

/// A user's file is wrong: `file:line:column: what, and what to do`. The command ends with status 2.
class text_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline std::string in_quotes(std::string_view text) { return '"' + std::string(text) + '"'; }

class json_text {
 public:
  json_text(std::string file_name, std::string text);

  const boost::json::value& value() const noexcept { return value_; }
  const std::string& file_name() const noexcept { return file_name_; }
  /// Offset of the value at a JSON pointer; if there is none, the offset of its nearest parent.
  std::size_t value_at(std::string_view pointer) const;
  std::size_t key_at(std::string_view pointer) const;
  /// The part of a pointer that leads to a member: `/name`, in which `~` and `/` are escaped.
  static std::string step(std::string_view key);
  /// Lines and columns count from 1, columns in characters.
  text_error error(std::size_t offset, std::string_view what) const;
  std::string_view text() const noexcept { return text_; }

 private:
  friend class position_scanner;
  struct position {
    std::size_t key = 0;
    std::size_t value = 0;
  };
  const position& find(std::string_view pointer) const;

  std::string file_name_;
  std::string text_;
  boost::json::value value_;
  std::map<std::string, position, std::less<>> positions_;
};

}  // namespace parley::cli

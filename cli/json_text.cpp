#include <parley/cli/json_text.hpp>

#include <boost/json/parse.hpp>
#include <boost/json/stream_parser.hpp>

#include <algorithm>
#include <utility>

namespace parley::cli {

/// Walks text that Boost.JSON has accepted and notes where each value and key begins.
class position_scanner {
 public:
  explicit position_scanner(json_text& file) : file_(file), text_(file.text_) {}

  void value(const std::string& pointer, std::size_t key) {
    skip_blanks();
    file_.positions_[pointer] = {key, at_};
    switch (text_[at_]) {
      case '{': object(pointer); break;
      case '[': array(pointer); break;
      case '"': skip_string(); break;
      default: at_ = std::min(text_.find_first_of(",]} \t\r\n", at_), text_.size());
    }
  }

 private:
  void object(const std::string& pointer) {
    for (++at_; next() != '}';) {
      const std::size_t key = at_;
      skip_string();
      const std::string name(boost::json::parse(text_.substr(key, at_ - key)).as_string());
      const std::string member = pointer + json_text::step(name);
      if (file_.positions_.count(member) != 0)
        throw file_.error(key, "the key " + in_quotes(name) + " is given here for the second time");
      next();
      ++at_;  // the colon
      value(member, key);
      if (next() == ',') ++at_;
    }
    ++at_;
  }
  void array(const std::string& pointer) {
    std::size_t index = 0;
    for (++at_; next() != ']';) {
      value(pointer + "/" + std::to_string(index++), at_);
      if (next() == ',') ++at_;
    }
    ++at_;
  }
  void skip_blanks() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size() - 1); }
  char next() {
    skip_blanks();
    return text_[at_];
  }
  void skip_string() {
    for (++at_; text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }

  json_text& file_;
  std::string_view text_;
  std::size_t at_ = 0;
};

json_text::json_text(std::string file_name, std::string text)
    : file_name_(std::move(file_name)), text_(std::move(text)) {
  boost::json::stream_parser parser;
  boost::json::error_code ec;
  const std::size_t used = parser.write_some(text_.data(), text_.size(), ec);
  if (!ec && used < text_.size() && text_.find_first_not_of(" \t\r\n", used) != std::string::npos)
    ec = boost::json::error::extra_data;
  if (!ec) parser.finish(ec);
  if (ec == boost::json::error::incomplete)
    throw error(text_.size(), "the JSON ends too early; a bracket, brace or quote is not closed");
  if (ec) throw error(used, "this is not JSON (" + ec.message() + "); check the text here and just before it");
  value_ = parser.release();
  position_scanner(*this).value("", 0);
}

std::string json_text::step(std::string_view key) {
  std::string text = "/";
  for (const char c : key) text += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return text;
}

const json_text::position& json_text::find(std::string_view pointer) const {
  for (;; pointer = pointer.substr(0, pointer.rfind('/'))) {
    if (const auto found = positions_.find(pointer); found != positions_.end()) return found->second;
    if (pointer.find('/') == std::string_view::npos) return positions_.begin()->second;
  }
}

std::size_t json_text::value_at(std::string_view pointer) const { return find(pointer).value; }
std::size_t json_text::key_at(std::string_view pointer) const { return find(pointer).key; }

text_error json_text::error(std::size_t offset, std::string_view what) const {
  const std::string_view before = std::string_view(text_).substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  const auto column = 1 + std::count_if(before.begin() + static_cast<std::ptrdiff_t>(start), before.end(), [](char c) {
                        return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;  // not the later bytes of a character
                      });
  return text_error(file_name_ + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + std::string(what));
}

}  // namespace parley::cli

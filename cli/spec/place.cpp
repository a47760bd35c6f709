#include <parley/cli/spec/place.hpp>

#include <algorithm>
#include <utility>

namespace parley::cli {

namespace json = boost::json;

namespace {

std::string listed(std::initializer_list<std::string_view> words) {
  std::string text;
  for (const std::string_view w : words) text += (text.empty() ? "" : ", ") + std::string(w);
  return text;
}

}  // namespace

std::string sentence(const runtime::error& e) {
  std::string text = e.what();
  const std::string code = std::string(runtime::name(e.code())) + ": ";
  return text.starts_with(code) ? text.substr(code.size()) : text;
}

place::place(const json_text& file) : place(file, file.value(), "") {}
place::place(const json_text& file, const json::value& v, std::string pointer)
    : file_(file), value_(v), pointer_(std::move(pointer)) {}

void place::fail(const std::string& what, std::size_t further) const {
  throw file_.error(file_.value_at(pointer_) + further, what);
}

void place::expect_object(std::string_view what, std::initializer_list<std::string_view> known) const {
  if (!value_.is_object()) fail(std::string(what) + " must be an object: {…}");
  for (const auto& member : value_.get_object()) {
    if (std::find(known.begin(), known.end(), std::string_view(member.key())) == known.end())
      throw file_.error(file_.key_at(pointer_ + json_text::step(member.key())),
                        "unknown key " + in_quotes(member.key()) + "; known here are " + listed(known));
  }
}

std::optional<place> place::find(std::string_view key) const {
  const json::value* v = value_.get_object().if_contains(key);
  if (v == nullptr) return std::nullopt;
  return place(file_, *v, pointer_ + json_text::step(key));
}

place place::at(std::string_view key, std::string_view what) const {
  if (const auto found = find(key)) return *found;
  fail("the key " + in_quotes(key) + " is missing: " + std::string(what));
}

std::string place::text(std::string_view what) const {
  if (!value_.is_string()) fail(std::string(what) + " must be a text in quotes");
  return std::string(value_.get_string());
}

bool place::truth(std::string_view what) const {
  if (!value_.is_bool()) fail(std::string(what) + " must be true or false");
  return value_.get_bool();
}

bool place::is_object() const { return value_.is_object(); }
bool place::is_text() const { return value_.is_string(); }
bool place::is_list() const { return value_.is_array(); }

std::uint64_t place::number(std::string_view what, std::uint64_t least, std::uint64_t most) const {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  if (!value_.is_int64() && !value_.is_uint64()) fail(std::string(what) + " must be a whole number, " + range);
  json::error_code ec;
  const auto n = value_.to_number<std::uint64_t>(ec);
  if (ec || n < least || n > most) fail(std::string(what) + " must be " + range);
  return n;
}

std::vector<place> place::list(std::string_view what) const {
  if (!value_.is_array()) fail(std::string(what) + " must be a list: […]");
  std::vector<place> all;
  for (std::size_t i = 0; i < value_.get_array().size(); ++i)
    all.push_back(place(file_, value_.get_array()[i], pointer_ + "/" + std::to_string(i)));
  return all;
}

bool place::literal(std::string_view shown) const {
  return file_.text().substr(file_.value_at(pointer_) + 1).starts_with(shown);
}

}  // namespace parley::cli

#include <parley/tuning/results/results.hpp>

#include <parley/tuning/hash.hpp>
#include <parley/tuning/text.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

constexpr std::string_view validator_word = "Validator";

constexpr char remark_mark = '#';
constexpr std::string_view thin_word = "thin";

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

/// One field; bytes above 0x7f are fine, because names may be in any language.
bool is_field(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= ' ' && byte != 0x7f && c != ',';
  });
}

std::string milliseconds_text(double time_ms) { return fmt::format("{:.6g}", time_ms); }

bool is_quoted(std::string_view text) { return text.size() >= 2 && text.front() == '"' && text.back() == '"'; }

/// The field without surrounding blanks and a spreadsheet's quotation marks. A bare field stays as it is.
std::string_view bare(std::string_view text) {
  text = trimmed(text);
  while (is_quoted(text)) text = trimmed(text.substr(1, text.size() - 2));
  return text;
}

std::optional<double> parse_time(std::string_view text) {
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);  // some programs write it so
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stopped != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool is_infinite(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stopped == end && std::isinf(value) && value > 0;
}

std::string index_key(std::string_view op, std::string_view parameters) {
  std::string key;
  key.reserve(op.size() + 1 + parameters.size());
  key.append(op).append(1, ',').append(parameters);
  return key;
}

problem unwritable(std::string_view what) {
  return {fault::malformed, fmt::format("{} cannot be written to a results file: its fields must not be empty or "
                                        "contain commas or control characters",
                                        what)};
}

struct fields {
  std::array<std::string_view, 5> at{};
  std::size_t count = 0;
  bool more = false;  ///< after the fifth field there is more than the commas that a spreadsheet adds

  explicit fields(std::string_view line) {
    while (count < at.size()) {
      const std::size_t comma = std::min(line.find(','), line.size());
      at[count++] = bare(line.substr(0, comma));
      if (comma == line.size()) return;
      line.remove_prefix(comma + 1);
    }
    more = line.find_first_not_of(" \t,\"") != std::string_view::npos;
  }
};

class reader {
 public:
  explicit reader(std::string_view text) : rest_(text) {
    if (rest_.starts_with(byte_order_mark)) rest_.remove_prefix(byte_order_mark.size());
  }

  outcome<parsed_results> read() {
    if (!rest_.empty() && rest_.back() != '\n') torn_ = true;
    while (!rest_.empty()) {
      ++line_;
      std::string_view line = take_until('\n', rest_);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (auto why = read_line(line)) return *std::move(why);
    }
    if (torn_)
      warn("the last line has no line end; the file may have been cut off, so the time in that line is not used");
    if (unlisted_ > 0) read_.warnings.push_back({0, fmt::format("{} more warnings are not listed", unlisted_)});
    return std::move(read_);
  }

 private:
  std::optional<problem> read_line(std::string_view line) {
    if (line.size() > limits::line_bytes) {
      skip(fmt::format("the line is longer than {} bytes and is skipped", limits::line_bytes));
      return std::nullopt;
    }
    const std::string_view text = trimmed(line);
    if (text.empty()) return std::nullopt;
    if (text.front() == remark_mark) {
      keep_remark(line);
      return std::nullopt;
    }
    const fields f(line);
    warn_of_half_quotes(f);
    if (f.count < 3) {
      skip(fmt::format("the line has {} columns instead of at least 3; it is skipped", f.count));
      return std::nullopt;
    }
    return f.at[0] == validator_word ? read_validator(f) : read_entry(f, line);
  }

  void keep_remark(std::string_view line) {
    if (!read_.file.add_remark(std::string(line)))
      skip(fmt::format("there are more than {} remarks; this one is skipped", limits::remarks));
  }

  /// A single quotation mark is a sign of a quoted field with a comma, which no field may have.
  void warn_of_half_quotes(const fields& f) {
    for (std::size_t i = 0; i < f.count; ++i) {
      if (!f.at[i].starts_with('"') && !f.at[i].ends_with('"')) continue;
      return warn(fmt::format("column {} has an unmatched quotation mark, which is read as part of the text", i + 1));
    }
  }

  void warn_of_unread_columns(const fields& f) {
    if (!f.at[4].empty() && f.at[4] != thin_word)
      warn(fmt::format("column 5 may only say `{}`; its text is ignored", thin_word));
    if (f.more) warn("there are more than 5 columns; the others are ignored");
  }

  std::optional<problem> read_validator(const fields& f) {
    if (!f.at[3].empty() || !f.at[4].empty() || f.more) warn("a validator has 3 columns; the others are ignored");
    const auto& known = read_.file.validators();
    if (known.size() == limits::validators) {
      return problem{fault::too_many, fmt::format("line {}: more than {} validators", line_, limits::validators)};
    }
    return report(read_.file.add(validator{std::string(f.at[1]), std::string(f.at[2])}), "validator");
  }

  std::optional<problem> read_entry(const fields& f, std::string_view line) {
    if (f.count == 4 && f.at[2] == pinned_default && is_infinite(f.at[3])) {
      warn("a Default with an infinite time is the result of a search that found nothing, and pins nothing; to pin the "
           "default, write the line without a time");
      keep_remark(line);
      return std::nullopt;
    }
    if (read_.file.entries().size() == limits::result_entries) {
      return problem{fault::too_many, fmt::format("line {}: more than {} entries", line_, limits::result_entries)};
    }
    double time_ms = 0;
    if (f.count >= 4) {
      const std::optional<double> given = parse_time(f.at[3]);
      if (!given) {
        skip("the time is not a number of ms; the line is skipped");
        return std::nullopt;
      }
      warn_of_unread_columns(f);
      if (!torn_ || !rest_.empty()) time_ms = *given;  // otherwise the number may have been cut off
    }
    result_entry entry{std::string(f.at[0]), std::string(f.at[1]), std::string(f.at[2]), time_ms, f.at[4] == thin_word};
    return report(read_.file.add(std::move(entry)), "entry");
  }

  std::optional<problem> report(const outcome<added>& done, std::string_view what) {
    if (!done) {
      skip(done.reason().text + "; the line is skipped");
    } else if (done.value() == added::already_there) {
      warn(fmt::format("the {} is listed again; the first one counts", what));
    }
    return std::nullopt;
  }

  void skip(std::string text) {
    ++read_.skipped_lines;
    warn(std::move(text));
  }

  void warn(std::string text) {
    if (read_.warnings.size() < limits::warnings) {
      read_.warnings.push_back({line_, std::move(text)});
    } else {
      ++unlisted_;
    }
  }

  std::string_view rest_;
  std::size_t line_ = 0;
  std::size_t unlisted_ = 0;
  bool torn_ = false;
  parsed_results read_;
};

using validator_set = std::set<std::pair<std::string_view, std::string_view>>;

validator_set as_set(std::span<const validator> validators) {
  validator_set set;
  for (const validator& v : validators) set.emplace(bare(v.name), bare(v.value));
  return set;
}

/// The place of the last `.` of the file's name, or the end. A dot in a folder's name, as in `./results`, does not count.
std::size_t suffix_place(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  const std::size_t dot = name.rfind('.');
  return dot != std::string_view::npos && (slash == std::string_view::npos || dot > slash) ? dot : name.size();
}

/// All values under one name, or `nothing`.
std::string values_of(const validator_set& set, std::string_view name) {
  std::string text;
  for (const auto& [key, value] : set) {
    if (key == name) text += (text.empty() ? "" : " and ") + std::string(value);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

bool results_file::add_remark(std::string line) {
  if (remarks_.size() == limits::remarks) return false;
  remarks_.push_back({validators_.size(), entries_.size(), std::move(line)});
  return true;
}

outcome<added> results_file::add(validator v) {
  v = {std::string(bare(v.name)), std::string(bare(v.value))};
  if (!is_field(v.name) || !is_field(v.value)) return unwritable("this validator");
  if (std::find(validators_.begin(), validators_.end(), v) != validators_.end()) return added::already_there;
  validators_.push_back(std::move(v));
  return added::yes;
}

namespace {

std::optional<problem> check_and_round(result_entry& entry) {
  for (std::string* const field : {&entry.op, &entry.parameters, &entry.solution}) {
    if (const std::string_view shorter = bare(*field); shorter.size() != field->size()) *field = std::string(shorter);
  }
  if (!is_field(entry.op) || !is_field(entry.parameters) || !is_field(entry.solution)) return unwritable("this entry");
  if (entry.op.starts_with(byte_order_mark))
    return unwritable("an op whose name would be taken for the file's encoding");
  if (entry.op.front() == remark_mark) return unwritable("an op whose name begins as a remark does");
  if (entry.op == validator_word) return unwritable("an op called Validator");
  if (std::signbit(entry.time_ms)) return problem{fault::malformed, "the time is negative, and must be 0 or more ms"};
  if (!std::isfinite(entry.time_ms)) return problem{fault::malformed, "the time is infinite, or no number"};
  if (entry.op.size() + entry.parameters.size() + entry.solution.size() + 32 > limits::line_bytes) {
    return problem{fault::too_many, fmt::format("an entry is longer than {} bytes", limits::line_bytes)};
  }
  // Rounds the time as it will be read back.
  entry.time_ms = parse_time(milliseconds_text(entry.time_ms)).value_or(0);
  return std::nullopt;
}

}  // namespace

outcome<added> results_file::add(result_entry entry) {
  if (auto why = check_and_round(entry)) return *std::move(why);
  const auto [at, inserted] = index_.emplace(index_key(entry.op, entry.parameters), entries_.size());
  if (!inserted) return added::already_there;
  entries_.push_back(std::move(entry));
  return added::yes;
}

outcome<added> results_file::replace(result_entry entry) {
  const auto at = index_.find(index_key(entry.op, entry.parameters));
  if (at == index_.end()) return add(std::move(entry));
  if (auto why = check_and_round(entry)) return *std::move(why);
  entries_[at->second] = std::move(entry);
  return added::yes;
}

const result_entry* results_file::find(std::string_view op, std::string_view parameters) const {
  const auto at = index_.find(index_key(op, parameters));
  return at == index_.end() ? nullptr : &entries_[at->second];
}

std::vector<const result_entry*> results_file::find_all(std::string_view beginning) const {
  std::vector<const result_entry*> all;
  for (auto at = index_.lower_bound(beginning); at != index_.end() && at->first.starts_with(beginning); ++at)
    all.push_back(&entries_[at->second]);
  return all;
}

std::vector<std::string> results_file::solutions_near(std::string_view op, std::string_view parameters,
                                                      std::size_t most) const {
  std::vector<std::pair<double, const result_entry*>> near;
  for (const result_entry* e : find_all(std::string(op) + ",")) {
    const double distance = key_distance(e->parameters, parameters);
    if (!e->pins_default() && std::isfinite(distance)) near.emplace_back(distance, e);
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> all;
  for (const auto& [distance, e] : near) {
    if (all.size() == most) break;
    if (std::find(all.begin(), all.end(), e->solution) == all.end()) all.push_back(e->solution);
  }
  return all;
}

double key_distance(std::string_view a, std::string_view b) {
  // The next number of a text; negative: there is none.
  const auto next = [](std::string_view& text) {
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    while (!text.empty() && !is_digit(text.front())) text.remove_prefix(1);
    double number = text.empty() ? -1 : 0;
    for (; !text.empty() && is_digit(text.front()); text.remove_prefix(1)) number = 10 * number + (text.front() - '0');
    return number;
  };
  double sum = 0;
  for (;;) {
    const double x = next(a), y = next(b);
    if (x < 0 && y < 0) return sum;
    if (x < 0 || y < 0) return std::numeric_limits<double>::infinity();
    sum += std::abs(std::log((x + 1) / (y + 1)));
  }
}

outcome<parsed_results> parse_results(std::string_view text) { return reader(text).read(); }

std::string write_results(const results_file& file) {
  fmt::memory_buffer text;
  auto remark = file.remarks().begin();
  const auto remarks_up_to = [&](std::size_t validators, std::size_t entries) {
    for (; remark != file.remarks().end() && remark->validators <= validators && remark->entries <= entries; ++remark)
      fmt::format_to(std::back_inserter(text), "{}\n", remark->line);
  };
  for (std::size_t i = 0; i < file.validators().size(); ++i) {
    remarks_up_to(i, 0);
    fmt::format_to(std::back_inserter(text), "Validator,{},{}\n", file.validators()[i].name,
                   file.validators()[i].value);
  }
  for (std::size_t i = 0; i < file.entries().size(); ++i) {
    remarks_up_to(file.validators().size(), i);
    const result_entry& e = file.entries()[i];
    fmt::format_to(std::back_inserter(text), "{},{},{},{}{}{}\n", e.op, e.parameters, e.solution,
                   milliseconds_text(e.time_ms), e.thin ? "," : "", e.thin ? thin_word : "");
  }
  remarks_up_to(file.validators().size(), file.entries().size());
  return fmt::to_string(text);
}

std::optional<problem> compare_validators(std::span<const validator> in_file, std::span<const validator> here,
                                          std::string_view where) {
  const validator_set theirs = as_set(in_file), ours = as_set(here);
  std::set<std::string_view> different;
  for (const auto& v : theirs) {
    if (ours.count(v) == 0) different.insert(v.first);
  }
  for (const auto& v : ours) {
    if (theirs.count(v) == 0) different.insert(v.first);
  }
  if (different.empty()) return std::nullopt;
  std::string text;
  for (std::string_view name : different) {
    text += fmt::format("{}validator {} is {} in the file and {} {}", text.empty() ? "" : "; ", name,
                        values_of(theirs, name), values_of(ours, name), where);
  }
  return problem{fault::validator_mismatch, std::move(text)};
}

bool differ_only_in(std::span<const std::string> soft, std::span<const validator> in_file,
                    std::span<const validator> here) {
  const auto hard = [soft](std::span<const validator> all) {
    std::vector<validator> some;
    std::copy_if(all.begin(), all.end(), std::back_inserter(some),
                 [&](const validator& v) { return std::find(soft.begin(), soft.end(), v.name) == soft.end(); });
    return some;
  };
  return !soft.empty() && !compare_validators(hard(in_file), hard(here));
}

std::uint64_t validators_digest(std::span<const validator> validators) {
  stable_hash h;
  for (const auto& [name, value] : as_set(validators)) h.text(name).text(value);
  return h.digest();
}

outcome<merged_results> merge_results(const results_file& existing, const results_file& more,
                                      std::span<const result_entry> superseded) {
  if (auto why = compare_validators(existing.validators(), more.validators())) return *std::move(why);
  merged_results both{existing, {}};
  for (const result_entry& e : more.entries()) {
    const result_entry* there = both.file.find(e.op, e.parameters);
    const bool pinned = there != nullptr && e.pins_default() && !there->pins_default();
    const bool replaced =
        pinned || (there != nullptr && std::find(superseded.begin(), superseded.end(), *there) != superseded.end());
    if (pinned) both.conflicts.push_back({e, *there});
    if (there != nullptr && !replaced) {
      if (there->solution != e.solution) both.conflicts.push_back({*there, e});
      continue;
    }
    const outcome<added> done = replaced ? both.file.replace(e) : both.file.add(e);
    if (!done) return done.reason();
    if (both.file.entries().size() > limits::result_entries) {
      return problem{fault::too_many,
                     fmt::format("together the files have more than {} entries", limits::result_entries)};
    }
  }
  for (const results_file::remark& r : more.remarks()) {
    const auto& there = both.file.remarks();
    if (std::none_of(there.begin(), there.end(), [&](const auto& t) { return t.line == r.line; }))
      static_cast<void>(both.file.add_remark(r.line));
  }
  return both;
}

std::string name_with_ordinal(std::string_view file_name, std::uint32_t ordinal) {
  const std::string number = std::to_string(ordinal);
  std::string name(file_name);
  if (const std::size_t place = name.find("%d"); place != std::string::npos) return name.replace(place, 2, number);
  return name.insert(suffix_place(name), number);
}

std::string name_with_mark(std::string_view file_name, std::string_view mark) {
  std::string name(file_name);
  return name.insert(suffix_place(name), "." + std::string(mark));
}

}  // namespace parley::tuning

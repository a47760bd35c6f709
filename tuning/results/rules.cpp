#include <parley/tuning/results/rules.hpp>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <parley/tuning/config.hpp>
#include <parley/tuning/key.hpp>
#include <parley/tuning/results/results.hpp>
#include <parley/tuning/text.hpp>

namespace parley::tuning {

namespace {

constexpr std::size_t most_rules = 10'000;

/// `64KiB`, `4KiB-1MiB`, `-64KiB`, `1MiB-`. Nothing: it is no range.
std::optional<std::array<std::uint64_t, 2>> range_of(std::string_view text) {
  const std::size_t dash = text.find('-');
  const std::string_view low = trimmed(text.substr(0, dash));
  const std::string_view high = dash == std::string_view::npos ? low : trimmed(text.substr(dash + 1));
  if (low.empty() && high.empty()) return std::nullopt;
  std::array<std::uint64_t, 2> range{0, std::numeric_limits<std::uint64_t>::max()};
  const std::array<std::string_view, 2> words{low, high};
  for (std::size_t i = 0; i < 2; ++i) {
    if (words[i].empty()) continue;
    const auto bytes = parse_byte_size(words[i]);
    if (!bytes) return std::nullopt;
    range[i] = bytes.value();
  }
  return range;
}

std::string_view without_remark(std::string_view line) {
  for (std::size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1)) {
    if (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t') return line.substr(0, at);
  }
  return line;
}

/// Reads one line; the text of the problem has no place.
outcome<rule> read_rule(std::string_view line) {
  std::array<std::string_view, 3> words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t comma = i + 1 < words.size() ? line.find(',') : std::string_view::npos;
    if (i + 1 < words.size() && comma == std::string_view::npos)
      return problem{fault::malformed, "a rule has three columns: op, key, config"};
    words[i] = trimmed(line.substr(0, comma));
    if (words[i].empty()) return problem{fault::malformed, "a column is empty; `*` fits everything"};
    if (comma != std::string_view::npos) line.remove_prefix(comma + 1);
  }
  rule r;
  r.op = words[0];
  r.key = words[1];
  const bool like_a_size = (r.key.front() >= '0' && r.key.front() <= '9') || r.key.front() == '-';
  if (const auto range = range_of(words[1])) {
    r.is_of_sizes = true;
    r.from_bytes = (*range)[0];
    r.to_bytes = (*range)[1];
    if (r.from_bytes > r.to_bytes)
      return problem{fault::malformed, fmt::format("the sizes {} end before they begin", words[1])};
  } else if (like_a_size && r.key.find_first_of("*?_ =") == std::string::npos) {
    return problem{fault::malformed,
                   fmt::format("{} is not a range of sizes, such as 4KiB-64KiB, 1MiB- or -64KiB", r.key)};
  }
  r.excludes = words[2].front() == '^';
  r.config = trimmed(words[2].substr(r.excludes ? 1 : 0));
  if (r.config.empty()) return problem{fault::malformed, "`^` needs the name of a config"};
  if (r.config == pinned_default) return r;
  const auto identity = parse_config_id(r.config);
  if (!identity && r.excludes) return r;  // a pattern
  if (!identity) return identity.reason();
  config_identity meant = identity.value();
  for (parameter& p : meant.parameters) {
    if (!p.value.ends_with('B')) continue;
    if (const auto bytes = parse_byte_size(p.value)) p.value = std::to_string(bytes.value());
  }
  r.config = config_id(meant);
  return r;
}

}  // namespace

bool fits_pattern(std::string_view pattern, std::string_view text) noexcept {
  std::size_t p = 0, t = 0, star = std::string_view::npos, after_star = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++after_star;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(p), pattern.end(), [](char c) { return c == '*'; });
}

bool rule::fits(std::string_view key_text, std::optional<std::uint64_t> bytes) const {
  if (is_of_sizes && bytes) return *bytes >= from_bytes && *bytes <= to_bytes;
  return fits_pattern(key, key_text);
}

bool rule::excludes_config(std::string_view id) const {
  return excludes && (fits_pattern(config, id) || fits_pattern(config, id.substr(0, id.find('('))));
}

outcome<rule_file> rule_file::parse(std::string_view text, std::string_view path) {
  rule_file file;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = take_until('\n', text);
    line = trimmed(without_remark(line.substr(0, line.find('\r'))));
    if (line.empty()) continue;
    auto r = read_rule(line);
    if (!r) return problem{r.reason().kind, fmt::format("{}:{}: {}", path, number, r.reason().text)};
    if (file.rules_.size() == most_rules)
      return problem{fault::too_many, fmt::format("{}:{}: there are more than {} rules", path, number, most_rules)};
    file.rules_.push_back(std::move(r).value());
    file.rules_.back().place = fmt::format("{}:{}", path, number);
  }
  return file;
}

std::vector<rule> rule_file::of(std::string_view op) const {
  std::vector<rule> some;
  std::copy_if(rules_.begin(), rules_.end(), std::back_inserter(some),
               [op](const rule& r) { return fits_pattern(r.op, op); });
  return some;
}

}  // namespace parley::tuning

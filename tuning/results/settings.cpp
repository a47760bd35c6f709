#include <parley/tuning/results/settings.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

constexpr std::string_view own_prefix = "PARLEY_TUNABLEOP_";
constexpr std::string_view other_prefix = "PYTORCH_TUNABLEOP_";
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20U;
constexpr std::uint64_t most_mebibytes = std::uint64_t{1} << 20U;  // 1 TiB

template <class T>
bool parse_number(std::string_view text, T& value, T highest = std::numeric_limits<T>::max()) {
  T parsed{};
  const char* const end = text.data() + text.size();
  const auto [stopped, fault] = std::from_chars(text.data(), end, parsed);
  if (fault != std::errc{} || stopped != end || parsed > highest) return false;
  value = parsed;
  return true;
}

bool parse(std::string_view text, bool& value) {
  if (text != "0" && text != "1") return false;
  value = text == "1";
  return true;
}
bool parse(std::string_view text, std::uint32_t& value) {
  return parse_number<std::uint32_t>(text, value, std::numeric_limits<std::int32_t>::max());
}
bool parse(std::string_view text, std::string& value) {
  value = text;
  return text.find('\0') == std::string_view::npos;
}
bool parse(std::string_view text, numerical_check& value) {
  if (text == "0" || text == "1") {
    value = numerical_check{};
    value.on = text == "1";
    return true;
  }
  const auto between = text.find('_');
  if (between == std::string_view::npos) return false;
  numerical_check parsed;
  parsed.on = true;
  const auto tolerance = [](std::string_view part, double& to) {
    return parse_number(part, to) && std::isfinite(to) && !std::signbit(to);
  };
  if (!tolerance(text.substr(0, between), parsed.atol) || !tolerance(text.substr(between + 1), parsed.rtol))
    return false;
  value = parsed;
  return true;
}
bool parse(std::string_view text, std::optional<std::uint64_t>& value) {
  std::uint64_t mebibytes = 0;
  if (!parse_number(text, mebibytes, most_mebibytes)) return false;
  value = mebibytes * mebibyte;
  return true;
}
bool parse_verbosity(std::string_view text, settings& to) { return parse_number(text, to.verbosity, 3U); }

std::string written(bool value) { return value ? "1" : "0"; }
std::string written(std::uint32_t value) { return std::to_string(value); }
std::string written(const std::string& value) { return value; }
std::string written(const numerical_check& value) {
  return value.on ? fmt::format("{}_{}", value.atol, value.rtol) : "0";
}
std::string written(const std::optional<std::uint64_t>& value) {
  return value ? std::to_string(*value / mebibyte) : "";
}

/// One variable: its name, and functions to read it, to show it, and to copy it over another value.
struct variable_rule {
  std::string_view name;
  std::string_view expects;
  bool (*read)(std::string_view text, settings& to);
  std::string (*show)(const settings& from);
  void (*copy)(const settings& from, settings& to);
};

template <auto member>
constexpr variable_rule make_rule(std::string_view name, std::string_view expects) {
  return {name, expects, [](std::string_view text, settings& to) { return parse(text, to.*member); },
          [](const settings& from) { return written(from.*member); },
          [](const settings& from, settings& to) { to.*member = from.*member; }};
}

constexpr std::string_view zero_or_one = "0 or 1";
constexpr std::string_view whole_number = "a whole number from 0 to 2147483647";
constexpr std::string_view file_name = "the name of a file";

constexpr variable_rule verbosity_rule() {
  variable_rule r = make_rule<&settings::verbosity>("VERBOSE", "a whole number from 0 to 3");
  r.read = &parse_verbosity;
  return r;
}

/// In the order of `setting`.
constexpr std::array rules{
    make_rule<&settings::enabled>("ENABLED", zero_or_one),
    make_rule<&settings::tuning>("TUNING", zero_or_one),
    make_rule<&settings::record_untuned>("RECORD_UNTUNED", zero_or_one),
    verbosity_rule(),
    make_rule<&settings::verbose_file>("VERBOSE_FILENAME", "err, out or the name of a file"),
    make_rule<&settings::file>("FILENAME", file_name),
    make_rule<&settings::untuned_file>("UNTUNED_FILENAME", file_name),
    make_rule<&settings::check>("NUMERICAL_CHECK", "0, 1, or two tolerances such as 1e-5_1e-3"),
    make_rule<&settings::max_tuning_duration_ms>("MAX_TUNING_DURATION_MS", whole_number),
    make_rule<&settings::max_tuning_iterations>("MAX_TUNING_ITERATIONS", whole_number),
    make_rule<&settings::max_warmup_duration_ms>("MAX_WARMUP_DURATION_MS", whole_number),
    make_rule<&settings::max_warmup_iterations>("MAX_WARMUP_ITERATIONS", whole_number),
    make_rule<&settings::flush_icache>("ICACHE_FLUSH_ENABLED", zero_or_one),
    make_rule<&settings::rotating_buffer_bytes>("ROTATING_BUFFER_SIZE", "a whole number of MiB, at most 1048576"),
    make_rule<&settings::max_search_duration_ms>("MAX_SEARCH_DURATION_MS", whole_number),
};
static_assert(rules.size() == static_cast<std::size_t>(setting::last) + 1);

}  // namespace

class settings_reader {
 public:
  settings_reader(const variable_lookup& lookup, std::span<const std::string> names) : lookup_(lookup), names_(names) {}

  outcome<environment_settings> read() {
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (const auto why = take(own_prefix, i)) return problem{fault::malformed, *why};
      if (read_.has(static_cast<setting>(i))) continue;
      if (const auto why = take(other_prefix, i)) read_.warnings_.push_back(*why + "; it is ignored");
    }
    for (const std::string& name : names_) {
      if (const auto why = take_family(own_prefix, name)) return problem{fault::malformed, *why};
    }
    for (const std::string& name : names_) {
      if (const auto why = take_family(other_prefix, name)) read_.warnings_.push_back(*why + "; it is ignored");
    }
    return std::move(read_);
  }

 private:
  std::optional<std::string> take(std::string_view prefix, std::size_t i) {
    const std::string name = std::string(prefix) + std::string(rules[i].name);
    const auto text = lookup_(name);
    if (!text || text->empty()) return std::nullopt;
    if (!rules[i].read(*text, read_.values_))
      return fmt::format("{}={}: must be {}; correct it or unset it", name, *text, rules[i].expects);
    read_.given_ |= std::uint32_t{1} << i;
    return std::nullopt;
  }

  std::optional<std::string> take_family(std::string_view prefix, const std::string& name) {
    const std::string_view rest = std::string_view(name).substr(std::min(prefix.size(), name.size()));
    const auto is_it = [&](const variable_rule& r) { return r.name == rest; };
    if (!name.starts_with(prefix) || !rest.ends_with("_ENABLED") || std::any_of(rules.begin(), rules.end(), is_it))
      return std::nullopt;
    const auto text = lookup_(name);
    if (!text || text->empty()) return std::nullopt;
    bool on = false;
    if (!parse(*text, on)) return fmt::format("{}={}: must be {}; correct it or unset it", name, *text, zero_or_one);
    read_.families_.emplace(rest, on);
    return std::nullopt;
  }

  const variable_lookup& lookup_;
  std::span<const std::string> names_;
  environment_settings read_;
};

std::string_view variable_name(setting which) noexcept { return rules[static_cast<std::size_t>(which)].name; }

std::string text_of(const settings& from, setting which) { return rules[static_cast<std::size_t>(which)].show(from); }

std::string family_variable(std::string_view family) {
  std::string name;
  for (const char c : family) {
    const bool small = c >= 'a' && c <= 'z';
    const bool kept = (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += small ? static_cast<char>(c - 'a' + 'A') : kept ? c : '_';
  }
  return name + "_ENABLED";
}

std::optional<bool> environment_settings::family(std::string_view name) const {
  const auto said = families_.find(family_variable(name));
  return said == families_.end() ? std::nullopt : std::optional(said->second);
}

settings environment_settings::over(settings mine) const {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (has(static_cast<setting>(i))) rules[i].copy(values_, mine);
  }
  return mine;
}

outcome<environment_settings> read_settings(const variable_lookup& lookup, std::span<const std::string> names) {
  return settings_reader(lookup, names).read();
}

}  // namespace parley::tuning

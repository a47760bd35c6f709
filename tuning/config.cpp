#include <parley/tuning/config.hpp>

#include <algorithm>
#include <charconv>
#include <iterator>

#include <fmt/format.h>

#include <parley/tuning/hash.hpp>
#include <parley/tuning/results/results.hpp>
#include <parley/tuning/text.hpp>

namespace parley::tuning {

namespace {

constexpr std::string_view structure = " ,;=()\"'\\";

bool is_word_character(char c) { return c > ' ' && c < '\x7f' && structure.find(c) == std::string_view::npos; }

/// Makes text of unknown origin safe to show: unprintable bytes become `?`, and long text is cut.
std::string shown(std::string_view text) {
  std::string out(text.substr(0, 80));
  for (char& c : out) {
    if (c < ' ' || c >= '\x7f') c = '?';
  }
  if (text.size() > out.size()) out += "...";
  return out;
}

std::optional<problem> check_word(std::string_view what, std::string_view of, std::string_view word,
                                  std::size_t limit) {
  if (word.empty()) return problem{fault::malformed, fmt::format("{} of config `{}` is empty", what, shown(of))};
  if (word.size() > limit) {
    return problem{fault::too_many,
                   fmt::format("{} `{}` of config `{}` is longer than {} bytes", what, shown(word), shown(of), limit)};
  }
  if (!std::all_of(word.begin(), word.end(), is_word_character)) {
    return problem{fault::malformed,
                   fmt::format("{} `{}` of config `{}` may only have printable ASCII characters other "
                               "than space and {}",
                               what, shown(word), shown(of), structure.substr(1))};
  }
  return std::nullopt;
}

std::vector<parameter> sorted(std::vector<parameter> parameters) {
  std::sort(parameters.begin(), parameters.end(), [](const parameter& a, const parameter& b) {
    return a.name != b.name ? a.name < b.name : a.value < b.value;
  });
  return parameters;
}

problem malformed_id(std::string_view text, std::string_view why) {
  return {fault::malformed, fmt::format("config `{}`: {}; write it like `direct` or `chunked(chunk_bytes=262144 "
                                        "in_flight=4)`",
                                        shown(text), why)};
}

}  // namespace

std::optional<std::string_view> config_identity::find(std::string_view parameter_name) const noexcept {
  for (const parameter& p : parameters) {
    if (p.name == parameter_name) return p.value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> config_identity::number(std::string_view parameter_name) const noexcept {
  const std::optional<std::string_view> text = find(parameter_name);
  if (!text) return std::nullopt;
  std::uint64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stopped, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stopped != end) return std::nullopt;
  return value;
}

outcome<config_identity> canonical(config_identity identity) {
  if (auto why = check_word("the name", identity.name, identity.name, limits::name_bytes)) return *std::move(why);
  if (identity.name == pinned_default) {
    return problem{
        fault::malformed,
        fmt::format("the name `{}` is reserved: in results files it pins the default config (c0)", pinned_default)};
  }
  if (!identity.wire_class.empty()) {
    auto why = check_word("the wire class", identity.name, identity.wire_class, limits::name_bytes);
    if (why) return *std::move(why);
  }
  if (identity.parameters.size() > limits::parameters) {
    return problem{fault::too_many, fmt::format("config `{}` has {} parameters; the limit is {}", identity.name,
                                                identity.parameters.size(), limits::parameters)};
  }
  identity.parameters = sorted(std::move(identity.parameters));
  for (std::size_t i = 0; i < identity.parameters.size(); ++i) {
    const parameter& p = identity.parameters[i];
    if (auto why = check_word("a parameter", identity.name, p.name, limits::name_bytes)) return *std::move(why);
    if (auto why = check_word("the value of " + p.name, identity.name, p.value, limits::value_bytes))
      return *std::move(why);
    if (i > 0 && identity.parameters[i - 1].name == p.name) {
      return problem{fault::duplicate, fmt::format("config `{}` has parameter `{}` twice, with {} and {}",
                                                   identity.name, p.name, identity.parameters[i - 1].value, p.value)};
    }
  }
  return identity;
}

std::string config_id(const config_identity& identity) {
  std::string text = identity.name;
  char separator = '(';
  for (const parameter& p : sorted(identity.parameters)) {
    text += separator;
    text += p.name;
    text += '=';
    text += p.value;
    separator = ' ';
  }
  if (!identity.parameters.empty()) text += ')';
  return text;
}

outcome<config_identity> parse_config_id(std::string_view text) {
  const std::string_view whole = text;
  text = trimmed(text);
  config_identity identity;
  const std::size_t open = text.find('(');
  if (open == std::string_view::npos) {
    identity.name = text;
    return canonical(std::move(identity));
  }
  if (text.back() != ')') return malformed_id(whole, "the closing parenthesis is missing");
  identity.name = trimmed(text.substr(0, open));
  std::string_view inside = text.substr(open + 1, text.size() - open - 2);
  while (!(inside = trimmed(inside)).empty()) {
    const std::string_view pair = inside.substr(0, inside.find_first_of(" ,"));
    inside = trimmed(inside.substr(pair.size()));
    if (inside.starts_with(',')) inside.remove_prefix(1);
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos) {
      return malformed_id(whole, fmt::format("parameter `{}` is not name=value", shown(pair)));
    }
    if (identity.parameters.size() == limits::parameters) return malformed_id(whole, "too many parameters");
    identity.parameters.emplace_back(std::string(pair.substr(0, equals)), std::string(pair.substr(equals + 1)));
  }
  return canonical(std::move(identity));
}

std::uint64_t digest(const config_identity& identity) {
  stable_hash hash;
  hash.text(identity.name).number(identity.parameters.size());
  for (const parameter& p : sorted(identity.parameters)) hash.text(p.name).text(p.value);
  return hash.text(identity.wire_class).number(identity.abi).digest();
}

outcome<catalogue> catalogue::make(std::vector<config_identity> configs) {
  if (configs.empty()) {
    return problem{fault::empty, "the catalogue is empty; it needs at least the default config, the first in the list"};
  }
  if (configs.size() > limits::configs) {
    return problem{fault::too_many,
                   fmt::format("the catalogue has {} configs; the limit is {}", configs.size(), limits::configs)};
  }
  list made;
  made.entries.reserve(configs.size());
  stable_hash hash;
  for (config_identity& identity : configs) {
    outcome<config_identity> checked_identity = canonical(std::move(identity));
    if (!checked_identity) return checked_identity.reason();
    entry e{std::move(checked_identity).value(), {}, 0};
    e.id = config_id(e.identity);
    e.digest = tuning::digest(e.identity);
    // Also hashes the text, so that two lists have different hashes even if they differ only in a config with a colliding digest.
    hash.number(e.digest).text(e.id).text(e.identity.wire_class);
    made.by_digest.emplace_back(e.digest, made.entries.size());
    made.by_id.push_back(made.entries.size());
    made.entries.push_back(std::move(e));
  }
  made.hash = hash.digest();

  const std::vector<entry>& all = made.entries;
  std::sort(made.by_id.begin(), made.by_id.end(),
            [&](std::size_t a, std::size_t b) { return all[a].id != all[b].id ? all[a].id < all[b].id : a < b; });
  std::sort(made.by_digest.begin(), made.by_digest.end());
  for (std::size_t i = 1; i < all.size(); ++i) {
    const std::size_t before = made.by_id[i - 1], after = made.by_id[i];
    if (all[before].id == all[after].id) {
      return problem{fault::duplicate,
                     fmt::format("the catalogue lists `{}` twice, at {} and {}; give one of them another "
                                 "name or other parameters",
                                 all[before].id, before, after)};
    }
  }
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto [digest, before] = made.by_digest[i - 1];
    const auto [next_digest, after] = made.by_digest[i];
    if (digest == next_digest) {
      return problem{fault::digest_collision,
                     fmt::format("configs `{}` and `{}` have the same digest {:016x}; rename one", all[before].id,
                                 all[after].id, digest)};
    }
  }
  catalogue all_of_them;
  all_of_them.list_ = std::make_shared<const list>(std::move(made));
  return all_of_them;
}

std::optional<std::size_t> catalogue::find(std::uint64_t digest) const noexcept {
  const auto& by_digest = listed().by_digest;
  const auto at = std::lower_bound(by_digest.begin(), by_digest.end(), digest,
                                   [](const auto& pair, std::uint64_t d) { return pair.first < d; });
  if (at == by_digest.end() || at->first != digest) return std::nullopt;
  return at->second;
}

std::optional<std::size_t> catalogue::find(std::string_view id) const noexcept {
  const list& all = listed();
  const auto at =
      std::lower_bound(all.by_id.begin(), all.by_id.end(), id,
                       [&](std::size_t place, std::string_view wanted) { return all.entries[place].id < wanted; });
  if (at == all.by_id.end() || all.entries[*at].id != id) return std::nullopt;
  return *at;
}

}  // namespace parley::tuning

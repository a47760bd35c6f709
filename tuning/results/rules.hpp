#pragma once
/// A user's rules: which config runs, or must not run, by op and key.
///
///     # op, key, config
///     activations/*,0-64KiB,direct                 # runs for these sizes, and nothing is tried
///     sums/*,1MiB-,^tree                           # must not run for these sizes
///     GemmTunableOp_*,??_1_*,blocked               # a kernel, by the text of its key, such as nt_1_4096_64
///
///     auto rules = rule_file::parse(text, "rules.csv").value();
///     for (const rule& r : rules.of("activations/0>1")) if (r.fits("8KiB_bf16", 8192)) …
///
/// `*` stands for any letters, `?` for one. The key is a range of sizes (`64KiB`, `4KiB-1MiB`, `-64KiB`, `1MiB-`), or a pattern for the
/// key's text as in results files. What begins with a digit, has no `*`, `?` or `_`, and is no range, is an error. A `#` begins a remark at
/// the beginning of a line and behind a blank.
///
/// Of the rules that name a config, the first one that fits counts. Every rule that excludes a config counts. A pattern without parentheses
/// excludes all configs of that name: `^chunked`. No rule excludes the default. `Default` names the default. A mixture counts as the config
/// that it is named after.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

struct rule {
  std::string op;
  std::string key;           ///< as the rule has it
  bool is_of_sizes = false;  ///< the key is a range of sizes; otherwise a pattern
  std::uint64_t from_bytes = 0;
  std::uint64_t to_bytes = std::numeric_limits<std::uint64_t>::max();
  std::string config;  ///< the one that runs, or a pattern for those that must not
  bool excludes = false;
  std::string place;  ///< `rules.csv:3`

  /// `bytes`: the largest size of the key; nothing: the key is a kernel's, and a range is a pattern, too.
  bool fits(std::string_view key_text, std::optional<std::uint64_t> bytes) const;
  /// True if it must not run.
  bool excludes_config(std::string_view id) const;
};

class rule_file {
 public:
  /// `malformed` with `path:line` for a line that is no rule.
  static outcome<rule_file> parse(std::string_view text, std::string_view path);
  /// The rules for an op, in their order.
  std::vector<rule> of(std::string_view op) const;
  bool empty() const noexcept { return rules_.empty(); }
  const std::vector<rule>& all() const noexcept { return rules_; }

 private:
  std::vector<rule> rules_;
};

/// True if the whole text fits the pattern.
bool fits_pattern(std::string_view pattern, std::string_view text) noexcept;

}  // namespace parley::tuning

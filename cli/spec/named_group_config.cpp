#include <parley/cli/spec/named_group_config.hpp>

#include <parley/tuning/config.hpp>
#include <parley/tuning/key.hpp>

#include <optional>
#include <string>

namespace parley::cli {

namespace {

runtime::error unknown(std::string_view text, const std::string& why) {
  return {runtime::errc::bad_argument,
          "config \"" + std::string(text) + "\" " + why +
              "; known are star, chain and two_shot, each with chunk_bytes=SIZE or without, tree and one_shot"};
}

}  // namespace

runtime::result<ops::group_config_ptr> named_group_config(std::string_view text) {
  const auto parsed = tuning::parse_config_id(text);
  if (!parsed) return unknown(text, "cannot be read: " + parsed.reason().text);
  const bool has_chunks = parsed->name == "star" || parsed->name == "chain" || parsed->name == "two_shot";
  if (!has_chunks && parsed->name != "tree" && parsed->name != "one_shot") return unknown(text, "is unknown");
  std::optional<std::uint64_t> chunk_bytes;
  for (const tuning::parameter& p : parsed->parameters) {
    if (!has_chunks || p.name != "chunk_bytes") return unknown(text, "has an unknown parameter " + p.name);
    const auto number = tuning::parse_byte_size(p.value);
    if (!number || number.value() == 0) return unknown(text, "has an impossible value for chunk_bytes");
    chunk_bytes = number.value();
  }
  if (parsed->name == "tree") return configs::tree();
  if (parsed->name == "one_shot") return configs::one_shot();
  if (parsed->name == "star") return configs::star(chunk_bytes.value_or(0));
  if (parsed->name == "two_shot") return configs::two_shot(chunk_bytes.value_or(0));
  return chunk_bytes ? configs::chain(*chunk_bytes) : configs::chain();
}

}  // namespace parley::cli

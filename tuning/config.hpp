#pragma once
/// Configs: their names, their identities, and the ordered catalogue that a rank offers.
///
///     config_identity pair{.name = "chunked", .parameters = {{"in_flight", "4"}, {"chunk_bytes", "262144"}},
///                          .wire_class = "am_chunks", .abi = 1};
///     config_id(pair);        // "chunked(chunk_bytes=262144 in_flight=4)": the one text form, everywhere
///     digest(pair);           // 64 bits over name, parameters, wire class and ABI
///     outcome<catalogue> offered = catalogue::make({direct, pair});   // element 0 is the default, c0
///
/// The text form has no commas, because results files are split on commas, quoted or not. Parameters are sorted by name and separated by
/// one space; the order in which they were given does not matter. An identity that cannot be canonical (duplicate parameters, characters
/// that are not allowed, too long) gives a `problem`.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

namespace limits {
inline constexpr std::size_t name_bytes = 64;    ///< a config's, parameter's or wire class's name
inline constexpr std::size_t value_bytes = 128;  ///< a parameter's value
inline constexpr std::size_t parameters = 32;    ///< of one config
inline constexpr std::size_t configs = 4096;     ///< of one catalogue
}  // namespace limits

struct parameter {
  parameter() = default;
  parameter(std::string n, std::string v) : name(std::move(n)), value(std::move(v)) {}
  parameter(std::string n, const char* v) : name(std::move(n)), value(v) {}
  parameter(std::string n, std::uint64_t v) : name(std::move(n)), value(std::to_string(v)) {}
  friend bool operator==(const parameter&, const parameter&) = default;

  std::string name;
  std::string value;
};

/// Ranks that run configs of the same identity understand each other. So do ranks that run different configs of the same wire class and
/// ABI, because the wire class determines how a payload is cut. An empty wire class is compatible with no other config.
struct config_identity {
  std::string name;
  std::vector<parameter> parameters{};
  std::string wire_class{};
  std::uint32_t abi = 1;
  friend bool operator==(const config_identity&, const config_identity&) = default;

  /// The value of a parameter, if it is there.
  std::optional<std::string_view> find(std::string_view parameter_name) const noexcept;
  /// The value of a parameter as a whole number, if the parameter exists and is a whole number.
  std::optional<std::uint64_t> number(std::string_view parameter_name) const noexcept;
};

/// Sorts the parameters by name; checks for duplicates, characters and limits. No config can be named `Default`: in results files this name
/// pins c0.
outcome<config_identity> canonical(config_identity identity);

/// The text form: `direct`, `chunked(chunk_bytes=262144 in_flight=4)`. Sorts the parameters; does not check them.
std::string config_id(const config_identity& identity);

/// Reads the text form: a canonical identity with name and parameters. Wire class and ABI are not part of the text. Parameters may be in
/// any order and be separated by several spaces or a comma, as people write them.
outcome<config_identity> parse_config_id(std::string_view text);

/// Never 0; independent of the order of parameters.
std::uint64_t digest(const config_identity& identity);

/// The ordered list of configs that one rank knows for one op. Element 0 is c0. Copies share the content, which never changes.
class catalogue {
 public:
  struct entry {
    config_identity identity;  ///< canonical
    std::string id;
    std::uint64_t digest;
    friend bool operator==(const entry&, const entry&) = default;
  };

  /// An empty catalogue, which `make` never returns. It means that no catalogue was received yet.
  catalogue() = default;
  static outcome<catalogue> make(std::vector<config_identity> configs);

  std::size_t size() const noexcept { return entries().size(); }
  bool empty() const noexcept { return list_ == nullptr; }
  const entry& operator[](std::size_t index) const { return entries().at(index); }
  const std::vector<entry>& entries() const noexcept { return listed().entries; }
  std::optional<std::size_t> find(std::uint64_t digest) const noexcept;
  std::optional<std::size_t> find(std::string_view id) const noexcept;
  /// A hash of all configs in their order: if two ranks' hashes are equal, the list need not be sent.
  std::uint64_t hash() const noexcept { return listed().hash; }
  friend bool operator==(const catalogue& a, const catalogue& b) noexcept {
    return a.list_ == b.list_ || a.entries() == b.entries();
  }

 private:
  struct list {
    std::vector<entry> entries;
    std::vector<std::pair<std::uint64_t, std::size_t>> by_digest;
    std::vector<std::size_t> by_id;
    std::uint64_t hash = 0;
  };
  const list& listed() const noexcept {
    static const list none;
    return list_ == nullptr ? none : *list_;
  }
  std::shared_ptr<const list> list_;
};

}  // namespace parley::tuning

#pragma once
/// Configs: what they are called, what identifies them, and the ordered catalogue that a rank offers.
///
///     config_identity pair{.name = "chunked", .parameters = {{"in_flight", "4"}, {"chunk_bytes", "262144"}},
///                          .wire_class = "am_chunks", .abi = 1};
///     config_id(pair);        // "chunked(chunk_bytes=262144 in_flight=4)": the one text form, everywhere
///     digest(pair);           // 64 bits over name, parameters, wire class and ABI
///     outcome<catalogue> offered = catalogue::make({direct, pair});   // element 0 is the default, c0
///
/// The text form is free of commas, because results files are split on commas and know no quoting. Parameters are
/// sorted by name and separated by one space; the order in which they were given never matters. What cannot be
/// canonical (duplicate parameters, foreign characters, too long) is a `problem` in words.
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

/// Configs with one identity may serve each other; the wire class and its ABI say what must match on all sides. Different
/// configs of one wire class may serve each other too, so it covers how a payload is cut. Empty: no other config does.
struct config_identity {
  std::string name;
  std::vector<parameter> parameters{};
  std::string wire_class{};
  std::uint32_t abi = 1;
  friend bool operator==(const config_identity&, const config_identity&) = default;

  /// The value of a parameter, if it is there.
  std::optional<std::string_view> find(std::string_view parameter_name) const noexcept;
  /// The value of a parameter as a whole number, if it is there and is one.
  std::optional<std::uint64_t> number(std::string_view parameter_name) const noexcept;
};

/// Parameters sorted by name; checked for duplicates, characters and limits. `Default` is no config's name: in results
/// files it pins c0.
outcome<config_identity> canonical(config_identity identity);

/// `direct`, `chunked(chunk_bytes=262144 in_flight=4)`. Sorts by itself; does not check.
std::string config_id(const config_identity& identity);

/// The reverse: a canonical identity with name and parameters. Wire class and ABI are not part of the text.
/// Parameters may come in any order and with more spaces; a comma between them is accepted from people.
outcome<config_identity> parse_config_id(std::string_view text);

/// Never 0; independent of the order of parameters.
std::uint64_t digest(const config_identity& identity);

/// The ordered list of configs that one rank knows for one op. Element 0 is c0. Its copies share what it holds, which never changes.
class catalogue {
 public:
  struct entry {
    config_identity identity;  ///< canonical
    std::string id;
    std::uint64_t digest;
    friend bool operator==(const entry&, const entry&) = default;
  };

  /// An empty one, which `make` never gives: a catalogue that was not yet received.
  catalogue() = default;
  static outcome<catalogue> make(std::vector<config_identity> configs);

  std::size_t size() const noexcept { return entries().size(); }
  bool empty() const noexcept { return list_ == nullptr; }
  const entry& operator[](std::size_t index) const { return entries().at(index); }
  const std::vector<entry>& entries() const noexcept { return listed().entries; }
  std::optional<std::size_t> find(std::uint64_t digest) const noexcept;
  std::optional<std::size_t> find(std::string_view id) const noexcept;
  /// Over all configs in their order: equal hashes mean that the list need not be sent.
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

#pragma once
// The options of this folder's programs, with the names that users of comparable programs know.
//
//     option_list known;
//     known.size("-b", smallest).number("-n", steps, 1).flag("--causal", causal).text("--only", only);
//     known.take(argc, argv);
//
// If an option is unknown, or its value is missing or invalid, the program prints the list of options and exits with
// status 2.
#include <parley/number_text.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace examples {

/// Reads `8`, `64K`, `2M` or `1G`, as nccl-tests does.
inline bool read_size(std::string_view text, std::uint64_t& into) {
  std::uint64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  constexpr std::string_view units = "KMG";
  unsigned shift = 0;
  if (!unit.empty()) {
    const auto at = units.find(static_cast<char>(unit.front() & ~0x20));  // upper case
    if (at == std::string_view::npos || unit.size() > 2 || (unit.size() == 2 && unit[1] != 'B')) return false;
    shift = 10 * static_cast<unsigned>(at + 1);
  }
  if (problem != std::errc() || number > std::numeric_limits<std::uint64_t>::max() >> shift) return false;
  into = number << shift;
  return true;
}

class option_list {
 public:
  option_list& flag(std::string name, bool& into) {
    return add(std::move(name), "", [&into](std::string_view) { return into = true; });
  }
  option_list& text(std::string name, std::string& into) {
    return add(std::move(name), "TEXT", [&into](std::string_view value) {
      into = value;
      return true;
    });
  }
  option_list& one_of(std::string name, std::string& into, std::vector<std::string> values) {
    std::string all;
    for (const std::string& v : values) all += (all.empty() ? "" : "|") + v;
    return add(std::move(name), std::move(all), [&into, values = std::move(values)](std::string_view value) {
      into = value;
      for (const std::string& v : values) {
        if (v == value) return true;
      }
      return false;
    });
  }
  template <class Size>
  option_list& size(std::string name, Size& into, std::uint64_t least = 0) {
    return add(std::move(name), "SIZE", [&into, least](std::string_view value) {
      std::uint64_t read = 0;
      const bool fine = read_size(value, read) && read >= least;
      if (fine) into = static_cast<Size>(read);
      return fine;
    });
  }
  template <class Number>
  option_list& number(std::string name, Number& into, Number least = 0,
                      Number most = std::numeric_limits<Number>::max()) {
    return add(std::move(name), "NUMBER", [&into, least, most](std::string_view value) {
      const auto read = parley::runtime::read_number<Number>(value, {least, most});
      if (read) into = *read;
      return read.has_value();
    });
  }

  /// Returns what is wrong, or an empty text.
  std::string read(std::span<const char* const> words) const {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string_view name = words[i];
      const option* const known = find(name);
      if (known == nullptr) return "there is no option " + std::string(name);
      std::string_view value;
      if (!known->takes.empty()) {
        if (i + 1 == words.size()) return "option " + known->name + " lacks its " + known->takes;
        value = words[++i];
      }
      if (!known->set(value)) return "option " + known->name + " cannot be " + std::string(value);
    }
    return {};
  }
  std::string usage() const {
    std::string all;
    for (const option& o : options_) all += " [" + o.name + (o.takes.empty() ? "" : " " + o.takes) + "]";
    return all;
  }
  void take(int argc, char** argv) const {
    const std::string wrong =
        read(std::span<const char* const>(argv + 1, static_cast<std::size_t>(argc > 0 ? argc - 1 : 0)));
    if (wrong.empty()) return;
    std::fprintf(stderr, "%s: %s; there are%s\n", argv[0], wrong.c_str(), usage().c_str());
    std::exit(2);
  }

 private:
  struct option {
    std::string name;
    std::string takes;  // kind of value; empty: none
    std::function<bool(std::string_view value)> set;
  };
  option_list& add(std::string name, std::string takes, std::function<bool(std::string_view)> set) {
    options_.push_back({std::move(name), std::move(takes), std::move(set)});
    return *this;
  }
  const option* find(std::string_view name) const {
    for (const option& o : options_) {
      if (o.name == name) return &o;
    }
    return nullptr;
  }
  std::vector<option> options_;
};

/// Sizes and steps, with the options of nccl-tests.
struct size_sweep {
  std::uint64_t smallest = 8;
  std::uint64_t largest = 64 << 20;
  std::uint64_t factor = 8;
  int timed = 200;   ///< timed steps
  int before = 400;  ///< steps before the timed ones
  int check = 1;     ///< 0: skip the comparison of results
  int gpus = 1;      ///< per rank

  option_list options() {
    option_list known;
    known.size("-b", smallest).size("-e", largest).number("-f", factor, std::uint64_t{2}).number("-g", gpus, 1, 1);
    known.number("-n", timed, 1).number("-w", before).number("-c", check);
    return known;
  }
  /// The `#wrong` column, as nccl-tests prints it.
  std::string wrong(std::size_t count) const { return check == 0 ? "N/A" : std::to_string(count); }
};

}  // namespace examples

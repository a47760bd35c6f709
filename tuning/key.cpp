#include <parley/tuning/key.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

struct unit {
  std::string_view name;
  unsigned shift;
};
constexpr std::array<unit, 7> units{
    {{"EiB", 60}, {"PiB", 50}, {"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}}};
constexpr std::size_t field_bytes = 256;

std::optional<problem> check_field(std::string_view what, std::string_view text) {
  if (text.size() > field_bytes) {
    return problem{fault::too_many, fmt::format("{} is longer than {} bytes", what, field_bytes)};
  }
  const bool plain = std::all_of(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != '\x7f' && c != ','; });
  if (!plain || (!text.empty() && (text.front() == ' ' || text.back() == ' '))) {
    return problem{fault::malformed,
                   fmt::format("{} must be free of commas, control characters and outer spaces, because "
                               "results files could not hold it otherwise",
                               what)};
  }
  return std::nullopt;
}

}  // namespace

size_bucket size_bucket::of(std::uint64_t bytes) noexcept {
  size_bucket bucket;
  if (bytes != 0) bucket.index_ = std::min(static_cast<unsigned>(std::bit_width(bytes - 1)) + 1, count - 1);
  return bucket;
}

std::uint64_t size_bucket::smallest_bytes() const noexcept {
  if (index_ <= 1) return index_;
  return (std::uint64_t{1} << (index_ - 2)) + 1;
}

std::uint64_t size_bucket::largest_bytes() const noexcept {
  if (index_ == 0) return 0;
  return std::uint64_t{1} << (index_ - 1);
}

std::string byte_size_text(std::uint64_t bytes) {
  for (const unit& u : units) {
    const std::uint64_t one = std::uint64_t{1} << u.shift;
    if (bytes >= one && bytes % one == 0) return fmt::format("{}{}", bytes >> u.shift, u.name);
  }
  return "0B";
}

outcome<std::uint64_t> parse_byte_size(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return problem{fault::malformed,
                   fmt::format("`{}` is not a size: {}; write it like 4096, 256KiB or 16MiB", text.substr(0, 40), why)};
  };
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) return wrong("the number is too large");
  if (error != std::errc{}) return wrong("it does not start with a whole number");
  std::string_view rest(stopped, static_cast<std::size_t>(end - stopped));
  if (rest.empty()) return value;
  if (rest.front() == ' ') rest.remove_prefix(1);
  for (const unit& u : units) {
    if (rest != u.name) continue;
    if (value > (std::numeric_limits<std::uint64_t>::max() >> u.shift)) return wrong("the number is too large");
    return value << u.shift;
  }
  return wrong("the unit is none of B, KiB, MiB, GiB, TiB, PiB, EiB");
}

std::string parameters_text(const tuning_key& key) {
  std::string text = byte_size_text(key.size.largest_bytes());
  if (!key.dtype.empty()) text += '_' + key.dtype;
  return text;
}

std::string to_string(const tuning_key& key) { return key.op + ' ' + parameters_text(key); }

outcome<tuning_key> parse_key(std::string_view op, std::string_view parameters) {
  const std::size_t underscore = std::min(parameters.find('_'), parameters.size());
  const outcome<std::uint64_t> bytes = parse_byte_size(parameters.substr(0, underscore));
  if (!bytes) return bytes.reason();
  tuning_key key{std::string(op), size_bucket::of(bytes.value()), {}};
  if (key.size.largest_bytes() != bytes.value()) {
    return problem{fault::malformed, fmt::format("`{}` does not name a size bucket; the next one is {}",
                                                 parameters.substr(0, 40), byte_size_text(key.size.largest_bytes()))};
  }
  if (underscore != parameters.size()) {
    key.dtype = parameters.substr(underscore + 1);
    if (key.dtype.empty()) {
      return problem{fault::malformed, fmt::format("`{}` ends where the type should follow", parameters.substr(0, 40))};
    }
  }
  return checked(std::move(key));
}

outcome<tuning_key> checked(tuning_key key) {
  if (key.op.empty()) return problem{fault::empty, "the op has no name"};
  if (key.op == "Validator") {
    return problem{fault::malformed,
                   "an op cannot be called `Validator`: that word starts other lines of a results file"};
  }
  if (auto why = check_field("the op's name", key.op)) return *std::move(why);
  if (auto why = check_field("the type's name", key.dtype)) return *std::move(why);
  return key;
}

}  // namespace parley::tuning

#include <parley/machine.hpp>

#include <parley/number_text.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>
#include <parley/transports/nccl/nccl_library.hpp>
#include <parley/tuning/text.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::rank_id;

namespace {

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  return runtime::read_number<Number>(text, {0, std::numeric_limits<Number>::max()});
}

constexpr std::string_view compute = machine::numbered[0];
constexpr std::string_view cuda = machine::numbered[1];
constexpr std::string_view nccl = machine::numbered[2];
constexpr std::string_view memory = machine::numbered[3];
constexpr unsigned bits_of_a_gib = 30;
constexpr std::size_t most_of_a_name = 100;

/// The version that a name with a number asks for: `sm_90`, `cuda_12.4`, `nccl_2.28.9`, `memory_40`.
struct asked_version {
  std::string_view prefix;
  std::int64_t at_least;
};
constexpr std::int64_t place_of_a_part = 100'000;
std::int64_t version_of(std::int64_t major, std::int64_t minor, std::int64_t patch) {
  return (major * place_of_a_part + minor) * place_of_a_part + patch;
}
std::optional<asked_version> version_in(std::string_view name) {
  for (const std::string_view prefix : machine::numbered) {
    if (!name.starts_with(prefix)) continue;
    std::string_view rest = name.substr(prefix.size());
    std::array<std::int64_t, 3> parts{};
    for (std::int64_t& part : parts) {
      const std::string_view one = rest.substr(0, rest.find('.'));
      const auto number = number_in<std::uint16_t>(one);
      if (!number) return std::nullopt;
      part = *number;
      if (one.size() == rest.size()) return asked_version{prefix, version_of(parts[0], parts[1], parts[2])};
      rest.remove_prefix(one.size() + 1);
    }
    return std::nullopt;
  }
  return std::nullopt;
}

std::string text_of(const masked_capability& m) { return m.rank ? fmt::format("{}:{}", *m.rank, m.name) : m.name; }

std::string joined(std::vector<std::string> parts) {
  std::ranges::sort(parts);
  const auto again = std::ranges::unique(parts);
  parts.erase(again.begin(), again.end());
  return fmt::format("{}", fmt::join(parts, " "));  // spaces, because results files are split at commas
}

}  // namespace

runtime::result<std::vector<masked_capability>> parse_masks(std::string_view text) {
  std::vector<masked_capability> all;
  while (!text.empty()) {
    const std::string_view one = tuning::take_until(',', text);
    masked_capability made{std::nullopt, std::string(one)};
    if (const auto colon = one.find(':'); colon != std::string_view::npos) {
      made = {number_in<rank_id>(one.substr(0, colon)), std::string(one.substr(colon + 1))};
      if (!made.rank)
        return error{errc::malformed, "\"" + std::string(one) +
                                          "\" does not begin with a rank; write RANK:CAPABILITY, for example 2:sm_90"};
    }
    if (made.name.empty())
      return error{errc::malformed, "\"" + std::string(one) +
                                        "\" names no capability; write RANK:CAPABILITY, for example 2:sm_90, or "
                                        "CAPABILITY alone for all ranks"};
    all.push_back(std::move(made));
  }
  return all;
}

std::string text_of(const std::vector<masked_capability>& masks) {
  std::vector<std::string> parts;
  for (const masked_capability& m : masks) parts.push_back(text_of(m));
  return joined(std::move(parts));
}

std::string text_of(const std::vector<masked_capability>& masks, rank_id self) {
  std::vector<std::string> parts;
  for (const masked_capability& m : masks) {
    if (!m.rank || *m.rank == self) parts.push_back(m.name);
  }
  return joined(std::move(parts));
}

bool machine::is_numbered(std::string_view name) { return version_in(name).has_value(); }

namespace {
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

/// The capabilities with names similar to `wanted`. A capability with a number gets the number that `wanted` contains.
std::vector<std::string> names_near(std::string_view wanted) {
  constexpr std::size_t farthest = 3;
  const std::size_t first_digit = std::min(wanted.find_first_of("0123456789"), wanted.size());
  const std::string number(wanted.substr(first_digit));
  std::vector<std::pair<std::size_t, std::string>> near;
  const auto consider = [&](std::string name) {
    const std::size_t edits = edits_between(wanted.substr(0, most_of_a_name), name);
    if (edits <= farthest && edits < wanted.size()) near.emplace_back(edits, std::move(name));
  };
  for (const char* const name : machine::named) consider(name);
  for (const std::string_view prefix : machine::numbered) {
    if (version_in(std::string(prefix) + number)) consider(std::string(prefix) + number);
  }
  std::ranges::sort(near);
  std::vector<std::string> nearest;
  for (auto& [edits, name] : near) {
    if (edits == near.front().first) nearest.push_back(std::move(name));
  }
  return nearest;
}
}  // namespace

runtime::result<> machine::is_capability(std::string_view name) {
  if (std::ranges::find(named, name) != named.end() || is_numbered(name)) return {};
  const std::vector<std::string> near = names_near(name);
  const std::string meant = near.empty() ? "" : fmt::format(" did you mean {}?", fmt::join(near, " or "));
  return error{errc::bad_argument, fmt::format("\"{}\" is not a capability of a machine;{} the capabilities are {}; "
                                               "anything else that a config needs belongs in its `available`",
                                               name.substr(0, most_of_a_name), meant, what_there_is())};
}

std::string machine::what_there_is() {
  return fmt::format("{}, sm_90, cuda_12.4, nccl_2.28, memory_40 and the like", fmt::join(named, ", "));
}

machine machine::without_gpu() {
  machine m;
  const std::string none = "this job was given no GPU";
  for (const std::string_view prefix : numbered) m.versions_.push_back({prefix, -1, none});
  for (const char* const name : named) m.lacks(name, none);
  return m;
}

machine machine::with_gpu(const transports::cuda_driver& gpu, int device, const transports::nccl_library* library) {
  machine m;
  const transports::cuda_device& d = gpu.devices().at(static_cast<std::size_t>(device));
  const std::string who = fmt::format("GPU {}, {},", device, d.name);
  m.versions_.push_back(
      {compute, version_of(d.compute_capability, 0, 0), fmt::format("{} is sm_{}", who, d.compute_capability)});
  const auto gib = static_cast<std::int64_t>(d.memory_bytes >> bits_of_a_gib);
  m.versions_.push_back({memory, version_of(gib, 0, 0), fmt::format("{} has {} GiB of memory", who, gib)});
  const int runs = gpu.driver_version();
  m.versions_.push_back({cuda, version_of(runs / 1000, runs / 10 % 100, 0),
                         fmt::format("the driver is for CUDA {}.{}", runs / 1000, runs / 10 % 100)});
  if (library == nullptr) {
    m.versions_.push_back({nccl, -1, "this job was given no NCCL"});
  } else {
    const int v = library->version();
    m.versions_.push_back(
        {nccl, version_of(v / 10'000, v / 100 % 100, v % 100), "NCCL is version " + transports::nccl_version_text(v)});
  }
  const bool sees_others = gpu.devices().size() > 1;
  if (sees_others && d.peers.empty()) m.lacks("peer_access", who + " reaches the memory of no other GPU");
  if (sees_others && d.nvlink.empty()) m.lacks("nvlink", who + " has no NVLink to another GPU");
  if (!d.ipc) m.lacks("ipc", who + " cannot share its memory with other processes, according to the driver");
  return m;
}

void machine::mask(const std::vector<masked_capability>& masks, rank_id self) {
  for (const masked_capability& m : masks) {
    if (!m.rank || *m.rank == self) masked_.push_back(m.name);
  }
}

namespace {
error masked_by(const std::string& mask) {
  return error{errc::unavailable, "this rank must do without " + mask + " (PARLEY_MASK)"};
}
}  // namespace

runtime::result<> machine::lets_run(std::string_view config) const {
  for (const std::string& m : masked_) {
    if (m == config) return masked_by(m);
  }
  for (const auto& [name, why] : lacking_) {
    if (name == config) return error{errc::unavailable, why};
  }
  return {};
}

runtime::result<> machine::has(std::string_view capability) const {
  if (const auto there = lets_run(capability); !there) return there;
  const auto wanted = version_in(capability);
  if (!wanted) return {};
  for (const std::string& m : masked_) {
    const auto hidden = version_in(m);
    const bool newer = hidden && hidden->prefix == wanted->prefix && hidden->at_least <= wanted->at_least;
    if (newer || (wanted->prefix == nccl && m == "nccl")) return masked_by(m);
  }
  for (const version& v : versions_) {
    if (v.prefix == wanted->prefix && v.has < wanted->at_least) return error{errc::unavailable, v.who};
  }
  return {};
}

}  // namespace parley::ops

#include <parley/ops/machine.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::rank_id;

namespace {

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (text.empty() || problem != std::errc() || stop != end) return std::nullopt;
  return number;
}

/// 90 of `sm_90`.
std::optional<int> compute_capability_in(std::string_view name) {
  constexpr std::string_view prefix = "sm_";
  if (!name.starts_with(prefix)) return std::nullopt;
  return number_in<int>(name.substr(prefix.size()));
}

std::string text_of(const masked_capability& m) { return m.rank ? fmt::format("{}:{}", *m.rank, m.name) : m.name; }

std::string joined(std::vector<std::string> parts) {
  std::ranges::sort(parts);
  const auto again = std::ranges::unique(parts);
  parts.erase(again.begin(), again.end());
  return fmt::format("{}", fmt::join(parts, " "));  // in a line of a results file, which is cut at commas
}

}  // namespace

runtime::result<std::vector<masked_capability>> parse_masks(std::string_view text) {
  std::vector<masked_capability> all;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    masked_capability made{std::nullopt, std::string(one)};
    if (const auto colon = one.find(':'); colon != std::string_view::npos) {
      made = {number_in<rank_id>(one.substr(0, colon)), std::string(one.substr(colon + 1))};
      if (!made.rank)
        return error{errc::malformed,
                     "\"" + std::string(one) + "\" begins with no rank; write RANK:CAPABILITY, for example 2:sm_90"};
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

machine machine::without_gpu() {
  machine m;
  m.compute_capability_ = 0;
  m.device_ = "this job was given no GPU";
  for (const char* const name : named) m.lacks(name, m.device_);
  return m;
}

machine machine::with_gpu(const transports::cuda_driver& gpu, int device) {
  machine m;
  const transports::cuda_device& d = gpu.devices().at(static_cast<std::size_t>(device));
  const std::string who = fmt::format("GPU {}, {},", device, d.name);
  m.compute_capability_ = d.compute_capability;
  m.device_ = fmt::format("{} is sm_{}", who, d.compute_capability);
  const bool sees_others = gpu.devices().size() > 1;
  if (sees_others && d.peers.empty()) m.lacks("peer_access", who + " reaches the memory of no other GPU");
  if (sees_others && d.nvlink.empty()) m.lacks("nvlink", who + " has no NVLink to another GPU");
  if (!d.ipc) m.lacks("ipc", who + " cannot give its memory to other processes, as the driver says");
  return m;
}

void machine::mask(const std::vector<masked_capability>& masks, rank_id self) {
  for (const masked_capability& m : masks) {
    if (!m.rank || *m.rank == self) masked_.push_back(m.name);
  }
}

runtime::result<> machine::has(std::string_view capability) const {
  const auto wanted = compute_capability_in(capability);
  for (const std::string& m : masked_) {
    const auto hidden = compute_capability_in(m);
    if (m == capability || (wanted && hidden && *hidden <= *wanted))
      return error{errc::unavailable, "this rank was told to do without " + m + " (PARLEY_MASK)"};
  }
  for (const auto& [name, why] : lacking_) {
    if (name == capability) return error{errc::unavailable, why};
  }
  if (wanted && compute_capability_ && *compute_capability_ < *wanted) return error{errc::unavailable, device_};
  return {};
}

}  // namespace parley::ops

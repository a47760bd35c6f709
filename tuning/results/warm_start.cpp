#include <parley/tuning/results/warm_start.hpp>

#include <parley/tuning/hash.hpp>
#include <parley/tuning/results/results.hpp>

#include <algorithm>
#include <functional>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

std::string whose(const remembered_best& r) { return fmt::format("rank {}'s", r.proposer); }

/// A pin may omit the machines, because a person need not know how machines are named.
bool holds_for(const remembered_best& r, std::uint64_t machines) {
  return r.machines == machines || (r.machines == 0 && r.solution == pinned_default);
}

/// The sentence about an entry that did not win.
std::string other_voice(const remembered_best& r, const remembered_best* winner,
                        std::span<const std::string> candidates, std::uint64_t machines) {
  if (!holds_for(r, machines))
    return whose(r) + " has it for other machines, or for another placement of the ranks on them";
  if (winner != nullptr && r.solution == winner->solution) return whose(r) + " agrees";
  const auto id = id_in_file(r.solution);
  if (r.solution == pinned_default || std::find(candidates.begin(), candidates.end(), r.solution) != candidates.end())
    return fmt::format("{} says {}", whose(r), id);
  const bool by_name =
      std::any_of(candidates.begin(), candidates.end(), [&](const auto& c) { return id_in_file(c) == id; });
  return fmt::format("{} says {}{}", whose(r), id,
                     by_name ? ", for which ranks run other configs now" : ", which is not a candidate now");
}

}  // namespace

recalled recall(std::string_view key, std::span<const remembered_best> in_order,
                std::span<const std::string> candidates, std::uint64_t machines) {
  const auto counts = [&](const remembered_best& r) {
    return r.parameters == key && !r.solution.empty() && holds_for(r, machines);
  };
  const auto place_of = [&](const remembered_best& r) {
    return static_cast<std::size_t>(std::find(candidates.begin(), candidates.end(), r.solution) - candidates.begin());
  };
  auto won = std::find_if(in_order.begin(), in_order.end(),
                          [&](const auto& r) { return counts(r) && r.solution == pinned_default; });
  const bool pinned = won != in_order.end();
  if (!pinned)
    won = std::find_if(in_order.begin(), in_order.end(),
                       [&](const auto& r) { return counts(r) && place_of(r) < candidates.size(); });
  const remembered_best* winner = won == in_order.end() ? nullptr : &*won;

  recalled found;
  const auto add = [&](const std::string& part) { found.sentence += (found.sentence.empty() ? "" : "; ") + part; };
  if (winner != nullptr) {
    found.candidate = pinned ? 0 : place_of(*winner);
    found.pinned = pinned;
    found.proposer = winner->proposer;
    found.machines = winner->machines;
    found.time_ms = winner->time_ms;
    found.thin = winner->thin && !pinned;
    add(whose(*winner) + (pinned ? " results file pins the default" : " results file says so"));
  }
  for (const remembered_best& r : in_order) {
    if (r.parameters == key && &r != winner) add(other_voice(r, winner, candidates, machines));
  }
  return found;
}

namespace {
constexpr std::string_view mixture_mark = ";mixture=";
bool all_alike(std::span<const std::uint64_t> all) {
  return std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) == all.end();
}
}  // namespace

std::string name_in_file(std::string_view id, std::uint64_t mixture) {
  return mixture == 0 || id_in_file(id) != id ? std::string(id) : fmt::format("{}{}{:016x}", id, mixture_mark, mixture);
}

std::string_view id_in_file(std::string_view name) noexcept { return name.substr(0, name.find(mixture_mark)); }

std::uint64_t machines_together(std::span<const std::uint64_t> validator_hashes, std::span<const std::uint64_t> hosts) {
  if (all_alike(validator_hashes) && all_alike(hosts)) return 0;
  stable_hash together;
  for (const std::uint64_t h : validator_hashes) together.number(h);
  if (!all_alike(hosts)) {
    for (const std::uint64_t h : hosts)  // the numbers of hosts differ between jobs
      together.number(static_cast<std::uint64_t>(std::find(hosts.begin(), hosts.end(), h) - hosts.begin()));
  }
  return together.digest();
}

}  // namespace parley::tuning

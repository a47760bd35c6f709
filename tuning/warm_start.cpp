#include <parley/tuning/warm_start.hpp>

#include <parley/tuning/hash.hpp>
#include <parley/tuning/results.hpp>

#include <algorithm>
#include <functional>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

std::string whose(const remembered_best& r) { return fmt::format("rank {}'s", r.proposer); }

/// What is to be said of an entry that did not win.
std::string other_voice(const remembered_best& r, const remembered_best* winner,
                        std::span<const std::string> candidates, std::uint64_t machines) {
  if (r.machines != machines) return whose(r) + " has it for other machines than these";
  if (winner != nullptr && r.solution == winner->solution) return whose(r) + " agrees";
  if (r.solution != pinned_default && std::find(candidates.begin(), candidates.end(), r.solution) == candidates.end())
    return fmt::format("{} says {}, which is no candidate now", whose(r), r.solution);
  return fmt::format("{} says {}", whose(r), r.solution);
}

}  // namespace

recalled recall(std::string_view key, std::span<const remembered_best> in_order,
                std::span<const std::string> candidates, std::uint64_t machines) {
  const auto counts = [&](const remembered_best& r) { return r.parameters == key && r.machines == machines; };
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
    found.time_ms = winner->time_ms;
    add(whose(*winner) + (pinned ? " results file pins the default" : " results file says so"));
  }
  for (const remembered_best& r : in_order) {
    if (r.parameters == key && &r != winner) add(other_voice(r, winner, candidates, machines));
  }
  return found;
}

std::uint64_t machines_together(std::span<const std::uint64_t> validator_hashes) noexcept {
  if (std::adjacent_find(validator_hashes.begin(), validator_hashes.end(), std::not_equal_to<>()) ==
      validator_hashes.end())
    return 0;
  stable_hash together;
  for (const std::uint64_t h : validator_hashes) together.number(h);
  return together.digest();
}

}  // namespace parley::tuning

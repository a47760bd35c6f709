#include <parley/ops/leased/contextual_agreement.hpp>

#include <parley/ops/leased/shared_trials.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

namespace parley::ops {

using runtime::errc;
using runtime::error;

namespace {

/// The average of one config on one rank. +infinity if the rank lacks the config, or if the reported number is invalid.
double average_of(const contextual_report& r, std::uint64_t digest) {
  for (std::size_t i = 0; i < r.digests.size() && i < r.average_ns.size(); ++i) {
    if (r.digests[i] == digest) return r.average_ns[i] >= 0 ? r.average_ns[i] : tuning::infinite_ns;
  }
  return tuning::infinite_ns;
}

bool has(const contextual_report& r, std::uint64_t digest) {
  return std::find(r.digests.begin(), r.digests.end(), digest) != r.digests.end();
}

using reports = std::vector<const contextual_report*>;

/// The first config, in the order of ranks, that a rank remembers and that all ranks can run.
std::optional<contextual_best> recalled(const reports& all) {
  for (const contextual_report* r : all) {
    if (r->remembered == 0) continue;
    const auto can = [&](const contextual_report* other) { return has(*other, r->remembered); };
    if (!std::all_of(all.begin(), all.end(), can)) continue;
    contextual_best best{r->kernel, r->key, r->remembered, r->remembered_ns, true};
    return best;
  }
  return std::nullopt;
}

contextual_best best_of(const reports& all) {
  contextual_best best{all.front()->kernel, all.front()->key, 0, tuning::infinite_ns, false};
  for (const std::uint64_t digest : all.front()->digests) {
    double longest_ns = 0;
    for (const contextual_report* r : all) longest_ns = std::max(longest_ns, average_of(*r, digest));
    if (longest_ns < best.latency_ns) {
      best.latency_ns = longest_ns;
      best.digest = digest;
    }
  }
  return best;
}

}  // namespace

runtime::result<contextual_verdict> agree(std::span<const contextual_said> by_rank,
                                          std::span<const runtime::rank_id> members, contextual_progress& before) {
  for (std::size_t i = 1; i < by_rank.size(); ++i) {
    if (by_rank[i].terms == by_rank[0].terms) continue;
    return error{errc::declaration_mismatch, "rank " + std::to_string(members[0]) + " has declared it with " +
                                                 by_rank[0].terms + ", rank " + std::to_string(members[i]) + " with " +
                                                 by_rank[i].terms + "; declare it alike on all ranks"};
  }
  std::map<std::pair<std::string, std::string>, reports> contexts;
  std::map<std::pair<std::string, std::string>, std::vector<contextual_reporter>> reporters;
  std::uint64_t steps = 0;
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    for (const contextual_report& r : by_rank[i].reports) {
      if (r.digests.empty()) return error{errc::malformed, "a report about kernel " + r.kernel + " lists no configs"};
      contexts[{r.kernel, r.key}].push_back(&r);
      if (before.shares_work) reporters[{r.kernel, r.key}].push_back({i, &by_rank[i].machine, &r});
      steps += r.steps;
    }
  }
  // No rank has taken a step since the last round: the thunk no longer calls these kernels, and waiting would last for ever.
  const bool stalled = before.any_round && steps == before.steps;
  contextual_verdict v;
  std::size_t rows_left = 8'192;  // a quarter of the largest message
  auto decided = before.decided;
  for (const auto& [name, all] : contexts) {
    // A rank may meet a kernel later than the others did.
    if (const auto known = decided.find(name); known != decided.end()) {
      v.decided.push_back(known->second);
      continue;
    }
    auto best = recalled(all);
    const bool complete = std::all_of(all.begin(), all.end(), [](const auto* r) { return r->complete; });
    contextual_share* share = nullptr;
    if (before.shares_work && !best) {
      share = &before.shares.try_emplace(name, contextual_share{name.first, name.second, {}}).first->second;
      share_out(reporters[name], by_rank.size(), *share);
    }
    const bool regrouped = share != nullptr && complete && part_unlike(reporters[name], *share);
    if (regrouped || (!best && !complete && !stalled)) {
      if (share != nullptr) v.shares.push_back(*share);
      v.unfinished = true;
      continue;
    }
    if (!best) best = share != nullptr ? merge(reporters[name], *share, members, rows_left) : best_of(all);
    rows_left -= best->rows.size();
    if (best->digest == 0) {
      if (complete)
        return error{errc::config_failed, "cannot find valid config: each of kernel " + name.first + ", key {" +
                                              name.second + "}, has failed on some rank"};
      best->digest = all.front()->digests.front();
      best->latency_ns = 0;
    }
    before.shares.erase(name);
    v.decided.push_back(*best);
    best->rows.clear();  // a rank that asks later does without them
    decided.emplace(name, std::move(*best));
  }
  before.decided = std::move(decided);
  // Counts the steps of undecided kernels, because decided ones are reported no more.
  std::uint64_t open_steps = 0;
  for (const auto& [name, all] : contexts) {
    if (before.decided.contains(name)) continue;
    for (const contextual_report* r : all) open_steps += r->steps;
  }
  before.steps = open_steps;
  before.any_round = true;
  return v;
}

contextual_verdict known_of(std::span<const contextual_said> said, contextual_progress& before) {
  contextual_verdict v;
  for (const contextual_said& one : said) {
    for (const contextual_report& r : one.reports) {
      contextual_best own_default{r.kernel, r.key, 0, 0, false};
      const auto& best = before.decided.try_emplace({r.kernel, r.key}, std::move(own_default)).first->second;
      v.decided.push_back(best);
    }
  }
  return v;
}

}  // namespace parley::ops

#include <parley/actors/agreement/evidence.hpp>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace parley::actors {

namespace {

constexpr std::size_t longest_detail = 300;

/// The rank that proposed the config: the first participant, in the order of ranks, that offered it.
rank_id proposer_of(std::uint64_t digest, const coordinator_state& state) {
  if (const auto known = state.merged ? state.merged->find_candidate(digest) : std::nullopt)
    digest = state.merged->configs[state.merged->candidates[*known].config].digest;
  rank_id first = state.declaration.leader;
  bool found = false;
  for (const coordinator_state::joined& p : state.participants) {
    const auto index = p.offered.configs.find(digest);
    if (!index || (*index != 0 && !p.offered.available.test(*index))) continue;
    if (!found || p.rank < first) first = p.rank;
    found = true;
  }
  return first;
}

std::vector<rank_id> ranks_of(const op_declaration& op) {
  std::vector<rank_id> ranks;
  for (const op_participant& p : op.participants) ranks.push_back(p.rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

/// The config that `rank` runs for `digest`, which may be a mixture.
std::uint64_t part_of(rank_id rank, std::uint64_t digest, const coordinator_state& state) {
  if (!state.merged) return digest;
  const auto mixture = state.merged->find_candidate(digest);
  if (!mixture) return digest;
  const auto& everybody = state.merged->participants;
  const auto at = std::find_if(everybody.begin(), everybody.end(), [&](const auto& p) { return p.rank == rank; });
  if (at == everybody.end()) return digest;
  const auto place = static_cast<std::size_t>(at - everybody.begin());
  return state.merged->configs[state.merged->candidates[*mixture].variants[place]].digest;
}

/// A text that says which ranks lack a config, and why, in the words of these ranks. Either the config is no candidate, or its candidate is
/// a mixture.
std::string lacks_of(std::size_t config, const coordinator_state& state) {
  std::string text;
  std::size_t told = 0;
  const auto& wanted = state.merged->configs[config];
  for (const tuning::participant& p : state.merged->participants) {
    if (p.available.test(config)) continue;
    if (++told > most_lacks) continue;
    const auto same = [&](const coordinator_state::joined& j) { return j.rank == p.rank; };
    const auto at = std::find_if(state.participants.begin(), state.participants.end(), same);
    if (at == state.participants.end()) continue;
    std::string why = at->offered.configs.find(wanted.digest) ? "says that it cannot run it" : "does not list it";
    const std::string begins = wanted.id + ": ";
    for (const std::string& lack : at->lacking) {
      if (lack.starts_with(begins)) why = "cannot run it: " + lack.substr(begins.size());
    }
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(p.rank) + " " + why;
  }
  return told > most_lacks ? text + "; and " + std::to_string(told - most_lacks) + " more" : text;
}

/// Configs that some rank offered and that are no candidates, because others lack them.
std::vector<wire_evidence> lacking_configs(const coordinator_state& state) {
  std::vector<wire_evidence> all;
  if (!state.merged) return all;
  for (std::size_t i = 1; i < state.merged->configs.size(); ++i) {
    const auto& config = state.merged->configs[i];
    if (state.merged->find_candidate(config.digest)) continue;
    wire_evidence e;
    e.digest = config.digest;
    e.time_ns = tuning::infinite_ns;
    e.status = "lacking";
    e.detail = lacks_of(i, state);
    if (e.detail.empty()) continue;  // no rank lacks it: something else excludes it
    e.detail.resize(std::min(e.detail.size(), longest_detail));
    e.proposer = proposer_of(config.digest, state);
    e.config = config.id;
    all.push_back(std::move(e));
  }
  return all;
}

/// The configs that ranks run in place of a candidate, and those ranks.
std::vector<wire_part> parts_of(std::uint64_t digest, const coordinator_state& state) {
  std::vector<wire_part> parts;
  const auto candidate = state.merged ? state.merged->find_candidate(digest) : std::nullopt;
  if (!candidate) return parts;
  const auto& variants = state.merged->candidates[*candidate].variants;
  for (std::size_t place = 0; place < variants.size(); ++place) {
    const auto& runs = state.merged->configs[variants[place]];
    if (runs.digest == digest) continue;
    const auto same = [&](const wire_part& p) { return p.digest == runs.digest; };
    auto at = std::find_if(parts.begin(), parts.end(), same);
    if (at == parts.end()) at = parts.insert(parts.end(), wire_part{runs.digest, runs.id, {}});
    at->ranks.push_back(state.merged->participants[place].rank);
  }
  return parts;
}

std::string in_words(const std::vector<wire_part>& parts) {
  constexpr std::size_t most_named = 8;
  std::string text;
  for (const wire_part& p : parts) {
    text += text.empty() ? "; of this mixture " : ", ";
    text += p.ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(p.ranks.size(), most_named); ++i)
      text += (i == 0 ? "" : " ") + std::to_string(p.ranks[i]);
    if (p.ranks.size() > most_named) text += " and " + std::to_string(p.ranks.size() - most_named) + " more";
    text += (p.ranks.size() == 1 ? " runs " : " run ") + p.config;
  }
  return text;
}

/// The reason why a candidate is a mixture.
std::string why_mixed(std::uint64_t digest, const coordinator_state& state) {
  const auto candidate = state.merged ? state.merged->find_candidate(digest) : std::nullopt;
  if (!candidate || state.merged->mixture_of(state.merged->candidates[*candidate]) == 0) return {};
  return lacks_of(state.merged->candidates[*candidate].config, state);
}

wire_evidence evidence_of(std::size_t candidate, const trial_book& book, const std::vector<exclusion>& excluded,
                          const coordinator_state& state) {
  const tuning::aggregate& a = book.aggregates[candidate];
  wire_evidence e;
  e.digest = state.assigned->candidates()[candidate];
  e.time_ns = a.time_ns;
  e.repetitions = static_cast<std::uint32_t>(a.count);
  e.status = std::string(tuning::name(a.status));
  e.spread_ns = a.spread_ns;
  e.clock_error_ns = a.clock_error_ns;
  e.detail = a.detail.empty() ? why_mixed(e.digest, state) : a.detail;
  for (const exclusion& x : excluded) {
    if (x.candidate != candidate) continue;
    e.status = status_of(x.kind);
    e.detail = x.why;
  }
  e.detail.resize(std::min(e.detail.size(), longest_detail));
  e.proposer = proposer_of(e.digest, state);
  if (candidate < book.expected.size()) {
    e.expected_ns = book.expected[candidate].time_ns;
    e.expected_low_ns = book.expected[candidate].low_ns;
    e.expected_high_ns = book.expected[candidate].high_ns;
  }
  for (const tuning::own_measurement& m : seen_by_each(candidate, book, state)) {
    wire_own_time own;
    own.rank = m.participant;
    own.time_ns = m.median_ns;
    own.repetitions = static_cast<std::uint32_t>(m.repetitions);
    own.status = std::string(tuning::name(m.status));
    own.ran = part_of(own.rank, e.digest, state);
    own.fastest_ns = m.fastest_ns;
    own.spread_ns = m.spread_ns;
    e.ranks.push_back(std::move(own));
  }
  return e;
}

std::size_t bytes_of(const wire_evidence& e) {
  std::vector<std::byte> bytes;
  runtime::encode(e, bytes);
  return bytes.size();
}

}  // namespace

std::vector<tuning::own_measurement> seen_by_each(std::size_t candidate, const trial_book& book,
                                                  const coordinator_state& state) {
  if (candidate >= book.rows.size() || book.repetitions[candidate].empty()) return {};
  const std::vector<rank_id> ranks = ranks_of(state.declaration);
  return tuning::measured_by_each(book.rows[candidate], {.digest = state.assigned->candidates()[candidate],
                                                         .participants = ranks,
                                                         .invocations = book.repetitions[candidate],
                                                         .joined = book.joined});
}

void add_evidence(decide& d, const chosen_config& chosen, const trial_book& book,
                  const std::vector<exclusion>& excluded, const coordinator_state& state) {
  d.participants = ranks_of(state.declaration);
  d.proposer = chosen.from_results() ? chosen.proposer : proposer_of(chosen.digest, state);
  std::vector<std::size_t> fastest_first(book.aggregates.size());
  std::iota(fastest_first.begin(), fastest_first.end(), std::size_t{0});
  std::sort(fastest_first.begin(), fastest_first.end(), [&](std::size_t a, std::size_t b) {
    const auto place = [&](std::size_t i) {
      const bool always = i == 0 || state.assigned->candidates()[i] == chosen.digest;
      return std::tuple(always ? 0 : 1, book.aggregates[i].time_ns, i);
    };
    return place(a) < place(b);
  });
  std::vector<std::pair<std::size_t, wire_evidence>> kept;
  std::size_t bytes = 0;
  for (const std::size_t i : fastest_first) {
    wire_evidence e = evidence_of(i, book, excluded, state);
    bytes += bytes_of(e);
    if (bytes > most_evidence_bytes) break;
    kept.emplace_back(i, std::move(e));
  }
  d.left_out = static_cast<std::uint32_t>(book.aggregates.size() - kept.size());
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [i, e] : kept) d.evidence.push_back(std::move(e));
  for (wire_evidence& e : lacking_configs(state)) {
    bytes += bytes_of(e);
    if (bytes <= most_evidence_bytes)
      d.evidence.push_back(std::move(e));
    else
      ++d.left_out;
  }
  d.parts = parts_of(chosen.digest, state);
  d.why += in_words(d.parts);
  if (chosen.source != decision_source::results) return;
  wire_evidence e;
  e.digest = chosen.digest;
  e.time_ns = chosen.remembered_time_ns;
  e.status = "remembered";
  e.proposer = chosen.proposer;
  d.evidence.push_back(std::move(e));
}

}  // namespace parley::actors

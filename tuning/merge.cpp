#include <parley/tuning/merge.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <parley/tuning/hash.hpp>
#include <parley/tuning/planners/decide.hpp>
#include <parley/tuning/results/warm_start.hpp>

namespace parley::tuning {

namespace {

constexpr std::size_t shown_configs = 16;
constexpr std::size_t most_combinations = 1024;

std::optional<problem> check_offers(const std::vector<offer>& offers) {
  if (offers.empty()) return problem{fault::empty, "there is no offer to merge"};
  for (std::size_t i = 0; i < offers.size(); ++i) {
    const offer& o = offers[i];
    if (i > 0 && offers[i - 1].rank == o.rank) {
      return problem{fault::duplicate,
                     fmt::format("rank {} offered twice, as {} and as {}", o.rank, offers[i - 1].role, o.role)};
    }
    if (o.configs.empty()) {
      return problem{fault::empty, fmt::format("rank {} ({}) offers an empty catalogue", o.rank, o.role)};
    }
    if (o.available.size() != o.configs.size()) {
      return problem{fault::malformed, fmt::format("rank {} ({}) offers {} configs but {} availability bits", o.rank,
                                                   o.role, o.configs.size(), o.available.size())};
    }
    const catalogue::entry &first = offers.front().configs[0], &own = o.configs[0];
    if (own.digest != first.digest) {
      return problem{
          fault::default_mismatch,
          fmt::format("the default config differs: rank {} ({}) has `{}` (wire {} abi {}), rank {} ({}) has `{}` "
                      "(wire {} abi {}); declare the op with the same default everywhere",
                      offers.front().rank, offers.front().role, first.id, first.identity.wire_class, first.identity.abi,
                      o.rank, o.role, own.id, own.identity.wire_class, own.identity.abi)};
    }
  }
  return std::nullopt;
}

/// The union in the participants' order, the place of each digest in it, and the digests that two different configs share.
struct config_union {
  std::vector<catalogue::entry> configs;
  std::map<std::uint64_t, std::size_t> place;
  std::set<std::uint64_t> ambiguous;
  std::vector<left_out> excluded;
};

outcome<config_union> unite(const std::vector<offer>& offers) {
  config_union all;
  for (const offer& o : offers) {
    for (const catalogue::entry& e : o.configs.entries()) {
      const auto [at, inserted] = all.place.emplace(e.digest, all.configs.size());
      if (inserted) {
        all.configs.push_back(e);
        continue;
      }
      const catalogue::entry& known = all.configs[at->second];
      if (known == e) continue;
      std::string why =
          fmt::format("digest_collision: configs `{}` (wire {} abi {}) and `{}` (wire {} abi {}, rank {}) "
                      "have the same digest {:016x}; rename one",
                      known.id, known.identity.wire_class, known.identity.abi, e.id, e.identity.wire_class,
                      e.identity.abi, o.rank, e.digest);
      if (at->second == 0) return problem{fault::digest_collision, std::move(why)};  // c0 cannot be left out
      if (all.ambiguous.insert(e.digest).second) all.excluded.push_back({known.id, why});
      all.excluded.push_back({e.id, std::move(why)});
    }
  }
  return all;
}

participant joined(offer&& o, const config_union& all) {
  participant p{o.rank, std::move(o.role), bits(all.configs.size())};
  for (std::size_t i = 0; i < o.configs.size(); ++i) {
    const std::uint64_t digest = o.configs[i].digest;
    if (i == 0 || (o.available.test(i) && !all.ambiguous.contains(digest))) p.available.set(all.place.at(digest));
  }
  return p;
}

/// The config that the participant at `place` runs when config `wanted` is assigned.
std::optional<std::size_t> variant_of(const merged& all, std::size_t place, std::size_t wanted, variants allowed) {
  if (all.participants[place].available.test(wanted)) return wanted;
  for (std::size_t other = 0; allowed == variants::wire_class && other < all.configs.size(); ++other) {
    if (all.serves(place, other, wanted)) return other;
  }
  return std::nullopt;
}

std::optional<candidate> candidate_of(const merged& all, std::size_t config, variants allowed) {
  candidate made{all.configs[config].digest, all.configs[config].id, config, {}};
  for (std::size_t place = 0; place < all.participants.size(); ++place) {
    const std::optional<std::size_t> variant = variant_of(all, place, config, allowed);
    if (!variant) return std::nullopt;
    made.variants.push_back(*variant);
  }
  return made;
}

/// Participants that run the same config in a mixture.
using place_list = std::vector<std::size_t>;

std::vector<place_list> groups_that_lack(const merged& all, const candidate& of, bool like_ranks_together) {
  std::vector<place_list> groups;
  for (std::size_t place = 0; place < of.variants.size(); ++place) {
    if (of.variants[place] == of.config) continue;
    const auto alike = std::find_if(groups.begin(), groups.end(), [&](const place_list& g) {
      return like_ranks_together && all.participants[g.front()].available == all.participants[place].available;
    });
    if (alike == groups.end()) {
      groups.push_back({place});
    } else {
      alike->push_back(place);
    }
  }
  return groups;
}

/// Looks for the mixture of that name among those that the groups can make.
std::optional<candidate> find_among(const merged& all, const candidate& of, const std::vector<place_list>& groups,
                                    std::string_view name) {
  std::vector<std::vector<std::size_t>> choices;
  for (const place_list& g : groups) {
    auto& own = choices.emplace_back();
    for (std::size_t config = 0; config < all.configs.size(); ++config) {
      if (all.serves(g.front(), config, of.config)) own.push_back(config);
    }
  }
  std::vector<std::size_t> variants = of.variants;
  std::vector<std::size_t> chosen(groups.size());
  for (std::size_t tried = 0; tried < most_combinations; ++tried) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const std::size_t place : groups[g]) variants[place] = choices[g][chosen[g]];
    }
    if (candidate made = all.mixture(of.config, variants); made.id == name) return made;
    std::size_t g = 0;
    while (g < groups.size() && ++chosen[g] == choices[g].size()) chosen[g++] = 0;
    if (g == groups.size()) break;
  }
  return std::nullopt;
}

std::string describe_nothing_common(const merged& all) {
  std::string text = "no config beyond the default is available on every rank, so the default stays:";
  char separator = ' ';
  for (const participant& p : all.participants) {
    text += fmt::format("{}rank {} ({}) has", separator == ' ' ? " " : "; ", p.rank, p.role);
    separator = ' ';
    std::size_t listed = 0;
    for (std::size_t i = 0; i < all.configs.size(); ++i) {
      if (!p.available.test(i)) continue;
      if (listed == shown_configs) {
        text += fmt::format(" and {} more", p.available.count() - listed);
        break;
      }
      text += fmt::format("{}{}", separator == ' ' ? " " : ", ", all.configs[i].id);
      separator = ',';
      ++listed;
    }
    separator = ';';
  }
  return text;
}

}  // namespace

outcome<merged> merge(std::vector<offer> offers, variants allowed) {
  std::sort(offers.begin(), offers.end(),
            [](const offer& a, const offer& b) { return std::tie(a.rank, a.role) < std::tie(b.rank, b.role); });
  if (auto why = check_offers(offers)) return *std::move(why);

  outcome<config_union> made_union = unite(offers);
  if (!made_union) return made_union.reason();
  config_union united = std::move(made_union).value();
  merged all;
  for (offer& o : offers) all.participants.push_back(joined(std::move(o), united));
  all.configs = std::move(united.configs);
  all.excluded = std::move(united.excluded);
  std::set<std::vector<std::size_t>> combinations;
  for (std::size_t config = 0; config < all.configs.size(); ++config) {
    if (united.ambiguous.contains(all.configs[config].digest)) continue;
    std::optional<candidate> made = candidate_of(all, config, allowed);
    // A mixture that is the same as an earlier candidate would only be measured twice.
    if (!made || (allowed == variants::wire_class && !combinations.insert(made->variants).second)) continue;
    if (all.candidates.size() < limits::configs) {
      all.candidates.push_back(*std::move(made));
    } else {
      all.excluded.push_back({made->id, fmt::format("an op has at most {} candidates", limits::configs)});
    }
  }
  if (all.candidates.size() == 1 && all.configs.size() > 1) all.no_common_config = describe_nothing_common(all);
  return all;
}

std::optional<std::size_t> merged::find_candidate(std::uint64_t digest) const noexcept {
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].digest == digest) return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> merged::find_candidate(std::string_view id) const noexcept {
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].id == id) return i;
  }
  return std::nullopt;
}

std::vector<std::string> merged::wire_classes(std::string_view role) const {
  std::map<std::string, std::size_t> speakers;
  std::size_t in_role = 0;
  for (const participant& p : participants) {
    if (p.role != role) continue;
    ++in_role;
    std::map<std::string, std::size_t> own;
    for (std::size_t i = 0; i < configs.size(); ++i) {
      if (p.available.test(i)) own[configs[i].identity.wire_class] = 1;
    }
    for (const auto& [wire_class, one] : own) speakers[wire_class] += one;
  }
  std::vector<std::string> common;
  for (const auto& [wire_class, count] : speakers) {
    if (count == in_role) common.push_back(wire_class);
  }
  return common;
}

std::uint64_t merged::mixture_of(const candidate& c) const noexcept {
  if (std::all_of(c.variants.begin(), c.variants.end(), [&](std::size_t v) { return v == c.config; })) return 0;
  stable_hash who_runs_what;
  for (const std::size_t v : c.variants) who_runs_what.number(configs[v].digest);
  return who_runs_what.digest();
}

bool merged::serves(std::size_t place, std::size_t config, std::size_t wanted) const noexcept {
  const config_identity &a = configs[wanted].identity, &b = configs[config].identity;
  return !a.wire_class.empty() && participants[place].available.test(config) && a.wire_class == b.wire_class &&
         a.abi == b.abi;
}

std::vector<std::size_t> merged::fastest_variants(const candidate& of, const own_times& time_ns) const {
  const double worth_it = 1 - decide_options{}.relative_noise;
  std::vector<std::size_t> best = of.variants;
  for (std::size_t place = 0; place < best.size(); ++place) {
    if (best[place] == of.config) continue;
    for (std::size_t config = 0; config < configs.size(); ++config) {
      if (!serves(place, config, of.config)) continue;
      if (time_ns(place, config) < worth_it * time_ns(place, best[place])) best[place] = config;
    }
  }
  return best;
}

candidate merged::mixture(std::size_t config, std::vector<std::size_t> variants) const {
  candidate made{0, {}, config, std::move(variants)};
  const std::uint64_t number = mixture_of(made);
  made.digest = stable_hash().number(configs[config].digest).number(number).digest();
  made.id = name_in_file(configs[config].id, number);
  return made;
}

std::optional<candidate> merged::find_mixture(std::string_view name) const {
  const auto of = name == id_in_file(name) ? std::nullopt : find_candidate(id_in_file(name));
  if (!of) return std::nullopt;
  for (const bool like_ranks_together : {true, false}) {
    auto made = find_among(*this, candidates[*of], groups_that_lack(*this, candidates[*of], like_ranks_together), name);
    if (!made) continue;
    const auto same = [&](const candidate& c) { return c.variants == made->variants; };
    return std::any_of(candidates.begin(), candidates.end(), same) ? std::nullopt : made;
  }
  return std::nullopt;
}

std::uint64_t merged::hash() const {
  stable_hash hash;
  for (const participant& p : participants) hash.number(p.rank).text(p.role);
  for (const candidate& c : candidates) {
    hash.number(c.digest);
    for (std::size_t variant : c.variants) hash.number(configs[variant].digest);
  }
  return hash.digest();
}

std::optional<problem> check_roles(std::span<const offer> offers, std::span<const std::string_view> filled_once) {
  for (std::string_view role : filled_once) {
    std::vector<std::uint32_t> ranks;
    for (const offer& o : offers) {
      if (o.role == role) ranks.push_back(o.rank);
    }
    std::sort(ranks.begin(), ranks.end());
    if (ranks.empty()) {
      std::string roles;
      for (const offer& o : offers) roles += fmt::format("{}rank {} is {}", roles.empty() ? "" : ", ", o.rank, o.role);
      return problem{fault::role_conflict, fmt::format("no rank is the {}: {}; correct the role function", role,
                                                       roles.empty() ? "no rank takes part" : roles)};
    }
    if (ranks.size() > 1) {
      return problem{fault::role_conflict,
                     fmt::format("ranks {} and {} are both the {}, which must be one rank; correct the "
                                 "role function",
                                 ranks[0], ranks[1], role)};
    }
  }
  return std::nullopt;
}

}  // namespace parley::tuning

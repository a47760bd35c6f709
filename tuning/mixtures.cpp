#include <parley/tuning/mixtures.hpp>

#include <parley/tuning/planners/statistics.hpp>
#include <parley/tuning/results/warm_start.hpp>

#include <algorithm>
#include <optional>

namespace parley::tuning {

namespace {

constexpr std::size_t most_named = 16;

bool has_variants(const merged& all, const std::vector<std::size_t>& variants) {
  const auto same = [&](const candidate& c) { return c.variants == variants; };
  return std::any_of(all.candidates.begin(), all.candidates.end(), same);
}

bool is_measured(std::size_t config, std::size_t places, const own_times& took) {
  for (std::size_t place = 0; place < places; ++place) {
    if (took(place, config) < infinite_ns) return true;
  }
  return false;
}

}  // namespace

bool is_by_name(const merged& all, const candidate& c) noexcept { return c.digest == all.configs[c.config].digest; }

std::vector<std::size_t> mixtures::replace_failed(merged& all, const std::vector<failures>& by_place) {
  std::vector<std::size_t> changed;
  const auto failed_at = [&](std::size_t place, const candidate& c) {
    return std::find(by_place[place].begin(), by_place[place].end(), c.digest) != by_place[place].end();
  };
  for (std::size_t place = 0; place < by_place.size(); ++place) {
    for (const candidate& c : all.candidates) {
      if (failed_at(place, c)) failed_.emplace(place, c.variants[place]);
    }
  }
  const auto next_variant = [&](std::size_t place, std::size_t wanted) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < all.configs.size(); ++i) {
      if (all.serves(place, i, wanted) && !failed_.contains({place, i})) return i;
    }
    return std::nullopt;
  };
  for (std::size_t i = 1; i < all.candidates.size(); ++i) {
    candidate& c = all.candidates[i];
    if (!is_by_name(all, c)) continue;
    std::vector<std::size_t> next = c.variants;
    for (std::size_t place = 0; place < by_place.size(); ++place) {
      if (failed_at(place, c)) next[place] = next_variant(place, c.config).value_or(next[place]);
    }
    if (has_variants(all, next)) continue;  // the same candidate or another one: there is no other variant to run
    c.variants = std::move(next);
    changed.push_back(i);
  }
  return changed;
}

void mixtures::add_fastest(merged& all, const own_times& took) const {
  const auto is_mixture = [&](const candidate& one) { return all.mixture_of(one) != 0; };
  if (std::none_of(all.candidates.begin(), all.candidates.end(), is_mixture)) return;
  const own_times of_working = [&](std::size_t place, std::size_t config) {
    return failed_.contains({place, config}) ? infinite_ns : took(place, config);
  };
  for (std::size_t i = 1, count = all.candidates.size(); i < count; ++i) {
    const candidate& of = all.candidates[i];
    const bool may = is_by_name(all, of) && all.candidates.size() < limits::configs;
    if (!may || !is_measured(of.config, all.participants.size(), took)) continue;
    auto variants = all.fastest_variants(of, of_working);
    if (!has_variants(all, variants)) all.candidates.push_back(all.mixture(of.config, std::move(variants)));
  }
}

void mixtures::add_named(merged& all, const std::set<std::string>& names) {
  std::size_t looked_for = 0;
  for (const std::string& name : names) {
    if (id_in_file(name) == name) continue;
    if (++looked_for > most_named || all.candidates.size() >= limits::configs) return;
    if (auto made = all.find_mixture(name)) all.candidates.push_back(*std::move(made));
  }
}

}  // namespace parley::tuning

#include <parley/ops/kernels/gemm_algorithms.hpp>
#include <parley/tuning/config.hpp>
#include <parley/tuning/planners/time_forest.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace parley::ops {

using transports::gemm_algorithm;
using transports::gemm_algorithm_range;

namespace {

constexpr std::array splits{1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32};
constexpr const char* family = "cublaslt";
constexpr const char* by_cublaslt = "auto";

/// The settings by their names in ids.
struct setting {
  const char* name;
  int gemm_algorithm::* value;
  int usual;
};
constexpr std::array settings{setting{"algo", &gemm_algorithm::id, -1},
                              setting{"cluster", &gemm_algorithm::cluster, 0},
                              setting{"custom", &gemm_algorithm::custom, 0},
                              setting{"inner", &gemm_algorithm::inner, 0},
                              setting{"reduction", &gemm_algorithm::reduction, 0},
                              setting{"splitk", &gemm_algorithm::split_k, 1},
                              setting{"stages", &gemm_algorithm::stages, 0},
                              setting{"swizzle", &gemm_algorithm::swizzle, 0},
                              setting{"tile", &gemm_algorithm::tile, 0}};

class collection {
 public:
  collection(transports::cublas_library& library, const transports::matrix_product& p, std::size_t workspace_bytes,
             std::size_t most)
      : library_(library), p_(p), workspace_bytes_(workspace_bytes), most_(most) {}

  bool is_full() const noexcept { return all_.size() >= most_; }
  /// Adds it if it is new and cuBLASLt takes it; returns whether cuBLASLt takes it.
  bool add(gemm_algorithm g) {
    if (is_full()) return false;
    const auto [at, is_new] = asked_.emplace(g, false);
    if (is_new && can_split(g) && library_.takes(p_, g, workspace_bytes_)) {
      at->second = true;
      all_.push_back(g);
    }
    return at->second;
  }
  std::vector<gemm_algorithm> all() && { return std::move(all_); }
  const std::vector<gemm_algorithm>& so_far() const noexcept { return all_; }

 private:
  /// cuBLASLt 13.1 takes sums that are split into more parts than they have terms; on an H200 some of these kernels then fault the GPU.
  bool can_split(const gemm_algorithm& g) const noexcept {
    return g.split_k <= 1 || static_cast<std::size_t>(g.split_k) <= p_.k;
  }
  transports::cublas_library& library_;
  const transports::matrix_product& p_;
  std::size_t workspace_bytes_;
  std::size_t most_;
  std::map<gemm_algorithm, bool> asked_;
  std::vector<gemm_algorithm> all_;
};

/// Those that differ from `g` in one setting.
void add_neighbours(collection& to, const gemm_algorithm& g, const gemm_algorithm_range& r) {
  const auto each = [&](int gemm_algorithm::* which, const auto& values) {
    for (const int value : values) {
      gemm_algorithm other = g;
      other.*which = value;
      to.add(other);
    }
  };
  const auto up_to = [](int most) {
    constexpr int enough = 128;
    std::vector<int> all;
    for (int i = 0; i <= std::min(most, enough); ++i) all.push_back(i);
    return all;
  };
  each(&gemm_algorithm::tile, r.tiles);
  each(&gemm_algorithm::custom, up_to(r.most_custom));
  each(&gemm_algorithm::stages, r.stages);
  each(&gemm_algorithm::swizzle, up_to(r.most_swizzle));
  // An algorithm that leaves the shape of the clusters open ignores it.
  if (g.cluster != 0) each(&gemm_algorithm::cluster, r.clusters);
  for (const int split : splits) {
    gemm_algorithm other = g;
    other.split_k = split;
    other.reduction = 0;
    if (split == 1) to.add(other);
    for (const int reduction : r.reductions) {
      other.reduction = reduction;
      if (split != 1) to.add(other);
    }
  }
}

void add_at_random(collection& to, const std::vector<gemm_algorithm_range>& ranges) {
  constexpr std::size_t most_questions = 40'000;
  tuning::draws chance(1);
  const auto any_of = [&](const std::vector<int>& values) { return values[chance.below(values.size())]; };
  const auto up_to = [&](int most) { return static_cast<int>(chance.below(static_cast<std::size_t>(most) + 1)); };
  for (std::size_t i = 0; i < most_questions && !ranges.empty() && !to.is_full(); ++i) {
    const gemm_algorithm_range& r = ranges[i % ranges.size()];
    gemm_algorithm g{.id = r.id, .tile = any_of(r.tiles), .stages = any_of(r.stages)};
    g.custom = up_to(r.most_custom);
    g.swizzle = up_to(r.most_swizzle);
    const int cluster = any_of(r.clusters);
    if (!r.reductions.empty() && chance.below(2) == 0) {
      g.split_k = splits[chance.below(splits.size())];
      g.reduction = g.split_k == 1 ? 0 : any_of(r.reductions);
    }
    if (to.add(g)) continue;
    g.cluster = cluster;
    to.add(g);
  }
}

}  // namespace

std::vector<gemm_algorithm> algorithms_for(transports::cublas_library& library, const transports::matrix_product& p,
                                           const std::vector<gemm_algorithm>& guesses, std::size_t workspace_bytes,
                                           std::size_t most) {
  collection all(library, p, workspace_bytes, most);
  for (const gemm_algorithm& g : guesses) all.add(g);
  const std::vector<gemm_algorithm> guessed = all.so_far();
  const std::vector<gemm_algorithm_range> ranges = library.ranges(p);
  for (const gemm_algorithm& g : guessed) {
    const auto its = std::find_if(ranges.begin(), ranges.end(), [&](const auto& r) { return r.id == g.id; });
    if (its != ranges.end()) add_neighbours(all, g, *its);
  }
  add_at_random(all, ranges);
  return std::move(all).all();
}

std::string id_of(const gemm_algorithm& g) {
  std::string id = family;
  for (const setting& s : settings) {
    const int value = g.*s.value;
    if (value == s.usual) continue;
    id += id == family ? "(" : " ";
    id += s.name;
    id += '=';
    id += value < 0 ? by_cublaslt : std::to_string(value);
  }
  return id + ")";
}

std::optional<gemm_algorithm> algorithm_of(std::string_view id) {
  const auto parsed = tuning::parse_config_id(id);
  if (!parsed || parsed->name != family || !parsed->number("algo")) return std::nullopt;
  gemm_algorithm g;
  for (const tuning::parameter& p : parsed->parameters) {
    const auto its = std::find_if(settings.begin(), settings.end(), [&](const setting& s) { return p.name == s.name; });
    if (its == settings.end()) return std::nullopt;
    const auto number = parsed->number(p.name);
    if (!number && p.value != by_cublaslt) return std::nullopt;
    g.*its->value = number ? static_cast<int>(*number) : -1;
  }
  return g;
}

}  // namespace parley::ops

#include <parley/tuning/mixtures.hpp>

#include <doctest/doctest.h>

#include <parley/tuning/planners/statistics.hpp>
#include <parley/tuning/results/warm_start.hpp>

#include <string>
#include <vector>

using namespace parley::tuning;

namespace {

config_identity plain(const std::string& name, const std::string& wire_class = "w") {
  return {name, {}, wire_class, 1};
}

offer offer_of(std::uint32_t rank, std::vector<config_identity> configs) {
  catalogue made = catalogue::make(std::move(configs)).value();
  bits available(made.size(), bit::set);
  return {rank, "r", std::move(made), std::move(available)};
}

/// Rank 0 has the config `new`. Rank 1 lacks it: it first runs `direct` in its place, later `a` or `b`.
merged of_two() {
  return merge({offer_of(0, {plain("direct"), plain("a"), plain("b"), plain("new")}),
                offer_of(1, {plain("direct"), plain("a"), plain("b")})},
               variants::wire_class)
      .value();
}

using which = std::vector<std::size_t>;

}  // namespace

TEST_CASE("a failed variant is replaced by the participant's next one, until no new mixture is left") {
  merged all = of_two();
  REQUIRE(all.candidates.size() == 4);
  const candidate mixed = all.candidates[3];
  REQUIRE(mixed.variants == which{3, 0});
  mixtures m;
  CHECK(m.replace_failed(all, {{}, {mixed.digest}}) == which{3});
  CHECK(all.candidates[3].variants == which{3, 1});
  CHECK(all.candidates[3].digest == mixed.digest);
  CHECK(m.replace_failed(all, {{}, {mixed.digest}}) == which{3});
  CHECK(all.candidates[3].variants == which{3, 2});
  CHECK(m.replace_failed(all, {{}, {mixed.digest}}).empty());
  CHECK(m.replace_failed(all, {{}, {}}).empty());
}

TEST_CASE("a candidate that failed on all ranks is left unchanged") {
  merged all = of_two();
  mixtures m;
  const std::uint64_t a = all.candidates[1].digest;
  // Both ranks could only run `direct` in its place, but `direct` is the default.
  CHECK(m.replace_failed(all, {{a}, {a}}).empty());
  CHECK(all.candidates[1].variants == which{1, 1});
}

TEST_CASE("after trials, each rank replaces a config that it lacks by its fastest one that works") {
  const auto took = [](std::size_t place, std::size_t config) {
    const double of_rank_1[] = {10, 8, 5};
    return place == 0 ? 1.0 : config < 3 ? of_rank_1[config] : infinite_ns;
  };
  merged all = of_two();
  mixtures m;
  m.add_fastest(all, took);
  REQUIRE(all.candidates.size() == 5);
  CHECK(all.candidates[4].variants == which{3, 2});
  CHECK(all.candidates[4].config == 3);
  CHECK_FALSE(is_by_name(all, all.candidates[4]));
  CHECK(is_by_name(all, all.candidates[3]));
  m.add_fastest(all, took);
  CHECK(all.candidates.size() == 5);  // the mixture is already there

  merged failing = of_two();
  // rank 1 fails with `direct` in its place
  CHECK(m.replace_failed(failing, {{}, {failing.candidates[3].digest}}) == which{3});
  m.add_fastest(failing, [](std::size_t place, std::size_t config) { return place == 0 || config == 0 ? 1.0 : 2.0; });
  CHECK(failing.candidates.size() == 4);  // although `direct` is the fastest there
}

TEST_CASE("no mixture is added if all ranks have all configs, or if the missing config was not measured") {
  const auto all_equal = [](std::size_t, std::size_t) { return 1.0; };
  merged alike = merge({offer_of(0, {plain("direct"), plain("a")}), offer_of(1, {plain("direct"), plain("a")})},
                       variants::wire_class)
                     .value();
  const merged before = alike;
  mixtures{}.add_fastest(alike, all_equal);
  CHECK(alike == before);
  merged all = of_two();
  mixtures{}.add_fastest(all, [](std::size_t place, std::size_t config) {
    return config == 3 || place == 0 ? infinite_ns : 10.0 - static_cast<double>(config);
  });
  CHECK(all.candidates.size() == 4);
}

TEST_CASE("a mixture that a results file names becomes a candidate, if the ranks can run it") {
  merged all = of_two();
  const std::string name = all.mixture(3, {3, 2}).id;
  mixtures::add_named(all, {"a", "new;mixture=1", name});
  REQUIRE(all.candidates.size() == 5);
  CHECK(all.candidates[4].variants == which{3, 2});
  mixtures::add_named(all, {name});
  CHECK(all.candidates.size() == 5);
}

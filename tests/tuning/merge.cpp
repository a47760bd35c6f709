#include <parley/tuning/merge.hpp>

#include <algorithm>
#include <array>

#include <doctest/doctest.h>

#include <parley/tuning/planners/decide.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

namespace {

config_identity plain(const std::string& name, const std::string& wire_class = "w") {
  return {name, {}, wire_class, 1};
}

offer offer_of(std::uint32_t rank, const std::string& role, std::vector<config_identity> configs) {
  catalogue made = catalogue::make(std::move(configs)).value();
  bits available(made.size(), bit::set);
  return {rank, role, std::move(made), std::move(available)};
}

std::vector<std::string> ids(const merged& all) {
  std::vector<std::string> out;
  for (const candidate& c : all.candidates) out.push_back(c.id);
  return out;
}

using texts = std::vector<std::string>;

}  // namespace

TEST_CASE("configs that both sides have become candidates, in the participants' order") {
  const auto all = merge({offer_of(1, "receiver", {plain("direct"), plain("c"), plain("b"), plain("a")}),
                          offer_of(0, "sender", {plain("direct"), plain("a"), plain("b"), plain("x")})});
  REQUIRE(all);
  CHECK(ids(*all.operator->()) == texts{"direct", "a", "b"});
  CHECK(all->no_common_config.empty());
  texts united;
  for (const auto& e : all->configs) united.push_back(e.id);
  CHECK(united == texts{"direct", "a", "b", "x", "c"});
  REQUIRE(all->participants.size() == 2);
  CHECK(all->participants[0].rank == 0);
  CHECK(all->participants[0].available.count() == 4);
  CHECK_FALSE(all->participants[0].available.test(4));
  CHECK_FALSE(all->participants[1].available.test(3));
}

TEST_CASE("a config that one role lacks is no candidate, however fast it is for the other role") {
  const auto all =
      merge({offer_of(0, "sender", {plain("direct")}), offer_of(1, "receiver", {plain("direct"), plain("chunked")})});
  CHECK(ids(all.value()) == texts{"direct"});
  // And if it were measured: with sender {direct 10 us} and receiver {direct 12 us, chunked 3 us}, the choice is direct.
  const std::vector<std::uint32_t> ranks{0, 1};
  const std::uint64_t direct = all->configs[0].digest, chunked = all->configs[1].digest;
  const std::vector<row> rows{{0, 0, direct, 0, 10000}, {1, 0, direct, 0, 12000}, {1, 1, chunked, 20000, 23000}};
  const std::vector<std::uint64_t> first{0}, second{1};
  const std::vector<aggregate> times{aggregate_candidate(rows, {direct, ranks, first}),
                                     aggregate_candidate(rows, {chunked, ranks, second})};
  CHECK(times[0].time_ns == 12000);
  CHECK(decide(times).winner == 0);
}

TEST_CASE("two configs with one digest are both excluded, and the other configs are paired") {
  // Found by search: both values leave FNV-1a in one state, so both configs have one digest.
  const config_identity ours{"salted", {{"salt", "nhLBBMn-HTJ"}}, "w", 1};
  const config_identity theirs{"salted", {{"salt", "6iDp8QsCDrH"}}, "w", 1};
  REQUIRE(digest(ours) == digest(theirs));
  const auto all = merge({offer_of(0, "sender", {plain("direct"), ours, plain("a")}),
                          offer_of(1, "receiver", {plain("direct"), plain("a"), theirs})});
  CHECK(ids(all.value()) == texts{"direct", "a"});
  REQUIRE(all->excluded.size() == 2);
  CHECK(all->excluded[0].id == "salted(salt=nhLBBMn-HTJ)");
  CHECK(all->excluded[1].id == "salted(salt=6iDp8QsCDrH)");
  for (const char* word : {"digest_collision", "salt=nhLBBMn-HTJ", "salt=6iDp8QsCDrH", "rank 1", "rename one"})
    CHECK(all->excluded[1].why.find(word) != std::string::npos);
  // A third rank that knows neither config changes nothing.
  const auto three = merge({offer_of(2, "receiver", {plain("direct"), theirs, plain("a")}),
                            offer_of(1, "receiver", {plain("direct"), plain("a")}),
                            offer_of(0, "sender", {plain("direct"), ours, plain("a")})},
                           variants::wire_class);
  for (const auto& c : three->candidates) CHECK(c.id.find("salted") == std::string::npos);
  // A default config cannot be left out.
  const auto none = merge(
      {offer_of(0, "sender", {ours}), offer_of(1, "receiver", {ours, plain("a")}), offer_of(2, "receiver", {theirs})});
  REQUIRE_FALSE(none);
  CHECK(none.reason().text.find("salt=6iDp8QsCDrH") != std::string::npos);
  // Within one catalogue the declaration itself is refused.
  CHECK(catalogue::make({plain("direct"), ours, theirs}).reason().kind == fault::digest_collision);
}

TEST_CASE("configs are paired by their identity, not by their place in a list") {
  const auto all = merge({offer_of(0, "sender", {plain("direct"), plain("a"), plain("b"), plain("c")}),
                          offer_of(1, "receiver", {plain("direct"), plain("c"), plain("b"), plain("a")})});
  CHECK(ids(all.value()) == texts{"direct", "a", "b", "c"});
  for (const candidate& c : all->candidates) {
    for (std::size_t variant : c.variants) CHECK(all->configs[variant].id == c.id);
  }
}

TEST_CASE("an unavailable config is no candidate, and the default is one even if it is marked unavailable") {
  offer sender = offer_of(0, "sender", {plain("direct"), plain("a"), plain("b")});
  sender.available.clear(0);
  sender.available.clear(1);
  const auto all = merge({sender, offer_of(1, "receiver", {plain("direct"), plain("a"), plain("b")})});
  CHECK(ids(all.value()) == texts{"direct", "b"});
}

TEST_CASE("configs with one name but different wire classes or ABIs are different configs") {
  config_identity newer = plain("a");
  newer.abi = 2;
  const auto all = merge({offer_of(0, "sender", {plain("direct"), plain("a"), plain("b", "w1")}),
                          offer_of(1, "receiver", {plain("direct"), newer, plain("b", "w2")})});
  CHECK(ids(all.value()) == texts{"direct"});
  CHECK(all->configs.size() == 5);
}

TEST_CASE("a merge without a common config lists each rank's configs") {
  const auto all = merge({offer_of(0, "sender", {plain("direct"), plain("put")}),
                          offer_of(3, "receiver", {plain("direct"), plain("get")})});
  CHECK(
      all->no_common_config ==
      "no config beyond the default is available on every rank, so the default stays: rank 0 (sender) has direct, put; "
      "rank 3 (receiver) has direct, get");
  CHECK(merge({offer_of(0, "sender", {plain("direct")}), offer_of(3, "receiver", {plain("direct")})})
            ->no_common_config.empty());
}

TEST_CASE("the order in which offers arrive changes nothing") {
  testing::generator random(5);
  const std::array<std::string, 6> names{"a", "b", "c", "d", "e", "f"};
  for (int round = 0; round < 50; ++round) {
    std::vector<offer> offers;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      std::vector<config_identity> configs;
      for (const std::string& name : names) {
        if (random.below(4) != 0) configs.push_back(plain(name, random.below(8) == 0 ? "w2" : "w"));
      }
      random.shuffle(configs);
      configs.insert(configs.begin(), plain("direct"));
      offers.push_back(offer_of(rank, rank == 0 ? "leader" : "worker", configs));
    }
    const merged expected = merge(offers).value();
    const merged mixed = merge(offers, variants::wire_class).value();
    CHECK(expected.candidates[0].id == "direct");
    std::vector<std::uint32_t> order{0, 1, 2, 3};
    do {
      std::vector<offer> arrived;
      for (std::uint32_t i : order) arrived.push_back(offers[i]);
      CHECK(merge(arrived).value() == expected);
      CHECK(merge(arrived, variants::wire_class).value() == mixed);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("candidates are found by digest and by text, and different merges have different hashes") {
  const auto all = merge(
      {offer_of(0, "sender", {plain("direct"), plain("a")}), offer_of(1, "receiver", {plain("direct"), plain("a")})});
  CHECK(all->find_candidate("a") == 1);
  CHECK(all->find_candidate(all->candidates[1].digest) == 1);
  CHECK_FALSE(all->find_candidate("b"));
  const auto other = merge(
      {offer_of(0, "sender", {plain("direct"), plain("b")}), offer_of(1, "receiver", {plain("direct"), plain("b")})});
  CHECK(all->hash() != other->hash());
}

TEST_CASE("a role's wire classes are those that all of its ranks speak") {
  const auto all = merge({offer_of(0, "leader", {plain("direct", "am"), plain("p", "put")}),
                          offer_of(1, "worker", {plain("direct", "am"), plain("g", "get"), plain("p", "put")}),
                          offer_of(2, "worker", {plain("direct", "am"), plain("g", "get")})});
  CHECK(all->wire_classes("leader") == texts{"am", "put"});
  CHECK(all->wire_classes("worker") == texts{"am", "get"});
  CHECK(all->wire_classes("nobody").empty());
}

TEST_CASE("offers that contradict each other are refused, with rank, role and both values") {
  const auto defaults = merge({offer_of(0, "sender", {plain("direct")}), offer_of(1, "receiver", {plain("chunked")})});
  REQUIRE_FALSE(defaults);
  CHECK(defaults.reason().kind == fault::default_mismatch);
  CHECK(defaults.reason().text.find("rank 0 (sender) has `direct`") != std::string::npos);
  CHECK(defaults.reason().text.find("rank 1 (receiver) has `chunked`") != std::string::npos);
  CHECK(merge({}).reason().kind == fault::empty);
  CHECK(merge({offer_of(2, "sender", {plain("d")}), offer_of(2, "receiver", {plain("d")})}).reason().kind ==
        fault::duplicate);
  CHECK(merge({offer{0, "sender", {}, {}}}).reason().kind == fault::empty);
  offer short_bits = offer_of(0, "sender", {plain("direct"), plain("a")});
  short_bits.available = bits(1, bit::set);
  CHECK(merge({short_bits}).reason().kind == fault::malformed);
}

TEST_CASE("check_roles reports that rank % 3 on 4 ranks makes two senders into rank 1") {
  std::vector<offer> offers;
  for (std::uint32_t rank : {0U, 1U, 3U})
    offers.push_back(offer_of(rank, rank % 3 == 0 ? "sender" : "receiver", {plain("direct")}));
  const std::array<std::string_view, 2> edge{"sender", "receiver"};
  const auto why = check_roles(offers, edge);
  REQUIRE(why);
  CHECK(why->kind == fault::role_conflict);
  CHECK(why->text.find("ranks 0 and 3 are both the sender") != std::string::npos);
}

TEST_CASE("disjoint pairs are legal, and an edge without a receiver is not") {
  const std::array<std::string_view, 2> edge{"sender", "receiver"};
  CHECK_FALSE(
      check_roles(std::vector{offer_of(2, "sender", {plain("d")}), offer_of(3, "receiver", {plain("d")})}, edge));
  const auto why = check_roles(std::vector{offer_of(2, "sender", {plain("d")})}, edge);
  REQUIRE(why);
  CHECK(why->text.find("no rank is the receiver: rank 2 is sender") != std::string::npos);
  CHECK(check_roles({}, edge));
}

TEST_CASE("with one wire class newer ranks run their faster variant, and that mixture is a candidate") {
  const auto newer = {plain("nccl"), plain("cuda_graph"), plain("h100_optimized")};
  const auto older = {plain("nccl"), plain("cuda_graph")};
  const auto all =
      merge({offer_of(0, "r", newer), offer_of(1, "r", newer), offer_of(2, "r", older), offer_of(3, "r", older)},
            variants::wire_class);
  REQUIRE(ids(all.value()) == texts{"nccl", "cuda_graph", "h100_optimized"});
  CHECK(all->candidates[2].variants == std::vector<std::size_t>{2, 2, 0, 0});
  const std::vector<std::vector<double>> nccl(4, {10.5e6}), graph(4, {12.3e6}),
      mixture{{8.7e6}, {8.7e6}, {8.5e6}, {8.5e6}};
  const std::vector<aggregate> times{aggregate_times(nccl), aggregate_times(graph), aggregate_times(mixture)};
  CHECK(times[2].time_ns == 8.7e6);
  CHECK(decide(times).winner == 2);
}

TEST_CASE("with different wire classes only configs that all ranks have are candidates") {
  const auto newer = {plain("nccl", "ring"), plain("cuda_graph", "graph"), plain("h100_optimized", "tma")};
  const auto older = {plain("nccl", "ring"), plain("cuda_graph", "graph")};
  const auto all =
      merge({offer_of(0, "r", newer), offer_of(1, "r", newer), offer_of(2, "r", older), offer_of(3, "r", older)},
            variants::wire_class);
  REQUIRE(ids(all.value()) == texts{"nccl", "cuda_graph"});
  const std::vector<std::vector<double>> nccl(4, {10.5e6}), graph(4, {12.3e6});
  CHECK(decide(std::vector{aggregate_times(nccl), aggregate_times(graph)}).winner == 0);
}

TEST_CASE("a mixture that equals an earlier candidate is not tried twice") {
  const auto all = merge({offer_of(0, "s", {plain("d"), plain("a")}), offer_of(1, "r", {plain("d"), plain("b")})},
                         variants::wire_class);
  // a with d, and d with b, are new pairs, so both are candidates.
  CHECK(ids(all.value()) == texts{"d", "a", "b"});
  offer lacks = offer_of(0, "s", {plain("d"), plain("a")});
  lacks.available.clear(1);
  CHECK(ids(merge({lacks, offer_of(1, "r", {plain("d")})}, variants::wire_class).value()) == texts{"d"});
}

TEST_CASE(
    "a rank that lacks a config runs the fastest one that it has of the wire class, or the first within noise of it") {
  const auto newer = {plain("nccl"), plain("other", "else"), plain("graph"), plain("plain"), plain("h100_optimized")};
  const auto older = {plain("nccl"), plain("other", "else"), plain("graph"), plain("plain")};
  merged all =
      merge({offer_of(0, "r", newer), offer_of(1, "r", older), offer_of(2, "r", older)}, variants::wire_class).value();
  const candidate first = all.candidates[4];
  REQUIRE(first.variants == std::vector<std::size_t>{4, 0, 0});
  const auto choose = [&](const std::vector<double>& rank_1, const std::vector<double>& rank_2) {
    return all.fastest_variants(first, [&](std::size_t place, std::size_t config) {
      return place == 0 ? 1.0 : (place == 1 ? rank_1 : rank_2)[config];  // a rank that has the config runs it
    });
  };
  using which = std::vector<std::size_t>;
  const double unknown = infinite_ns;
  CHECK(choose({10, 1, 9, 8}, {10, 1, 7, 8}) == which{4, 3, 2});
  CHECK(choose({8, 1, 9, 10}, {8, 1, 8, 8}) == which{4, 0, 0});
  CHECK(choose({10, 1, 9.8, 9.75}, {10, 1, 8, 7.9}) == which{4, 0, 2});  // 9.75 and 7.9 are faster only within noise
  CHECK(choose({unknown, 1, unknown, unknown}, {unknown, 1, unknown, 9}) == which{4, 0, 3});

  const candidate made = all.mixture(4, {4, 3, 2});
  CHECK(made.digest != first.digest);
  CHECK(made.id == "h100_optimized;mixture=" + made.id.substr(made.id.find('=') + 1));
  CHECK(made.id != all.mixture(4, {4, 2, 3}).id);
  CHECK(made.digest != all.mixture(4, {4, 2, 3}).digest);
  // A mixture is found by its name, until it is a candidate itself.
  CHECK(all.find_mixture(made.id) == made);
  all.candidates.push_back(made);
  CHECK_FALSE(all.find_mixture(made.id));
  for (const std::string& other : {std::string("h100_optimized"), std::string("h100_optimized;mixture=1"),
                                   std::string("none;mixture=1"), all.mixture(4, {4, 0, 0}).id})
    CHECK_FALSE(all.find_mixture(other));
  CHECK(all.find_candidate(made.digest) == 5);
}

TEST_CASE("a mixture of many ranks is found by its name if ranks with the same configs run the same variant") {
  std::vector<offer> offers;
  for (std::uint32_t rank = 0; rank < 64; ++rank) {
    std::vector<config_identity> own{plain("nccl"), plain("graph"), plain("plain")};
    if (rank % 3 == 0) own.push_back(plain("newest"));
    if (rank % 3 == 1) own.erase(own.begin() + 1);
    offers.push_back(offer_of(rank, "r", own));
  }
  const merged all = merge(offers, variants::wire_class).value();
  std::vector<std::size_t> each;
  for (std::size_t place = 0; place < 64; ++place) each.push_back(place % 3 == 0 ? 3 : place % 3 == 1 ? 2 : 1);
  const candidate made = all.mixture(3, each);
  CHECK(all.find_mixture(made.id) == made);
  // one rank differs from the ranks with the same configs; there are too many ranks to search all such mixtures
  each[1] = 0;
  CHECK_FALSE(all.find_mixture(all.mixture(3, each).id));
}

TEST_CASE("catalogues that share only a wire class give no more candidates than one catalogue may hold") {
  const auto many = [](const std::string& kind) {
    std::vector<config_identity> all{plain("direct", "d")};
    for (std::size_t i = 1; i < limits::configs; ++i) all.push_back(plain(kind + std::to_string(i)));
    return all;
  };
  const auto all =
      merge({offer_of(0, "sender", many("mine")), offer_of(1, "receiver", many("theirs"))}, variants::wire_class);
  REQUIRE(all);
  CHECK(all->configs.size() == 2 * limits::configs - 1);
  CHECK(all->candidates.size() == limits::configs);
  CHECK(all->candidates[0].id == "direct");
  CHECK(all->candidates[1].variants == std::vector<std::size_t>{1, limits::configs});
  CHECK_FALSE(all->excluded.empty());
  CHECK(all->excluded.back().why == "an op has at most 4096 candidates");
}

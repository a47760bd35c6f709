#pragma once
/// Worked case 5, in part: sums of a group, and in two levels.
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/place.hpp>

#include <parley/actors/services.hpp>
#include <parley/collective.hpp>
#include <parley/group_config.hpp>
#include <parley/hierarchy.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

inline float addend(rank_id r, std::size_t k, std::size_t i) {
  return static_cast<float>((r + 1) * (k + 1) * (i % 7 + 1));
}

/// One group, on each of its configs in turn.
inline task<> sums_of_a_group(here* h) {
  collective_options op =
      led_by(h->ranks - 1, {star(), star(4'096), chain(4'096), tree(), one_shot(), two_shot(4'096)});
  op.name = "in a group";
  op.timeout = std::chrono::nanoseconds(h->patience);
  op.memory = h->at.memory();
  collective all(h->self, op);
  const array<float> x(h->at, 10'000);
  for (int round = 0; round < 30; ++round) {
    const std::vector<float> mine = contribution(h->me, x.size());
    co_await bring(h->at, x, std::span(mine));
    h->at.compute(kernels::linear{h->at.seen(x), h->at.seen(x), nullptr, 2, 0}, x.size());
    h->at.before_messages(x.bytes());
    co_await all.all_reduce(of(x));
    std::vector<float> sum = co_await taken(h->at, x);
    for (float& s : sum) s /= 2;
    CHECK(wrong_sums(sum, h->ranks) == 0);
  }
  const array<double> tenths(h->at, 7);
  const std::vector<double> mine(tenths.size(), 0.1 * (h->me + 1));
  co_await bring(h->at, tenths, std::span(mine));
  co_await all.all_reduce(std::span<double>(tenths.data(), tenths.size()));
  double in_order = 0.1;
  for (rank_id r = 1; r < h->ranks; ++r) in_order += 0.1 * (r + 1);
  const std::vector<double> summed = co_await taken(h->at, tenths);
  CHECK(summed == std::vector<double>(tenths.size(), in_order));

  op.name = "from a leader";
  op.kind = collective_kind::broadcast;
  op.configs = {star(4'096), chain(4'096), tree()};
  collective given(h->self, op);
  op.name = "to a leader";
  op.kind = collective_kind::gather;
  op.configs = {star(), star(4'096), tree()};
  collective collected(h->self, op);
  const array<float> everyones(h->at, collected.leads() ? x.size() * h->ranks : 0);
  for (int round = 0; round < 10; ++round) {
    const std::vector<float> leaders = contribution(static_cast<rank_id>(round), x.size());
    const std::vector<float> nothing(x.size(), -1);
    co_await bring(h->at, x, std::span(given.leads() ? leaders : nothing));
    co_await given.broadcast(of(x));
    const std::vector<float> came = co_await taken(h->at, x);
    CHECK(came == leaders);
    const std::vector<float> block = contribution(h->me, x.size());
    co_await bring(h->at, x, std::span(block));
    co_await collected.gather(of(x), of(everyones));
    const std::vector<float> blocks = co_await taken(h->at, everyones);
    for (std::size_t r = 0; r * x.size() < blocks.size(); ++r) {
      const std::vector<float> its = contribution(static_cast<rank_id>(r), x.size());
      CHECK(std::equal(its.begin(), its.end(), blocks.begin() + static_cast<std::ptrdiff_t>(r * x.size())));
    }
  }
}

/// Counts the messages of stars. A call during a rehearsal of its config has more, so the fewest are compared.
inline task<> messages_of_stars(here* h) {
  hierarchy_options op;
  op.name = "stars";
  op.leads = [](rank_id r) { return r % 4 == 0; };
  op.inside = op.between = {star()};
  op.timeout = std::chrono::nanoseconds(h->patience);
  hierarchy all(h->self, op);
  const auto& sent = h->self.services().net.statistics().sent[static_cast<std::size_t>(link::channel::data)];
  auto fewest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 10; ++round) {
    std::vector<float> x = contribution(h->me, 1'000);
    const std::uint64_t before = sent;
    co_await all.all_reduce(std::span(x));
    const auto mine = static_cast<double>(sent - before);
    CHECK(wrong_sums(x, h->ranks) == 0);
    fewest = std::min(fewest, co_await total(h, mine));
  }
  CHECK(fewest == 30);
}

/// A leader for every third rank, so that the last group is smaller. The numbers have a sum that depends on the order: first that of the
/// ranks inside a group, and then that of the groups, equal to the last bit on every rank.
inline task<> sums_of_ragged_groups(here* h) {
  constexpr rank_id group = 3;
  hierarchy_options op;
  op.name = "by threes";
  op.leads = [](rank_id r) { return r % group == 0; };
  op.timeout = std::chrono::nanoseconds(h->patience);
  op.memory = h->at.memory();
  hierarchy all(h->self, op);
  CHECK(all.group_size() == std::min<rank_id>(group, h->ranks - h->me / group * group));
  const array<float> x(h->at, 10'000);
  const auto addend_of = [](rank_id r, int round, std::size_t i) {
    return 1 / static_cast<float>(1 + r * 300 + i * 7 + static_cast<std::size_t>(round));
  };
  for (int round = 0; round < 10; ++round) {
    std::vector<float> mine(x.size());
    std::vector<float> in_order(x.size());
    std::vector<float> backwards(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      mine[i] = addend_of(h->me, round, i);
      for (rank_id first = 0; first < h->ranks; first += group) {
        float of_group = addend_of(first, round, i);
        for (rank_id r = first + 1; r < std::min(first + group, h->ranks); ++r) of_group += addend_of(r, round, i);
        in_order[i] = first == 0 ? of_group : in_order[i] + of_group;
      }
      for (rank_id r = h->ranks; r-- > 0;) backwards[i] += addend_of(r, round, i);
    }
    CHECK(in_order != backwards);
    co_await bring(h->at, x, std::span<const float>(mine));
    co_await all.all_reduce(of(x));
    const std::vector<float> sum = co_await taken(h->at, x);
    CHECK(std::memcmp(sum.data(), in_order.data(), x.bytes().size()) == 0);
  }
}

inline task<> sums(here* h) {
  if (h->ranks == 16 && h->at.stream() == nullptr) co_await messages_of_stars(h);
  if (h->ranks >= 4) co_await sums_of_ragged_groups(h);
  const rank_id group = h->ranks >= 8 ? 4 : 2;
  hierarchy_options op;
  op.name = "gradients";
  op.leads = [group](rank_id r) { return r % group == 0; };
  op.timeout = std::chrono::nanoseconds(h->patience);
  op.memory = h->at.memory();
  hierarchy all(h->self, op);
  const auto ranks = static_cast<float>(h->ranks * (h->ranks + 1)) / 2;
  const array<float> x(h->at, 10'000);
  for (int round = 0; round < 10; ++round) {
    const std::vector<float> mine = contribution(h->me, x.size());
    co_await bring(h->at, x, std::span(mine));
    co_await all.all_reduce(of(x));
    const std::vector<float> sum = co_await taken(h->at, x);
    CHECK(wrong_sums(sum, h->ranks) == 0);
    // Lists of several arrays: large ones, each with an exchange of its own, and small ones, which are packed.
    for (const std::size_t count : {std::size_t{20'000}, std::size_t{100}}) {
      std::vector<array<float>> several;
      std::vector<std::span<float>> spans;
      for (std::size_t k = 0; k < 3; ++k) {
        std::vector<float> its(count);
        for (std::size_t i = 0; i < count; ++i) its[i] = addend(h->me, k, i);
        several.emplace_back(h->at, count);
        co_await bring(h->at, several[k], std::span<const float>(its));
        spans.push_back(of(several[k]));
      }
      co_await all.all_reduce_list(spans);
      std::size_t wrong = 0;
      for (std::size_t k = 0; k < 3; ++k) {
        const std::vector<float> its = co_await taken(h->at, several[k]);
        for (std::size_t i = 0; i < count; ++i)
          wrong += its[i] == ranks * static_cast<float>((k + 1) * (i % 7 + 1)) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
  CHECK(all.copies() == 60);
  const array<int> own(h->at, 2);
  const array<int> everyones(h->at, 2 * h->ranks);
  const std::vector<int> numbers{static_cast<int>(h->me), 7};
  co_await bring(h->at, own, std::span(numbers));
  co_await all.all_gather(std::span<const int>(own.data(), own.size()),
                          std::span<int>(everyones.data(), everyones.size()));
  const std::vector<int> gathered = co_await taken(h->at, everyones);
  for (rank_id r = 0; r < h->ranks; ++r) CHECK(gathered[2 * r] == static_cast<int>(r));
  const array<int> parts(h->at, 3 * h->ranks);
  const array<int> part(h->at, 3);
  std::vector<int> addends(parts.size());
  for (std::size_t i = 0; i < addends.size(); ++i) addends[i] = static_cast<int>(i * (h->me + 1));
  co_await bring(h->at, parts, std::span<const int>(addends));
  co_await all.reduce_scatter(std::span<int>(parts.data(), parts.size()), std::span<int>(part.data(), part.size()));
  const std::vector<int> scattered = co_await taken(h->at, part);
  for (std::size_t i = 0; i < scattered.size(); ++i)
    CHECK(scattered[i] == static_cast<int>((3 * h->me + i) * h->ranks * (h->ranks + 1) / 2));
  const array<int> told(h->at, 5);
  const std::vector<int> before(told.size(), static_cast<int>(h->me));
  co_await bring(h->at, told, std::span(before));
  co_await all.broadcast(std::span<int>(told.data(), told.size()));
  const std::vector<int> after = co_await taken(h->at, told);
  CHECK(after == std::vector<int>(told.size(), 0));
}

}  // namespace parley::tests::worked_cases

#include "../support/groups.hpp"
#include "../support/transfers.hpp"

#include <parley/ops/hierarchical.hpp>

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

hierarchical by_four(std::vector<group_config_ptr> configs = {star(), star(512), chain(256), tree()}) {
  hierarchical op;
  op.name = "gradients";
  op.leads = [](rank_id r) { return r % 4 == 0; };
  op.inside = configs;
  op.between = std::move(configs);
  op.timeout_ns = 1'000'000'000;
  return op;
}

using program = std::function<task<>(hierarchy&, ops::rank&)>;

task<> guarded(const program* p, hierarchy h, ops::rank* self, result<>* outcome) {
  std::exception_ptr thrown;
  try {
    co_await (*p)(h, *self);
  } catch (...) {
    thrown = std::current_exception();
  }
  *outcome = thrown ? result<>(describe(thrown)) : result<>();
}

std::vector<result<>> on_all(world& w, const hierarchical& op, const program& p) {
  std::vector<result<>> outcomes(w.ranks.size());
  scope all(w.clock);
  for (rank_id r = 0; r < w.ranks.size(); ++r) all.spawn(guarded(&p, w[r].declare(op), &w[r], &outcomes[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  return outcomes;
}

task<> reduce(hierarchy* h, std::vector<float>* x, int times) {
  for (int i = 0; i < times; ++i) {
    std::vector<float> fresh = *x;
    co_await h->all_reduce(std::span(fresh));
    if (i + 1 == times) *x = fresh;
  }
}

struct reduced {
  explicit reduced(rank_id size, const hierarchical& op, std::size_t count = 1000, int times = 1, rank_settings s = {})
      : w(size, std::move(s)), x(size) {
    for (rank_id r = 0; r < size; ++r) x[r] = contribution(r, count);
    const program p = [&](hierarchy& h, ops::rank& self) { return reduce(&h, &x[self.id()], times); };
    for (const auto& o : on_all(w, op, p)) CHECK((o ? "" : o.reason().what()) == "");
  }
  world w;
  std::vector<std::vector<float>> x;
};

}  // namespace

TEST_CASE("groups of 4 and their leaders sum exactly, in every config, also where the last group is smaller") {
  for (const rank_id size : {1, 2, 4, 5, 7, 16}) {
    for (const auto& config : {star(), star(100), chain(64), tree()}) {
      CAPTURE(config->id());
      CAPTURE(size);
      const reduced all(size, by_four({config}));
      for (const auto& x : all.x) CHECK(wrong_sums(x, size) == 0);
    }
  }
}

namespace {
std::uint64_t data_messages(world& w) {
  std::uint64_t n = 0;
  for (rank_id r = 0; r < w.ranks.size(); ++r)
    n += w.links[r].statistics().sent[static_cast<std::size_t>(link::channel::data)];
  return n;
}
}  // namespace

namespace {

// Ranks of two kinds, mixed.
hierarchical by_kind(std::vector<group_config_ptr> configs = {star()}) {
  hierarchical op = by_four(std::move(configs));
  op.leads = nullptr;
  op.group_by = [](rank_id r) -> std::string { return r % 3 == 1 ? "A100" : "H100"; };
  return op;
}

}  // namespace

TEST_CASE("ranks that are grouped by what they have in common sum, gather and share in the order of the ranks") {
  const auto groups = groups_of(by_kind(), 7).value();
  CHECK(groups == std::vector<std::vector<rank_id>>{{0, 2, 3, 5, 6}, {1, 4}});
  for (const auto& config : {star(), chain(64), tree()}) {
    const reduced all(7, by_kind({config}));
    for (const auto& x : all.x) CHECK(wrong_sums(x, 7) == 0);
  }
  world w(7);
  std::vector<std::vector<int>> gathered(7, std::vector<int>(14));
  std::vector<std::vector<int>> kept(7, std::vector<int>(2));
  const program p = [&](hierarchy& h, ops::rank& self) -> task<> {
    return [](hierarchy* all, rank_id me, std::vector<int>* into, std::vector<int>* share) -> task<> {
      const std::vector<int> mine{static_cast<int>(me) * 10, static_cast<int>(me) * 10 + 1};
      co_await all->all_gather(std::span(mine), std::span(*into));
      std::vector<int> sums(14);
      std::iota(sums.begin(), sums.end(), 0);
      co_await all->reduce_scatter(std::span(sums), std::span(*share));
    }(&h, self.id(), &gathered[self.id()], &kept[self.id()]);
  };
  for (const auto& o : on_all(w, by_kind(), p)) CHECK((o ? "" : o.reason().what()) == "");
  for (rank_id r = 0; r < 7; ++r) {
    CAPTURE(r);
    for (int i = 0; i < 14; ++i) CHECK(gathered[r][static_cast<std::size_t>(i)] == i / 2 * 10 + i % 2);
    CHECK(kept[r] == std::vector<int>{7 * static_cast<int>(2 * r), 7 * static_cast<int>(2 * r + 1)});
  }
}

TEST_CASE("each kind of rank agrees on a config of its own, and those that some lack are no matter to the others") {
  // What only the H100s have is faster for them; the A100s have two others.
  hierarchical op = by_kind({star(), chain(64), tree()});
  op.capable = [](rank_id r) {
    return r % 3 == 1 ? std::vector<bool>{true, true, false} : std::vector<bool>{true, false, true};
  };
  const reduced all(7, op, 1000, 200, eager_trials());
  for (const auto& x : all.x) CHECK(wrong_sums(x, 7) == 0);
  const auto ids_at = [&](rank_id leader) {
    for (const auto& a : all.w.ranks[leader]->agreements()) {
      if (a.op.find("inside") != std::string::npos && a.sender == leader) return a.assigned->ids();
    }
    return std::vector<std::string>();
  };
  CHECK(ids_at(0) == std::vector<std::string>{star()->id(), tree()->id()});
  CHECK(ids_at(1) == std::vector<std::string>{star()->id(), chain(64)->id()});
}

TEST_CASE("two ways of grouping at once are refused") {
  hierarchical op = by_kind();
  op.leads = [](rank_id) { return true; };
  const auto groups = groups_of(op, 4);
  REQUIRE_FALSE(groups);
  CHECK(groups.code() == errc::bad_argument);
  CHECK(groups.reason().text().find("group_by") != std::string::npos);
}

TEST_CASE("16 ranks sum with 30 messages in a star") {
  reduced once(16, by_four({star()}), 100, 1);
  reduced twice(16, by_four({star()}), 100, 2);
  CHECK(data_messages(twice.w) - data_messages(once.w) == 30);
}

TEST_CASE("sums have the same bits on all ranks, under every config and in every run") {
  std::vector<float> first;
  for (const auto& config : {star(), star(64), chain(128), tree()}) {
    world w(7);
    std::vector<std::vector<float>> x(7, std::vector<float>(300));
    for (rank_id r = 0; r < 7; ++r) {
      for (std::size_t i = 0; i < 300; ++i) x[r][i] = 1.0F / static_cast<float>(1 + r * 300 + i * 7);
    }
    const program p = [&](hierarchy& h, ops::rank& self) { return reduce(&h, &x[self.id()], 1); };
    for (const auto& o : on_all(w, by_four({config}), p)) CHECK((o ? "" : o.reason().what()) == "");
    if (first.empty()) first = x[0];
    for (const auto& one : x) CHECK(one == first);
  }
}

TEST_CASE("each level agrees on a config of its own") {
  reduced all(8, by_four(), 5000, 200, eager_trials());
  for (const auto& x : all.x) CHECK(wrong_sums(x, 8) == 0);
  std::size_t decided = 0;
  for (const rank_id leader : {0U, 4U}) {
    for (const auto& agreed : all.w[leader].agreements()) {
      const auto* c = agreed.assigned->find(20'000);
      decided += c != nullptr && c->where == actors::campaign::stage::decided ? 1 : 0;
    }
  }
  CHECK(decided == 3);  // two groups, and their leaders
  CHECK(join_group_flights(all.w).mismatches == 0);
}

namespace {

task<> computes_meanwhile(hierarchy* h, std::vector<float>* x, time_ns* computed_at) {
  scope& here = co_await this_scope;
  scope call(here);
  call.spawn(reduce(h, x, 1));
  auto work = [] {};
  co_await runtime::compute(work, 50'000);
  *computed_at = here.where().now();
  co_await call.join();
}

task<> several(hierarchy* h, std::vector<float>* a, std::vector<float>* b, std::uint64_t* copies) {
  co_await h->all_reduce_each(std::span(*a), std::span(*b));
  *copies = h->copies();
}

task<> from_the_first(hierarchy* h, std::vector<int>* x) { co_await h->broadcast(std::span(*x)); }

task<> gather(hierarchy* h, std::vector<int>* mine, std::vector<int>* all) {
  co_await h->all_gather(std::span<const int>(*mine), std::span(*all));
}

task<> scatter(hierarchy* h, std::vector<float>* all, std::vector<float>* mine) {
  co_await h->reduce_scatter(std::span(*all), std::span(*mine));
}

}  // namespace

TEST_CASE("workers compute while the leaders talk") {
  world w(8);
  std::vector<std::vector<float>> x;
  std::vector<time_ns> computed(8);
  for (rank_id r = 0; r < 8; ++r) x.push_back(contribution(r, 100'000));
  const program p = [&](hierarchy& h, ops::rank& self) {
    return computes_meanwhile(&h, &x[self.id()], &computed[self.id()]);
  };
  for (const auto& o : on_all(w, by_four(), p)) CHECK(o);
  for (rank_id r = 0; r < 8; ++r) {
    CHECK(wrong_sums(x[r], 8) == 0);
    CHECK(computed[r] == 50'000);
  }
  CHECK(w.clock.now() > 50'000);
}

TEST_CASE("several buffers are summed together: small ones in one exchange, large ones in place") {
  for (const std::size_t large : {std::size_t{10}, std::size_t{20'000}}) {
    CAPTURE(large);
    const bool packed = large == 10;
    world w(5);
    std::vector<std::vector<float>> a;
    std::vector<std::vector<float>> b;
    std::array<std::uint64_t, 5> copies{};
    for (rank_id r = 0; r < 5; ++r) {
      a.push_back(contribution(r, large));
      b.push_back(contribution(r, 1));
    }
    const program p = [&](hierarchy& h, ops::rank& self) {
      return several(&h, &a[self.id()], &b[self.id()], &copies[self.id()]);
    };
    for (const auto& o : on_all(w, by_four({star()}), p)) CHECK(o);
    for (rank_id r = 0; r < 5; ++r) {
      CHECK(wrong_sums(a[r], 5) == 0);
      CHECK(wrong_sums(b[r], 5) == 0);
      CHECK(copies[r] == (packed ? 4 : 0));
    }
    const auto messages_for = [](std::size_t count) {
      reduced alone(5, by_four({star()}), count);
      return data_messages(alone.w);
    };
    CHECK(data_messages(w) == (packed ? messages_for(large + 1) : messages_for(large) + messages_for(1)));
  }
}

TEST_CASE("broadcast, all-gather and reduce-scatter are made of the same parts") {
  for (const rank_id size : {1, 3, 4, 6, 9}) {
    world w(size);
    std::vector<std::vector<int>> shared(size, std::vector<int>(50));
    std::iota(shared[0].begin(), shared[0].end(), 7);
    const program p = [&](hierarchy& h, ops::rank& self) { return from_the_first(&h, &shared[self.id()]); };
    for (const auto& o : on_all(w, by_four(), p)) CHECK(o);
    for (const auto& x : shared) CHECK(x == shared[0]);

    world again(size);
    std::vector<std::vector<int>> mine(size);
    std::vector<std::vector<int>> all(size, std::vector<int>(3 * size));
    std::vector<int> expected;
    for (int r = 0; r < static_cast<int>(size); ++r) {
      mine[static_cast<std::size_t>(r)] = {10 * r, 10 * r + 1, 10 * r + 2};
      expected.insert(expected.end(), {10 * r, 10 * r + 1, 10 * r + 2});
    }
    const program g = [&](hierarchy& h, ops::rank& self) { return gather(&h, &mine[self.id()], &all[self.id()]); };
    for (const auto& o : on_all(again, by_four(), g)) CHECK(o);
    for (const auto& x : all) CHECK(x == expected);

    world third(size);
    std::vector<std::vector<float>> data;
    std::vector<std::vector<float>> part(size, std::vector<float>(7));
    for (rank_id r = 0; r < size; ++r) data.push_back(contribution(r, 7 * size));
    const program s = [&](hierarchy& h, ops::rank& self) { return scatter(&h, &data[self.id()], &part[self.id()]); };
    for (const auto& o : on_all(third, by_four(), s)) CHECK(o);
    for (const auto& x : part) CHECK(wrong_sums(x, size) == 0);  // seven by seven: every part begins like the whole
  }
}

TEST_CASE("a rank that dies in one group ends the call on all ranks, by name") {
  world w(8);
  std::vector<std::vector<float>> x;
  for (rank_id r = 0; r < 8; ++r) x.push_back(contribution(r, 100));
  const program p = [&](hierarchy& h, ops::rank& self) -> task<> {
    if (self.id() != 6) return reduce(&h, &x[self.id()], 1);
    self.where().post([&w] {
      for (rank_id r = 0; r < 8; ++r) {
        if (r != 6) w[r].on_lost(6, "was killed");
      }
    });
    return [](rank_id) -> task<> { co_return; }(0);
  };
  const auto outcomes = on_all(w, by_four(), p);
  for (rank_id r = 0; r < 8; ++r) {
    if (r == 6) continue;
    CAPTURE(r);
    CHECK_FALSE(outcomes[r]);
  }
  CHECK(outcomes[5].code() == errc::peer_failed);
  CHECK(w.clock.now() < 2'000'000'000);
}

TEST_CASE("groups without a leader and shares that do not fit are named") {
  world w(4);
  auto op = by_four();
  op.leads = [](rank_id r) { return r == 1; };
  CHECK_THROWS_AS(w[0].declare(op), failure);
  std::vector<int> mine(3);
  std::vector<int> all(11);
  const program g = [&](hierarchy& h, ops::rank&) { return gather(&h, &mine, &all); };
  const auto outcomes = on_all(w, by_four(), g);
  CHECK(says(outcomes[2],
             "op gradients: rank 2 calls all_gather with 3 elements of its own and 11 in all, which have to "
             "be 4 times as many"));
}

#include <parley/tests/support/cases/mixture_case.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/guarded.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/collective.hpp>
#include <parley/group_config.hpp>
#include <parley/hierarchy.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

hierarchy_options by_four(std::vector<group_config_ptr> configs = {star(), star(512), chain(256), tree()}) {
  hierarchy_options op;
  op.name = "gradients";
  op.leads = [](rank_id r) { return r % 4 == 0; };
  op.inside = configs;
  op.between = std::move(configs);
  op.timeout = 1s;
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

std::vector<result<>> on_all(world& w, const hierarchy_options& op, const program& p) {
  std::vector<result<>> outcomes(w.ranks.size());
  scope all(w.clock);
  for (rank_id r = 0; r < w.ranks.size(); ++r) all.spawn(guarded(&p, hierarchy(w[r], op), &w[r], &outcomes[r]));
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

// Adds a random time below `most_ns` to each message, so that messages may overtake each other.
memory_link_options jittered(std::uint64_t seed, time_ns most_ns = 300'000) {
  memory_link_options o;
  o.delay = [random = seed * 2'654'435'761U + 1, most_ns](rank_id, rank_id, link::channel) mutable -> time_ns {
    random = random * 6'364'136'223'846'793'005U + 1'442'695'040'888'963'407U;
    return static_cast<time_ns>((random >> 33U) % static_cast<std::uint64_t>(most_ns));
  };
  return o;
}

struct reduced {
  explicit reduced(rank_id size, const hierarchy_options& op, std::size_t count = 1000, int times = 1,
                   rank_settings s = {})
      : w(size, std::move(s)), x(size) {
    for (rank_id r = 0; r < size; ++r) x[r] = contribution(r, count);
    const program p = [&](hierarchy& h, ops::rank& self) { return reduce(&h, &x[self.id()], times); };
    for (const auto& o : on_all(w, op, p)) CHECK((o ? "" : o.reason().what()) == "");
  }
  world w;
  std::vector<std::vector<float>> x;
};

}  // namespace

TEST_CASE("groups of 4 and their leaders sum exactly with every config, even if the last group is smaller") {
  for (const rank_id size : {1, 2, 4, 5, 7, 16}) {
    for (const auto& config : {star(), star(100), chain(64), tree(), one_shot(), two_shot(), two_shot(100)}) {
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

// Groups ranks of two kinds: ranks 1, 4, 7 and so on are A100s, the others H100s.
hierarchy_options by_kind(std::vector<group_config_ptr> configs = {star()}) {
  hierarchy_options op = by_four(std::move(configs));
  op.leads = nullptr;
  op.group_by = [](rank_id r) -> std::string { return r % 3 == 1 ? "A100" : "H100"; };
  return op;
}

}  // namespace

TEST_CASE("ranks grouped by a common property sum correctly, and gather and scatter in the order of the ranks") {
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

TEST_CASE("each kind of rank agrees on its own fastest config, even if the other kind lacks that config") {
  // Ranks 1 and 4 are A100s. The fastest config of each kind is one that only this kind has.
  using namespace mixture_case;
  machine_room room;
  rank_settings s = eager_trials();
  world w(7, s);
  const auto timed = [&](const char* name, std::vector<time_ns> takes) {
    return std::make_shared<timed_star>(room, w.clock, name, name, std::move(takes));
  };
  const auto on_all_places = [](time_ns span) { return std::vector<time_ns>(5, span); };
  hierarchy_options op =
      by_kind({timed("everywhere", on_all_places(3'000'000)), timed("of_a100", on_all_places(1'000'000)),
               timed("of_h100", on_all_places(700'000))});
  op.can_run = [](rank_id r) {
    return r % 3 == 1 ? std::vector<bool>{true, true, false} : std::vector<bool>{true, false, true};
  };
  std::vector<std::vector<float>> x;
  for (rank_id r = 0; r < 7; ++r) x.push_back(contribution(r, 1000));
  const program p = [&](hierarchy& h, ops::rank& self) { return reduce(&h, &x[self.id()], 100); };
  for (const auto& o : on_all(w, op, p)) CHECK((o ? "" : o.reason().what()) == "");
  for (const auto& sum : x) CHECK(wrong_sums(sum, 7) == 0);
  const auto inside_of = [&](rank_id leader) -> const actors::search* {
    for (const auto& a : w[leader].agreements()) {
      if (a.op.find("inside") == std::string::npos || a.sender != leader) continue;
      CHECK(a.assigned->ids().size() == 2);  // a config that the kind lacks is no candidate
      return a.assigned->find(4000);
    }
    return nullptr;
  };
  for (const auto& [leader, best] : {std::pair<rank_id, const char*>{0, "of_h100"}, {1, "of_a100"}}) {
    CAPTURE(leader);
    const auto* const c = inside_of(leader);
    REQUIRE(c != nullptr);
    CHECK(c->chosen().source == actors::decision_source::trials);
    CHECK_MESSAGE(c->chosen().config == best, c->chosen().why);
  }
}

TEST_CASE("a hierarchy that sets both leads and group_by is refused") {
  hierarchy_options op = by_kind();
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

namespace {
task<> reduce_alone_and_together(hierarchy* h, std::vector<float>* alone, std::vector<float>* together) {
  std::array<std::vector<float>, 3> x;
  for (auto& one : x) one = *alone;
  std::vector<std::span<float>> all(x.begin(), x.end());
  co_await h->all_reduce_list(all);
  for (const auto& one : x) together->insert(together->end(), one.begin(), one.end());
  co_await h->all_reduce(std::span(*alone));
}
}  // namespace

TEST_CASE(
    "sums have the same bits on all ranks, with every config and in every run, however messages overtake each other") {
  std::vector<float> first;
  for (const auto& config : {star(), star(64), chain(128), tree(), one_shot(), two_shot(), two_shot(64)}) {
    for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) {
      CAPTURE(config->id());
      CAPTURE(seed);
      world w(7, {}, seed == 0 ? memory_link_options{} : jittered(seed));
      std::vector<std::vector<float>> x(7, std::vector<float>(300));
      std::vector<std::vector<float>> together(7);
      for (rank_id r = 0; r < 7; ++r) {
        for (std::size_t i = 0; i < 300; ++i) x[r][i] = 1.0F / static_cast<float>(1 + r * 300 + i * 7);
      }
      const program p = [&](hierarchy& h, ops::rank& self) {
        return reduce_alone_and_together(&h, &x[self.id()], &together[self.id()]);
      };
      for (const auto& o : on_all(w, by_four({config}), p)) CHECK((o ? "" : o.reason().what()) == "");
      if (first.empty()) first = x[0];
      for (rank_id r = 0; r < 7; ++r) {
        CHECK(x[r] == first);
        CHECK(together[r] == together[0]);
        for (std::size_t k = 0; k < 3; ++k)
          CHECK(std::equal(first.begin(), first.end(),
                           together[r].begin() + static_cast<std::ptrdiff_t>(k * first.size())));
      }
    }
  }
}

TEST_CASE("each level agrees on a config of its own") {
  reduced all(8, by_four(), 5000, 200, eager_trials());
  for (const auto& x : all.x) CHECK(wrong_sums(x, 8) == 0);
  std::size_t decided = 0;
  for (const rank_id leader : {0U, 4U}) {
    for (const auto& agreed : all.w[leader].agreements()) {
      const auto* c = agreed.assigned->find(20'000);
      decided += c != nullptr && c->is_decided() ? 1 : 0;
    }
  }
  CHECK(decided == 3);  // two groups, and their leaders
  CHECK(join_group_flights(all.w).mismatches == 0);
}

TEST_CASE("each rank can read the decisions of its levels, and can await them") {
  world w(8, eager_trials());
  std::vector<std::vector<decision>> awaited(8), known(8);
  std::vector<errc> before(8), after(8);
  const auto about = [](hierarchy h, executor& ex, std::vector<decision>* later, std::vector<decision>* now,
                        errc* first, errc* last) -> task<> {
    scope& here = co_await this_scope;
    scope waiting(here);
    const auto wait = [](hierarchy of, std::vector<decision>* into) -> task<> {
      auto all = co_await of.decided(20'000);
      *into = std::move(all);
    };
    const auto ask = [](const hierarchy& of) {
      try {
        static_cast<void>(of.decision(20'000, collective_kind::broadcast));
      } catch (const failure& f) {
        return f.code();
      }
      return errc::none;
    };
    waiting.spawn(wait(h, later));
    *first = ask(h);
    std::vector<float> x(5000, 1);
    for (int i = 0; i < 200; ++i) co_await h.all_reduce(std::span(x));
    auto slept = co_await sleep_until(ex.deadline_in(1_s));
    static_cast<void>(slept);
    *now = h.decision(20'000);
    co_await h.broadcast(std::span(x));
    *last = ask(h);
    co_await waiting.join();
  };
  const program p = [&](hierarchy& h, ops::rank& self) -> task<> {
    const rank_id r = self.id();
    return about(h, w.clock, &awaited[r], &known[r], &before[r], &after[r]);
  };
  for (const auto& o : on_all(w, by_four({star(), tree(), chain(1024)}), p)) CHECK((o ? "" : o.reason().what()) == "");
  for (rank_id r = 0; r < 8; ++r) {
    CAPTURE(r);
    REQUIRE(known[r].size() == (r % 4 == 0 ? 2 : 1));
    REQUIRE(awaited[r].size() == known[r].size());
    CHECK(known[r][0].op == (r < 4 ? "gradients/inside 0->1->2->3" : "gradients/inside 4->5->6->7"));
    if (r % 4 == 0) CHECK(known[r][1].op == "gradients/between 0->4");
    for (std::size_t i = 0; i < known[r].size(); ++i) {
      CHECK(known[r][i].decided);
      CHECK(known[r][i].config == awaited[r][i].config);
      CHECK(known[r][i].config == known[i == 1 ? 0 : r / 4 * 4][i].config);
      CHECK(known[r][i].evidence.size() == 3);
    }
    CHECK(before[r] == errc::unavailable);  // nobody has called a broadcast yet
    CHECK(after[r] == errc::none);
  }
}

namespace {

struct sum_beside {
  time_ns computes_ns = 0;
  time_ns computed_ns = 0;  // when the computation had ended
  time_ns summed_ns = 0;
};
task<> call_and_note(hierarchy* h, std::vector<float>* x, sum_beside* s) {
  co_await reduce(h, x, 1);
  scope& here = co_await this_scope;
  s->summed_ns = here.where().now();
}
task<> computes_meanwhile(hierarchy* h, std::vector<float>* x, sum_beside* s) {
  scope& here = co_await this_scope;
  scope call(here);
  call.spawn(call_and_note(h, x, s));
  auto work = [] {};
  co_await runtime::compute(work, s->computes_ns);
  s->computed_ns = here.where().now();
  co_await call.join();
}

// Messages between the two leaders take 2 ms longer than messages inside a group.
std::vector<sum_beside> sums_beside(time_ns computes_ns) {
  memory_link_options links;
  links.delay = [](rank_id from, rank_id to, link::channel) -> time_ns { return from / 4 == to / 4 ? 0 : 2'000'000; };
  world w(8, {}, std::move(links));
  std::vector<std::vector<float>> x;
  std::vector<sum_beside> all(8, {.computes_ns = computes_ns});
  for (rank_id r = 0; r < 8; ++r) x.push_back(contribution(r, 100'000));
  const program p = [&](hierarchy& h, ops::rank& self) {
    return computes_meanwhile(&h, &x[self.id()], &all[self.id()]);
  };
  for (const auto& o : on_all(w, by_four({star()}), p)) CHECK(o);
  for (rank_id r = 0; r < 8; ++r) CHECK(wrong_sums(x[r], 8) == 0);
  return all;
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

TEST_CASE("all ranks can compute while the leaders exchange, and the sum is not delayed") {
  constexpr time_ns computes_ns =
      3'000'000;  // longer than the sum inside a group, shorter than the leaders' round trip
  const auto alone = sums_beside(0);
  const auto beside = sums_beside(computes_ns);
  for (rank_id r = 0; r < 8; ++r) {
    CAPTURE(r);
    CHECK(alone[r].summed_ns > 4'000'000);
    CHECK(beside[r].computed_ns == computes_ns);
    CHECK(beside[r].summed_ns == alone[r].summed_ns);
  }
}

TEST_CASE("several buffers are summed together: small ones in one exchange, large ones in place") {
  struct of_two {
    std::size_t large;
    std::uint64_t pack_below;
  };
  for (const auto& [large, pack_below] : {of_two{10, 65'536}, {20'000, 65'536}, {10, 0}, {20'000, 1'000'000}}) {
    CAPTURE(large);
    CAPTURE(pack_below);
    const bool packed = large * sizeof(float) < pack_below;
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
    auto op = by_four({star()});
    op.pack_below = pack_below;
    for (const auto& o : on_all(w, op, p)) CHECK(o);
    for (rank_id r = 0; r < 5; ++r) {
      CHECK(wrong_sums(a[r], 5) == 0);
      CHECK(wrong_sums(b[r], 5) == 0);
      CHECK(copies[r] == (packed ? 4 : 0));
    }
    const auto messages_for = [](std::size_t count) {
      reduced alone(5, by_four({star()}), count);
      return data_messages(alone.w);
    };
    if (pack_below == 0)
      continue;  // two calls that are in flight at once may send more messages than two calls that are made in turn
    CHECK(data_messages(w) == (packed ? messages_for(large + 1) : messages_for(large) + messages_for(1)));
  }
}

TEST_CASE("broadcast, all-gather and reduce-scatter of a hierarchy give the right results for 1 to 9 ranks") {
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
    for (const auto& x : part) CHECK(wrong_sums(x, size) == 0);  // each part is one period of 7 elements
  }
}

namespace {

// Element i of rank r's k-th buffer. All buffers have one size, and no two have the same elements.
float part_of(rank_id r, std::size_t k, std::size_t i) {
  return static_cast<float>((r + 1) * (k + 1)) + static_cast<float>((i * (2 * k + 1)) % 61);
}
float sum_of(std::size_t world, std::size_t k, std::size_t i) {
  float sum = 0;
  for (rank_id r = 0; r < world; ++r) sum += part_of(r, k, i);  // whole numbers: exact in any order
  return sum;
}

task<> sum_together(hierarchy* h, ops::rank* self, std::size_t buffers, std::size_t count, int times, int* wrong) {
  for (int t = 0; t < times; ++t) {
    std::vector<std::vector<float>> x(buffers, std::vector<float>(count));
    std::vector<std::span<float>> all;
    for (std::size_t k = 0; k < buffers; ++k) {
      for (std::size_t i = 0; i < count; ++i) x[k][i] = part_of(self->id(), k, i);
      all.emplace_back(x[k]);
    }
    co_await h->all_reduce_list(all);
    for (std::size_t k = 0; k < buffers; ++k) {
      for (std::size_t i = 0; i < count; i += 7) *wrong += x[k][i] == sum_of(self->world_size(), k, i) ? 0 : 1;
    }
  }
}

}  // namespace

TEST_CASE("large buffers of one size that are summed concurrently are never confused with each other") {
  for (const rank_id size : {8, 16}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      CAPTURE(size);
      CAPTURE(seed);
      world w(size, eager_trials(), jittered(seed));
      std::vector<int> wrong(size);
      const program p = [&](hierarchy& h, ops::rank& self) {
        return sum_together(&h, &self, 3, 17'000, size == 8 ? 60 : 15, &wrong[self.id()]);
      };
      for (const auto& o : on_all(w, by_four({star(), star(16'384), chain(16'384), tree()}), p))
        CHECK((o ? "" : o.reason().what()) == "");
      for (const int n : wrong) CHECK(n == 0);
      CHECK(join_group_flights(w).mismatches == 0);
      CHECK(join_group_flights(w).digests.size() > 1);  // candidates were tried meanwhile
    }
  }
}

namespace {

task<> share_out(hierarchy* h, std::vector<int>* x) { co_await h->broadcast(std::span(*x)); }

// Three broadcasts, three gathers and a sum, in flight at once.
task<> all_at_once(hierarchy* h, ops::rank* self, int* wrong) {
  constexpr int calls = 3;
  const int me = static_cast<int>(self->id());
  const int size = static_cast<int>(self->world_size());
  std::vector<std::vector<int>> given(calls, std::vector<int>(400));
  std::vector<std::vector<int>> mine(calls, std::vector<int>(50));
  std::vector<std::vector<int>> all(calls, std::vector<int>(static_cast<std::size_t>(50 * size)));
  std::vector<float> x = contribution(self->id(), 500);
  scope& here = co_await this_scope;
  scope together(here);
  for (int k = 0; k < calls; ++k) {
    const auto at = static_cast<std::size_t>(k);
    if (me == 0) std::iota(given[at].begin(), given[at].end(), 1000 * k);
    std::iota(mine[at].begin(), mine[at].end(), 10'000 * k + 50 * me);
    together.spawn(share_out(h, &given[at]));
    together.spawn(gather(h, &mine[at], &all[at]));
  }
  together.spawn(reduce(h, &x, 1));
  co_await together.join();
  for (int k = 0; k < calls; ++k) {
    const auto at = static_cast<std::size_t>(k);
    for (int i = 0; i < 400; ++i) *wrong += given[at][static_cast<std::size_t>(i)] == 1000 * k + i ? 0 : 1;
    for (int i = 0; i < 50 * size; ++i) *wrong += all[at][static_cast<std::size_t>(i)] == 10'000 * k + i ? 0 : 1;
  }
  *wrong += static_cast<int>(wrong_sums(x, self->world_size()));
}

}  // namespace

TEST_CASE("concurrent broadcasts, gathers and sums are never confused with each other") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    world w(10, {}, jittered(seed));
    std::vector<int> wrong(10);
    const program p = [&](hierarchy& h, ops::rank& self) { return all_at_once(&h, &self, &wrong[self.id()]); };
    for (const auto& o : on_all(w, by_four(), p)) CHECK((o ? "" : o.reason().what()) == "");
    for (const int n : wrong) CHECK(n == 0);
  }
}

namespace {

template <class T>
std::span<T> of(const array<T>& a) {
  return {a.data(), a.size()};
}
std::vector<float> numbers_in(const array<float>& a) { return {a.begin(), a.end()}; }

/// Several buffers of one rank, with guarded margins. Each holds the rank's contribution.
struct buffers {
  buffers(rank_id r, std::initializer_list<std::size_t> counts) : rank(r) {
    for (const std::size_t n : counts) {
      const std::vector<float> mine = contribution(r, n);
      std::copy(mine.begin(), mine.end(), all.emplace_back(*at, n).begin());
    }
  }
  bool untouched(std::size_t k) const { return numbers_in(all[k]) == contribution(rank, all[k].size()); }
  rank_id rank;
  std::unique_ptr<guarded_place> at = std::make_unique<guarded_place>();
  std::vector<array<float>> all{};
};

// Checks buffer k after a failed call. A leader's buffer may hold the sum of its group, all others are unchanged. All margins are clean.
void check_after_failure(const std::vector<buffers>& ranks, std::size_t k) {
  for (const buffers& b : ranks) {
    CAPTURE(b.rank);
    CHECK((b.rank % 4 == 0 || b.untouched(k)));
    CHECK(b.at->clean());
  }
}

task<> attempted(hierarchy* h, std::span<float> x, result<>* outcome) {
  *outcome = co_await ops::attempt(h->all_reduce(x));
}

// Makes two calls at once, and then a third one. One rank has another size in the first call.
task<> one_of_three_fails(hierarchy* h, const buffers* x, std::array<result<>, 3>* outcomes) {
  scope& here = co_await this_scope;
  scope both(here);
  both.spawn(attempted(h, of(x->all[0]), &(*outcomes)[0]));
  both.spawn(attempted(h, of(x->all[1]), &(*outcomes)[1]));
  co_await both.join();
  (*outcomes)[2] = co_await ops::attempt(h->all_reduce(of(x->all[2])));
}

// The third buffer receives the share, which on one rank has the wrong size.
task<> share_of_another_size(hierarchy* h, const buffers* x, std::array<result<>, 2>* outcomes) {
  (*outcomes)[0] = co_await ops::attempt(h->reduce_scatter(of(x->all[0]), of(x->all[2])));
  (*outcomes)[1] = co_await ops::attempt(h->all_reduce(of(x->all[1])));
}

}  // namespace

TEST_CASE(
    "a failed call in one group fails in all groups and names the culprit, and concurrent and later calls succeed") {
  world w(8, {}, jittered(1));
  std::vector<buffers> x;
  for (rank_id r = 0; r < 8; ++r) x.push_back(buffers(r, {r == 6 ? std::size_t{2999} : std::size_t{3000}, 3000, 3000}));
  std::vector<std::array<result<>, 3>> outcomes(8);
  const program p = [&](hierarchy& h, ops::rank& self) {
    return one_of_three_fails(&h, &x[self.id()], &outcomes[self.id()]);
  };
  for (const auto& o : on_all(w, by_four(), p)) CHECK((o ? "" : o.reason().what()) == "");
  for (rank_id r = 0; r < 8; ++r) {
    CAPTURE(r);
    CHECK(is(outcomes[r][0], {.code = errc::bad_argument,
                              .rank = r,
                              .invocation = 0,
                              .begun = true,
                              .peer = r == 6 ? std::optional<rank_id>() : 6,
                              .quotes = "gradients/"}));
    for (const std::size_t k : {1U, 2U}) {
      CHECK((outcomes[r][k] ? "" : outcomes[r][k].reason().what()) == "");
      CHECK(wrong_sums(numbers_in(x[r].all[k]), 8) == 0);
    }
  }
  check_after_failure(x, 0);
  CHECK(w.clock.now() < 100'000'000);  // a tenth of the timeout
}

TEST_CASE(
    "a reduce_scatter with a share of the wrong size on one rank fails on all ranks, and the next call succeeds") {
  world w(8, {}, jittered(2));
  std::vector<buffers> x;
  for (rank_id r = 0; r < 8; ++r) x.push_back(buffers(r, {80, 80, r == 6 ? std::size_t{3} : std::size_t{10}}));
  std::vector<std::array<result<>, 2>> outcomes(8);
  const program p = [&](hierarchy& h, ops::rank& self) {
    return share_of_another_size(&h, &x[self.id()], &outcomes[self.id()]);
  };
  for (const auto& o : on_all(w, by_four(), p)) CHECK((o ? "" : o.reason().what()) == "");
  for (rank_id r = 0; r < 8; ++r) {
    CAPTURE(r);
    CHECK(is(outcomes[r][0], {.code = errc::bad_argument, .rank = r, .quotes = "gradients"}));
    CHECK((outcomes[r][1] ? "" : outcomes[r][1].reason().what()) == "");
    CHECK(wrong_sums(numbers_in(x[r].all[1]), 8) == 0);
    CHECK(x[r].untouched(2));
  }
  check_after_failure(x, 0);
  CHECK(w.clock.now() < 100'000'000);
}

TEST_CASE("a call with another type on one rank fails on all ranks of all groups, with both types") {
  for (const auto& config : {star(), chain(256), tree()}) {
    for (const rank_id odd : {0U, 5U}) {
      CAPTURE(config->id());
      CAPTURE(odd);
      world w(8);
      std::vector<buffers> x;
      for (rank_id r = 0; r < 8; ++r) x.push_back(buffers(r, {1000}));
      guarded_place at;
      const array<std::int32_t> other(at, 1000);
      std::fill(other.begin(), other.end(), 7);
      const program p = [&](hierarchy& h, ops::rank& self) -> task<> {
        if (self.id() != odd) return h.all_reduce(of(x[self.id()].all[0]));
        return h.all_reduce(of(other));
      };
      const auto outcomes = on_all(w, by_four({config}), p);
      for (rank_id r = 0; r < 8; ++r) {
        for (const char* type : {"f32 elements combined by plus", "i32 elements combined by plus", "gradients/"})
          CHECK(is(outcomes[r],
                   {.code = errc::declaration_mismatch, .rank = r, .invocation = 0, .begun = true, .quotes = type}));
      }
      CHECK(w.clock.now() < 100'000'000);  // a tenth of the timeout
      check_after_failure(x, 0);
      CHECK(std::all_of(other.begin(), other.end(), [](std::int32_t i) { return i == 7; }));
      CHECK(at.clean());
    }
  }
}

TEST_CASE("a rank that dies in one group fails the call on all ranks, which name it as the culprit") {
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
    CHECK(is(outcomes[r], {.code = errc::peer_failed, .culprit = 6}));
  }
  CHECK(w.clock.now() < 100'000'000);  // a tenth of the timeout
}

// Rank 4 leads rank 6, has its part already, and waits for rank 0. Only ranks 4, 5 and 7 are told of the death: the other group hears of it
// from rank 4.
TEST_CASE("a rank that dies while its leader waits for the other leaders is named on all ranks") {
  world w(8);
  std::vector<std::vector<float>> x;
  for (rank_id r = 0; r < 8; ++r) x.push_back(contribution(r, 100));
  const program p = [&](hierarchy& h, ops::rank& self) -> task<> {
    if (self.id() == 0) {
      auto late = co_await sleep_until(self.where().deadline_in(20'000'000));
      late.value();
    }
    co_await reduce(&h, &x[self.id()], 1);
  };
  scope other(w.clock);
  other.spawn([](world* all) -> task<> {
    auto later = co_await sleep_until(all->clock.deadline_in(10'000'000));
    later.value();
    for (const rank_id r : {4U, 5U, 7U}) (*all)[r].on_lost(6, "was killed");
  }(&w));
  const auto outcomes = on_all(w, by_four(), p);
  for (rank_id r = 0; r < 8; ++r) {
    if (r == 6) continue;
    CAPTURE(r);
    CHECK(is(outcomes[r], {.code = errc::peer_failed, .invocation = 0, .begun = true, .culprit = 6}));
  }
}

TEST_CASE("a hierarchy whose first rank does not lead is refused and all_gather names sizes that do not fit") {
  world w(4);
  auto op = by_four();
  op.leads = [](rank_id r) { return r == 1; };
  for (rank_id r = 0; r < 4; ++r) {
    const auto refused = thrown_by([&] { hierarchy(w[r], op); });
    CHECK(refused.code() == errc::role_conflict);
    CHECK(says(refused, "op gradients: rank 0 does not lead"));
  }
  std::vector<int> mine(3);
  std::vector<int> all(11);
  const program g = [&](hierarchy& h, ops::rank&) { return gather(&h, &mine, &all); };
  const auto outcomes = on_all(w, by_four(), g);
  CHECK(says(outcomes[2], "op gradients: rank 2 calls all_gather with 3 elements of its own and 11 in all, but the "
                          "latter must be 4 times as many"));
}

namespace {

/// A star that can only gather.
struct gathers_only final : group_config {
  gathers_only() : group_config({.name = "gathers", .parameters = {}, .wire_class = "gathers"}) {}
  task<> lead(group_call& g) const override { return star_->lead(g); }
  task<> work(group_call& g) const override { return star_->work(g); }
  bool does(collective_kind what) const noexcept override { return what == collective_kind::gather; }

 private:
  group_config_ptr star_ = star();
};

task<> gather_once(hierarchy h, std::span<const float> mine, std::span<float> all, result<>& outcome) {
  outcome = co_await attempt(h.all_gather(mine, all));
}

}  // namespace

TEST_CASE("a call that cannot declare one of its levels fails on all ranks, and writes nothing") {
  world w(4);
  hierarchy_options op;
  op.name = "all";
  op.leads = [](rank_id r) { return r % 2 == 0; };
  // `gathers_only` is listed twice. The op finds that when it declares the level that gathers.
  op.inside = {star(), std::make_shared<gathers_only>(), std::make_shared<gathers_only>()};
  op.timeout = 1s;
  std::vector<hierarchy> handles;
  for (rank_id r = 0; r < 4; ++r) handles.emplace_back(w[r], op);
  std::vector<std::vector<float>> mine(4, std::vector<float>(100'000, 1.0F));
  std::vector<std::vector<float>> all(4, std::vector<float>(400'000, 2.0F));
  std::vector<result<>> outcomes(4);
  scope calls(w.clock);
  for (rank_id r = 0; r < 4; ++r) calls.spawn(gather_once(handles[r], mine[r], all[r], outcomes[r]));
  run_until(w.clock, [&] { return calls.running() == 0; });
  for (rank_id r = 0; r < 4; ++r) {
    CAPTURE(r);
    CHECK(outcomes[r].code() == errc::bad_argument);
    CHECK(all[r] == std::vector<float>(400'000, 2.0F));
  }
}

TEST_CASE("all other ranks name the late rank of a sum, on both levels") {
  for (const rank_id late : {0U, 1U, 2U, 3U}) {
    CAPTURE(late);
    world w(4);
    hierarchy_options op;
    op.name = "gradients";
    op.leads = [](rank_id r) { return r % 2 == 0; };
    op.inside = op.between = {star()};
    op.timeout = 1s;
    std::vector<std::vector<float>> x(4, std::vector<float>(100, 1.0F));
    const program p = [&](hierarchy& h, ops::rank& self) -> task<> {
      return [](hierarchy* all, std::vector<float>* mine, bool sleeps) -> task<> {
        if (sleeps) static_cast<void>(co_await sleep_until(60'000'000'000));
        co_await all->all_reduce(std::span(*mine));
      }(&h, &x[self.id()], self.id() == late);
    };
    const auto outcomes = on_all(w, op, p);
    for (rank_id r = 0; r < 4; ++r) {
      if (r == late) continue;
      CAPTURE(r);
      CHECK(is(outcomes[r], {.code = errc::timeout, .peer = late, .unmet = awaited::members}));
    }
  }
}

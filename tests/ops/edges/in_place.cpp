// Exchanges in place: what is sent and what is received have memory in common.
#include <parley/tests/support/batches.hpp>

#include <parley/config.hpp>
#include <parley/p2p.hpp>
#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using program = batch_program;

namespace {

constexpr time_ns second_ns = 1'000'000'000;

// One link whose messages stay with their sender beyond 4 KiB, so that a send ends only when its receiver has posted.
constexpr std::size_t stays_beyond = 4096;
const std::vector<std::size_t> sizes{1, 100, 128, 129, 4096, 4097, 100'000, 1'000'000};

memory_link_options links() {
  memory_link_options o;
  o.eager_bytes = stays_beyond;
  return o;
}
point_to_point op_named(std::string name) { return {.name = std::move(name), .configs = {direct()}}; }

using buffers = std::vector<std::vector<std::byte>>;

// What each rank has of its own.
buffers one_each(rank_id ranks, std::size_t bytes) {
  buffers all;
  for (rank_id r = 0; r < ranks; ++r) all.push_back(pattern(bytes, 100 + r));
  return all;
}

// All ranks do the same, well before anything times out.
std::vector<result<>> on_all(world& w, const program& each, const point_to_point& op) {
  const auto outcomes = run_each(w, std::vector<program>(w.ranks.size(), each), op);
  CHECK(w.clock.now() < second_ns);
  for (const auto& o : outcomes) CHECK_MESSAGE(o, (o ? "" : o.reason().what()));
  return outcomes;
}

enum class batches : std::uint8_t { one, two };

flow_work exchange(dataflow& flow, p2p& pairs, const p2p_operation& out, const p2p_operation& in, batches n) {
  if (n == batches::one) return pairs.start(flow, {out, in});
  std::vector<flow_work> both;
  both.push_back(pairs.start(flow, {out}));
  both.push_back(pairs.start(flow, {in}));
  return flow.together(both);
}

}  // namespace

TEST_CASE("what goes around a ring in place arrives at every size, in one batch and in two, also of one rank alone") {
  for (const rank_id ranks : {1U, 2U, 3U, 5U}) {
    for (const std::size_t bytes : sizes) {
      for (const batches n : {batches::one, batches::two}) {
        CAPTURE(ranks);
        CAPTURE(bytes);
        CAPTURE((n == batches::one));
        world w(ranks, {}, links());
        buffers x = one_each(ranks, bytes);
        const buffers before = x;
        std::vector<p2p> used(ranks);
        const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
          const rank_id me = self.id();
          used[me] = pairs;
          std::vector<flow_work> rounds;  // none of which is awaited before the next one
          for (int round = 0; round < 3; ++round)
            rounds.push_back(exchange(flow, pairs, p2p::isend(x[me], {.to = (me + 1) % ranks}),
                                      p2p::irecv(x[me], {.from = (me + ranks - 1) % ranks}), n));
          return end_of(flow.together(rounds));
        };
        on_all(w, each, op_named("ring"));
        for (rank_id r = 0; r < ranks; ++r) {
          CHECK(x[r] == before[(r + 3 * ranks - 3) % ranks]);
          if (ranks > 1 && bytes > stays_beyond) CHECK(used[r].copied_bytes() == 3 * bytes);
        }
      }
    }
  }
}

TEST_CASE("ranges that only overlap are exchanged, too") {
  for (const std::size_t bytes : {300U, 300'000U}) {
    for (const batches n : {batches::one, batches::two}) {
      for (const rank_id ranks : {1U, 2U, 3U}) {
        CAPTURE(bytes);
        CAPTURE(ranks);
        world w(ranks, {}, links());
        buffers x = one_each(ranks, bytes);
        const buffers before = x;
        const std::size_t part = bytes / 3 * 2;
        const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
          const std::span mine(x[self.id()]);
          return end_of(exchange(flow, pairs, p2p::isend(mine.first(part), {.to = (self.id() + 1) % ranks}),
                                 p2p::irecv(mine.last(part), {.from = (self.id() + ranks - 1) % ranks}), n));
        };
        on_all(w, each, op_named("overlap"));
        for (rank_id r = 0; r < ranks; ++r) {
          const auto& from = before[(r + ranks - 1) % ranks];
          auto right = before[r];
          std::copy_n(from.begin(), part, right.end() - static_cast<std::ptrdiff_t>(part));
          CHECK(x[r] == right);
        }
      }
    }
  }
}

TEST_CASE("halves are swapped with another rank and with oneself, in whatever order the receives are posted") {
  for (const std::size_t bytes : {200U, 200'000U}) {
    for (const rank_id ranks : {1U, 2U}) {
      for (const bool crosswise : {false, true}) {
        for (const batches n : {batches::one, batches::two}) {
          CAPTURE(bytes);
          CAPTURE(ranks);
          CAPTURE(crosswise);
          world w(ranks, {}, links());
          buffers x = one_each(ranks, bytes);
          const buffers before = x;
          const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
            const rank_id peer = (self.id() + 1) % ranks;
            const auto low = std::span(x[self.id()]).first(bytes / 2);
            const auto high = std::span(x[self.id()]).last(bytes / 2);
            const std::array sends{p2p::isend(low, {.to = peer, .tag = 0}), p2p::isend(high, {.to = peer, .tag = 1})};
            std::array receives{p2p::irecv(high, {.from = peer, .tag = 0}), p2p::irecv(low, {.from = peer, .tag = 1})};
            if (crosswise) std::swap(receives[0], receives[1]);
            if (n == batches::one) return end_of(pairs.start(flow, {sends[0], sends[1], receives[0], receives[1]}));
            std::vector<flow_work> both;
            both.push_back(pairs.start(flow, sends));
            both.push_back(pairs.start(flow, receives));
            return end_of(flow.together(both));
          };
          on_all(w, each, op_named("halves"));
          for (rank_id r = 0; r < ranks; ++r) {
            auto right = before[(r + 1) % ranks];
            std::rotate(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(bytes / 2), right.end());
            CHECK(x[r] == right);
          }
        }
      }
    }
  }
}

TEST_CASE("two buffers in turn are not copied, with one tag and with one for each round, awaited nowhere") {
  for (const bool one_tag : {true, false}) {
    for (const rank_id ranks : {2U, 4U}) {
      CAPTURE(one_tag);
      CAPTURE(ranks);
      world w(ranks, {}, links());
      constexpr std::size_t bytes = 50'000;
      buffers x = one_each(ranks, bytes);
      buffers y(ranks, std::vector<std::byte>(bytes));
      const buffers before = x;
      std::vector<p2p> used(ranks);
      const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
        const rank_id me = self.id();
        used[me] = pairs;
        std::vector<flow_work> rounds;
        for (std::uint32_t round = 0; round < 10; ++round) {
          auto& out = round % 2 == 0 ? x[me] : y[me];
          auto& in = round % 2 == 0 ? y[me] : x[me];
          const std::uint32_t tag = one_tag ? 0 : round;
          rounds.push_back(pairs.start(flow, {p2p::isend(out, {.to = (me + 1) % ranks, .tag = tag}),
                                              p2p::irecv(in, {.from = (me + ranks - 1) % ranks, .tag = tag})}));
        }
        return end_of(flow.together(rounds));
      };
      on_all(w, each, op_named("turns"));
      for (rank_id r = 0; r < ranks; ++r) {
        CHECK(x[r] == before[(r + 10 * ranks - 10) % ranks]);
        CHECK(used[r].copied_bytes() == 0);
      }
    }
  }
}

TEST_CASE("what computes with the memory of an exchange in place sees it before, or after") {
  for (const std::size_t bytes : {100U, 100'000U}) {
    CAPTURE(bytes);
    world w(2, {}, links());
    buffers x(2, std::vector<std::byte>(bytes));
    buffers seen_before(2);
    buffers seen_after(2);
    const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
      const rank_id me = self.id();
      auto& mine = x[me];
      std::vector<flow_work> all;
      all.push_back(flow.compute({writes(mine)},
                                 [&mine, me] { std::ranges::copy(pattern(mine.size(), me), mine.begin()); },
                                 {.modelled_ns = 50'000}));
      all.push_back(pairs.start(flow, {p2p::isend(mine, {.to = 1 - me})}));
      all.push_back(flow.compute({reads(mine)}, [&, me] { seen_before[me] = x[me]; }, {.modelled_ns = 90'000}));
      all.push_back(pairs.start(flow, {p2p::irecv(mine, {.from = 1 - me})}));
      all.push_back(flow.compute({reads(mine)}, [&, me] { seen_after[me] = x[me]; }));
      return end_of(flow.together(all));
    };
    on_all(w, each, op_named("computed"));
    for (rank_id r = 0; r < 2; ++r) {
      CHECK(seen_before[r] == pattern(bytes, r));
      CHECK(seen_after[r] == pattern(bytes, 1 - r));
    }
  }
}

TEST_CASE("a receive that is listed before a send of the same memory is sent on") {
  for (const std::size_t bytes : {0U, 100U, 100'000U}) {
    CAPTURE(bytes);
    world w(3, {}, links());
    buffers x = one_each(3, bytes);
    const buffers before = x;
    const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
      auto& mine = x[self.id()];
      if (self.id() == 0) return end_of(pairs.start(flow, {p2p::isend(mine, {.to = 1})}));
      if (self.id() == 2) return end_of(pairs.start(flow, {p2p::irecv(mine, {.from = 1})}));
      return end_of(pairs.start(flow, {p2p::irecv(mine, {.from = 0}), p2p::isend(mine, {.to = 2})}));
    };
    on_all(w, each, op_named("relay"));
    for (rank_id r = 0; r < 3; ++r) CHECK(x[r] == before[0]);
  }
}

TEST_CASE("a send to oneself of what it is to bring is refused, by name, before anything of its batch has begun") {
  world w(1, {}, links());
  std::vector<std::byte> x = pattern(1000, 1);
  std::vector<std::byte> y = pattern(1000, 2);
  const auto mine_x = x;
  const auto mine_y = y;
  const program self = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    const auto code_of = [&](std::initializer_list<p2p_operation> batch) {
      try {
        static_cast<void>(pairs.start(flow, batch));
      } catch (const failure& f) {
        CHECK(std::string(f.what()).find("op own: a send to rank 0, tag") != std::string::npos);
        return f.code();
      }
      return errc::none;
    };
    CHECK(code_of({p2p::irecv(x, {.from = 0}), p2p::isend(x, {.to = 0})}) == errc::bad_argument);
    CHECK(code_of({p2p::irecv(std::span(x).first(600), {.from = 0}), p2p::isend(std::span(x).last(600), {.to = 0})}) ==
          errc::bad_argument);
    CHECK(code_of({p2p::irecv(x, {.from = 0, .tag = 1}), p2p::irecv(y, {.from = 0, .tag = 2}),
                   p2p::isend(x, {.to = 0, .tag = 2}), p2p::isend(y, {.to = 0, .tag = 1})}) == errc::bad_argument);
    CHECK(flow.running() == 0);
    // Halves that have nothing in common, and a receive that a message of before is for.
    std::vector<flow_work> all;
    all.push_back(pairs.start(
        flow, {p2p::irecv(std::span(x).first(500), {.from = 0}), p2p::isend(std::span(x).last(500), {.to = 0})}));
    all.push_back(pairs.start(flow, {p2p::isend(mine_y, {.to = 0, .tag = 3})}));
    all.push_back(pairs.start(flow, {p2p::irecv(y, {.from = 0, .tag = 3}), p2p::isend(y, {.to = 0, .tag = 3})}));
    all.push_back(pairs.start(flow, {p2p::irecv(x, {.from = 0, .tag = 3})}));
    return end_of(flow.together(all));
  };
  on_all(w, self, op_named("own"));
  CHECK(x == mine_y);
  CHECK(y == mine_y);
}

TEST_CASE("what came beside its memory is brought in also when the send there ends without a receiver") {
  world w(2, {}, links());
  auto op = op_named("alone");
  op.timeout_ns = 20'000'000;
  std::vector<std::byte> x = pattern(100'000, 1);
  const std::vector<std::byte> sent = pattern(100'000, 2);
  result<> of_send(errc::pending);
  result<> of_receive(errc::pending);
  const auto both = [](dataflow* flow, p2p pairs, std::vector<std::byte>* mine, result<>* s, result<>* r) -> task<> {
    auto started = pairs.start(*flow, {p2p::isend(*mine, {.to = 1, .tag = 5}), p2p::irecv(*mine, {.from = 1})});
    *r = co_await outcome_of(started[1]);
    *s = co_await outcome_of(started[0]);
  };
  const program first = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return both(&flow, pairs, &x, &of_send, &of_receive);
  };
  const program other = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::isend(sent, {.to = 0})}));
  };
  static_cast<void>(run_each(w, {first, other}, op));
  CHECK(of_send.code() == errc::timeout);
  CHECK(of_receive);
  CHECK(x == sent);
}

TEST_CASE("a receive beside its memory is cancelled like any other, and writes nothing") {
  world w(2, {}, links());
  std::vector<std::byte> x = pattern(100'000, 1);
  const std::vector<std::byte> mine = x;
  const std::vector<std::byte> sent = pattern(100'000, 2);
  std::vector<result<>> ends;
  const auto cancelled = [](dataflow* flow, p2p pairs, std::vector<std::byte>* at, std::vector<result<>>* e) -> task<> {
    auto started = pairs.start(*flow, {p2p::isend(*at, {.to = 1, .tag = 5}), p2p::irecv(*at, {.from = 1})});
    auto slept = co_await sleep_until(50'000'000);  // by then it has come
    static_cast<void>(slept);
    for (const std::size_t part : {1, 0}) {
      auto one = started[part];
      one.cancel();
      e->push_back(co_await outcome_of(std::move(one)));
    }
  };
  const program first = [&](dataflow& flow, ops::rank&, p2p& pairs) { return cancelled(&flow, pairs, &x, &ends); };
  const program other = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::isend(sent, {.to = 0})}));
  };
  static_cast<void>(run_each(w, {first, other}, op_named("cancelled")));
  REQUIRE(ends.size() == 2);
  for (const auto& e : ends) CHECK(e.code() == errc::cancelled);
  CHECK(x == mine);
}

namespace {

// All ranks do the same rounds: each sends a range to one rank, and then receives into another range, from another rank. Whatever is
// awaited in between, each sees what the rounds would do one after the other.
void check_rounds(std::uint64_t seed) {
  CAPTURE(seed);
  constexpr std::size_t bytes = 400;
  random_stream dice(seed, 21);
  struct round {
    rank_id shift;
    std::size_t from, to, length;
    std::uint32_t tag;
    batches n;
    bool awaited;
  };
  const auto ranks = static_cast<rank_id>(1 + dice.below(4));
  const std::uint64_t tags = 1 + dice.below(3);
  std::vector<round> rounds(1 + dice.below(8));
  for (round& r : rounds) {
    r.shift = static_cast<rank_id>(dice.below(ranks));
    r.length = dice.below(bytes / 2);
    r.from = dice.below(bytes - r.length);
    r.to = dice.below(bytes - r.length);
    r.tag = static_cast<std::uint32_t>(dice.below(tags));
    r.n = dice.below(2) == 0 ? batches::one : batches::two;
    r.awaited = dice.below(4) == 0;
  }
  buffers x = one_each(ranks, bytes);
  buffers right = x;
  for (const round& r : rounds) {
    const buffers before = right;
    for (rank_id me = 0; me < ranks; ++me)
      std::copy_n(before[(me + ranks - r.shift) % ranks].begin() + static_cast<std::ptrdiff_t>(r.from), r.length,
                  right[me].begin() + static_cast<std::ptrdiff_t>(r.to));
  }
  memory_link_options o = links();
  o.eager_bytes = 64;
  o.short_bytes = 32;
  const auto late = static_cast<rank_id>(dice.below(2 * ranks));
  o.delay = [late](rank_id from, rank_id, link::channel) { return from == late ? 30'000 : 0; };
  world w(ranks, {}, std::move(o));
  const auto run = [](dataflow* flow, p2p pairs, rank_id me, rank_id size, std::span<std::byte> mine,
                      const std::vector<round>* all) -> task<> {
    for (const round& r : *all) {
      auto moved = exchange(
          *flow, pairs, p2p::isend(mine.subspan(r.from, r.length), {.to = (me + r.shift) % size, .tag = r.tag}),
          p2p::irecv(mine.subspan(r.to, r.length), {.from = (me + size - r.shift) % size, .tag = r.tag}), r.n);
      if (r.awaited) co_await moved;
    }
  };
  const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
    return run(&flow, pairs, self.id(), ranks, x[self.id()], &rounds);
  };
  on_all(w, each, op_named("rounds"));
  for (rank_id r = 0; r < ranks; ++r) REQUIRE(x[r] == right[r]);
}

}  // namespace

// PARLEY_TEST_ROUNDS=N runs N of them, the first one with the number PARLEY_TEST_SEED.
TEST_CASE(
    "whatever ranges are sent and received in rounds, awaited or not, is what the rounds do one after the other") {
  const auto number = [](const char* name, std::uint64_t otherwise) {
    const char* const told = std::getenv(name);
    return told == nullptr ? otherwise : std::strtoull(told, nullptr, 10);
  };
  const std::uint64_t first = number("PARLEY_TEST_SEED", 1);
  const std::uint64_t count = number("PARLEY_TEST_ROUNDS", 500);
  for (std::uint64_t seed = first; seed < first + count; ++seed) check_rounds(seed);
}

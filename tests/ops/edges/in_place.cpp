// Exchanges in place: the sent and the received ranges share memory.
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
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using program = batch_program;

namespace {

constexpr time_ns second_ns = 1'000'000'000;

// Payloads above 4 KiB stay with their sender, so that a larger send ends only when its receive has been posted.
constexpr std::size_t stays_beyond = 4096;
const std::vector<std::size_t> sizes{1, 100, 128, 129, 4096, 4097, 100'000, 1'000'000};

memory_link_options links() {
  memory_link_options o;
  o.eager_bytes = stays_beyond;
  return o;
}
p2p_options op_named(std::string name) { return {.name = std::move(name), .configs = {direct()}}; }

using buffers = std::vector<std::vector<std::byte>>;

std::byte added(std::byte a, std::byte b) {
  return std::byte(std::to_integer<unsigned>(a) + std::to_integer<unsigned>(b));
}

// One buffer for each rank, each with its own content.
buffers one_each(rank_id ranks, std::size_t bytes) {
  buffers all;
  for (rank_id r = 0; r < ranks; ++r) all.push_back(pattern(bytes, 100 + r));
  return all;
}

// Runs the program on all ranks. Checks that all succeed, and well before any timeout.
std::vector<result<>> on_all(world& w, const program& each, const p2p_options& op) {
  const auto outcomes = run_each(w, std::vector<program>(w.ranks.size(), each), op);
  CHECK(w.clock.now() < second_ns);
  for (const auto& o : outcomes) CHECK_MESSAGE(o, (o ? "" : o.reason().what()));
  return outcomes;
}

enum class batches : std::uint8_t { one, two, one_each };

using operations = std::vector<p2p_operation>;

// Starts the sends and then the receives, in as many batches as `n` says.
flow_work exchange(dataflow& flow, p2p& pairs, const operations& outs, const operations& ins, batches n) {
  operations all = outs;
  all.insert(all.end(), ins.begin(), ins.end());
  if (n == batches::one) return pairs.start(flow, all);
  std::vector<flow_work> started;
  if (n == batches::two) {
    started.push_back(pairs.start(flow, outs));
    started.push_back(pairs.start(flow, ins));
  } else {
    for (const p2p_operation& o : all) started.push_back(pairs.start(flow, {o}));
  }
  return flow.together(started);
}
flow_work exchange(dataflow& flow, p2p& pairs, const p2p_operation& out, const p2p_operation& in, batches n) {
  return exchange(flow, pairs, operations{out}, operations{in}, n);
}

}  // namespace

TEST_CASE("buffers sent around a ring in place arrive at every size, in one batch and in two, even with one rank") {
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
          std::vector<flow_work> rounds;  // each starts before the one before it is awaited
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

TEST_CASE("several sends of a buffer and then as many receives into it deliver the right bytes at every size") {
  for (const rank_id ranks : {1U, 2U, 3U}) {
    for (const std::size_t bytes : {256U, 20'000U, 1'200'000U}) {
      for (const batches n : {batches::one, batches::two, batches::one_each}) {
        for (const std::uint32_t count : {2U, 3U, 16U}) {
          for (const bool one_tag : {true, false}) {
            CAPTURE(ranks);
            CAPTURE(bytes);
            CAPTURE(static_cast<int>(n));
            CAPTURE(count);
            CAPTURE(one_tag);
            world w(ranks, {}, links());
            buffers x = one_each(ranks, bytes);
            const buffers before = x;
            const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
              const rank_id me = self.id();
              std::vector<flow_work> rounds;
              for (int round = 0; round < 2; ++round) {
                operations outs;
                operations ins;
                for (std::uint32_t k = 0; k < count; ++k) {
                  const std::uint32_t tag = one_tag ? 0 : k;
                  outs.push_back(p2p::isend(x[me], {.to = (me + 1) % ranks, .tag = tag}));
                  ins.push_back(p2p::irecv(x[me], {.from = (me + ranks - 1) % ranks, .tag = tag}));
                }
                rounds.push_back(exchange(flow, pairs, outs, ins, n));
              }
              return end_of(flow.together(rounds));
            };
            on_all(w, each, op_named("several"));
            for (rank_id r = 0; r < ranks; ++r) CHECK(x[r] == before[(r + 2 * ranks - 2) % ranks]);
          }
        }
      }
    }
  }
}

TEST_CASE("a buffer sent to both neighbours and then received from both holds the message of the last receive") {
  for (const rank_id ranks : {2U, 3U, 4U}) {
    for (const std::size_t bytes : {256U, 20'000U}) {
      for (const batches n : {batches::one, batches::two, batches::one_each}) {
        for (const bool one_tag : {true, false}) {
          CAPTURE(ranks);
          CAPTURE(bytes);
          CAPTURE(static_cast<int>(n));
          CAPTURE(one_tag);
          world w(ranks, {}, links());
          buffers x = one_each(ranks, bytes);
          const buffers before = x;
          const std::uint32_t down = one_tag ? 0 : 1;
          const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
            auto& mine = x[self.id()];
            const rank_id next = (self.id() + 1) % ranks;
            const rank_id previous = (self.id() + ranks - 1) % ranks;
            return end_of(
                exchange(flow, pairs, {p2p::isend(mine, {.to = next}), p2p::isend(mine, {.to = previous, .tag = down})},
                         {p2p::irecv(mine, {.from = previous}), p2p::irecv(mine, {.from = next, .tag = down})}, n));
          };
          on_all(w, each, op_named("neighbours"));
          for (rank_id r = 0; r < ranks; ++r) CHECK(x[r] == before[(r + 1) % ranks]);
        }
      }
    }
  }
}

TEST_CASE("two ranks exchange a buffer several times with different tags in each direction") {
  for (const std::size_t bytes : {256U, 20'000U}) {
    for (const batches n : {batches::one, batches::two, batches::one_each}) {
      CAPTURE(bytes);
      CAPTURE(static_cast<int>(n));
      world w(2, {}, links());
      buffers x = one_each(2, bytes);
      const buffers before = x;
      const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
        const rank_id me = self.id();
        operations outs;
        operations ins;
        for (std::uint32_t k = 0; k < 4; ++k) {
          outs.push_back(p2p::isend(x[me], {.to = 1 - me, .tag = 10 * me + k}));
          ins.push_back(p2p::irecv(x[me], {.from = 1 - me, .tag = 10 * (1 - me) + k}));
        }
        return end_of(exchange(flow, pairs, outs, ins, n));
      };
      on_all(w, each, op_named("directions"));
      for (rank_id r = 0; r < 2; ++r) CHECK(x[r] == before[1 - r]);
    }
  }
}

TEST_CASE("messages from both neighbours received into one buffer are added to the buffer that was sent to both") {
  for (const rank_id ranks : {2U, 3U}) {
    for (const std::size_t bytes : {256U, 20'000U}) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      world w(ranks, {}, links());
      buffers x = one_each(ranks, bytes);
      buffers y(ranks, std::vector<std::byte>(bytes));
      buffers right = x;
      for (int round = 0; round < 3; ++round) {
        const buffers before = right;
        for (rank_id r = 0; r < ranks; ++r) {
          for (std::size_t i = 0; i < bytes; ++i)
            right[r][i] = added(added(right[r][i], before[(r + ranks - 1) % ranks][i]), before[(r + 1) % ranks][i]);
        }
      }
      const program each = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
        auto& mine = x[self.id()];
        auto& came = y[self.id()];
        const rank_id next = (self.id() + 1) % ranks;
        const rank_id previous = (self.id() + ranks - 1) % ranks;
        const auto add = [&mine, &came] { std::ranges::transform(mine, came, mine.begin(), added); };
        std::vector<flow_work> all;
        for (int round = 0; round < 3; ++round) {
          all.push_back(pairs.start(flow, {p2p::isend(mine, {.to = next, .tag = 1})}));
          all.push_back(pairs.start(flow, {p2p::isend(mine, {.to = previous, .tag = 2})}));
          all.push_back(pairs.start(flow, {p2p::irecv(came, {.from = previous, .tag = 1})}));
          all.push_back(flow.compute({reads(came), updates(mine)}, add));
          all.push_back(pairs.start(flow, {p2p::irecv(came, {.from = next, .tag = 2})}));
          all.push_back(flow.compute({reads(came), updates(mine)}, add));
        }
        return end_of(flow.together(all));
      };
      on_all(w, each, op_named("added"));
      for (rank_id r = 0; r < ranks; ++r) CHECK(x[r] == right[r]);
    }
  }
}

TEST_CASE("a send and a receive of ranges that overlap in part exchange the right bytes") {
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

TEST_CASE("a rank swaps the halves of a buffer with another rank and with itself, in either order of its receives") {
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

TEST_CASE("unawaited rounds that alternate two buffers copy nothing, with one tag and with one tag for each round") {
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

TEST_CASE("a computation on the memory of an exchange in place sees the content before the receive, or after it") {
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

TEST_CASE("a send that is listed after a receive of the same memory forwards the received message") {
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

TEST_CASE(
    "a send to oneself of memory that its own receive would write is refused, before anything of its batch begins") {
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
    // Accepted: halves that do not overlap, and a receive that an earlier send matches.
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

TEST_CASE("a send to oneself is refused at once if an earlier batch posted the receive that would write its memory") {
  for (const std::size_t bytes : {10U, 1000U, 100'000U}) {
    CAPTURE(bytes);
    world w(1, {}, links());
    std::vector<std::byte> x = pattern(bytes, 1);
    std::vector<std::byte> y = pattern(bytes, 2);
    const auto sent = pattern(bytes, 3);
    const std::size_t tenth = bytes / 10;
    const auto low = std::span(x).first(6 * tenth);
    const auto high = std::span(x).last(6 * tenth);
    const auto other = std::span(y).first(tenth);
    const program self = [&](dataflow& flow, ops::rank&, p2p& pairs) {
      const auto code_of = [&](const p2p_operation& o) {
        try {
          static_cast<void>(pairs.start(flow, {o}));
        } catch (const failure& f) {
          CHECK(std::string(f.what()).find("op own: a send to rank 0, tag") != std::string::npos);
          return f.code();
        }
        return errc::none;
      };
      std::vector<flow_work> all;
      all.push_back(pairs.start(flow, {p2p::irecv(low, {.from = 0, .tag = 7})}));
      CHECK(code_of(p2p::isend(high, {.to = 0, .tag = 7})) == errc::bad_argument);
      all.push_back(pairs.start(flow, {p2p::irecv(other, {.from = 0, .tag = 8})}));
      all.push_back(pairs.start(flow, {p2p::isend(other, {.to = 0, .tag = 9})}));
      all.push_back(pairs.start(flow, {p2p::irecv(high.last(tenth), {.from = 0, .tag = 9})}));
      CHECK(code_of(p2p::isend(high.last(1), {.to = 0, .tag = 8})) == errc::bad_argument);
      // The refused sends have not begun, so other sends match the receives.
      all.push_back(pairs.start(flow, {p2p::isend(std::span(sent).first(6 * tenth), {.to = 0, .tag = 7}),
                                       p2p::isend(std::span(sent).last(tenth), {.to = 0, .tag = 8})}));
      return end_of(flow.together(all));
    };
    on_all(w, self, op_named("own"));
    CHECK(std::ranges::equal(low, std::span(sent).first(6 * tenth)));
    CHECK(std::ranges::equal(high.last(tenth), std::span(sent).last(tenth)));
  }
}

TEST_CASE("a message for memory that a pending send still reads is delivered after that send has timed out") {
  world w(2, {}, links());
  auto op = op_named("alone");
  op.timeout = 20ms;
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

TEST_CASE(
    "a receive held back by a send of its memory can be cancelled after its message arrived, and writes nothing") {
  world w(2, {}, links());
  std::vector<std::byte> x = pattern(100'000, 1);
  const std::vector<std::byte> mine = x;
  const std::vector<std::byte> sent = pattern(100'000, 2);
  std::vector<result<>> ends;
  const auto cancelled = [](dataflow* flow, p2p pairs, std::vector<std::byte>* at, std::vector<result<>>* e) -> task<> {
    auto started = pairs.start(*flow, {p2p::isend(*at, {.to = 1, .tag = 5}), p2p::irecv(*at, {.from = 1})});
    auto slept = co_await sleep_until(50'000'000);  // by then the message has arrived
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

// All ranks run the same rounds. In a round, each rank sends ranges to other ranks or to itself, and then receives as many ranges in
// another order. If each operation is a batch of its own, the rank also adds one range to another after some of the receives. Each rank
// must see the result of the rounds done one after the other, whatever it awaits in between.
struct message {
  rank_id shift = 0;
  std::size_t from = 0, to = 0, length = 0;
  std::uint32_t tag = 0;
};
struct sum {
  std::size_t from = 0, to = 0, length = 0;  // length 0: no sum
};
struct round {
  std::vector<message> sent;
  std::vector<message> received;  // the messages of `sent`, in another order
  std::vector<sum> sums;          // sums[i] follows received[i]
  batches n = batches::one;
  bool awaited = false;
};
constexpr std::size_t round_bytes = 400;
constexpr std::uint32_t round_tags = 3;

std::vector<message> in_other_order(std::vector<message> all, random_stream& dice) {
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[dice.below(i)]);
  return all;
}

round any_round(rank_id ranks, std::uint64_t tags, random_stream& dice) {
  round r;
  r.n = static_cast<batches>(dice.below(3));
  r.awaited = dice.below(4) == 0;
  r.sent.resize(1 + (dice.below(2) == 0 ? 0 : dice.below(4)));
  for (message& m : r.sent) {
    m.shift = static_cast<rank_id>(dice.below(ranks));
    m.length = dice.below(round_bytes / 2);
    m.from = dice.below(round_bytes - m.length);
    m.to = dice.below(round_bytes - m.length);
    m.tag = static_cast<std::uint32_t>(dice.below(tags));
  }
  r.received = in_other_order(r.sent, dice);
  // Messages of one pair and tag are matched in the order in which they were posted.
  std::vector<bool> taken(r.sent.size());
  for (message& m : r.received) {
    std::size_t i = 0;
    while (taken[i] || r.sent[i].shift != m.shift || r.sent[i].tag != m.tag) ++i;
    taken[i] = true;
    m = r.sent[i];
  }
  r.sums.resize(r.received.size());
  for (sum& s : r.sums) {
    if (r.n != batches::one_each || dice.below(2) == 0) continue;
    s.length = dice.below(round_bytes / 2);
    s.from = dice.below(round_bytes / 2 - s.length);  // the two ranges do not overlap
    s.to = round_bytes / 2 + dice.below(round_bytes / 2 - s.length);
    if (dice.below(2) == 0) std::swap(s.from, s.to);
  }
  return r;
}

void add_range(std::span<std::byte> all, const sum& s) {
  for (std::size_t i = 0; i < s.length; ++i) all[s.to + i] = added(all[s.to + i], all[s.from + i]);
}

void do_round(const round& r, buffers& all) {
  const buffers before = all;
  const auto ranks = static_cast<rank_id>(all.size());
  for (rank_id me = 0; me < ranks; ++me) {
    for (std::size_t i = 0; i < r.received.size(); ++i) {
      const message& m = r.received[i];
      std::copy_n(before[(me + ranks - m.shift) % ranks].begin() + static_cast<std::ptrdiff_t>(m.from), m.length,
                  all[me].begin() + static_cast<std::ptrdiff_t>(m.to));
      add_range(all[me], r.sums[i]);
    }
  }
}

flow_work start_round(dataflow& flow, p2p& pairs, rank_id me, rank_id ranks, std::span<std::byte> mine,
                      const round& r) {
  operations outs;
  operations ins;
  for (const message& m : r.sent)
    outs.push_back(p2p::isend(mine.subspan(m.from, m.length), {.to = (me + m.shift) % ranks, .tag = m.tag}));
  for (const message& m : r.received)
    ins.push_back(p2p::irecv(mine.subspan(m.to, m.length), {.from = (me + ranks - m.shift) % ranks, .tag = m.tag}));
  if (r.n != batches::one_each) return exchange(flow, pairs, outs, ins, r.n);
  std::vector<flow_work> all;
  for (const p2p_operation& o : outs) all.push_back(pairs.start(flow, {o}));
  for (std::size_t i = 0; i < ins.size(); ++i) {
    all.push_back(pairs.start(flow, {ins[i]}));
    const sum& s = r.sums[i];
    if (s.length == 0) continue;
    all.push_back(flow.compute({reads(mine.subspan(s.from, s.length)), updates(mine.subspan(s.to, s.length))},
                               [mine, &s] { add_range(mine, s); }));
  }
  return flow.together(all);
}

// Adds a round in which all ranks receive under each tag. A rank that has never received under a tag does not follow computations when it
// decides whether a receive would wait for a send with that tag (p2p.hpp).
void show_tags(rank_id ranks, std::uint64_t tags, std::vector<round>& rounds) {
  round& first = rounds.emplace_back();
  for (rank_id shift = 0; shift < ranks; ++shift) {
    for (std::uint32_t tag = 0; tag < tags; ++tag) first.sent.push_back({.shift = shift, .tag = tag});
  }
  first.received = first.sent;
  first.sums.resize(first.received.size());
}

void check_rounds(std::uint64_t seed) {
  CAPTURE(seed);
  random_stream dice(seed, 21);
  const auto ranks = static_cast<rank_id>(1 + dice.below(4));
  const std::uint64_t tags = 1 + dice.below(round_tags);
  std::vector<round> rounds;
  show_tags(ranks, tags, rounds);
  for (std::uint64_t left = 1 + dice.below(8); left > 0; --left) rounds.push_back(any_round(ranks, tags, dice));
  buffers x = one_each(ranks, round_bytes);
  buffers right = x;
  for (const round& r : rounds) do_round(r, right);
  memory_link_options o = links();
  o.eager_bytes = 64;
  o.short_bytes = 32;
  const auto late = static_cast<rank_id>(dice.below(2 * ranks));
  o.delay = [late](rank_id from, rank_id, link::channel) { return from == late ? 30'000 : 0; };
  world w(ranks, {}, std::move(o));
  const auto run = [](dataflow* flow, p2p pairs, rank_id me, rank_id size, std::span<std::byte> mine,
                      const std::vector<round>* all) -> task<> {
    for (const round& r : *all) {
      auto moved = start_round(*flow, pairs, me, size, mine, r);
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

// PARLEY_TEST_ROUNDS=N runs N seeds (default 500), and PARLEY_TEST_SEED is the first one (default 1).
TEST_CASE(
    "random rounds of sends and receives, awaited or not, give the result of the rounds done one after the other") {
  const auto number = [](const char* name, std::uint64_t otherwise) {
    const char* const told = std::getenv(name);
    return told == nullptr ? otherwise : std::strtoull(told, nullptr, 10);
  };
  const std::uint64_t first = number("PARLEY_TEST_SEED", 1);
  const std::uint64_t count = number("PARLEY_TEST_ROUNDS", 500);
  for (std::uint64_t seed = first; seed < first + count; ++seed) check_rounds(seed);
}

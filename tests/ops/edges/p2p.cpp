#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/cases/ring_case.hpp>
#include <parley/tests/support/errors.hpp>

#include <parley/config.hpp>
#include <parley/p2p.hpp>

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::ring_case;
using program = batch_program;

static_assert(!std::is_copy_constructible_v<flow_work> && std::is_nothrow_move_constructible_v<flow_work>,
              "the work of a batch, and of each of its operations, has one owner");

namespace {

// Runs the ring once on `world_size` ranks, and returns each rank's kernel.
std::vector<kernel> ring_of(rank_id world_size, ring_options o = {}, std::size_t n = 1,
                            memory_link_options links = {}) {
  world w(world_size, {}, std::move(links));
  std::vector<kernel> kernels;
  for (rank_id r = 0; r < world_size; ++r) {
    kernels.emplace_back(n);
    for (std::size_t i = 0; i < n; ++i)
      kernels[r].x0[i] = n == 1 ? static_cast<float>(r) : static_cast<float>((17 * r + i) % 512);
  }
  scope all(w.clock);
  for (rank_id r = 0; r < world_size; ++r)
    all.spawn(with_dataflow(two_rounds, &w[r], p2p(w[r], pairs_named("ring")), &kernels[r], o));
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(all.cancelled() == errc::none);
  CHECK(join_flights(w).mismatches == 0);
  return kernels;
}

std::vector<float> outs(const std::vector<kernel>& all) {
  std::vector<float> out;
  for (const kernel& k : all) out.push_back(k.out[0]);
  return out;
}

}  // namespace

TEST_CASE("the two-round ring gives exact results in every order of posting, whichever rank is late") {
  for (std::uint64_t orders = 0; orders < 16; ++orders) {
    CHECK(outs(ring_of(4, {.receives_first = orders})) == right_of_four);
    if (orders < 4)
      CHECK(outs(ring_of(2, {.receives_first = orders})) == std::vector<float>{5.00048828125F, 5.000732421875F});
    for (rank_id late = 0; late < 4; ++late)
      CHECK(outs(ring_of(4, {.receives_first = orders, .late_rank = late, .late_ns = 50'000'000})) == right_of_four);
  }
  const auto all = ring_of(4);
  for (rank_id r = 0; r < 4; ++r) CHECK(all[r].a[0] == std::array{4.0F, 3.0F, 6.0F, 9.0F}[r]);
}

TEST_CASE("the two-round ring gives exact results for one rank that sends to itself, and for 16 to 64 ranks") {
  const auto alone = ring_of(1);
  CHECK(alone[0].out[0] == (2 + 1 / 4096.0F) * (3 * 0.0F + 1));
  for (const rank_id ranks : {16, 32, 64}) {
    CAPTURE(ranks);
    const auto many = ring_of(ranks);
    double total = 0;
    for (const kernel& k : many) total += k.out[0];
    const rank_id sum_of_ranks = ranks * (ranks - 1) / 2;
    CHECK(total == (2 + 1 / 4096.0) * (3 * sum_of_ranks + ranks));
  }
}

TEST_CASE("the two-round ring gives the right sums with a million elements on each rank") {
  for (const rank_id size : {rank_id{2}, rank_id{4}}) {
    for (const kernel& k : ring_of(size, {}, 1'048'576))
      CHECK(std::accumulate(k.out.begin(), k.out.end(), 0.0) == 1'609'760'640.0);
  }
}

TEST_CASE("a step that does not name a buffer reads it too early, with exactly the predicted wrong results") {
  CHECK(outs(ring_of(4, {.what = lacks::reading_y1})) ==
        std::vector<float>{4.0009765625F, 3.000732421875F, 6.00146484375F, 9.002197265625F});
  CHECK(outs(ring_of(4, {.what = lacks::reading_y0})) ==
        std::vector<float>{8.000244140625F, 4.000732421875F, 8.001220703125F, 12.001708984375F});
}

namespace {

task<> in_the_order_of_a_queue(dataflow* flow, p2p pairs, std::array<int, 2>* came, std::array<int, 2>* seen) {
  compute_queue queue;
  auto before = flow->compute({}, [came, seen] { (*seen)[0] = (*came)[0]; }, {.queue = &queue});
  auto batch = pairs.start(*flow, {p2p::irecv(std::span(&(*came)[0], 1), {.from = 0, .tag = 0}),
                                   p2p::irecv(std::span(&(*came)[1], 1), {.from = 0, .tag = 1})});
  batch.wait_on(queue);
  auto after = flow->compute({}, [came, seen] { (*seen)[1] = (*came)[0] + (*came)[1]; }, {.queue = &queue});
  co_await before;
  CHECK((*seen)[0] == 0);
  co_await after;
}

}  // namespace

TEST_CASE("a computation in a queue that waits on a batch runs after the whole batch, without naming a buffer") {
  world w(2);
  const std::array<int, 2> sent{3, 4};
  std::array<int, 2> came{};
  std::array<int, 2> seen{9, 9};
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::isend(std::span(&sent[0], 1), {.to = 1, .tag = 0}),
                                     p2p::isend(std::span(&sent[1], 1), {.to = 1, .tag = 1})}));
  };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return in_the_order_of_a_queue(&flow, pairs, &came, &seen);
  };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("queued"))) CHECK(o);
  CHECK(seen[1] == 7);
}

TEST_CASE("several messages of a batch are matched by their tags, and a program can wait for one operation alone") {
  world w(2);
  std::array<int, 3> sent{10, 11, 12};
  std::array<int, 3> got{};
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    auto batch = pairs.start(flow, {p2p::isend(std::span(&sent[0], 1), {.to = 1, .tag = 5}),
                                    p2p::isend(std::span(&sent[1], 1), {.to = 1, .tag = 6}),
                                    p2p::isend(std::span(&sent[2], 1), {.to = 1, .tag = 5})});
    return end_of(std::move(batch));
  };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    auto batch = pairs.start(flow, {p2p::irecv(std::span(&got[1], 1), {.from = 0, .tag = 6}),
                                    p2p::irecv(std::span(&got[0], 1), {.from = 0, .tag = 5}),
                                    p2p::irecv(std::span(&got[2], 1), {.from = 0, .tag = 5})});
    return end_of(batch[2]);
  };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("tags"))) CHECK(o);
  CHECK(got == sent);
}

namespace {
task<> send_short_ones(dataflow* flow, p2p pairs, std::array<int, 3>* sent) {
  auto batch = pairs.start(*flow, {p2p::isend(std::span(&(*sent)[0], 1), {.to = 1, .tag = 1}),
                                   p2p::isend(std::span(&(*sent)[1], 1), {.to = 1, .tag = 2})});
  CHECK(flow->running() == 0);
  CHECK(batch.done());
  CHECK(batch.size() == 2);
  CHECK(batch.bytes() == 8);
  CHECK(batch[1].bytes() == 4);
  *sent = {0, 0, 12};  // the sends have left, so the program may write
  auto made = flow->compute({writes(std::span(&(*sent)[2], 1))}, [sent] { (*sent)[2] = 13; }, {.modelled_ns = 1000});
  auto waits = pairs.start(*flow, {p2p::isend(std::span(&(*sent)[2], 1), {.to = 1, .tag = 1})});
  CHECK_FALSE(waits.done());
  co_await waits;
  CHECK(waits.bytes() == 4);
}
}  // namespace

TEST_CASE("a short send without dependencies has left when its batch is started, and its buffer is free") {
  world w(2);
  std::array<int, 3> sent{10, 11, 12};
  std::array<int, 3> got{};
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) { return send_short_ones(&flow, pairs, &sent); };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::irecv(std::span(&got[0], 1), {.from = 0, .tag = 1}),
                                     p2p::irecv(std::span(&got[1], 1), {.from = 0, .tag = 2}),
                                     p2p::irecv(std::span(&got[2], 1), {.from = 0, .tag = 1})}));
  };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("short"))) CHECK(o);
  CHECK(got == std::array{10, 11, 13});
}

TEST_CASE("a send of more than 128 bytes counts as copied, but only if its link accepts it as a short message") {
  for (const std::size_t bytes : {128U, 129U, 2048U, 2049U}) {
    CAPTURE(bytes);
    memory_link_options links;
    links.short_bytes = 2048;
    world w(2, {}, std::move(links));
    const std::vector<std::byte> sent = pattern(bytes, 7);
    std::vector<std::byte> got(bytes);
    std::vector<p2p> used(2);
    const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
      used[0] = pairs;
      auto batch = pairs.start(flow, {p2p::isend(sent, {.to = 1})});
      CHECK((flow.running() == 0) == batch.done());
      return end_of(std::move(batch));
    };
    const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
      used[1] = pairs;
      return end_of(pairs.start(flow, {p2p::irecv(got, {.from = 0})}));
    };
    for (const auto& o : run_each(w, {sender, receiver}, pairs_named("copied"))) CHECK(o);
    CHECK(got == sent);
    CHECK(used[0].copied_bytes() == (bytes > 128 && bytes <= 2048 ? bytes : 0));
  }
}

namespace {
task<> send_while_it_breaks(dataflow* flow, p2p pairs, bool* broken, std::vector<result<>>* ends) {
  const std::array sent{1, 2};
  auto goes = pairs.start(*flow, {p2p::isend(sent, {.to = 1, .tag = 9})});
  co_await goes;
  *broken = true;
  auto fails = pairs.start(*flow, {p2p::isend(sent, {.to = 1, .tag = 9})});
  CHECK(fails.bytes() == 0);
  ends->push_back(co_await outcome_of(std::move(fails)));
  *broken = false;
  auto again = pairs.start(*flow, {p2p::isend(sent, {.to = 1, .tag = 9})});
  ends->push_back(co_await outcome_of(std::move(again)));
}
}  // namespace

TEST_CASE("a short send that the transport refuses fails and names its invocation, and the next send succeeds") {
  bool broken = false;
  memory_link_options links;
  links.breaks = [&](rank_id from, rank_id, link::channel on) {
    return broken && from == 0 && on == link::channel::data;
  };
  world w(2, {}, std::move(links));
  std::vector<result<>> ends;
  std::array<int, 2> got{};
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return send_while_it_breaks(&flow, pairs, &broken, &ends);
  };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::irecv(got, {.from = 0, .tag = 9})}));
  };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("breaking"))) CHECK(o);
  REQUIRE(ends.size() == 2);
  CHECK(is(ends[0], {.code = errc::peer_failed, .op = "breaking 0->1", .rank = 0, .role = "sender", .invocation = 1}));
  CHECK(ends[1]);
  CHECK(got == std::array{1, 2});
}

TEST_CASE("a send that waits for its data keeps its place among the messages of its tag") {
  world w(2);
  std::array<int, 2> sent{0, 11};
  std::array<int, 2> got{};
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    auto made = flow.compute({writes(std::span(&sent[0], 1))}, [&sent] { sent[0] = 10; }, {.modelled_ns = 5'000'000});
    auto batch = pairs.start(
        flow, {p2p::isend(std::span(&sent[0], 1), {.to = 1}), p2p::isend(std::span(&sent[1], 1), {.to = 1})});
    return end_of(std::move(batch));
  };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    // A computation uses the first buffer for longer than the message takes to arrive.
    auto used = flow.compute({reads(std::span(&got[0], 1))}, [] {}, {.modelled_ns = 9'000'000});
    auto batch = pairs.start(
        flow, {p2p::irecv(std::span(&got[0], 1), {.from = 0}), p2p::irecv(std::span(&got[1], 1), {.from = 0})});
    return end_of(std::move(batch));
  };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("order"))) CHECK(o);
  CHECK(got == std::array{10, 11});
}

TEST_CASE("a rank sends to itself with one copy, in either order, and writes nothing if the receive is too small") {
  world w(1);
  const std::vector<int> sent{1, 2, 3};
  std::vector<int> got(3);
  std::vector<int> again(5);
  std::vector<int> small{7, 7};
  p2p used;
  const program self = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    used = pairs;
    std::vector<flow_work> all;
    all.push_back(pairs.start(flow, {p2p::isend(sent, {.to = 0}), p2p::irecv(got, {.from = 0})}));
    all.push_back(pairs.start(flow, {p2p::irecv(again, {.from = 0, .tag = 1}), p2p::isend(sent, {.to = 0, .tag = 1}),
                                     p2p::isend(std::span<const int>(), {.to = 0, .tag = 2}),
                                     p2p::irecv(std::span<int>(), {.from = 0, .tag = 2})}));
    all.push_back(pairs.start(flow, {p2p::irecv(small, {.from = 0, .tag = 3}), p2p::isend(sent, {.to = 0, .tag = 3})}));
    return end_of(flow.together(all));
  };
  const auto outcomes = run_each(w, {self}, pairs_named("self"));
  CHECK(is(outcomes[0], {.code = errc::buffer_too_small,
                         .op = "self",
                         .rank = 0,
                         .peer = 0,
                         .tag = 3,
                         .whole_bytes = 12,
                         .own_bytes = 8}));
  CHECK(got == sent);
  CHECK(again == std::vector<int>{1, 2, 3, 0, 0});
  CHECK(small == std::vector<int>{7, 7});
  CHECK(used.copied_bytes() == 2 * 12);
}

TEST_CASE("tags that are no longer used are forgotten, including those of sends to oneself") {
  world w(2);
  const auto op = p2p_options{.name = "pairs", .configs = {direct()}};
  const program each = [](dataflow& flow, ops::rank& self, p2p& pairs) -> task<> {
    std::vector<std::byte> out(8), in(8), own(8);
    const rank_id other = 1 - self.id();
    for (std::uint32_t tag = 0; tag < 1000; ++tag) {
      auto moved = pairs.start(
          flow, {pairs.isend(out, {.to = other, .tag = tag}), pairs.irecv(in, {.from = other, .tag = tag}),
                 pairs.isend(out, {.to = self.id(), .tag = tag}), pairs.irecv(own, {.from = self.id(), .tag = tag})});
      co_await moved;
      CHECK(pairs.known_tags() < 300);
    }
  };
  for (const auto& outcome : run_each(w, {each, each}, op)) CHECK(outcome);
}

TEST_CASE("the receiver copies and counts a short message, and gets a long one directly in the caller's buffer") {
  world w(2);
  const std::vector<std::byte> sent(100'000, std::byte{3});
  std::vector<std::byte> got(100'000);
  std::vector<p2p> used(2);
  const auto exchange = [&](std::size_t bytes) {
    return [&, bytes](dataflow& flow, ops::rank& self, p2p& pairs) {
      used[self.id()] = pairs;
      std::vector<flow_work> all;
      const auto part = std::span(sent).first(bytes);
      if (self.id() == 0) all.push_back(pairs.start(flow, {p2p::isend(part, {.to = 1})}));
      if (self.id() == 1) all.push_back(pairs.start(flow, {p2p::irecv(std::span(got).first(bytes), {.from = 0})}));
      return end_of(flow.together(all));
    };
  };
  p2p_options op = pairs_named("long");
  op.configs = {direct()};
  for (const auto& o : run_each(w, {exchange(100'000), exchange(100'000)}, op)) CHECK(o);
  CHECK(used[1].copied_bytes() == 0);
  op.name = "short";
  for (const auto& o : run_each(w, {exchange(1'000), exchange(1'000)}, op)) CHECK(o);
  CHECK(used[1].copied_bytes() == 1'000);
  CHECK(used[0].copied_bytes() == 0);
}

TEST_CASE("batches may differ from rank to rank, skip ranks and hold empty messages") {
  world w(4);
  std::array<std::array<int, 4>, 4> got{};
  std::array<int, 4> values{100, 101, 102, 103};
  // Rank 0 sends to all others, rank 1 to nobody, rank 2 to 0 and 3, and rank 3 sends an empty message to 1.
  const std::array<std::vector<rank_id>, 4> goes_to{std::vector<rank_id>{1, 2, 3}, {}, {0, 3}, {1}};
  std::vector<program> programs;
  for (rank_id r = 0; r < 4; ++r) {
    programs.emplace_back([&, r](dataflow& flow, ops::rank&, p2p& pairs) {
      std::vector<p2p_operation> batch;
      for (rank_id from = 0; from < 4; ++from) {
        const auto& all = goes_to[from];
        if (std::find(all.begin(), all.end(), r) == all.end()) continue;
        batch.push_back(p2p::irecv(std::span(&got[r][from], from == 3 ? 0 : 1), {.from = from}));
      }
      for (const rank_id to : goes_to[r])
        batch.push_back(p2p::isend(std::span(&values[r], r == 3 ? 0 : 1), {.to = to}));
      return end_of(pairs.start(flow, batch));
    });
  }
  for (const auto& o : run_each(w, programs, pairs_named("skips"))) CHECK(o);
  for (rank_id from = 0; from < 3; ++from) {
    for (const rank_id to : goes_to[from]) CHECK(got[to][from] == values[from]);
  }
  CHECK(got[1][3] == 0);
}

TEST_CASE("an op of some ranks exchanges messages among them; on all other ranks it is idle and refuses batches") {
  world w(4);
  auto op = pairs_named("some");
  op.ranks = {1, 3};
  std::array<int, 4> values{0, 11, 0, 13};
  std::array<int, 4> got{};
  std::vector<program> programs;
  for (rank_id r = 0; r < 4; ++r) {
    programs.emplace_back([&, r](dataflow& flow, ops::rank&, p2p& pairs) {
      CHECK(pairs.idle() == (r % 2 == 0));
      const rank_id other = r == 1 ? 3 : 1;
      return end_of(pairs.start(flow, {p2p::isend(std::span(&values[r], 1), {.to = other}),
                                       p2p::irecv(std::span(&got[r], 1), {.from = other})}));
    });
  }
  const auto outcomes = run_each(w, programs, op);
  CHECK(says(outcomes[0], "op some: this rank has no part in it"));
  CHECK(outcomes[1]);
  CHECK(outcomes[3]);
  CHECK(got == std::array{0, 13, 0, 11});
  CHECK(w[2].flow_messages() == 0);
}

TEST_CASE("a receive from a rank without an edge is refused by name, and a receive of an unsent tag times out with "
          "that tag") {
  world w(3);
  auto op = pairs_named("orphans");
  op.timeout = 40ms;
  op.edges = {{0, 1}};
  int value = 5;
  int got = 7;
  int other = 8;
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return end_of(pairs.start(flow, {p2p::isend(std::span(&value, 1), {.to = 1, .tag = 1})}));
  };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    CHECK_THROWS_WITH_AS(
        static_cast<void>(pairs.start(flow, {p2p::irecv(std::span(&other, 1), {.from = 2})})),
        "bad_argument: op orphans: rank 1 does not receive from rank 2; check `from`: it receives from rank 0",
        failure);
    return end_of(pairs.start(flow, {p2p::irecv(std::span(&other, 1), {.from = 0, .tag = 1}),
                                     p2p::irecv(std::span(&got, 1), {.from = 0, .tag = 2})}));
  };
  const auto outcomes = run_each(w, {sender, receiver}, op);
  CHECK(outcomes[0]);
  CHECK(is(outcomes[1], {.code = errc::timeout, .op = "orphans 0->1", .rank = 1, .peer = 0, .tag = 2}));
  CHECK(got == 7);
  CHECK(other == 5);
}

TEST_CASE("a message lost with a dead rank fails the computation that needs it, and no other") {
  world w(2);
  int got = 7;
  int sum = 0;
  bool beside = false;
  const program receiver = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
    auto came = pairs.start(flow, {p2p::irecv(std::span(&got, 1), {.from = 0})});
    auto other = flow.compute({}, [&beside] { beside = true; }, {.modelled_ns = 5'000'000});
    self.where().post([&self] { self.on_lost(0, "was killed"); });
    return end_of(flow.compute({reads(std::span(&got, 1))}, [&sum, &got] { sum += got; }, {.name = "the sum"}));
  };
  const program nothing = [](dataflow& flow, ops::rank&, p2p&) {
    return end_of(flow.together(std::vector<flow_work>()));
  };
  const auto outcomes = run_each(w, {nothing, receiver}, pairs_named("deaths"));
  CHECK(is(outcomes[1], {.code = errc::peer_failed,
                         .op = "deaths 0->1",
                         .rank = 1,
                         .begun = false,
                         .peer = 0,
                         .tag = 0,
                         .unmet = awaited::message,
                         .culprit = 0,
                         .quotes = "the sum"}));
  CHECK(sum == 0);
  CHECK(beside);
}

TEST_CASE("a program without coroutines can test a batch and wait for it") {
  world w(2);
  std::vector<float> sent(10'000, 1.5F);
  std::vector<float> got(10'000);
  p2p left(w[0], pairs_named("plain"));
  p2p right(w[1], pairs_named("plain"));
  dataflow flow(w.clock);
  auto out = left.start(flow, {p2p::isend(sent, {.to = 1})});
  auto in = right.start(flow, {p2p::irecv(got, {.from = 0})});
  while (!in.test()) w.clock.wait();
  in.wait();
  out.wait();
  CHECK(got == sent);
  CHECK(in.bytes() == 40'000);
}

TEST_CASE("a batch starts after the work in its compute queue, and fails at its time-out") {
  world w(2);
  int sent = 0;
  int got = 0;
  int never_sent = 0;
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    compute_queue queue;
    auto made = flow.compute({}, [&sent] { sent = 42; }, {.queue = &queue, .modelled_ns = 3'000'000});
    return end_of(pairs.start(flow, {p2p::isend(std::span(&sent, 1), {.to = 1})}, {.after = &queue}));
  };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    auto late = pairs.start(
        flow,
        {p2p::irecv(std::span(&got, 1), {.from = 0}), p2p::irecv(std::span(&never_sent, 1), {.from = 0, .tag = 9})},
        {.timeout = 20ms});
    return end_of(std::move(late));
  };
  const auto outcomes = run_each(w, {sender, receiver}, pairs_named("queue"));
  CHECK(outcomes[0]);
  CHECK(got == 42);
  CHECK(outcomes[1].code() == errc::timeout);
  CHECK(w.clock.now() < 30'000'000);
}

TEST_CASE("every pair tunes itself while batches flow") {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  world w(3, s);
  std::vector<std::vector<float>> out(3, std::vector<float>(25'000, 1.0F));
  std::vector<std::vector<float>> in(3, std::vector<float>(25'000));
  const auto many = [&](rank_id r) -> program {
    return [&, r](dataflow& flow, ops::rank&, p2p& pairs) {
      std::vector<flow_work> all;
      for (int i = 0; i < 200; ++i)
        all.push_back(
            pairs.start(flow, {p2p::isend(out[r], {.to = (r + 1) % 3}), p2p::irecv(in[r], {.from = (r + 2) % 3})}));
      return end_of(flow.together(all));
    };
  };
  for (const auto& o : run_each(w, {many(0), many(1), many(2)}, pairs_named("tuned"))) CHECK(o);
  CHECK(join_flights(w).mismatches == 0);
  for (rank_id r = 0; r < 3; ++r) {
    const auto* search = search_of(w, "128KiB", r);
    REQUIRE(search != nullptr);
    CHECK(search->is_decided());
  }
}

TEST_CASE("impossible p2p declarations are refused and the reason names the wrong rank or edge") {
  world w(2);
  auto op = pairs_named("bad");
  op.ranks = {0, 2};
  CHECK_THROWS_WITH_AS(p2p(w[0], op), "bad_argument: op bad: its ranks name rank 2, which is outside the world of 2",
                       failure);
  op.ranks = {0, 0};
  CHECK_THROWS_WITH_AS(p2p(w[0], op), "bad_argument: op bad: its ranks name rank 0 twice", failure);
  op.ranks = {};
  op.edges = {{0, 5}};
  CHECK_THROWS_WITH_AS(p2p(w[0], op), "bad_argument: op bad: edge 0->5 names a rank outside the world of 2", failure);
  op.edges = {{0, 1}, {0, 1}};
  CHECK_THROWS_AS(p2p(w[0], op), failure);
  op.ranks = {0};
  op.edges = {{0, 1}};
  CHECK_THROWS_WITH_AS(p2p(w[0], op), "bad_argument: op bad: edge 0->1 names a rank that is not one of the op's",
                       failure);
}

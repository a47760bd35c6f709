// Batches that end early: their callers cancel them, they time out, a peer never comes, or a receive has too small a buffer.
#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/cases/ring_case.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/guarded.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/p2p.hpp>

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::ring_case;
using program = batch_program;

namespace {

constexpr time_ns ms = 1'000'000;

task<> nothing(dataflow&, ops::rank&, p2p&) { co_return; }

task<> rest(time_ns span) {
  auto woken = co_await sleep_for(std::chrono::nanoseconds(span));
  static_cast<void>(woken);
}

// How and when a work ended.
struct ending {
  result<> outcome = errc::pending;
  time_ns at_ns = 0;
};
task<> note(const flow_work* work, ending* into) {
  std::exception_ptr thrown;
  try {
    co_await *work;
  } catch (...) {
    thrown = std::current_exception();
  }
  scope& here = co_await this_scope;
  into->at_ns = here.where().now();
  into->outcome = thrown ? result<>(describe(thrown)) : result<>();
}

// Notes the end of each operation of a batch, and that of the whole batch.
task<> note_each(const flow_work* batch, std::vector<ending>* each, ending* whole) {
  scope& here = co_await this_scope;
  std::vector<flow_work> parts;
  for (std::size_t i = 0; i < batch->size(); ++i) parts.push_back((*batch)[i]);
  each->resize(parts.size());
  scope all(here);
  for (std::size_t i = 0; i < parts.size(); ++i) all.spawn(note(&parts[i], &(*each)[i]));
  all.spawn(note(batch, whole));
  co_await all.join();
}

bool holds(std::span<const std::byte> bytes, const std::vector<std::byte>& what) {
  return bytes.size() >= what.size() && std::equal(what.begin(), what.end(), bytes.begin());
}

}  // namespace

// ---- cancellation -----------------------------------------------------------------------------------------------------

namespace {

struct receives {
  std::array<int, 3> got{7, 7, 7};
  std::vector<ending> each;
  ending whole;
  int again = 7;
  result<> outcome_again = errc::pending;
};

task<> cancel_one(dataflow* flow, p2p pairs, receives* r) {
  auto batch = pairs.start(*flow, {p2p::irecv(std::span(&r->got[0], 1), {.from = 0, .tag = 1}),
                                   p2p::irecv(std::span(&r->got[1], 1), {.from = 0, .tag = 2})});
  scope& here = co_await this_scope;
  scope all(here);
  all.spawn(note_each(&batch, &r->each, &r->whole));
  co_await rest(ms);
  batch[0].cancel();
  co_await all.join();
  co_await rest(20 * ms);  // meanwhile the message of tag 1 arrives
  auto later = pairs.start(*flow, {p2p::irecv(std::span(&r->again, 1), {.from = 0, .tag = 1})});
  co_await later;
}

task<> send_late(dataflow* flow, p2p pairs, std::array<int, 2>* values) {
  auto soon = pairs.start(*flow, {p2p::isend(std::span(&(*values)[1], 1), {.to = 1, .tag = 2})});
  co_await soon;
  co_await rest(10 * ms);
  auto late = pairs.start(*flow, {p2p::isend(std::span(&(*values)[0], 1), {.to = 1, .tag = 1})});
  co_await late;
}

}  // namespace

TEST_CASE("cancelling one operation of a batch leaves the others running, and a later receive gets its message") {
  world w(2);
  std::array<int, 2> values{11, 12};
  receives r;
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) { return send_late(&flow, pairs, &values); };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) { return cancel_one(&flow, pairs, &r); };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("cancelled")))
    CHECK((o ? "" : o.reason().what()) == "");
  REQUIRE(r.each.size() == 2);
  CHECK(r.each[0].outcome.code() == errc::cancelled);
  CHECK(r.each[0].at_ns == ms);
  CHECK(r.each[1].outcome);
  CHECK(r.whole.outcome.code() == errc::cancelled);
  CHECK(r.got == std::array{7, 12, 7});
  CHECK(r.again == 11);
}

namespace {

task<> cancel_all(dataflow* flow, p2p pairs, receives* r, rank_id self) {
  auto batch = pairs.start(*flow, {p2p::irecv(std::span(&r->got[0], 1), {.from = 1 - self, .tag = 1}),
                                   p2p::irecv(std::span(&r->got[1], 1), {.from = 1 - self, .tag = 2}),
                                   p2p::irecv(std::span(&r->got[2], 1), {.from = self, .tag = 3})});
  auto other = pairs.start(*flow, {p2p::irecv(std::span(&r->again, 1), {.from = 1 - self, .tag = 4})});
  scope& here = co_await this_scope;
  scope all(here);
  all.spawn(note_each(&batch, &r->each, &r->whole));
  co_await rest(ms);
  batch.cancel();
  co_await all.join();
  ending came;
  co_await note(&other, &came);
  r->outcome_again = came.outcome;
}

task<> send_one_late(dataflow* flow, p2p pairs, const int* value) {
  co_await rest(10 * ms);
  auto late = pairs.start(*flow, {p2p::isend(std::span(value, 1), {.to = 1, .tag = 4})});
  co_await late;
}

}  // namespace

TEST_CASE("cancelling a batch ends all of its operations at once, and another batch continues") {
  world w(2);
  const int value = 14;
  receives r;
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) { return send_one_late(&flow, pairs, &value); };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) { return cancel_all(&flow, pairs, &r, 1); };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("cancelled")))
    CHECK((o ? "" : o.reason().what()) == "");
  REQUIRE(r.each.size() == 3);
  for (const ending& e : r.each) {
    CHECK(e.outcome.code() == errc::cancelled);
    CHECK(e.at_ns == ms);
  }
  CHECK(r.whole.outcome.code() == errc::cancelled);
  CHECK(r.got == std::array{7, 7, 7});
  CHECK(r.outcome_again);
  CHECK(r.again == 14);
}

namespace {

struct large_send {
  std::vector<std::byte> data = pattern(100'000, 1);
  std::vector<std::byte> next = pattern(100'000, 2);
  std::vector<std::byte> into = std::vector<std::byte>(100'000);
  std::vector<std::byte> into_next = std::vector<std::byte>(100'000);
  ending sent;
  ending received;
};

task<> cancel_send(dataflow* flow, p2p pairs, large_send* s) {
  auto batch = pairs.start(*flow, {p2p::isend(s->data, {.to = 1})});
  scope& here = co_await this_scope;
  scope all(here);
  all.spawn(note(&batch, &s->sent));
  co_await rest(ms);
  batch.cancel();
  co_await all.join();
  auto next = pairs.start(*flow, {p2p::isend(s->next, {.to = 1})});
  co_await next;
}

task<> receive_late(dataflow* flow, p2p pairs, large_send* s) {
  co_await rest(10 * ms);
  auto first = pairs.start(*flow, {p2p::irecv(s->into, {.from = 0})});
  co_await note(&first, &s->received);
  auto next = pairs.start(*flow, {p2p::irecv(s->into_next, {.from = 0})});
  co_await next;
}

}  // namespace

TEST_CASE("a receive posted after its send was cancelled gets send_failed, and the next message arrives whole") {
  for (const auto& config : {direct(), chunked(16_KiB, 2)}) {  // for 100 kB: a small payload leaves at once
    CAPTURE(config->id());
    world w(2);
    auto op = pairs_named("sends");
    op.configs = {config};
    large_send s;
    const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) { return cancel_send(&flow, pairs, &s); };
    const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) { return receive_late(&flow, pairs, &s); };
    for (const auto& o : run_each(w, {sender, receiver}, op)) CHECK((o ? "" : o.reason().what()) == "");
    CHECK(s.sent.outcome.code() == errc::cancelled);
    CHECK(s.sent.at_ns < 12 * ms);
    CHECK(is(s.received.outcome, {.code = errc::send_failed, .op = "sends 0->1"}));
    CHECK(s.into_next == s.next);
  }
}

// ---- deadlines --------------------------------------------------------------------------------------------------------

namespace {

task<> receive_in_time(dataflow* flow, p2p pairs, receives* r) {
  auto batch = pairs.start(
      *flow,
      {p2p::irecv(std::span(&r->got[0], 1), {.from = 0, .tag = 1, .timeout = std::chrono::nanoseconds(10 * ms)}),
       p2p::irecv(std::span(&r->got[1], 1), {.from = 0, .tag = 2, .timeout = std::chrono::nanoseconds(30 * ms)}),
       p2p::irecv(std::span(&r->got[2], 1), {.from = 0, .tag = 3})},
      {.timeout = std::chrono::nanoseconds(40 * ms)});
  co_await note_each(&batch, &r->each, &r->whole);
}

task<> send_after(dataflow* flow, p2p pairs, const int* value, time_ns span) {
  co_await rest(span);
  auto late = pairs.start(*flow, {p2p::isend(std::span(value, 1), {.to = 1, .tag = 2})});
  co_await late;
}

}  // namespace

TEST_CASE(
    "an operation ends at its own deadline or at its batch's, and a message that arrived in time stays received") {
  world w(2);
  const int value = 12;
  receives r;
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return send_after(&flow, pairs, &value, 20 * ms);
  };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) { return receive_in_time(&flow, pairs, &r); };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("deadlines")))
    CHECK((o ? "" : o.reason().what()) == "");
  REQUIRE(r.each.size() == 3);
  CHECK(is(r.each[0].outcome, {.code = errc::timeout, .op = "deadlines 0->1", .tag = 1, .unmet = awaited::message}));
  CHECK(r.each[0].at_ns >= 10 * ms);
  CHECK(r.each[0].at_ns < 11 * ms);
  CHECK(r.each[1].outcome);
  CHECK(r.each[1].at_ns < 21 * ms);
  CHECK(r.each[2].outcome.code() == errc::timeout);
  CHECK(r.each[2].at_ns >= 40 * ms);
  CHECK(r.each[2].at_ns < 41 * ms);
  CHECK(r.whole.outcome.code() == errc::timeout);
  CHECK(r.got == std::array{7, 12, 7});
}

namespace {

task<> send_in_time(dataflow* flow, p2p pairs, large_send* s, bool by_batch) {
  const p2p_operation one = p2p::isend(s->data, {.to = 1, .timeout = std::chrono::nanoseconds(by_batch ? 0 : 10 * ms)});
  auto batch =
      pairs.start(*flow, std::span(&one, 1), {.timeout = std::chrono::nanoseconds(by_batch ? 10 * ms : never)});
  co_await note(&batch, &s->sent);
}

}  // namespace

TEST_CASE("a send without a receive times out at its own deadline, or at its batch's") {
  for (const bool by_batch : {false, true}) {
    CAPTURE(by_batch);
    world w(2);
    auto op = pairs_named("deadlines");
    op.configs = {direct()};
    large_send s;
    const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
      return send_in_time(&flow, pairs, &s, by_batch);
    };
    for (const auto& o : run_each(w, {sender, nothing}, op)) CHECK((o ? "" : o.reason().what()) == "");
    CHECK(is(s.sent.outcome, {.code = errc::timeout, .op = "deadlines 0->1", .unmet = awaited::receive}));
    CHECK(s.sent.at_ns >= 10 * ms);
    CHECK(s.sent.at_ns < 12 * ms);
  }
}

// ---- to oneself -------------------------------------------------------------------------------------------------------

namespace {

task<> orphans(dataflow* flow, p2p pairs, receives* r) {
  const int value = 1;
  auto batch = pairs.start(
      *flow, {p2p::irecv(std::span(&r->got[0], 1), {.from = 0, .tag = 1}),
              p2p::irecv(std::span(&r->got[1], 1), {.from = 0, .tag = 2, .timeout = std::chrono::nanoseconds(5 * ms)}),
              p2p::isend(std::span(&value, 1), {.to = 0, .tag = 3, .timeout = std::chrono::nanoseconds(6 * ms)}),
              p2p::irecv(std::span(&r->got[2], 1), {.from = 0, .tag = 4})});
  scope& here = co_await this_scope;
  scope all(here);
  all.spawn(note_each(&batch, &r->each, &r->whole));
  co_await rest(2 * ms);
  batch[3].cancel();
  co_await all.join();
}

}  // namespace

TEST_CASE("an unmatched send or receive to oneself times out at its deadline, names its tag, and writes nothing") {
  world w(1);
  auto op = pairs_named("self");
  op.timeout = std::chrono::nanoseconds(40 * ms);
  receives r;
  const program alone = [&](dataflow& flow, ops::rank&, p2p& pairs) { return orphans(&flow, pairs, &r); };
  for (const auto& o : run_each(w, {alone}, op)) CHECK((o ? "" : o.reason().what()) == "");
  REQUIRE(r.each.size() == 4);
  const auto ended = [&](std::size_t i, std::uint32_t tag, awaited unmet) {
    CHECK(
        is(r.each[i].outcome, {.code = errc::timeout, .op = "self", .rank = 0, .peer = 0, .tag = tag, .unmet = unmet}));
  };
  ended(0, 1, awaited::message);
  CHECK(r.each[0].at_ns == 40 * ms);
  ended(1, 2, awaited::message);
  CHECK(r.each[1].at_ns == 5 * ms);
  ended(2, 3, awaited::receive);
  CHECK(r.each[2].at_ns == 6 * ms);
  CHECK(r.each[3].outcome.code() == errc::cancelled);
  CHECK(r.each[3].at_ns == 2 * ms);
  CHECK(r.got == std::array{7, 7, 7});
}

// ---- no bytes, and too much room --------------------------------------------------------------------------------------

TEST_CASE("empty messages keep their places among the messages of their tag, even to oneself") {
  const std::vector<std::size_t> sizes{0, 8, 0, 0, 100'000, 0, 1, 0};
  for (const auto& config : {direct(), chunked(4_KiB, 2)}) {
    CAPTURE(config->id());
    world w(2);
    auto op = pairs_named("empty");
    op.configs = {config};
    std::array<std::vector<guarded_bytes>, 2> got;
    std::array<std::vector<guarded_bytes>, 2> own;
    std::array<std::vector<std::uint64_t>, 2> lengths;
    std::vector<std::vector<std::byte>> sent;
    for (std::size_t i = 0; i < sizes.size(); ++i) sent.push_back(pattern(sizes[i], i));
    for (auto* all : {&got[0], &got[1], &own[0], &own[1]}) {
      for (const std::size_t size : sizes) all->emplace_back(size);
    }
    const auto both = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
      const rank_id me = self.id();
      std::vector<p2p_operation> batch;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        batch.push_back(p2p::isend(sent[i], {.to = 1 - me}));
        batch.push_back(p2p::irecv(got[me][i].inside(), {.from = 1 - me}));
        batch.push_back(p2p::isend(sent[i], {.to = me}));
        batch.push_back(p2p::irecv(own[me][i].inside(), {.from = me}));
      }
      return [](flow_work all, std::vector<std::uint64_t>* came) -> task<> {
        for (std::size_t i = 0; i < all.size(); ++i) {
          flow_work one = all[i];
          co_await one;
          came->push_back(one.bytes());
        }
      }(pairs.start(flow, batch), &lengths[me]);
    };
    for (const auto& o : run_each(w, {both, both}, op)) CHECK((o ? "" : o.reason().what()) == "");
    for (const rank_id me : {rank_id{0}, rank_id{1}}) {
      REQUIRE(lengths[me].size() == 4 * sizes.size());
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        CAPTURE(i);
        for (std::size_t k = 0; k < 4; ++k) CHECK(lengths[me][4 * i + k] == sizes[i]);
        CHECK(holds(got[me][i].inside(), sent[i]));
        CHECK(got[me][i].clean_beyond(sizes[i]));
        CHECK(holds(own[me][i].inside(), sent[i]));
        CHECK(own[me][i].clean_beyond(sizes[i]));
      }
    }
  }
}

TEST_CASE("a receive larger than its message leaves the rest of its buffer and the memory around it untouched") {
  for (const auto& config : {direct(), chunked(4_KiB, 2)}) {
    for (const std::size_t size : {std::size_t{5}, std::size_t{100'000}}) {
      CAPTURE(config->id());
      CAPTURE(size);
      world w(2);
      auto op = pairs_named("roomy");
      op.configs = {config};
      const auto sent = pattern(size, 3);
      guarded_bytes into(size + 3'000);
      guarded_bytes own(size + 3'000);
      const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
        return end_of(pairs.start(flow, {p2p::isend(sent, {.to = 1})}));
      };
      const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) {
        return end_of(pairs.start(flow, {p2p::irecv(into.inside(), {.from = 0}), p2p::isend(sent, {.to = 1, .tag = 9}),
                                         p2p::irecv(own.inside(), {.from = 1, .tag = 9})}));
      };
      for (const auto& o : run_each(w, {sender, receiver}, op)) CHECK((o ? "" : o.reason().what()) == "");
      CHECK(holds(into.inside(), sent));
      CHECK(into.clean_beyond(size));
      CHECK(holds(own.inside(), sent));
      CHECK(own.clean_beyond(size));
    }
  }
}

namespace {

// Many rounds of one message into a buffer larger than the message. Later, some rounds receive into a smaller one.
struct one_sided_rounds {
  static constexpr std::size_t size = 100'000;
  static constexpr int rounds = 200;
  std::vector<std::byte> sent = pattern(size, 6);
  guarded_bytes into = guarded_bytes(size + 3'000);
  std::size_t wrong = 0;
  std::size_t too_small = 0;
};

task<> send_rounds(dataflow* flow, p2p pairs, one_sided_rounds* all) {
  const actors::registered_memory handle = pairs.registered(all->sent);
  for (int i = 0; i < all->rounds; ++i) {
    co_await rest(ms);  // until the receiver's credit has arrived
    auto sent = pairs.start(*flow, {p2p::isend(all->sent, {.to = 1})});
    ending outcome;
    co_await note(&sent, &outcome);
  }
}

task<> receive_rounds(dataflow* flow, p2p pairs, one_sided_rounds* all) {
  auto whole = all->into.inside();
  const actors::registered_memory handle = pairs.registered(whole);
  for (int i = 0; i < all->rounds; ++i) {
    const bool small = i >= all->rounds / 2 && i % 7 == 3;  // after the decision
    std::fill(whole.begin(), whole.end(), guarded_bytes::untouched);
    auto room = small ? whole.first(all->size / 2) : whole;
    auto received = pairs.start(*flow, {p2p::irecv(room, {.from = 0})});
    ending outcome;
    co_await note(&received, &outcome);
    if (small) {
      all->too_small += outcome.outcome.code() == errc::buffer_too_small ? 1 : 0;
    } else {
      all->wrong += outcome.outcome && holds(whole, all->sent) ? 0 : 1;
    }
    all->wrong += all->into.clean_beyond(small ? 0 : all->size) ? 0 : 1;
  }
}

}  // namespace

TEST_CASE("a put or a get writes only its message, and nothing if the message does not fit") {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  memory_link_options links;
  links.ns_per_byte = 1;
  links.one_sided_ns_per_byte = 0.001;
  for (const auto& config : {put(), put(32_KiB), get(), get(32_KiB)}) {
    CAPTURE(config->id());
    world w(2, s, links);
    auto op = pairs_named("rounds");
    op.configs = {direct(), config};
    one_sided_rounds all;
    p2p used;
    const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) {
      used = pairs;
      return send_rounds(&flow, pairs, &all);
    };
    const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) { return receive_rounds(&flow, pairs, &all); };
    for (const auto& o : run_each(w, {sender, receiver}, op)) CHECK((o ? "" : o.reason().what()) == "");
    INFO(used.to(1).decision(one_sided_rounds::size).why);
    CHECK(all.wrong == 0);
    CHECK(all.too_small == 15);  // rounds 101, 108, …, 199
    CHECK(used.to(1).decision(one_sided_rounds::size).config == config->id());
  }
}

namespace {

struct too_small {
  std::vector<std::byte> large = pattern(100'000, 4);
  std::vector<std::byte> after = pattern(600, 5);
  guarded_bytes into = guarded_bytes(50'000);
  guarded_bytes into_after = guarded_bytes(600);
  std::vector<ending> each;
  ending whole;
  std::vector<ending> sent;
};

task<> receive_both(dataflow* flow, p2p pairs, too_small* t) {
  auto batch =
      pairs.start(*flow, {p2p::irecv(t->into.inside(), {.from = 0}), p2p::irecv(t->into_after.inside(), {.from = 0})});
  co_await note_each(&batch, &t->each, &t->whole);
}

task<> send_both(dataflow* flow, p2p pairs, too_small* t) {
  ending whole;
  auto batch = pairs.start(*flow, {p2p::isend(t->large, {.to = 1}), p2p::isend(t->after, {.to = 1})});
  co_await note_each(&batch, &t->sent, &whole);
}

}  // namespace

TEST_CASE(
    "a message larger than its receive is not written, both ranks get buffer_too_small, and the next one arrives") {
  for (const auto& config : {direct(), chunked(16_KiB, 2)}) {  // for 100 kB: a small payload leaves at once
    CAPTURE(config->id());
    world w(2);
    auto op = pairs_named("small");
    op.configs = {config};
    too_small t;
    const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) { return send_both(&flow, pairs, &t); };
    const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) { return receive_both(&flow, pairs, &t); };
    for (const auto& o : run_each(w, {sender, receiver}, op)) CHECK((o ? "" : o.reason().what()) == "");
    REQUIRE(t.each.size() == 2);
    CHECK(is(t.each[0].outcome,
             {.code = errc::buffer_too_small, .op = "small 0->1", .whole_bytes = 100'000, .own_bytes = 50'000}));
    CHECK(t.into.clean_beyond(0));
    CHECK(t.each[1].outcome);
    CHECK(holds(t.into_after.inside(), t.after));
    CHECK(t.into_after.clean_beyond(t.after.size()));
    REQUIRE(t.sent.size() == 2);
    CHECK(is(t.sent[0].outcome, {.code = errc::buffer_too_small,
                                 .op = "small 0->1",
                                 .rank = 0,
                                 .role = "sender",
                                 .invocation = 0,
                                 .peer = 1,
                                 .whole_bytes = 100'000,
                                 .quotes = "50000"}));
    CHECK(t.sent[1].outcome);
    for (const auto& search : w[0].agreements()[0].assigned->searches()) CHECK(search->excluded().empty());
  }
}

// ---- sends that end before their receiver refuses them -----------------------------------------------------------------

namespace {

constexpr std::size_t short_calls = 4;
struct refused_later {
  std::vector<int> values = std::vector<int>(8, 5);  // so short that the sends end at once
  std::array<std::vector<int>, short_calls> into;
  std::array<ending, short_calls> sent;
  std::array<ending, short_calls> received;
};

task<> send_short(dataflow* flow, p2p pairs, refused_later* all) {
  for (ending& each : all->sent) {
    auto one = pairs.start(*flow, {p2p::isend(all->values, {.to = 1})});
    co_await note(&one, &each);
    co_await rest(ms);
  }
}

task<> receive_short(dataflow* flow, p2p pairs, refused_later* all) {
  for (std::size_t i = 0; i < short_calls; ++i) {
    auto one = pairs.start(*flow, {p2p::irecv(all->into[i], {.from = 0})});
    co_await note(&one, &all->received[i]);
  }
}

}  // namespace

TEST_CASE(
    "a refusal of a send that has ended fails the next send, whose message arrives; the last one is listed at exit") {
  world w(2);
  refused_later all;
  for (std::size_t i = 0; i < short_calls; ++i) all.into[i].assign(i == 1 || i == 2 ? 8 : 3, 0);
  const program sender = [&](dataflow& flow, ops::rank&, p2p& pairs) { return send_short(&flow, pairs, &all); };
  const program receiver = [&](dataflow& flow, ops::rank&, p2p& pairs) { return receive_short(&flow, pairs, &all); };
  for (const auto& o : run_each(w, {sender, receiver}, pairs_named("short"))) CHECK((o ? "" : o.reason().what()) == "");
  CHECK(all.sent[0].outcome);
  CHECK(is(all.sent[1].outcome, {.code = errc::buffer_too_small,
                                 .op = "short 0->1",
                                 .rank = 0,
                                 .role = "sender",
                                 .invocation = 0,
                                 .peer = 1,
                                 .tag = 0,
                                 .whole_bytes = 32,
                                 .quotes = "12 bytes"}));
  CHECK(all.sent[2].outcome);
  CHECK(all.sent[3].outcome);
  for (const std::size_t refused : {0, 3}) {
    CHECK(all.received[refused].outcome.code() == errc::buffer_too_small);
    CHECK(all.into[refused] == std::vector<int>(3, 0));
  }
  for (const std::size_t came : {1, 2}) CHECK(all.into[came] == all.values);
  scope leaving(w.clock);
  leaving.spawn(w[0].settle(std::chrono::nanoseconds(100 * ms)));
  run_until(w.clock, [&] { return leaving.running() == 0; });
  const left_over left = w[0].unfinished();
  REQUIRE(left.undelivered.size() == 1);
  CHECK(left.undelivered[0].find("short 0->1, invocation 3, on rank 0 (sender): rank 1 did not take") !=
        std::string::npos);
}

// ---- elements of another type -------------------------------------------------------------------------------------------

namespace {

struct cell {
  float pressure;
  std::int32_t kind;
};

// Notes how a rank's sends and receives end. `sends` or `takes` is empty on a rank that does not send or receive.
task<> note_both(flow_work sends, flow_work takes, std::array<ending, 2>* ends) {
  scope& here = co_await this_scope;
  scope all(here);
  if (sends.size() != 0) all.spawn(note(&sends, &(*ends)[0]));
  if (takes.size() != 0) all.spawn(note(&takes, &(*ends)[1]));
  co_await all.join();
}

// Rank 0 sends elements of type `Sent`, and `receiver` receives them as `Taken`. A refused message leaves the receive buffer as it was.
// Both ends finish within 100 ms; the op's timeout is 1 s.
template <class Sent, class Taken>
std::array<result<>, 2> exchange_of(std::size_t count, rank_id receiver = 1) {
  world w(2);
  constexpr std::byte there{0x33};
  guarded_place at;
  const array<Sent> data(at, count);
  const array<Taken> into(at, count);
  const auto sent = pattern(data.bytes().size(), 8);
  std::copy(sent.begin(), sent.end(), data.bytes().begin());
  std::fill(into.bytes().begin(), into.bytes().end(), there);
  const std::span<Sent> from(data.data(), count);
  const std::span<Taken> to(into.data(), count);
  std::array<ending, 2> ends;
  const program both = [&](dataflow& flow, ops::rank& self, p2p& pairs) {
    flow_work sends, takes;
    if (self.id() == 0) sends = pairs.start(flow, {p2p::isend(from, {.to = receiver})});
    if (self.id() == receiver) takes = pairs.start(flow, {p2p::irecv(to, {.from = 0})});
    return note_both(std::move(sends), std::move(takes), &ends);
  };
  for (const auto& o : run_each(w, {both, both}, pairs_named("typed"))) CHECK((o ? "" : o.reason().what()) == "");
  const std::vector<std::byte> right = ends[1].outcome ? sent : std::vector<std::byte>(sent.size(), there);
  CHECK(holds(into.bytes(), right));
  CHECK(holds(data.bytes(), sent));
  CHECK(at.clean());
  for (const ending& end : ends) CHECK(end.at_ns < 100 * ms);
  return {ends[0].outcome, ends[1].outcome};
}

}  // namespace

TEST_CASE("a receive of another element type is refused on both ranks with both types; bytes and char types match") {
  const auto differ = exchange_of<float, std::int32_t>(100'000);
  for (rank_id r = 0; r < 2; ++r)
    for (const char* type : {"which is for i32 elements, but the message has f32 elements",
                             "; give both ranks the same type, or send bytes; nothing was written"})
      CHECK(is(differ[r], {.code = errc::declaration_mismatch,
                           .op = "typed 0->1",
                           .rank = r,
                           .invocation = 0,
                           .peer = 1 - r,
                           .quotes = type}));
  CHECK(exchange_of<cell, double>(50'000)[0].code() == errc::declaration_mismatch);
  CHECK(says(exchange_of<cell, double>(50'000)[1], "the message has the program's own elements"));
  const auto same_type = [](const std::array<result<>, 2>& ends) { return ends[0] && ends[1]; };
  CHECK(same_type(exchange_of<float, float>(100'000)));
  CHECK(same_type(exchange_of<cell, cell>(50'000)));
  CHECK(same_type(exchange_of<std::int64_t, long long>(1'000)));
  CHECK(same_type(exchange_of<std::byte, unsigned char>(1'000)));
  CHECK(same_type(exchange_of<char, std::byte>(1'000)));
  for (const auto& end : exchange_of<float, std::int32_t>(10, 0)) {
    CHECK(is(end, {.code = errc::declaration_mismatch, .op = "typed", .rank = 0, .peer = 0}));
  }
}

TEST_CASE("a send to oneself that does not fit its receive fails with buffer_too_small on both sides") {
  world w(1);
  const std::vector<std::byte> data = pattern(100, 1);
  guarded_bytes into(50);
  std::vector<ending> each;
  ending whole;
  const program alone = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    return [](flow_work batch, std::vector<ending>* parts, ending* all) -> task<> {
      co_await note_each(&batch, parts, all);
    }(pairs.start(flow, {p2p::isend(data, {.to = 0}), p2p::irecv(into.inside(), {.from = 0})}), &each, &whole);
  };
  for (const auto& o : run_each(w, {alone}, pairs_named("self"))) CHECK((o ? "" : o.reason().what()) == "");
  REQUIRE(each.size() == 2);
  for (const ending& e : each) {
    CHECK(is(e.outcome, {.code = errc::buffer_too_small, .whole_bytes = 100, .own_bytes = 50}));
  }
  CHECK(into.clean_beyond(0));
}

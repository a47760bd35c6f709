#include <parley/tests/support/cases/legal_schedules.hpp>
#include <parley/tests/support/cases/training_case.hpp>
#include <parley/tests/support/devices/memory_of_host.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/ops/core/op_host.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::training_case;

namespace {

struct trained {
  explicit trained(const pipeline_schedule& schedule, time_ns forward_ns = 0, memory_link_options links = free_links())
      : w(static_cast<rank_id>(schedule.ranks.size()), {}, std::move(links)), s(schedule), reports(s.ranks.size()),
        outcomes(s.ranks.size()) {
    for (std::size_t r = 0; r < s.ranks.size(); ++r) {
      parts.push_back(std::make_unique<part_of_model>(s.stages, forward_ns));
    }
  }
  static memory_link_options free_links() {
    memory_link_options links;
    links.latency_ns = 0;
    links.ns_per_byte = 0;
    return links;
  }
  static task<> pass(training_pipeline t, training_work* p, pipeline_report* report, result<>* outcome,
                     time_ns* ended) {
    std::exception_ptr thrown;
    try {
      *report = co_await t.run(*p);
    } catch (...) {
      thrown = std::current_exception();
    }
    if (thrown) *outcome = describe(thrown);
    scope& here = co_await this_scope;
    *ended = here.where().now();
  }
  training_pipeline_options op_of(time_ns timeout_ns) const {
    training_pipeline_options op;
    op.name = "layers";
    op.schedule = s;
    op.configs = {direct(), chunked(128, 2)};
    op.timeout = std::chrono::nanoseconds(timeout_ns);
    return op;
  }
  trained& run(time_ns timeout_ns = 1'000'000'000) {
    std::vector<training_pipeline> handles;
    for (rank_id r = 0; r < s.ranks.size(); ++r) handles.emplace_back(w[r], op_of(timeout_ns));
    return run(handles);
  }
  trained& run(const std::vector<training_pipeline>& handles) {
    ended.resize(s.ranks.size());
    outcomes.assign(s.ranks.size(), {});
    scope all(w.clock);
    for (rank_id r = 0; r < s.ranks.size(); ++r)
      all.spawn(pass(handles[r], parts[r].get(), &reports[r], &outcomes[r], &ended[r]));
    run_until(w.clock, [&] { return all.running() == 0; });
    return *this;
  }
  std::vector<double> gradients() const {
    std::vector<double> all(s.stages);
    for (std::uint32_t stage = 0; stage < s.stages; ++stage)
      all[stage] = parts[s.rank_of(stage)]->m.weight_gradient[stage];
    return all;
  }
  world w;
  pipeline_schedule s;
  std::vector<pipeline_report> reports;
  std::vector<result<>> outcomes;
  std::vector<time_ns> ended;
  std::vector<std::unique_ptr<part_of_model>> parts;
};

pipeline_schedule own_schedule(std::string_view text) {
  const auto parsed = parse_schedule(text);
  REQUIRE(parsed);
  return *parsed;
}

}  // namespace

TEST_CASE("a pipeline's gradients equal those of one process, to the last bit, in every built-in schedule") {
  for (const auto& s : {gpipe(1, 3), gpipe(3, 4), one_forward_one_backward(4, 8), one_forward_one_backward(2, 1),
                        interleaved(2, 4, 3), interleaved(4, 8, 2), interleaved(1, 2, 2)}) {
    trained t(s, 1000, {});
    t.run();
    for (const auto& o : t.outcomes) CHECK(o);
    CHECK(t.gradients() == gradients_alone(s.stages, s.microbatches));
    CHECK(join_flights(t.w).mismatches == 0);
    for (rank_id r = 0; r < s.ranks.size(); ++r) {
      std::vector<std::string> expected;
      for (const auto& a : s.ranks[r]) {
        if (a.computes()) expected.push_back(text_of(a));
      }
      CHECK(t.parts[r]->order == expected);
    }
  }
}

TEST_CASE("a schedule may list a send long after the action that it follows, for activations and for gradients") {
  trained t(own_schedule("0F0, 0SEND_F0, 0F1, 0SEND_F1, 0RECV_B0, 0B0, 0RECV_B1, 0B1\n"
                         "1RECV_F0, 1F0, 1RECV_F1, 1F1, 1B0, 1B1, 1SEND_B0, 1SEND_B1\n"));
  t.run();
  for (const auto& o : t.outcomes) CHECK_MESSAGE(o, (o ? "" : o.reason().what()));
  CHECK(t.gradients() == gradients_alone(2, 2));
}

namespace {

// Runs the schedule drawn from `seed`, sometimes twice in a row over the same memory. Messages are copied or stay with their sender, and
// one rank's messages may be late.
void check_drawn(std::uint64_t seed) {
  random_stream dice(seed, 18);
  const pipeline_schedule s = legal_schedule(seed);
  CAPTURE(seed);
  CAPTURE(text_of(s));
  const auto sound = check(s);
  REQUIRE_MESSAGE(sound, (sound ? "" : sound.reason().what()));
  memory_link_options links;
  links.eager_bytes = std::array<std::size_t, 3>{0, 8192, 8192}[dice.below(3)];
  const auto late = static_cast<rank_id>(dice.below(2 * s.ranks.size()));
  links.delay = [late](rank_id from, rank_id, link::channel) { return from == late ? 20'000 : 0; };
  trained t(s, std::array<time_ns, 2>{0, 10'000}[dice.below(2)], std::move(links));
  const std::size_t elements = dice.below(4) == 0 ? 2000 : width;
  for (const auto& part : t.parts) part->elements = elements;
  std::vector<training_pipeline> handles;
  training_pipeline_options op = t.op_of(1'000'000'000);
  if (dice.below(64) != 0) op.configs = {direct()};  // mostly one config, as a search takes longer than a pass
  for (rank_id r = 0; r < s.ranks.size(); ++r) handles.emplace_back(t.w[r], op);
  const std::vector<double> right = gradients_alone(s);
  const std::uint64_t passes = dice.below(4) == 0 ? 2 : 1;
  for (std::uint64_t pass = 0; pass < passes; ++pass) {
    CAPTURE(pass);
    for (const auto& part : t.parts) part->m = model(s.stages);
    t.run(handles);
    for (const auto& o : t.outcomes) REQUIRE_MESSAGE(o, (o ? "" : o.reason().what()));
    REQUIRE(t.gradients() == right);
  }
}

}  // namespace

// PARLEY_TEST_SCHEDULES=N runs N schedules. PARLEY_TEST_SEED is the number of the first one.
TEST_CASE("whatever schedule is accepted, in every order of sends and receives, has the gradients of one process") {
  const auto number = [](const char* name, std::uint64_t otherwise) {
    const char* const told = std::getenv(name);
    return told == nullptr ? otherwise : std::strtoull(told, nullptr, 10);
  };
  const std::uint64_t first = number("PARLEY_TEST_SEED", 1);
  const std::uint64_t count = number("PARLEY_TEST_SCHEDULES", 500);
  for (std::uint64_t seed = first; seed < first + count; ++seed) check_drawn(seed);
}

TEST_CASE("with free communication a pass takes exactly the time that its schedule predicts") {
  struct row {
    pipeline_schedule schedule;
    double units;
    std::uint32_t chunks;
  };
  for (const row& r :
       {row{one_forward_one_backward(2, 8), 27, 1}, row{interleaved(2, 8, 2), 25.5, 2},
        row{interleaved(2, 8, 4), 24.75, 4}, row{one_forward_one_backward(3, 8), 30, 1},
        row{one_forward_one_backward(4, 8), 33, 1}, row{interleaved(4, 8, 2), 28.5, 2},
        row{interleaved(4, 8, 4), 26.25, 4}, row{one_forward_one_backward(4, 16), 57, 1},
        row{interleaved(4, 16, 2), 52.5, 2}, row{interleaved(4, 16, 4), 50.25, 4}, row{gpipe(4, 8), 33, 1}}) {
    constexpr time_ns unit_ns = 1'000'000;
    trained t(r.schedule, unit_ns / r.chunks);
    t.run();
    time_ns last = 0;
    std::uint64_t sent = 0;
    for (std::size_t i = 0; i < t.ended.size(); ++i) {
      last = std::max(last, t.ended[i]);
      sent += t.reports[i].sent;
      CHECK(t.reports[i].busy_ns == static_cast<time_ns>(3 * r.schedule.microbatches * unit_ns));
      CHECK(t.reports[i].ideal_idle_share == doctest::Approx(estimate(r.schedule, {1, 2}).ranks[i].idle_share));
      CHECK(t.reports[i].idle_share == doctest::Approx(t.reports[i].ideal_idle_share));
      CHECK(t.reports[i].most_alive == estimate(r.schedule).alive[i]);
    }
    CHECK(last == static_cast<time_ns>(r.units * unit_ns));
    CHECK(sent == r.schedule.messages());
  }
}

TEST_CASE("a stage that is late once delays no rank by more than its own delay") {
  constexpr time_ns unit_ns = 1'000'000;
  trained on_time(one_forward_one_backward(4, 8), unit_ns);
  on_time.run();
  trained t(one_forward_one_backward(4, 8), unit_ns);
  t.parts[1]->late = {1, pipeline_action::kind::forward, 3};
  t.parts[1]->late_ns = 10 * unit_ns;
  t.run();
  for (rank_id r = 0; r < 4; ++r) CHECK(t.ended[r] - on_time.ended[r] <= 10 * unit_ns);
  CHECK(t.ended[1] > on_time.ended[1]);
}

namespace {

// Work whose forward passes need a message of their own.
class waits_inside final : public training_work {
 public:
  waits_inside(part_of_model& does, transfer from) : does_(does), from_(std::move(from)) {}
  std::uint64_t activation_bytes(std::uint32_t stage) const override { return does_.activation_bytes(stage); }
  task<> work(pipeline_action a, pipeline_memory memory) override {
    std::array<std::byte, 8> into{};
    if (a.what == pipeline_action::kind::forward) co_await from_.receive(into, {.from = 1});
    co_await does_.work(a, memory);
  }

 private:
  part_of_model& does_;
  transfer from_;
};

task<> send_late(transfer to, time_ns at_ns) {
  static_cast<void>(co_await sleep_until(at_ns));
  const std::array<std::byte, 8> word{};
  co_await to.send(word, {.to = 0});
}

}  // namespace

TEST_CASE("a stage that waits for another rank inside its work counts as idle during the wait") {
  constexpr time_ns unit_ns = 1'000'000;
  trained t(one_forward_one_backward(2, 1), unit_ns);
  transfer_options aside = pair_of({direct()});
  aside.role = [](rank_id r) { return r == 1 ? role::sender : role::receiver; };
  std::vector<training_pipeline> handles;
  std::vector<transfer> words;
  for (rank_id r = 0; r < 2; ++r) {
    handles.emplace_back(t.w[r], t.op_of(1'000'000'000));
    words.emplace_back(t.w[r], aside);
  }
  waits_inside first(*t.parts[0], words[0]);
  t.ended.resize(2);
  scope all(t.w.clock);
  all.spawn(trained::pass(handles[0], &first, &t.reports[0], &t.outcomes[0], &t.ended[0]));
  all.spawn(trained::pass(handles[1], t.parts[1].get(), &t.reports[1], &t.outcomes[1], &t.ended[1]));
  all.spawn(send_late(words[1], 20 * unit_ns));
  run_until(t.w.clock, [&] { return all.running() == 0; });
  for (const auto& o : t.outcomes) CHECK(o);
  CHECK(t.reports[0].busy_ns == 3 * unit_ns);
  CHECK(t.reports[0].elapsed_ns > 25 * unit_ns);
}

TEST_CASE("each rank computes in the order that a user's own schedule lists") {
  const auto own = parse_schedule("0F0, 0F1, 0B1, 0B0\n1F0, 1F1, 1B1, 1B0\n");
  REQUIRE(own);
  trained t(*own, 1000);
  t.run();
  CHECK(t.parts[0]->order == std::vector<std::string>{"0F0", "0F1", "0B1", "0B0"});
  const std::vector<double> right = gradients_alone(2, 2);  // they add the microbatches in another order
  for (std::size_t s = 0; s < 2; ++s) CHECK(t.gradients()[s] == doctest::Approx(right[s]).epsilon(1e-12));
}

TEST_CASE("a stage's exception ends the pass on all ranks at once, and their errors quote it and name its rank") {
  trained t(one_forward_one_backward(3, 4), 1000);
  t.parts[1]->throws_at = 2;
  t.run(50'000'000);
  CHECK(is(t.outcomes[1], {.code = errc::exception, .quotes = "the model is on fire"}));
  for (const rank_id r : {0U, 2U})
    CHECK(is(t.outcomes[r], {.code = errc::closed,
                             .op = "layers",
                             .rank = r,
                             .peer = 1,
                             .quotes = "on rank 1 (exception: the model is on fire)"}));
  CHECK(t.w.clock.now() < 10'000'000);
}

namespace {

// The sender is refused memory for its `at`-th activation or gradient.
class short_of_memory final : public paired_config {
 public:
  explicit short_of_memory(int at) : paired_config({.name = "short_of_memory", .wire_class = "whole"}), at_(at) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    const bool is_of_the_model = data.size() == width * sizeof(double);
    if (is_of_the_model && ++sends_ == at_) raise({errc::unavailable, "there is no memory left"});
    co_await out.send(0, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> into) const override { co_await in.receive(0, into); }

 private:
  int at_;
  mutable int sends_ = 0;
};

// Refuses memory for the `at[r]`-th message that rank r sends.
trained& run_short_of_memory(trained& t, const std::vector<int>& at) {
  std::vector<training_pipeline> handles;
  for (rank_id r = 0; r < t.s.ranks.size(); ++r) {
    training_pipeline_options op = t.op_of(1'000'000'000);
    op.configs = {std::make_shared<short_of_memory>(at[r])};
    handles.emplace_back(t.w[r], op);
  }
  return t.run(handles);
}

}  // namespace

TEST_CASE("a rank reports the error of a failed send, though nothing waits for a send") {
  SUBCASE("also if the memory of the send was due for its next use first") {
    trained t(own_schedule("0F0, 0F1, 0F2, 0B0, 0F3, 0B1, 0B2, 0B3\n1F0, 1B0, 1F1, 1B1, 1F2, 1B2, 1F3, 1B3\n"),
              1'000'000);
    t.parts[0]->late = {0, pipeline_action::kind::forward, 2};
    t.parts[0]->late_ns = 20'000'000;
    run_short_of_memory(t, {0, 1});
    CHECK(is(t.outcomes[1], {.quotes = "there is no memory left"}));
    CHECK_FALSE(t.outcomes[0]);
  }
  SUBCASE("also if the other rank's message that it has ended arrives first") {
    trained t(own_schedule("0F0, 0B0, 0F1, 0B1\n1F0, 1B0, 1F1, 1B1\n"), 1'000'000);
    run_short_of_memory(t, {0, 1});
    CHECK(is(t.outcomes[1], {.quotes = "there is no memory left"}));
    CHECK_FALSE(t.outcomes[0]);
  }
  SUBCASE("also if a receive fails, because its sender was also refused memory") {
    trained t(own_schedule("0F0, 0F1, 0F2, 0B0, 0B1, 0B2\n1F0, 1F1, 1B0, 1B1, 1F2, 1B2\n"), 1'000'000);
    run_short_of_memory(t, {3, 1});
    for (const auto& o : t.outcomes) {
      CHECK(is(o, {.quotes = "there is no memory left"}));
    }
  }
}

TEST_CASE("a training pipeline refuses passes after a failed one, whose messages may still arrive") {
  trained t(one_forward_one_backward(3, 4), 1000);
  t.parts[1]->throws_at = 2;
  std::vector<training_pipeline> handles;
  for (rank_id r = 0; r < 3; ++r) handles.emplace_back(t.w[r], t.op_of(50'000'000));
  t.run(handles);
  for (const auto& o : t.outcomes) REQUIRE_FALSE(o);
  const auto order = [&](rank_id r) { return t.parts[r]->order.size(); };
  const std::vector<std::size_t> ran{order(0), order(1), order(2)};
  t.parts[1]->throws_at = -1;
  t.run(handles);
  for (rank_id r = 0; r < 3; ++r) {
    CAPTURE(r);
    CHECK(
        is(t.outcomes[r],
           {.code = errc::closed, .op = "layers", .rank = r, .quotes = "on rank 1 (exception: the model is on fire)"}));
    CHECK(order(r) == ran[r]);
  }
}

TEST_CASE("neighbours whose schedules or sizes differ both fail early, with declaration_mismatch") {
  for (const bool other_schedule : {true, false}) {
    CAPTURE(other_schedule);
    world w(2);
    std::vector<std::unique_ptr<part_of_model>> parts;
    std::vector<pipeline_report> reports(2);
    std::vector<result<>> outcomes(2);
    std::vector<time_ns> ended(2);
    scope all(w.clock);
    for (rank_id r = 0; r < 2; ++r) {
      training_pipeline_options op;
      op.name = "layers";
      op.schedule = r == 1 && other_schedule ? gpipe(2, 5) : one_forward_one_backward(2, 4);
      op.timeout = 1s;
      parts.push_back(std::make_unique<part_of_model>(2, 1000));
      if (!other_schedule) parts[r]->elements = width + r;
      all.spawn(trained::pass(training_pipeline(w[r], op), parts[r].get(), &reports[r], &outcomes[r], &ended[r]));
    }
    run_until(w.clock, [&] { return all.running() == 0; });
    for (rank_id r = 0; r < 2; ++r) {
      CAPTURE(r);
      CHECK(is(outcomes[r], {.code = errc::declaration_mismatch, .op = "layers", .rank = r, .peer = 1 - r}));
      CHECK(says(outcomes[r], other_schedule ? "of 2 stages and 4 microbatches" : "for what stage 0 passes on: "));
      CHECK(ended[r] < 100'000'000);  // a tenth of the timeout
    }
  }
}

TEST_CASE("a rank that waits for a rank with other neighbours fails early, and so does that other rank") {
  world w(3);
  std::vector<std::unique_ptr<part_of_model>> parts;
  std::vector<pipeline_report> reports(3);
  std::vector<result<>> outcomes(3);
  std::vector<time_ns> ended(3);
  scope all(w.clock);
  for (rank_id r = 0; r < 3; ++r) {
    training_pipeline_options op;
    op.name = "layers";
    op.schedule = gpipe(2, 4);
    op.ranks = r == 0 ? std::vector<rank_id>{1, 0} : std::vector<rank_id>{1, 2};
    op.timeout = 30s;
    parts.push_back(std::make_unique<part_of_model>(2, 50'000'000));
    all.spawn(trained::pass(training_pipeline(w[r], op), parts[r].get(), &reports[r], &outcomes[r], &ended[r]));
  }
  run_until(w.clock, [&] { return all.running() == 0; });
  for (const rank_id r : {0U, 1U}) {
    CHECK(is(outcomes[r], {.code = errc::declaration_mismatch, .op = "layers", .rank = r, .peer = 1 - r}));
    CHECK(ended[r] < 1'000'000'000);
  }
  CHECK(!outcomes[2]);
}

namespace {

// A rank that fails leaves and reports its error, and the other ranks are told, as in a job.
task<> pass_or_leave(world* w, rank_id self, training_pipeline t, part_of_model* part, result<>* outcome) {
  pipeline_report report;
  time_ns ended = 0;
  co_await trained::pass(std::move(t), part, &report, outcome, &ended);
  if (*outcome) co_return;
  for (rank_id r = 0; r < w->ranks.size(); ++r) {
    if (r != self) (*w)[r].on_ended(self, (*w)[self].cause_of(outcome->reason()));
  }
}

}  // namespace

TEST_CASE("a schedule that differs between the last two of four ranks is named on all four, even on the first") {
  std::uint32_t microbatches = 5;
  std::string differ = ", of 4 stages and ";
  SUBCASE("in its size") {}
  SUBCASE("in its actions alone") {
    microbatches = 4;
    differ = ", with other actions, both of 4 stages and 4 microbatches; give all ranks the same, as "
             "parley::text_of(schedule) shows it";
  }
  world w(4);
  std::vector<std::unique_ptr<part_of_model>> parts;
  std::vector<result<>> outcomes(4);
  scope all(w.clock);
  for (rank_id r = 0; r < 4; ++r) {
    training_pipeline_options op;
    op.name = "layers";
    op.schedule = r == 3 ? gpipe(4, microbatches) : one_forward_one_backward(4, 4);
    op.timeout = 1s;
    parts.push_back(std::make_unique<part_of_model>(4, 1000));
    all.spawn(pass_or_leave(&w, r, training_pipeline(w[r], op), parts[r].get(), &outcomes[r]));
  }
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(w.clock.now() < 100'000'000);  // a tenth of the timeout
  for (rank_id r = 0; r < 4; ++r) {
    CAPTURE(r);
    INFO((outcomes[r] ? "" : outcomes[r].reason().what()));
    CHECK((outcomes[r].code() == errc::declaration_mismatch || (r < 2 && outcomes[r].code() == errc::peer_failed)));
    CHECK((says(outcomes[r], "op layers: rank 2 and this rank 3 run schedules that differ" + differ) ||
           says(outcomes[r], "op layers: rank 3 and this rank 2 run schedules that differ" + differ)));
  }
}

TEST_CASE("a pass that times out says which step waits for which rank, and what that rank does") {
  world w(2);
  std::vector<std::unique_ptr<part_of_model>> parts;
  std::vector<pipeline_report> reports(2);
  std::vector<result<>> outcomes(2);
  std::vector<time_ns> ended(2);
  std::vector<training_pipeline> handles;
  for (rank_id r = 0; r < 2; ++r) {
    training_pipeline_options op;
    op.name = "layers";
    op.schedule = gpipe(2, 4);
    op.timeout = 1s;
    parts.push_back(std::make_unique<part_of_model>(2, 1000));
    handles.emplace_back(w[r], op);
  }
  const auto both = [&] {
    scope all(w.clock);
    for (rank_id r = 0; r < 2; ++r)
      all.spawn(trained::pass(handles[r], parts[r].get(), &reports[r], &outcomes[r], &ended[r]));
    run_until(w.clock, [&] { return all.running() == 0; });
  };
  bool first = true;
  SUBCASE("in its first pass") {}
  SUBCASE("in a later pass") { first = false; }
  if (!first) both();
  scope one(w.clock);
  one.spawn(trained::pass(handles[1], parts[1].get(), &reports[1], &outcomes[1], &ended[1]));
  run_until(w.clock, [&] { return one.running() == 0; });
  const std::string text = outcomes[1] ? "" : outcomes[1].reason().what();
  MESSAGE(text);
  CHECK(is(outcomes[1], {.code = errc::timeout, .rank = 1, .peer = 0, .unmet = awaited::message, .quotes = "1F0"}));
  CHECK(text.find("; rank 0 has sent ") != std::string::npos);
  CHECK(text.find("; it is not waiting in any call") != std::string::npos);
}

TEST_CASE("a schedule for more ranks than there are is refused with both numbers") {
  world w(2);
  training_pipeline_options op;
  op.name = "layers";
  op.schedule = gpipe(3, 2);
  for (rank_id r = 0; r < 2; ++r) {
    CHECK_THROWS_WITH_AS(training_pipeline(w[r], op),
                         doctest::Contains("op layers: its schedule is for 3 ranks, and the world has 2"), failure);
  }
}

TEST_CASE(
    "a run of a training pipeline that begins while another one is in progress is refused, and disturbs nothing") {
  world w(2);
  std::vector<std::unique_ptr<part_of_model>> parts;
  std::vector<pipeline_report> reports(4);
  std::vector<result<>> outcomes(4);
  std::vector<time_ns> ended(4);
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) {
    training_pipeline_options op;
    op.name = "layers";
    op.schedule = gpipe(2, 4);
    op.timeout = 1s;
    const training_pipeline pipe(w[r], op);
    for (const std::size_t i : {r, r + 2U}) {
      parts.push_back(std::make_unique<part_of_model>(2, 1000));
      all.spawn(trained::pass(pipe, parts.back().get(), &reports[i], &outcomes[i], &ended[i]));
    }
  }
  run_until(w.clock, [&] { return all.running() == 0; });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(outcomes[r]);
    CHECK(is(outcomes[r + 2],
             {.code = errc::bad_argument, .quotes = "op layers: a run of it is in progress on this rank"}));
  }
}

TEST_CASE("after a rejoin the end of the failed run does not let a run begin beside the next one") {
  world w(1);
  neighbours around(op_host::of(w[0]).services(), {}, {.op = "layers", .listed = {}, .timeout_ns = 0});
  const std::uint64_t failed = around.begin_run();
  CHECK_THROWS_AS(around.begin_run(), failure);
  around.begin_anew();
  const std::uint64_t next = around.begin_run();
  around.end_run(failed);
  CHECK_THROWS_AS(around.begin_run(), failure);
  around.end_run(next);
  CHECK_NOTHROW(around.begin_run());
}

TEST_CASE("gradients that their stage receives only after many others block no rank") {
  // One rank works breadth first, the other alternates between its stages backward. Messages stay with their sender until received.
  constexpr int microbatches = 100;
  std::string breadth, turns;
  const auto add = [](std::string& list, const std::string& action, int m) {
    list += action + std::to_string(m) + ", ";
  };
  for (const char* action : {"0F", "2F", "2B", "0B"}) {
    for (int m = 0; m < microbatches; ++m) add(breadth, action, m);
  }
  for (const char* action : {"1F", "3F"}) {
    for (int m = 0; m < microbatches; ++m) add(turns, action, m);
  }
  for (int m = 0; m < microbatches; ++m) {
    add(turns, "3B", m);
    add(turns, "1B", m);
  }
  trained t(own_schedule(breadth + "\n" + turns + "\n"), 1'000, {});
  for (const auto& part : t.parts) part->elements = 2000;
  t.run(5'000'000'000);
  for (const auto& outcome : t.outcomes) CHECK_MESSAGE(outcome, (outcome ? "" : outcome.reason().what()));
}

TEST_CASE("a training pipeline refuses a schedule that is empty or does not fit its ranks") {
  world w(2);
  training_pipeline_options op;
  op.name = "layers";
  CHECK_THROWS_WITH_AS(training_pipeline(w[0], op), "bad_argument: op layers: schedule: it is empty", failure);
  op.schedule = gpipe(3, 2);
  CHECK_THROWS_AS(training_pipeline(w[0], op), failure);
  op.ranks = {0, 1};
  CHECK_THROWS_WITH_AS(training_pipeline(w[0], op),
                       "bad_argument: op layers: its schedule is for 3 ranks, and 2 are named", failure);
  op.schedule = gpipe(1, 2);
  op.ranks = {1};
  CHECK(training_pipeline(w[0], op).idle());
}

namespace {
/// Host memory that counts the bytes that are allocated.
struct counting_space final : parley::tests::memory_of_host {
  struct counted final : block {
    counted(counting_space& s, std::size_t bytes) : space(s), mine(bytes) { space.live += bytes; }
    ~counted() override { space.live -= mine.size(); }
    std::span<std::byte> bytes() const noexcept override { return mine; }
    counting_space& space;
    mutable std::vector<std::byte> mine;
  };
  std::unique_ptr<block> make(std::size_t bytes) override { return std::make_unique<counted>(*this, bytes); }
  std::size_t live = 0;
};
}  // namespace

TEST_CASE("a training pipeline whose passes differ in size frees the memory of earlier passes") {
  counting_space space;
  trained t(one_forward_one_backward(2, 2));
  std::vector<training_pipeline> handles;
  for (rank_id r = 0; r < 2; ++r) {
    training_pipeline_options op = t.op_of(1'000'000'000);
    op.memory = &space;
    handles.emplace_back(t.w[r], op);
  }
  std::size_t after_first = 0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < 50; ++i) {
    for (auto& p : t.parts) p->elements = width + i;
    t.run(handles);
    for (const auto& o : t.outcomes) CHECK((o ? "" : o.reason().what()) == "");
    if (i == 0) after_first = space.live;
    most = std::max(most, space.live);
  }
  CHECK(after_first != 0);
  CHECK(most < 20 * after_first);
}

// A rank's thread computes inside a turn of its loop. Its clock advances meanwhile and no other event of the rank is handled. Operations
// that it begins afterwards still have their full timeout.
#include <parley/tests/support/cases/training_case.hpp>

#include <parley/actors/agreement/participant.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/halo.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/p2p.hpp>
#include <parley/pipeline.hpp>
#include <parley/program.hpp>
#include <parley/ring_attention.hpp>
#include <parley/simulation/programs/collectives.hpp>
#include <parley/simulation/world/network.hpp>
#include <parley/symmetric.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::simulation;

namespace {

// All ops have the default timeout of 30 s; workers wait for an eighth longer. Rank 1 computes for longer than both in the turn in which
// it calls, and rank 0 calls a little later.
constexpr time_ns computed = 36_s;
constexpr time_ns until_rank_0_comes = 36'300'000'000;

bool goes_well(const rank_function& rank_main) {
  world_options two;
  two.settings.flight_records = 1U << 12U;
  return run_virtual(two, rank_main);
}

task<> come_later() {
  auto slept = co_await sleep_for(std::chrono::nanoseconds(until_rank_0_comes));
  slept.value();
}

template <class Op>
Op between_two(const char* name) {
  Op op;
  op.name = name;
  op.configs = {direct()};
  return op;
}

task<> receives(rank& self) {
  auto op = between_two<transfer_options>("activations");
  op.edges = {{0, 1}};
  transfer t(self, op);
  std::vector<std::byte> data(10'000);
  if (self.id() == 0) {
    co_await come_later();
    co_await t.send(data, {.to = 1});
  } else {
    self.where().spend(computed);
    co_await t.receive(data, {.from = 0});
  }
}

// More bytes than a link buffers, so that the send waits for the receive.
task<> sends(rank& self) {
  auto op = between_two<transfer_options>("gradients");
  op.edges = {{1, 0}};
  transfer t(self, op);
  std::vector<std::byte> data(1'000'000);
  if (self.id() == 0) {
    co_await come_later();
    co_await t.receive(data, {.from = 1});
  } else {
    self.where().spend(computed);
    co_await t.send(data, {.to = 0});
  }
}

task<> sum_up(rank& self, std::vector<rank_id> members) {
  collective_options op;
  op.name = "sums";
  op.groups = {std::move(members)};
  collective g(self, op);
  std::vector<int> x(1'000, 1);
  if (self.id() == 0) {
    co_await come_later();
  } else {
    self.where().spend(computed);
  }
  co_await g.all_reduce(std::span(x));
  CHECK(x[0] == 2);
}
task<> sums_up(rank& self) { return sum_up(self, {0, 1}); }
task<> leads_a_sum(rank& self) { return sum_up(self, {1, 0}); }

task<> halo_in_flow(dataflow& flow, rank* self, halo_plan* plan) {
  if (self->id() == 0) {
    co_await come_later();
  } else {
    self->where().spend(computed);
  }
  auto moving = plan->start(flow);
  co_await moving;
}
task<> exchanges_rims(rank& self) {
  auto op = between_two<halo_options>("rims");
  op.ranks = {2};
  halo h(self, op);
  std::vector<std::uint32_t> cells(10 + 2, self.id());
  const std::vector<halo_field> fields{grid_field(cells, {10})};
  halo_plan plan = h.plan(fields);
  co_await with_dataflow(halo_in_flow, &self, &plan);
  CHECK(cells[self.id() == 0 ? 11 : 0] == 1 - self.id());
}

task<> attends(rank& self) {
  ring_attention ring(self, between_two<ring_attention_options>("attention"));
  const attention_shape shape{.heads = 1, .rows = 4, .dimensions = 8};
  const std::vector<double> given(shape.elements(), 0.5);
  std::vector<double> out(shape.elements());
  if (self.id() == 0) {
    co_await come_later();
  } else {
    self.where().spend(computed);
  }
  co_await ring.forward<double>(shape, given, given, given, std::span(out));
  CHECK(out[0] == doctest::Approx(0.5));
}

struct one_more final : pipeline_work {
  task<> work(std::uint64_t, std::span<std::byte> activation) override {
    activation[0] = std::byte{static_cast<unsigned char>(std::to_integer<int>(activation[0]) + 1)};
    last = activation[0];
    co_return;
  }
  std::byte last{};
};
task<> hands_on(rank& self) {
  pipeline pipe(self, between_two<pipeline_options>("stages"));
  const std::array<std::uint64_t, 2> bytes{10'000, 10'000};
  one_more stage;
  if (self.id() == 0) {
    co_await come_later();
  } else {
    self.where().spend(computed);
  }
  co_await pipe.run(bytes, stage);
}

task<> trains(rank& self) {
  auto op = between_two<training_pipeline_options>("layers");
  op.schedule = one_forward_one_backward(2, 2);
  training_pipeline t(self, op);
  tests::training_case::part_of_model mine(2, 2'000);
  if (self.id() == 0) {
    co_await come_later();
  } else {
    self.where().spend(computed);
  }
  const auto report = co_await t.run(mine);
  CHECK(report.sent == 2);
}

task<> waits_for_who_computes(rank& self) {
  auto op = between_two<transfer_options>("activations");
  op.edges = {{1, 0}};
  transfer t(self, op);
  std::vector<std::byte> data(10'000);
  if (self.id() == 1) {
    self.where().spend(computed);
    co_await t.send(data, {.to = 0});
    co_return;
  }
  auto late = co_await attempt(t.receive(data, {.from = 1}));
  REQUIRE(late.code() == errc::timeout);
  const std::string text = late.reason().what();
  CAPTURE(text);
  CHECK(text.find("; rank 1 has not said in 500 ms what it is doing: its event loop has not run for 30.0 s, so that "
                  "rank is stopped, or computes") != std::string::npos);
  co_await t.receive(data, {.from = 1});
}

enum class limit : std::uint8_t { of_each, of_all };
task<> batch_in_flow(dataflow& flow, rank* self, p2p messages, limit l) {
  std::vector<std::byte> data(10'000);
  const batch_options o{.timeout = std::chrono::nanoseconds(l == limit::of_all ? 30_s : never)};
  if (self->id() == 0) {
    co_await come_later();
    auto sent = messages.start(flow, {messages.isend(data, {.to = 1})}, o);
    co_await sent;
  } else {
    self->where().spend(computed);
    auto got = messages.start(flow, {messages.irecv(data, {.from = 0})}, o);
    co_await got;
  }
}
task<> in_a_batch(rank& self) {
  p2p messages(self, between_two<p2p_options>("ring"));
  co_await with_dataflow(batch_in_flow, &self, messages, limit::of_each);
}
task<> in_a_limited_batch(rank& self) {
  p2p messages(self, between_two<p2p_options>("ring"));
  co_await with_dataflow(batch_in_flow, &self, messages, limit::of_all);
}

// Candidates are rehearsed one after the other. Both ranks compute at the end of each rehearsal, for so long that the next rehearsal would
// exceed its limit if the limit were counted from the time at which the turn began.
constexpr time_ns longer_than_a_rehearsal_may_last = 25_s;
task<> wait_then_compute() {
  auto slept = co_await sleep_for(20us);
  slept.value();
  scope& here = co_await this_scope;
  here.where().spend(longer_than_a_rehearsal_may_last);
}
class busy final : public paired_config {
 public:
  explicit busy(const std::string& name) : paired_config({.name = name, .wire_class = name}) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    co_await out.send(0, data);
    co_await wait_then_compute();
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    co_await in.receive(0, data);
    co_await in.drain();
    co_await wait_then_compute();
  }
};
task<> rehearses(rank& self) {
  auto op = between_two<transfer_options>("activations");
  op.edges = {{0, 1}};
  op.configs = {direct(), std::make_shared<busy>("first"), std::make_shared<busy>("second"),
                std::make_shared<busy>("third")};
  transfer t(self, op);
  std::vector<std::byte> data(10'000);
  for (int i = 0; i < 3; ++i) {
    if (self.id() == 0) {
      co_await t.send(data, {.to = 1});
    } else {
      co_await t.receive(data, {.from = 0});
    }
    auto slept = co_await sleep_for(120s);
    slept.value();
  }
  const actors::participant_state& mine = *self.participants().front();
  CHECK(mine.ready.size() == 4);
  CHECK(mine.failed_here.empty());
  for (const std::string& why : mine.warm_errors) FAIL_CHECK(why);
}

// A call whose members synchronize without any parley header.
class meeting final : public symmetric_config {
 public:
  explicit meeting(const std::string& name) : symmetric_config({.name = name, .wire_class = name}) {}
  task<> run(symmetric_call, std::span<std::byte>) const override {
    auto slept = co_await sleep_for(20us);
    slept.value();
  }
};
task<> calls_without_headers(rank& self) {
  symmetric_options op;
  op.name = "sums";
  op.configs = {std::make_shared<meeting>("forward"), std::make_shared<meeting>("backward")};
  op.communicator = std::make_shared<communicator>();
  symmetric g(self, std::move(op));
  std::vector<std::byte> data(1'000);
  for (int i = 0; i < 3; ++i) {
    self.where().spend(computed);
    co_await g.run(data);
  }
}

}  // namespace

TEST_CASE("a call's timeout counts from the call, even if its rank has computed for longer in the same turn") {
  SUBCASE("receive") { CHECK(goes_well(receives)); }
  SUBCASE("send") { CHECK(goes_well(sends)); }
  SUBCASE("group") { CHECK(goes_well(sums_up)); }
  SUBCASE("group, by its leader") { CHECK(goes_well(leads_a_sum)); }
  SUBCASE("halo") { CHECK(goes_well(exchanges_rims)); }
  SUBCASE("attention") { CHECK(goes_well(attends)); }
  SUBCASE("pipeline") { CHECK(goes_well(hands_on)); }
  SUBCASE("training") { CHECK(goes_well(trains)); }
  SUBCASE("batch") { CHECK(goes_well(in_a_batch)); }
  SUBCASE("batch with a limit of its own") { CHECK(goes_well(in_a_limited_batch)); }
  SUBCASE("leases") { CHECK(goes_well(calls_without_headers)); }
  SUBCASE("rehearsals") { CHECK(goes_well(rehearses)); }
}

TEST_CASE("the error of a receive that times out says that its sender computes and for how long") {
  CHECK(goes_well(waits_for_who_computes));
}

// PARLEY_PATIENCE, for programs that something slows down: it multiplies each timeout of an op, and nothing else.
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/services.hpp>
#include <parley/config.hpp>
#include <parley/contextual.hpp>
#include <parley/group_config.hpp>
#include <parley/p2p.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns limit_ns = 10'000'000;

// Rank 0 makes a call that needs rank 1, and rank 1 never makes its part.
struct lonely_call {
  const char* name;
  task<> (*run)(rank& self);
};

transfer_options pair_within_limit() {
  auto op = pair_of({direct()});
  op.timeout = std::chrono::nanoseconds(limit_ns);
  return op;
}
task<> send(rank& self) {
  transfer op(self, pair_within_limit());
  const std::vector<std::byte> data(1 << 20);
  co_await op.send(data, {.to = 1});
}
task<> send_within(rank& self) {
  transfer op(self, pair_of({direct()}));
  const std::vector<std::byte> data(1 << 20);
  co_await op.send(data, {.to = 1, .timeout = std::chrono::nanoseconds(limit_ns)});
}
task<> decide(rank& self) {
  transfer op(self, pair_within_limit());
  auto d = co_await op.to(1).decided(1000);
  static_cast<void>(d);
}
task<> sum(rank& self) {
  auto op = led_by(0, {star()});
  op.timeout = std::chrono::nanoseconds(limit_ns);
  collective group(self, op);
  std::vector<float> x(1000);
  co_await group.all_reduce(std::span(x));
}
task<> receive_from_itself(rank& self) {
  p2p_options op;
  op.name = "pairs";
  op.timeout = std::chrono::nanoseconds(limit_ns);
  p2p pairs(self, op);
  int got = 0;
  co_await with_dataflow(
      [](dataflow& flow, p2p of, int* into) -> task<> {
        auto batch = of.start(flow, {p2p::irecv(std::span(into, 1), {.from = 0})});
        co_await batch;
      },
      pairs, &got);
}
task<> receive_in_batch(rank& self) {
  p2p_options op;
  op.name = "pairs";
  p2p pairs(self, op);
  int got = 0;
  co_await with_dataflow(
      [](dataflow& flow, p2p of, int* into) -> task<> {
        auto batch = of.start(flow, {p2p::irecv(std::span(into, 1), {.from = 1})},
                              {.timeout = std::chrono::nanoseconds(limit_ns)});
        co_await batch;
      },
      pairs, &got);
}
contextual_options layer_within_limit() {
  contextual_options op;
  op.name = "layer";
  op.log_folder.clear();
  op.timeout = std::chrono::nanoseconds(limit_ns);
  return op;
}
task<> run_for_ever(rank& self) {
  contextual layer(self, layer_within_limit());
  co_await layer.run([]() -> task<> {
    auto woken = co_await sleep_until(never - 1);
    if (!woken) raise(woken.reason());
  });
}

const std::vector<lonely_call>& lonely_calls() {
  static const std::vector<lonely_call> all{{"send", send},
                                            {"send with a time-out of its own", send_within},
                                            {"wait for a decision", decide},
                                            {"sum of a group", sum},
                                            {"receive from itself", receive_from_itself},
                                            {"receive of a batch", receive_in_batch},
                                            {"run of a contextual function", run_for_ever}};
  return all;
}

task<> ended(const lonely_call* call, rank* self, result<>* how, time_ns* at_ns) {
  scope& here = co_await this_scope;
  std::exception_ptr thrown;
  try {
    co_await call->run(*self);
  } catch (...) {
    thrown = std::current_exception();
  }
  *at_ns = here.where().now();
  *how = thrown ? result<>(describe(thrown)) : result<>();
}

}  // namespace

TEST_CASE("patience multiplies the time that a call waits, whatever the call waits for, and no call waits longer") {
  for (const lonely_call& call : lonely_calls()) {
    CAPTURE(call.name);
    for (const std::uint32_t patience : {1U, 7U}) {
      CAPTURE(patience);
      rank_settings settings;
      settings.patience = patience;
      world w(2, settings);
      result<> how = errc::pending;
      time_ns at_ns = 0;
      scope all(w.clock);
      all.spawn(ended(&call, &w[0], &how, &at_ns));
      run_until(w.clock, [&] { return all.running() == 0; });
      CHECK_MESSAGE(how.code() == errc::timeout, how.reason().what());
      CHECK(at_ns >= patience * limit_ns);
      CHECK(at_ns < patience * limit_ns * 5 / 4);
    }
  }
}

TEST_CASE("a call without a timeout has none with patience") {
  rank_settings settings;
  settings.patience = 1000;
  world w(1, settings);
  CHECK(w[0].services().patient(never) == never);
  CHECK(w[0].services().patient(never / 2) == never);
  CHECK(w[0].services().until(limit_ns) == w.clock.deadline_in(1000 * limit_ns));
}

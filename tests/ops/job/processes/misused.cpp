// Errors of the program: too small a receive buffer, and declarations that differ.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::is;
using parley::tests::pair_of;
using parley::tests::say;
using parley::tests::say_error;

namespace {

task<> say_outcome(transfer t, rank& self, std::size_t sent, std::size_t room, const char* call) {
  std::vector<std::byte> data(self.id() == 0 ? sent : room);
  const auto say_how = [call](const auto& outcome) {
    if (outcome) {
      say("fine");
    } else {
      say_error(call, outcome.reason());
    }
  };
  if (self.id() == 0) {
    auto outcome = co_await attempt(t.send(data, {.to = 1}));
    say_how(outcome);
  } else {
    auto outcome = co_await attempt(t.receive(data, {.from = 0}));
    say_how(outcome);
  }
}
void too_small(job& here) {
  transfer t(here.self(), pair_of({direct()}));
  run(here.loop(), say_outcome(t, here.self(), 1000, 999, "first call"));
  run(here.loop(), say_outcome(t, here.self(), 1 << 20, (1 << 20) - 1, "second call"));
  run(here.loop(), say_outcome(t, here.self(), 1000, 1000, "last call"));
}
const scenario as_too_small{"too_small", too_small};

}  // namespace

TEST_CASE("a receive with too small a buffer fails with both sizes, and the next call succeeds") {
  const job_run run("too_small", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(is(run.error_of(1, "first call"), {.code = errc::buffer_too_small,
                                                   .op = "activations 0->1",
                                                   .rank = 1,
                                                   .role = "receiver",
                                                   .invocation = 0,
                                                   .whole_bytes = 1000,
                                                   .own_bytes = 999}),
                run.all);
  CHECK_MESSAGE(is(run.error_of(1, "second call"),
                   {.code = errc::buffer_too_small, .invocation = 1, .whole_bytes = 1'048'576, .own_bytes = 1'048'575}),
                run.all);
  CHECK_MESSAGE(run.says(1, {"fine"}), run.all);
}

namespace {

task<> until_refused(transfer t, rank& self) {
  const agreement with = self.id() == 0 ? t.to(1) : t.from(0);
  auto refused = co_await attempt(with.decided(1000, {.timeout = 60s}));
  expect(!refused && refused.code() != errc::timeout, "the declaration is refused");
}
void mismatch(job& here) {
  auto op = pair_of({direct()});
  op.dtype = here.self().id() == 0 ? "bf16" : "fp32";
  transfer t(here.self(), op);
  run(here.loop(), until_refused(t, here.self()));
  run(here.loop(), say_outcome(t, here.self(), 1000, 1000, "last call"));
}
const scenario as_mismatch{"mismatch", mismatch};

}  // namespace

TEST_CASE("when two ranks declare an op differently, both get an error with both values") {
  const job_run run("mismatch", 2);
  for (const rank_id r : {rank_id{0}, rank_id{1}}) {
    CAPTURE(r);
    for (const char* declared : {"dtype bf16", "dtype fp32"})
      CHECK_MESSAGE(is(run.error_of(r, "last call"),
                       {.code = errc::declaration_mismatch, .op = "activations 0->1", .quotes = declared}),
                    run.all);
  }
}

namespace {

void refused_after_sending(job& here) {
  auto op = pair_of({direct()});
  op.dtype = here.self().id() == 0 ? "bf16" : "fp32";
  transfer t(here.self(), op);
  std::vector<std::byte> buffer(1000);
  if (here.self().id() == 0) run(here.loop(), send_three(t));
  say("no call has failed");
}
const scenario as_refused_after_sending{"refused_after_sending", refused_after_sending};

}  // namespace

TEST_CASE("a refused declaration makes the exit status 1, even if no call has noticed it") {
  const job_run run("refused_after_sending", 2);
  for (const rank_id r : {rank_id{0}, rank_id{1}}) {
    CHECK_MESSAGE(run.says(r, {"no call has failed"}), run.all);
    CHECK_MESSAGE(run.says(r, {"declaration_mismatch: activations 0->1"}), run.all);
    CHECK(run.end.ranks[r].kind == transports::rank_end::how::exited);
    CHECK(run.end.ranks[r].code == 1);
  }
}

// What ranks do in a contextual call to which another rank comes too late, or never.
#include <parley/tests/ops/leased/two_kernels.hpp>
#include <parley/tests/support/errors.hpp>

#include <parley/actors/policy.hpp>
#include <parley/contextual.hpp>
#include <parley/error.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/tunable_context.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::contextual_layers;

namespace {

struct late_ranks : two_kernels {
  explicit late_ranks(rank_id n, const contextual_options& op = table())
      : two_kernels(n, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}), op) {}
  void check_ended(rank_id r) {
    CAPTURE(r);
    CHECK((outcomes[r] ? "" : outcomes[r].reason().what()) == "");
  }
  std::string best(rank_id r) { return layers[r].end().best("kernel-1", "n=8"); }
  std::size_t warned(rank_id r) { return ranks[r]->kernels().warnings().size(); }
};

/// Computes for `ns` before its kernels.
task<> both_after(two_kernels* w, rank_id r, time_ns ns) {
  static_cast<void>(co_await sleep_until(w->clock.deadline_in(ns)));
  co_await both_kernels(w, r, 8);
}

}  // namespace

TEST_CASE("a call to which a rank comes late ends on all ranks without a decision, and the next call decides") {
  late_ranks w(3);
  scope calls(w.clock);
  const auto f = with_key(w, 8);
  const time_ns began = w.clock.now();
  for (const rank_id r : {0U, 1U}) calls.spawn(tuned(&w, r, f));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(w.clock.now() - began < 1'100'000'000);
  for (const rank_id r : {0U, 1U}) {
    w.check_ended(r);
    CHECK(w.best(r).empty());
    REQUIRE(w.warned(r) == 1);
    const std::string& said = w[r].kernels().warnings().front();
    CHECK(said.find("rank 2 did not finish this invocation in time; rank 2 has made 0 calls of it") !=
          std::string::npos);
  }
  call_on(w, f, {2});  // the same call
  w.check_ended(2);
  CHECK(w.runs[2] == 1);
  CHECK(w.ran_1[2].order == order{0});
  call_all(w, f);
  for (rank_id r = 0; r < 3; ++r) {
    w.check_ended(r);
    CHECK(w.best(r) == "config_1");
  }
}

TEST_CASE("a rank whose run takes longer than the others wait gets its results, and they theirs") {
  late_ranks w(3);
  // A run may take a second, and the others wait for a second.
  const program f = [&](rank_id r) { return both_after(&w, r, r == 2 && w.runs[2] == 0 ? 999'900'000 : 0); };
  scope calls(w.clock);
  for (const rank_id r : {0U, 1U}) calls.spawn(tuned(&w, r, f));
  const auto last = [&]() -> task<> {
    static_cast<void>(co_await sleep_until(w.clock.deadline_in(500'000)));
    co_await tuned(&w, 2, f);
  };
  calls.spawn(last());
  run_until(w.clock, [&] { return calls.running() == 0; });
  for (rank_id r = 0; r < 3; ++r) {
    w.check_ended(r);
    CHECK(w.best(r).empty());
    CHECK(w.runs[r] == 1);
  }
  call_all(w, f);
  for (rank_id r = 0; r < 3; ++r) {
    w.check_ended(r);
    CHECK(w.best(r) == "config_1");
  }
}

TEST_CASE("after a third late call in a row the defaults stay on all ranks, also on the late one when it comes") {
  late_ranks w(3);
  const auto f = with_key(w, 8);
  for (std::size_t i = 1; i <= 3; ++i) {
    call_on(w, f, {0, 1});
    for (const rank_id r : {0U, 1U}) {
      w.check_ended(r);
      CHECK(w.best(r) == (i < 3 ? "" : "config_0"));
    }
  }
  CHECK(w.layers[1].decision("kernel-1", "n=8").why.find("rank 2 did not finish this invocation in time") !=
        std::string::npos);
  const time_ns began = w.clock.now();
  for (int i = 0; i < 3; ++i) {
    call_on(w, f, {2});
    w.check_ended(2);
  }
  call_all(w, f);
  CHECK(w.clock.now() - began < 100'000'000);
  for (rank_id r = 0; r < 3; ++r) {
    w.check_ended(r);
    CHECK(w.best(r) == "config_0");
    CHECK(w.layers[r].decision("kernel-1", "n=8").source == actors::decision_source::only_default);
  }
  call_all(w, with_key(w, 9));  // other keys are tuned
  for (rank_id r = 0; r < 3; ++r) CHECK(w.layers[r].end().best("kernel-1", "n=9") == "config_1");
}

TEST_CASE("a late call between calls that all ranks come to in time is not counted with later ones") {
  late_ranks w(2);
  for (std::uint64_t key = 8; key < 14; ++key) {
    call_on(w, with_key(w, key), {0});
    call_on(w, with_key(w, key), {1});
    call_all(w, with_key(w, key));
    for (rank_id r = 0; r < 2; ++r) {
      w.check_ended(r);
      CHECK(w.layers[r].end().best("kernel-1", "n=" + std::to_string(key)) == "config_1");
    }
  }
}

TEST_CASE("ranks that share the work go on without a late rank, and share it in the next call") {
  contextual_options op = late_ranks::table();
  op.share = true;
  late_ranks w(3, op);
  const auto f = with_key(w, 8);
  call_on(w, f, {0, 1});
  for (const rank_id r : {0U, 1U}) w.check_ended(r);
  call_on(w, f, {2});
  w.check_ended(2);
  call_all(w, f);
  for (rank_id r = 0; r < 3; ++r) {
    w.check_ended(r);
    CHECK(w.best(r) == "config_1");
  }
}

TEST_CASE("whichever ranks are late and whatever is lost, calls end, and all ranks agree once they are in time") {
  std::size_t late = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    random_stream dice(seed, 11);
    late_ranks w(3);
    std::uint64_t lost_of_64 = 0;
    w.links.options().lose = [&](rank_id, rank_id, link::channel) { return dice.below(64) < lost_of_64; };
    const auto f = with_key(w, 8);
    const auto coming = [&](rank_id r, time_ns after) -> task<> {
      static_cast<void>(co_await sleep_until(w.clock.deadline_in(after)));
      co_await tuned(&w, r, f);
    };
    for (int i = 0; i < 4; ++i) {
      lost_of_64 = dice.below(2) == 0 ? 0 : dice.below(60);
      scope calls(w.clock);
      for (rank_id r = 0; r < 3; ++r)
        calls.spawn(coming(r, dice.below(3) == 0 ? static_cast<time_ns>(dice.below(3'000)) * 1'000'000 : 0));
      run_until(w.clock, [&] { return calls.running() == 0; });
      for (rank_id r = 0; r < 3; ++r) {
        late += w.outcomes[r] && w.best(r).empty() ? 1 : 0;
        // A silent leader is a time-out; nothing else fails.
        CHECK((w.outcomes[r] || w.outcomes[r].code() == errc::timeout));
      }
    }
    lost_of_64 = 0;
    for (int i = 0; i < 2; ++i) call_all(w, f);
    for (rank_id r = 0; r < 3; ++r) {
      w.check_ended(r);
      CHECK_FALSE(w.best(r).empty());
      CHECK(w.best(r) == w.best(0));
      run_until(w.clock, [&] { return !w.layers[r].end().owes_messages(); });
    }
  }
  CHECK(late > 100);
}

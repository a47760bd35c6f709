// Contextual ops in which something fails: a config, the thunk, a rank that dies or never calls, a run that takes too long.
#include <parley/tests/ops/leased/two_kernels.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/contextual.hpp>
#include <parley/error.hpp>
#include <parley/ops/job/rank_settings.hpp>
#include <parley/ops/leased/contextual_agreement.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/tunable_context.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::contextual_layers;

TEST_CASE("a config that fails on one rank is excluded on all, and a config that has not failed runs in its place") {
  for (const rank_id n : {1U, 3U}) {
    CAPTURE(n);
    const auto broken = [n](rank_id r, std::size_t c, std::size_t) -> time_ns {
      return c == 1 && r == n - 1 ? -1 : c == 1 ? 100 : 5'000;
    };
    two_kernels w(n, broken, takes({3'000, 1'000, 2'000}));
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < n; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 7);
      CHECK(w.layers[r].end().best("kernel-0", "n=8") == "config_0");
    }
    CHECK(w.ran_0[n - 1].order == order{0, 0, 1, 0, 0, 0, 0, 0});
    CHECK(w.log(n - 1).find("config-id: 1 | config: {config_1} | measure-iter: 1 | config-1 average latency: inf ms") !=
          std::string::npos);
    CHECK(w.log(n - 1).find("config-id: 1 | config: {config_1} | failed: throws: unavailable: out of registers\n") !=
          std::string::npos);
    REQUIRE(w[n - 1].kernels().warnings().size() == 1);
    CHECK(w[n - 1].kernels().warnings()[0].find("config config_1 throws: unavailable: out of registers") !=
          std::string::npos);
  }
}

TEST_CASE("a config that was fast before it failed does not win") {
  const auto fails_later = [](rank_id r, std::size_t c, std::size_t n) -> time_ns {
    return c == 1 ? (r == 1 && n == 1 ? -1 : 100) : 5'000;
  };
  two_kernels w(2, fails_later, takes({3'000, 1'000, 2'000}));
  call_all(w, with_key(w, 8));
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.layers[r].end().best("kernel-0", "n=8") == "config_0");
  }
}

TEST_CASE("when any one config fails, even the default, every rank decides for another one") {
  for (const rank_id n : {1U, 3U}) {
    for (const std::size_t failing : {0U, 1U, 2U}) {
      CAPTURE(n);
      CAPTURE(failing);
      const auto broken = [failing](rank_id r, std::size_t c, std::size_t) -> time_ns {
        return c == failing && r == 0 ? -1 : static_cast<time_ns>(1'000 * (c + 1));
      };
      two_kernels w(n, takes({2'000, 1'000}), broken);
      call_all(w, with_key(w, 8));
      for (rank_id r = 0; r < n; ++r) {
        CHECK(w.outcomes[r]);
        CHECK(w.runs[r] == 7);
        CHECK(w.layers[r].end().best("kernel-1", "n=8") == (failing == 0 ? "config_1" : "config_0"));
      }
    }
  }
}

TEST_CASE("when every config has failed, on one rank or on different ones, every rank gets config_failed") {
  const auto all_on_one = [](rank_id r, std::size_t, std::size_t) -> time_ns { return r == 0 ? -1 : 1'000; };
  const auto one_on_each = [](rank_id r, std::size_t c, std::size_t) -> time_ns { return c == r ? -1 : 1'000; };
  for (const rank_id n : {1U, 3U}) {
    for (const bool on_one : {true, false}) {
      if (n == 1 && !on_one) continue;
      CAPTURE(n);
      CAPTURE(on_one);
      bool cured = false;
      const auto broken = [&](rank_id r, std::size_t c, std::size_t i) -> time_ns {
        return cured ? 1'000 : on_one ? all_on_one(r, c, i) : one_on_each(r, c, i);
      };
      two_kernels w(n, takes({2'000, 1'000}), broken);
      const time_ns began = w.clock.now();
      call_all(w, with_key(w, 8));
      CHECK(w.clock.now() - began < 1'000'000'000);
      for (rank_id r = 0; r < n; ++r) {
        CAPTURE(r);
        REQUIRE_FALSE(w.outcomes[r]);
        CHECK(w.outcomes[r].code() == errc::config_failed);
        CHECK(w.outcomes[r].reason().what().find("cannot find valid config") != std::string::npos);
      }
      cured = true;  // the next call starts from the beginning
      call_all(w, with_key(w, 8));
      for (rank_id r = 0; r < n; ++r) CHECK(w.outcomes[r]);
    }
  }
}

TEST_CASE("an agreement that fails because of one kernel decides no kernel") {
  contextual_report fine;
  fine.kernel = "a";
  fine.complete = true;
  fine.digests = {1, 2};
  fine.average_ns = {2, 1};
  contextual_report out = fine;
  out.kernel = "b";
  out.average_ns = {-1, -1};
  const std::vector<contextual_said> said{{"alike", {fine, out}}};
  const std::vector<rank_id> members{0};
  contextual_progress progress;
  CHECK(agree(said, members, progress).code() == errc::config_failed);
  CHECK(progress.decided.empty());
}

TEST_CASE("an exception of the thunk on one rank during tuning ends the call on all ranks, wherever they wait") {
  struct failing {
    two_kernels w{3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000})};
    std::uint64_t key;
    rank_id culprit;
    std::size_t run;
    bool cured = false;
  };
  const auto thunk = [](failing* in, rank_id r) -> task<> {
    co_await both_kernels(&in->w, r, in->key);
    if (in->cured || in->w.runs[r] != in->run) co_return;
    if (r == in->culprit) raise({errc::io, "no more disk"});
    if (r != 1) co_return;
    auto woken = co_await sleep_until(never - 1);  // waits for an event that never happens
    if (!woken) raise(woken.reason());
  };
  for (const rank_id culprit : {0U, 2U}) {
    // `later`: the first call with its key, not the first call of all. Run 1 meets the key, and run 3 tries a config.
    for (const auto& [later, run] : {std::pair(false, 1U), {false, 3U}, {true, 1U}, {true, 3U}}) {
      CAPTURE(culprit);
      CAPTURE(later);
      CAPTURE(run);
      failing f{.key = later ? 9U : 8U, .culprit = culprit, .run = run};
      if (later) call_all(f.w, with_key(f.w, 8));
      for (auto& runs : f.w.runs) runs = 0;
      const time_ns began = f.w.clock.now();
      const program call = [&](rank_id r) { return thunk(&f, r); };
      call_all(f.w, call);
      CHECK(f.w.clock.now() - began < 100'000'000);
      for (rank_id r = 0; r < 3; ++r) {
        CHECK(is(f.w.outcomes[r], {.code = errc::io, .rank = r, .quotes = "no more disk"}));
      }
      f.cured = true;
      for (auto& runs : f.w.runs) runs = 0;
      call_all(f.w, call);
      for (rank_id r = 0; r < 3; ++r) {
        CHECK(f.w.outcomes[r]);
        CHECK(f.w.runs[r] == 7);
      }
    }
  }
}

TEST_CASE("a rank that waits in the last run of a first call gets the error of the rank whose run has failed") {
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  const auto thunk = [](two_kernels* all, rank_id r) -> task<> {
    co_await both_kernels(all, r, 8);
    if (all->runs[r] != 7) co_return;
    if (r == 1) raise({errc::io, "no more disk"});
    auto woken = co_await sleep_until(never - 1);
    if (!woken) raise(woken.reason());
  };
  const time_ns began = w.clock.now();
  call_all(w, [&](rank_id r) { return thunk(&w, r); });
  CHECK(w.clock.now() - began < 100'000'000);
  for (rank_id r = 0; r < 2; ++r) CHECK(w.outcomes[r].code() == errc::io);
}

TEST_CASE("a rank that waits in a run gets another rank's error, even if its own report of the previous run is late") {
  two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  time_ns failed_at = never;
  w.links.options().delay = [&](rank_id from, rank_id, link::channel) -> time_ns { return from == 1 ? 20'000'000 : 0; };
  w.links.options().lose = [&](rank_id from, rank_id to, link::channel) {
    return from == 0 && to == 1 && failed_at != never && w.clock.now() < failed_at + 10'000'000;
  };
  const auto thunk = [](two_kernels* all, rank_id r, time_ns* at) -> task<> {
    co_await both_kernels(all, r, 8);
    if (all->runs[r] != 2) co_return;
    if (r == 2) {
      *at = all->clock.now();
      raise({errc::io, "no more disk"});
    }
    if (r == 0) co_return;
    auto woken = co_await sleep_until(never - 1);
    if (!woken) raise(woken.reason());
  };
  const time_ns began = w.clock.now();
  call_all(w, [&](rank_id r) { return thunk(&w, r, &failed_at); });
  CHECK(w.clock.now() - began < 200'000'000);
  for (rank_id r = 0; r < 3; ++r) CHECK(w.outcomes[r].code() == errc::io);
}

TEST_CASE("a settled run is not affected by another rank's failure, or death") {
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  call_all(w, with_key(w, 8));
  const auto thunk = [](two_kernels* all, rank_id r) -> task<> {
    co_await both_kernels(all, r, 8);
    if (r == 1) raise({errc::io, "no more disk"});
    auto slept = co_await sleep_until(all->clock.deadline_in(50'000'000));
    if (!slept) raise(slept.reason());
  };
  scope calls(w.clock);
  const program f = [&](rank_id r) { return thunk(&w, r); };
  for (const rank_id r : {0U, 1U}) calls.spawn(tuned(&w, r, f));
  run_until(w.clock, [&] { return !w.outcomes[1]; });
  w[0].on_lost(1, "killed");
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(w.outcomes[0]);
}

TEST_CASE("when the leader never calls, the others time out and name it, and when a rank dies they get `peer_failed`") {
  for (const bool dies : {false, true}) {
    CAPTURE(dies);
    for (const rank_id missing : dies ? std::vector<rank_id>{0, 2} : std::vector<rank_id>{0}) {
      CAPTURE(missing);
      two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
      std::vector<rank_id> others{0, 1, 2};
      std::erase(others, missing);
      scope calls(w.clock);
      const auto f = with_key(w, 8);
      for (const rank_id r : others) calls.spawn(tuned(&w, r, f));
      const time_ns began = w.clock.now();
      run_until(w.clock, [&] { return w.runs[others[0]] == 1 && w.runs[others[1]] == 1; });
      if (dies) {
        for (const rank_id r : others) w[r].on_lost(missing, "killed");
      }
      run_until(w.clock, [&] { return calls.running() == 0; });
      CHECK(w.clock.now() - began < 1'200'000'000);
      for (const rank_id r : others) {
        REQUIRE_FALSE(w.outcomes[r]);
        const std::string rank = "rank " + std::to_string(missing);
        CHECK(is(w.outcomes[r],
                 {.code = dies ? errc::peer_failed : errc::timeout,
                  .rank = r,
                  .quotes = dies ? rank : "; " + rank + " has made 0 calls of it; it is not waiting in any call"}));
      }
    }
  }
}

TEST_CASE("a rank that comes to a call after the leader has lost another rank gets `peer_failed`, too") {
  two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  scope calls(w.clock);
  const auto f = with_key(w, 8);
  calls.spawn(tuned(&w, 0, f));
  run_until(w.clock, [&] { return w.runs[0] == 1; });
  w[0].on_lost(2, "killed");
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(is(w.outcomes[0], {.code = errc::peer_failed, .rank = 0, .quotes = "rank 2"}));
  calls.spawn(tuned(&w, 1, f));  // it has not heard of the death
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(is(w.outcomes[1], {.code = errc::peer_failed, .rank = 1, .quotes = "rank 2"}));
}

TEST_CASE("a run that takes too long times out on every rank, and leaves a flight record there") {
  rank_settings settings;
  settings.flight_dir = "box";
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}), two_kernels::table(), settings);
  const auto thunk = [](two_kernels* all, rank_id r) -> task<> {
    co_await both_kernels(all, r, 8);
    if (r == 1) {
      auto woken = co_await sleep_until(never - 1);
      if (!woken) raise(woken.reason());
    }
  };
  call_all(w, [&](rank_id r) { return thunk(&w, r); });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r].code() == errc::timeout);
    const std::string& left = w.disk[r].files["box/parley-flight-" + std::to_string(r) + ".json"];
    CHECK(left.find("\"why\":\"timeout: ") != std::string::npos);
    CHECK(left.find(", invocation 0, on rank " + std::to_string(r)) != std::string::npos);
  }
}

TEST_CASE("a contextual call of a rank that the others hold dead gets `fenced`, whichever news the rank heard first") {
  for (const bool told_before : {true, false}) {
    CAPTURE(told_before);
    two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
    w[1].on_lost(0, "its connection broke");
    if (told_before) w[1].on_fenced("it is held dead by the others");
    if (!told_before) w.held_dead[1] = "it is held dead by the others";
    call_on(w, with_key(w, 8), {1});
    CHECK(is(w.outcomes[1], {.code = errc::fenced, .rank = 1, .quotes = "it is held dead by the others"}));
  }
}

namespace {

task<> run_beside(timed_kernel* kernel, executor* ex, int* ended) {
  static_cast<void>(co_await sleep_until(ex->deadline_in(100)));
  co_await (*kernel)(1);
  ++*ended;
}

}  // namespace

TEST_CASE("a kernel that another coroutine calls completes even if the tuned call around it has failed") {
  world w(1);
  ran_configs ran;
  std::size_t calls = 0;
  const auto slow_beside = [&](rank_id, std::size_t, std::size_t) -> time_ns {
    return ++calls == 2 ? 5'000'000 : 1'000'000;
  };
  timed_kernel kernel(w[0].kernels(), kernel_of("kernel", 3, slow_beside, 0, ran));
  contextual_options op;
  op.name = "layer";
  op.iterations = 2;
  contextual layer(w[0], op);
  int runs = 0;
  int ended = 0;
  result<> outcome;
  scope all(w.clock);
  const auto thunk = [&]() -> task<> {
    co_await kernel(1);
    if (++runs == 2) raise({errc::exception, "the thunk fails"});
  };
  all.spawn(run_layer(&layer, thunk, &outcome));
  all.spawn(run_beside(&kernel, &w.clock, &ended));
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(outcome.code() == errc::exception);
  CHECK(ended == 1);
  CHECK(ran.order.size() == 3);
}

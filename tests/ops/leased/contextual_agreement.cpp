// How ranks agree in contextual ops although messages are lost, late or out of order, or only some ranks meet a key.
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

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::contextual_layers;

TEST_CASE("a key that only one rank meets keeps its default there, and that rank warns of each kernel") {
  for (const rank_id odd : {0U, 1U}) {
    CAPTURE(odd);
    two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
    call_all(w, with_key(w, 8));
    call_all(w, [&](rank_id r) { return both_kernels(&w, r, r == odd ? 9 : 8); });
    for (rank_id r = 0; r < 3; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 8);
      CHECK(w[r].kernels().warnings().size() == (r == odd ? 2 : 0));
    }
    CHECK(w.layers[odd].end().best("kernel-0", "n=9") == "config_0");
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < 3; ++r) CHECK(w.runs[r] == 9);
  }
}

TEST_CASE("lost, late and reordered messages delay ranks, and never make their decisions differ") {
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
    CAPTURE(seed);
    two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
    random_stream dice(seed, 5);
    w.links.options().lose = [&](rank_id, rank_id, link::channel) { return dice.below(4) == 0; };
    w.links.options().delay = [&](rank_id, rank_id, link::channel) { return static_cast<time_ns>(dice.below(90'000)); };
    for (int call = 0; call < 3; ++call) call_all(w, with_key(w, 8 + static_cast<std::uint64_t>(call % 2)));
    for (rank_id r = 0; r < 3; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 15);
      CHECK(w.layers[r].end().best("kernel-1", "n=9") == "config_1");
    }
  }
}

namespace {

/// While `lossy`, messages of rank 0 to the last rank are lost from rank 0's `from_run`-th run on.
/// The other ranks alone would decide otherwise, because config 1 of kernel-1 is slow on rank 0 only.
struct deaf_ranks : two_kernels {
  explicit deaf_ranks(rank_id n, std::size_t from_run) : two_kernels(n, takes({2'000, 1'000}), uneven) {
    links.options().lose = [this, from_run](rank_id from, rank_id to, link::channel) {
      return lossy && from == 0 && to + 1 == ranks.size() && runs[0] >= from_run;
    };
  }
  static time_ns uneven(rank_id r, std::size_t c, std::size_t) {
    return c == 1 ? (r == 0 ? 9'000 : 1'000) : c == 0 ? 5'000 : 3'000;
  }
  void check_alike(const std::string& key) {
    CAPTURE(key);
    for (const auto& layer : layers) {
      CHECK(layer.end().best("kernel-0", key) == layers[0].end().best("kernel-0", key));
      CHECK(layer.end().best("kernel-1", key) == layers[0].end().best("kernel-1", key));
      CHECK_FALSE(layer.end().best("kernel-1", key).empty());
    }
  }
  bool lossy = true;
};

task<> with_keys(two_kernels* w, rank_id r, std::vector<std::uint64_t> keys) {
  ++w->runs[r];
  for (const std::uint64_t key : keys) {
    co_await (*w->kernel_0[r])(key);
    co_await (*w->kernel_1[r])(key);
  }
}
task<> no_more_disk(two_kernels* w, rank_id r, std::uint64_t key) {
  co_await both_kernels(w, r, key);
  raise({errc::io, "no more disk"});
}

}  // namespace

TEST_CASE("a rank that missed a decision adopts it in a later call, whichever keys that call tunes on which ranks") {
  using keys = std::vector<std::uint64_t>;
  struct later {
    std::string what;
    keys leader, deaf;
  };
  for (const rank_id n : {2U, 3U}) {
    // After 4 runs kernel-0 is decided and kernel-1 is not; after 6 runs both are.
    for (const std::size_t from_run : {4U, 6U}) {
      for (const auto& [what, of_leader, of_deaf] :
           {later{"nothing new", {8}, {8}}, later{"another key on all", {8, 9}, {8, 9}},
            later{"another key on the leader alone", {8, 9}, {8}},
            later{"another key on the rank alone that has not heard", {8}, {8, 9}}}) {
        CAPTURE(n);
        CAPTURE(from_run);
        CAPTURE(what);
        deaf_ranks w(n, from_run);
        call_all(w, with_key(w, 8));
        CHECK(w.outcomes[0]);
        CHECK(w[0].kernels().warnings().size() == (from_run == 4 ? 1 : 0));  // the last rank is late
        CHECK_FALSE(w.outcomes[n - 1]);
        w.lossy = false;
        const program call = [&](rank_id r) { return with_keys(&w, r, r + 1 == n ? of_deaf : of_leader); };
        for (int i = 0; i < 3; ++i) {
          call_all(w, call);
          for (rank_id r = 0; r < n; ++r) CHECK((w.outcomes[r] ? "" : w.outcomes[r].reason().what()) == "");
        }
        w.check_alike("n=8");
        CHECK(w.layers[0].end().best("kernel-0", "n=8") == "config_1");
        CHECK(w.layers[0].end().best("kernel-1", "n=8") == "config_2");
        for (rank_id r = 0; r < n; ++r) run_until(w.clock, [&] { return !w.layers[r].end().owes_messages(); });
        call_all(w, [&](rank_id r) { return with_keys(&w, r, {8, 9}); });
        w.check_alike("n=8");
        w.check_alike("n=9");
      }
    }
  }
}

TEST_CASE(
    "a call whose outcome was lost still succeeds after later calls of the leader have failed, and those say why") {
  for (const std::uint64_t failures : {1U, 3U, 30U}) {
    CAPTURE(failures);
    deaf_ranks w(2, 6);
    scope calls(w.clock);
    const program first = with_key(w, 8);
    const program failing = [&](rank_id r) { return no_more_disk(&w, r, 9); };
    calls.spawn(tuned(&w, 1, first));
    call_on(w, first, {0});
    CHECK(w.outcomes[0]);
    for (std::uint64_t i = 0; i < failures; ++i) {
      call_on(w, failing, {0});
      CHECK(w.outcomes[0].code() == errc::io);
    }
    w.lossy = false;
    run_until(w.clock, [&] { return calls.running() == 0; });
    CHECK(w.outcomes[1]);
    CHECK(w.runs[1] == 7);
    w.check_alike("n=8");
    run_until(w.clock, [&] { return !w.layers[0].end().owes_messages(); });
    std::size_t known = 0;
    for (std::uint64_t i = 0; i < failures; ++i) {
      call_on(w, with_key(w, 9), {1});
      REQUIRE_FALSE(w.outcomes[1]);
      if (w.outcomes[1].code() == errc::io)
        CHECK(is(w.outcomes[1], {.quotes = "rank 0: no more disk"}));
      else
        CHECK(is(w.outcomes[1], {.code = errc::closed, .op = "layer 0->1"}));
      known += w.outcomes[1].code() == errc::io ? 1 : 0;
    }
    CHECK(known == std::min<std::size_t>(failures, 16));  // the leader keeps its latest 16 failures
    call_all(w, with_key(w, 9));
    for (rank_id r = 0; r < 2; ++r) CHECK(w.outcomes[r]);
    w.check_alike("n=9");
    CHECK(w.layers[1].decision("kernel-1", "n=9").source == actors::decision_source::trials);
  }
}

TEST_CASE(
    "once one rank has kept a default for a key, ranks that meet the key later keep it, even together with new keys") {
  for (const rank_id odd : {0U, 1U, 2U}) {
    CAPTURE(odd);
    two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
    call_all(w, with_key(w, 8));
    call_all(w, [&](rank_id r) { return both_kernels(&w, r, r == odd ? 9 : 8); });
    for (int i = 0; i < 2; ++i) {
      call_all(w, [&](rank_id r) { return with_keys(&w, r, {9, 10}); });
      for (rank_id r = 0; r < 3; ++r) {
        CAPTURE(r);
        CHECK((w.outcomes[r] ? "" : w.outcomes[r].reason().what()) == "");
        CHECK(w.layers[r].end().best("kernel-1", "n=9") == "config_0");
        CHECK(w.layers[r].end().best("kernel-1", "n=10") == "config_1");
        CHECK(w.layers[r].decision("kernel-0", "n=9").source == actors::decision_source::only_default);
        CHECK(w[r].kernels().warnings().size() == 2);
      }
    }
  }
}

TEST_CASE("despite losses, failures and keys that only some ranks meet, calls end, and all ranks agree in the end") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    random_stream dice(seed, 7);
    const auto uneven = [](rank_id r, std::size_t c, std::size_t) -> time_ns {
      return c == r ? 9'000 - 1'000 * static_cast<time_ns>(c) : 1'000;
    };
    two_kernels w(3, uneven, uneven);
    std::uint64_t lost_of_64 = 0;
    w.links.options().lose = [&](rank_id, rank_id, link::channel) { return dice.below(64) < lost_of_64; };
    const auto call = [&](rank_id r) {
      const std::uint64_t key = 8 + (dice.below(3) == 0 ? dice.below(3) : 0);
      return dice.below(24) == 0 ? no_more_disk(&w, r, key) : both_kernels(&w, r, key);
    };
    for (int i = 0; i < 6; ++i) {
      lost_of_64 = dice.below(3) == 0 ? 0 : 40 + dice.below(25);
      call_all(w, call);
    }
    lost_of_64 = 0;
    for (int i = 0; i < 2; ++i) {
      call_all(w, [&](rank_id r) { return with_keys(&w, r, {8, 9, 10, 11}); });
    }
    for (rank_id r = 0; r < 3; ++r) {
      CHECK((w.outcomes[r] ? "" : w.outcomes[r].reason().what()) == "");
      run_until(w.clock, [&] { return !w.layers[r].end().owes_messages(); });
      for (const std::string key : {"n=8", "n=9", "n=10", "n=11"}) {
        CAPTURE(key);
        CHECK_FALSE(w.layers[r].end().best("kernel-1", key).empty());
        CHECK(w.layers[r].end().best("kernel-0", key) == w.layers[0].end().best("kernel-0", key));
        CHECK(w.layers[r].end().best("kernel-1", key) == w.layers[0].end().best("kernel-1", key));
      }
    }
  }
}

// Ops without headers that cannot work as they are declared, on one rank or on several together, and how many configs one may have.
#include <parley/tests/ops/leased/symmetric_job.hpp>
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/errors.hpp>

#include <parley/error.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/random.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::symmetric_jobs;

TEST_CASE("declarations that cannot work are refused with the reason") {
  world w(3);
  symmetric_options op;
  op.name = "gradients";
  const auto refused = [&](symmetric_options o, std::string_view why) {
    try {
      symmetric(w[1], std::move(o));
    } catch (const failure& f) {
      INFO(f.what());
      return std::string(f.what()).find(why) != std::string::npos;
    }
    return false;
  };
  CHECK(refused(op, "empty catalogue"));
  op.configs = {takes("a", 1), nullptr};
  CHECK(refused(op, "config 1 of its catalogue is null"));
  op.configs = three();
  op.ranks = {0, 3};
  CHECK(refused(op, "member 3 is outside the world"));
  op.ranks = {1, 1};
  CHECK(refused(op, "listed twice"));
  op.ranks = {0, 2};
  symmetric idle(w[1], op);
  CHECK(idle.idle());
  CHECK_THROWS_AS(static_cast<void>(idle.end()), failure);
  static_cast<void>(symmetric(w[0], op));
  CHECK_THROWS_AS(static_cast<void>(symmetric(w[0], op)), failure);
}

TEST_CASE("members that disagree on the members' order, the leader or the default get an error with both values") {
  struct {
    std::vector<rank_id> first, others;
    errc code;
    std::string_view ours, theirs;
  } const cases[] = {
      {{0, 1, 2}, {1, 0, 2}, errc::role_conflict, "leader rank 0", "leader rank 1"},
      {{0, 2, 1}, {0, 1, 2}, errc::declaration_mismatch, "in the order 0 2 1", "scheme lease"},
      {{0, 1, 2}, {0, 1, 2}, errc::declaration_mismatch, "default tree", "default library"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.ours);
    world w(3);
    library lib(w.clock, 3);
    const auto over = lib.make();
    std::vector<symmetric> handles;
    for (rank_id r = 0; r < 3; ++r) {
      symmetric_options op;
      op.name = "gradients";
      op.configs = three();
      if (r == 0 && c.ours == "default tree") std::reverse(op.configs.begin(), op.configs.end());
      op.ranks = r == 0 ? c.first : c.others;
      op.communicator = std::make_shared<library_communicator>(over);
      handles.emplace_back(w[r], op);
    }
    const time_ns began = w.clock.now();
    std::vector<member_log> logs(3);
    {
      scope calls(w.clock);
      for (rank_id r = 0; r < 3; ++r)
        calls.spawn(
            call_often(handles[r], w.clock, {4096}, 5'000, {.between_ns = 1'000'000}, random_stream(7, r), logs[r]));
      const auto all = [](scope& s) -> task<> { co_await s.join(); };
      runtime::run(w.clock, all(calls));
    }
    CHECK(w.clock.now() - began < 5'000'000'000);
    for (rank_id r = 0; r < 3; ++r) {
      REQUIRE(!logs[r].outcomes.empty());
      const auto& last = logs[r].outcomes.back();
      for (const std::string_view said : {c.ours, c.theirs})
        CHECK(is(last, {.code = c.code, .rank = r, .quotes = std::string(said)}));
    }
  }
}

TEST_CASE("an op may have 4,096 configs, and one more is an error") {
  std::vector<symmetric_config_ptr> many{takes("library", 40'000)};
  while (many.size() < 4'096) many.push_back(takes("ring" + std::to_string(many.size()), 50'000));
  job_of job(2, many);
  job.start(200);
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.end(0).assigned()->candidates().size() == 4'096);
  many.push_back(takes("tree", 50'000));
  CHECK_THROWS_AS(job_of(2, many), failure);
}

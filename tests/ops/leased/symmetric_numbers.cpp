// Trials of ops without headers whose numbers are compared with those of the default.
#include <parley/tests/ops/leased/symmetric_job.hpp>
#include <parley/tests/support/devices/library.hpp>

#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/symmetric.hpp>
#include <parley/tuning/results/results.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::symmetric_jobs;

namespace {

/// Triples its input. On rank 2 the result has a relative error of `off`.
symmetric_config_ptr triples(std::string name, time_ns takes_ns, float off = 0) {
  algorithm_traits t{.takes_ns = takes_ns};
  t.computes = [off](const symmetric_call& call, std::span<std::byte> data) {
    const float factor = call.self == 2 ? 3 * (1 + off) : 3;
    for (std::size_t at = 0; at + sizeof(float) <= data.size(); at += sizeof(float)) {
      float x = 0;
      std::memcpy(&x, data.data() + at, sizeof x);
      x *= factor;
      std::memcpy(data.data() + at, &x, sizeof x);
    }
  };
  return std::make_shared<algorithm>(std::move(name), std::move(t));
}

rank_settings checked(double rtol) {
  rank_settings s;
  s.constraints.compare_trials = true;
  s.constraints.relative_error = rtol;
  return s;
}

std::vector<symmetric_config_ptr> one_is_off() {
  return {triples("library", 40'000), triples("hasty", 10'000, 1e-3F), triples("ring", 20'000)};
}

}  // namespace

TEST_CASE("a candidate with wrong numbers on one member is excluded on all members, by name, before it is timed") {
  const auto configs = one_is_off();
  job_of job(3, configs, trials::rehearsed, checked(1e-4));
  job.start(3000);
  job.finish();
  expect_ring(job);
  const auto* c = job.campaign();
  REQUIRE(c != nullptr);
  REQUIRE(c->excluded().size() == 1);
  CHECK(c->excluded()[0].why.find("on rank 2 its results") != std::string::npos);
  CHECK(c->excluded()[0].why.find("its results differ from the default's: element 0 is ") != std::string::npos);
  CHECK(ran_on(*job.lib.places[0]).count(configs[1]->digest()) == 0);
  for (rank_id r = 0; r < 3; ++r) {
    const auto decisions = job[r].decisions();
    REQUIRE(decisions.size() == 1);
    bool named = false;
    for (const auto& e : decisions[0].decision.evidence) {
      if (e.digest != configs[1]->digest()) continue;
      CHECK(e.repetitions == 0);
      named = e.detail.find("its results differ from the default's") != std::string::npos;
    }
    CHECK(named);
  }
}

TEST_CASE("a candidate that writes beyond its buffer in a rehearsal is excluded on all members, by name") {
  algorithm_traits greedy{.takes_ns = 10'000};
  greedy.computes = [](const symmetric_call& call, std::span<std::byte> data) {
    if (call.on == symmetric_call::stream::rehearsal && call.self == 1) data.data()[data.size()] = std::byte{1};
  };
  const std::vector<symmetric_config_ptr> configs{
      triples("library", 40'000), std::make_shared<algorithm>("greedy", std::move(greedy)), triples("ring", 20'000)};
  job_of job(3, configs, trials::rehearsed);
  job.start(3000);
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.winner() == "ring");
  const auto* c = job.campaign();
  REQUIRE(c != nullptr);
  REQUIRE(c->excluded().size() == 1);
  CHECK(c->excluded()[0].why.find("the rehearsal wrote beyond its buffer of ") != std::string::npos);
}

TEST_CASE("a candidate within the user's tolerance may win, and nothing is compared unless the user asks") {
  for (const bool asked : {true, false}) {
    CAPTURE(asked);
    job_of job(3, one_is_off(), trials::rehearsed, asked ? checked(1e-2) : rank_settings{});
    job.start(3000);
    job.finish();
    CHECK(job.failed() == 0);
    CHECK(job.winner() == "hasty");
    CHECK(job.campaign()->excluded().empty());
  }
}

TEST_CASE("a remembered winner is compared, like a candidate, before it runs on the user's communicator") {
  const auto configs = one_is_off();
  std::string results;
  {
    job_of first(3, configs, trials::rehearsed, checked(1e-2));
    first.start(3000);
    first.finish();
    REQUIRE(first.steady() == "hasty");
    results = tuning::write_results(first[0].results());
  }
  REQUIRE(results.find("hasty") != std::string::npos);
  rank_settings s = checked(1e-4);
  s.results_path = "found.csv";
  job_of job(3, configs, trials::rehearsed, s, {}, results);
  job.start(3000);
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.steady() != "hasty");
  CHECK(ran_on(*job.lib.places[0]).count(configs[1]->digest()) == 0);
}

TEST_CASE("an op that cannot compare its candidates runs its default alone, and says what to do") {
  job_of job(2, three(), trials::on_calls, checked(1e-4));
  job.start(500);
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.steady() == "library");
  CHECK(ran_on(*job.lib.places[0]).size() == 1);
  for (rank_id r = 0; r < 2; ++r) {
    REQUIRE(job[r].warnings().size() == 1);
    CHECK(job[r].warnings()[0].find("give the op a communicator_source") != std::string::npos);
    CHECK(job.end(r).participant().unavailable.size() == 2);
  }
  symmetric_options op;
  op.rehearse = job.sources[0];
  CHECK(why_not_compared(op).find("set symmetric_options::dtype") != std::string::npos);
  op.dtype = "bf16";
  CHECK(why_not_compared(op).empty());
}

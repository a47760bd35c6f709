#include <parley/ops/core/decision_record.hpp>

#include <doctest/doctest.h>

#include <limits>

using namespace parley;
using namespace parley::ops;

TEST_CASE("the text of a decision has who took part, and what each rank measured of each candidate") {
  decision d;
  d.op = "sum [0 1]";
  d.key = "4KiB";
  d.config = "ring";
  d.time_ns = 1500;
  d.why = "the \"fastest\"";
  d.confidence = tuning::confidence::fair;
  d.search = 2;
  d.trials = 24;
  d.cost_ns = 1e6;
  d.ranks = {{0, "ring"}, {1, "tree"}};
  candidate_evidence ring;
  ring.config = "ring";
  ring.time_ns = 1500;
  ring.spread_ns = 20;
  ring.repetitions = 8;
  ring.status = "measured";
  ring.expected = {1400, 1300, 1600};
  ring.ranks = {{0, 1400, 1300, 10, 8, "measured", "ring"}, {1, 1500.25, 1450, 15, 8, "measured", "tree"}};
  candidate_evidence flat;
  flat.config = "flat";
  flat.status = "failed";
  flat.detail = "rank 1\nhas no memory";
  flat.proposer = 1;
  d.evidence = {ring, flat};
  CHECK(json_of(d) ==
        R"({"op":"sum [0 1]","key":"4KiB","config":"ring","time_ns":1500.0,"confidence":"fair","search":2,"trials":24,)"
        R"("cost_ns":1000000.0,"left_out":0,"why":"the \"fastest\"","ranks":[{"rank":0,"config":"ring"},)"
        R"({"rank":1,"config":"tree"}],"candidates":[{"config":"ring","time_ns":1500.0,"spread_ns":20.0,)"
        R"("repetitions":8,"status":"measured","detail":"","proposed_by":0,"expected_ns":1400.0,)"
        R"("expected_low_ns":1300.0,"expected_high_ns":1600.0,"ranks":[{"rank":0,"time_ns":1400.0,)"
        R"("fastest_ns":1300.0,"spread_ns":10.0,"repetitions":8,"status":"measured"},{"rank":1,"time_ns":1500.2,)"
        R"("fastest_ns":1450.0,"spread_ns":15.0,"repetitions":8,"status":"measured","ran":"tree"}]},)"
        R"({"config":"flat","time_ns":null,"spread_ns":0.0,"repetitions":0,"status":"failed",)"
        R"("detail":"rank 1\u000ahas no memory","proposed_by":1,"ranks":[]}]})");
}

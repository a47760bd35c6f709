#include "../support/transfers.hpp"

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

TEST_CASE("a receiver that leaves first tells its sender what it took, so that the sender need not ask who is gone") {
  world w(2);
  auto out = w[0].declare(pair_of({direct()}));
  auto in = w[1].declare(pair_of({direct()}));
  CHECK(move_each(w, out, in, {100, 200, 300}).failed() == 0);
  run(w.clock, w[1].settle(1_s));
  pass(w, 1_ms);  // the report is on its way
  const time_ns before = w.clock.now();
  run(w.clock, w[0].settle(1_s));
  CHECK(w.clock.now() - before < 100_ms);
  CHECK(w[0].flow_messages() == 0);
}

TEST_CASE("what nobody has taken is told with a count") {
  world w(2);
  auto out = w[0].declare(pair_of({direct()}));
  auto in = w[1].declare(pair_of({direct()}));
  CHECK(move_each(w, out, in, {100, 200, 300}).failed() == 0);
  call_outcomes all;
  run(w.clock, send_each(out, {10, 20}, all));
  CHECK(all.failed() == 0);
  const auto left = w[0].unfinished().undelivered;
  REQUIRE(left.size() == 1);
  CHECK(left[0].find("activations 0->1, on rank 0: rank 1 has not taken ") == 0);
  CHECK(left[0].find(" of the 5 messages that were sent to it") != std::string::npos);
  pass(w, 100_ms);  // its question is answered
  const auto asked = w[0].unfinished().undelivered;
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].find("has not taken 2 of the 5 messages") != std::string::npos);
}

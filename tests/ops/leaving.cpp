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

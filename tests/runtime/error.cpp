#include <parley/tests/support/errors.hpp>

#include <parley/error.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <utility>

using namespace parley;
using namespace parley::runtime;
using namespace parley::tests;

TEST_CASE("an error's text states its facts, and omits an invocation that had not begun") {
  const error_facts about{.op = "acts 0->1", .rank = 1, .role = "receiver", .invocation = 12, .peer = 0};
  const error late(errc::timeout, about, "rank 0 is late");
  CHECK(late.what() == "timeout: acts 0->1, invocation 12, on rank 1 (receiver): rank 0 is late");
  CHECK(late.about() == about);
  error_facts before = about;
  before.begun = false;
  CHECK(error(errc::timeout, before, "rank 0 is late").text() == "acts 0->1, on rank 1 (receiver): rank 0 is late");
}

TEST_CASE("comparing an error with expected facts fails for each fact that differs, and names the fact") {
  const root_cause cause{3, " is gone"};
  const error_facts about{.op = "acts 0->1",
                          .rank = 1,
                          .role = "receiver",
                          .invocation = 12,
                          .begun = false,
                          .peer = 0,
                          .tag = 5,
                          .unmet = awaited::room,
                          .config = "direct",
                          .done_bytes = 6,
                          .whole_bytes = 7,
                          .own_bytes = 8};
  const result<> outcome = error(errc::timeout, about, "rank 0 is late", &cause);
  const expected_error right{.code = errc::timeout,
                             .op = "acts 0->1",
                             .rank = 1,
                             .role = "receiver",
                             .invocation = 12,
                             .begun = false,
                             .peer = 0,
                             .tag = 5,
                             .unmet = awaited::room,
                             .config = "direct",
                             .done_bytes = 6,
                             .whole_bytes = 7,
                             .own_bytes = 8,
                             .culprit = 3,
                             .quotes = "is late"};
  CHECK(is(outcome, right));
  CHECK(is(outcome, {}));
  CHECK_FALSE(is(result<>(), {}));
  const std::pair<const char*, std::function<void(expected_error&)>> changes[] = {
      {"code is timeout, expected closed; ", [](expected_error& e) { e.code = errc::closed; }},
      {"op is `acts 0->1`, expected `acts 1->0`; ", [](expected_error& e) { e.op = "acts 1->0"; }},
      {"rank is 1, expected 2; ", [](expected_error& e) { e.rank = 2; }},
      {"role is `receiver`, expected `sender`; ", [](expected_error& e) { e.role = "sender"; }},
      {"invocation is 12, expected 13; ", [](expected_error& e) { e.invocation = 13; }},
      {"begun is no, expected yes; ", [](expected_error& e) { e.begun = true; }},
      {"peer is 0, expected 2; ", [](expected_error& e) { e.peer = 2; }},
      {"tag is 5, expected 2; ", [](expected_error& e) { e.tag = 2; }},
      {"unmet is room, expected payload; ", [](expected_error& e) { e.unmet = awaited::payload; }},
      {"config is `direct`, expected `put`; ", [](expected_error& e) { e.config = "put"; }},
      {"done_bytes is 6, expected 2; ", [](expected_error& e) { e.done_bytes = 2; }},
      {"whole_bytes is 7, expected 2; ", [](expected_error& e) { e.whole_bytes = 2; }},
      {"own_bytes is 8, expected 2; ", [](expected_error& e) { e.own_bytes = 2; }},
      {"culprit is 3, expected 2; ", [](expected_error& e) { e.culprit = 2; }},
      {"it does not quote `the card`; ", [](expected_error& e) { e.quotes = "the card"; }},
  };
  for (const auto& [difference, change] : changes) {
    expected_error wrong = right;
    change(wrong);
    CHECK(is(outcome, wrong).differences == difference + ("the error is `" + outcome.reason().what() + "`"));
  }
}

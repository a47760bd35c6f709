#include <parley/cli/payload/expression.hpp>

#include <doctest/doctest.h>

#include <string>

using parley::cli::expression;
using parley::cli::expression_error;

namespace {

std::int64_t value_of(const std::string& text, expression::values v = {.rank = 3, .world = 8}) {
  return expression(text).evaluate(v);
}

/// Position and reason of the fault in a text that is no expression, as `4: why`.
std::string fault_in(const std::string& text) {
  try {
    return "none, it is " + std::to_string(value_of(text));
  } catch (const expression_error& e) {
    return std::to_string(e.at()) + ": " + e.what();
  }
}

}  // namespace

TEST_CASE("a role expression knows rank, world and whole numbers") {
  CHECK(value_of("rank") == 3);
  CHECK(value_of(" world - 1 ") == 7);
  CHECK(value_of("42") == 42);
}

TEST_CASE("operators bind as in C, from the left") {
  CHECK(value_of("2 + 3 * 4") == 14);
  CHECK(value_of("(2 + 3) * 4") == 20);
  CHECK(value_of("10 - 3 - 2") == 5);
  CHECK(value_of("100 / 7 % 4") == 2);
  CHECK(value_of("1 + 1 == 2 && 3 > 2 || 0") == 1);
  CHECK(value_of("1 || 0 && 0") == 1);
  CHECK(value_of("!rank == 0") == 1);
  CHECK(value_of("-rank + 3") == 0);
  CHECK(value_of("1 < 2 == 1") == 1);
  CHECK(value_of("rank >= 3 && rank <= 3 && rank != 4") == 1);
}

TEST_CASE("the right side of && and || is evaluated only if it matters") {
  CHECK(value_of("rank != 0 && 8 / rank > 4", {.rank = 0, .world = 8}) == 0);
  CHECK(value_of("rank == 0 || 8 / rank > 4", {.rank = 0, .world = 8}) == 1);
}

TEST_CASE("the error of an expression that does not parse gives the position") {
  CHECK(fault_in("") == "0: expected a number, rank, world or '(', found the end");
  CHECK(fault_in("rank %") == "6: expected a number, rank, world or '(', found the end");
  CHECK(fault_in("rank % x") == "7: expected a number, rank, world or '(', found 'x'");
  CHECK(fault_in("ranks == 0") == "0: expected a number, rank, world or '(', found 'ranks'");
  CHECK(fault_in("(rank") == "5: expected ')'");
  CHECK(fault_in("rank = 1") == "5: expected an operator or the end, found '='");
  CHECK(fault_in("99999999999999999999") == "0: the number is too large");
}

TEST_CASE("the error of an expression that cannot be computed gives the position and does not end the program") {
  CHECK(fault_in("1 / (rank - 3)") == "2: this divides by zero");
  CHECK(fault_in("1 % 0") == "2: this divides by zero");
  CHECK(fault_in("9223372036854775807 + 1") == "20: the result does not fit 64 bits");
  CHECK(fault_in("(0-9223372036854775807-1) / (0-1)") == "26: the result does not fit 64 bits");
  CHECK(value_of("(0-9223372036854775807-1) % (0-1)") == 0);
}

TEST_CASE("a long expression is an error, not a stack overflow") {
  std::string text = "rank";
  for (int i = 0; i < 200'000; ++i) text += "+rank";
  CHECK(fault_in(text).find("too many parts") != std::string::npos);
}

TEST_CASE("deep nesting is an error, not a stack overflow") {
  CHECK(fault_in(std::string(100'000, '(')).find("nested too deeply") != std::string::npos);
  CHECK(fault_in(std::string(100'000, '!')).find("nested too deeply") != std::string::npos);
}

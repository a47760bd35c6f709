#pragma once
/// Role expressions of specs: integers, `rank`, `world`, + - * / %, comparisons, && || ! and parentheses.
///
///     const expression even("rank % 2 == 0");
///     even.evaluate({.rank = 2, .world = 4});       // 1
///
/// Both throw `expression_error`, with the place of the fault in the text and what was expected there. The constructor throws it if
/// the text cannot be parsed; `evaluate` throws it for a division by zero or a number beyond 64 bits. `&&` and `||` evaluate their
/// right side only when it matters.
#include <parley/identifiers.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace parley::cli {

class expression_error : public std::runtime_error {
 public:
  expression_error(std::size_t at, const std::string& text) : std::runtime_error(text), at_(at) {}
  /// Offset of the character that is wrong, from 0.
  std::size_t at() const noexcept { return at_; }

 private:
  std::size_t at_;
};

class expression {
 public:
  struct values {
    runtime::rank_id rank = 0;
    runtime::rank_id world = 1;
  };

  explicit expression(std::string_view text);
  std::int64_t evaluate(values v) const { return evaluate(root_, v); }

 private:
  friend class expression_parser;
  enum class kind : std::uint8_t {
    number,
    rank,
    world,
    negate,
    logical_not,
    add,
    subtract,
    multiply,
    divide,
    remainder,
    equal,
    unequal,
    less,
    at_most,
    greater,
    at_least,
    logical_and,
    logical_or,
  };
  struct node {
    kind what = kind::number;
    std::int64_t value = 0;
    std::size_t left = 0;
    std::size_t right = 0;
    std::size_t at = 0;
  };
  std::int64_t evaluate(std::size_t index, values v) const;
  static std::int64_t arithmetic(const node& n, std::int64_t a, std::int64_t b);

  std::vector<node> nodes_;
  std::size_t root_ = 0;
};

}  // namespace parley::cli

#include <parley/cli/payload/expression.hpp>

#include <array>
#include <charconv>
#include <limits>
#include <utility>

namespace parley::cli {

namespace {
constexpr std::size_t deepest = 64;
constexpr std::size_t most_parts = 1'000;  // a + b + c … is a tree as deep as the text is long
}  // namespace

/// Recursive descent with one function for all levels of binary operators.
class expression_parser {
 public:
  expression_parser(std::string_view text, std::vector<expression::node>& nodes) : text_(text), nodes_(nodes) {}

  std::size_t whole() {
    const std::size_t root = binary(0, 0);
    skip_blanks();
    if (at_ != text_.size()) fail("expected an operator or the end, found '" + std::string(1, text_[at_]) + "'");
    return root;
  }

 private:
  using kind = expression::kind;
  struct operator_sign {
    std::string_view sign;
    kind what;
    int level;
  };
  // Longer signs come before their own beginnings.
  static constexpr std::array<operator_sign, 13> operators{{{"||", kind::logical_or, 1},
                                                            {"&&", kind::logical_and, 2},
                                                            {"==", kind::equal, 3},
                                                            {"!=", kind::unequal, 3},
                                                            {"<=", kind::at_most, 4},
                                                            {">=", kind::at_least, 4},
                                                            {"<", kind::less, 4},
                                                            {">", kind::greater, 4},
                                                            {"+", kind::add, 5},
                                                            {"-", kind::subtract, 5},
                                                            {"*", kind::multiply, 6},
                                                            {"/", kind::divide, 6},
                                                            {"%", kind::remainder, 6}}};

  [[noreturn]] void fail(const std::string& text) const { throw expression_error(at_, text); }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  std::size_t add(expression::node n) {
    if (nodes_.size() == most_parts) fail("the expression has too many parts");
    nodes_.push_back(n);
    return nodes_.size() - 1;
  }
  const operator_sign* peek() {
    skip_blanks();
    for (const operator_sign& o : operators) {
      if (text_.substr(at_).starts_with(o.sign)) return &o;
    }
    return nullptr;
  }

  std::size_t binary(int above, std::size_t depth) {
    std::size_t left = unary(depth);
    for (const operator_sign* o = peek(); o != nullptr && o->level > above; o = peek()) {
      const std::size_t at = at_;
      at_ += o->sign.size();
      const std::size_t right = binary(o->level, depth + 1);
      left = add({.what = o->what, .left = left, .right = right, .at = at});
    }
    return left;
  }

  std::size_t unary(std::size_t depth) {
    skip_blanks();
    if (depth > deepest) fail("the expression is nested too deeply");
    if (at_ == text_.size()) fail("expected a number, rank, world or '(', found the end");
    const std::size_t at = at_;
    const char c = text_[at_];
    if (c == '!' || c == '-') {
      ++at_;
      const std::size_t operand = unary(depth + 1);
      return add({.what = c == '!' ? kind::logical_not : kind::negate, .left = operand, .at = at});
    }
    if (c == '(') {
      ++at_;
      const std::size_t inside = binary(0, depth + 1);
      skip_blanks();
      if (at_ == text_.size() || text_[at_] != ')') fail("expected ')'");
      ++at_;
      return inside;
    }
    if (c >= '0' && c <= '9') return number();
    return word();
  }

  std::size_t number() {
    std::int64_t value = 0;
    const auto [end, ec] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (ec != std::errc{}) fail("the number is too large");
    const std::size_t at = std::exchange(at_, static_cast<std::size_t>(end - text_.data()));
    return add({.what = kind::number, .value = value, .at = at});
  }

  std::size_t word() {
    std::size_t end = at_;
    while (end < text_.size() && ((text_[end] >= 'a' && text_[end] <= 'z') || text_[end] == '_')) ++end;
    const std::string_view found = text_.substr(at_, end - at_);
    if (found != "rank" && found != "world")
      fail("expected a number, rank, world or '(', found '" +
           std::string(found.empty() ? text_.substr(at_, 1) : found) + "'");
    const std::size_t at = std::exchange(at_, end);
    return add({.what = found == "rank" ? kind::rank : kind::world, .at = at});
  }

  std::string_view text_;
  std::vector<expression::node>& nodes_;
  std::size_t at_ = 0;
};

expression::expression(std::string_view text) { root_ = expression_parser(text, nodes_).whole(); }

std::int64_t expression::arithmetic(const node& n, std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  switch (n.what) {
    case kind::add:
      if (!__builtin_add_overflow(a, b, &r)) return r;
      break;
    case kind::subtract:
      if (!__builtin_sub_overflow(a, b, &r)) return r;
      break;
    case kind::multiply:
      if (!__builtin_mul_overflow(a, b, &r)) return r;
      break;
    default:
      if (b == 0) throw expression_error(n.at, "this divides by zero");
      if (b == -1) return n.what == kind::remainder ? 0 : arithmetic({.what = kind::subtract, .at = n.at}, 0, a);
      return n.what == kind::divide ? a / b : a % b;
  }
  throw expression_error(n.at, "the result does not fit 64 bits");
}

std::int64_t expression::evaluate(std::size_t index, values v) const {
  const node& n = nodes_[index];
  switch (n.what) {
    case kind::number: return n.value;
    case kind::rank: return v.rank;
    case kind::world: return v.world;
    case kind::negate: return arithmetic({.what = kind::subtract, .at = n.at}, 0, evaluate(n.left, v));
    case kind::logical_not: return evaluate(n.left, v) == 0 ? 1 : 0;
    case kind::logical_and: return evaluate(n.left, v) != 0 && evaluate(n.right, v) != 0 ? 1 : 0;
    case kind::logical_or: return evaluate(n.left, v) != 0 || evaluate(n.right, v) != 0 ? 1 : 0;
    default: break;
  }
  const std::int64_t a = evaluate(n.left, v);
  const std::int64_t b = evaluate(n.right, v);
  switch (n.what) {
    case kind::equal: return a == b ? 1 : 0;
    case kind::unequal: return a != b ? 1 : 0;
    case kind::less: return a < b ? 1 : 0;
    case kind::at_most: return a <= b ? 1 : 0;
    case kind::greater: return a > b ? 1 : 0;
    case kind::at_least: return a >= b ? 1 : 0;
    default: return arithmetic(n, a, b);
  }
}

}  // namespace parley::cli

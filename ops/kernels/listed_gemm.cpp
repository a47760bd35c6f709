#include <parley/ops/kernels/listed_gemm.hpp>

#include <charconv>
#include <utility>

namespace parley::ops {

namespace {

bool take(std::string_view& text, std::string_view beginning) {
  if (!text.starts_with(beginning)) return false;
  text.remove_prefix(beginning.size());
  return true;
}

/// Reads a number and the `_` before it.
bool take_number(std::string_view& text, std::size_t& number) {
  if (!take(text, "_")) return false;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

/// Reads `nt` or `NT`.
bool take_layout(std::string_view& text, bool& trans_a, bool& trans_b) {
  if (text.size() < 2) return false;
  for (const auto& [letter, transposed] : {std::pair{text[0], &trans_a}, std::pair{text[1], &trans_b}}) {
    if (std::string_view("nNtT").find(letter) == std::string_view::npos) return false;
    *transposed = letter == 't' || letter == 'T';
  }
  text.remove_prefix(2);
  return true;
}

}  // namespace

std::optional<listed_gemm> parse_gemm_op(std::string_view op) {
  listed_gemm g;
  g.is_scaled = take(op, "Scaled");
  if (!take(op, "Gemm")) return std::nullopt;
  g.is_batched = take(op, "StridedBatched");
  g.has_bias = !g.is_scaled && take(op, "AndBias");
  if (!take(op, "TunableOp_")) return std::nullopt;
  const std::size_t layout = op.rfind('_');
  if (layout == std::string_view::npos) return std::nullopt;
  g.type = op.substr(0, layout);
  op.remove_prefix(layout + 1);
  if (!take_layout(op, g.trans_a, g.trans_b) || !op.empty()) return std::nullopt;
  return g;
}

bool parse_gemm_key(std::string_view key, listed_gemm& g) {
  bool trans_a = false, trans_b = false;
  if (!take_layout(key, trans_a, trans_b) || trans_a != g.trans_a || trans_b != g.trans_b) return false;
  if (!take_number(key, g.m) || !take_number(key, g.n) || !take_number(key, g.k)) return false;
  if (take(key, "_B") != g.is_batched || (g.is_batched && !take_number(key, g.batch))) return false;
  if (take(key, "_ld") && !(take_number(key, g.lda) && take_number(key, g.ldb) && take_number(key, g.ldc)))
    return false;
  if (g.is_scaled) {
    g.scales_by_row = take(key, "_rw_1_bias_");
    if (!g.scales_by_row && !take(key, "_rw_0_bias_")) return false;
    // A bias has the type of the result.
    g.has_bias = key != "None";
    if (g.has_bias && !g.type.ends_with("_" + std::string(key))) return false;
    key = {};
  }
  return key.empty() && g.m != 0 && g.n != 0 && g.k != 0 && g.batch != 0;
}

}  // namespace parley::ops

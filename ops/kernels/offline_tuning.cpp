#include <parley/offline_tuning.hpp>

#include <parley/gemm.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/runtime/random.hpp>
#include <parley/tuning/text.hpp>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <new>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

namespace parley::ops {

using runtime::bf16;
using runtime::errc;
using runtime::error;
using runtime::failure;

namespace {

/// A multiplication as a line names it, in column-major order.
struct listed_gemm {
  std::string_view type;
  bool has_bias = false, is_batched = false;
  bool trans_a = false, trans_b = false;
  std::size_t m = 0, n = 0, k = 0, batch = 1, lda = 0, ldb = 0, ldc = 0;
};

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

/// The type and layout in the op's name, as in `GemmTunableOp_float_NT`; nothing: it is no multiplication.
std::optional<listed_gemm> parse_op(std::string_view op) {
  listed_gemm g;
  g.has_bias = take(op, "GemmAndBiasTunableOp_");
  g.is_batched = !g.has_bias && take(op, "GemmStridedBatchedTunableOp_");
  if (!g.has_bias && !g.is_batched && !take(op, "GemmTunableOp_")) return std::nullopt;
  const std::size_t layout = op.rfind('_');
  if (layout == std::string_view::npos) return std::nullopt;
  g.type = op.substr(0, layout);
  op.remove_prefix(layout + 1);
  if (!take_layout(op, g.trans_a, g.trans_b) || !op.empty()) return std::nullopt;
  return g;
}

/// Adds the sizes in the key, as in `nt_25088_4096_64_B_2_ld_25088_4096_25088`; false: it is no such key.
bool parse_key(std::string_view key, listed_gemm& g) {
  bool trans_a = false, trans_b = false;
  if (!take_layout(key, trans_a, trans_b) || trans_a != g.trans_a || trans_b != g.trans_b) return false;
  if (!take_number(key, g.m) || !take_number(key, g.n) || !take_number(key, g.k)) return false;
  if (take(key, "_B") != g.is_batched || (g.is_batched && !take_number(key, g.batch))) return false;
  if (take(key, "_ld") && !(take_number(key, g.lda) && take_number(key, g.ldb) && take_number(key, g.ldc)))
    return false;
  return key.empty() && g.m != 0 && g.n != 0 && g.k != 0 && g.batch != 0;
}

template <class T>
std::vector<T> random_numbers(std::size_t count, std::uint64_t seed) {
  std::vector<T> all(count);
  for (T& each : all) each = static_cast<T>(static_cast<float>(runtime::mix(++seed) % 2'048) / 1'024.0F - 1.0F);
  return all;
}

class tuner {
 public:
  explicit tuner(tunable_context& c) : floats_(c), doubles_(c), narrow_(c) {}
  /// Tunes the line, and returns its entry; null: there is no such type. Throws what the multiplication throws.
  const kernel_entry* tune(const listed_gemm& g, std::string& chosen) {
    if (g.type == "float") return tune(floats_, g, chosen);
    if (g.type == "double") return tune(doubles_, g, chosen);
    if (g.type == "BFloat16") return tune(narrow_, g, chosen);
    return nullptr;
  }

 private:
  // Linux grants memory that there is not, and kills the process that uses it.
  static void check_fits(const gemm_memory& needs, std::size_t bytes_each) {
    const double mib = (double(needs.a) + double(needs.b) + double(needs.c)) * double(bytes_each) / (1U << 20U);
    const double has_mib = double(::sysconf(_SC_PHYS_PAGES)) * double(::sysconf(_SC_PAGESIZE)) / (1U << 20U);
    if (mib < 0.9 * has_mib) return;
    const auto whole = [](double n) { return std::to_string(static_cast<std::uint64_t>(n)); };
    runtime::raise(
        {errc::unavailable, "its matrices need " + whole(mib) + " MiB, and this machine has " + whole(has_mib)});
  }
  template <class T>
  static const kernel_entry* tune(gemm<T>& multiply, const listed_gemm& g, std::string& chosen) {
    gemm_call<T> call{.m = g.m, .n = g.n, .k = g.k, .trans_a = g.trans_a, .trans_b = g.trans_b};
    call.lda = g.lda, call.ldb = g.ldb, call.ldc = g.ldc, call.batch = g.batch;
    const gemm_memory needs = multiply.needs(call);
    check_fits(needs,
               std::is_same_v<T, bf16> ? sizeof(T) + sizeof(float) : sizeof(T));  // bf16 is widened for libraries
    const std::vector<T> a = random_numbers<T>(needs.a, 1), b = random_numbers<T>(needs.b, 2);
    const std::vector<T> bias = random_numbers<T>(g.has_bias ? g.m : 0, 3);
    std::vector<T> c(needs.c);
    call.a = a, call.b = b, call.c = c, call.bias = bias;
    multiply(call);
    chosen = multiply.runs(call);
    return &multiply.decision(call);
  }

  gemm<float> floats_;
  gemm<double> doubles_;
  gemm<bf16> narrow_;
};

struct line {
  std::size_t number;
  std::string op, key;
};

/// The lines that are to be tuned, each once.
std::vector<line> lines_of(std::string_view text, const std::string& name, offline_report& report) {
  std::vector<line> all;
  std::set<std::pair<std::string, std::string>> seen;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view one = tuning::take_until('\n', text);
    while (!one.empty() && (one.back() == '\r' || one.back() == ' ')) one.remove_suffix(1);
    if (one.empty() || one.front() == '#') continue;
    const std::size_t comma = one.find(',');
    if (comma == std::string_view::npos) {
      report.left_out.push_back(
          name + ", line " + std::to_string(number) + ": `" + std::string(one) +
          "` has no comma; a line is an op and a key, as in GemmTunableOp_float_NT,nt_25088_4096_64");
      continue;
    }
    const std::string_view rest = one.substr(comma + 1);
    line l{number, std::string(one.substr(0, comma)), std::string(rest.substr(0, rest.find(',')))};
    if (l.op != "Validator" && seen.emplace(l.op, l.key).second) all.push_back(std::move(l));
  }
  return all;
}

}  // namespace

offline_report tune_lines(tunable_context& kernels, std::string_view text, const std::string& name,
                          const offline_progress& on_progress) {
  offline_report report;
  const bool enabled = kernels.is_tunable_op_enabled(), tunes = kernels.is_tuning_enabled();
  const runtime::finally restored([&] {
    kernels.enable_tunable_op(enabled);
    kernels.enable_tuning(tunes);
  });
  kernels.enable_tunable_op(true);
  kernels.enable_tuning(true);
  if (!kernels.is_tunable_op_enabled() || !kernels.is_tuning_enabled())
    runtime::raise(
        {errc::bad_argument,
         "offline tuning: the environment switches tunable ops or their tuning off; set "
         "PARLEY_TUNABLEOP_ENABLED and PARLEY_TUNABLEOP_TUNING to 1, or unset them and those of PYTORCH_TUNABLEOP_"});
  const std::vector<line> lines = lines_of(text, name, report);
  tuner multiplications(kernels);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const line& l = lines[i];
    std::string what;
    const auto leave_out = [&](const std::string& why) {
      report.left_out.push_back(name + ", line " + std::to_string(l.number) + ": " + l.op + "," + l.key +
                                " is left out: " + why);
    };
    auto listed = parse_op(l.op);
    if (!listed) {
      leave_out("it is not an operation of parley's own; run its program with tuning on");
    } else if (!parse_key(l.key, *listed)) {
      leave_out("its key is not like nt_25088_4096_64");
    } else if (listed->is_batched && listed->batch == 1) {
      leave_out("a batch of one has the name GemmTunableOp_ in parley");
    } else {
      try {
        const std::size_t learned = kernels.learned().size();
        std::string chosen;
        const kernel_entry* const entry = multiplications.tune(*listed, chosen);
        const bool is_new = kernels.learned().size() != learned;
        if (entry == nullptr) {
          leave_out("there are no numbers of type " + std::string(listed->type) + " on processors");
        } else if (!is_new && kernels.remembered(l.op, entry->parameters) == nullptr &&
                   kernels.remembered(l.op, l.key) == nullptr) {
          leave_out(entry->why);
        } else {
          ++(is_new ? report.tuned : report.known);
          what = l.op + " " + l.key + ": " + chosen + ", " + entry->why;
        }
      } catch (const failure& e) {
        leave_out(std::string(e.reason().text()));
      } catch (const std::bad_alloc&) {
        leave_out("there is no memory for its matrices");
      }
    }
    if (on_progress) on_progress(i + 1, lines.size(), what);
  }
  return report;
}

runtime::result<offline_report> tune_in_file(tunable_context& kernels, const std::string& name,
                                             const offline_progress& on_progress) {
  if (kernels.disk() == nullptr)
    return error{errc::unavailable, "offline tuning: there is no disk to read " + name + " from"};
  const auto text = kernels.disk()->read(name);
  if (!text) return text.reason();
  return tune_lines(kernels, text.value(), name, on_progress);
}

}  // namespace parley::ops

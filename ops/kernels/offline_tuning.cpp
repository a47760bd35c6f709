#include <parley/offline_tuning.hpp>

#include <parley/gemm.hpp>
#include <parley/ops/kernels/gpu_tuner.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/tuning/text.hpp>

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <new>
#include <set>
#include <type_traits>
#include <utility>

namespace parley::ops {

using runtime::bf16;
using runtime::errc;
using runtime::error;
using runtime::failure;

namespace {

class host_tuner final : public product_tuner {
 public:
  explicit host_tuner(tunable_context& c) : floats_(c), doubles_(c), narrow_(c) {}
  std::string where() const override { return "processors"; }
  const kernel_entry* tune(const listed_gemm& g, std::string& chosen) override {
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
    gemm_call<T> call = g.call<T, T>();
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
                          const offline_options& o) {
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
  std::vector<line> lines;
  for (std::size_t number = 0; line & each : lines_of(text, name, report)) {
    if (number++ % o.of == o.share) lines.push_back(std::move(each));
  }
  if (o.share != 0) report.left_out.clear();  // another process says so
  const std::unique_ptr<product_tuner> products =
      o.gpu ? make_gpu_tuner(kernels, o.gpu->driver, o.gpu->cublas, o.gpu->device)
            : std::make_unique<host_tuner>(kernels);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const line& l = lines[i];
    std::string what;
    const auto leave_out = [&](const std::string& why) {
      report.left_out.push_back(name + ", line " + std::to_string(l.number) + ": " + l.op + "," + l.key +
                                " is left out: " + why);
    };
    auto listed = parse_gemm_op(l.op);
    if (!listed) {
      leave_out("it is not an operation of parley's own; run its program with tuning on");
    } else if (!parse_gemm_key(l.key, *listed)) {
      leave_out(listed->is_scaled ? "its key is not like tn_4096_16_4096_ld_4096_4096_4096_rw_0_bias_None"
                                  : "its key is not like nt_25088_4096_64");
    } else if (listed->is_batched && listed->batch == 1) {
      leave_out("a batch of one has the name GemmTunableOp_ in parley");
    } else {
      try {
        const std::size_t learned = kernels.learned().size();
        std::string chosen;
        const kernel_entry* const entry = products->tune(*listed, chosen);
        const bool is_new = kernels.learned().size() != learned;
        if (entry == nullptr) {
          leave_out("there are no products of type " + std::string(listed->type) + " on " + products->where());
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
    if (o.on_progress) o.on_progress(i + 1, lines.size(), what);
  }
  return report;
}

runtime::result<offline_report> tune_in_file(tunable_context& kernels, const std::string& name,
                                             const offline_options& o) {
  if (kernels.disk() == nullptr)
    return error{errc::unavailable, "offline tuning: there is no disk to read " + name + " from"};
  const auto text = kernels.disk()->read(name);
  if (!text) return text.reason();
  return tune_lines(kernels, text.value(), name, o);
}

}  // namespace parley::ops

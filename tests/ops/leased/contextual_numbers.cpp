// Kernel configs whose output is compared with the default's: NUMERICAL_CHECK.
#include <parley/tests/support/world.hpp>

#include <parley/compute.hpp>
#include <parley/contextual.hpp>
#include <parley/error.hpp>
#include <parley/kernel_key.hpp>
#include <parley/ops/job/rank_settings.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using tuning::kernel_key;

namespace {

using span_kernel = tunable_op<task<>(std::span<const float>, std::span<float>)>;

/// `slow`, the default, and `steady` write correct numbers. `quick` is the fastest, and the test chooses what it writes.
struct checked_kernel {
  using writes = std::function<void(rank_id, std::span<const float>, std::span<float>)>;
  static void doubled(rank_id, std::span<const float> in, std::span<float> out) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = 2 * in[i];
  }
  static void added(rank_id, std::span<const float> in, std::span<float> out) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] += in[i];
  }
  enum class declares : std::uint8_t { written, updated, nothing };

  static task<> run(const writes* write, rank_id self, time_ns ns, std::span<const float> in, std::span<float> out) {
    auto step = [write, self, in, out] { (*write)(self, in, out); };
    co_await compute(step, ns);
  }
  span_kernel::options options(rank_id self) const {
    span_kernel::options o;
    o.name = "kernel";
    o.key = [](std::span<const float> in, std::span<float>) { return kernel_key{{"n", in.size()}}; };
    if (outputs == declares::written) o.outputs = [](auto, std::span<float> out) { return kernel_outputs(out); };
    if (outputs == declares::updated)
      o.outputs = [](auto, std::span<float> out) { return kernel_outputs::updated(out); };
    const auto add = [&](const char* id, const writes& how, time_ns ns) {
      o.implementations.push_back({id, [w = &how, self, ns](std::span<const float> in, std::span<float> out) {
                                     return run(w, self, ns, in, out);
                                   }});
    };
    add("slow", right, 3'000'000);
    add("quick", quick, 100'000);
    add("steady", right, 1'000'000);
    return o;
  }
  writes right = doubled;
  writes quick = doubled;
  declares outputs = declares::written;
};

struct checked_layers : world {
  checked_layers(rank_id n, const checked_kernel& k, bool checks)
      : world(n, settings_with(checks)), kernel(k), outcomes(n) {
    contextual_options op;
    op.name = "layer";
    op.iterations = 2;
    for (rank_id r = 0; r < n; ++r) {
      kernels.push_back(std::make_unique<span_kernel>(ranks[r]->kernels(), kernel.options(r)));
      layers.emplace_back(*ranks[r], op);
      in.push_back({1, 2, 3, 4});
      half.emplace_back(4);
      out.emplace_back(4);
    }
  }
  static rank_settings settings_with(bool checks) {
    rank_settings s;
    s.kernels.check.on = checks;
    return s;
  }
  // Three calls with one key. The second call reads the output of the first.
  static task<> thunk(checked_layers* w, rank_id r) {
    std::fill(w->half[r].begin(), w->half[r].end(), w->zero);
    std::fill(w->out[r].begin(), w->out[r].end(), w->zero);
    co_await (*w->kernels[r])(w->in[r], w->half[r]);
    co_await (*w->kernels[r])(w->half[r], w->out[r]);
    std::vector<float> again(4, w->zero);
    co_await (*w->kernels[r])(w->in[r], again);
  }
  static task<> call(checked_layers* w, rank_id r) {
    const auto f = [w, r] { return thunk(w, r); };
    auto outcome = co_await attempt(w->layers[r].run(f));
    w->outcomes[r] = outcome;
  }
  void call_all() {
    scope calls(clock);
    for (rank_id r = 0; r < ranks.size(); ++r) calls.spawn(call(this, r));
    run_until(clock, [&] { return calls.running() == 0; });
    for (const auto& o : outcomes) CHECK((o ? "" : o.reason().what()) == "");
  }
  std::string best(rank_id r) { return layers[r].end().best("kernel", "n=4"); }

  checked_kernel kernel;
  float zero = 0;
  std::vector<result<>> outcomes;
  std::vector<std::unique_ptr<span_kernel>> kernels;
  std::vector<contextual> layers;
  std::vector<std::vector<float>> in, half, out;
};

const std::vector<float> four_times{4, 8, 12, 16};

}  // namespace

TEST_CASE("with NUMERICAL_CHECK a fast config whose numbers are wrong on one rank wins on none") {
  checked_kernel k;
  k.quick = [](rank_id self, std::span<const float> in, std::span<float> out) {
    checked_kernel::doubled(self, in, out);
    if (self == 1) out[3] += 1;
  };
  checked_layers w(3, k, true);
  w.call_all();
  for (rank_id r = 0; r < 3; ++r) {
    CAPTURE(r);
    CHECK(w.best(r) == "steady");
    CHECK(w.out[r] == four_times);
    CHECK(w.layers[r].decision("kernel", "n=4").evidence[1].status == (r == 1 ? "failed" : "measured"));
  }
  const auto& warned = w[1].kernels().warnings();
  REQUIRE(warned.size() == 1);
  CHECK_MESSAGE(warned[0].find("kernel kernel, key {n=4}: config quick gives wrong numbers") != std::string::npos,
                warned[0]);
  CHECK(w.layers[1].decision("kernel", "n=4").evidence[1].detail.find("gives wrong numbers") == 0);
  CHECK(w[0].kernels().warnings().empty());
  const std::uint64_t before = w.layers[0].end().runs();
  w.call_all();
  CHECK(w.layers[0].end().runs() == before + 1);

  checked_layers trusting(3, k, false);
  trusting.call_all();
  CHECK(trusting.best(0) == "quick");
  CHECK(trusting.out[1] != four_times);
}

TEST_CASE("with NUMERICAL_CHECK a config that writes nothing does not win, and a fast one with right numbers does") {
  checked_kernel k;
  k.quick = [](rank_id, std::span<const float>, std::span<float>) {};
  checked_layers w(2, k, true);
  w.zero = 4;  // the correct result, so that a config which writes nothing leaves correct numbers
  w.in = {{2, 2, 2, 2}, {2, 2, 2, 2}};
  w.call_all();
  for (rank_id r = 0; r < 2; ++r) CHECK(w.best(r) == "steady");

  checked_layers right(2, checked_kernel{}, true);
  right.call_all();
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(right.best(r) == "quick");
    CHECK(right.out[r] == four_times);
    CHECK(right[r].kernels().warnings().empty());
  }
}

TEST_CASE("with NUMERICAL_CHECK the outputs that a wrong config has updated are restored before another config runs") {
  checked_kernel k;
  k.right = checked_kernel::added;
  k.outputs = checked_kernel::declares::updated;
  k.quick = [](rank_id self, std::span<const float> in, std::span<float> out) {
    checked_kernel::added(self, in, out);
    checked_kernel::added(self, in, out);
  };
  checked_layers w(2, k, true);
  w.zero = 1;
  w.call_all();
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.best(r) == "steady");
    CHECK(w.out[r] == std::vector<float>{3, 4, 5, 6});
  }
}

TEST_CASE("with NUMERICAL_CHECK a kernel that declares no outputs keeps its default, and a warning says so, once") {
  checked_kernel k;
  k.outputs = checked_kernel::declares::nothing;
  checked_layers w(2, k, true);
  w.call_all();
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.best(r) == "slow");
    REQUIRE(w[r].kernels().warnings().size() == 1);
    CHECK(w[r].kernels().warnings()[0].find("NUMERICAL_CHECK is on, but the kernel declares no outputs") !=
          std::string::npos);
  }
}

// Kernels on devices in a contextual op: they are timed on the device, while the function around them goes on.
#include <parley/tests/support/devices/fake_cuda.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/contextual.hpp>
#include <parley/cuda_kernels.hpp>
#include <parley/error.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

using device_kernel = tunable_op<void()>;

/// Ranks with a GPU each, a kernel with three configs, and a contextual op.
struct gpu_layers : world {
  using ticks_of = std::function<std::uint64_t(rank_id, std::size_t config)>;
  gpu_layers(rank_id n, const ticks_of& ticks, contextual_options op = usual()) : world(n), ran(n), outcomes(n) {
    for (rank_id r = 0; r < n; ++r) {
      fake_cuda& gpu = *gpus.emplace_back(std::make_unique<fake_cuda>());
      streams.push_back(gpu.make_stream(0));
      works.push_back(std::make_unique<cuda_kernels>(clock, gpu, 0, streams[r]));
      device_kernel::options o{.name = "kernel", .implementations = {}};
      for (std::size_t c = 0; c < 3; ++c) {
        const auto launch = [this, r, c, takes = ticks(r, c)] {
          ran[r].push_back(c);
          gpus[r]->launch(streams[r], takes, {});
        };
        o.implementations.push_back({"config_" + std::to_string(c), launch});
      }
      o.device = works[r].get();
      kernels.push_back(std::make_unique<device_kernel>(ranks[r]->kernels(), std::move(o)));
      layers.emplace_back(*ranks[r], op);
    }
  }
  static contextual_options usual() {
    contextual_options op;
    op.name = "layer";
    op.iterations = 2;
    op.timeout = 1s;
    return op;
  }
  task<> call(rank_id r, std::function<void(rank_id)> f) {
    const auto thunk = [&f, r] { f(r); };
    outcomes[r] = co_await attempt(layers[r].run(thunk));
  }
  /// One call on each rank.
  void call_all(const std::function<void(rank_id)>& f) {
    scope calls(clock);
    for (rank_id r = 0; r < ranks.size(); ++r) calls.spawn(call(r, f));
    run_until(clock, [&] { return calls.running() == 0; });
  }
  std::string best(rank_id r) const { return layers[r].best("kernel", "all"); }

  std::vector<std::vector<std::size_t>> ran;
  std::vector<result<>> outcomes;
  std::vector<std::unique_ptr<fake_cuda>> gpus;
  std::vector<transports::cuda_stream> streams;
  std::vector<std::unique_ptr<cuda_kernels>> works;
  std::vector<std::unique_ptr<device_kernel>> kernels;
  std::vector<contextual> layers;
};

}  // namespace

TEST_CASE("a kernel on a device is timed there, and all ranks run the config that is fastest on the slowest one") {
  const std::vector<std::vector<std::uint64_t>> ticks{{60, 20, 40}, {60, 90, 30}};
  gpu_layers w(2, [&](rank_id r, std::size_t c) { return ticks[r][c]; });
  w.call_all([&](rank_id r) { (*w.kernels[r])(); });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.best(r) == "config_2");
    // Two runs of each config, and the one whose results count.
    CHECK(w.ran[r] == std::vector<std::size_t>{0, 0, 1, 1, 2, 2, 2});
    // In ns: what the slowest device takes, not what the launch takes.
    CHECK(w.layers[r].decision("kernel", "all").time_ns == doctest::Approx(40 * fake_cuda::ns_per_tick).epsilon(0.1));
  }
}

TEST_CASE("a function may call a kernel several times before the device has ended the first call") {
  gpu_layers w(1, [](rank_id, std::size_t c) { return 10 * (3 - c); });
  w.call_all([&](rank_id r) {
    for (int i = 0; i < 4; ++i) (*w.kernels[r])();
  });
  CHECK(w.outcomes[0]);
  CHECK(w.best(0) == "config_2");
  CHECK(w.ran[0].size() == 3 * 4);
  CHECK(w.layers[0].decision("kernel", "all").time_ns == doctest::Approx(10 * fake_cuda::ns_per_tick).epsilon(0.1));
}

TEST_CASE("while a stream is captured the default of a kernel runs, and a later call tunes it") {
  gpu_layers w(2, [](rank_id, std::size_t c) { return 10 * (3 - c); });
  std::vector<transports::cuda_graph> graphs(2);
  const auto captured = [&](rank_id r) {
    REQUIRE(w.gpus[r]->begin_capture(w.streams[r]) == errc::none);
    (*w.kernels[r])();
    graphs[r] = w.gpus[r]->end_capture(w.streams[r]).value();
  };
  w.call_all(captured);
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.ran[r] == std::vector<std::size_t>(w.ran[r].size(), 0));
    CHECK(w.best(r).empty());
  }
  w.call_all([&](rank_id r) { (*w.kernels[r])(); });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.best(r) == "config_2");
    w.ran[r].clear();
  }
  w.call_all(captured);
  for (rank_id r = 0; r < 2; ++r) CHECK(w.ran[r] == std::vector<std::size_t>{2});
}

TEST_CASE("a kernel on a device that is captured in a part of the runs only is decided by the other runs") {
  gpu_layers w(1, [](rank_id, std::size_t c) { return 10 * (3 - c); });
  int run = 0;
  w.call_all([&](rank_id r) {
    if (++run < 4) return (*w.kernels[r])();
    REQUIRE(w.gpus[r]->begin_capture(w.streams[r]) == errc::none);
    (*w.kernels[r])();
    CHECK(w.gpus[r]->end_capture(w.streams[r]));
  });
  CHECK(w.outcomes[0]);
  CHECK(w.best(0) == "config_1");  // config_2 was not tried
}

TEST_CASE("a device that fails while a kernel is tuned ends the call on every rank, by its name") {
  gpu_layers w(2, [](rank_id, std::size_t c) { return 10 * (3 - c); });
  w.call_all([&](rank_id r) {
    (*w.kernels[r])();
    if (r == 1 && w.ran[r].size() == 3) w.gpus[r]->fault_now();
  });
  for (rank_id r = 0; r < 2; ++r) CHECK(w.outcomes[r].code() == errc::device_failed);
  CHECK(w.gpus[0]->events() == 3);  // its mark, and one timer for all runs
}

TEST_CASE("a device that never ends a kernel ends the run at its time-out") {
  gpu_layers w(1, [](rank_id, std::size_t) { return 10; });
  bool over = false;
  w.call_all([&](rank_id r) {
    w.gpus[r]->launch_until(w.streams[r], [&] { return over; });
    (*w.kernels[r])();
  });
  CHECK(w.outcomes[0].code() == errc::timeout);
  over = true;
  w.call_all([&](rank_id r) { (*w.kernels[r])(); });
  CHECK(w.outcomes[0]);
  CHECK_FALSE(w.best(0).empty());
}

TEST_CASE("a rank that is alone runs what it remembers while a stream is captured") {
  gpu_layers w(1, [](rank_id, std::size_t) { return 10; });
  tuning::results_file file;
  REQUIRE(file.add({"layer/kernel", "all", "config_2", 1.0}));
  w.ranks[0]->kernels().remember(file);
  w.call_all([&](rank_id r) {
    REQUIRE(w.gpus[r]->begin_capture(w.streams[r]) == errc::none);
    (*w.kernels[r])();
    CHECK(w.gpus[r]->end_capture(w.streams[r]));
  });
  CHECK(w.ran[0] == std::vector<std::size_t>{2});
}

TEST_CASE("the comparison of a kernel's numbers is no part of its time on a device") {
  gpu_layers w(1, [](rank_id, std::size_t) { return 10; });
  fake_cuda& gpu = *w.gpus[0];
  gpu.ticks_per_copy = 200;
  const auto memory = transports::cuda_memory::on_device(gpu, 0, 64);
  const std::span<float> numbers(reinterpret_cast<float*>(memory.bytes().data()), 16);
  const auto sets = [&](std::uint64_t ticks) {
    return [&gpu, &w, numbers, ticks] {
      gpu.launch(w.streams[0], ticks,
                 [&gpu, numbers] { std::memset(gpu.shadow(numbers.data()), 0, numbers.size_bytes()); });
    };
  };
  device_kernel::options o{.name = "checked", .implementations = {{"slow", sets(60)}, {"fast", sets(20)}}};
  o.outputs = [&] { return numbers; };
  o.device = w.works[0].get();
  device_kernel checked(w.ranks[0]->kernels(), std::move(o));
  tuning::numerical_check check;
  check.on = true;
  w.ranks[0]->kernels().enable_numerics_check(check);
  w.call_all([&](rank_id) { checked(); });
  CHECK(w.outcomes[0]);
  CHECK(w.layers[0].best("checked", "all") == "fast");
  CHECK(w.layers[0].decision("checked", "all").time_ns < 40 * fake_cuda::ns_per_tick);
}

TEST_CASE("ranks that share the work measure kernels on devices, too") {
  contextual_options op = gpu_layers::usual();
  op.share = true;
  gpu_layers w(2, [](rank_id, std::size_t c) { return 10 * (3 - c); }, op);
  w.call_all([&](rank_id r) { (*w.kernels[r])(); });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.best(r) == "config_2");
  }
  CHECK(std::count(w.ran[0].begin(), w.ran[0].end(), 2) == 1);  // the last run; the other rank has measured it
}

TEST_CASE("a kernel on a device with implementations for some keys is tuned by itself, also in a contextual") {
  gpu_layers w(1, [](rank_id, std::size_t) { return 10; });
  device_kernel::options o{.name = "own",
                           .implementations = {{"common", [&] { w.gpus[0]->launch(w.streams[0], 30, {}); }}}};
  o.for_key = [&](const std::string&) {
    return std::vector<device_kernel::implementation>{{"mine", [&] { w.gpus[0]->launch(w.streams[0], 5, {}); }}};
  };
  o.device = w.works[0].get();
  device_kernel own(w.ranks[0]->kernels(), std::move(o));
  w.ranks[0]->kernels().enable_tunable_op(true);
  w.call_all([&](rank_id) { own(); });
  CHECK(w.outcomes[0]);
  CHECK(own.decision().decided);
  CHECK(own.id_of(own.decision()) == "mine");
  CHECK(w.layers[0].runs() == 1);
}

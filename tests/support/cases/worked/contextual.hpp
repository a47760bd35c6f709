#pragma once
/// Worked case 7: a function with two kernels, whose configs may fail.
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/place.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/contextual.hpp>
#include <parley/error.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::ops;
using namespace parley::runtime;

/// Runs a kernel on the place, and then waits. Configs differ by their wait.
inline task<> wait_for(place* at, const array<float>* x, time_ns span, std::vector<std::size_t>* order,
                       std::size_t config) {
  order->push_back(config);
  at->compute(kernels::linear{at->seen(*x), at->seen(*x), nullptr, 1, 1}, x->size());
  co_await at->reached();
  auto woken = co_await sleep_for(std::chrono::nanoseconds(span));
  static_cast<void>(woken);
}

using waiting_kernel = tunable_op<task<>(int)>;

inline waiting_kernel kernel_of(here* h, const array<float>* x, std::string name, const std::vector<time_ns>& takes,
                                std::vector<std::size_t>* order) {
  waiting_kernel::options o;
  o.name = std::move(name);
  for (std::size_t c = 0; c < takes.size(); ++c)
    o.implementations.push_back(
        {"config_" + std::to_string(c), [=](int) { return wait_for(&h->at, x, takes[c], order, c); }});
  return waiting_kernel(h->self.kernels(), std::move(o));
}

inline task<> both(waiting_kernel* first, waiting_kernel* second) {
  co_await (*first)(8);
  co_await (*second)(8);
}

// The machine decides which config is the best. All ranks must choose the same one, and run it.
inline task<> contextual_table(here* h) {
  std::vector<std::size_t> ran_0;
  std::vector<std::size_t> ran_1;
  const array<float> calls_0(h->at, 8);
  const array<float> calls_1(h->at, 8);
  const std::vector<float> zeros(8);
  co_await bring(h->at, calls_0, std::span(zeros));
  co_await bring(h->at, calls_1, std::span(zeros));
  auto kernel_0 = kernel_of(h, &calls_0, "kernel-0", {4_ms, 1_ms}, &ran_0);
  auto kernel_1 = kernel_of(h, &calls_1, "kernel-1", {4_ms, 1_ms, 8_ms}, &ran_1);
  contextual layer(
      h->self, {.name = "layer", .iterations = 2, .log_folder = "", .timeout = std::chrono::nanoseconds(h->patience)});
  const auto thunk = [&] { return both(&kernel_0, &kernel_1); };
  co_await layer.run(thunk);
  CHECK(layer.end().runs() == 7);
  const auto best_of = [&](const char* kernel) {
    return static_cast<std::size_t>(layer.end().best(kernel, "all").back() - '0');
  };
  const std::size_t best_0 = best_of("kernel-0");
  const std::size_t best_1 = best_of("kernel-1");
  CHECK(ran_0 == std::vector<std::size_t>{0, 0, 1, 1, best_0, best_0, best_0});
  CHECK(ran_1 == std::vector<std::size_t>{0, 0, 1, 1, 2, 2, best_1});
  co_await layer.run(thunk);
  CHECK(layer.end().runs() == 8);
  CHECK(ran_0.back() == best_0);
  CHECK(ran_1.back() == best_1);
  const std::vector<float> counted_0 = co_await taken(h->at, calls_0);
  const std::vector<float> counted_1 = co_await taken(h->at, calls_1);
  CHECK(counted_0 == std::vector<float>(8, static_cast<float>(ran_0.size())));
  CHECK(counted_1 == std::vector<float>(8, static_cast<float>(ran_1.size())));
  const auto mine = static_cast<double>(10 * best_0 + best_1);
  const double sum = co_await total(h, mine);
  CHECK(sum == mine * h->ranks);
}

/// A kernel whose configs fail on some ranks; called several times in a run.
inline task<> fail_or_wait(here* h, std::size_t config, std::vector<std::vector<rank_id>> fails, time_ns takes) {
  co_await wait_here(takes);
  if (config < fails.size() && std::count(fails[config].begin(), fails[config].end(), h->me) != 0)
    raise({errc::unavailable, "out of registers"});
}
inline waiting_kernel failing_kernel(here* h, std::string name, const std::vector<std::vector<rank_id>>& fails) {
  waiting_kernel::options o;
  o.name = std::move(name);
  const std::array<time_ns, 3> takes{6_ms, 1_ms, 3_ms};
  for (std::size_t c = 0; c < takes.size(); ++c)
    o.implementations.push_back(
        {"config_" + std::to_string(c), [=](int) { return fail_or_wait(h, c, fails, takes[c]); }});
  return waiting_kernel(h->self.kernels(), std::move(o));
}
inline task<> twice(waiting_kernel* kernel) {
  co_await (*kernel)(8);
  co_await (*kernel)(8);
}

inline task<> contextual_failures(here* h) {
  std::vector<rank_id> everywhere(h->ranks);
  std::iota(everywhere.begin(), everywhere.end(), rank_id{0});
  const std::string folder =
      h->is_virtual()
          ? std::string(".autotune_logs")
          : (std::filesystem::temp_directory_path() / ("parley-worked-" + std::to_string(::getpid()))).string();
  std::map<std::string, std::string> chosen_of;
  struct failing {
    const char* name;
    std::vector<std::vector<rank_id>> fails;
    const char* best;  // null: no config works
  };
  for (const failing& f : {failing{"fails on one", {{}, {h->ranks - 1}}, "config_2"},
                           failing{"fails as the last one", {{}, {}, everywhere}, "config_1"},
                           failing{"fails as all", {everywhere, {0}, everywhere}, nullptr}}) {
    auto kernel = failing_kernel(h, f.name, f.fails);
    contextual layer(h->self, {.name = std::string("layer that ") + f.name,
                               .iterations = 2,
                               .log_folder = folder,
                               .timeout = std::chrono::nanoseconds(h->patience)});
    const auto thunk = [&kernel] { return twice(&kernel); };
    auto outcome = co_await attempt(layer.run(thunk));
    if (f.best == nullptr) {
      CHECK(outcome.code() == errc::config_failed);
      CHECK(says(outcome, "cannot find valid config"));
      continue;
    }
    CHECK(outcome);
    CHECK(layer.end().runs() == 4);  // six steps, two in each run, and the one that counts
    const std::string best = layer.end().best(f.name, "all");
    REQUIRE_FALSE(best.empty());
    if (h->is_virtual()) CHECK(best == f.best);
    const auto chosen = static_cast<std::size_t>(best.back() - '0');
    CHECK((chosen >= f.fails.size() || f.fails[chosen].empty()));
    const double sum = co_await total(h, static_cast<double>(chosen));
    CHECK(sum == static_cast<double>(chosen * h->ranks));
    chosen_of[f.name] = best;
  }
  storage* const disk = h->self.kernels().disk();
  if (disk == nullptr) co_return;
  const std::string me = std::to_string(h->me);
  const auto log = disk->read(folder + "/rank-" + me + ".log");
  if (!h->is_virtual()) {
    std::error_code others_are_there;
    std::filesystem::remove(folder + "/rank-" + me + ".log");
    std::filesystem::remove(folder, others_are_there);
  }
  REQUIRE(log);
  const std::string of_kernel = "[rank-" + me + "] func: fails as the last one | key: {all} | ";
  const std::string& best = chosen_of["fails as the last one"];
  for (const std::string& line :
       {std::string("config-id: 0 | config: {config_0} | measure-iter: 0\n"),
        std::string("config-id: 1 | config: {config_1} | measure-iter: 1 | config-1 average latency: "),
        "best-config-id: " + best.substr(best.size() - 1) + " | best-config: {" + best + "} | best-latency: "})
    CHECK_MESSAGE(log->find(of_kernel + line) != std::string::npos, *log);
}

}  // namespace parley::tests::worked_cases

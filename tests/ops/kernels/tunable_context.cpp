// Each switch of `tunable_context` has its effect when a program calls it.
#include <parley/tests/support/world.hpp>

#include <parley/compute.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/version.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

using numbers = std::span<float>;
using fill_op = tunable_op<task<>(numbers)>;

task<> filled(float with, time_ns takes_ns, int* count, numbers out) {
  ++*count;
  std::fill(out.begin(), out.end(), with);
  co_await compute([] {}, takes_ns);
}

/// A context without a file, and a kernel that fills numbers. `ran`: how often each implementation has run.
struct bench {
  explicit bench(tunable_context::options o = {}, storage* disk = nullptr) : kernels(clock, disk, std::move(o)) {
    kernels.enable_tunable_op(true);
    kernels.set_rotating_buffer_size(0);
  }
  fill_op::implementation filling(const std::string& id, time_ns takes_ns, float with = 1) {
    int* const count = &ran[id];
    return {id, [=](numbers out) { return filled(with, takes_ns, count, out); }};
  }
  fill_op kernel(std::vector<fill_op::implementation> implementations) {
    return {kernels,
            {.name = "fill",
             .key = [](numbers out) { return tuning::kernel_key{{"n", out.size()}}; },
             .implementations = std::move(implementations),
             .outputs = [](numbers out) { return out; }}};
  }
  void call(fill_op& op, std::size_t n = 4) {
    const auto once = [](fill_op& o, numbers out) -> task<> { co_await o(out); };
    std::vector<float> out(n);
    run(clock, once(op, out));
  }

  virtual_time clock;
  tunable_context kernels;
  std::map<std::string, int> ran;
};

/// The winner after these calls of the switch. The numbers of `rough`, which is faster, are wrong by 1 %.
std::string winner_with(std::initializer_list<tuning::numerical_check> checks) {
  bench b;
  for (const tuning::numerical_check& c : checks) {
    b.kernels.enable_numerics_check(c);
    CHECK(b.kernels.is_numerics_check_enabled() == c.on);
  }
  fill_op op = b.kernel({b.filling("exact", 2_ms), b.filling("rough", 1_ms, 1.01F)});
  b.call(op);
  return b.kernels.learned().at(0).solution;
}

/// How often an implementation runs that takes 2 ms, like the default. Three of its runs are its probe; two of these are warm.
int runs_with(const std::function<void(tunable_context&)>& change) {
  bench b;
  change(b.kernels);
  fill_op op = b.kernel({b.filling("plain", 2_ms), b.filling("equal", 2_ms)});
  b.call(op);
  CHECK(b.ran["plain"] == b.ran["equal"] + 1);  // the caller's run
  return b.ran["equal"];
}

}  // namespace

TEST_CASE("keys that run while tuning is off are listed if the program asks for that, and only then") {
  bench b;
  fill_op op = b.kernel({b.filling("plain", 2_ms), b.filling("fast", 1_ms)});
  b.kernels.enable_tuning(false);
  b.call(op, 4);
  CHECK(b.kernels.untuned().empty());
  b.kernels.enable_record_untuned(true);
  CHECK(b.kernels.is_record_untuned_enabled());
  for (const std::size_t n : {4, 4, 5}) b.call(op, n);
  CHECK(b.kernels.untuned() == std::vector<std::string>{"fill,n=4", "fill,n=5"});
  b.kernels.enable_record_untuned(false);
  CHECK_FALSE(b.kernels.is_record_untuned_enabled());
  b.call(op, 6);
  CHECK(b.ran == std::map<std::string, int>{{"plain", 5}, {"fast", 0}});
  b.kernels.enable_record_untuned(true);
  b.kernels.enable_tuning(true);
  b.call(op, 7);
  CHECK(b.kernels.untuned().size() == 2);
  REQUIRE(b.kernels.learned().size() == 1);
  CHECK(b.kernels.learned()[0].parameters == "n=7");
}

TEST_CASE("a program switches the comparison of numbers on and off, and sets its tolerances") {
  CHECK(winner_with({}) == "rough");
  CHECK(winner_with({{.on = true}}) == "exact");
  CHECK(winner_with({{.on = true}, {.on = false}}) == "rough");
  CHECK(winner_with({{.on = true, .atol = 0, .rtol = 0.02}}) == "rough");
  CHECK(winner_with({{.on = true, .atol = 0, .rtol = 0.005}}) == "exact");
  CHECK(winner_with({{.on = true, .atol = 0.02, .rtol = 0}}) == "rough");
  CHECK(winner_with({{.on = true, .atol = 0.005, .rtol = 0}}) == "exact");
}

TEST_CASE("the program's limits of warm-ups and of timed runs say how often an implementation runs") {
  using context = tunable_context;
  constexpr int probe = 3;
  // The usual 30 ms: the two warm runs of its probe, and 13 more.
  CHECK(runs_with([](context&) {}) == probe + 13);
  CHECK(runs_with([](context& c) { c.set_max_tuning_duration_ms(10); }) == probe + 3);
  CHECK(runs_with([](context& c) { c.set_max_tuning_iterations(5); }) == probe + 5);
  CHECK(runs_with([](context& c) { c.set_max_tuning_iterations(7); }) == probe + 7);
  // The first of two limits that is reached counts.
  CHECK(runs_with([](context& c) { c.set_max_tuning_iterations(5), c.set_max_tuning_duration_ms(10); }) == probe + 3);

  const auto warm_ups = [](std::uint32_t iterations, std::uint32_t ms) {
    return runs_with([=](context& c) {
             c.set_max_tuning_iterations(5);
             c.set_max_warmup_iterations(iterations);
             c.set_max_warmup_duration_ms(ms);
             CHECK(c.get_max_warmup_iterations() == iterations);
             CHECK(c.get_max_warmup_duration_ms() == ms);
           }) -
           (probe + 5);
  };
  CHECK(warm_ups(0, 0) == 0);
  CHECK(warm_ups(4, 0) == 4);
  CHECK(warm_ups(0, 6) == 3);
  CHECK(warm_ups(4, 6) == 3);
  CHECK(warm_ups(2, 6) == 2);
}

TEST_CASE("a program that wants a CPU's instruction cache flushed gets a warning, and its kernels are tuned without") {
  bench b;
  b.kernels.enable_icache_flush(false);
  CHECK_FALSE(b.kernels.is_icache_flush_enabled());
  CHECK(b.kernels.warnings().empty());
  b.kernels.enable_icache_flush(true);
  CHECK(b.kernels.is_icache_flush_enabled());
  REQUIRE(b.kernels.warnings().size() == 1);
  CHECK(b.kernels.warnings()[0].find("ICACHE_FLUSH_ENABLED: a program cannot flush a CPU's instruction cache") == 0);
  fill_op op = b.kernel({b.filling("plain", 2_ms), b.filling("fast", 1_ms)});
  b.call(op);
  CHECK(b.kernels.learned().at(0).solution == "fast");
  CHECK(b.kernels.warnings().size() == 1);
}

TEST_CASE("a context returns the validators of its results: it writes them, and refuses files with others") {
  const std::vector<tuning::validator> mine{{"MACHINE", "one"}, {"BLAS", "1.2"}};
  memory_storage disk;
  tunable_context::options o;
  o.validators = mine;
  {
    bench b(o, &disk);
    CHECK(b.kernels.get_tuning_results_validator() == mine);
    fill_op op = b.kernel({b.filling("plain", 2_ms), b.filling("fast", 1_ms)});
    b.call(op);
    CHECK(b.kernels.write_file("mine.csv"));
  }
  CHECK(disk.files.at("mine.csv") == "Validator,MACHINE,one\nValidator,BLAS,1.2\nfill,n=4,fast,1\n");
  bench alike(o, &disk);
  CHECK(alike.kernels.read_file("mine.csv"));
  bench other({}, &disk);
  CHECK(other.kernels.get_tuning_results_validator().empty());
  CHECK(other.kernels.read_file("mine.csv").code() == errc::bad_argument);
}

TEST_CASE("the validators of a rank's kernels name its version and those of the program, but not the world's size") {
  rank_settings s;
  s.validators = {{"BLAS", "1.2"}};
  world w(2, s);
  const auto& all = w[0].kernels().get_tuning_results_validator();
  const auto has = [&](const tuning::validator& v) { return std::find(all.begin(), all.end(), v) != all.end(); };
  CHECK(has({"PARLEY_VERSION", std::string(version_text)}));
  CHECK(has({"BLAS", "1.2"}));
  CHECK(std::none_of(all.begin(), all.end(), [](const auto& v) { return v.name == "PARLEY_WORLD"; }));
}

#include <parley/tests/support/world.hpp>

#include <parley/compute.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/version.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <map>
#include <numeric>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using tuning::kernel_key;

namespace {

using numbers = std::span<float>;
using read_numbers = std::span<const float>;
using scale_op = tunable_op<task<>(read_numbers, numbers)>;

/// How often each implementation ran.
using counts = std::map<std::string, int>;

void doubled(read_numbers in, numbers out) {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = 2 * in[i];
}

task<> doubled_in(time_ns takes_ns, int* count, read_numbers in, numbers out) {
  ++*count;
  co_await compute([in, out] { doubled(in, out); }, takes_ns);
}
task<> nothing_in(time_ns takes_ns, int* count) {
  ++*count;
  co_await compute([] {}, takes_ns);
}
task<> one_added_in(time_ns takes_ns, numbers x) {
  for (float& v : x) v += 1;
  co_await compute([] {}, takes_ns);
}
task<> thrown_in(time_ns takes_ns, int* count) {
  ++*count;
  co_await compute([] {}, takes_ns);
  raise({errc::unavailable, "out of registers"});
}

scale_op::implementation right(std::string id, time_ns takes_ns, counts& ran, std::string family = {}) {
  int* const count = &ran[id];
  return {std::move(id), [=](read_numbers in, numbers out) { return doubled_in(takes_ns, count, in, out); },
          std::move(family)};
}
scale_op::implementation lazy(std::string id, time_ns takes_ns, counts& ran) {
  int* const count = &ran[id];
  return {std::move(id), [=](read_numbers, numbers) { return nothing_in(takes_ns, count); }};
}
scale_op::implementation broken(std::string id, time_ns takes_ns, counts& ran) {
  int* const count = &ran[id];
  return {std::move(id), [=](read_numbers, numbers) { return thrown_in(takes_ns, count); }};
}

kernel_key by_size(read_numbers in, numbers) { return {{"n", in.size()}}; }

scale_op::options scale_of(std::vector<scale_op::implementation> implementations) {
  scale_op::options o;
  o.name = "scale";
  o.key = by_size;
  o.implementations = std::move(implementations);
  o.outputs = [](read_numbers, numbers out) { return out; };
  return o;
}

tunable_context::options quick() {
  tunable_context::options o;
  o.mine.enabled = true;
  o.mine.rotating_buffer_bytes = 0;
  o.mine.max_tuning_iterations = 5;
  return o;
}

task<> call_once(scale_op& op, read_numbers in, numbers out) { co_await op(in, out); }

/// Makes one call with `n` numbers, and checks its output.
void scale_numbers(virtual_time& clock, scale_op& op, std::size_t n = 8) {
  std::vector<float> in(n);
  std::iota(in.begin(), in.end(), 1.0F);
  std::vector<float> out(n, -1.0F);
  run(clock, call_once(op, in, out));
  for (std::size_t i = 0; i < n; ++i) CHECK(out[i] == 2 * in[i]);
}

std::optional<std::string> none(const std::string&) { return std::nullopt; }
tuning::environment_settings environment(const std::map<std::string, std::string>& variables) {
  return tuning::read_settings([&](const std::string& name) {
           const auto at = variables.find(name);
           return at == variables.end() ? none(name) : std::optional(at->second);
         })
      .value();
}

}  // namespace

TEST_CASE("the first call of a kernel with a new key finds the fastest implementation, and later calls run it") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("blocked(rows=64)", 600'000, ran),
                                 right("slow", 5'000'000, ran)}));
  scale_numbers(clock, op);
  CHECK(ran["slow"] == 3);       // its probe, after which it is dropped
  CHECK(ran["plain"] == 3 + 3);  // after three turns it has lost
  // Its five turns begin with two runs that do not count. The last run is the caller's.
  CHECK(ran["blocked(rows=64)"] == 3 + 5 * (2 + 1) + 1);
  const counts before = ran;
  const time_ns began = clock.now();
  scale_numbers(clock, op);
  CHECK(clock.now() - began == 600'000);
  CHECK(ran["plain"] == before.at("plain"));
  scale_numbers(clock, op, 9);  // another key
  CHECK(ran["plain"] == before.at("plain") + 3 + 3);
  const std::vector<tuning::result_entry> expected{{"scale", "n=8", "blocked(rows=64)", 0.6},
                                                   {"scale", "n=9", "blocked(rows=64)", 0.6}};
  CHECK(context.learned() == expected);
}

TEST_CASE("a kernel that is not enabled runs its default and costs nothing") {
  virtual_time clock;
  counts ran;
  auto o = quick();
  o.mine.enabled = false;
  tunable_context context(clock, nullptr, std::move(o));
  scale_op op(context, scale_of({right("plain", 1'000, ran), right("other", 10, ran)}));
  scale_numbers(clock, op);
  CHECK(ran["plain"] == 1);
  CHECK(ran["other"] == 0);
  CHECK(op.core().entries().empty());
}

TEST_CASE("a fast candidate that writes wrong numbers, or leaves the default's output in place, never wins") {
  virtual_time clock;
  counts ran;
  auto o = quick();
  o.mine.check.on = true;
  o.mine.verbosity = 3;
  tunable_context context(clock, nullptr, std::move(o));
  auto tenfold = right("tenfold", 10'000, ran);
  tenfold.run = [](read_numbers in, numbers out) -> task<> {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = 10 * in[i];
    co_return;
  };
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), lazy("lazy", 10'000, ran), std::move(tenfold),
                                 right("blocked", 700'000, ran)}));
  scale_numbers(clock, op);
  CHECK(op.id_of(op.decision({}, {})) == "plain");  // nothing is decided for this other key
  CHECK(context.learned().at(0).solution == "blocked");
  CHECK(ran["lazy"] == 100 + 1);  // 1 ms of its probe, and its check
  const auto& log = context.log();
  const auto told = [&](const char* what) {
    return std::any_of(log.begin(), log.end(), [&](const auto& l) { return l.find(what) != l.npos; });
  };
  CHECK(told("wrong numbers: element 0 of output 0 is 10 where the default has 2"));
  CHECK(told("nan where the default has 2"));
  REQUIRE(context.warnings().size() == 2);
  CHECK(context.warnings()[0].find("kernel scale, n=8: lazy is left out: wrong numbers: ") == 0);
  CHECK(context.warnings()[1].find("kernel scale, n=8: tenfold is left out: wrong numbers: ") == 0);
}

TEST_CASE("without a numeric check a fast candidate that computes nothing wins") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), lazy("lazy", 10'000, ran)}));
  std::vector<float> x(8);
  run(clock, call_once(op, x, x));
  CHECK(context.learned().at(0).solution == "lazy");
}

TEST_CASE("a kernel whose numeric check is impossible keeps its default, and warns by name") {
  virtual_time clock;
  counts ran;
  auto o = quick();
  o.mine.check.on = true;
  tunable_context context(clock, nullptr, std::move(o));
  auto with_none = scale_of({right("plain", 1'000'000, ran), right("other", 10'000, ran)});
  with_none.outputs = {};
  scale_op op(context, std::move(with_none));
  scale_numbers(clock, op);
  CHECK(ran["other"] == 0);
  REQUIRE(context.warnings().size() == 1);
  CHECK(context.warnings()[0].find("kernel scale: NUMERICAL_CHECK is on") == 0);
}

TEST_CASE(
    "an implementation that returns a status other than 0 is left out, and the caller learns that of the default") {
  enum class vendor_status { success, not_supported = 7 };
  virtual_time clock;
  tunable_context context(clock, nullptr, quick());
  int runs = 0;
  vendor_status of_default = vendor_status::success;
  tunable_op<void(int&)> op(context, {.name = "scale",
                                      .implementations = {{"plain", [&](int& n) { return ++n, of_default; }},
                                                          {"vendor", [](int&) { return vendor_status::not_supported; }},
                                                          {"code", [](int&) { return 1; }},
                                                          {"void", [&](int& n) { ++n, ++runs; }}}});
  int n = 0;
  op(n);
  CHECK(runs > 0);
  REQUIRE(context.warnings().size() == 2);
  CHECK(context.warnings()[0] ==
        "kernel scale, all: vendor is left out: it throws: unavailable: kernel scale: vendor returned status 7");
  CHECK(context.warnings()[1].ends_with("code returned status 1"));
  context.enable_tunable_op(false);
  of_default = vendor_status::not_supported;
  const auto call = [&] { op(n); };
  CHECK_THROWS_WITH_AS(call(), "unavailable: kernel scale: plain returned status 7", failure);
  using bare = vendor_status (*)(int&);
  const auto make = [&] {
    const tunable_op<void(int&)> none(context, {.name = "none", .implementations = {{"plain", bare{nullptr}}}});
  };
  CHECK_THROWS_WITH_AS(make(), doctest::Contains("kernel none: plain has no function"), failure);
}

TEST_CASE("a candidate that throws is left out with its reason, and the caller gets an exception of the default") {
  virtual_time clock;
  counts ran;
  auto o = quick();
  o.mine.verbosity = 3;
  tunable_context context(clock, nullptr, std::move(o));
  {
    scale_op op(context, scale_of({right("plain", 1'000'000, ran), broken("broken", 10, ran)}));
    scale_numbers(clock, op);
    CHECK(ran["broken"] == 1);
    CHECK(context.learned().at(0).solution == "plain");
    CHECK(std::any_of(context.log().begin(), context.log().end(), [](const auto& l) {
      return l == "scale n=8:   broken: it throws: unavailable: out of registers";
    }));
    CHECK(context.warnings() ==
          std::vector<std::string>{"kernel scale, n=8: broken is left out: it throws: unavailable: out of registers"});
  }
  auto options = scale_of({broken("broken", 10, ran), right("plain", 1'000'000, ran)});
  options.name = "other";
  scale_op op(context, std::move(options));
  std::vector<float> x(8);
  CHECK_THROWS_WITH_AS(run(clock, call_once(op, x, x)), "unavailable: out of registers", failure);
  CHECK_FALSE(op.decision(x, x).decided);
  CHECK_FALSE(op.decision(x, x).being_tuned);
}

TEST_CASE("a kernel's updated argument is restored before the run that the caller gets") {
  virtual_time clock;
  tunable_context::options o = quick();
  o.mine.check.on = true;
  tunable_context context(clock, nullptr, std::move(o));
  using add_op = tunable_op<task<>(numbers)>;
  add_op op(context, {.name = "add",
                      .implementations = {{"slow", [](numbers x) { return one_added_in(1'000'000, x); }},
                                          {"fast", [](numbers x) { return one_added_in(400'000, x); }}},
                      .outputs = [](numbers x) { return kernel_outputs::updated(x); }});
  std::vector<float> x(4, 10.0F);
  const auto once = [](add_op& a, numbers v) -> task<> { co_await a(v); };
  run(clock, once(op, x));
  CHECK(x == std::vector<float>(4, 11.0F));
  CHECK(context.learned().at(0).solution == "fast");
}

TEST_CASE("a program can switch a family of implementations off and on") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  context.enable_family("simd", false);
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("wide", 10'000, ran, "simd"),
                                 right("blocked", 500'000, ran, "blocks")}));
  scale_numbers(clock, op);
  CHECK(ran["wide"] == 0);
  CHECK(context.learned().at(0).solution == "blocked");
  context.enable_family("simd", true);
  scale_numbers(clock, op, 9);
  CHECK(context.learned().at(1).solution == "wide");
}

TEST_CASE("with tuning off a kernel runs its remembered winner, and lists keys without one if asked") {
  virtual_time clock;
  counts ran;
  memory_storage disk;
  disk.files["known.csv"] = "scale,n=8,other,0.5\n";
  auto o = quick();
  o.mine.tuning = false;
  o.mine.record_untuned = true;
  tunable_context context(clock, &disk, std::move(o));
  context.read_file("known.csv").value();
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("other", 2'000'000, ran)}));
  scale_numbers(clock, op);
  scale_numbers(clock, op, 9);
  scale_numbers(clock, op, 9);
  CHECK(ran["other"] == 1);
  CHECK(ran["plain"] == 2);
  CHECK(context.untuned() == std::vector<std::string>{"scale,n=9"});
  CHECK(context.learned().empty());
}

TEST_CASE(
    "a kernel's results survive a round trip through its file, pins included, and an unknown solution is a warning") {
  virtual_time clock;
  counts ran;
  memory_storage disk;
  const std::vector<tuning::validator> here{{"MACHINE", "one"}};
  {
    auto o = quick();
    o.ordinal = 2;
    o.validators = here;
    tunable_context context(clock, &disk, std::move(o));
    scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("blocked(rows=64)", 600'000, ran)}));
    scale_numbers(clock, op);
  }
  CHECK(disk.files.at("tunableop_results2.csv") == "Validator,MACHINE,one\nscale,n=8,blocked(rows=64),0.6\n");
  disk.files["tunableop_results2.csv"] += "scale,n=9,Default\nscale,n=10,gone,0.1\n";
  ran.clear();
  auto o = quick();
  o.ordinal = 2;
  o.validators = here;
  tunable_context context(clock, &disk, std::move(o));
  context.read_file().value();
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("blocked(rows=64)", 600'000, ran)}));
  scale_numbers(clock, op, 8);
  CHECK(ran == counts{{"plain", 0}, {"blocked(rows=64)", 1}});
  scale_numbers(clock, op, 9);
  CHECK(ran == counts{{"plain", 1}, {"blocked(rows=64)", 1}});
  CHECK(context.learned().empty());
  scale_numbers(clock, op, 10);
  CHECK(context.learned().size() == 1);
  REQUIRE(context.warnings().size() == 1);
  CHECK(context.warnings()[0].find("`gone` of the results file is none of its implementations") != std::string::npos);

  auto elsewhere = quick();
  elsewhere.validators = {{"MACHINE", "two"}};
  tunable_context other(clock, &disk, std::move(elsewhere));
  const auto refused = other.read_file("tunableop_results2.csv");
  CHECK(refused.code() == errc::bad_argument);
  CHECK(other.get_tuning_results().entries().empty());
}

TEST_CASE("environment variables override the settings of a program") {
  virtual_time clock;
  tunable_context::options o;
  o.environment = environment({{"PARLEY_TUNABLEOP_ENABLED", "1"},
                               {"PARLEY_TUNABLEOP_MAX_TUNING_DURATION_MS", "7"},
                               {"PYTORCH_TUNABLEOP_FILENAME", "told%d.csv"},
                               {"PARLEY_TUNABLEOP_ICACHE_FLUSH_ENABLED", "1"},
                               {"PARLEY_TUNABLEOP_ROTATING_BUFFER_SIZE", "2"}});
  o.ordinal = 3;
  tunable_context context(clock, nullptr, std::move(o));
  context.enable_tunable_op(false);
  context.set_max_tuning_duration_ms(99);
  context.set_max_tuning_iterations(12);
  context.set_filename("mine.csv");
  CHECK(context.is_tunable_op_enabled());
  CHECK(context.get_max_tuning_duration_ms() == 7);
  CHECK(context.get_max_tuning_iterations() == 12);
  CHECK(context.get_filename() == "told3.csv");
  CHECK(context.get_rotating_buffer_size() == 2 << 20);
  CHECK(context.is_icache_flush_enabled());
  REQUIRE(context.warnings().size() == 1);
  CHECK(context.warnings()[0].find("ICACHE_FLUSH_ENABLED") == 0);

  tunable_context plain(clock, nullptr, {});
  CHECK_FALSE(plain.is_tunable_op_enabled());
  CHECK(plain.is_tuning_enabled());
  CHECK(plain.get_filename() == "tunableop_results0.csv");
  plain.set_filename("mine.csv", false);
  CHECK(plain.get_filename() == "mine.csv");
  plain.set_filename("mine.csv", true);
  CHECK(plain.get_filename() == "mine0.csv");
  CHECK(plain.get_rotating_buffer_size() > 0);
}

TEST_CASE(
    "a kernel's name is unique while the kernel lives, and impossible implementations are refused when declared") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  CHECK_THROWS_AS(scale_op(context, scale_of({})), failure);
  CHECK_THROWS_AS(scale_op(context, scale_of({right("a", 1, ran), right("a", 1, ran)})), failure);
  CHECK_THROWS_AS(scale_op(context, scale_of({right("a,b", 1, ran)})), failure);
  CHECK_THROWS_AS(scale_op(context, scale_of({{"a", {}}})), failure);
  {
    scale_op op(context, scale_of({right("a", 1, ran)}));
    CHECK_THROWS_AS(scale_op(context, scale_of({right("a", 1, ran)})), failure);
  }
  scale_op again(context, scale_of({right("a", 1, ran)}));
}

TEST_CASE("a call during the tuning of its key runs the default") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
  std::vector<float> in(8, 1.0F);
  std::vector<float> a(8);
  std::vector<float> b(8);
  const auto both = [](scale_op& o, read_numbers i, numbers x, numbers y) -> task<> {
    co_await when_all(o(i, x), o(i, y));
  };
  run(clock, both(op, in, a, b));
  CHECK(ran["plain"] == 3 + 3 + 1);
  CHECK(a == b);
}

TEST_CASE("a call whose time runs out while it tunes leaves its key undecided, and leaves no implementation out") {
  // Waits that end with the call, unlike `compute`. The default loses after 12 ms.
  virtual_time clock;
  tunable_context context(clock, nullptr, quick());
  const auto waits = [](std::chrono::nanoseconds span) -> task<> { co_await sleep_for(span); };
  tunable_op<task<>()> op(context, {.name = "waiting",
                                    .implementations = {{"slow", [waits] { return waits(1ms); }},
                                                        {"fast", [waits] { return waits(500us); }}}});
  for (const time_ns limit_ns : {2_ms, 7_ms, 12_ms, 13_ms, 14_ms}) {
    scope limited(clock, {.deadline = clock.deadline_in(limit_ns)});
    limited.spawn(op());
    run_until(clock, [&] { return limited.running() == 0; });
    CHECK(limited.cancelled() == errc::timeout);
    CHECK(context.learned().empty());
    CHECK(context.warnings().empty());
  }
  run(clock, op());
  CHECK(context.learned().at(0).solution == "fast");
}

TEST_CASE("kernels that are plain functions are tuned in their call, and keep the default if no time passes") {
  virtual_time clock;
  tunable_context context(clock, nullptr, quick());
  int first = 0;
  int second = 0;
  tunable_op<void(int)> op(context, {.name = "now",
                                     .implementations = {{"first", [&](int by) { first += by; }},
                                                         {"second", [&](int by) { second += by; }}}});
  op(3);
  // Virtual time does not advance in these calls, so nothing can be measured, and the default stays.
  const int runs = 3 + 5 * (1 + 1);
  CHECK(first == 3 * (runs + 1));
  CHECK(second == 3 * runs);
  CHECK(op.decision(3).winner == 0);
  op(2);
  CHECK(first == 3 * (runs + 1) + 2);
}

TEST_CASE("a rank writes its kernels' results into its results file, and reads them when it starts again") {
  counts ran;
  rank_settings s;
  s.results_path = "results.csv";
  s.kernels.enabled = true;
  s.kernels.rotating_buffer_bytes = 0;
  std::map<std::string, std::string> files;
  {
    world w(1, s);
    scale_op op(w[0].kernels(), scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
    scale_numbers(w.clock, op);
    CHECK(w[0].write_results().value() == "results0.csv");
    files = w.disk[0].files;
  }
  CHECK(files.at("results0.csv").find("\nscale,n=8,fast,0.5\n") != std::string::npos);
  ran.clear();
  world w(1, s);
  w.disk[0].files = files;
  w.ranks[0].reset();
  w.ranks[0] = std::make_unique<rank>(rank_foundation{w.clock, w.links[0], &w.disk[0], w.incarnations, {}}, s);
  scale_op op(w[0].kernels(), scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
  scale_numbers(w.clock, op);
  CHECK(ran == counts{{"plain", 0}, {"fast", 1}});
}

TEST_CASE("rules name the implementation that runs for a kernel's key, or exclude some") {
  virtual_time clock;
  counts ran;
  auto o = quick();
  o.rules = tuning::rule_file::parse("scale,n=8,slow\nscale,n=9,^f*\nscale,n=9,fast\nscale,n=10,nothing\nother,*,plain",
                                     "rules.csv")
                .value();
  tunable_context context(clock, nullptr, std::move(o));
  scale_op op(context,
              scale_of({right("plain", 1'000'000, ran), right("fast", 10'000, ran), right("slow", 5'000'000, ran)}));
  scale_numbers(clock, op, 8);
  CHECK(ran == counts{{"plain", 0}, {"fast", 0}, {"slow", 1}});
  std::vector<float> x(8), y(9), z(10);
  CHECK(op.decision(x, x).why == "rules.csv:1 names it");
  scale_numbers(clock, op, 9);
  CHECK(ran["fast"] == 0);
  CHECK(op.id_of(op.decision(y, y)) == "plain");
  scale_numbers(clock, op, 10);
  CHECK(op.id_of(op.decision(z, z)) == "fast");
  REQUIRE(context.warnings().size() == 2);
  CHECK(context.warnings()[0] ==
        "kernel scale, n=9: rules.csv:3 names fast, which is not run, because rules.csv:2 excludes it");
  CHECK(context.warnings()[1] == "kernel scale, n=10: rules.csv:4 names nothing, which is none of its implementations");
}

TEST_CASE("a remembered implementation whose family is switched off since does not run") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  tuning::results_file file;
  REQUIRE(file.add(tuning::result_entry{"scale", "n=8", "wide", 0.01}));
  context.remember(file);
  context.enable_family("simd", false);
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("wide", 10'000, ran, "simd")}));
  scale_numbers(clock, op);
  CHECK(ran == counts{{"plain", 1}, {"wide", 0}});
}

TEST_CASE("a kernel without a choice is not tried: its first call runs the default once") {
  virtual_time clock;
  counts ran;
  auto o = quick();
  std::vector<scale_op::implementation> all{right("plain", 1'000'000, ran)};
  bool family_off = false;
  bool declares = true;
  SUBCASE("a single implementation") {}
  SUBCASE("the families of all others are off") {
    all.push_back(right("wide", 10'000, ran, "simd"));
    family_off = true;
  }
  SUBCASE("numbers have to be compared, and no outputs are declared") {
    all.push_back(right("wide", 10'000, ran));
    o.mine.check.on = true;
    declares = false;
  }
  tunable_context context(clock, nullptr, std::move(o));
  if (family_off) context.enable_family("simd", false);
  auto declared = scale_of(std::move(all));
  if (!declares) declared.outputs = {};
  scale_op op(context, std::move(declared));
  scale_numbers(clock, op);
  CHECK(ran["plain"] == 1);
  CHECK(ran["wide"] == 0);
  CHECK(clock.now() == 1'000'000);
  CHECK(context.learned().empty());
  std::vector<float> x(8);
  CHECK_FALSE(op.decision(x, x).why.empty());
  scale_numbers(clock, op);
  CHECK(ran["plain"] == 2);
  CHECK(context.warnings().size() == (declares ? 0 : 1));
}

TEST_CASE("a key without a choice is tuned once a second implementation is enabled") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  context.enable_family("simd", false);
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("wide", 10'000, ran, "simd")}));
  scale_numbers(clock, op);
  context.enable_family("simd", true);
  scale_numbers(clock, op);
  CHECK(context.learned().at(0).solution == "wide");
}

TEST_CASE("a kernel with a single implementation updates its argument once") {
  virtual_time clock;
  tunable_context context(clock, nullptr, quick());
  float x = 0;
  tunable_op<void(float&)> op(context, {.name = "add", .implementations = {{"only", [](float& v) { v += 1; }}}});
  op(x);
  CHECK(x == 1);
}

TEST_CASE("the tuning duration limits the runs after the first run of each implementation") {
  virtual_time clock;
  counts ran;
  auto o = quick();
  o.mine.max_tuning_duration_ms = 5;
  tunable_context context(clock, nullptr, std::move(o));
  scale_op op(context, scale_of({right("plain", 40'000'000, ran), right("fast", 20'000'000, ran)}));
  scale_numbers(clock, op);
  CHECK(ran["plain"] == 2);
  CHECK(ran["fast"] == 2 + 1);
  CHECK(context.learned().at(0).solution == "fast");
}

TEST_CASE("a kernel's result is in its file within a second, though the context has not ended") {
  virtual_time clock;
  counts ran;
  memory_storage disk;
  tunable_context context(clock, &disk, quick());
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
  scale_numbers(clock, op);
  const auto rest = [](time_ns until) -> task<> { auto woken = co_await sleep_until(until); };
  run(clock, rest(clock.deadline_in(1'000'000'000)));
  CHECK(disk.files.at("tunableop_results0.csv") == "scale,n=8,fast,0.5\n");
}

TEST_CASE(
    "a context that the program switches on reads and writes its file, like one that the environment switches on") {
  virtual_time clock;
  counts ran;
  memory_storage disk;
  disk.files["tunableop_results0.csv"] = "scale,n=9,fast,0.5\n";
  tunable_context::options o;
  o.mine.rotating_buffer_bytes = 0;
  SUBCASE("by the program") { o.mine.enabled = false; }
  SUBCASE("by the environment") { o.environment = environment({{"PARLEY_TUNABLEOP_ENABLED", "1"}}); }
  {
    tunable_context context(clock, &disk, o);
    context.enable_tunable_op(true);
    scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
    scale_numbers(clock, op, 9);
    CHECK(ran == counts{{"plain", 0}, {"fast", 1}});
    scale_numbers(clock, op, 8);
  }
  CHECK(disk.files.at("tunableop_results0.csv") == "scale,n=9,fast,0.5\nscale,n=8,fast,0.5\n");
}

TEST_CASE("a context that must not write on exit writes no file") {
  virtual_time clock;
  counts ran;
  memory_storage disk;
  {
    tunable_context context(clock, &disk, quick());
    context.write_file_on_exit(false);
    scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
    scale_numbers(clock, op);
    const auto rest = [](time_ns until) -> task<> { auto woken = co_await sleep_until(until); };
    run(clock, rest(clock.deadline_in(1'000'000'000)));
  }
  CHECK(disk.files.empty());
}

TEST_CASE("a file written on request has all known results, and no file is written if there are none") {
  virtual_time clock;
  counts ran;
  memory_storage disk;
  disk.files["known.csv"] = "scale,n=9,fast,0.5\n";
  auto o = quick();
  o.write_file_on_exit = false;
  tunable_context context(clock, &disk, std::move(o));
  CHECK(context.write_file("none.csv").code() == errc::unavailable);
  CHECK_FALSE(disk.files.contains("none.csv"));
  context.read_file("known.csv").value();
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
  scale_numbers(clock, op);
  CHECK(context.write_file("all.csv").value() == "all.csv");
  CHECK(disk.files.at("all.csv") == "scale,n=9,fast,0.5\nscale,n=8,fast,0.5\n");
}

TEST_CASE("a rank without a results file gives its kernels a file of their own, but not if no results are wanted") {
  counts ran;
  rank_settings s;
  s.kernels.rotating_buffer_bytes = 0;
  bool shall_not = false;
  SUBCASE("no setting about results is given") {}
  SUBCASE("no results are wanted") { s.no_results = shall_not = true; }
  world w(2, s);
  w[1].kernels().enable_tunable_op(true);
  scale_op op(w[1].kernels(), scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
  scale_numbers(w.clock, op);
  CHECK(w[1].write_results().code() == errc::unavailable);  // the error concerns the results of its ops
  CHECK(w.disk[1].files.contains("tunableop_results1.csv") == !shall_not);
  if (!shall_not) {
    CHECK(w.disk[1].files.at("tunableop_results1.csv").find("\nscale,n=8,fast,0.5\n") != std::string::npos);
    CHECK(w.disk[1].files.at("tunableop_results1.csv").find("PARLEY_WORLD") == std::string::npos);
  }
}

TEST_CASE("a rank does not write its kernels' results if their context must not write on exit") {
  counts ran;
  rank_settings s;
  s.results_path = "results.csv";
  s.kernels.enabled = true;
  s.kernels.rotating_buffer_bytes = 0;
  world w(1, s);
  w[0].kernels().write_file_on_exit(false);
  scale_op op(w[0].kernels(), scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
  scale_numbers(w.clock, op);
  CHECK(w[0].write_results());
  CHECK(w.disk[0].files.empty());
}

TEST_CASE("a kernel's decision names a remembered winner that cannot be used") {
  virtual_time clock;
  counts ran;
  memory_storage disk;
  disk.files["tunableop_results0.csv"] = "scale,n=8,fats,0.5\n";
  tunable_context context(clock, &disk, quick());
  scale_op op(context, scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
  scale_numbers(clock, op);
  std::vector<float> x(8);
  CHECK(op.decision(x, x).why.find("`fats` of the results file is none of its implementations") != std::string::npos);
}

TEST_CASE("one rank reports each unused pin, at the end") {
  counts ran;
  rank_settings s;
  s.results_path = "results.csv";
  s.kernels.enabled = true;
  std::vector<memory_storage> disks(2);
  for (memory_storage& disk : disks)
    disk.files["results.csv"] =
        "Validator,PARLEY_VERSION," + std::string(version_text) +
        "\nValidator,PARLEY_WORLD,2\nscale,n=8,Default\nscael,n=8,Default\nacts/1>0,1MiB,Default\n";
  world w(2, s, {}, {}, disks);
  for (rank_id r = 0; r < 2; ++r) CHECK(w[r].remembered().entries().size() == 3);
  scale_op op(w[0].kernels(), scale_of({right("plain", 1'000'000, ran), right("fast", 500'000, ran)}));
  scale_numbers(w.clock, op);
  CHECK(ran == counts{{"plain", 1}, {"fast", 0}});
  REQUIRE(w[0].idle_pins().size() == 1);
  CHECK(w[0].idle_pins()[0].find("`scael,n=8`") != std::string::npos);
  REQUIRE(w[1].idle_pins().size() == 1);
  CHECK(w[1].idle_pins()[0].find("`acts/1>0,1MiB`") != std::string::npos);
}

TEST_CASE("implementations that exist for some keys only are tried for these keys, and keep their names") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  scale_op::options o = scale_of({right("plain", 1'000'000, ran)});
  std::vector<std::string> asked;
  o.for_key = [&](const std::string& named, read_numbers in, numbers) {
    asked.push_back(named.empty() ? "all" : named);
    std::vector<scale_op::implementation> mine;
    const auto add = [&](std::string id, time_ns takes_ns) {
      if (named.empty() || named == id) mine.push_back(right(std::move(id), takes_ns, ran));
    };
    if (in.size() == 9) add("only_nine", 10'000);
    if (in.size() % 2 == 0) add("even(by=2)", 300'000);
    add("any", 700'000);
    return mine;
  };
  scale_op op(context, std::move(o));
  scale_numbers(clock, op, 8);
  CHECK(asked == std::vector<std::string>{"all"});
  CHECK(ran["only_nine"] == 0);
  scale_numbers(clock, op, 9);
  // The winner of 8 is a hint for 9, for which it does not exist.
  CHECK(asked == std::vector<std::string>{"all", "even(by=2)", "all"});
  scale_numbers(clock, op, 11);
  std::vector<float> in(8), out(8);
  const auto chosen = [&](std::size_t n) {
    in.resize(n), out.resize(n);
    return op.id_of(op.decision(in, out));
  };
  CHECK(chosen(8) == "even(by=2)");
  CHECK(chosen(9) == "only_nine");
  CHECK(chosen(11) == "any");
}

TEST_CASE("an implementation that exists for one key is found by its name in a results file, without the others") {
  virtual_time clock;
  counts ran;
  tunable_context context(clock, nullptr, quick());
  tuning::results_file file;
  REQUIRE(file.add({"scale", "n=8", "own(by=4)", 0.3}));
  REQUIRE(file.add({"scale", "n=9", "gone(by=4)", 0.3}));
  context.remember(file);
  scale_op::options o = scale_of({right("plain", 1'000'000, ran)});
  std::vector<std::string> asked;
  o.for_key = [&](const std::string& named, read_numbers, numbers) {
    asked.push_back(named.empty() ? "all" : named);
    std::vector<scale_op::implementation> mine;
    if (named.empty() || named == "own(by=4)") mine.push_back(right("own(by=4)", 300'000, ran));
    return mine;
  };
  scale_op op(context, std::move(o));
  scale_numbers(clock, op, 8);
  CHECK(asked == std::vector<std::string>{"own(by=4)"});
  CHECK(ran["own(by=4)"] == 1);
  CHECK(ran["plain"] == 0);
  scale_numbers(clock, op, 9);
  std::vector<float> in(9), out(9);
  CHECK(op.decision(in, out).passed_over == "`gone(by=4)` of the results file is none of its implementations");
  CHECK(op.id_of(op.decision(in, out)) == "own(by=4)");
  CHECK(asked.back() == "all");
}

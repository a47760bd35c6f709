#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/folder.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/participant.hpp>
#include <parley/config.hpp>
#include <parley/ops/core/decision_record.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/run.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::tests;
using actors::tuning_policy;
using runtime::errc;

namespace {

using variables = std::map<std::string, std::string>;

heeded_environment heed(const variables& all, rank_settings mine = {}) {
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto at = all.find(name);
    if (at == all.end()) return std::nullopt;
    return at->second;
  };
  std::vector<std::string> names;
  for (const auto& [name, value] : all) names.push_back(name);
  return heed_environment(std::move(mine), lookup, names);
}

/// The lines about the decisions of a rank's ops.
std::vector<std::string> lines_told(const rank& self, unsigned verbosity) {
  std::vector<std::string> all;
  for (const actors::participant_state* p : self.participants()) {
    for (const actors::decision_record& d : p->decisions) {
      const auto lines = lines_of(decision_of(*p, d, self.id()), verbosity);
      all.insert(all.end(), lines.begin(), lines.end());
    }
  }
  return all;
}

}  // namespace

TEST_CASE("without variables a rank uses the settings of its program") {
  rank_settings mine;
  mine.results_path = "mine.csv";
  mine.policy = tuning_policy::off;
  const auto s = heed({}, mine).settings;
  CHECK(s.results_path == "mine.csv");
  CHECK(s.policy == tuning_policy::off);
  CHECK(s.untuned_path.empty());
  CHECK(s.plan.maximum_in_all == tuning::plan_options{}.maximum_in_all);
}

TEST_CASE("PARLEY_SOFT_VALIDATORS adds to the program's soft validators") {
  rank_settings mine;
  mine.soft_validators = {"MY_KERNELS"};
  CHECK(heed({{"PARLEY_SOFT_VALIDATORS", "PARLEY_UCX,,PARLEY_CUDA"}}, mine).settings.soft_validators ==
        std::vector<std::string>{"MY_KERNELS", "PARLEY_UCX", "PARLEY_CUDA"});
  CHECK_THROWS_WITH_AS(static_cast<void>(heed({{"PARLEY_SOFT_VALIDATORS", ""}})),
                       doctest::Contains("PARLEY_SOFT_VALIDATORS=: must be names of validators"), failure);
}

TEST_CASE("the rules in the file of PARLEY_RULES hold for the ops that a rank leads, and a bad file is an error") {
  const scratch_folder here;
  const std::string path = (here.path / "rules.csv").string();
  const auto heed_file = [&](const std::string& text) {
    here.write("rules.csv", text);
    return heed({{"PARLEY_RULES", path}}).settings;
  };
  world w(2, heed_file("activations/0>1,*,chunked(chunk_bytes=8KiB in_flight=1)\n"));
  const std::vector<config_ptr> configs{direct(), chunked(8192, 1)};
  CHECK(move_each(w, configs, configs, std::vector<std::size_t>(20, 100'000)).failed() == 0);
  pass(w, 1'000'000'000);
  REQUIRE(search_of(w, "128KiB") != nullptr);
  CHECK(search_of(w, "128KiB")->chosen().config == "chunked(chunk_bytes=8192 in_flight=1)");
  CHECK(search_of(w, "128KiB")->trials() == 0);
  CHECK(w[0].learned().empty());  // a rule is not a result

  CHECK_THROWS_WITH_AS(static_cast<void>(heed_file("activations/0>1,*\n")),
                       doctest::Contains("rules.csv:1: a rule has three columns"), failure);
  const auto missing = [&] { static_cast<void>(heed({{"PARLEY_RULES", path + ".no"}})); };
  CHECK_THROWS_WITH_AS(missing(), doctest::Contains("the rules of PARLEY_RULES could not be read: "), failure);
  rank_settings mine;
  mine.rules = tuning::rule_file::parse("*,*,direct", "mine").value();
  CHECK(heed({{"PARLEY_RULES", ""}}, mine).settings.rules.empty());
  CHECK_FALSE(heed({}, mine).settings.rules.empty());
}

TEST_CASE("a rule that names no config of an op is a warning for the user of its leader") {
  rank_settings s;
  s.rules = tuning::rule_file::parse("activations/0>1,*,chunkd", "rules.csv").value();
  world w(2, s);
  const std::vector<config_ptr> configs{direct(), chunked(8192, 1)};
  CHECK(move_each(w, configs, configs, std::vector<std::size_t>(200, 100'000)).failed() == 0);
  pass(w, 1'000'000'000);
  REQUIRE(w[0].warnings().size() == 1);
  CHECK(w[0].warnings()[0].find("rules.csv:1 names chunkd") != std::string::npos);
  CHECK(w[1].warnings().empty());
}

TEST_CASE("a rule that fits nothing is a warning at the end, on the first rank of its op") {
  rank_settings s;
  s.kernels.enabled = true;
  s.rules = tuning::rule_file::parse("activations/0>1,128KiB,direct\nactivations/0>1,64KiB,direct\n"
                                     "activation/1>0,*,direct\nactivatio*,64KiB,direct\nscale,n=8,plain\nscale,n=9,^x",
                                     "rules.csv")
                .value();
  world w(2, s);
  const std::vector<config_ptr> configs{direct(), chunked(8192, 1)};
  CHECK(move_each(w, configs, configs, std::vector<std::size_t>(20, 100'000)).failed() == 0);
  tunable_op<void(std::uint64_t)> scale(
      w[0].kernels(), {.name = "scale",
                       .key = [](std::uint64_t n) { return kernel_key{{"n", n}}; },
                       .implementations = {{"plain", [](std::uint64_t) {}}, {"other", [](std::uint64_t) {}}}});
  scale(8);
  pass(w, 1'000'000'000);
  const auto first = w[0].idle_rules(), second = w[1].idle_rules();
  REQUIRE(first.size() == 2);
  CHECK(first[0].starts_with("rules.csv:2 fits nothing that this rank has used"));
  CHECK(first[1].starts_with("rules.csv:6 fits nothing"));
  REQUIRE(second.size() == 1);
  CHECK(second[0].starts_with("rules.csv:3 fits nothing"));
}

TEST_CASE("environment variables name the results file, and override the program") {
  rank_settings mine;
  mine.results_path = "mine.csv";
  CHECK(heed({{"PYTORCH_TUNABLEOP_FILENAME", "t.csv"}}, mine).settings.results_path == "t.csv");
  CHECK(heed({{"PARLEY_TUNABLEOP_ENABLED", "1"}}).settings.results_path == "tunableop_results.csv");
  CHECK(heed({{"PARLEY_TUNABLEOP_FILENAME", "t.csv"}, {"PARLEY_RESULTS", "r.csv"}}).settings.results_path == "r.csv");
  CHECK(heed({{"PARLEY_RESULTS", ""}}, mine).settings.results_path.empty());
  const auto off = heed({{"PARLEY_TUNABLEOP_ENABLED", "0"}, {"PARLEY_RESULTS", "r.csv"}}, mine).settings;
  CHECK(off.results_path.empty());
  CHECK(off.policy == tuning_policy::off);
}

TEST_CASE("an empty name and /dev/null mean no results file, for kernels as for ops") {
  rank_settings mine;
  mine.results_path = "mine.csv";
  for (const char* const none : {"", "/dev/null"}) {
    const auto s = heed({{"PARLEY_RESULTS", none}}, mine).settings;
    CHECK(s.results_path.empty());
    CHECK(s.no_results);
  }
  CHECK_FALSE(heed({}, mine).settings.no_results);
  CHECK_FALSE(heed({}).settings.no_results);
  mine.results_path = "/dev/null";
  CHECK(heed({}, mine).settings.no_results);
  CHECK(heed({}, mine).settings.results_path.empty());
}

TEST_CASE("environment variables switch trials off and limit them") {
  CHECK(heed({{"PARLEY_TUNING", "0"}}).settings.policy == tuning_policy::off);
  CHECK(heed({{"PYTORCH_TUNABLEOP_TUNING", "0"}}).settings.policy == tuning_policy::off);
  CHECK(heed({{"PYTORCH_TUNABLEOP_TUNING", "0"}, {"PARLEY_TUNING", "1"}}).settings.policy == tuning_policy::online);
  rank_settings mine;
  mine.policy = tuning_policy::off;
  CHECK(heed({{"PARLEY_TUNING", "1"}}, mine).settings.policy == tuning_policy::online);
  const auto s = heed({{"PARLEY_TUNABLEOP_MAX_TUNING_ITERATIONS", "3"},
                       {"PARLEY_TUNABLEOP_MAX_TUNING_DURATION_MS", "5"},
                       {"PARLEY_TUNABLEOP_MAX_WARMUP_ITERATIONS", "2"}})
                     .settings;
  CHECK(s.plan.maximum_in_all == 3);
  CHECK(s.plan.maximum_ns == 5e6);
  CHECK(s.plan.warm_up_repetitions == 2);
}

TEST_CASE("environment variables switch searches for drift off and configure them") {
  CHECK(heed({}).settings.plan.drift.on);
  CHECK_FALSE(heed({{"PARLEY_TUNING_DRIFT", "0"}}).settings.plan.drift.on);
  const auto s = heed({{"PARLEY_TUNING_DRIFT_EVERY", "64"}, {"PARLEY_TUNING_DRIFT_THRESHOLD", "0.5"}}).settings;
  CHECK(s.plan.drift.every == 64);
  CHECK(s.plan.drift.threshold == 0.5);
  using wrong = std::pair<const char*, const char*>;
  for (const auto& [name, text] :
       {wrong{"PARLEY_TUNING_DRIFT", "yes"}, wrong{"PARLEY_TUNING_DRIFT_EVERY", "0"},
        wrong{"PARLEY_TUNING_DRIFT_EVERY", "-1"}, wrong{"PARLEY_TUNING_DRIFT_EVERY", ""},
        wrong{"PARLEY_TUNING_DRIFT_THRESHOLD", "0x1"}, wrong{"PARLEY_TUNING_DRIFT_THRESHOLD", "1e-400"},
        wrong{"PARLEY_TUNING_DRIFT_EVERY", "9x"}, wrong{"PARLEY_TUNING_DRIFT_THRESHOLD", "nan"},
        wrong{"PARLEY_TUNING_DRIFT_THRESHOLD", "0"}}) {
    CAPTURE(name);
    CAPTURE(text);
    CHECK_THROWS_WITH(heed({{name, text}}), doctest::Contains((std::string(name) + "=" + text + ": must be").c_str()));
  }
}

TEST_CASE("PARLEY_PATIENCE sets the factor by which timeouts grow") {
  CHECK(heed({}).settings.patience == 1);
  rank_settings mine;
  mine.patience = 3;
  CHECK(heed({}, mine).settings.patience == 3);
  CHECK(heed({{"PARLEY_PATIENCE", "10"}}, mine).settings.patience == 10);
  for (const char* wrong : {"", " 5", "0", "-0", "-1", "0x2", "1001", "2.5", "twice"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(
        heed({{"PARLEY_PATIENCE", wrong}}),
        doctest::Contains((std::string("PARLEY_PATIENCE=") + wrong + ": must be a whole number").c_str()));
  }
}

TEST_CASE("PARLEY_DETECTION sets how soon silence means death: never, or after a time that heartbeats can keep") {
  const auto read = [](const char* text, time_ns mine = 2'000'000'000) {
    return heed_detection(mine, [&](const std::string& name) -> std::optional<std::string> {
      if (text == nullptr || name != "PARLEY_DETECTION") return std::nullopt;
      return text;
    });
  };
  CHECK(read(nullptr) == 2'000'000'000);
  CHECK(read(nullptr, 0) == 0);
  CHECK(read("0") == 0);
  CHECK(read("0.008") == 8'000'000);
  CHECK(read("2.5") == 2'500'000'000);
  CHECK(read("3600") == 3'600'000'000'000);
  for (const std::string wrong :
       {"", "-0", "-1", "1e-400", "1e-10", "1e-9", "0.001", "0.00799", "3601", "nan", "2 s"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(read(wrong.c_str()), doctest::Contains(("PARLEY_DETECTION=" + wrong +
                                                              ": must be 0 (never), or seconds from 0.008 to 3600; "
                                                              "correct it or unset it")
                                                                 .c_str()));
  }
  CHECK(read("1", 1) == 1'000'000'000);
  CHECK_THROWS_WITH(read(nullptr, 7'999'999), doctest::Contains("job_options::detection is 7999999 ns: it must be 0"));
}

TEST_CASE("an empty variable is an error, except where empty means none") {
  for (const char* name : {"PARLEY_TUNING", "PARLEY_TUNING_DRIFT", "PARLEY_TUNING_DRIFT_EVERY",
                           "PARLEY_TUNING_DRIFT_THRESHOLD", "PARLEY_PATIENCE", "PARLEY_MASK", "PARLEY_FLIGHT_DIR"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(heed({{name, ""}}), doctest::Contains((std::string(name) + "=: must be ").c_str()));
  }
  const auto lookup = [](const std::string&) { return std::optional<std::string>(""); };
  for (const char* name : {"PARLEY_STRICT", "PARLEY_UCX_CUDA"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(heed_switch(name, lookup), doctest::Contains((std::string(name) + "=: must be 0 or 1").c_str()));
  }
  rank_settings mine;
  mine.results_path = "mine.csv";
  CHECK(heed({{"PARLEY_RESULTS", ""}}, mine).settings.no_results);
  CHECK(heed({{"PARLEY_TUNABLEOP_ENABLED", ""}}, mine).settings.results_path == "mine.csv");
}

TEST_CASE("NUMERICAL_CHECK sets the relative error that is tolerated in all ops, and turns comparisons on") {
  CHECK_FALSE(heed({}).settings.constraints.any());
  CHECK_FALSE(heed({{"PARLEY_TUNABLEOP_NUMERICAL_CHECK", "0"}}).settings.constraints.any());
  CHECK(heed({{"PARLEY_TUNABLEOP_NUMERICAL_CHECK", "1e-3_0.25"}}).settings.constraints.relative_error == 0.25);
  CHECK(heed({{"PARLEY_TUNABLEOP_NUMERICAL_CHECK", "1"}}).settings.constraints.compare_trials);
  CHECK(heed({{"PYTORCH_TUNABLEOP_NUMERICAL_CHECK", "1"}}).settings.constraints.relative_error == 1e-5);
}

TEST_CASE("an invalid PARLEY variable is an error that names it; an invalid PYTORCH variable is a warning") {
  for (const auto& [name, value] :
       variables{{"PARLEY_TUNING", "maybe"}, {"PARLEY_TUNING_DRIFT", "maybe"}, {"PARLEY_TUNABLEOP_TUNING", "maybe"}}) {
    const auto refused = thrown_by([&] { static_cast<void>(heed({{name, value}})); });
    CHECK(is(refused, {.code = errc::malformed, .quotes = name + "=maybe"}));
  }
  const auto e = heed({{"PYTORCH_TUNABLEOP_TUNING", "maybe"}});
  CHECK(e.settings.policy == tuning_policy::online);
  REQUIRE(e.warnings.size() == 1);
  CHECK(e.warnings[0].find("PYTORCH_TUNABLEOP_TUNING=maybe") == 0);
}

TEST_CASE(
    "a PARLEY variable that nothing reads is reported, with the most similar known name if there is a similar one") {
  using names = std::vector<std::string>;
  CHECK(unknown_variables(names{"PARLEY_RANK", "PARLEY_KEY_FD", "PARLEY_TUNING", "PARLEY_RESULTS", "PARLEY_DETECTION",
                                "PARLEY_PATIENCE", "PARLEY_STRICT", "PARLEY_FLIGHT_DIR", "PARLEY_TUNING_DRIFT_EVERY",
                                "PARLEY_TUNABLEOP_NUMERICAL_CHECK", "PARLEY_TUNABLEOP_ROTATING_BUFFER_SIZE",
                                "PARLEY_TEST_SCENARIO", "PARLEY_BENCH_X", "PATH", "PARLEY"})
            .empty());
  const std::pair<const char*, const char*> typos[] = {{"PARLEY_TUNNIG", "PARLEY_TUNING"},
                                                       {"PARLEY_RESULT", "PARLEY_RESULTS"},
                                                       {"PARLEY_TUNING_DRIFTEVRY", "PARLEY_TUNING_DRIFT_EVERY"},
                                                       {"PARLEY_TUNABLEOP_FILENM", "PARLEY_TUNABLEOP_FILENAME"},
                                                       {"PARLEY_RENDEZVOUZ", "PARLEY_RENDEZVOUS"}};
  for (const auto& [typo, meant] : typos) {
    const auto told = unknown_variables({typo});
    REQUIRE(told.size() == 1);
    CHECK(told.front().find(std::string("variable ") + typo + "; ") != std::string::npos);
    CHECK_MESSAGE(told.front().ends_with(std::string(" ") + meant), told.front());
  }
  // The nearest known names differ from these in four or more letters.
  for (const char* other : {"PARLEY_DRIFT_EVERY", "PARLEY_TUNABLEOP_FILE", "PARLEY_COLOUR_SCHEME"}) {
    const auto told = unknown_variables({other});
    REQUIRE(told.size() == 1);
    CHECK_MESSAGE(told.front().ends_with(std::string(other) + "; docs/settings.md lists the known variables"),
                  told.front());
  }
}

TEST_CASE("a mask that resembles a capability but names none is refused; a config's own name is accepted") {
  for (const std::string text :
       {"nvlnk", "NVLink", "1:peer-access", "peeracces", "ncll", "GPU", "2:ipcc", "ipc,uxc,ucxx", "sm90", "SM_90",
        "0:sm_90a", "sm_", "cuda12.4", "nccl-2", "nccl_2.28.9.1", "memory_40GiB"}) {
    CAPTURE(text);
    const auto refused = thrown_by([&] { static_cast<void>(heed({{"PARLEY_MASK", text}})); });
    CHECK(is(refused, {.code = errc::malformed, .quotes = "PARLEY_MASK=" + text}));  // wording.cpp checks the rest
  }
  for (const char* fine : {"gpu,peer_access,nvlink,ipc,nccl,ucx", "sm_90,cuda_13.1,nccl_2.28.9,memory_40",
                           "direct,chunked,put,get,by_piece,star,chain,tree,one_shot,two_shot",
                           "nccl_sum,nccl_graph_sum,kernel_sum,gathered_sum,cuda_graph,h100_optimized,memory_bound"})
    CHECK(text_of(heed({{"PARLEY_MASK", fine}}).settings.masked) != "");
  rank_settings mine;  // accepted, as a program knows its configs
  mine.masked = parse_masks("gpu2").value();
  CHECK(text_of(heed({}, mine).settings.masked) == "gpu2");
}

TEST_CASE("a mask for a rank outside the world is reported") {
  CHECK(masks_of_nobody(parse_masks("gpu,0:nccl").value(), 1).empty());
  const auto told = masks_of_nobody(parse_masks("9:gpu,1:ipc,0:nccl").value(), 2);
  REQUIRE(told.size() == 1);
  CHECK(told[0] == "the mask 9:gpu hides nothing, because there is no rank 9 in a world of 2; correct PARLEY_MASK, or "
                   "the program's own masks");
}

TEST_CASE("an error about an environment without a valid rank names no rank") {
  std::FILE* const heard = std::tmpfile();
  REQUIRE(heard != nullptr);
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(::fileno(heard), STDERR_FILENO);
  ::setenv("PARLEY_RANK", "7", 1);  // and no PARLEY_WORLD
  const int status = ops::run([](job&) {});
  ::unsetenv("PARLEY_RANK");
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::string text(4096, '\0');
  REQUIRE(std::fseek(heard, 0, SEEK_SET) == 0);
  text.resize(std::fread(text.data(), 1, text.size(), heard));
  std::fclose(heard);
  CHECK(status == 1);
  CHECK_MESSAGE(text.starts_with("parley: malformed: PARLEY_WORLD is not set"), text);
}

TEST_CASE("the leading rank lists each key that ran its default for lack of tuning, once") {
  rank_settings s = heed({{"PARLEY_TUNABLEOP_TUNING", "0"}, {"PARLEY_TUNABLEOP_RECORD_UNTUNED", "1"}}).settings;
  s.results_path = "r.csv";
  world w(2, s);
  const auto all = move_each(w, {direct(), chunked(8192, 1)}, {direct(), chunked(8192, 1)}, {100'000, 5'000, 100'000});
  CHECK(all.failed() == 0);
  pass(w, 1'000'000'000);
  for (int i = 0; i < 2; ++i) {
    CHECK(w[0].write_results());
    CHECK(w[1].write_results());
  }
  CHECK(w.disk[0].files.at("tunableop_untuned0.csv") == "activations/0>1,128KiB\nactivations/0>1,8KiB\n");
  CHECK(w.disk[1].files.empty());
  CHECK(closing_lines(w[1], 0).empty());
  CHECK(closing_lines(w[1], 2) == std::vector<std::string>{"0 results are known now"});
  const auto told = lines_told(w[1], 2);  // decisions, in the order in which they were made
  CHECK(told.size() == 2);
  for (const char* key : {"128KiB", "8KiB"}) {
    const std::string line = std::string("activations 0->1 ") + key + ": tuning is switched off on rank 1";
    CHECK(std::find(told.begin(), told.end(), line) != told.end());
  }
}

TEST_CASE("at verbosity 3 every rank prints each candidate's name and time, and each decision") {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  world w(2, s);
  const std::vector<config_ptr> configs{direct(), chunked(8192, 1)};
  CHECK(move_each(w, configs, configs, std::vector<std::size_t>(100, 100'000)).failed() == 0);
  pass(w, 1'000'000'000);
  for (rank_id r = 0; r < 2; ++r) {
    CAPTURE(r);
    const auto told = lines_told(w[r], 3);
    CHECK(lines_told(w[r], 2).size() == 1);
    CHECK(lines_told(w[r], 1).empty());
    REQUIRE(told.size() == 3);
    CHECK(told[0].starts_with("activations 0->1 128KiB: "));
    CHECK(told[1].starts_with("  config direct: "));
    CHECK(told[1].ends_with(" repetitions, measured"));
    CHECK(told[2].starts_with("  config chunked(chunk_bytes=8192 in_flight=1): "));
    CHECK(told[2].find(" ms, ") != std::string::npos);
  }
}

TEST_CASE("at verbosity 3 a rank prints why a candidate was excluded from a decision") {
  world w(2, {});
  const std::vector<config_ptr> configs{direct(), put()};
  CHECK(move_each(w, configs, configs, std::vector<std::size_t>(100, 100'000)).failed() == 0);
  pass(w, 1'000'000'000);
  const auto told = lines_told(w[0], 3);
  REQUIRE(told.size() == 3);
  CHECK_MESSAGE(
      told[2].starts_with("  config put: inf ms, 0 repetitions, excluded, put: rank 1 has registered no memory"),
      told[2]);
}

TEST_CASE("a rank tells each decision at once, with as much as VERBOSE asks for") {
  std::vector<std::string> lines;
  rank_settings s = heed({{"PARLEY_TUNABLEOP_VERBOSE", "3"}}).settings;
  s.plan.budget_fraction = 1e9;
  s.tell = [&](const std::string& line) { lines.push_back(line); };
  world w(2, s);
  const std::vector<config_ptr> configs{direct(), chunked(8192, 1)};
  CHECK(move_each(w, configs, configs, std::vector<std::size_t>(100, 100'000)).failed() == 0);
  pass(w, 1'000'000'000);
  std::vector<std::string> expected = lines_told(w[0], 3);
  const auto of_other = lines_told(w[1], 3);
  expected.insert(expected.end(), of_other.begin(), of_other.end());
  CHECK(lines == expected);
}

TEST_CASE("a variable that switches a family of kernels is heeded, and a warning says if it switches none") {
  rank_settings s = heed({{"PARLEY_TUNABLEOP_MY_BLAS_ENABLED", "0"},
                          {"PYTORCH_TUNABLEOP_ROCBLAS_ENABLED", "0"},
                          {"PYTORCH_TUNABLEOP_OTHER_ENABLED", "no"}})
                        .settings;
  world w(2, s);
  tunable_context& kernels = w[0].kernels();
  kernels.enable_family("my-blas", true);  // the environment has the last word
  kernels.enable_family("simd", false);
  const tunable_op<void()> scale(kernels, {.name = "scale",
                                           .implementations = {{"plain", [] {}},
                                                               {"a", [] {}, "my-blas"},
                                                               {"b", [] {}, "rocblas"},
                                                               {"c", [] {}, "other"},
                                                               {"d", [] {}, "simd"}}});
  CHECK_FALSE(kernels.is_family_enabled("my-blas"));
  CHECK_FALSE(kernels.is_family_enabled("rocblas"));
  CHECK(kernels.is_family_enabled("other"));
  CHECK_FALSE(kernels.is_family_enabled("simd"));
  const auto warnings =
      idle_switches({"PARLEY_TUNABLEOP_MY_BLAS_ENABLED", "PARLEY_TUNABLEOP_MY_BLSA_ENABLED", "PARLEY_TUNABLEOP_ENABLED",
                     "PARLEY_TUNABLEOP_ICACHE_FLUSH_ENABLED", "PARLEY_RESULTS"},
                    kernels);
  REQUIRE(warnings.size() == 1);
  CHECK(
      warnings[0] ==
      "PARLEY_TUNABLEOP_MY_BLSA_ENABLED switches nothing on this rank, because none of its kernels has such a family; "
      "its kernels know MY_BLAS_ENABLED, OTHER_ENABLED, ROCBLAS_ENABLED, SIMD_ENABLED");
  CHECK(idle_switches({"PARLEY_TUNABLEOP_MY_BLSA_ENABLED"}, w[1].kernels()).empty());
  CHECK(unknown_variables({"PARLEY_TUNABLEOP_MY_BLSA_ENABLED"}).empty());
  const auto misspelt = unknown_variables({"PARLEY_TUNABLEOP_ICACHE_FLUS_ENABLED"});
  REQUIRE(misspelt.size() == 1);
  CHECK(misspelt[0].ends_with("PARLEY_TUNABLEOP_ICACHE_FLUSH_ENABLED"));
}

TEST_CASE("a variable that switches a family and is neither 0 nor 1 is an error, or a warning if it is PyTorch's") {
  const auto wrong = [] { static_cast<void>(heed({{"PARLEY_TUNABLEOP_SIMD_ENABLED", "yes"}})); };
  CHECK_THROWS_WITH_AS(wrong(), doctest::Contains("PARLEY_TUNABLEOP_SIMD_ENABLED=yes: must be 0 or 1"), failure);
  const auto warnings = heed({{"PYTORCH_TUNABLEOP_OTHER_ENABLED", "no"}}).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("PYTORCH_TUNABLEOP_OTHER_ENABLED=no: must be 0 or 1") != std::string::npos);
  CHECK(heed({{"PARLEY_TUNABLEOP_SIMD_ENABLED", ""}}).warnings.empty());
}

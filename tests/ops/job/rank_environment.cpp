#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/run.hpp>

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
  return heed_environment(std::move(mine), [&](const std::string& name) -> std::optional<std::string> {
    const auto at = all.find(name);
    if (at == all.end()) return std::nullopt;
    return at->second;
  });
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
  CHECK(verbose_lines(w[1], 0).empty());
  CHECK(verbose_lines(w[1], 1).size() == 1);
  const auto told = verbose_lines(w[1], 2);  // decisions, in the order in which they were made
  CHECK(told.size() == 3);
  for (const char* key : {"128KiB", "8KiB"}) {
    const std::string line = std::string("activations 0->1 ") + key + ": tuning is switched off on rank 1";
    CHECK(std::find(told.begin() + 1, told.end(), line) != told.end());
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
    const auto told = verbose_lines(w[r], 3);
    CHECK(verbose_lines(w[r], 2).size() == 2);
    REQUIRE(told.size() == 4);
    CHECK(told[1].starts_with("activations 0->1 128KiB: "));
    CHECK(told[2].starts_with("  config direct: "));
    CHECK(told[2].ends_with(" repetitions, measured"));
    CHECK(told[3].starts_with("  config chunked(chunk_bytes=8192 in_flight=1): "));
    CHECK(told[3].find(" ms, ") != std::string::npos);
  }
}

TEST_CASE("at verbosity 3 a rank prints why a candidate was excluded from a decision") {
  world w(2, {});
  const std::vector<config_ptr> configs{direct(), put()};
  CHECK(move_each(w, configs, configs, std::vector<std::size_t>(100, 100'000)).failed() == 0);
  pass(w, 1'000'000'000);
  const auto told = verbose_lines(w[0], 3);
  REQUIRE(told.size() == 4);
  CHECK_MESSAGE(
      told[3].starts_with("  config put: inf ms, 0 repetitions, excluded, put: rank 1 has registered no memory"),
      told[3]);
}

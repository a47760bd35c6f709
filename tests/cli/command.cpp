// Runs the command as people do: real processes over real UCX. PARLEY_COMMAND and PARLEY_EXAMPLES come from CMake.
#include <parley/tests/cli/command_folder.hpp>
#include <parley/tests/support/fair_stopwatch.hpp>
#include <parley/tests/support/no_more_processes.hpp>

#include <parley/cli/doctor.hpp>
#include <parley/ops/kernels/blas_libraries.hpp>
#include <parley/runtime/version.hpp>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <thread>

namespace {

namespace json = boost::json;
namespace fs = std::filesystem;
namespace cli = parley::cli;

using folder = parley::tests::command_folder;
using parley::tests::has;
using parley::tests::three_sizes;

const std::string send_recv = PARLEY_EXAMPLES "/specs/send-recv.json";

/// A pipeline of four small stages.
constexpr std::string_view small_pipeline = R"json({"name": "small", "ranks": 4, "ops": [
  {"op": "pipeline", "name": "acts", "dtype": "bf16",
   "configs": ["direct", "chunked(chunk_bytes=8KiB)", "chunked(chunk_bytes=64KiB in_flight=4)"],
   "microbatches": [{"bytes": "256KiB", "count": 60}, {"bytes": 12345, "count": 60}]}]})json";

/// Transfers whose parts mostly stay with their sender until they are fetched.
constexpr std::string_view large_chunks = R"json({"name": "three", "ranks": 2, "ops": [
  {"op": "transfer", "name": "messages", "edges": [[0, 1]], "dtype": "fp32",
   "configs": ["direct", "chunked(chunk_bytes=16KiB in_flight=2)", "chunked(chunk_bytes=64KiB in_flight=4)"],
   "messages": [{"bytes": "128KiB", "count": 1}, {"bytes": "32KiB", "count": 1}, {"bytes": 1000, "count": 1}]}]})json";

std::uint64_t number(const json::object& o, std::string_view key) { return o.at(key).to_number<std::uint64_t>(); }

uid_t owner_of(pid_t process) {
  struct stat seen{};
  return ::stat(("/proc/" + std::to_string(process)).c_str(), &seen) == 0 ? seen.st_uid : 0;
}

using decisions = std::map<std::string, std::string>;
decisions decisions_of(const json::object& document) {
  decisions all;
  for (const json::value& a : document.at("agreements").as_array()) {
    const std::string edge =
        std::to_string(number(a.as_object(), "sender")) + ">" + std::to_string(number(a.as_object(), "receiver"));
    all[edge + " " + std::string(a.at("key").as_string())] = std::string(a.at("decision").as_string());
  }
  return all;
}

}  // namespace

TEST_CASE("parley tune --json prints one document with every agreement and its evidence") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto ran = here.tune("three.json --no-results");
  REQUIRE_MESSAGE(ran.status == 0, ran.error);
  const json::object d = ran.document();
  CHECK(number(d, "invocations") == 3'000);
  CHECK(number(d, "mismatches") == 0);
  CHECK(number(d, "unpaired") == 0);
  CHECK(number(d, "barriers") == 0);
  CHECK(number(d, "control_messages") > 0);
  CHECK(number(d, "control_messages_to_outsiders") == 0);
  CHECK(d.at("outputs_match").as_bool());
  CHECK(d.at("ok").as_bool());
  REQUIRE(d.at("agreements").as_array().size() == 3);
  for (const json::value& v : d.at("agreements").as_array()) {
    const json::object& a = v.as_object();
    CHECK(a.at("participants") == json::value{0, 1});
    CHECK(a.at("candidates").as_array().size() == 3);
    CHECK(a.at("candidates").as_array()[0].at("config").as_string() == "direct");
    CHECK(a.at("candidates").as_array()[0].at("time_ns").to_number<double>() > 0);
    CHECK(a.at("decided").as_bool());
    CHECK(a.at("decision_time_ns").to_number<double>() <= a.at("default_time_ns").to_number<double>());
    CHECK(number(a, "trials") > 0);
    CHECK(number(a, "invocations_until_agreement") > 0);
    CHECK(number(a, "invocations_until_agreement") <= number(a, "invocations"));
    CHECK(a.at("time_to_agreement_ns").to_number<std::int64_t>() > 0);
    CHECK(a.at("cost_ns").to_number<double>() >= 0);
    // The evidence: which rank measured what, whose config won, and why.
    CHECK(number(a, "proposed_by") == 0);
    CHECK_FALSE(a.at("why").as_string().empty());
    bool winner_seen = false;
    for (const json::value& candidate : a.at("candidates").as_array()) {
      const json::object& c = candidate.as_object();
      CHECK(c.at("status").as_string() == "measured");
      REQUIRE(c.at("ranks").as_array().size() == 2);
      double slowest_ns = 0;
      for (std::uint64_t rank = 0; rank < 2; ++rank) {
        const json::object& r = c.at("ranks").as_array()[rank].as_object();
        CHECK(number(r, "rank") == rank);
        CHECK(number(r, "repetitions") == number(c, "repetitions"));
        slowest_ns = std::max(slowest_ns, r.at("time_ns").to_number<double>());
      }
      CHECK(slowest_ns > 0);
      if (c.at("config") != a.at("decision")) continue;
      winner_seen = true;
      CHECK(c.at("time_ns") == a.at("decision_time_ns"));
    }
    CHECK(winner_seen);
  }
  CHECK(fs::exists(here.path / "three.results.csv") == false);
}

TEST_CASE("collectives, halos, batches and training pipelines have right outputs in processes and on virtual ranks") {
  const folder here;
  for (const std::string name : {"gradients", "halo", "ring", "training"}) {
    for (const std::string how : {" --sim", ""}) {
      CAPTURE(name);
      CAPTURE(how);
      const auto ran = here.tune(PARLEY_EXAMPLES "/specs/" + name + ".json --no-results" + how);
      INFO(ran.error);
      CHECK((ran.status == 0 || (how != " --sim" && ran.status == 3)));
      const json::object d = ran.document();
      CHECK(number(d, "mismatches") == 0);
      CHECK(number(d, "unpaired") == 0);
      CHECK(d.at("outputs_match").as_bool());
      CHECK(number(d, "outputs_compared") > 0);
      CHECK_FALSE(d.at("agreements").as_array().empty());
    }
  }
}

TEST_CASE("every kind of collective runs from a spec in several groups") {
  const folder here;
  for (const std::string kind : {"broadcast", "gather", "all_reduce"}) {
    CAPTURE(kind);
    here.write("groups.json", R"({"name": "groups", "ranks": 5, "ops": [{"op": "collective", "name": "g", "kind": ")" +
                                  kind +
                                  R"(", "groups": [[4, 0, 2], [1, 3]], "configs": ["star", "tree"],
                                  "calls": [{"bytes": "64B..4KiB", "count": 60}]}]})");
    const auto ran = here.tune("groups.json --sim");
    INFO(ran.error);
    CHECK(ran.status == 0);
    const json::object d = ran.document();
    CHECK(d.at("outputs_match").as_bool());
    CHECK(number(d, "mismatches") == 0);
    bool seen = false;
    for (const json::value& a : d.at("agreements").as_array())
      seen = seen || a.at("participants") == json::value{0, 2, 4};
    CHECK(seen);
  }
}

TEST_CASE("parley tune refuses to run a host-memory op on a device, and names the op") {
  const folder here;
  const auto ran = here.tune(PARLEY_EXAMPLES "/specs/halo.json --device cuda --sim");
  CHECK(ran.status == 2);
  has(ran.error, R"(the op "rims" is a halo, which parley tune runs on host memory only)");
}

TEST_CASE("a simulated run agrees, reports like any other run, and repeats exactly with the same seed") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto seven = here.tune("three.json --sim --seed 7");
  REQUIRE_MESSAGE(seven.status == 0, seven.error);
  const json::object d = seven.document();
  CHECK(number(d, "invocations") == 3'000);
  CHECK(number(d, "mismatches") == 0);
  CHECK(d.at("outputs_match").as_bool());
  REQUIRE(d.at("agreements").as_array().size() == 3);
  for (const json::value& v : d.at("agreements").as_array()) CHECK(v.as_object().at("decided").as_bool());
  CHECK(number(d.at("simulated").as_object(), "seed") == 7);
  const auto& hash = d.at("simulated").as_object().at("hash").as_string();
  CHECK(hash.size() == 16);
  CHECK(seven.error.find("seed 7") != std::string::npos);
  CHECK(seven.error.find(hash.c_str()) != std::string::npos);
  CHECK(here.tune("three.json --sim --seed 7").out == seven.out);
  CHECK(here.tune("three.json --sim --seed 8").document().at("simulated").as_object().at("hash") != hash);
  CHECK(fs::exists(here.path / "three.results.csv") == false);
}

TEST_CASE("receives are posted before their messages leave, so that puts and gets are measured") {
  const folder here;
  here.write("written.json", R"json({"name": "written", "ranks": 2, "ops": [
    {"op": "transfer", "name": "messages", "roles": {"sender": [0], "receiver": [1]},
     "configs": ["direct", "put", "get"],
     "messages": [{"bytes": "4MiB", "count": 200}, {"bytes": "64KiB", "count": 200}, {"bytes": 1000, "count": 200}]}]})json");
  const auto ran = here.tune("written.json --sim");
  REQUIRE_MESSAGE(ran.status == 0, ran.error);
  const json::object d = ran.document();
  REQUIRE(d.at("agreements").as_array().size() == 3);
  for (const json::value& a : d.at("agreements").as_array()) {
    CHECK(a.at("decided").as_bool());
    for (const json::value& c : a.at("candidates").as_array()) {
      CAPTURE(c.at("config").as_string().c_str());
      CHECK(c.at("status").as_string() == "measured");
    }
  }
}

TEST_CASE("parley tune refuses --results, --one-process and --kill with --sim, and --seed without --sim") {
  const folder here;
  here.write("three.json", three_sizes);
  for (const char* words : {"--sim --results r.csv", "--sim --one-process", "--sim --kill 1@5", "--seed 3"}) {
    CAPTURE(words);
    CHECK(here.parley("tune three.json " + std::string(words)).status == 2);
  }
}

TEST_CASE("the trace has every invocation from both of its ends, and marks trials") {
  const folder here;
  here.write("three.json", three_sizes);
  REQUIRE(here.tune("three.json --no-results --trace trace.jsonl").status == 0);
  std::ifstream lines(here.path / "trace.jsonl");
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t trials = 0;
  for (std::string line; std::getline(lines, line);) {
    const json::object r = json::parse(line).as_object();
    if (r.at("rehearsal").as_bool()) continue;
    ++(r.at("what").as_string() == "sent" ? sent : received);
    trials += r.at("trial").as_bool() ? 1 : 0;
  }
  CHECK(sent == 3'000);
  CHECK(received == 3'000);
  CHECK(trials > 0);
}

TEST_CASE("a pipeline of four ranks agrees edge by edge, and a second run uses its results without trials") {
  const folder here;
  here.write("small.json", small_pipeline);
  const auto first = here.tune("small.json --results r.csv");
  REQUIRE_MESSAGE(first.status == 0, first.error);
  const json::object learned = first.document();
  CHECK(decisions_of(learned).size() == 6);
  for (const json::value& a : learned.at("agreements").as_array()) REQUIRE(a.at("decided").as_bool());
  // Two ranks share no op with rank 0, and one shares none with rank 1.
  CHECK(number(learned, "control_messages") > 0);
  CHECK(number(learned, "control_messages_to_outsiders") == 0);
  CHECK(learned.at("outputs_match").as_bool());
  CHECK(here.read("r.csv").starts_with("Validator,"));

  const std::string before = here.read("r.csv");
  const auto second = here.tune("small.json --results r.csv");
  REQUIRE_MESSAGE(second.status == 0, second.error);
  const json::object again = second.document();
  CHECK(decisions_of(again) == decisions_of(learned));
  for (const json::value& a : again.at("agreements").as_array()) {
    CHECK(number(a.as_object(), "trials") == 0);
    CHECK(a.at("from_results").as_bool());
    CHECK_FALSE(a.at("decision_time_ns").is_null());
  }
  CHECK(here.read("r.csv") == before);
}

TEST_CASE("an option refuses a number that is not plain decimal or is out of range, and gives the range") {
  const folder here;
  here.write("three.json", three_sizes);
  const std::string tune = "tune three.json --no-results ";
  CHECK(here.parley(tune + "--budget=''").status == 2);
  for (const char* const wrong : {"0x1F", "' 5'", "-0", "1e-400", "nan", "inf", "1001"}) {
    CAPTURE(wrong);
    const auto ran = here.parley(tune + "--budget=" + wrong);
    CHECK(ran.status == 2);
    CHECK(ran.error.find("--budget: `") != std::string::npos);
    CHECK(ran.error.find("is no number from 0 to 1000") != std::string::npos);
  }
  for (const std::string& option :
       {std::string("run -n "), tune + "-n ", tune + "--microbatches ", tune + "--sim --seeds "}) {
    for (const char* const wrong : {"0x2", "' 2'", "2.0", "1e1", "''", "0"}) {
      CAPTURE(option);
      CAPTURE(wrong);
      const auto ran = here.parley(option + wrong + (option == "run -n " ? " -- true" : ""));
      CHECK(ran.status == 2);
      CHECK(ran.error.find("is no whole number from 1 to") != std::string::npos);
    }
  }
  for (const char* const wrong : {"=0x1", "=+1", "=' 1'", "=-0", " ''", "=4294967297", "=256"}) {
    CAPTURE(wrong);
    const auto ran =
        here.parley(std::string("run -n 1 --hosts 2 --rendezvous 127.0.0.1:1 --host") + wrong + " -- true");
    CHECK(ran.status == 2);
    CHECK(ran.error.find("--host: `") != std::string::npos);
    CHECK(ran.error.find("is no whole number from 0 to 255") != std::string::npos);
  }
  has(here.parley(tune + "--mask ''").error, "--mask: it names no capability");
}

TEST_CASE("with a budget of 0, parley tune decides nothing and succeeds") {
  const folder here;
  here.write("three.json", three_sizes);
  CHECK(here.parley("tune three.json --no-results --budget nan").error.find("--budget: `nan` is no number") !=
        std::string::npos);
  const auto ran = here.parley("tune three.json --no-results --microbatches 600 --budget 0 --json");
  REQUIRE_MESSAGE(ran.status == 0, ran.error);
  const json::object d = ran.document();
  REQUIRE(d.at("agreements").as_array().size() == 3);
  for (const json::value& a : d.at("agreements").as_array()) {
    CHECK_FALSE(a.at("decided").as_bool());
    CHECK(a.at("decision").as_string() == "direct");
  }
}

TEST_CASE("a run that may make trials but decides nothing says why and has its own exit status") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto ran = here.parley("tune three.json --no-results --microbatches 3 --json");
  CHECK(ran.status == 3);
  CHECK(number(ran.document(), "status") == 3);
  CHECK_FALSE(ran.document().at("ok").as_bool());
  CHECK(ran.document().at("undecided").as_string().find("--microbatches") != std::string::npos);
  has(ran.error, "nothing was decided");
}

TEST_CASE("sizes with only the default to try do not make a run decided, and the last line of progress counts them") {
  const folder here;
  const auto ran = here.parley("tune " + send_recv + " --no-results --sim --microbatches 4 --json");
  CHECK(ran.status == 3);
  has(ran.error, "3 sizes of messages were met, of which 2 have only the default to try");
  const auto last = ran.error.rfind(" keys agreed");
  REQUIRE(last != std::string::npos);
  CHECK(ran.error.rfind("agreed on direct") < last);
  has(ran.error, "100 % of 4 microbatches, 2 of 3 keys agreed");
}

TEST_CASE("parley tune follows environment variables that the command line does not override") {
  const folder here;
  here.write("three.json", three_sizes);
  const std::string words = "tune three.json --microbatches 600 --json ";
  const auto off = here.parley(words, "PARLEY_TUNING=0 PARLEY_RESULTS=told.csv");
  REQUIRE_MESSAGE(off.status == 0, off.error);
  const json::object document = off.document();
  for (const json::value& a : document.at("agreements").as_array()) CHECK(number(a.as_object(), "trials") == 0);
  CHECK_FALSE(fs::exists(here.path / "three.results.csv"));
  CHECK(here.parley(words, "PARLEY_TUNING=2").status == 2);
  here.write("told.csv", "# mine\n");
  const auto told = here.parley("tune three.json --microbatches 3000 --budget 1000 --json", "PARLEY_RESULTS=told.csv");
  REQUIRE_MESSAGE(told.status == 0, told.error);
  has(here.read("told.csv"), "messages/0>1,");
  CHECK(here.read("told.csv").starts_with("# mine\n"));
  CHECK_FALSE(fs::exists(here.path / "three.results.csv"));
  const auto none = here.parley(words, "PARLEY_RESULTS=/dev/null");
  CHECK_FALSE(fs::exists(here.path / "three.results.csv"));
  CHECK_FALSE(fs::exists("/dev/null0"));
  CHECK(none.document().at("results").at("path").is_null());
}

TEST_CASE("ranks in one process run without mismatches, and their outputs are right") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto ran = here.tune("three.json --no-results --one-process");
  CHECK(ran.status == 0);
  const json::value document = ran.document();
  CHECK(document.at("mismatches") == 0);
  CHECK(document.at("outputs_match") == true);
  CHECK(document.at("rank_ends").as_array().size() == 2);
}

TEST_CASE("an error names the limit on open files and the number needed if ranks in one process need more files") {
  const folder here;
  here.write("three.json", three_sizes);
  for (const char* const limit : {"12", "13"}) {
    CAPTURE(limit);
    const auto ran = here.parley("tune three.json --no-results --one-process",
                                 std::string("sh -c 'ulimit -n ") + limit + R"(; exec "$0" "$@"')");
    CHECK(ran.status == 1);
    has(ran.error, std::string("this process may have ") + limit + " files open (ulimit -Hn), and needs ");
  }
}

TEST_CASE("a decision from few trials is marked as thin in the results file") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto ran = here.parley("tune three.json --microbatches 300 --budget 1000 --results r.csv",
                               "PARLEY_TUNING_DRIFT=0 PARLEY_TUNABLEOP_MAX_TUNING_ITERATIONS=2");
  CHECK(ran.status == 0);
  has(here.read("r.csv"), ",thin\n");
}

TEST_CASE("parley tune warns at the start if the folder for the results is missing") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto housed = here.parley("tune three.json --one-process --microbatches 30 --results nonesuch/r.csv");
  CHECK(housed.error.starts_with("parley: warning: there is no folder nonesuch for the results in nonesuch/r.csv; "));
}

TEST_CASE("without tuning every invocation runs the default") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto ran = here.tune("three.json --no-results --no-tuning");
  REQUIRE_MESSAGE(ran.status == 0, ran.error);
  for (const auto& [key, decision] : decisions_of(ran.document())) CHECK(decision == "direct");
}

TEST_CASE("a receiver that ignores the stamp is reported with mismatches and status 1") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto ran = here.tune("three.json --no-results --mutant ignore_stamp");
  CHECK(ran.status == 1);
  const json::object d = ran.document();
  CHECK(number(d, "mismatches") > 0);
  CHECK_FALSE(d.at("ok").as_bool());
  has(ran.error, "the receiver direct");
}

TEST_CASE(
    "a masked config or capability is no candidate, in processes and on virtual ranks, and the report has the mask") {
  const folder here;
  here.write("three.json", three_sizes);
  for (const char* where : {"--no-results", "--no-results --one-process", "--sim"}) {
    CAPTURE(where);
    const auto ran = here.tune(std::string("three.json --mask 1:chunked --mask 0:nccl ") + where);
    CHECK(ran.status == 0);
    const json::object d = ran.document();
    CHECK(d.at("masked").as_string() == "0:nccl 1:chunked");
    for (const json::value& a : d.at("agreements").as_array()) {
      CHECK(a.at("decision").as_string() == "direct");
      CHECK(a.at("candidates").as_array().size() == 1);
    }
    CHECK(number(d, "invocations") == 3'000);
  }
  CHECK(here.tune("three.json --mask sm_90 --mask 1:cuda_13.1 --mask memory_40 --sim").status == 0);
  for (const auto& [mask, why] :
       {std::pair{"2:nccl", "there is no such rank; the job has 2"},
        {"1:chonked", "neither a capability (gpu, peer_access, nvlink, ipc, nccl, ucx, sm_90"},
        {"one:nccl", "does not begin with a rank"},
        {"1:", "names no capability"}}) {
    CAPTURE(mask);
    const auto wrong = here.parley(std::string("tune three.json --mask ") + mask);
    CHECK(wrong.status == 2);
    has(wrong.error, why);
  }
}

TEST_CASE("when a rank dies in the middle of a trial, the other rank ends and says which rank is gone") {
  const folder here;
  here.write("three.json", three_sizes);
  for (const char* rank : {"0", "1"}) {
    CAPTURE(rank);
    const auto ran = here.tune(std::string("three.json --no-results --kill ") + rank + "@chunked:1");
    CHECK(ran.status == 1);
    has(ran.error, std::string("rank ") + rank + " is gone");
  }
  const auto none = here.tune("three.json --no-results --kill 1@nccl:1");
  CHECK(none.status == 1);
  has(none.error, "--kill: the spec has no config nccl");
}

TEST_CASE("the checkers watch a simulated run, and its error names the invariant that was violated") {
  const folder here;
  here.write("three.json", three_sizes);
  const auto well = here.tune("three.json --sim --seed 7");
  CHECK(well.status == 0);
  CHECK(well.error.find("violated") == std::string::npos);
  const auto broken = here.tune("three.json --sim --seed 7 --mutant ignore_stamp");
  CHECK(broken.status == 1);
  has(broken.error, "S2");
}

TEST_CASE("many simulated runs in bad weather report their coverage, and the first seed that fails is named") {
  const folder here;
  here.write("three.json", large_chunks);
  const auto well = here.tune("three.json --sim --seeds 5 --weather --seed 3");
  REQUIRE_MESSAGE(well.status == 0, well.error);
  has(well.error, "5 seeds from 3 on, in bad weather: no violation");
  has(well.error, "reordered");
  const json::object told = well.document().at("simulated").as_object();
  CHECK(number(told, "seeds") == 5);
  CHECK(number(told, "first_seed") == 3);
  CHECK(told.at("weather").as_bool());
  CHECK(told.at("not_covered").as_array().empty());
  CHECK(here.tune("three.json --sim --seeds 5 --weather --seed 3").out == well.out);
  const auto broken = here.tune("three.json --sim --seeds 5 --weather --mutant ignore_stamp");
  CHECK(broken.status == 1);
  has(broken.error, "S2");
  has(broken.error, "seed 1 failed; again: the same command with --seed 1 and without --seeds");
  CHECK(number(broken.document().at("simulated").as_object(), "seeds") == 1);
  CHECK(here.parley("tune three.json --weather").status == 2);
  CHECK(here.parley("tune three.json --seeds 2").status == 2);
}

TEST_CASE("a results file of another version is not used, not overwritten, and its version is named") {
  const folder here;
  const std::string foreign = "Validator,PARLEY_VERSION,9.9.9\nmessages/0>1,128KiB_fp32,direct,1\n";
  here.write("r.csv", foreign);
  here.write("three.json", three_sizes);
  const auto ran = here.tune("three.json --results r.csv");
  CHECK(ran.status == 0);
  CHECK(here.read("r.csv") == foreign);
  has(ran.error, "9.9.9");
  has(ran.error, "kept");
  const json::object d = ran.document();
  const std::string beside(d.at("results").at("path").as_string());
  CHECK(beside.starts_with("r.for-"));
  has(here.read(beside), std::string("Validator,PARLEY_VERSION,") + std::string(parley::runtime::version_text));
  for (const json::value& a : d.at("agreements").as_array()) CHECK_FALSE(a.at("from_results").as_bool());
}

TEST_CASE("a file that is no results file stays unchanged and the error names it") {
  const folder here;
  here.write("r.csv", "this,is\nno results file\n");
  const auto ran = here.parley("tune '" + send_recv + "' --results r.csv --microbatches 10 --json");
  CHECK(here.read("r.csv") == "this,is\nno results file\n");
  has(ran.error, "r.csv");
}

TEST_CASE(
    "when a rank is killed, the error of each survivor names op and rank, and the command ends within ten seconds") {
  const folder here;
  here.write("small.json", small_pipeline);
  const parley::tests::fair_stopwatch since;
  const auto ran = here.parley("tune small.json --no-results --kill 2@20 --json");
  CHECK(since.took() < std::chrono::seconds(10));
  CHECK(ran.status == 1);
  const json::object d = ran.document();
  CHECK(number(d, "mismatches") == 0);
  const json::array& ends = d.at("rank_ends").as_array();
  REQUIRE(ends.size() == 4);
  has(std::string(ends[2].at("ended").as_string()), "killed by signal 9");
  for (const std::size_t survivor : {0U, 1U, 3U}) {
    const std::string error(ends[survivor].at("error").as_string());
    has(error, "peer_failed: acts ");
    has(error, "on rank " + std::to_string(survivor));
  }
}

TEST_CASE("a wrong command line or spec ends with status 2 and prints nothing on standard output") {
  const folder here;
  here.write("bad.json", "{\n  \"name\": \"x\",\n  \"ranks\": 2,\n  \"ops\": [{\"op\": \"pipelin\"}]\n}\n");
  here.write("broken.json", "{\n  \"name\": \n}\n");
  for (const char* words :
       {"tune missing.json", "tune bad.json", "tune broken.json", "tune", "tune --frob x.json", "frob", "", "run -n 2",
        "run -n 0 true", "run -n 2 --restarts -1 true", "run -n 2 -- ./no-such-program", "doctor extra"}) {
    INFO(words);
    const auto ran = here.parley(words);
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    CHECK_FALSE(ran.error.empty());
  }
  CHECK(here.parley("tune bad.json").error.starts_with(R"(bad.json:4:18: unknown op "pipelin")"));
  CHECK(here.parley("tune broken.json").error.starts_with("broken.json:3:1: "));
}

TEST_CASE("parley run passes arguments on, prefixes output and returns the status of the first rank that failed") {
  const folder here;
  const auto fine = here.parley("run -n 2 -- sh -c 'echo I am $PARLEY_RANK of $PARLEY_WORLD'");
  CHECK(fine.status == 0);
  has(fine.out, "[rank 0] I am 0 of 2\n");
  has(fine.out, "[rank 1] I am 1 of 2\n");
  CHECK(here.parley("run -n 1 --no-prefix echo -n --flag").out.starts_with("--flag"));
  const auto failed = here.parley("run -n 2 -- sh -c '[ $PARLEY_RANK = 0 ] && exec sleep 60; exit 3'");
  CHECK(failed.status == 3);
  has(failed.error, "rank 1 exited with status 3");
  CHECK(here.parley("run -n 2 -- sh -c 'kill -KILL $$'").status == 128 + SIGKILL);
  CHECK(here.parley("run -n 2 -- true").status == 0);
}

TEST_CASE("parley run --restarts restarts a rank that fails, and returns its status when no restart is left") {
  const folder here;
  const auto fine = here.parley(
      "run -n 2 --restarts 1 -- sh -c 'if [ $PARLEY_RANK = 0 ]; then while [ ! -e back ]; do sleep 0.01; done; "
      "elif [ $PARLEY_RESTART_COUNT ]; then touch back; else exit 3; fi'");
  CHECK(fine.status == 0);
  has(fine.error, "rank 1 exited with status 3; it is started again (restart 1 of at most 1)");
  const auto spent = here.parley(
      "run -n 2 --restarts 2 -- sh -c '[ $PARLEY_RANK = 0 ] && exec sleep 60; exit 3$PARLEY_RESTART_COUNT'");
  CHECK(spent.status == 32);
}

TEST_CASE("parley doctor reports its findings as text and as JSON") {
  const folder here;
  const auto text = here.parley("doctor");
  CHECK(text.status == 0);
  has(text.out, "plane host");
  has(text.out, "UCX ");
  has(text.out, "GPU");
  has(text.out, "matrix products");
  for (const parley::ops::blas_library* l : parley::ops::blas_libraries()) has(text.out, l->name());
  const auto document = here.parley("doctor --json");
  CHECK(document.status == 0);
  CHECK(document.document().at("findings").as_array().size() >= 8);
}

TEST_CASE("agreements from before the death of a rank are kept in the results file") {
  const folder here;
  here.write("mortal.json", R"json({"name": "mortal", "ranks": 2, "ops": [
    {"op": "transfer", "name": "messages", "roles": {"sender": [0], "receiver": [1]},
     "configs": ["direct", "chunked(chunk_bytes=64KiB)"], "messages": [{"bytes": "1MiB", "count": 5000}]}]})json");
  const auto ran = here.parley("tune mortal.json --results kept.csv --budget 1000 --kill 1@4000 --json");
  CHECK(ran.status == 1);
  REQUIRE(fs::exists(here.path / "kept.csv"));
  has(here.read("kept.csv"), "messages/0>1,1MiB,");
  has(ran.error, "results are in");
}

TEST_CASE("parley tune returns status 1 if it cannot write its output") {
  const folder here;
  here.write("small.json", small_pipeline);
  const int status = std::system(("cd '" + here.path.string() +
                                  "' && '" PARLEY_COMMAND "' tune small.json --no-results --json "
                                  ">/dev/full 2>error")
                                     .c_str());
  CHECK(WEXITSTATUS(status) == 1);
  has(here.read("error"), "standard output could not be written to");
}

TEST_CASE("an interrupted parley tune keeps its agreements and returns 128 plus the signal's number") {
  const folder here;
  // Far more messages than the job can send before the interrupt. A shell makes its background jobs ignore SIGINT.
  here.write("long.json", R"json({"name": "long", "ranks": 2, "ops": [
    {"op": "transfer", "name": "messages", "roles": {"sender": [0], "receiver": [1]},
     "configs": ["direct", "chunked(chunk_bytes=64KiB)"], "messages": [{"bytes": "1MiB", "count": 90000}]}]})json");
  here.write("interrupt.sh",
             "'" PARLEY_COMMAND "' tune long.json --results kept.csv --budget 1000 --json >out 2>error &\n"
             "for i in $(seq 600); do grep -q 'agreed on' error && break; sleep 0.1; done\n"
             "kill -TERM $!\nwait $!\n");
  const int status = std::system(("cd '" + here.path.string() + "' && sh ./interrupt.sh").c_str());
  const std::string error = here.read("error");
  REQUIRE(WIFEXITED(status));
  CHECK_MESSAGE(WEXITSTATUS(status) == 128 + SIGTERM, error);
  const json::object d = json::parse(here.read("out")).as_object();
  CHECK(d.at("interrupted").as_bool());
  CHECK_FALSE(d.at("outputs_differ").as_bool());
  CHECK(number(d, "outputs_compared") > 0);
  CHECK(number(d, "outputs_compared") < 90'000);
  CHECK(d.at("agreements").as_array().size() == 1);
  has(error, "interrupted");
  CHECK(error.find("DIFFER") == std::string::npos);
  CHECK(fs::exists(here.path / "kept.csv"));
}

TEST_CASE(
    "an interrupted training pipeline does not count as wrong, and a killed command leaves the results of its ranks") {
  for (const int number : {SIGTERM, SIGKILL}) {
    CAPTURE(number);
    const folder here;
    here.write("long.json", R"json({"name": "long", "ranks": 2, "ops": [
      {"op": "training_pipeline", "name": "layers", "schedule": "1f1b", "microbatches": 4, "bytes": "64KiB", "passes": 20000,
       "configs": ["direct", "chunked(chunk_bytes=16KiB)"]}]})json");
    here.write("interrupt.sh", "'" PARLEY_COMMAND
                               "' tune long.json --results kept.csv --budget 1000 --json >out 2>error &\n"
                               "for i in $(seq 600); do [ -e kept0.csv ] && break; sleep 0.1; done\n"
                               "kill -" +
                                   std::to_string(number) + " $!\nwait $!\n");
    const int status = std::system(("cd '" + here.path.string() + "' && sh ./interrupt.sh").c_str());
    const std::string error = here.read("error");
    CHECK_MESSAGE(WEXITSTATUS(status) == 128 + number, error);
    has(here.read("kept0.csv"), "layers/");
    if (number == SIGKILL) continue;
    const json::object d = json::parse(here.read("out")).as_object();
    CHECK_FALSE(d.at("outputs_differ").as_bool());
    CHECK(fs::exists(here.path / "kept.csv"));
  }
}

TEST_CASE("parley names a wrong word, and with --json it also prints a document for an error") {
  const folder here;
  const auto word = here.parley("frob");
  CHECK(word.status == 2);
  has(word.error, "there is no command frob");
  const auto option = here.parley("run -n 2 --bogus -- true");
  CHECK(option.status == 2);
  has(option.error, "`--bogus` is not an option of `parley run`");
  const auto of_mpi = here.parley("run -np 2 true");
  CHECK(of_mpi.status == 2);
  has(of_mpi.error, "`-np` is not an option of `parley run`; say how many ranks with -n N");
  here.write("bad.json", R"({"name": "bad", "ranks": 2})");
  const auto bad = here.parley("tune bad.json --json");
  CHECK(bad.status == 2);
  const json::object d = json::parse(bad.out).as_object();
  CHECK_FALSE(d.at("ok").as_bool());
  has(std::string(d.at("error").as_string()), "bad.json:1:1: ");
}

TEST_CASE("parley doctor kills no other process when it cannot create processes") {
  if (::geteuid() != 0) return;  // a fault would kill all processes of this user; only root can become another one
  const pid_t bystander = ::fork();
  if (bystander == 0) {
    if (!parley::tests::become_nobody_else()) ::_exit(1);
    for (;;) ::pause();
  }
  while (owner_of(bystander) != parley::tests::nobody_else) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(parley::tests::without_processes([] {
          ::close(STDOUT_FILENO);
          return cli::doctor(cli::output_format::table);
        }) == 0);
  CHECK(::waitpid(bystander, nullptr, WNOHANG) == 0);
  ::kill(bystander, SIGKILL);
  ::waitpid(bystander, nullptr, 0);
}

TEST_CASE("parley doctor says that plane host works only if a message arrived in another process") {
  const folder here;
  const auto host = [&] {
    const json::object document = here.parley("doctor --json").document();
    for (const json::value& f : document.at("findings").as_array()) {
      if (f.at("name").as_string() == "plane host") return f.as_object();
    }
    return json::object();
  };
  CHECK(host().at("works").as_bool());
  // With only this transport UCX starts, but no message reaches another process.
  REQUIRE(::setenv("UCX_TLS", "self", 1) == 0);
  const json::object cut_off = host();
  ::unsetenv("UCX_TLS");
  CHECK_FALSE(cut_off.at("works").as_bool());
  has(std::string(cut_off.at("text").as_string()), "UCX says: ");
}

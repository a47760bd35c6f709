// Runs `parley results` as people do, and warm starts of whole jobs. PARLEY_COMMAND and PARLEY_EXAMPLES come from CMake.
#include <parley/tests/cli/command_folder.hpp>

#include <parley/run.hpp>
#include <parley/runtime/version.hpp>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

using folder = parley::tests::command_folder;
using parley::tests::has;

/// The validators of a job of `ranks` ranks on this machine.
std::string header(int ranks) {
  std::string text = "Validator,PARLEY_VERSION," + std::string(parley::runtime::version_text) +
                     "\nValidator,PARLEY_WORLD," + std::to_string(ranks) + "\n";
  for (const auto& v : parley::ops::machine_validators()) text += "Validator," + v.name + "," + v.value + "\n";
  return text;
}

const std::string one_entry = "acts/0>1,1MiB_bf16,direct,1.5\n";

}  // namespace

TEST_CASE("results show prints the contents of files, as tables and as one document") {
  const folder here;
  here.write("a.csv", header(2) + one_entry + "short\nacts/0>1,2MiB_bf16,Default\n");
  const auto table = here.parley("results show a.csv");
  CHECK(table.status == 0);
  has(table.out, "acts/0>1");
  has(table.out, "PARLEY_WORLD");
  has(table.error, "a.csv:6: the line has 1 columns instead of at least 3");
  const auto document = here.parley("results show --json a.csv missing.csv");
  CHECK(document.status == 2);
  has(document.error, "missing.csv");
  const json::array files = document.document().at("files").as_array();
  REQUIRE(files.size() == 2);
  REQUIRE(files[0].at("entries").as_array().size() == 2);
  CHECK(files[0].at("entries").as_array()[1].at("solution").as_string() == "Default");
  CHECK(files[0].at("entries").as_array()[0].at("time_ms").to_number<double>() == 1.5);
  CHECK(files[0].at("warnings").as_array()[0].at("line").to_number<int>() == 6);
  CHECK_FALSE(files[1].at("error").as_string().empty());
}

TEST_CASE("results show names the files of the ranks if the file that their job was given does not exist") {
  const folder here;
  here.write("a0.csv", header(2) + one_entry);
  const auto none = here.parley("results show a.csv");
  CHECK(none.status == 2);
  has(none.error, "a.csv: there is no such file; each rank has a file of its own, a0.csv and so on");
}

TEST_CASE("results check distinguishes files that are fine, files that do not fit here, and broken files") {
  const folder here;
  here.write("fine.csv", header(2) + one_entry);
  here.write("other.csv", "Validator,PARLEY_VERSION,9.9.9\n" + one_entry);
  here.write("broken.csv", header(2) + "acts\n" + one_entry);
  const auto fine = here.parley("results check fine.csv");
  CHECK(fine.status == 0);
  has(fine.out, "fine.csv: fine, 1 entries");
  CHECK(here.parley("results check -n 2 fine.csv").status == 0);
  const auto world = here.parley("results check -n 4 fine.csv");
  CHECK(world.status == 1);
  has(world.error, "fine.csv: validator PARLEY_WORLD is 2 in the file and 4 here");
  const auto other = here.parley("results check fine.csv other.csv");
  CHECK(other.status == 1);
  has(other.error, "validator PARLEY_VERSION is 9.9.9 in the file and " + std::string(parley::runtime::version_text));
  has(other.error, "PARLEY_PROCESSOR");
  const auto broken = here.parley("results check --json other.csv broken.csv");
  CHECK(broken.status == 2);
  has(broken.error, "broken.csv:5: ");
  const json::object d = broken.document();
  CHECK(d.at("files").as_array()[0].at("status").to_number<int>() == 1);
  CHECK(d.at("files").as_array()[1].at("status").to_number<int>() == 2);
  CHECK(here.parley("results check nowhere.csv").status == 2);
}

TEST_CASE("results check trusts a file of a job with masks if the environment has the same masks") {
  const folder here;
  here.write("masked.csv", header(2) + "Validator,PARLEY_MASK,1:ipc\n" + one_entry);
  CHECK(here.parley("results check masked.csv", "PARLEY_MASK=1:ipc").status == 0);
  const auto unmasked = here.parley("results check masked.csv");
  CHECK(unmasked.status == 1);
  has(unmasked.error, "validator PARLEY_MASK is 1:ipc in the file and nothing here");
}

TEST_CASE("results merge keeps the first entry for a key, reports conflicts, and keeps the entries of OUT") {
  const folder here;
  here.write("a.csv", header(2) + "acts/0>1,1MiB,direct,1\n");
  here.write("b.csv", header(2) + "acts/0>1,1MiB,other,2\nacts/1>0,1MiB,direct,2\n");
  const auto made = here.parley("results merge -o out.csv a.csv b.csv");
  CHECK(made.status == 0);
  CHECK(here.read("out.csv") == header(2) + "acts/0>1,1MiB,direct,1\nacts/1>0,1MiB,direct,2\n");
  has(made.error, "b.csv: acts/0>1,1MiB: direct is kept, other is not");
  has(made.out, "out.csv: 2 entries, 1 conflicts");

  here.write("c.csv", header(2) + "acts/0>1,1MiB,third,3\nacts/0>1,4MiB,third,3\n");
  const auto added = here.parley("results merge --json -o out.csv c.csv");
  CHECK(added.status == 0);
  CHECK(added.document().at("entries").to_number<int>() == 3);
  CHECK(added.document().at("conflicts").as_array()[0].at("kept").at("solution").as_string() == "direct");
  CHECK(here.read("out.csv").ends_with("acts/0>1,4MiB,third,3\n"));
  CHECK(fs::exists(here.path / "out.csv.lock") == false);
}

TEST_CASE("results merge reports a bad line as results check does, and writes nothing") {
  const folder here;
  here.write("fine.csv", header(2) + one_entry);
  here.write("bad.csv", header(2) + "acts\n" + one_entry);
  CHECK(here.parley("results check bad.csv").status == 2);
  const auto merged = here.parley("results merge -o out.csv fine.csv bad.csv");
  CHECK(merged.status == 2);
  has(merged.error, "bad.csv:5: ");
  CHECK_FALSE(fs::exists(here.path / "out.csv"));
}

TEST_CASE("results check and results merge accept a line that is read with a warning") {
  const folder here;
  const std::string infinite = "acts/0>1,4MiB_bf16,Default,inf\n";
  for (const std::string& line : {infinite, std::string("acts/0>1,4MiB_bf16,direct,1,thn\n")}) {
    CAPTURE(line);
    here.write("a.csv", header(2) + one_entry + line);
    const auto checked = here.parley("results check a.csv");
    CHECK(checked.status == 0);
    has(checked.error, "a.csv:6: ");
    has(checked.out, "a.csv: fine except for these warnings, ");
    const auto merged = here.parley("results merge -o out.csv a.csv");
    CHECK(merged.status == 0);
    has(merged.error, "a.csv:6: ");
  }
  CHECK(here.read("out.csv").find(infinite) != std::string::npos);
}

TEST_CASE("results check accepts comments, and results merge keeps the comments of all files once") {
  const folder here;
  here.write("a.csv", "# one\n" + header(2) + one_entry);
  here.write("b.csv", header(2) + "# two\n" + one_entry);
  CHECK(here.parley("results check a.csv b.csv").status == 0);
  for (int i = 0; i < 2; ++i) CHECK(here.parley("results merge -o out.csv a.csv b.csv").status == 0);
  CHECK(here.read("out.csv") == "# one\n" + header(2) + one_entry + "# two\n");
}

TEST_CASE("results check accepts a file with only kernels for any number of ranks") {
  const folder here;
  std::string without_world = header(2);
  const std::size_t at = without_world.find("Validator,PARLEY_WORLD");
  without_world.erase(at, without_world.find('\n', at) + 1 - at);
  here.write("kernels.csv", without_world + "gemm,n=64,fast,1\n");
  CHECK(here.parley("results check -n 4 kernels.csv").status == 0);
  here.write("edges.csv", without_world + one_entry);
  CHECK(here.parley("results check -n 4 edges.csv").status == 1);
}

TEST_CASE("results merge refuses files that do not belong together, and leaves OUT unchanged") {
  const folder here;
  here.write("a.csv", header(2) + one_entry);
  here.write("b.csv", header(4) + one_entry);
  here.write("bad.csv", header(2) + "acts\n");
  const auto differ = here.parley("results merge -o out.csv a.csv b.csv");
  CHECK(differ.status == 2);
  has(differ.error, "b.csv: validator PARLEY_WORLD is 4 in the file and 2 in a.csv");
  CHECK_FALSE(fs::exists(here.path / "out.csv"));
  CHECK(here.parley("results merge -o b.csv a.csv").status == 2);
  CHECK(here.read("b.csv") == header(4) + one_entry);
  const auto mend = here.parley("results merge -o bad.csv a.csv");
  CHECK(mend.status == 2);
  has(mend.error, "bad.csv:5: ");
  CHECK(here.read("bad.csv") == header(2) + "acts\n");
  CHECK(here.parley("results merge -o out.csv a.csv missing.csv").status == 2);
  CHECK_FALSE(fs::exists(here.path / "out.csv"));
  CHECK(here.parley("results merge -o no/such/folder/out.csv a.csv").status == 1);
}

TEST_CASE("results diff prints the choices, times and validators in which two files differ") {
  const folder here;
  const std::string same = "acts/0>1,1KiB_bf16,direct,0.004\n";
  here.write("a.csv", header(2) + same + "acts/0>1,1MiB_bf16,direct,1.5\nacts/0>1,2MiB_bf16,put,3\nold,all,plain,1\n");
  here.write("b.csv", header(4) + "acts/0>1,1MiB_bf16,put,1.2\nacts/0>1,2MiB_bf16,put,4.5\nnew,all,plain,1\n" + same);
  const auto table = here.parley("results diff a.csv b.csv");
  CHECK(table.status == 1);
  has(table.out, "3 choices differ, 1 times of one choice differ by more than 10 %, 1 entries are the same");
  has(table.out, "PARLEY_WORLD");
  CHECK(table.out.find("PARLEY_VERSION") == table.out.npos);
  CHECK(table.out.find("1KiB_bf16") == table.out.npos);
  const auto document = here.parley("results diff --json a.csv b.csv").document();
  CHECK(document.at("same").to_number<int>() == 1);
  CHECK(document.at("validators").as_array()[0].at("after").as_string() == "4");
  const json::array choices = document.at("choices").as_array();
  REQUIRE(choices.size() == 3);
  CHECK(choices[0].at("before").at("solution").as_string() == "direct");
  CHECK(choices[0].at("after").at("solution").as_string() == "put");
  CHECK(choices[1].at("after").is_null());
  CHECK(choices[2].at("before").is_null());
  REQUIRE(document.at("times").as_array().size() == 1);
  CHECK(document.at("times").as_array()[0].at("after").at("time_ms").to_number<double>() == 4.5);

  here.write("slower.csv", header(2) + "acts/0>1,1KiB_bf16,direct,0.008\n");
  here.write("faster.csv", header(2) + same);
  CHECK(here.parley("results diff slower.csv faster.csv").status == 0);
  CHECK(here.parley("results diff a.csv missing.csv").status == 2);
  has(here.parley("results diff a.csv missing.csv").error, "missing.csv");
  CHECK(here.parley("results diff a.csv").status == 2);
  CHECK(here.parley("results diff a.csv b.csv a.csv").status == 2);
}

TEST_CASE("results check trusts a file in which only soft validators differ, and says so") {
  const folder here;
  std::string other = header(2) + one_entry;
  const std::size_t at = other.find("PARLEY_UCX,") + std::string_view("PARLEY_UCX,").size();
  other.insert(at, "9");
  here.write("a.csv", other);
  CHECK(here.parley("results check a.csv").status == 1);
  const auto soft = here.parley("results check a.csv", "PARLEY_SOFT_VALIDATORS=PARLEY_UCX");
  CHECK(soft.status == 0);
  has(soft.error, "PARLEY_SOFT_VALIDATORS allows that");
  CHECK(here.parley("results check a.csv", "PARLEY_SOFT_VALIDATORS=PARLEY_CUDA").status == 1);
}

TEST_CASE("results explain prints why a config was chosen, with the times of all ranks") {
  const folder here;
  here.write("three.json", parley::tests::three_sizes);
  REQUIRE(here.tune("--results r.csv three.json").status == 0);
  const auto one = here.parley("results explain 'messages/0>1,128KiB_fp32' r.csv");
  INFO(one.out);
  CHECK(one.status == 0);
  has(one.out, "messages/0>1,128KiB_fp32: ");
  has(one.out, "ranks 0 1 took part; confidence: ");
  has(one.out, "chunked(chunk_bytes=512 in_flight=4)");
  has(one.out, "fastest");
  CHECK(one.out.find("32KiB_fp32: ") == one.out.npos);
  const auto all = here.parley("results explain --json messages r.csv.evidence r0.csv").document();
  const json::array records = all.at("records").as_array();
  REQUIRE(records.size() > 3);  // of the command, and of rank 0
  CHECK(records[0].at("file").as_string() == "r.csv.evidence");
  const json::array candidates = records[0].at("candidates").as_array();
  REQUIRE(candidates.size() == 3);
  CHECK(candidates[0].at("config").as_string() == "direct");
  REQUIRE(candidates[0].at("ranks").as_array().size() == 2);
  CHECK(candidates[0].at("ranks").as_array()[1].at("fastest_ns").to_number<double>() > 0);

  const auto none = here.parley("results explain nothing r.csv");
  CHECK(none.status == 1);
  has(none.error, "there are decisions for");
  has(none.error, "messages/0>1,128KiB_fp32");
  const auto missing = here.parley("results explain messages missing.csv");
  CHECK(missing.status == 2);
  has(missing.error, "missing.csv.evidence: there is no such file");
  CHECK(here.parley("results explain messages").status == 2);
}

TEST_CASE("results model compares the times that were expected with those that were measured") {
  const folder here;
  const auto candidate = [](const std::string& status, double expected, double took) {
    return R"({"config":"a","status":")" + status + R"(","time_ns":)" + (took > 0 ? std::to_string(took) : "null") +
           R"(,"expected_ns":)" + std::to_string(expected) + R"(,"expected_low_ns":)" + std::to_string(expected * 0.9) +
           R"(,"expected_high_ns":)" + std::to_string(expected * 1.1) + "}";
  };
  here.write("r.csv.evidence", R"({"op":"acts/0>1","key":"1MiB","candidates":[)" + candidate("measured", 1000, 1050) +
                                   "," + candidate("measured", 1000, 2000) + "," + candidate("hopeless", 9000, 0) +
                                   "," + candidate("measured", 0, 5) + "]}\n");
  const json::array ops = here.parley("results model --json r.csv").document().at("ops").as_array();
  REQUIRE(ops.size() == 1);
  CHECK(ops[0].at("op").as_string() == "acts/0>1");
  CHECK(ops[0].at("times").to_number<int>() == 2);
  CHECK(ops[0].at("in_range").to_number<int>() == 1);
  CHECK(ops[0].at("not_tried").to_number<int>() == 1);
  CHECK(ops[0].at("worst_error").to_number<double>() == doctest::Approx(1.0));
  has(here.parley("results model r.csv").out, "100.0 %");
  here.write("none.csv.evidence", R"({"op":"acts/0>1","key":"1MiB","candidates":[]})");
  has(here.parley("results model none.csv").out, "nothing was expected");
}

TEST_CASE("results explain and model ignore lines that are no records, and say which") {
  const folder here;
  here.write("r.csv.evidence", "{\"op\":\"a\",\"key\":\"k\",\"config\":7}\nnonsense\n[]\n\n");
  const auto shown = here.parley("results explain a,k r.csv");
  CHECK(shown.status == 0);
  has(shown.out, "a,k: ");
  has(shown.error, "r.csv.evidence:2: the line is not a record of a decision, and is ignored");
  has(shown.error, "r.csv.evidence:3: ");
  CHECK(here.parley("results model r.csv").status == 0);
  here.write("empty.csv.evidence", "");
  has(here.parley("results explain a empty.csv").error, "the files hold no decisions");
}

TEST_CASE("the results commands have help texts, and wrong arguments end with status 2") {
  const folder here;
  for (const char* words :
       {"results", "results frob x", "results show", "results merge a.csv", "results check -n 0 a"}) {
    INFO(words);
    CHECK(here.parley(words).status == 2);
  }
  has(here.parley("results check --help").out, "Status 0");
  has(here.parley("results merge --help").out, "its own entries win");
}

TEST_CASE("results that do not fit an existing file are written to a second file, and the next run finds them there") {
  const folder here;
  const std::string foreign = "Validator,PARLEY_VERSION,9.9.9\n" + one_entry;
  here.write("r.csv", foreign);
  here.write("three.json", parley::tests::three_sizes);
  const auto first = here.tune("three.json --results r.csv");
  REQUIRE_MESSAGE(first.status == 0, first.error);
  CHECK(here.read("r.csv") == foreign);
  const std::string beside(first.document().at("results").at("path").as_string());
  CHECK(beside.starts_with("r.for-"));
  CHECK(here.parley("results check -n 2 " + beside).status == 0);
  const auto second = here.tune("three.json --results r.csv");
  REQUIRE_MESSAGE(second.status == 0, second.error);
  const json::object again = second.document();
  for (const json::value& a : again.at("agreements").as_array()) CHECK(a.at("from_results").as_bool());
}

TEST_CASE("a job that cannot lock its results file writes a spare file, which can be merged when the lock is gone") {
  const folder here;
  here.write("r.csv.lock", "another-boot\nprocess 1 on elsewhere\n");
  here.write("three.json", parley::tests::three_sizes);
  const auto ran = here.tune("three.json --results r.csv");
  CHECK(ran.status == 0);
  has(ran.error, "r.csv.lock is held by process 1 on elsewhere");
  const std::string spare(ran.document().at("results").at("path").as_string());
  has(ran.error, "parley results merge -o r.csv " + spare);
  CHECK_FALSE(fs::exists(here.path / "r.csv"));
  fs::remove(here.path / "r.csv.lock");
  CHECK(here.parley("results merge -o r.csv " + spare).status == 0);
  CHECK(here.read("r.csv") == here.read(spare));
}

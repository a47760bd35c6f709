// Results files that several jobs share, and disks that fail.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/folder.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/ops/job/results_store.hpp>
#include <parley/transports/files/file_storage.hpp>

#include <doctest/doctest.h>

#include <filesystem>
#include <thread>

using namespace parley;
using namespace parley::ops;
using namespace parley::tests;
using runtime::errc;
using tuning::result_entry;
using tuning::results_file;

namespace {

const std::vector<tuning::validator> here{{"A", "1"}};
const std::string header = "Validator,A,1\n";

results_file learned(const std::string& lines) { return tuning::parse_results(header + lines).value().file; }

/// A storage that refuses writes to paths that begin with `full`.
class failing_storage final : public runtime::storage {
 public:
  runtime::result<std::string> read(const std::string& path) override { return memory.read(path); }
  runtime::result<> replace(const std::string& path, std::string_view text) override {
    ++writes;
    if (refuses(path)) return runtime::error{errc::io, path + ": No space left on device"};
    return memory.replace(path, text);
  }
  runtime::result<> update(const std::string& path, const edit& change) override {
    if (refuses(path)) return runtime::error{errc::io, path + ": No space left on device"};
    ++writes;
    if (between) std::exchange(between, nullptr)();
    return memory.update(path, change);
  }
  runtime::result<> append(const std::string& path, std::string_view text) override {
    return memory.append(path, text);
  }
  bool refuses(const std::string& path) const { return !full.empty() && path.starts_with(full); }

  memory_storage memory;
  std::string full;  ///< refuses paths with this prefix; empty: refuses none
  std::function<void()> between;
  int writes = 0;
};

runtime::task<> rest_until(runtime::time_ns when) {
  auto woken = co_await runtime::sleep_until(when);
  static_cast<void>(woken);
}
void pass(runtime::virtual_time& clock, runtime::time_ns span) {
  runtime::run(clock, rest_until(clock.deadline_in(span)));
}

bool says(const std::vector<std::string>& warnings, std::string_view part) {
  for (const auto& w : warnings) {
    if (w.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("the file holds the results of two concurrent jobs, and keeps the entry that was written first") {
  memory_storage disk;
  results_store one(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  results_store two(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(one.add(learned("op,a,x,1\nop,b,x,1\n"), {}).value() == "r0.csv");
  CHECK(two.add(learned("op,b,y,2\nop,c,y,2\n"), {}).value() == "r0.csv");
  CHECK(disk.files.at("r0.csv") == header + "op,a,x,1\nop,b,x,1\nop,c,y,2\n");
}

TEST_CASE("a job also merges results that another job wrote between its look at the file and its lock") {
  failing_storage disk;
  disk.between = [&] { disk.memory.files["r0.csv"] = header + "op,b,theirs,1\n"; };
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(store.add(learned("op,a,x,1\nop,b,x,1\n"), {}));
  CHECK(disk.memory.files.at("r0.csv") == header + "op,b,theirs,1\nop,a,x,1\n");
}

TEST_CASE("a job that learned nothing new writes nothing, and needs no lock") {
  failing_storage disk;
  disk.memory.files["r0.csv"] = header + "op,a,x,1\n";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(store.remembered().entries().size() == 1);
  disk.full = "r0";
  CHECK(store.add(learned("op,a,x,1\n"), {}).value() == "r0.csv");
  CHECK(store.add(learned("op,a,y,1\n"), {}).value() == "r0.csv");
  CHECK(store.add(learned(""), {}).value() == "r0.csv");
  CHECK(disk.writes == 0);
  CHECK(store.warnings().empty());
}

TEST_CASE("a job replaces an entry that it decided differently, unless another job has changed the entry since") {
  memory_storage disk;
  disk.files["r0.csv"] = header + "op,a,gone,1\nop,b,gone,1\n";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  const std::vector<result_entry> superseded = store.remembered().entries();
  disk.files["r0.csv"] = header + "op,a,gone,1\nop,b,theirs,1\n";
  CHECK(store.add(learned("op,a,new,2\nop,b,new,2\n"), superseded));
  CHECK(disk.files.at("r0.csv") == header + "op,a,new,2\nop,b,theirs,1\n");
}

TEST_CASE(
    "a job replaces its own earlier entry with a later decision, unless another job has changed the entry since") {
  memory_storage disk;
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(store.add(learned("op,a,early,1\nop,b,early,1\nop,c,early,1\n"), {}));
  disk.files["r0.csv"] = header + "op,a,early,1\nop,b,theirs,1\nop,c,early,1\n";
  CHECK(store.add(learned("op,a,late,2\nop,b,late,2\nop,c,early,1\n"), {}));
  CHECK(disk.files.at("r0.csv") == header + "op,a,late,2\nop,b,theirs,1\nop,c,early,1\n");
  CHECK(store.add(learned("op,a,last,3\n"), {}));
  CHECK(disk.files.at("r0.csv") == header + "op,a,last,3\nop,b,theirs,1\nop,c,early,1\n");
}

TEST_CASE("a job also replaces an outdated entry of the common file, and adds no entry to the common file") {
  memory_storage disk;
  disk.files["r.csv"] = header + "op,a,gone,1\nop,b,gone,1\n";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  results_store other(&disk, {.path = "r.csv", .ordinal = 1, .validators = here});
  const std::vector<result_entry> superseded = store.remembered().entries();
  disk.files["r.csv"] = header + "op,a,gone,1\nop,b,theirs,1\n";
  CHECK(store.add(learned("op,a,new,2\nop,b,new,2\nop,c,new,2\n"), superseded).value() == "r0.csv");
  CHECK(disk.files.at("r.csv") == header + "op,a,new,2\nop,b,theirs,1\n");
  CHECK(disk.files.at("r0.csv") == header + "op,a,new,2\nop,b,new,2\nop,c,new,2\n");
  CHECK(other.add(learned("op,a,later,3\n"), superseded));  // `store` has replaced the entry already
  CHECK(disk.files.at("r.csv") == header + "op,a,new,2\nop,b,theirs,1\n");
  disk.locked.insert("r.csv");
  disk.files["r.csv"] = header + "op,a,gone,1\n";
  CHECK(store.add(learned("op,a,new,2\n"), superseded));
  REQUIRE(store.warnings().size() == 1);
  CHECK(says(store.warnings(), "r.csv"));
}

TEST_CASE("a foreign or damaged file stays unchanged, and results are written to another file, which later jobs find") {
  std::string bad;
  SUBCASE("another machine's") { bad = "Validator,A,2\nop,a,x,1\n"; }
  SUBCASE("one more validator") { bad = header + "Validator,B,1\nop,a,x,1\n"; }
  SUBCASE("no validators") { bad = "op,a,x,1\n"; }
  SUBCASE("a line that cannot be read") { bad = header + "op\nop,a,x,1\n"; }
  SUBCASE("zeros") { bad = header + std::string(100, '\0'); }
  SUBCASE("a line of 2 MiB") { bad = header + std::string(2U << 20U, 'x') + "\n"; }
  memory_storage disk;
  disk.files["r0.csv"] = bad;
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  const auto where = store.add(learned("op,q,new,2\n"), {});
  REQUIRE(where);
  CHECK(*where == variant_name("r0.csv", here));
  CHECK(disk.files.at("r0.csv") == bad);
  CHECK(says(store.warnings(), "r0.csv"));
  CHECK(says(store.warnings(), *where));
  const results_store again(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(again.remembered().find("op", "q")->solution == "new");
  CHECK(disk.files.size() == 2);
}

TEST_CASE("jobs of two kinds of machines share a folder, and neither loses what it learned") {
  memory_storage disk;
  const std::vector<tuning::validator> there{{"A", "2"}};
  for (int round = 0; round < 2; ++round) {
    results_store one(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
    results_store two(&disk, {.path = "r.csv", .ordinal = 0, .validators = there});
    if (round == 1) {
      CHECK(one.remembered().find("op", "a")->solution == "x");
      CHECK(two.remembered().find("op", "a")->solution == "y");
    }
    CHECK(one.add(learned("op,a,x,1\n"), {}));
    CHECK(two.add(tuning::parse_results("Validator,A,2\nop,a,y,1\n").value().file, {}));
  }
}

TEST_CASE("a learned result is on disk within a second, together with results learned in the meantime") {
  runtime::virtual_time clock;
  failing_storage disk;
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here, .ex = &clock});
  store.learn({"op/0>1", "a", "x", 1});
  store.learn({"op/0>1", "b", "x", 1});
  CHECK(disk.memory.files.empty());  // no call of the op waits for the disk
  pass(clock, 1'000'000'000);
  CHECK(disk.memory.files.at("r0.csv") == header + "op/0>1,a,x,1\nop/0>1,b,x,1\n");
  CHECK(disk.writes == 1);
  store.learn({"op/0>1", "a", "late", 2});
  pass(clock, 1'000'000'000);
  CHECK(disk.memory.files.at("r0.csv") == header + "op/0>1,a,late,2\nop/0>1,b,x,1\n");
  CHECK(disk.writes == 2);
  CHECK(store.add(learned("op/0>1,a,late,2\nop/0>1,b,x,1\n"), {}).value() == "r0.csv");
  CHECK(disk.writes == 2);
}

TEST_CASE("a learned result replaces an entry that was read earlier, but no entry that another job has written since") {
  runtime::virtual_time clock;
  memory_storage disk;
  disk.files["r0.csv"] = header + "op/0>1,a,gone,1\nop/0>1,b,gone,1\n";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here, .ex = &clock});
  disk.files["r0.csv"] = header + "op/0>1,a,gone,1\nop/0>1,b,theirs,1\n";
  for (const char* const key : {"a", "b"})
    store.learn({"op/0>1", key, "new", 2}, store.remembered().find("op/0>1", key));
  pass(clock, 1'000'000'000);
  CHECK(disk.files.at("r0.csv") == header + "op/0>1,a,new,2\nop/0>1,b,theirs,1\n");
}

TEST_CASE("a full disk causes a warning, and the learned results are written once it has room") {
  runtime::virtual_time clock;
  failing_storage disk;
  disk.full = "r0";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here, .ex = &clock});
  store.learn({"op/0>1", "a", "x", 1});
  pass(clock, 1'000'000'000);
  disk.full = "";
  CHECK(store.add(learned("op/0>1,a,x,1\n"), {}).value() == "r0.csv");
  CHECK(says(store.warnings(), "No space left on device"));
  CHECK(disk.memory.files.at("r0.csv") == header + "op/0>1,a,x,1\n");
}

TEST_CASE("a learned result reaches a real disk even if the rank's executor never runs") {
  const scratch_folder folder;
  runtime::virtual_time clock;
  transports::file_storage disk;
  results_store store(&disk, {.path = folder.file("r.csv"), .ordinal = 0, .validators = here, .ex = &clock});
  store.learn({"op/0>1", "a", "x", 1});
  const deadline limit;
  while (!disk.read(folder.file("r0.csv")) && !limit.is_over()) std::this_thread::yield();
  CHECK(disk.read(folder.file("r0.csv")).value() == header + "op/0>1,a,x,1\n");
}

TEST_CASE("a world of another size uses results of kernels, and no other results") {
  memory_storage disk;
  const auto world = [](const char* size) {
    return std::vector<tuning::validator>{{"A", "1"}, {"PARLEY_WORLD", size}};
  };
  const auto of = [&](const char* size, const std::string& lines) {
    return tuning::parse_results(header + "Validator,PARLEY_WORLD," + size + "\n" + lines).value().file;
  };
  results_store two(&disk, {.path = "r.csv", .ordinal = 0, .validators = world("2")});
  CHECK(two.add(of("2", "gemm,n=1,fast,1\nacts/0>1,1MiB,x,1\n"), {}).value() == "r0.csv");
  results_store four(&disk, {.path = "r.csv", .ordinal = 0, .validators = world("4")});
  REQUIRE(four.remembered().find("gemm", "n=1") != nullptr);
  CHECK(four.remembered().entries().size() == 1);
  CHECK(says(four.warnings(), "PARLEY_WORLD"));
  CHECK(four.add(of("4", "gemm,n=2,fast,1\nacts/0>1,4MiB,x,1\n"), {}).value() == variant_name("r0.csv", world("4")));
  const results_store eight(&disk, {.path = "r.csv", .ordinal = 0, .validators = world("8")});
  CHECK(eight.remembered().find("gemm", "n=1") != nullptr);
  CHECK(eight.remembered().find("gemm", "n=2") != nullptr);
  CHECK(eight.remembered().entries().size() == 2);
  const results_store elsewhere(&disk,
                                {.path = "r.csv", .ordinal = 0, .validators = {{"A", "2"}, {"PARLEY_WORLD", "2"}}});
  CHECK(elsewhere.remembered().entries().empty());
}

TEST_CASE("results of a file in which only soft validators differ are used as thin, after those of all other files") {
  memory_storage disk;
  disk.files["r0.csv"] = "Validator,A,1\nValidator,LIB,1.0\nx/0>1,1KiB,direct,1\nx/0>1,2KiB,put,2\n";
  const std::vector<tuning::validator> now{{"A", "1"}, {"LIB", "1.1"}};
  disk.files[variant_name("r0.csv", now)] = "Validator,A,1\nValidator,LIB,1.1\nx/0>1,1KiB,get,0.5\n";
  const results_store hard(&disk, {.path = "r.csv", .validators = now});
  CHECK(hard.remembered().find("x/0>1", "2KiB") == nullptr);
  const results_store store(&disk, {.path = "r.csv", .validators = now, .soft = {"LIB", "OTHER"}});
  REQUIRE(store.remembered().find("x/0>1", "2KiB") != nullptr);
  CHECK(store.remembered().find("x/0>1", "2KiB")->solution == "put");
  CHECK(store.remembered().find("x/0>1", "2KiB")->thin);
  CHECK(store.remembered().find("x/0>1", "1KiB")->solution == "get");
  CHECK_FALSE(store.remembered().find("x/0>1", "1KiB")->thin);
  REQUIRE(store.warnings().size() == 1);
  CHECK(store.warnings()[0].find("validator LIB is 1.0 in the file and 1.1 here; PARLEY_SOFT_VALIDATORS") !=
        std::string::npos);
  // They do not become results of this version until they are decided again.
  results_store writer(&disk, {.path = "r.csv", .validators = now, .soft = {"LIB"}});
  tuning::results_file known;
  for (const auto& v : now) REQUIRE(known.add(v));
  for (const auto& e : writer.remembered().entries()) REQUIRE(known.add(e));
  REQUIRE(known.add(tuning::result_entry{"x/0>1", "4KiB", "direct", 3}));
  REQUIRE(writer.add(known, {}));
  const std::string& written = disk.files.at(variant_name("r0.csv", now));
  CHECK(written.find("4KiB") != std::string::npos);
  CHECK(written.find("2KiB") == std::string::npos);
  const results_store other(&disk, {.path = "r.csv", .validators = {{"A", "2"}, {"LIB", "1.1"}}, .soft = {"LIB"}});
  CHECK(other.remembered().entries().empty());
  disk.files["r0.csv"] = "Validator,A,1\nx/0>1,2KiB,put,2\n";  // the file lacks the validator
  const results_store lacking(&disk, {.path = "r.csv", .validators = now, .soft = {"LIB"}});
  CHECK(lacking.remembered().find("x/0>1", "2KiB") != nullptr);
}

TEST_CASE("a file of kernels that is for worlds of all sizes is read without a warning") {
  memory_storage disk;
  disk.files["r.csv"] = "Validator,A,1\nscale,n=8,fast,1\n";
  const results_store store(&disk, {.path = "r.csv", .ordinal = 3, .validators = {{"A", "1"}, {"PARLEY_WORLD", "4"}}});
  CHECK(store.warnings().empty());
  REQUIRE(store.remembered().find("scale", "n=8") != nullptr);
  CHECK(store.remembered().find("scale", "n=8")->solution == "fast");
}

TEST_CASE("a results path that is a device or a folder is refused, and /dev/null means no results") {
  transports::file_storage disk;
  const scratch_folder folder;
  for (const std::string& path : {std::string("/dev/zero"), std::string("/dev/full"), folder.path.string()}) {
    CAPTURE(path);
    results_store store(&disk, {.path = path, .ordinal = 0, .validators = here});
    CHECK(store.warnings().size() == 1);
    CHECK(says(store.warnings(), path));
    CHECK(store.add(learned("op,a,x,1\n"), {}).code() == errc::unavailable);
    CHECK_FALSE(std::filesystem::exists(path + "0"));
  }
  results_store none(&disk, {.path = "/dev/null", .ordinal = 0, .validators = here});
  CHECK(none.warnings().empty());
  CHECK_FALSE(none.in_use());
  CHECK(none.add(learned("op,a,x,1\n"), {}).code() == errc::unavailable);
  CHECK_FALSE(std::filesystem::exists("/dev/null0"));
}

TEST_CASE("comments in a file stay when results are added to it, even if the file holds nothing else") {
  memory_storage disk;
  disk.files["r0.csv"] = "# of Monday\n";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(store.add(learned("op,a,x,1\n"), {}));
  CHECK(disk.files.at("r0.csv") == "# of Monday\n" + header + "op,a,x,1\n");
  CHECK(store.add(learned("op,a,x,1\nop,b,x,1\n"), {}));
  CHECK(disk.files.at("r0.csv") == "# of Monday\n" + header + "op,a,x,1\nop,b,x,1\n");
}

TEST_CASE("an empty results file is treated as a missing one") {
  memory_storage disk;
  disk.files["r0.csv"] = "\n";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(store.warnings().empty());
  CHECK(store.add(learned("op,a,x,1\n"), {}).value() == "r0.csv");
  CHECK(disk.files.at("r0.csv") == header + "op,a,x,1\n");
}

TEST_CASE("a last line without a newline is completed, not refused") {
  memory_storage disk;
  disk.files["r0.csv"] = header + "op,a,Default";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(store.add(learned("op,b,x,1\n"), {}).value() == "r0.csv");
  CHECK(disk.files.at("r0.csv") == header + "op,a,Default,0\nop,b,x,1\n");
}

TEST_CASE(
    "if a results file cannot be locked, results are kept in a spare file, and the warning says how to merge it") {
  memory_storage disk;
  disk.files["r0.csv"] = header + "op,a,x,1\n";
  disk.locked.insert("r0.csv");
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here, .unique = 0xabc});
  const auto where = store.add(learned("op,b,x,1\n"), {});
  REQUIRE(where);
  CHECK(*where == "r0.unmerged-0000000000000abc.csv");
  CHECK(disk.files.at(*where) == header + "op,b,x,1\n");
  CHECK(disk.files.at("r0.csv") == header + "op,a,x,1\n");
  CHECK(says(store.warnings(), "parley results merge -o r0.csv " + *where));
}

TEST_CASE(
    "if a folder is full, results are written to the spare folder; without one, the error names file and variable") {
  failing_storage disk;
  disk.full = "d/";
  results_store store(&disk,
                      {.path = "d/r.csv", .ordinal = 3, .validators = here, .unique = 1, .spare_folder = "/tmp"});
  const auto where = store.add(learned("op,b,x,1\n"), {});
  REQUIRE(where);
  CHECK(*where == "/tmp/r3.unmerged-0000000000000001.csv");
  CHECK(says(store.warnings(), "No space left on device"));

  results_store nowhere(&disk, {.path = "d/r.csv", .ordinal = 3, .validators = here, .unique = 1});
  const auto lost = nowhere.add(learned("op,b,x,1\n"), {});
  for (const char* const words : {"d/r3.csv", "PARLEY_RESULTS"}) CHECK(is(lost, {.code = errc::io, .quotes = words}));
}

TEST_CASE("a missing folder is named; an existing folder, and the current one, are not") {
  CHECK(missing_folder_of("/nonesuch/r.csv") == "/nonesuch");
  CHECK(missing_folder_of("/nonesuch/deeper/r.csv") == "/nonesuch/deeper");
  for (const char* const fine : {"", "r.csv", "/tmp/r.csv", "./r.csv", "/dev/null"})
    CHECK(missing_folder_of(fine).empty());
}

TEST_CASE("200000 entries of other ops in a file do not keep a rank from finding its own entry") {
  std::string text = header;
  for (int i = 0; i < 200'000; ++i) text += "other," + std::to_string(i) + ",x,1\n";
  memory_storage disk;
  disk.files["r.csv"] = text + "op,a,x,1\n";
  const results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = here});
  CHECK(store.warnings().empty());
  CHECK(store.remembered().find_all("op,").size() == 1);
}

TEST_CASE("the list of untuned keys has each line once") {
  memory_storage disk;
  CHECK(record_untuned(disk, "u.csv", {"op,a", "op,b"}));
  CHECK(record_untuned(disk, "u.csv", {"op,b", "op,c", "p,a"}));
  CHECK(disk.files.at("u.csv") == "op,a\nop,b\nop,c\np,a\n");
  disk.files["v.csv"] = "op,a";
  CHECK(record_untuned(disk, "v.csv", {"op,a"}));
  CHECK(disk.files.at("v.csv") == "op,a\n");
}

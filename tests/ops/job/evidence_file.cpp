// The evidence beside results files: of several jobs, on disks that fail, and of kernels.
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/ops/job/evidence_file.hpp>
#include <parley/ops/job/results_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>

using namespace parley;
using namespace parley::ops;
using namespace parley::tests;
using runtime::errc;

namespace {

decision made(const std::string& config, const std::string& why = {}) {
  decision d;
  d.config = config;
  d.why = why;
  return d;
}

std::size_t lines_in(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A storage that refuses to write files whose names end with `.evidence`.
class no_room final : public runtime::storage {
 public:
  runtime::result<std::string> read(const std::string& path) override { return memory.read(path); }
  runtime::result<> replace(const std::string& path, std::string_view text) override {
    return memory.replace(path, text);
  }
  runtime::result<> update(const std::string& path, const edit& change) override {
    if (full && path.ends_with(".evidence")) return runtime::error{errc::io, path + ": No space left on device"};
    return memory.update(path, change);
  }
  runtime::result<> append(const std::string& path, std::string_view text) override {
    return memory.append(path, text);
  }
  memory_storage memory;
  bool full = true;
};

}  // namespace

TEST_CASE("an evidence file has the latest record of each key, and keeps the records of other jobs") {
  memory_storage disk;
  evidence_file first(disk, "r0.csv.evidence"), second(disk, "r0.csv.evidence");
  first.note("acts/0>1", "1MiB", made("direct"));
  first.note("acts/0>1", "1MiB_bf16", made("put"));
  REQUIRE(first.write());
  second.note("sums/0+1", "1MiB", made("ring"));
  second.note("acts/0>1", "1MiB", made("chunked"));
  REQUIRE(second.write());
  const std::string& text = disk.files.at("r0.csv.evidence");
  CHECK(lines_in(text) == 3);
  CHECK(contains(text, R"({"op":"acts/0>1","key":"1MiB","config":"chunked")"));
  CHECK(contains(text, R"({"op":"acts/0>1","key":"1MiB_bf16","config":"put")"));
  CHECK(contains(text, R"({"op":"sums/0+1","key":"1MiB","config":"ring")"));
  CHECK_FALSE(contains(text, "direct"));
  const std::string before = text;
  REQUIRE(first.write());  // nothing new
  CHECK(disk.files.at("r0.csv.evidence") == before);
}

TEST_CASE("a full disk loses no evidence, and the latest record of a key is the one that is written") {
  no_room disk;
  evidence_file evidence(disk, "r0.csv.evidence");
  evidence.note("acts/0>1", "1MiB", made("direct"));
  evidence.note("acts/0>1", "2MiB", made("direct"));
  CHECK_FALSE(evidence.write());
  evidence.note("acts/0>1", "1MiB", made("put"));
  disk.full = false;
  REQUIRE(evidence.write());
  const std::string& text = disk.memory.files.at("r0.csv.evidence");
  CHECK(lines_in(text) == 2);
  CHECK(contains(text, R"("key":"1MiB","config":"put")"));
  CHECK(contains(text, R"("key":"2MiB","config":"direct")"));
}

TEST_CASE("an evidence file that would become too large drops the records that were written first") {
  memory_storage disk;
  evidence_file evidence(disk, "r0.csv.evidence");
  const std::string long_reason(evidence_file::most_bytes / 4, 'x');
  for (int i = 0; i < 6; ++i) {
    evidence.note("acts/0>1", std::to_string(i) + "MiB", made("direct", long_reason));
    REQUIRE(evidence.write());
  }
  const std::string& text = disk.files.at("r0.csv.evidence");
  CHECK(text.size() <= evidence_file::most_bytes);
  CHECK(lines_in(text) == 3);
  CHECK_FALSE(contains(text, "\"2MiB\""));
  CHECK(contains(text, "\"5MiB\""));
}

TEST_CASE("a store writes evidence together with results, and a warning if there is room for the results only") {
  no_room disk;
  results_store store(&disk, {.path = "r.csv", .validators = {{"A", "1"}}});
  const tuning::result_entry entry{"acts/0>1", "1MiB", "put", 1.5};
  store.keep_evidence(entry, made("put"));
  tuning::results_file learned;
  REQUIRE(learned.add(tuning::validator{"A", "1"}));
  REQUIRE(learned.add(entry));
  CHECK(store.add(learned, {}).value() == "r0.csv");
  REQUIRE(store.warnings().size() == 1);
  CHECK(contains(store.warnings()[0], "r0.csv.evidence"));
  disk.full = false;
  CHECK(store.add(learned, {}).value() == "r0.csv");
  CHECK(contains(disk.memory.files.at("r0.csv.evidence"), R"("config":"put")"));
}

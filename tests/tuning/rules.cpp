#include <parley/tuning/results/rules.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace parley::tuning;

namespace {

rule_file rules_in(const std::string& text) {
  auto read = rule_file::parse(text, "r.csv");
  INFO((read ? "" : read.reason().text));
  REQUIRE(read);
  return std::move(read).value();
}

std::string fault_in(const std::string& text) {
  const auto read = rule_file::parse(text, "r.csv");
  return read ? "" : read.reason().text;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr std::uint64_t kib = 1024;

}  // namespace

TEST_CASE("a pattern fits a whole text, with * for any letters and ? for one") {
  for (const auto& [pattern, text] : std::vector<std::pair<std::string, std::string>>{
           {"*", ""}, {"*", "a/0>1"}, {"a*", "a"}, {"a*/0>?", "acts/0>1"}, {"*b*b", "abab"}, {"a**", "ab"}, {"", ""}})
    CHECK_MESSAGE(fits_pattern(pattern, text), pattern << " " << text);
  for (const auto& [pattern, text] : std::vector<std::pair<std::string, std::string>>{
           {"", "a"}, {"a", ""}, {"a*", "ba"}, {"?", ""}, {"a?", "a"}, {"*b", "abc"}, {"A", "a"}})
    CHECK_MESSAGE(!fits_pattern(pattern, text), pattern << " " << text);
  CHECK_FALSE(fits_pattern(std::string(1000, '*') + "b", std::string(10'000, 'a')));  // soon
}

TEST_CASE("rules apply to ops by pattern, and to keys by size or by pattern, in the order of the file") {
  const rule_file file = rules_in("# what runs\n\n acts/* , 4KiB-64KiB , direct # small\r\n"
                                  "acts/*,1MiB-,chunked(in_flight=4 chunk_bytes=65536)\nsums/*,-1KiB,^tree\n"
                                  "gemm*,*m=1 *,openblas(threads=2)\n*,512KiB,Default\n");
  const auto acts = file.of("acts/0>1");
  REQUIRE(acts.size() == 3);
  CHECK(acts[0].place == "r.csv:3");
  CHECK(acts[0].config == "direct");
  CHECK(acts[0].fits("", 4 * kib));
  CHECK(acts[0].fits("", 64 * kib));
  CHECK_FALSE(acts[0].fits("", 2 * kib));
  CHECK_FALSE(acts[0].fits("", 128 * kib));
  CHECK_FALSE(acts[0].fits("n=4", std::nullopt));  // a kernel has no size
  CHECK(acts[1].config == "chunked(chunk_bytes=65536 in_flight=4)");
  CHECK(acts[1].fits("", ~std::uint64_t{0}));
  CHECK_FALSE(acts[1].fits("", 1024 * kib - 1));
  CHECK(acts[2].fits("", 512 * kib));
  CHECK_FALSE(acts[2].fits("", 256 * kib));
  const auto sums = file.of("sums/0+1");
  REQUIRE(sums.size() == 2);
  CHECK(sums[0].excludes);
  CHECK(sums[0].fits("", 0));
  const auto kernels = file.of("gemm_f32");
  REQUIRE(kernels.size() == 2);
  CHECK(kernels[0].fits("k=64 m=1 n=64", std::nullopt));
  CHECK(rules_in("k,128,a").of("k").front().fits("128", std::nullopt));  // the key of a kernel, not a size
  CHECK(rules_in("k,4KiB - 1MiB,a").of("k").front().fits("", 8 * kib));
  CHECK_FALSE(kernels[0].fits("k=64 m=16 n=64", std::nullopt));
}

TEST_CASE("a rule excludes configs by name, by id or by pattern, and a rule that names one excludes none") {
  const auto excludes = [](const std::string& pattern, std::string_view id) {
    return rules_in("*,*,^" + pattern).of("a").front().excludes_config(id);
  };
  CHECK(excludes("chunked", "chunked(chunk_bytes=8 in_flight=1)"));
  CHECK(excludes("chunked(chunk_bytes=8*", "chunked(chunk_bytes=8 in_flight=1)"));
  CHECK_FALSE(excludes("chunked(chunk_bytes=9*", "chunked(chunk_bytes=8 in_flight=1)"));
  CHECK_FALSE(excludes("chunk", "chunked"));
  CHECK(excludes("*", "put"));
  CHECK_FALSE(rules_in("*,*,put").of("a").front().excludes_config("put"));
  CHECK(rules_in("*,*,chunked(chunk_bytes=64KiB in_flight=2)").of("a").front().config ==
        "chunked(chunk_bytes=65536 in_flight=2)");
  CHECK(excludes(" tree", "tree"));
  CHECK(excludes("chunked(in_flight=1 chunk_bytes=8)", "chunked(chunk_bytes=8 in_flight=1)"));
  CHECK(excludes("a#b # a remark", "a#b"));
}

TEST_CASE("a line that is no rule is an error with its place") {
  CHECK(contains(fault_in("a,*,b\na,*\n"), "r.csv:2: a rule has three columns"));
  CHECK(contains(fault_in("a"), "r.csv:1: a rule has three columns"));
  CHECK(contains(fault_in("a,,b"), "r.csv:1: a column is empty"));
  CHECK(contains(fault_in("a,*,"), "r.csv:1: a column is empty"));
  CHECK(contains(fault_in("a,*,^"), "`^` needs the name of a config"));
  CHECK(contains(fault_in("a,64KiB-4KiB,b"), "end before they begin"));
  CHECK(contains(fault_in("a,*,b(c"), "r.csv:1: "));
  for (const char* wrong : {"64KB-", "64kib-1MiB", "1MiB--", "-", "4KiB-1MB"})
    CHECK_MESSAGE(contains(fault_in(std::string("a,") + wrong + ",b"), "is not a range of sizes"), wrong);
  CHECK(fault_in("").empty());
  CHECK(fault_in("#\n \n").empty());
  std::string many;
  for (int i = 0; i < 10'001; ++i) many += "a,*,b\n";
  CHECK(contains(fault_in(many), "r.csv:10001: there are more than 10000 rules"));
}

#include <parley/tuning/results/settings.hpp>

#include <doctest/doctest.h>

#include <map>

using namespace parley::tuning;

namespace {

using variables = std::map<std::string, std::string>;

outcome<environment_settings> read(const variables& all) {
  return read_settings([&](const std::string& name) -> std::optional<std::string> {
    const auto at = all.find(name);
    if (at == all.end()) return std::nullopt;
    return at->second;
  });
}
settings now(const variables& all, const settings& mine = {}) { return read(all).value().over(mine); }

}  // namespace

TEST_CASE("without variables no setting is set, and the defaults are TunableOp's") {
  const auto env = read({}).value();
  for (unsigned i = 0; i <= static_cast<unsigned>(setting::rotating_buffer_bytes); ++i)
    CHECK_FALSE(env.has(static_cast<setting>(i)));
  const settings s = now({});
  CHECK_FALSE(s.enabled);
  CHECK(s.tuning);
  CHECK_FALSE(s.record_untuned);
  CHECK(s.verbosity == 0);
  CHECK(s.verbose_file == "err");
  CHECK(s.file == "tunableop_results.csv");
  CHECK(s.untuned_file == "tunableop_untuned.csv");
  CHECK_FALSE(s.check.on);
  CHECK(s.max_tuning_duration_ms == 30);
  CHECK(s.max_tuning_iterations == 100);
  CHECK(s.max_warmup_duration_ms == 0);
  CHECK(s.max_warmup_iterations == 0);
  CHECK(s.flush_icache);
  CHECK_FALSE(s.rotating_buffer_bytes);
}

TEST_CASE("every variable is read with either prefix, and PARLEY's wins") {
  const variables values{{"ENABLED", "1"},
                         {"TUNING", "0"},
                         {"RECORD_UNTUNED", "1"},
                         {"VERBOSE", "3"},
                         {"VERBOSE_FILENAME", "out"},
                         {"FILENAME", "r.csv"},
                         {"UNTUNED_FILENAME", "u.csv"},
                         {"NUMERICAL_CHECK", "1e-3_0.25"},
                         {"MAX_TUNING_DURATION_MS", "7"},
                         {"MAX_TUNING_ITERATIONS", "8"},
                         {"MAX_WARMUP_DURATION_MS", "9"},
                         {"MAX_WARMUP_ITERATIONS", "10"},
                         {"ICACHE_FLUSH_ENABLED", "0"},
                         {"ROTATING_BUFFER_SIZE", "256"}};
  settings expected;
  expected.enabled = true;
  expected.tuning = false;
  expected.record_untuned = true;
  expected.verbosity = 3;
  expected.verbose_file = "out";
  expected.file = "r.csv";
  expected.untuned_file = "u.csv";
  expected.check = {true, 1e-3, 0.25};
  expected.max_tuning_duration_ms = 7;
  expected.max_tuning_iterations = 8;
  expected.max_warmup_duration_ms = 9;
  expected.max_warmup_iterations = 10;
  expected.flush_icache = false;
  expected.rotating_buffer_bytes = std::uint64_t{256} << 20U;
  variables parley, pytorch;
  for (const auto& [name, value] : values) {
    parley["PARLEY_TUNABLEOP_" + name] = value;
    pytorch["PYTORCH_TUNABLEOP_" + name] = value;
  }
  CHECK(now(parley) == expected);
  CHECK(now(pytorch) == expected);
  variables both = pytorch;
  both["PARLEY_TUNABLEOP_FILENAME"] = "mine.csv";
  both["PARLEY_TUNABLEOP_ENABLED"] = "0";
  expected.file = "mine.csv";
  expected.enabled = false;
  CHECK(now(both) == expected);
}

TEST_CASE("the environment overrides the API, except for settings that it does not name") {
  settings mine;
  mine.enabled = true;
  mine.file = "mine.csv";
  mine.max_tuning_iterations = 5;
  const settings s = now({{"PARLEY_TUNABLEOP_FILENAME", "theirs.csv"}}, mine);
  CHECK(s.file == "theirs.csv");
  CHECK(s.enabled);
  CHECK(s.max_tuning_iterations == 5);
  CHECK(now({{"PARLEY_TUNABLEOP_FILENAME", ""}}, mine).file == "mine.csv");
}

TEST_CASE("an invalid value is an error that names its variable, or a warning if the variable is another program's") {
  const variables wrong{{"ENABLED", "yes"},
                        {"TUNING", "2"},
                        {"VERBOSE", "4"},
                        {"NUMERICAL_CHECK", "1e-3"},
                        {"NUMERICAL_CHECK", "-1_2"},
                        {"NUMERICAL_CHECK", "nan_1"},
                        {"MAX_TUNING_DURATION_MS", "-1"},
                        {"MAX_TUNING_ITERATIONS", "10x"},
                        {"MAX_WARMUP_DURATION_MS", "99999999999"},
                        {"ROTATING_BUFFER_SIZE", "1e3"},
                        {"ICACHE_FLUSH_ENABLED", " 1"}};
  for (const auto& [name, value] : wrong) {
    INFO(name << "=" << value);
    const auto own = read({{"PARLEY_TUNABLEOP_" + name, value}});
    REQUIRE_FALSE(own);
    CHECK(own.reason().kind == fault::malformed);
    CHECK(own.reason().text.find("PARLEY_TUNABLEOP_" + name + "=" + value + ": must be ") == 0);
    const auto other = read({{"PYTORCH_TUNABLEOP_" + name, value}}).value();
    REQUIRE(other.warnings().size() == 1);
    CHECK(other.warnings()[0].find("PYTORCH_TUNABLEOP_" + name) == 0);
    CHECK(other.over({}) == settings{});
  }
}

TEST_CASE("a setting's text reads back as the same setting") {
  settings s = now({{"PARLEY_TUNABLEOP_NUMERICAL_CHECK", "1e-3_0.25"},
                    {"PARLEY_TUNABLEOP_ROTATING_BUFFER_SIZE", "0"},
                    {"PARLEY_TUNABLEOP_VERBOSE", "2"}});
  for (unsigned i = 0; i <= static_cast<unsigned>(setting::rotating_buffer_bytes); ++i) {
    const auto which = static_cast<setting>(i);
    const settings again = now({{"PARLEY_TUNABLEOP_" + std::string(variable_name(which)), text_of(s, which)}});
    CHECK(text_of(again, which) == text_of(s, which));
  }
  CHECK(text_of(s, setting::rotating_buffer_bytes) == "0");
  CHECK(text_of({}, setting::rotating_buffer_bytes).empty());
  CHECK(text_of(s, setting::check) == "0.001_0.25");
}

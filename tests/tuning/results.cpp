#include <parley/tuning/results/results.hpp>

#include <doctest/doctest.h>

#include <parley/tuning/config.hpp>

#include <parley/tests/tuning/generator.hpp>

#include <cmath>

using namespace parley::tuning;

namespace {

const std::string worked_case = "Validator,PT_VERSION,2.2.0\n"
                                "Validator,ROCM_VERSION,6.0.0.0-12969-1544e39\n"
                                "GemmTunableOp_float_NT,nt_25088_4096_64,1219,1.262\n";

std::string after(std::string prefix, const std::string& text) { return prefix.append(text); }

results_file file_of(const std::string& text) { return parse_results(text).value().file; }

}  // namespace

TEST_CASE("the format's own example reads and writes back byte for byte") {
  const parsed_results read = parse_results(worked_case).value();
  CHECK(read.warnings.empty());
  REQUIRE(read.file.validators().size() == 2);
  CHECK(read.file.validators()[1] == validator{"ROCM_VERSION", "6.0.0.0-12969-1544e39"});
  const result_entry* hit = read.file.find("GemmTunableOp_float_NT", "nt_25088_4096_64");
  REQUIRE(hit != nullptr);
  CHECK(hit->solution == "1219");
  CHECK(hit->time_ms == 1.262);
  CHECK(write_results(read.file) == worked_case);
  CHECK(read.file.find("GemmTunableOp_float_NT", "nt_1_1_1") == nullptr);
}

TEST_CASE("a config's text is a solution that a results file keeps") {
  const std::string id = config_id({"chunked", {{"chunk_bytes", 262144}, {"in_flight", 4}}});
  results_file file;
  CHECK(file.add(result_entry{"activations", "16MiB_bf16", id, 1.23456789}).value() == added::yes);
  CHECK(write_results(file) == "activations,16MiB_bf16,chunked(chunk_bytes=262144 in_flight=4),1.23457\n");
  CHECK(file_of(write_results(file)).find("activations", "16MiB_bf16")->solution == id);
}

TEST_CASE("three columns mean time 0, fewer are skipped with a warning, and more are ignored with a warning") {
  const parsed_results read = parse_results("op,a,direct\nop,b\nop\nop,c,direct,2.5,extra,more,\n").value();
  CHECK(read.file.find("op", "a")->time_ms == 0);
  CHECK(read.file.find("op", "b") == nullptr);
  CHECK(read.file.find("op", "c")->time_ms == 2.5);
  REQUIRE(read.warnings.size() == 4);
  CHECK(read.warnings[2].line == 4);
  CHECK(read.warnings[3].line == 4);
  CHECK(read.warnings[0].line == 2);
  CHECK(read.warnings[0].text == "the line has 2 columns instead of at least 3; it is skipped");
  CHECK(read.warnings[1].line == 3);
}

TEST_CASE("blank lines, CRLF and a byte order mark are ignored") {
  const parsed_results read = parse_results("\xef\xbb\xbfValidator,A,1\r\n\r\n\n  \t\nop,a,direct,1\r\n").value();
  CHECK(read.warnings.empty());
  CHECK(read.file.validators() == std::vector<validator>{{"A", "1"}});
  CHECK(read.file.find("op", "a")->time_ms == 1);
}

TEST_CASE("blanks around fields, a spreadsheet's quotation marks and a plus sign are not part of the values") {
  const parsed_results read =
      parse_results("Validator , A,  1 \n op , a b ,\tDefault \n\"op\",\"b\",\"direct\",\"+0.5\"\n"
                    " op,c, \" spaced \" , 2 \n")
          .value();
  CHECK(read.warnings.empty());
  CHECK(read.skipped_lines == 0);
  CHECK(read.file.validators() == std::vector<validator>{{"A", "1"}});
  REQUIRE(read.file.find("op", "a b") != nullptr);
  CHECK(read.file.find("op", "a b")->pins_default());
  REQUIRE(read.file.find("op", "b") != nullptr);
  CHECK(*read.file.find("op", "b") == result_entry{"op", "b", "direct", 0.5});
  CHECK(read.file.find("op", "c")->solution == "spaced");
  CHECK(file_of(write_results(read.file)) == read.file);
  CHECK_FALSE(compare_validators(read.file.validators(), std::vector<validator>{{"A", " 1  "}}));
}

TEST_CASE("an unpaired quotation mark gives a warning, because it changes the field") {
  const parsed_results read = parse_results("op,a,\"direct\nop,b,\"x,1\",2\n").value();
  REQUIRE(read.warnings.size() >= 2);
  CHECK(read.warnings[0].line == 1);
  CHECK(read.warnings[1].line == 2);
}

TEST_CASE("a plus sign without a valid number behind it is no time") {
  CHECK(parse_results("op,a,s,+\nop,b,s,+-1\nop,c,s,++1\n").value().skipped_lines == 3);
}

TEST_CASE("lines that begin with # stay in their places, and have no meaning") {
  const std::string text =
      "# of Monday, with the new cable\nValidator,A,1\n# edges\nop,a,direct,1\n  #op,b,direct,1\nop,c,direct,2\n"
      "# the end\n";
  const parsed_results read = parse_results(text).value();
  CHECK(read.warnings.empty());
  CHECK(read.skipped_lines == 0);
  CHECK(read.file.entries().size() == 2);
  CHECK(write_results(read.file) == text);
  const merged_results both =
      merge_results(read.file, file_of("# theirs\nValidator,A,1\n# edges\nop,d,direct,3\n")).value();
  CHECK(write_results(both.file) == text + "op,d,direct,3\n# theirs\n");
  CHECK_FALSE(results_file().add(result_entry{"#op", "a", "direct", 1}));
}

TEST_CASE("a Default with infinite time is no pin: it gives a warning, and stays in the file") {
  const std::string text = "op,a,Default,inf\nop,b,Default\n";
  const parsed_results read = parse_results(text).value();
  CHECK(read.file.find("op", "a") == nullptr);
  CHECK(read.file.find("op", "b")->pins_default());
  CHECK(read.skipped_lines == 0);
  REQUIRE(read.warnings.size() == 1);
  CHECK(read.warnings[0].line == 1);
  CHECK(write_results(read.file) == "op,a,Default,inf\nop,b,Default,0\n");
}

TEST_CASE("extra columns give a warning, with their line") {
  const parsed_results read = parse_results("op,a,s,1,thn\nop,b,s,1,thin,more\nop,c,s,1,,\nValidator,A,1,2\nValidator,"
                                            "B,1,,\n\"op\",d,s,1,\"thin\",\"\"\n")
                                  .value();
  CHECK(read.skipped_lines == 0);
  CHECK(read.file.entries().size() == 4);
  REQUIRE(read.warnings.size() == 3);
  CHECK(read.warnings[0].line == 1);
  CHECK(read.warnings[0].text == "column 5 may only say `thin`; its text is ignored");
  CHECK(read.warnings[1].line == 2);
  CHECK(read.warnings[1].text == "there are more than 5 columns; the others are ignored");
  CHECK(read.warnings[2].line == 4);
  CHECK(read.warnings[2].text == "a validator has 3 columns; the others are ignored");
  CHECK(read.file.find("op", "d")->thin);
}

TEST_CASE("an entry with a negative time is skipped with a warning that says so") {
  const parsed_results read = parse_results("op,a,s,-1\nop,b,Default,-0\n").value();
  CHECK(read.skipped_lines == 2);
  for (const auto& w : read.warnings)
    CHECK(w.text == "the time is negative, and must be 0 or more ms; the line is skipped");
}

TEST_CASE("a Default entry written by hand pins the default") {
  const results_file file = file_of("activations,16MiB_bf16,Default\n");
  CHECK(file.find("activations", "16MiB_bf16")->pins_default());
}

TEST_CASE("an existing entry wins over a new one") {
  results_file file = file_of("op,a,first,1\nop,a,second,0.5\n");
  CHECK(file.find("op", "a")->solution == "first");
  CHECK(file.add(result_entry{"op", "a", "third", 0.1}).value() == added::already_there);
  CHECK(file.entries().size() == 1);
  CHECK(parse_results("op,a,first,1\nop,a,second,0.5\n").value().warnings.at(0).line == 2);
}

TEST_CASE("a truncated file gives a warning and no truncated entry passes for a whole one") {
  const std::string whole = worked_case + "activations,16MiB_bf16,chunked(chunk_bytes=262144 in_flight=4),1.262\n";
  const results_file expected = file_of(whole);
  for (std::size_t length = 1; length < whole.size(); ++length) {
    const parsed_results read = parse_results(whole.substr(0, length)).value();
    if (whole[length - 1] != '\n') CHECK_FALSE(read.warnings.empty());
    for (const result_entry& e : read.file.entries()) {
      const result_entry* const written = expected.find(e.op, e.parameters);
      CHECK((e.time_ms == 0 || (written != nullptr && e.time_ms == written->time_ms)));
    }
    const result_entry* hit = read.file.find("activations", "16MiB_bf16");
    if (hit != nullptr && hit->solution != expected.find("activations", "16MiB_bf16")->solution) {
      const bool names_another_config = parse_config_id(hit->solution) && hit->solution.find('(') != std::string::npos;
      CHECK_FALSE(names_another_config);
    }
  }
}

TEST_CASE("entries whose times are no durations are skipped with a warning") {
  const parsed_results read =
      parse_results("op,a,s,fast\nop,b,s,-1\nop,c,s,nan\nop,d,s,inf\nop,e,s,1e999\nop,f,s,1ms\nop,g,s,\n").value();
  CHECK(read.file.entries().empty());
  CHECK(read.warnings.size() == 7);
}

TEST_CASE("an entry or validator that a file cannot hold is refused") {
  results_file file;
  CHECK_FALSE(file.add(result_entry{"a,b", "p", "s", 1}));
  CHECK_FALSE(file.add(result_entry{"a", "p\n", "s", 1}));
  CHECK_FALSE(file.add(result_entry{"a", "p", "", 1}));
  CHECK_FALSE(file.add(result_entry{"a", "p", "s", -1}));
  CHECK_FALSE(file.add(result_entry{"a", "p", "s", 1.0 / 0.0}));
  CHECK_FALSE(file.add(result_entry{"Validator", "p", "s", 1}));
  CHECK_FALSE(file.add(result_entry{"a", std::string(limits::line_bytes, 'p'), "s", 1}));
  CHECK_FALSE(file.add(validator{"a,b", "1"}));
  CHECK_FALSE(file.add(validator{"a", ""}));
  CHECK(file.entries().empty());
  CHECK(write_results(file).empty());
}

TEST_CASE("any bytes can be read, and the entries read are written and read again unchanged") {
  testing::generator random(23);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random.text(400, i % 3 == 0 ? "" : i % 3 == 1 ? "ab,1.\n\r -e" : "Validtor,\n\x01x9");
    const auto read = parse_results(text);
    REQUIRE(read);
    CHECK(file_of(write_results(read->file)) == read->file);
  }
}

TEST_CASE("a good file with any single changed byte can still be read") {
  testing::generator random(29);
  for (std::size_t place = 0; place < worked_case.size(); ++place) {
    for (int i = 0; i < 8; ++i) {
      std::string text = worked_case;
      text[place] = static_cast<char>(random.next());
      CHECK(parse_results(text));
    }
  }
}

TEST_CASE("random files read back as they were written") {
  testing::generator random(31);
  for (int i = 0; i < 300; ++i) {
    results_file file;
    for (std::size_t v = random.below(4); v > 0; --v) {
      (void)file.add(validator{after("v", random.text(4, "abc")), after("x", random.text(9, "0.1-a "))});
    }
    for (std::size_t e = random.below(30); e > 0; --e) {
      const double time_ms =
          static_cast<double>(random.next() >> random.below(64)) / static_cast<double>(1 + random.below(1U << 30U));
      (void)file.add(result_entry{after("op", random.text(3, "ab")), after("8", random.text(5, "0_B")),
                                  after("s", random.text(9, "(=) a1")), time_ms});
    }
    const parsed_results read = parse_results(write_results(file)).value();
    CHECK(read.file == file);
    CHECK(read.warnings.empty());
  }
}

TEST_CASE("long lines are skipped, warnings are listed up to a limit, and too many validators are refused") {
  const parsed_results long_line =
      parse_results("op,b,s,1," + std::string(limits::line_bytes, 'x') + "\nop,a,s,1\n").value();
  CHECK(long_line.warnings.size() == 1);
  CHECK(long_line.file.entries().size() == 1);

  const parsed_results short_lines = parse_results(std::string(5000, 'x') + "\n").value();
  CHECK(short_lines.warnings.size() == 1);
  std::string bad;
  for (int i = 0; i < 1000; ++i) bad += "x\n";
  const parsed_results noisy = parse_results(bad).value();
  CHECK(noisy.warnings.size() == limits::warnings + 1);
  CHECK(noisy.warnings.back().text == "900 more warnings are not listed");

  std::string validators;
  for (std::size_t i = 0; i <= limits::validators; ++i) validators += "Validator,v" + std::to_string(i) + ",1\n";
  CHECK(parse_results(validators).reason().kind == fault::too_many);
}

TEST_CASE("more than a million entries are refused") {
  std::string text;
  for (std::size_t i = 0; i <= limits::result_entries; ++i) text += "o," + std::to_string(i) + ",s\n";
  CHECK(parse_results(text).reason().kind == fault::too_many);
}

TEST_CASE("validators match only as equal sets, in any order") {
  const std::vector<validator> ab{{"A", "1"}, {"B", "2"}}, ba{{"B", "2"}, {"A", "1"}}, a{{"A", "1"}},
      other{{"A", "1"}, {"B", "3"}};
  CHECK_FALSE(compare_validators(ab, ba));
  CHECK_FALSE(compare_validators({}, {}));
  const auto extra = compare_validators(ab, a), lacking = compare_validators(a, ab),
             changed = compare_validators(ab, other);
  REQUIRE(extra);
  REQUIRE(lacking);
  REQUIRE(changed);
  CHECK(changed->kind == fault::validator_mismatch);
  CHECK(changed->text.find("validator B is 2 in the file and 3 here") == 0);
  CHECK(extra->text.find("validator B is 2 in the file and nothing here") == 0);
  CHECK(lacking->text.find("validator B is nothing in the file and 2 here") == 0);
}

TEST_CASE("a validator with two values in a file matches neither of them") {
  const results_file file = file_of("Validator,A,1\nValidator,A,2\n");
  const std::vector<validator> one{{"A", "1"}};
  const auto why = compare_validators(file.validators(), one);
  REQUIRE(why);
  CHECK(why->text.find("validator A is 1 and 2 in the file and 1 here") == 0);
}

TEST_CASE("two files merge, and the first file's entries win") {
  const results_file first = file_of("Validator,A,1\nop,a,x,1\nop,b,x,1\n"),
                     second = file_of("Validator,A,1\nop,b,y,2\nop,c,y,2\n");
  const merged_results both = merge_results(first, second).value();
  CHECK(both.conflicts.size() == 1);
  CHECK(both.conflicts[0].kept.solution == "x");
  CHECK(both.conflicts[0].refused.solution == "y");
  CHECK(write_results(both.file) == "Validator,A,1\nop,a,x,1\nop,b,x,1\nop,c,y,2\n");
  CHECK_FALSE(merge_results(first, file_of("Validator,A,2\nop,c,y,2\n")));
}

TEST_CASE("a pin wins in a merge of two files, whichever file has it") {
  const results_file measured = file_of("op,a,x,1\nop,b,x,1\n"), pinned = file_of("op,b,Default\n");
  for (const merged_results& both :
       {merge_results(measured, pinned).value(), merge_results(pinned, measured).value()}) {
    REQUIRE(both.file.find("op", "b") != nullptr);
    CHECK(both.file.find("op", "b")->pins_default());
    REQUIRE(both.conflicts.size() == 1);
    CHECK(both.conflicts[0].kept.pins_default());
    CHECK(both.conflicts[0].refused.solution == "x");
  }
}

TEST_CASE("the ordinal replaces the first %d, or stands before the last dot, or at the end") {
  CHECK(name_with_ordinal("results_%d_%d.csv", 3) == "results_3_%d.csv");
  CHECK(name_with_ordinal("tunableop_results.csv", 0) == "tunableop_results0.csv");
  CHECK(name_with_ordinal("a.b.csv", 12) == "a.b12.csv");
  CHECK(name_with_ordinal("results", 3) == "results3");
  CHECK(name_with_ordinal("./results", 3) == "./results3");
  CHECK(name_with_ordinal("folder.d/results", 3) == "folder.d/results3");
  CHECK(name_with_ordinal("", 3) == "3");
}

TEST_CASE("an entry that its reader has superseded gives way, unless it was changed since") {
  const results_file learned = file_of("op,a,new,1\nop,b,new,1\n");
  const std::vector<result_entry> superseded{{"op", "a", "old", 2}, {"op", "b", "old", 2}};
  const merged_results both = merge_results(file_of("op,a,old,2\nop,b,other,2\n"), learned, superseded).value();
  CHECK(write_results(both.file) == "op,a,new,1\nop,b,other,2\n");
  REQUIRE(both.conflicts.size() == 1);
  CHECK(both.conflicts[0].kept.parameters == "b");
}

TEST_CASE("two entries with one solution and different times do not conflict, and the first time stays") {
  const merged_results both = merge_results(file_of("op,a,x,2\n"), file_of("op,a,x,1\n")).value();
  CHECK(both.conflicts.empty());
  CHECK(both.file.find("op", "a")->time_ms == 2);
}

TEST_CASE("skipped lines are counted, and lines that are only unusual are not") {
  CHECK(parse_results("op,a\nop,b,s,fast\nop,c,s\nop,c,t\nop,d,s").value().skipped_lines == 2);
  CHECK(parse_results(std::string(limits::line_bytes + 1, 'x') + "\n").value().skipped_lines == 1);
  CHECK(parse_results(std::string("op,a\0b,s,1\n", 11)).value().skipped_lines == 1);
}

TEST_CASE("find_all returns the entries whose line begins with the given text") {
  const results_file file =
      file_of("acts/0>1,2MiB,x\nacts/0>1@0f,1MiB,x\nacts/0>10,1MiB,x\nacts/0>1,1MiB,x\nb,1MiB,x\n");
  const auto all = file.find_all("acts/0>1,");
  REQUIRE(all.size() == 2);
  CHECK(all[0]->parameters == "1MiB");
  CHECK(file.find_all("acts/0>1@").size() == 1);
  CHECK(file.find_all("c,").empty());
}

TEST_CASE("validators_digest ignores order and repetition, and name_with_mark inserts a mark before the extension") {
  const std::vector<validator> ab{{"A", "1"}, {"B", "2"}}, ba{{"B", "2"}, {"A", "1"}, {"A", "1"}},
      other{{"A", "1"}, {"B", "3"}};
  CHECK(validators_digest(ab) == validators_digest(ba));
  CHECK(validators_digest(ab) != validators_digest(other));
  CHECK(name_with_mark("./d.x/results0.csv", "for-1") == "./d.x/results0.for-1.csv");
  CHECK(name_with_mark("d.x/results", "for-1") == "d.x/results.for-1");
}

TEST_CASE("an entry that rests on little is marked as thin, and is read again as thin") {
  results_file file;
  REQUIRE(file.add(result_entry{"op", "1KiB", "direct", 0.25, true}));
  REQUIRE(file.add(result_entry{"op", "2KiB", "direct", 0.5}));
  CHECK(write_results(file) == "op,1KiB,direct,0.25,thin\nop,2KiB,direct,0.5\n");
  CHECK(parse_results(write_results(file)).value().file == file);
  CHECK_FALSE(parse_results("op,1KiB,direct,0.25,other\n").value().file.entries().front().thin);
  CHECK(parse_results("op,1KiB,direct,0.25,thin,more\n").value().file.entries().front().thin);
}

TEST_CASE("the solutions of the nearest keys are found, each once, the nearest first") {
  results_file file;
  for (const auto& [parameters, solution] : {std::pair("nt_8_8_8", "small"),
                                             {"nt_64_64_64", "middle"},
                                             {"nt_80_64_64", "middle"},
                                             {"nt_512_512_512", "large"},
                                             {"nt_64_64_64_ld_1_1_1", "other"},
                                             {"nt_70_64_64", "Default"}})
    REQUIRE(file.add({"gemm", parameters, solution, 1}));
  REQUIRE(file.add({"gemm_too", "nt_60_60_60", "foreign", 1}));
  CHECK(file.solutions_near("gemm", "nt_60_60_60", 8) == std::vector<std::string>{"middle", "small", "large"});
  CHECK(file.solutions_near("gemm", "nt_9_8_8", 1) == std::vector<std::string>{"small"});
  CHECK(file.solutions_near("nothing", "nt_9_8_8", 1).empty());
  CHECK(key_distance("n=8", "n=8") == 0);
  CHECK(key_distance("n=7 m=0", "n=15 m=0") == doctest::Approx(std::log(2)));
  CHECK(std::isinf(key_distance("n=8", "n")));
  CHECK(key_distance("", "") == 0);
}

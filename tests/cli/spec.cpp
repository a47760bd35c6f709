#include <parley/cli/spec/spec.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>

using namespace parley;
using cli::parse_spec;
using cli::spec;

namespace {

constexpr std::string_view good = R"json({
  "name": "test",
  "ranks": 4,
  "ops": [
    {"op": "pipeline", "name": "acts", "stages": [0, 1, 3], "dtype": "bf16",
     "configs": ["direct", "chunked(chunk_bytes=1MiB in_flight=4)"],
     "microbatches": [{"bytes": "16KiB", "count": 2}, {"bytes": 5, "count": 4}]},
    {"op": "transfer", "name": "pairs",
     "roles": {"sender": "rank % 2 == 0", "receiver": [1, 3]},
     "configs": ["direct"],
     "messages": [{"bytes": 0, "count": 1}]}
  ]
})json";

/// The good spec with one text replaced.
std::string with(std::string_view from, std::string_view to) {
  std::string text(good);
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string fault_in(std::string_view text, const cli::spec_overrides& overrides = {}) {
  try {
    parse_spec(text, "s.json", overrides);
  } catch (const cli::text_error& e) {
    return e.what();
  }
  return "none";
}

bool begins(const std::string& text, std::string_view start) {
  INFO(text);
  CHECK(text.starts_with(start));
  return text.starts_with(start);
}

}  // namespace

TEST_CASE("a spec becomes edges, configs and an interleaved list of sizes") {
  const spec job = parse_spec(good, "s.json", {});
  REQUIRE(job.ops.size() == 2);
  CHECK(job.ranks == 4);
  const cli::op_spec& pipe = job.ops[0];
  CHECK(pipe.kind == cli::op_kind::pipeline);
  CHECK(pipe.edges == std::vector<std::pair<runtime::rank_id, runtime::rank_id>>{{0, 1}, {1, 3}});
  CHECK(pipe.sizes == std::vector<std::uint64_t>{5, 16'384, 5, 5, 16'384, 5});
  CHECK(pipe.configs[1]->id() == "chunked(chunk_bytes=1048576 in_flight=4)");
  CHECK(job.ops[1].edges == std::vector<std::pair<runtime::rank_id, runtime::rank_id>>{{0, 1}, {2, 3}});
}

TEST_CASE("the command line may change the numbers of ranks and microbatches") {
  const spec job = parse_spec(with("[1, 3]", R"("rank % 2 == 1")"), "s.json", {.ranks = 6, .microbatches = 8});
  CHECK(job.ranks == 6);
  CHECK(job.ops[1].edges.size() == 3);
  CHECK(job.ops[0].sizes.size() == 8);
  CHECK(std::count(job.ops[0].sizes.begin(), job.ops[0].sizes.end(), 16'384) == 3);
}

TEST_CASE("text that is not JSON is reported with line and column") {
  begins(fault_in("{\n  \"name\": \"x\",\n  oops\n}"), "s.json:3:3: this is not JSON (");
  begins(fault_in(R"({"name": "x")"), "s.json:1:13: the JSON ends too early");
  begins(fault_in("{} {}"), "s.json:1:4: this is not JSON (");
  begins(fault_in(""), "s.json:1:1: ");
  begins(fault_in("[1, 2]"), "s.json:1:1: a spec must be an object");
}

namespace {

using edge_list = std::vector<std::pair<runtime::rank_id, runtime::rank_id>>;

/// A spec with one op, for four ranks.
std::string one_op(std::string_view op) { return R"({"name": "t", "ranks": 4, "ops": [)" + std::string(op) + "]}"; }
cli::op_spec op_in(std::string_view op, const cli::spec_overrides& overrides = {}) {
  return parse_spec(one_op(op), "s.json", overrides).ops.at(0);
}
std::string fault_of(std::string_view op) { return fault_in(one_op(op)); }

}  // namespace

TEST_CASE("a range of sizes stands for every doubling, including both ends") {
  const auto sizes = [](std::string_view range) {
    return op_in(
               R"({"op": "transfer", "name": "x", "edges": [[0, 1]], "configs": ["direct"], "messages": [{"bytes": ")" +
               std::string(range) + R"(", "count": 1}]})")
        .sizes;
  };
  CHECK(sizes("8KiB..64KiB") == std::vector<std::uint64_t>{8'192, 16'384, 32'768, 65'536});
  CHECK(sizes("3..20") == std::vector<std::uint64_t>{3, 6, 12, 20});
  CHECK(sizes("5..5") == std::vector<std::uint64_t>{5});
  for (const std::string_view wrong : {"8KiB..4KiB", "0..8", "8KiB..", "..8KiB", "1..8GiB", "1..2..3"}) {
    CAPTURE(wrong);
    const std::string fault = fault_of(
        R"({"op": "transfer", "name": "x", "edges": [[0, 1]], "configs": ["direct"], "messages": [{"bytes": ")" +
        std::string(wrong) + R"(", "count": 1}]})");
    CHECK(fault.find("a range of sizes goes from a smaller one to a larger one") != std::string::npos);
  }
}

TEST_CASE("a batch is declared as a ring or as edges") {
  const std::string rest = R"("configs": ["direct"], "messages": [{"bytes": 8, "count": 2}]})";
  CHECK(op_in(R"({"op": "p2p", "name": "x", "ring": [2, 0, 3], )" + rest).edges == edge_list{{2, 0}, {0, 3}, {3, 2}});
  CHECK(op_in(R"({"op": "p2p", "name": "x", "edges": [[0, 1], [1, 0]], )" + rest).edges == edge_list{{0, 1}, {1, 0}});
  begins(fault_of(R"({"op": "p2p", "name": "x", )" + rest), R"(s.json:1:35: give either "edges")");
  begins(fault_of(R"({"op": "p2p", "name": "x", "ring": [1], )" + rest),
         "s.json:1:70: a ring needs at least two ranks");
  begins(fault_of(R"({"op": "p2p", "name": "x", "ring": [1, 1], )" + rest), "s.json:1:74: rank 1 is listed twice");
}

TEST_CASE("a halo has an edge for each pair of different neighbours") {
  const auto edges = [](std::string_view more) {
    return op_in(
               R"({"op": "halo", "name": "x", "grid": [2, 2], "cells": [4, 4], "exchanges": 3, "configs": ["direct"])" +
               std::string(more) + "}")
        .edges;
  };
  CHECK(edges("") == edge_list{{0, 1}, {0, 2}, {1, 0}, {1, 3}, {2, 0}, {2, 3}, {3, 1}, {3, 2}});
  CHECK(edges(R"(, "periodic": [true, true])").size() == 8);  // the same edges: each neighbour is one on both sides
  CHECK(edges(R"(, "corners": true)").size() == 12);
  const auto fault = [](std::string_view has, std::string_view becomes) {
    std::string op =
        R"({"op": "halo", "name": "x", "grid": [2, 2], "cells": [4, 4], "width": [1, 1], "exchanges": 3, "configs": ["direct"]})";
    return fault_of(op.replace(op.find(has), has.size(), becomes));
  };
  CHECK(fault("[2, 2]", "[2, 3]").find("this grid has 6 blocks, and the world 4 ranks") != std::string::npos);
  CHECK(fault("[2, 2]", "[1]").find("a halo needs at least two ranks") != std::string::npos);
  CHECK(fault("[2, 2]", "[2, 1, 1, 1]").find("a grid has 1 to 3 dimensions") != std::string::npos);
  CHECK(fault("[4, 4]", "[4]").find("has one number for each dimension") != std::string::npos);
  CHECK(fault("[4, 4]", "[1000000, 1000000]").find("a block has at most 4GiB") != std::string::npos);
  CHECK(fault("[1, 1]", "[5, 1]").find("a rim is wider than the block") != std::string::npos);
}

TEST_CASE("a collective spans all ranks or groups, and a config that cannot do it is refused") {
  const auto calls = [](std::string_view more) {
    return R"({"op": "collective", "name": "x", "configs": ["star", "tree"], "calls": [{"bytes": 8, "count": 2}])" +
           std::string(more) + "}";
  };
  const cli::op_spec all = op_in(calls(""));
  CHECK(all.groups == std::vector<std::vector<runtime::rank_id>>{{0, 1, 2, 3}});
  CHECK(all.collects == ops::collective_kind::all_reduce);
  CHECK(all.group_configs.size() == 2);
  CHECK(all.edges.empty());
  CHECK(op_in(calls(R"(, "groups": [[3, 0], [1, 2]])")).groups.front().front() == 3);
  CHECK(fault_of(calls(R"(, "groups": [[3, 0], [1, 3]])")).find("rank 3 is in two groups") != std::string::npos);
  CHECK(fault_of(calls(R"(, "kind": "sum")")).find("unknown kind \"sum\"") != std::string::npos);
  CHECK(fault_of(R"({"op": "collective", "name": "x", "kind": "gather", "configs": ["star", "one_shot"],
                  "calls": [{"bytes": 8, "count": 2}]})")
            .find("config one_shot cannot do gather") != std::string::npos);
  CHECK(fault_of(R"({"op": "collective", "name": "x", "configs": ["direct"], "calls": [{"bytes": 8, "count": 2}]})")
            .find("config \"direct\" is unknown; known are star, chain") != std::string::npos);
  CHECK(fault_of(R"({"op": "collective", "name": "x", "configs": ["star"], "calls": [{"bytes": 7, "count": 2}]})")
            .find("give a multiple") != std::string::npos);
}

TEST_CASE("a training pipeline runs whole passes of its schedule") {
  const std::string op =
      R"({"op": "training_pipeline", "name": "x", "schedule": "1f1b", "microbatches": 8, "bytes": "1KiB", "passes": 3,
      "configs": ["direct"]})";
  const cli::op_spec pipe = op_in(op);
  CHECK(pipe.sizes == std::vector<std::uint64_t>(24, 1'024));
  CHECK(pipe.schedule.stages == 4);
  CHECK(pipe.edges.size() == 6);
  CHECK(op_in(op, {.ranks = {}, .microbatches = 9}).sizes.size() == 16);
  const auto with_schedule = [&](std::string_view schedule) {
    std::string text = op;
    return fault_of(text.replace(text.find("\"1f1b\""), 6, schedule));
  };
  CHECK(with_schedule("\"zigzag\"").find("known are 1f1b, gpipe and interleaved") != std::string::npos);
  CHECK(with_schedule("\"gpipe\", \"chunks\": 2").find("only the schedule \"interleaved\" has chunks") !=
        std::string::npos);
  CHECK(with_schedule("\"interleaved\", \"stages\": [0, 1, 2]").find("a multiple of 3 microbatches") !=
        std::string::npos);
}

TEST_CASE("the errors of unknown and repeated keys give their positions") {
  CHECK(fault_in(R"({"name": "t", "ranks/ops": 1, "ranks": {"ops": 2}})").find("unknown key \"ranks/ops\"") !=
        std::string::npos);

  begins(fault_in(with(R"("ranks": 4)", R"("rank": 4)")),
         R"(s.json:3:3: unknown key "rank"; known here are name, about, ranks, ops)");
  begins(fault_in(with(R"("stages")", R"("stage")")),
         R"(s.json:5:40: unknown key "stage"; known here are op, name, stages)");
  begins(fault_in(with(R"("ranks": 4)", R"("name": "y")")),
         R"(s.json:3:3: the key "name" is given here for the second time)");
  begins(fault_in(with(R"("count": 2)", R"("cuont": 2)")),
         R"(s.json:7:42: unknown key "cuont"; known here are bytes, count)");
}

TEST_CASE("columns count characters, not bytes") {
  begins(fault_in("{\"name\": \"\u00e4\u00f6\u00fc\", \"x\": 1}"), R"(s.json:1:17: unknown key "x")");
}

TEST_CASE("the errors of missing keys and wrong types say which keys and values are expected") {
  begins(fault_in(with(R"("name": "test",)", "")), R"(s.json:1:1: the key "name" is missing)");
  begins(fault_in(with(R"("ranks": 4,)", "")), R"(s.json:1:1: the key "ranks" is missing)");
  begins(fault_in(with(R"("ranks": 4)", R"("ranks": "4")")), "s.json:3:12: ranks must be a whole number, 1 to 256");
  begins(fault_in(with(R"("ranks": 4)", R"("ranks": 0)")), "s.json:3:12: ranks must be 1 to 256");
  begins(fault_in(with(R"("count": 2)", R"("count": -2)")), "s.json:7:51: a count must be 1 to 1000000");
  begins(fault_in(with(R"("16KiB")", R"("16 bananas")")), "s.json:7:33: ");
  begins(
      fault_in(with(R"("pipeline")", R"("pipelines")")),
      R"(s.json:5:12: unknown op "pipelines"; known are pipeline, transfer, p2p, halo, collective and training_pipeline)");
  begins(fault_in(with(R"("pairs")", R"("acts")")), R"(s.json:8:32: there is another op called "acts")");
  begins(fault_in(with(R"("pairs")", R"("a,b")")), "s.json:8:32: ");
}

TEST_CASE("an unknown, repeated or invalid config is an error, and so is an empty catalogue") {
  const std::string unknown = fault_in(with(R"("direct", )", R"("direct", "zigzag", )"));
  begins(unknown, R"(s.json:6:28: config "zigzag" is unknown)");
  CHECK(unknown.find("known are direct, chunked(") != std::string::npos);
  begins(fault_in(with(R"(["direct"],)", "[],")), "s.json:10:17: the catalogue is empty");
  begins(fault_in(with(R"(["direct"],)", R"(["direct", "direct"],)")), "s.json:10:28: config direct is listed twice");
  begins(fault_in(with("chunk_bytes=1MiB", "chunk_bytes=0")),
         R"x(s.json:6:28: config "chunked(chunk_bytes=0 in_flight=4)")x");
}

TEST_CASE("a list of more than 1000 entries is refused") {
  std::string entries;
  for (int i = 0; i < 1'001; ++i) entries += std::string(i == 0 ? "" : ", ") + R"({"bytes": 8, "count": 1})";
  const std::string text =
      R"({"name": "x", "ranks": 2, "ops": [{"op": "transfer", "name": "a", "roles": {"sender": [0], "receiver": [1]},
    "configs": ["direct"], "messages": [)" +
      entries + "]}]}";
  CHECK(fault_in(text).find("more than 1000 entries") != std::string::npos);
}

TEST_CASE("ranks out of range, stages in use and self-sends are errors") {
  begins(fault_in(with("[0, 1, 3]", "[0, 1, 4]")), "s.json:5:57: rank 4 is outside the world of 4; ranks are 0 to 3");
  begins(fault_in(with("[0, 1, 3]", "[0, 0, 3]")), "s.json:5:54: rank 0 has a stage already");
  begins(fault_in(with(R"(["direct"],)", R"(["put"],)")), "s.json:10:18: config put cannot be the default");
  begins(fault_in(with("[0, 1, 3]", "[0]")), "s.json:5:50: a pipeline needs at least two stages");
  begins(fault_in(good, {.ranks = 2}), "s.json:5:57: rank 3 is outside the world of 2");
  const std::string roles = R"("roles": {"sender": "rank % 2 == 0", "receiver": [1, 3]})";
  begins(fault_in(with(roles, R"("edges": [[0, 1], [2, 2]])")), "s.json:9:24: rank 2 would send to itself");
  begins(fault_in(with(roles, R"("edges": [[0, 1], [0, 1]])")), "s.json:9:24: this edge is listed twice");
  begins(fault_in(with(roles, R"("edges": [[0, 1, 2]])")), "s.json:9:16: an edge has two ends");
}

TEST_CASE("the error of an edge with two senders or no receiver names the ranks") {
  const std::string two = fault_in(with("[1, 3]", "[1]"));
  begins(two, "s.json:9:15: op pairs: in a world of 4 the senders are 0, 2 and the receivers 1;");
  begins(fault_in(with("[1, 3]", R"("rank > 9")")),
         "s.json:9:15: op pairs: in a world of 4 the senders are 0, 2 and the receivers none;");
  begins(fault_in(with("[1, 3]", "[2, 3]")), "s.json:9:55: rank 2 is a sender too");
}

TEST_CASE("the error of a role expression that does not parse points at the character") {
  begins(fault_in(with("rank % 2 == 0", "rank % 2 === 0")), "s.json:9:38: role expression: expected a number");
  begins(fault_in(with("rank % 2 == 0", "rank / (rank - rank)")), "s.json:9:32: role expression: this divides by zero");
  begins(fault_in(with("[1, 3]", "true")), "s.json:9:55: a role is a list of ranks such as [0, 2], or an expression");
}

TEST_CASE("the error of a missing spec names that spec and an example that exists") {
  try {
    cli::read_spec("no/such/spec.json", {});
    FAIL("it was read");
  } catch (const cli::text_error& e) {
    begins(e.what(), "no/such/spec.json: ");
    CHECK(std::string(e.what()).find("examples/specs/send-recv.json") != std::string::npos);
  }
}

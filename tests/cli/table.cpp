#include <parley/cli/table.hpp>

#include <boost/json/parse.hpp>
#include <doctest/doctest.h>

#include <string>
#include <string_view>

using namespace parley;

namespace {

// Two keys of one edge: trials decided the first, and rank 1 ran its part of a mixture in them; the second is open.
constexpr const char* document = R"json({
  "agreements": [
    {"op": "activations", "sender": 0, "receiver": 1, "participants": [0, 1], "key": "16MiB", "decided": true, "from_results": false,
     "decision": "chunked(chunk_bytes=262144)", "why": "it is the fastest; the default takes twice as long",
     "proposed_by": 3, "decision_time_ns": 1.5e6, "default_time_ns": 3e6, "trials": 9, "cost_ns": 2e6,
     "time_to_agreement_ns": 5e9, "invocations_until_agreement": 42,
     "trials_in_stream": [{"what": "default", "count": 42}],
     "candidates": [
       {"config": "direct", "time_ns": 3e6, "repetitions": 7, "status": "measured",
        "ranks": [{"rank": 0, "time_ns": 2.25e6}, {"rank": 1, "time_ns": 2.75e6}]},
       {"config": "chunked(chunk_bytes=262144)", "time_ns": 1.5e6, "repetitions": 8, "status": "measured",
        "ranks": [{"rank": 0, "time_ns": 1.125e6}, {"rank": 1, "time_ns": 1.375e6, "ran": "get"}]},
       {"config": "put", "time_ns": null, "repetitions": 0, "status": "excluded"}]},
    {"op": "activations", "sender": 0, "receiver": 1, "participants": [0, 1], "key": "8KiB", "decided": false, "from_results": false,
     "decision": "direct", "why": "not said", "proposed_by": null, "decision_time_ns": null, "default_time_ns": null,
     "trials": 0, "cost_ns": 0, "time_to_agreement_ns": null, "invocations_until_agreement": null,
     "trials_in_stream": [], "candidates": []}],
  "ranks": 2, "invocations": 60, "wall_ns": 6e9, "mismatches": 0, "unpaired": 0, "outputs_match": true,
  "outputs_differ": false, "outputs_compared": 60, "outputs_expected": 60, "control_messages": 20,
  "control_messages_to_outsiders": 0, "repeated_messages": 2, "flow_messages": 4, "barriers": 0, "copied_bytes": 0})json";

std::string line_with(const std::string& text, std::string_view part) {
  const auto at = text.find(part);
  if (at == std::string::npos) return {};
  const auto begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

}  // namespace

TEST_CASE("the table of a job names the rank that proposed a winner, the time on each rank, and the reason") {
  const std::string text = cli::tables(boost::json::parse(document).as_object());
  CAPTURE(text);
  CHECK(text.starts_with("activations 0->1\n"));
  CHECK(line_with(text, "  16MiB: proposed") ==
        "  16MiB: proposed by rank 3, 1.12 ms on rank 0, 1.38 ms on rank 1 with get; it is the fastest; the default "
        "takes twice as long");
  CHECK(text.find("not said") == std::string::npos);  // the open key has no decision, so no reason is missing
}

TEST_CASE("the table of a job shows the agreement of each key, the time of each candidate, and the cost") {
  const std::string text = cli::tables(boost::json::parse(document).as_object());
  CAPTURE(text);
  const std::string agreed = line_with(text, "chunked(chunk_bytes=262144)");
  for (const char* part : {"16MiB", "1.50 ms", "3.00 ms", " 9 ", "2.00 ms", "5.00 s", "42"})
    CHECK_MESSAGE(agreed.find(part) != std::string::npos, part);
  CHECK(line_with(text, "  8KiB").find("(not yet: c0 runs)") != std::string::npos);
  CHECK(line_with(text, "3.00 ms x7").find("direct") != std::string::npos);
  CHECK(line_with(text, "1.50 ms x8").find("chunked(chunk_bytes=262144)") != std::string::npos);
  CHECK(line_with(text, "excluded").find("put") != std::string::npos);
  CHECK(text.find("2 ranks, 60 invocations in 6.00 s: 0 mismatches") != std::string::npos);
}

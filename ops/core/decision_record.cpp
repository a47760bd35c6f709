#include <parley/ops/core/decision_record.hpp>

#include <parley/actors/agreement/participant.hpp>
#include <parley/runtime/record/json_words.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace parley::ops {

using runtime::in_quotes;
using runtime::measured;

std::string name_of(const actors::participant_state& knows, std::uint64_t digest) {
  const std::string* const id = knows.id_of(digest);
  return id == nullptr ? std::to_string(digest) : *id;
}

namespace {

candidate_evidence evidence_of(const actors::participant_state& knows, const actors::wire_evidence& e) {
  const auto named = [&](std::uint64_t digest) {
    return digest == e.digest && !e.config.empty() ? e.config : name_of(knows, digest);
  };
  candidate_evidence all;
  all.config = named(e.digest);
  all.digest = e.digest;
  all.time_ns = e.time_ns;
  all.repetitions = e.repetitions;
  all.status = e.status;
  all.detail = e.detail;
  all.spread_ns = e.spread_ns;
  all.proposer = e.proposer;
  all.expected = {e.expected_ns, e.expected_low_ns, e.expected_high_ns};
  for (const actors::wire_own_time& t : e.ranks)
    all.ranks.push_back({t.rank, t.time_ns, t.fastest_ns, t.spread_ns, t.repetitions, t.status, named(t.ran)});
  return all;
}

}  // namespace

decision decision_of(const actors::participant_state& knows, const actors::decision_record& r, rank_id self) {
  decision d;
  d.op = knows.declaration.title();
  d.key = r.key;
  d.decided = true;
  d.digest = r.digest;
  d.config = name_of(knows, r.digest);
  d.why = r.why;
  d.source = r.source;
  d.confidence = r.confidence;
  d.here = d.config;
  for (const rank_id of : r.participants) {
    const auto has_it = [of](const actors::wire_part& p) {
      return std::find(p.ranks.begin(), p.ranks.end(), of) != p.ranks.end();
    };
    const auto part = std::find_if(r.parts.begin(), r.parts.end(), has_it);
    d.ranks.push_back({of, part == r.parts.end() ? d.config : part->config});
    if (of == self) d.here = d.ranks.back().config;
  }
  d.search = r.search;
  d.version = r.version;
  d.trials = r.trials;
  d.cost_ns = r.cost_ns;
  d.left_out = r.left_out;
  for (const actors::wire_evidence& e : r.evidence) {
    d.evidence.push_back(evidence_of(knows, e));
    if (e.digest == d.digest && (e.status == "measured" || e.status == "remembered")) d.time_ns = e.time_ns;
  }
  return d;
}

std::vector<std::string> lines_of(const decision& d, unsigned verbosity) {
  std::vector<std::string> lines;
  if (verbosity < 2) return lines;
  lines.push_back(fmt::format("{} {}: {}", d.op, d.key, d.why));
  if (verbosity < 3) return lines;
  for (const candidate_evidence& c : d.evidence) {
    lines.push_back(fmt::format("  config {}: {}, {} repetitions, {}{}{}", c.config,
                                c.time_ns > 0 ? fmt::format("{:.6g} ms", c.time_ns / 1e6) : "not timed", c.repetitions,
                                c.status, c.detail.empty() ? "" : ", ", c.detail));
  }
  return lines;
}

namespace {

void write(std::string& text, const candidate_evidence& c) {
  const auto out = std::back_inserter(text);
  fmt::format_to(
      out, R"({{"config":{},"time_ns":{},"spread_ns":{},"repetitions":{},"status":{},"detail":{},"proposed_by":{})",
      in_quotes(c.config), measured(c.time_ns), measured(c.spread_ns), c.repetitions, in_quotes(c.status),
      in_quotes(c.detail), c.proposer);
  if (c.expected.time_ns > 0)
    fmt::format_to(out, R"(,"expected_ns":{},"expected_low_ns":{},"expected_high_ns":{})", measured(c.expected.time_ns),
                   measured(c.expected.low_ns), measured(c.expected.high_ns));
  text += R"(,"ranks":[)";
  for (const rank_time& t : c.ranks) {
    fmt::format_to(out, R"({}{{"rank":{},"time_ns":{},"fastest_ns":{},"spread_ns":{},"repetitions":{},"status":{})",
                   &t == c.ranks.data() ? "" : ",", t.rank, measured(t.median_ns), measured(t.fastest_ns),
                   measured(t.spread_ns), t.repetitions, in_quotes(t.status));
    if (!t.ran.empty() && t.ran != c.config) fmt::format_to(out, R"(,"ran":{})", in_quotes(t.ran));
    text += '}';
  }
  text += "]}";
}

}  // namespace

std::string json_of(const decision& d) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out,
                 R"({{"op":{},"key":{},"config":{},"time_ns":{},"confidence":"{}","search":{},"trials":{},)"
                 R"("cost_ns":{},"left_out":{},"why":{},"ranks":[)",
                 in_quotes(d.op), in_quotes(d.key), in_quotes(d.config), measured(d.time_ns),
                 tuning::name(d.confidence), d.search, d.trials, measured(d.cost_ns), d.left_out, in_quotes(d.why));
  for (const rank_part& p : d.ranks)
    fmt::format_to(out, R"({}{{"rank":{},"config":{}}})", &p == d.ranks.data() ? "" : ",", p.rank, in_quotes(p.config));
  text += R"(],"candidates":[)";
  for (const candidate_evidence& c : d.evidence) {
    if (&c != d.evidence.data()) text += ',';
    write(text, c);
  }
  return text + "]}";
}

}  // namespace parley::ops

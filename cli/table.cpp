#include <parley/cli/table.hpp>

#include <parley/cli/job_summary.hpp>

#include <boost/json/array.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace parley::cli {

namespace json = boost::json;

std::string aligned(const table_rows& all, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const auto& row : all) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : all) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i < left ? fmt::format(" {:<{}} ", row[i], widths[i]) : fmt::format(" {:>{}} ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

namespace {

using rows = table_rows;

std::string duration(double ns) {
  if (ns < 1e6) return fmt::format("{:.1f} us", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.2f} s", ns / 1e9);
}
std::string duration(const json::value& ns) { return ns.is_null() ? "-" : duration(ns.to_number<double>()); }
std::string count(const json::value& n) { return n.is_null() ? "-" : std::to_string(n.to_number<std::uint64_t>()); }
std::string text(const json::value& v) { return std::string(v.as_string()); }

std::string edge_of(const json::object& a) { return text(a.at("op")) + " " + ranks_of(a); }

std::string decision_of(const json::object& a) {
  if (!a.at("decided").as_bool()) return "(not yet: c0 runs)";
  return text(a.at("decision")) + (a.at("from_results").as_bool() ? " (from results)" : "");
}

using agreements = std::vector<const json::object*>;

std::string what_was_agreed(const agreements& of_edge) {
  rows all{{"key", "agreed on", "its time", "c0's time", "trials", "cost", "agreed after", "microbatches"}};
  for (const json::object* a : of_edge) {
    all.push_back({text(a->at("key")), decision_of(*a), duration(a->at("decision_time_ns")),
                   duration(a->at("default_time_ns")), count(a->at("trials")), duration(a->at("cost_ns")),
                   duration(a->at("time_to_agreement_ns")), count(a->at("invocations_until_agreement"))});
  }
  return aligned(all, 2);
}

const json::object* candidate(const json::object& agreement, std::string_view config) {
  for (const json::value& c : agreement.at("candidates").as_array()) {
    if (c.at("config").as_string() == config) return &c.as_object();
  }
  return nullptr;
}

std::string measured(const json::object* c) {
  if (c == nullptr) return "-";
  if (c->at("time_ns").is_null()) return text(c->at("status"));
  return fmt::format("{} x{}", duration(c->at("time_ns")), count(c->at("repetitions")));
}

std::string what_candidates_took(const agreements& of_edge) {
  const bool tried = std::any_of(of_edge.begin(), of_edge.end(),
                                 [](const json::object* a) { return a->at("trials").to_number<std::uint64_t>() != 0; });
  if (!tried) return "";
  rows all{{"candidate (median x repetitions)"}};
  for (const json::object* a : of_edge) all[0].push_back(text(a->at("key")));
  for (const json::value& c : of_edge.front()->at("candidates").as_array()) {
    std::vector<std::string> row{text(c.at("config"))};
    for (const json::object* a : of_edge) row.push_back(measured(candidate(*a, c.at("config").as_string())));
    all.push_back(std::move(row));
  }
  return "\n" + aligned(all, 1);
}

/// One line per key: the rank that proposed the winner, each rank's times of it, and the reason why it won.
std::string why_it_won(const agreements& of_edge) {
  std::string lines;
  for (const json::object* a : of_edge) {
    if (!a->at("decided").as_bool()) continue;
    std::string ranks;
    const json::object* winner = candidate(*a, a->at("decision").as_string());
    const json::value* own = winner == nullptr ? nullptr : winner->if_contains("ranks");
    if (own != nullptr) {
      for (const json::value& r : own->as_array()) {
        const json::value* const ran = r.as_object().if_contains("ran");  // the config that the rank ran in a mixture
        ranks += fmt::format(", {} on rank {}{}", duration(r.at("time_ns")), count(r.at("rank")),
                             ran == nullptr ? "" : " with " + text(*ran));
      }
    }
    const json::value* proposer = a->if_contains("proposed_by");
    if (proposer != nullptr && !proposer->is_null())
      ranks = fmt::format("proposed by rank {}", count(*proposer)) + ranks;
    lines += fmt::format("  {}: {}{}\n", text(a->at("key")), ranks.empty() ? "" : ranks + "; ", text(a->at("why")));
  }
  return lines.empty() ? "" : "\n  why:\n" + lines;
}

std::string how_it_went(const agreements& of_edge) {
  std::string lines;
  for (const json::object* a : of_edge) {
    std::vector<stream_run> runs;
    for (const json::value& r : a->at("trials_in_stream").as_array())
      runs.push_back({text(r.at("what")), r.at("count").to_number<std::uint64_t>()});
    lines += fmt::format("  {}: {}\n", text(a->at("key")), to_string(runs));
  }
  return "\n  in the stream of microbatches:\n" + lines;
}

std::string what_came_out(const json::object& document) {
  if (document.at("outputs_match").as_bool()) return "equal a single process's, bit for bit";
  if (document.at("outputs_differ").as_bool()) return "DIFFER from a single process's";
  const std::uint64_t compared = document.at("outputs_compared").to_number<std::uint64_t>();
  if (compared == 0) return "never came, and nothing was compared";
  return fmt::format("came {} of {} times, and those equal a single process's", compared,
                     count(document.at("outputs_expected")));
}

}  // namespace

std::string ranks_of(const json::object& agreement) {
  std::string all;
  for (const json::value& r : agreement.at("participants").as_array()) all += (all.empty() ? "" : "->") + count(r);
  return all;
}

std::string tables(const json::object& document) {
  std::vector<agreements> edges;
  for (const json::value& v : document.at("agreements").as_array()) {
    const json::object& a = v.as_object();
    const auto same = std::find_if(edges.begin(), edges.end(),
                                   [&](const agreements& e) { return edge_of(*e.front()) == edge_of(a); });
    (same == edges.end() ? edges.emplace_back() : *same).push_back(&a);
  }
  std::string all;
  for (const agreements& e : edges) {
    all += fmt::format("{}\n{}{}{}{}\n", edge_of(*e.front()), what_was_agreed(e), what_candidates_took(e),
                       why_it_won(e), how_it_went(e));
  }
  all += fmt::format("{} ranks, {} invocations in {}: {} mismatches, {} unpaired; outputs {}\n"
                     "{} control messages ({} to ranks outside an op, {} sent again), {} of flow control, {} barriers, "
                     "{} payload bytes copied\n",
                     count(document.at("ranks")), count(document.at("invocations")), duration(document.at("wall_ns")),
                     count(document.at("mismatches")), count(document.at("unpaired")), what_came_out(document),
                     count(document.at("control_messages")), count(document.at("control_messages_to_outsiders")),
                     count(document.at("repeated_messages")), count(document.at("flow_messages")),
                     count(document.at("barriers")), count(document.at("copied_bytes")));
  return all;
}

}  // namespace parley::cli

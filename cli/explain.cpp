#include <parley/cli/explain.hpp>
#include <parley/cli/lines.hpp>
#include <parley/cli/table.hpp>
#include <parley/ops/job/evidence_file.hpp>
#include <parley/transports/files/file_storage.hpp>
#include <parley/tuning/planners/statistics.hpp>
#include <parley/tuning/text.hpp>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

namespace parley::cli {

namespace json = boost::json;

namespace {

constexpr int status_no_such_key = 1;
constexpr int status_wrong = 2;

/// One candidate of a decision, on all ranks or on one. A line of the file may lack any member, because other versions may write it.
struct measurement {
  explicit measurement(const json::object& from) : from_(from) {}

  std::string text(std::string_view name) const {
    const json::value* const v = from_.if_contains(name);
    return v != nullptr && v->is_string() ? std::string(v->as_string()) : std::string();
  }
  std::optional<double> number(std::string_view name) const {
    const json::value* const v = from_.if_contains(name);
    if (v == nullptr || !v->is_number()) return std::nullopt;
    return v->to_number<double>();
  }
  std::string whole(std::string_view name) const {
    const auto n = number(name);
    return n ? fmt::format("{:.0f}", *n) : "-";
  }
  std::string time(std::string_view name) const {
    const auto ns = number(name);
    return ns && *ns > 0 ? tuning::time_text(*ns) : "-";
  }
  std::vector<measurement> list(std::string_view name) const {
    std::vector<measurement> all;
    const json::value* const v = from_.if_contains(name);
    if (v == nullptr || !v->is_array()) return all;
    for (const json::value& each : v->as_array()) {
      if (each.is_object()) all.emplace_back(each.as_object());
    }
    return all;
  }

 private:
  const json::object& from_;
};

struct recorded {
  std::string path;
  json::object decision;
  std::string key() const {
    const measurement m(decision);
    return m.text("op") + "," + m.text("key");
  }
};

/// All records of the files. Returns nothing if a file cannot be read at all, after a complaint.
std::optional<std::vector<recorded>> read(const std::vector<std::string>& files) {
  std::vector<recorded> all;
  transports::file_storage disk;
  for (const std::string& file : files) {
    const std::string path = file.ends_with(ops::evidence_of("")) ? file : ops::evidence_of(file);
    const auto text = disk.read(path);
    if (!text) {
      const bool missing = text.code() == runtime::errc::unavailable;
      complain(missing
                   ? path + ": there is no such file; a job writes it beside its results file when its trials decide"
                   : text.reason().text());
      return std::nullopt;
    }
    std::string_view rest(*text);
    for (std::size_t number = 1; !rest.empty(); ++number) {
      const std::string_view written = tuning::take_until('\n', rest);
      if (written.empty()) continue;
      boost::system::error_code wrong;
      json::value line = json::parse(written, wrong);
      if (!wrong && line.is_object())
        all.push_back({path, std::move(line.as_object())});
      else
        complain(fmt::format("{}:{}: the line is not a record of a decision, and is ignored", path, number));
    }
  }
  return all;
}

std::string and_list(const std::vector<measurement>& ranks) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i) text += (i == 0 ? "" : " ") + ranks[i].whole("rank");
  if (ranks.size() > most) text += fmt::format(" and {} more", ranks.size() - most);
  return text;
}

void explain(const recorded& r) {
  const measurement d(r.decision);
  const auto ranks = d.list("ranks");
  const auto candidates = d.list("candidates");
  say(r.key() + ": " + d.text("config"));
  say("  " + d.text("why"));
  say(fmt::format("  rank{} {} took part; confidence: {}; search {}; {} trials, which cost {}",
                  ranks.size() == 1 ? "" : "s", and_list(ranks), d.text("confidence"), d.whole("search"),
                  d.whole("trials"), d.time("cost_ns")));
  if (d.number("left_out").value_or(0) > 0)
    say("  " + d.whole("left_out") +
        " candidates are not listed: they were not tried, not among the best, or there was no room");
  say("");
  table_rows all{{"", "config", "status", "time", "spread", "runs", "expected"}};
  for (const measurement& c : candidates) {
    const bool is_expected = c.number("expected_ns").value_or(0) > 0;
    const std::string expected = is_expected ? fmt::format("{} ({} to {})", c.time("expected_ns"),
                                                           c.time("expected_low_ns"), c.time("expected_high_ns"))
                                             : "-";
    all.push_back({c.text("config") == d.text("config") ? "*" : "", c.text("config"), c.text("status"),
                   c.time("time_ns"), c.time("spread_ns"), c.whole("repetitions"), expected});
  }
  say(aligned(all, 3));
  for (const measurement& c : candidates) {
    if (!c.text("detail").empty()) say("  " + c.text("config") + ": " + c.text("detail"));
  }
  table_rows by_rank{{"config", "status", "rank", "median", "fastest", "spread", "runs"}};
  for (const measurement& c : candidates) {
    for (const measurement& t : c.list("ranks")) {
      const std::string ran = t.text("ran").empty() ? "" : ", ran " + t.text("ran");
      by_rank.push_back({c.text("config") + ran, t.text("status"), t.whole("rank"), t.time("time_ns"),
                         t.time("fastest_ns"), t.time("spread_ns"), t.whole("repetitions")});
    }
  }
  if (by_rank.size() > 1) say(aligned(by_rank, 2));
}

/// The records whose key is `key`, or, if there are none, those whose key contains it.
std::vector<const recorded*> find(const std::vector<recorded>& all, const std::string& key) {
  std::vector<const recorded*> some;
  for (const recorded& r : all) {
    if (r.key() == key) some.push_back(&r);
  }
  if (!some.empty()) return some;
  for (const recorded& r : all) {
    if (r.key().find(key) != std::string::npos) some.push_back(&r);
  }
  return some;
}

struct score {
  std::size_t expected = 0, in_range = 0, not_tried = 0;
  std::vector<double> errors;
};

std::map<std::string, score> score_each(const std::vector<recorded>& all) {
  std::map<std::string, score> of_ops;
  for (const recorded& r : all) {
    const measurement d(r.decision);
    for (const measurement& c : d.list("candidates")) {
      const double expected = c.number("expected_ns").value_or(0), took = c.number("time_ns").value_or(0);
      if (!(expected > 0)) continue;
      score& its = of_ops[d.text("op")];
      if (c.text("status") == "hopeless") ++its.not_tried;
      if (!(took > 0)) continue;
      ++its.expected;
      if (took >= c.number("expected_low_ns").value_or(0) && took <= c.number("expected_high_ns").value_or(0))
        ++its.in_range;
      its.errors.push_back(std::max(took / expected, expected / took) - 1);
    }
  }
  return of_ops;
}

}  // namespace

int explain_results(const std::string& key, const std::vector<std::string>& files, output_format format) {
  const auto all = read(files);
  if (!all) return status_wrong;
  const auto meant = find(*all, key);
  if (format == output_format::json) {
    json::array records;
    for (const recorded* r : meant) {
      json::object one{{"file", r->path}};
      for (const auto& member : r->decision) one.insert(member);
      records.push_back(std::move(one));
    }
    say(json::serialize(json::object{{"records", std::move(records)}}));
  } else {
    for (const recorded* r : meant) {
      if (files.size() > 1) say(r->path);
      explain(*r);
    }
  }
  if (!meant.empty()) return 0;
  constexpr std::size_t most = 10;
  std::string known;
  for (std::size_t i = 0; i < std::min(all->size(), most); ++i) known += "\n  " + (*all)[i].key();
  if (all->size() > most) known += fmt::format("\n  and {} more", all->size() - most);
  complain("no decision has a key with `" + key + "`" +
           (known.empty() ? "; the files hold no decisions" : "; there are decisions for" + known));
  return status_no_such_key;
}

int score_model(const std::vector<std::string>& files, output_format format) {
  const auto all = read(files);
  if (!all) return status_wrong;
  table_rows rows{{"op", "times", "in range", "median error", "worst error", "not tried"}};
  json::array list;
  for (const auto& [op, s] : score_each(*all)) {
    const double median = s.errors.empty() ? 0 : tuning::median(s.errors);
    const double worst = s.errors.empty() ? 0 : *std::max_element(s.errors.begin(), s.errors.end());
    rows.push_back({op, std::to_string(s.expected), std::to_string(s.in_range), fmt::format("{:.1f} %", 100 * median),
                    fmt::format("{:.1f} %", 100 * worst), std::to_string(s.not_tried)});
    list.push_back(json::object{{"op", op},
                                {"times", s.expected},
                                {"in_range", s.in_range},
                                {"median_error", median},
                                {"worst_error", worst},
                                {"not_tried", s.not_tried}});
  }
  if (format == output_format::json) {
    say(json::serialize(json::object{{"ops", std::move(list)}}));
  } else if (rows.size() == 1) {
    say("nothing was expected before it was measured; that needs decisions of one op for several sizes");
  } else {
    say(aligned(rows, 1));
  }
  return 0;
}

}  // namespace parley::cli

#include <parley/cli/results.hpp>

#include <parley/cli/lines.hpp>
#include <parley/cli/table.hpp>
#include <parley/machine.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/run.hpp>
#include <parley/runtime/version.hpp>
#include <parley/transports/files/file_storage.hpp>
#include <parley/tuning/results/results.hpp>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

namespace parley::cli {

namespace json = boost::json;
using tuning::parsed_results;

namespace {

constexpr int status_not_for_here = 1;
constexpr int status_not_written = 1;
constexpr int status_wrong = 2;
constexpr std::string_view world_validator = "PARLEY_WORLD";

void print(const json::object& document) { std::printf("%s\n", json::serialize(document).c_str()); }

/// A file that was read, or the reason why it could not be read.
struct read_file {
  std::string path;
  std::optional<parsed_results> content;
  std::string why_not;
};

/// A hint for a user who names the file that the job's settings name, while only the files of the job's ranks exist. Empty otherwise.
std::string files_of_ranks(const std::string& path) {
  const std::string of_rank_0 = tuning::name_with_ordinal(path, 0);
  std::error_code unreadable;
  const bool instead = !std::filesystem::exists(path, unreadable) && std::filesystem::exists(of_rank_0, unreadable);
  return instead ? "; each rank has a file of its own, " + of_rank_0 + " and so on" : "";
}

read_file read(const std::string& path) {
  transports::file_storage disk;
  const auto text = disk.read(path);
  if (!text) return {path, std::nullopt, text.reason().text() + files_of_ranks(path)};
  auto parsed = tuning::parse_results(*text);
  if (!parsed) return {path, std::nullopt, path + ": " + parsed.reason().text};
  return {path, std::move(parsed).value(), {}};
}

std::vector<read_file> read_all(const std::vector<std::string>& paths) {
  std::vector<read_file> all;
  for (const std::string& path : paths) all.push_back(read(path));
  return all;
}

void complain_of_lines(const read_file& f) {
  for (const auto& w : f.content->warnings)
    complain(w.line == 0 ? f.path + ": " + w.text : fmt::format("{}:{}: {}", f.path, w.line, w.text));
}

json::array warnings_of(const read_file& f) {
  json::array list;
  if (!f.content) return list;
  for (const auto& w : f.content->warnings) list.push_back(json::object{{"line", w.line}, {"text", w.text}});
  return list;
}

json::array validators_of(const read_file& f) {
  json::array list;
  if (!f.content) return list;
  for (const auto& v : f.content->file.validators()) list.push_back(json::object{{"name", v.name}, {"value", v.value}});
  return list;
}

json::object entry_json(const tuning::result_entry& e) {
  return {{"op", e.op}, {"parameters", e.parameters}, {"solution", e.solution}, {"time_ms", e.time_ms}};
}

json::object shown(const read_file& f) {
  json::array entries;
  if (f.content) {
    for (const auto& e : f.content->file.entries()) entries.push_back(entry_json(e));
  }
  return {{"path", f.path},
          {"validators", validators_of(f)},
          {"entries", std::move(entries)},
          {"warnings", warnings_of(f)},
          {"error", f.why_not}};
}

void show(const read_file& f) {
  say(f.path);
  table_rows validators;
  for (const auto& v : f.content->file.validators()) validators.push_back({"validator", v.name, v.value});
  table_rows entries{{"op", "key", "config", "ms"}};
  for (const auto& e : f.content->file.entries())
    entries.push_back({e.op, e.parameters, e.solution, e.time_ms > 0 ? fmt::format("{:.6g}", e.time_ms) : "-"});
  say(aligned(validators, 3) + aligned(entries, 3));
}

/// True for a file with results of kernels only, which are valid for any number of ranks.
bool is_of_kernels(const tuning::results_file& file) {
  const auto& entries = file.entries();
  const auto names_world = [](const tuning::validator& v) { return v.name == world_validator; };
  return std::none_of(file.validators().begin(), file.validators().end(), names_world) && !entries.empty() &&
         std::all_of(entries.begin(), entries.end(), [](const auto& e) { return e.is_of_kernel(); });
}

/// The validators that a file must have to be trusted here.
std::vector<tuning::validator> wanted(const parsed_results& file, std::optional<runtime::rank_id> world) {
  std::vector<tuning::validator> here{{"PARLEY_VERSION", std::string(runtime::version_text)}};
  for (const auto& v : ops::machine_validators()) here.push_back(v);
  if (is_of_kernels(file.file)) return here;
  if (const auto masks = ops::heed_masks({}, ops::own_variable); !masks.empty())
    here.push_back({"PARLEY_MASK", ops::text_of(masks)});
  if (world) {
    here.push_back({std::string(world_validator), std::to_string(*world)});
    return here;
  }
  for (const auto& v : file.file.validators())
    if (v.name == world_validator) here.push_back(v);
  return here;
}

struct verdict {
  int status = 0;
  std::string why_not;
};

verdict judge(const read_file& f, std::optional<runtime::rank_id> world) {
  if (!f.content) return {status_wrong, f.why_not};
  const std::vector<tuning::validator> here = wanted(*f.content, world);
  const auto why = tuning::compare_validators(f.content->file.validators(), here);
  std::string text = why ? f.path + ": " + why->text : "";
  const std::vector<std::string> soft = ops::heed_soft_validators({}, ops::own_variable);
  if (why && tuning::differ_only_in(soft, f.content->file.validators(), here) && f.content->skipped_lines == 0)
    return {0, text + "; PARLEY_SOFT_VALIDATORS allows that, so ranks use the results and search them again"};
  if (f.content->skipped_lines != 0) return {status_wrong, text};  // `merge` refuses such files
  return {why ? status_not_for_here : 0, text};
}

/// The entries of two files for one key; null: the file has none.
struct entry_pair {
  const tuning::result_entry* before = nullptr;
  const tuning::result_entry* after = nullptr;
  const tuning::result_entry& any() const { return before != nullptr ? *before : *after; }
  bool is_one_choice() const { return before != nullptr && after != nullptr && before->solution == after->solution; }
  /// The time after, by the time before; 0: not known.
  double ratio() const {
    const bool timed = before != nullptr && after != nullptr && before->time_ms > 0 && after->time_ms > 0;
    return timed ? after->time_ms / before->time_ms : 0;
  }
};

struct difference {
  std::vector<std::array<std::string, 3>> validators;  // name, before, after
  std::vector<entry_pair> choices;
  std::vector<entry_pair> times;
  std::size_t same = 0;
};

/// The validators that only one file has, or whose values differ.
std::vector<std::array<std::string, 3>> validator_differences(const tuning::results_file& a,
                                                              const tuning::results_file& b) {
  std::map<std::string, std::array<std::string, 2>> values;
  for (const auto& v : a.validators()) values[v.name][0] = v.value;
  for (const auto& v : b.validators()) values[v.name][1] = v.value;
  std::vector<std::array<std::string, 3>> all;
  for (const auto& [name, value] : values)
    if (value[0] != value[1]) all.push_back({name, value[0], value[1]});
  return all;
}

difference difference_of(const tuning::results_file& a, const tuning::results_file& b) {
  constexpr double much = 1.1;
  difference all;
  all.validators = validator_differences(a, b);
  const auto sort_in = [&all](const entry_pair& p) {
    const double ratio = p.ratio();
    if (!p.is_one_choice()) {
      all.choices.push_back(p);
    } else if (ratio != 0 && (ratio > much || ratio < 1 / much)) {
      all.times.push_back(p);
    } else {
      ++all.same;
    }
  };
  for (const auto& e : a.entries()) sort_in({&e, b.find(e.op, e.parameters)});
  for (const auto& e : b.entries())
    if (a.find(e.op, e.parameters) == nullptr) sort_in({nullptr, &e});
  return all;
}

json::array pairs_json(const std::vector<entry_pair>& pairs) {
  json::array list;
  const auto side = [](const tuning::result_entry* e) {
    return e == nullptr ? json::value(nullptr)
                        : json::value(json::object{{"solution", e->solution}, {"time_ms", e->time_ms}});
  };
  for (const entry_pair& p : pairs)
    list.push_back(json::object{
        {"op", p.any().op}, {"parameters", p.any().parameters}, {"before", side(p.before)}, {"after", side(p.after)}});
  return list;
}

void print(const difference& d, const std::string& before, const std::string& after) {
  table_rows validators;
  for (const auto& v : d.validators) validators.push_back({v[0], v[1].empty() ? "-" : v[1], v[2].empty() ? "-" : v[2]});
  table_rows entries{{"op", "key", before, "ms", after, "ms", "after/before"}};
  const auto choice = [](const tuning::result_entry* e) { return e == nullptr ? "-" : e->solution; };
  const auto time = [](const tuning::result_entry* e) {
    return e == nullptr || !(e->time_ms > 0) ? "-" : fmt::format("{:.6g}", e->time_ms);
  };
  for (const auto* part : {&d.choices, &d.times})
    for (const entry_pair& p : *part)
      entries.push_back({p.any().op, p.any().parameters, choice(p.before), time(p.before), choice(p.after),
                         time(p.after), p.ratio() == 0 ? "-" : fmt::format("{:.3g}", p.ratio())});
  if (!validators.empty()) {
    validators.insert(validators.begin(), {"validator", before, after});
    say(aligned(validators, 3));
  }
  if (entries.size() > 1) say(aligned(entries, 3));
  say(fmt::format("{} choices differ, {} times of one choice differ by more than 10 %, {} entries are the same",
                  d.choices.size(), d.times.size(), d.same));
}

/// All files merged into one, and complaints about the files that were left out.
struct joined_files {
  tuning::results_file file;
  std::vector<std::string> complaints;
  json::array conflicts;
  std::vector<std::string> conflict_texts;
};

void note_conflicts(joined_files& all, const std::string& path, const std::vector<tuning::result_conflict>& conflicts) {
  for (const auto& c : conflicts) {
    all.conflicts.push_back(
        json::object{{"path", path}, {"kept", entry_json(c.kept)}, {"refused", entry_json(c.refused)}});
    all.conflict_texts.push_back(fmt::format("{}: {},{}: {} is kept, {} is not", path, c.kept.op, c.kept.parameters,
                                             c.kept.solution, c.refused.solution));
  }
}

joined_files join(const std::vector<read_file>& files) {
  joined_files all;
  const read_file* first = nullptr;
  for (const read_file& f : files) {
    if (!f.content) {
      all.complaints.push_back(f.why_not);
      continue;
    }
    complain_of_lines(f);
    if (f.content->skipped_lines != 0) {
      all.complaints.push_back(fmt::format("{}: {} of its lines cannot be read; fix or remove them first", f.path,
                                           f.content->skipped_lines));
      continue;
    }
    if (first == nullptr) {
      first = &f;
      all.file = f.content->file;
      continue;
    }
    const auto& theirs = f.content->file.validators();
    if (const auto why = tuning::compare_validators(theirs, all.file.validators(), "in " + first->path)) {
      all.complaints.push_back(f.path + ": " + why->text + "; only files with the same validators can be merged");
      continue;
    }
    auto merged = tuning::merge_results(all.file, f.content->file);
    if (!merged) {
      all.complaints.push_back(f.path + ": " + merged.reason().text);
      continue;
    }
    note_conflicts(all, f.path, merged->conflicts);
    all.file = std::move(merged).value().file;
  }
  return all;
}

/// Merges the files into the content of OUT. Returns a complaint if OUT is not such a file and stays as it is.
std::optional<std::string> merge_into(const std::string& out, const runtime::result<std::string>& there,
                                      joined_files& all) {
  if (!there) return there.code() == runtime::errc::unavailable ? std::nullopt : std::optional(there.reason().text());
  if (there->empty()) return std::nullopt;
  const auto parsed = tuning::parse_results(*there);
  if (!parsed) return out + ": " + parsed.reason().text + "; the file is left as it is";
  if (parsed->skipped_lines != 0)
    return fmt::format("{}:{}: {}; fix or remove these lines first; the file is left as it is", out,
                       parsed->warnings.front().line, parsed->warnings.front().text);
  if (const auto why = tuning::compare_validators(parsed->file.validators(), all.file.validators(), "in the files"))
    return out + ": " + why->text + "; the file is left as it is";
  auto merged = tuning::merge_results(parsed->file, all.file);
  if (!merged) return out + ": " + merged.reason().text;
  note_conflicts(all, out, merged->conflicts);
  all.file = std::move(merged).value().file;
  return std::nullopt;
}

}  // namespace

int show_results(const std::vector<std::string>& files, output_format format) {
  int status = 0;
  json::array list;
  for (const read_file& f : read_all(files)) {
    if (format == output_format::json) list.push_back(shown(f));
    if (!f.content) {
      status = status_wrong;
      complain(f.why_not);
      continue;
    }
    if (format == output_format::table) show(f);
    complain_of_lines(f);
  }
  if (format == output_format::json) print({{"files", std::move(list)}});
  return status;
}

int check_results(const std::vector<std::string>& files, std::optional<runtime::rank_id> world, output_format format) {
  int status = 0;
  json::array list;
  for (const read_file& f : read_all(files)) {
    const verdict v = judge(f, world);
    status = std::max(status, v.status);
    const std::size_t entries = f.content ? f.content->file.entries().size() : 0;
    if (f.content) complain_of_lines(f);
    if (!v.why_not.empty()) complain(v.why_not);
    if (format == output_format::table && v.status == 0)
      say(fmt::format("{}: fine{}, {} entries", f.path, f.content->warnings.empty() ? "" : " except for these warnings",
                      entries));
    list.push_back(json::object{{"path", f.path},
                                {"status", v.status},
                                {"fits", v.status != status_wrong && v.why_not.empty()},
                                {"why_not", v.why_not},
                                {"entries", entries},
                                {"warnings", warnings_of(f)}});
  }
  if (format == output_format::json) print({{"status", status}, {"files", std::move(list)}});
  return status;
}

int diff_results(const std::string& before, const std::string& after, output_format format) {
  constexpr int status_differ = 1;
  const std::vector<read_file> both = read_all({before, after});
  for (const read_file& f : both) {
    if (f.content) {
      complain_of_lines(f);
    } else {
      complain(f.why_not);
    }
  }
  if (!both[0].content || !both[1].content) return status_wrong;
  const difference d = difference_of(both[0].content->file, both[1].content->file);
  const int status = d.choices.empty() && d.validators.empty() ? 0 : status_differ;
  if (format == output_format::table) {
    print(d, before, after);
    return status;
  }
  json::array validators;
  for (const auto& v : d.validators)
    validators.push_back(json::object{{"name", v[0]}, {"before", v[1]}, {"after", v[2]}});
  print({{"status", status},
         {"validators", std::move(validators)},
         {"choices", pairs_json(d.choices)},
         {"times", pairs_json(d.times)},
         {"same", d.same}});
  return status;
}

int merge_results(const std::vector<std::string>& files, const std::string& out, output_format format) {
  joined_files all = join(read_all(files));
  int status = all.complaints.empty() ? 0 : status_wrong;
  if (status == 0) {
    transports::file_storage disk;
    const joined_files inputs = all;
    const auto written = disk.update(out, [&](const runtime::result<std::string>& there) -> std::optional<std::string> {
      all = inputs;
      if (auto why = merge_into(out, there, all)) {
        all.complaints.push_back(std::move(*why));
        return std::nullopt;
      }
      return tuning::write_results(all.file);
    });
    if (!all.complaints.empty()) status = status_wrong;
    if (!written) {
      all.complaints.push_back(written.reason().text());
      status = status_not_written;
    }
  }
  for (const std::string& c : all.conflict_texts) complain(c);
  for (const std::string& c : all.complaints) complain(c);
  const std::size_t entries = status == 0 ? all.file.entries().size() : 0;
  if (format == output_format::json) {
    print({{"status", status}, {"out", out}, {"entries", entries}, {"conflicts", std::move(all.conflicts)}});
  } else if (status == 0) {
    say(fmt::format("{}: {} entries, {} conflicts", out, entries, all.conflict_texts.size()));
  }
  return status;
}

}  // namespace parley::cli

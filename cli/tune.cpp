#include <parley/cli/tune.hpp>

#include <parley/cli/interruption.hpp>
#include <parley/cli/job_summary.hpp>
#include <parley/cli/progress.hpp>
#include <parley/cli/rank_report.hpp>
#include <parley/cli/table.hpp>
#include <parley/ops/job/evidence_file.hpp>
#include <parley/ops/job/results_store.hpp>
#include <parley/runtime/random.hpp>
#include <parley/simulation/scenarios/many_seeds.hpp>
#include <parley/transports/files/file_storage.hpp>
#include <parley/transports/launch/launcher.hpp>
#include <parley/tuning/planners/plan_options.hpp>
#include <parley/tuning/results/results.hpp>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

namespace parley::cli {

namespace json = boost::json;
using transports::rank_end;

namespace {

constexpr int status_failed = 1;
constexpr int status_wrong = 2;

std::vector<std::string> rank_command(const tune_settings& s, rank_id ranks) {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(), "tune-rank", s.spec_path,
                                 "-n", std::to_string(ranks)};
  const auto add = [&](std::initializer_list<std::string> more) { words.insert(words.end(), more); };
  if (s.overrides.microbatches) add({"--microbatches", std::to_string(*s.overrides.microbatches)});
  add(s.results_path.empty() ? std::initializer_list<std::string>{"--no-results"}
                             : std::initializer_list<std::string>{"--results", s.results_path});
  if (!s.trials) add({"--no-tuning"});
  if (s.budget) add({"--budget", fmt::format("{}", *s.budget)});
  if (s.device == payload_device::cuda) add({"--device", "cuda"});
  for (const ops::masked_capability& m : s.masked) add({"--mask", ops::text_of(std::vector{m})});
  if (s.mutant_ignores_stamp) add({"--mutant", "ignore_stamp"});
  if (s.death) {
    const std::string config = s.death->config.empty() ? "" : s.death->config + ":";
    add({"--kill", fmt::format("{}@{}{}", s.death->rank, config, s.death->after)});
  }
  return words;
}

struct ran_job {
  rank_reports reports;
  transports::launch_end end;
  std::uint64_t hash = 0;  // of a simulated run, or of all of them
  std::uint64_t seed = 0;  // of the latest simulated run; if one failed, that one
  std::uint64_t seeds = 0;
  simulation::coverage messages{};       // of all simulated runs
  std::optional<device_times> measured;  // the source of their times
};

ran_job run_job(const spec& job, const tune_settings& s) {
  ran_job ran;
  ran.reports.resize(job.ranks);
  progress_display display(job, STDERR_FILENO);
  std::vector<report_reader> readers;
  for (rank_id r = 0; r < job.ranks; ++r) {
    readers.emplace_back([&, r](json::value&& report) {
      json::object& o = report.as_object();
      if (o.at("kind").as_string() == "final") {
        ran.reports[r] = std::move(o);
      } else {
        display.on_report(r, o);
      }
    });
  }
  transports::launch_options options;
  options.ranks = job.ranks;
  options.command = rank_command(s, job.ranks);
  // The command line overrides the environment, which overrides the program's settings.
  options.environment = {{"PARLEY_RESULTS", s.results_path}, {"PARLEY_TUNING", s.trials ? "1" : "0"}};
  options.on_line = [&](rank_id r, transports::output_stream, std::string_view line) {
    display.line(fmt::format("[rank {}] {}", r, line));
  };
  options.on_report = [&](rank_id r, std::span<const std::byte> bytes) {
    static_cast<void>(readers.at(r).take(bytes));
  };
  options.on_notice = [&](std::string_view text) { display.line(text); };
  ran.end = transports::launch(options);
  display.finish();
  return ran;
}

/// Like `run_job`, with all ranks in this process.
ran_job run_housed(const spec& job, const tune_settings& s) {
  ran_job ran;
  ran.reports.resize(job.ranks);
  progress_display display(job, STDERR_FILENO);
  const bool simulated = s.housing == rank_housing::simulated;
  if (simulated && s.device == payload_device::cuda) ran.measured = measure_device(*find_cuda().value(), 0, job);
  const report_handler on_report = [&](rank_id r, json::object&& report) {
    if (report.at("kind").as_string() == "final") {
      ran.reports[r] = std::move(report);
    } else {
      display.on_report(r, report);
    }
  };
  housed_end end;
  if (simulated) {
    tune_settings each = s;
    for (; ran.seeds < s.seeds && end.error.empty(); ++each.seed) {
      end = tune_simulated(job, each, ran.measured ? &*ran.measured : nullptr, on_report);
      ran.seed = each.seed;
      ran.hash = ++ran.seeds == 1 ? end.hash : runtime::mix(ran.hash ^ end.hash) + 1;
      simulation::add(ran.messages, end.messages);
    }
  } else {
    end = tune_in_one_process(job, s, on_report);
  }
  display.finish();
  if (!end.error.empty() && end.signal == 0) std::fprintf(stderr, "parley: %s\n", end.error.c_str());
  ran.end.status = end.error.empty() ? 0 : status_failed;
  ran.end.signal = end.signal;
  rank_end ended;
  ended.kind = rank_end::how::exited;
  ended.code = ran.end.status;
  ran.end.ranks.assign(job.ranks, ended);
  return ran;
}

std::string how_it_ended(const rank_end& e) {
  switch (e.kind) {
    case rank_end::how::not_started: return "was not started";
    case rank_end::how::exited:
      return e.code == 0     ? "ok"
             : e.by_launcher ? "was ended, with the others"
                             : "failed with status " + std::to_string(e.code);
    case rank_end::how::signalled: break;
  }
  return std::string(e.by_launcher ? "was ended, with the others, by signal " : "was killed by signal ") +
         std::to_string(e.code) + " (" + strsignal(e.code) + ")";
}

json::array rank_ends(const ran_job& ran) {
  json::array list;
  for (rank_id r = 0; r < ran.end.ranks.size(); ++r) {
    const auto& report = ran.reports[r];
    list.push_back(json::object{{"rank", r},
                                {"ended", how_it_ended(ran.end.ranks[r])},
                                {"error", report ? report->at("error") : json::value("it sent no report")}});
  }
  return list;
}

tuning::result_entry entry_in(const json::value& e) {
  return {std::string(e.at(0).as_string()), std::string(e.at(1).as_string()), std::string(e.at(2).as_string()),
          e.at(3).to_number<double>(), e.at(4).as_bool()};
}

/// The results of all ranks as one file, and the entries they had read that are no longer valid.
struct learned_results {
  tuning::results_file file;
  std::vector<tuning::result_entry> superseded;
};

learned_results learned(const rank_reports& reports) {
  learned_results all;
  tuning::results_file& file = all.file;
  for (const auto& report : reports) {
    if (!report) continue;
    const json::object& results = report->at("results").as_object();
    if (file.validators().empty()) {
      for (const json::value& v : results.at("validators").as_array())
        static_cast<void>(
            file.add(tuning::validator{std::string(v.at(0).as_string()), std::string(v.at(1).as_string())}));
    }
    for (const json::value& e : results.at("superseded").as_array()) all.superseded.push_back(entry_in(e));
  }
  // Decisions of this job come first, then entries of ranks that only remember a key and did not use it in this job.
  for (const char* part : {"learned", "entries"}) {
    for (const auto& report : reports) {
      if (!report) continue;
      for (const json::value& e : report->at("results").at(part).as_array()) static_cast<void>(file.add(entry_in(e)));
    }
  }
  return all;
}

/// Adds the new results to the file, and their evidence to the file beside it. A file that belongs to another job, or cannot be read, stays
/// unchanged.
ops::kept_results keep(const std::string& path, const learned_results& more, const rank_reports& reports) {
  std::random_device random;
  const std::uint64_t unique = std::uint64_t{random()} << 32U | random();
  std::error_code none;
  transports::file_storage disk;
  ops::kept_results kept = ops::keep_results(disk, path, more.file,
                                             {.superseded = more.superseded,
                                              .unique = unique,
                                              .spare_folder = std::filesystem::temp_directory_path(none).string()})
                               .value();
  ops::evidence_file evidence(disk, ops::evidence_of(path));
  for (const auto& report : reports) {
    if (!report) continue;
    for (const json::value& e : report->at("results").at("evidence").as_array())
      evidence.note(std::string(e.at(0).as_string()), std::string(e.at(1).as_string()),
                    std::string(e.at(2).as_string()));
  }
  if (const auto written = evidence.write(); !written)
    kept.warnings.push_back("the results are kept, but not their evidence: " + written.reason().text());
  return kept;
}

json::object results_part(const ops::kept_results& k, const std::string& why_not) {
  json::array warnings;
  for (const std::string& w : k.warnings) warnings.push_back(json::value(w));
  return {{"path", k.path.empty() ? json::value(nullptr) : json::value(k.path)},
          {"written", k.what == ops::kept_results::how::written},
          {"warnings", std::move(warnings)},
          {"why_not", why_not}};
}

/// The agreement's name in a results file.
std::string entry_of(const json::object& agreement) {
  std::string entry = agreement.at("op").as_string().c_str();
  for (const json::value& r : agreement.at("participants").as_array())
    entry +=
        (&r == &agreement.at("participants").as_array().front() ? "/" : ">") + std::to_string(r.to_number<rank_id>());
  return entry;
}

/// Decisions from a results file were timed when they were made: takes the times from the file.
void fill_in_remembered_times(json::object& document, const tuning::results_file& file) {
  for (json::value& v : document.at("agreements").as_array()) {
    json::object& a = v.as_object();
    if (!a.at("from_results").as_bool()) continue;
    const std::string entry = entry_of(a);
    if (const auto* known = file.find(entry, std::string(a.at("key").as_string()));
        known != nullptr && known->time_ms > 0)
      a["decision_time_ns"] = known->time_ms * 1e6;
  }
}

void print(std::FILE* to, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

void say(const std::string& text) { std::fprintf(stderr, "parley: %s\n", text.c_str()); }

std::uint64_t mismatches_in(const json::object& document) {
  return document.at("mismatches").to_number<std::uint64_t>();
}

/// True if that size has a choice of several configs.
bool has_choice(const json::value& agreement) {
  const json::array& all = agreement.at("candidates").as_array();
  const auto counts = [](const json::value& c) {
    return c.at("status").as_string() != "same" && c.at("status").as_string() != "excluded";
  };
  return std::count_if(all.begin(), all.end(), counts) > 1;
}

bool is_decided(const json::value& agreement) { return agreement.at("decided").as_bool(); }

/// A size with the default alone is decided from the start, so it does not count while other sizes wait for a decision.
bool decided_anything(const json::object& document) {
  const json::array& all = document.at("agreements").as_array();
  if (!all.empty() && std::all_of(all.begin(), all.end(), is_decided)) return true;
  return std::any_of(all.begin(), all.end(), [](const json::value& a) { return is_decided(a) && has_choice(a); });
}

/// True if the run should decide something: trials are allowed, and may cost something.
bool is_to_decide(const tune_settings& s) { return s.trials && s.budget.value_or(1) > 0 && s.seeds == 1 && !s.weather; }

std::string why_undecided(const spec& job, const json::object& document, const tune_settings& s) {
  const json::array& all = document.at("agreements").as_array();
  if (all.empty())
    return job.name + ": nothing was decided, because no op has sent a message; add messages to the spec";
  std::uint64_t trials = 0;
  for (const json::value& a : all) trials += a.at("trials").to_number<std::uint64_t>();
  const auto obvious = std::count_if(all.begin(), all.end(), is_decided);
  return fmt::format(
      "{}: nothing was decided: {} sizes of messages were met{}, with {} trials in {} invocations, and trials "
      "may take {:.6g} times the time of those; ask for more with --microbatches, or let trials cost more "
      "with --budget",
      job.name, all.size(), obvious == 0 ? "" : fmt::format(", of which {} have only the default to try", obvious),
      trials, document.at("invocations").to_number<std::uint64_t>(),
      s.budget.value_or(tuning::plan_options{}.budget_fraction));
}

void complain(const spec& job, const json::object& document) {
  const auto lines = [&](std::string_view key) {
    for (const json::value& e : document.at(key).as_array()) say(std::string(e.as_string()));
  };
  if (const std::uint64_t mismatches = mismatches_in(document); mismatches != 0)
    say(fmt::format("{}: {} invocations ran different configs at their two ends; this must never happen:", job.name,
                    mismatches));
  lines("mismatch_examples");
  if (!document.at("interrupted").as_bool()) lines("output_differences");
}

}  // namespace

namespace {

json::object simulated_part(const tune_settings& s, const ran_job& ran, const std::string& hash,
                            const std::vector<std::string>& gaps) {
  json::object part{{"seed", ran.seed}, {"hash", hash}};
  if (ran.measured) part["measured_on"] = ran.measured->report();
  if (s.seeds == 1 && !s.weather) return part;
  part["first_seed"] = s.seed;
  part["seeds"] = ran.seeds;
  part["weather"] = s.weather;
  json::array not_covered;
  for (const std::string& gap : gaps) not_covered.push_back(json::value(gap));
  part["not_covered"] = std::move(not_covered);
  return part;
}

void tell_of_simulation(const tune_settings& s, const ran_job& ran, const std::string& hash,
                        const std::vector<std::string>& gaps) {
  const std::string computations = ran.measured
                                       ? fmt::format("computations and copies take the times measured on GPU {}, {}",
                                                     ran.measured->device, ran.measured->device_name)
                                       : "computations take none";
  say(fmt::format("simulated, seed {}: links and times are virtual, {}; hash {}", ran.seed, computations, hash));
  if (s.seeds == 1 && !s.weather) return;
  print(stderr, simulation::coverage_table(ran.messages));
  if (s.weather) {
    for (const std::string& gap : gaps) say("not covered: " + gap);
  }
  if (ran.end.status == 0) {
    say(fmt::format("{} seeds from {} on{}: no violation", ran.seeds, s.seed, s.weather ? ", in bad weather" : ""));
  } else {
    say(fmt::format("seed {} failed; again: the same command with --seed {} and without --seeds", ran.seed, ran.seed));
  }
}

int run_and_tell(const tune_options& o) {
  const spec job = read_spec(o.settings.spec_path, o.settings.overrides);
  check_device(o.settings, job);
  check_masks(o.settings, job);
  if (const std::string folder = ops::missing_folder_of(o.settings.results_path); !folder.empty())
    say(fmt::format("warning: there is no folder {} for the results in {}; make the folder or name another file with "
                    "--results",
                    folder, o.settings.results_path));
  const bool housed = o.settings.housing != rank_housing::processes;
  ran_job ran = housed ? run_housed(job, o.settings) : run_job(job, o.settings);
  json::object document = summarize(job, ran.reports);
  int status = ran.end.status;
  const bool paired = mismatches_in(document) == 0;
  if (!paired || !document.at("outputs_match").as_bool()) status = std::max(status, status_failed);
  const bool interrupted = ran.end.signal != 0;
  if (interrupted) status = status_of_signal(ran.end.signal);

  // Agreements from before a rank's death are still valid. Results are not kept if a mismatch or wrong outputs were found.
  const bool sound = paired && !document.at("outputs_differ").as_bool();
  const std::string& path = o.settings.results_path;
  ops::kept_results results;
  std::string not_kept;
  const learned_results more = learned(ran.reports);
  fill_in_remembered_times(document, more.file);
  if (!path.empty() && sound) {
    try {
      results = keep(path, more, ran.reports);
    } catch (const runtime::failure& e) {
      not_kept = e.what();
      status = status_failed;
    }
  }
  if (!o.trace_path.empty()) {
    transports::file_storage disk;
    if (const auto written = disk.replace(o.trace_path, trace_lines(job, ran.reports)); !written) {
      say("the trace could not be written: " + written.reason().what());
      status = std::max(status, status_failed);
    }
  }
  document["results"] = results_part(results, not_kept);
  document["rank_ends"] = rank_ends(ran);
  document["interrupted"] = interrupted;
  document["masked"] = ops::text_of(o.settings.masked);
  const bool simulated = o.settings.housing == rank_housing::simulated;
  const std::string hash = fmt::format("{:016x}", ran.hash);
  const std::vector<std::string> gaps = simulation::coverage_gaps(ran.messages, simulation::scenarios_run::some);
  if (simulated) document["simulated"] = simulated_part(o.settings, ran, hash, gaps);
  if (o.settings.weather && !gaps.empty()) status = std::max(status, status_failed);
  const bool undecided = status == 0 && is_to_decide(o.settings) && !decided_anything(document);
  if (undecided) status = status_undecided;
  document["undecided"] = undecided ? json::value(why_undecided(job, document, o.settings)) : json::value(nullptr);
  document["ok"] = status == 0;
  document["status"] = status;

  // With JSON, standard output is for the document alone, and the tables go to standard error.
  const bool as_json = o.format == output_format::json;
  print(as_json ? stderr : stdout, tables(document));
  if (as_json) print(stdout, json::serialize(document) + "\n");
  if (simulated) tell_of_simulation(o.settings, ran, hash, gaps);
  if (interrupted) say(std::string("interrupted (") + strsignal(ran.end.signal) + "); the results so far are above");
  complain(job, document);
  if (undecided) say(why_undecided(job, document, o.settings));
  for (const std::string& w : results.warnings) say("warning: " + w);
  if (!not_kept.empty()) say(not_kept);
  if (results.what == ops::kept_results::how::written) say("results are in " + results.path);
  return status;
}

/// With `--json` the user gets a document even if the command fails.
void tell_fault(const tune_options& o, int status, const char* what) {
  if (o.format != output_format::json) return;
  print(stdout, json::serialize(json::object{{"ok", false}, {"status", status}, {"error", what}}) + "\n");
}

}  // namespace

int tune(const tune_options& o) {
  try {
    return run_and_tell(o);
  } catch (const text_error& e) {
    tell_fault(o, status_wrong, e.what());
    throw;
  } catch (const std::exception& e) {
    tell_fault(o, status_failed, e.what());
    throw;
  }
}

}  // namespace parley::cli

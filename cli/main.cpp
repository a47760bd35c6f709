// The `parley` command. Status 0: fine, 1: the run failed, 2: the command line or a file is wrong, 3: `tune` has decided nothing.
// `parley run` ends with the status of the first rank that failed, or with 124 at its time limit.
#include <parley/cli/doctor.hpp>
#include <parley/cli/explain.hpp>
#include <parley/cli/hosts.hpp>
#include <parley/cli/output_folder.hpp>
#include <parley/cli/results.hpp>
#include <parley/cli/status.hpp>
#include <parley/cli/suggestion.hpp>
#include <parley/cli/tune.hpp>
#include <parley/cli/untuned.hpp>
#include <parley/number_text.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/ops/job/results_store.hpp>
#include <parley/quick_start.hpp>
#include <parley/runtime/version.hpp>
#include <parley/transports/launch/environment.hpp>
#include <parley/transports/launch/launcher.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace parley;

constexpr int status_wrong = 2;

/// The options of `tune`, and of the hidden command of its ranks, as CLI11 reads them.
struct tune_words {
  std::string spec;
  std::vector<std::string> untuned;
  std::optional<runtime::rank_id> ranks;
  std::optional<std::uint64_t> microbatches;
  std::string results;
  std::string trace;
  std::string mutant;
  std::string kill;
  std::string device = "host";
  std::optional<double> budget;
  std::vector<std::string> masks;
  bool one_process = false;
  bool simulated = false;
  std::optional<std::uint64_t> seed;
  std::uint64_t seeds = 1;
  bool weather = false;
  bool no_results = false;
  bool no_tuning = false;
  bool json = false;
};

/// The options of `results show|check|merge|diff|explain|model`.
struct result_words {
  std::string key;
  std::vector<std::string> files;
  std::optional<runtime::rank_id> ranks;
  std::string out;
  bool json = false;
};

template <class Number>
CLI::Validator number_from(Number least, Number most) {
  const runtime::number_range<Number> within{least, most};
  return {[within](std::string& text) { return runtime::fault_of_number(text, within); }, runtime::words_of(within)};
}

CLI::App* add_tune(CLI::App& app, const std::string& name, const std::string& text, tune_words& w) {
  CLI::App* tune = app.add_subcommand(name, text);
  tune->add_option("SPEC", w.spec, "JSON file that describes the ops; see examples/specs");
  tune->add_option("-n,--ranks", w.ranks, "Number of ranks, instead of the spec's")
      ->check(number_from(1U, cli::most_ranks));
  tune->add_option("--microbatches", w.microbatches, "Microbatches or messages of each op, instead of the spec's")
      ->check(number_from(std::uint64_t{1}, cli::most_invocations));
  auto* results =
      tune->add_option("--results", w.results,
                       "Results file to read and to add to (default: PARLEY_RESULTS, else SPEC.results.csv here)");
  tune->add_flag("--no-results", w.no_results, "Neither read nor write results files")->excludes(results);
  tune->add_flag("--no-tuning", w.no_tuning,
                 "Run the configs in the results file, otherwise the default, and make no trials (as PARLEY_TUNING=0)");
  tune->add_option("--budget", w.budget,
                   "Cost that trials may have, as a part of the run time of the ops (default: 0.05; with more, "
                   "decisions come sooner)")
      ->check(number_from(0.0, cli::largest_budget));
  tune->add_option("--device", w.device, "Where payloads lie and are computed: host (default), or cuda")
      ->check(CLI::IsMember({"host", "cuda"}));
  tune->add_option(
      "--mask", w.masks,
      "RANK:CAPABILITY that the rank must do without: gpu, sm_90 or the like, peer_access, nvlink, ipc, nccl, or a "
      "config's name; CAPABILITY alone for all ranks. May be given several times");
  tune->add_flag("--one-process", w.one_process, "All ranks in this process: many ranks on one GPU");
  // Test switches: the checks must notice their effect.
  tune->add_option("--mutant", w.mutant)->check(CLI::IsMember({"ignore_stamp"}))->group("");
  tune->add_option("--kill", w.kill)->group("");
  return tune;
}

std::optional<cli::planned_death> death_of(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto wrong = [] {
    return cli::text_error("parley: --kill takes RANK@MICROBATCHES, or RANK@CONFIG:RUN, for example 2@20 or 1@nccl:3");
  };
  cli::planned_death death;
  const auto at = text.find('@');
  if (at == std::string_view::npos) throw wrong();
  const auto rank = runtime::read_number<runtime::rank_id>(text.substr(0, at), {0, cli::most_ranks});
  std::string_view when = text.substr(at + 1);
  if (const auto colon = when.rfind(':'); colon != std::string_view::npos) {
    death.config = when.substr(0, colon);
    when.remove_prefix(colon + 1);
  }
  using count = decltype(death.after);
  const auto after = runtime::read_number<count>(when, {0, std::numeric_limits<count>::max()});
  if (!rank || !after) throw wrong();
  death.rank = *rank;
  death.after = *after;
  return death;
}

std::vector<ops::masked_capability> masks_of(const std::vector<std::string>& words) {
  std::vector<ops::masked_capability> all;
  for (const std::string& w : words) {
    if (w.empty())
      throw cli::text_error("parley: --mask: it names no capability; write [RANK:]CAPABILITY, or leave it out");
    auto read = ops::parse_masks(w);
    if (!read) throw cli::text_error("parley: --mask: " + read.reason().text());
    all.insert(all.end(), read->begin(), read->end());
  }
  return all;
}

ops::rank_settings told_by_environment(std::string usual_results) {
  ops::rank_settings mine;
  mine.results_path = std::move(usual_results);
  try {
    return ops::heed_environment(std::move(mine), &ops::own_variable).settings;
  } catch (const runtime::failure& wrong) {
    throw cli::text_error("parley: " + wrong.reason().text());
  }
}

cli::tune_settings settings_of(const tune_words& w) {
  cli::tune_settings s;
  s.spec_path = w.spec;
  s.overrides = {.ranks = w.ranks, .microbatches = w.microbatches};
  // The command line overrides the environment, which overrides the usual name.
  const ops::rank_settings told = told_by_environment(std::filesystem::path(w.spec).stem().string() + ".results.csv");
  if (!w.no_results && !w.simulated) s.results_path = w.results.empty() ? told.results_path : w.results;
  if (s.results_path == ops::no_file) s.results_path.clear();
  s.trials = !w.no_tuning && told.policy == actors::tuning_policy::online;
  s.budget = w.budget;
  s.mutant_ignores_stamp = w.mutant == "ignore_stamp";
  s.masked = masks_of(w.masks);
  s.death = death_of(w.kill);
  if (w.device == "cuda") s.device = cli::payload_device::cuda;
  if (w.one_process) s.housing = cli::rank_housing::one_process;
  if (w.simulated) s.housing = cli::rank_housing::simulated;
  s.seed = w.seed.value_or(s.seed);
  s.seeds = w.seeds;
  s.weather = w.weather;
  if (s.death && s.housing != cli::rank_housing::processes)
    throw cli::text_error("parley: --kill needs a process for each rank");
  return s;
}

struct run_words {
  runtime::rank_id ranks = 1;
  std::uint32_t restarts = 0;
  bool no_prefix = false;
  bool strict = false;
  bool bind = false;
  std::optional<double> time_limit_s;
  std::string output;
  std::optional<runtime::rank_id> hosts, host;
  std::string rendezvous;
  bool told_by_input = false;
  std::string hostfile;
  std::string ssh = "ssh -o BatchMode=yes";  // BatchMode: never asks for a password
};
/// The options that each host's own launcher needs.
std::vector<std::string> options_there(const run_words& words) {
  std::vector<std::string> all;
  if (words.no_prefix) all.emplace_back("--no-prefix");
  if (words.strict) all.emplace_back("--strict");
  if (words.bind) all.emplace_back("--bind");
  if (!words.output.empty()) all.insert(all.end(), {"--output", words.output});
  return all;
}
runtime::time_ns time_limit_of(const run_words& words) {
  return words.time_limit_s ? static_cast<runtime::time_ns>(*words.time_limit_s * 1e9) : runtime::never;
}
int run_ranks(const run_words& words, std::vector<std::string> command) {
  if (command.empty()) throw cli::text_error("parley: no program was given: parley run -n N [--] PROGRAM ARGUMENTS…");
  if (!words.hostfile.empty())
    return cli::run_on_hosts({.hosts = cli::read_hosts(words.hostfile),
                              .ranks = words.ranks,
                              .ssh = words.ssh,
                              .rendezvous = words.rendezvous,
                              .options = options_there(words),
                              .command = std::move(command),
                              .timeout_ns = time_limit_of(words)});
  transports::launch_options options;
  options.ranks = words.ranks;
  options.restarts = words.restarts;
  options.bind = words.bind;
  options.timeout_ns = time_limit_of(words);
  if (words.hosts) options.among = {*words.hosts, words.host.value_or(0), words.rendezvous, words.told_by_input};
  options.command = std::move(command);
  options.prefix = words.no_prefix ? transports::line_prefix::none : transports::line_prefix::rank;
  if (words.strict) options.environment.emplace_back("PARLEY_STRICT", "1");
  std::optional<cli::output_folder> kept;
  if (!words.output.empty()) {
    kept.emplace(words.output, /*shared=*/words.hosts.has_value());
    options.on_line = [&kept](runtime::rank_id rank, transports::output_stream kind, std::string_view line) {
      kept->take(rank, kind, line);
    };
  }
  const int status = cli::status_of(transports::launch(options));
  if (!kept || kept->lost().empty()) return status;
  std::fprintf(stderr, "parley: %s\n", kept->lost().c_str());
  return status == 0 ? 1 : status;
}

/// The innermost command that was given, such as `parley results show`.
const CLI::App& meant(const CLI::App& from) {
  const auto within = from.get_subcommands();
  return within.empty() ? from : meant(*within.front());
}

std::string full_name(const CLI::App& command) {
  const CLI::App* const around = command.get_parent();
  return (around == nullptr ? "" : full_name(*around) + " ") + command.get_name();
}

/// Throws `text_error` if an option was given that the command does not have.
void name_unknown_option(const CLI::App& app) {
  const CLI::App& command = meant(app);
  const auto words = command.remaining();
  if (words.empty() || !words.front().starts_with('-')) return;
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string hint = cli::suggestion(words.front(), known);
  throw cli::text_error("parley: `" + words.front() + "` is not an option of `" + full_name(command) + "`" +
                        (hint.empty() ? "; `" + full_name(command) + " --help` lists them" : hint));
}

/// Also understands words that other programs use for the same commands. Throws `text_error` if there is no such command.
void name_unknown_results_command(const std::string& word) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> known{
      {"show", {"list", "ls", "print", "cat", "dump", "view", "read"}},
      {"check", {"validate", "verify", "test", "lint", "doctor"}},
      {"merge", {"add", "combine", "join", "union", "append", "concat"}},
      {"diff", {"compare", "cmp", "changes", "delta"}},
      {"explain", {"why", "evidence", "reason", "describe"}},
      {"model", {"predict", "score", "predictions", "accuracy"}}};
  std::vector<std::string> all;
  std::string meant;
  for (const auto& [name, others] : known) {
    if (word == name) return;
    all.push_back(name);
    if (std::find(others.begin(), others.end(), word) != others.end()) meant = "; did you mean `" + name + "`?";
  }
  if (meant.empty()) meant = cli::suggestion(word, all);
  throw cli::text_error("parley: there is no command `parley results " + word + "`" +
                        (meant.empty() ? "; the commands are show, check, merge, diff, explain and model" : meant));
}

int command(int argc, char** argv) {
  // All words behind `--` belong to another program.
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));
  const std::vector<std::string> behind(dashes == end ? end : dashes + 1, end);

  CLI::App app{"Actors that agree, rank by rank, on paired configs while the program runs"};
  app.name("parley");
  app.set_version_flag("--version", "parley " + std::string(runtime::version_text));
  app.require_subcommand(1);

  run_words ran;
  CLI::App* run = app.add_subcommand(
      "run", "Start N ranks of a program here, end all when one fails, and return the status of that one");
  run->add_option("-n,--ranks", ran.ranks, "Number of ranks")->required()->check(number_from(1U, cli::most_ranks));
  run->add_option("--restarts", ran.restarts,
                  "How many times in all to start failed ranks other than 0 again (default: 0); the program decides "
                  "which ops continue")
      ->check(number_from(0U, transports::most_restarts_of_a_rank));
  auto* hosts = run->add_option("--hosts", ran.hosts,
                                "Number of hosts (default: only this one); run this command on each of them, with the "
                                "same PARLEY_KEY_FILE: it starts N ranks there")
                    ->check(number_from(1U, cli::most_ranks));
  auto* host = run->add_option("--host", ran.host, "Number of this host, counted from 0")
                   ->check(number_from(0U, cli::most_ranks - 1))
                   ->needs(hosts);
  auto* rendezvous = run->add_option("--rendezvous", ran.rendezvous, "host:port on host 0, the same on all");
  hosts->needs(host)->needs(rendezvous)->excludes("--restarts");
  auto* hostfile =
      run->add_option("--hostfile", ran.hostfile,
                      "File with a host on each line, `HOST` or `HOST slots=4`: the ranks are divided among them, and "
                      "started by ssh")
          ->excludes(hosts)
          ->excludes("--restarts");
  run->add_option("--ssh", ran.ssh, "Command that starts a program on a host (default: ssh -o BatchMode=yes)")
      ->needs(hostfile);
  run->add_option("--time-limit", ran.time_limit_s, "End all ranks after so many seconds, with status 124")
      ->check(number_from(0.001, 1e9));
  run->add_flag("--bind", ran.bind, "Give each rank an equal share of this host's processors, to run on these alone");
  run->add_option("-o,--output", ran.output,
                  "Folder for the ranks' output, rank-0.out and rank-0.err and so on, instead of writing it here");
  run->add_flag("--told-by-input", ran.told_by_input)->needs(hosts)->group("");
  run->add_flag("--no-prefix", ran.no_prefix, "Do not write [rank R] before each line of output");
  run->add_flag("--strict", ran.strict,
                "A rank whose messages were not all taken ends with status 3 instead of a warning");
  run->prefix_command();
  run->footer("After the options come the program and its arguments: parley run -n 2 -- ./program --steps 10");

  tune_words words;
  CLI::App* tune =
      add_tune(app, "tune", "Tune the ops that a JSON spec describes on this machine, and show the decisions", words);
  tune->add_flag("--json", words.json, "Print one JSON document on standard output, and nothing else there");
  auto* simulated = tune->add_flag(
      "--sim", words.simulated,
      "On virtual ranks, links and time, in this process; reads and writes no results. With --device cuda "
      "computations and copies take the times that are first measured on a GPU");
  simulated->excludes("--results")->excludes("--one-process");
  tune->add_option(
          "--seed", words.seed,
          "Seed of a simulated run, which sets how late messages are; equal seeds give equal runs (default: 1)")
      ->check(number_from(std::uint64_t{0}, std::uint64_t{1} << 62U))
      ->needs(simulated);
  tune->add_option("--seeds", words.seeds, "Number of simulated runs, with one seed after the other, until a run fails")
      ->check(number_from(1U, 1'000'000U))
      ->needs(simulated);
  tune->add_flag("--weather", words.weather,
                 "Messages get lost, come twice, late and out of order, and ranks are stopped or slow, for the first "
                 "50 ms of a "
                 "simulated run; after that there are no faults")
      ->needs(simulated);
  tune->add_option("--trace", words.trace, "Write the invocations of all ranks to this file, as lines of JSON");
  auto* untuned = tune->add_option(
      "--untuned", words.untuned,
      "Instead of a spec: tune the matrix multiplications that these files list, which RECORD_UNTUNED writes, on the "
      "processors or with --device cuda on a GPU; under `parley run` each rank's GPU tunes a part. "
      "Results are kept for the ranks of all jobs: in tunableop_results.csv, or with --results a.csv in a.csv");
  for (const char* const each :
       {"SPEC", "--ranks", "--microbatches", "--no-tuning", "--budget", "--mask", "--one-process", "--sim", "--trace"})
    untuned->excludes(tune->get_option(each));

  tune_words rank_words;
  CLI::App* tune_rank = add_tune(app, "tune-rank", "", rank_words);
  tune_rank->group("");

  bool doctor_json = false;
  CLI::App* doctor =
      app.add_subcommand("doctor", "Show the transports and GPUs of this machine, and which planes work");
  doctor->add_flag("--json", doctor_json, "Print one JSON document on standard output");

  result_words results;
  CLI::App* results_command = app.add_subcommand("results", "Show, check, merge, compare or explain results files");
  results_command->require_subcommand(1);
  CLI::App* show = results_command->add_subcommand("show", "Print what is in results files");
  CLI::App* check = results_command->add_subcommand(
      "check", "Show whether this machine and version would trust results files, and which lines cannot be read");
  CLI::App* merge = results_command->add_subcommand(
      "merge", "Add files to one; the first entry for a key wins, files with other validators are refused");
  CLI::App* diff = results_command->add_subcommand("diff", "Show in what two results files differ");
  CLI::App* explain = results_command->add_subcommand("explain", "Show why a config was chosen, with all measurements");
  explain->add_option("KEY", results.key, "`op,parameters` as in the results file, or a part of it")->required();
  explain->footer("Status 0; 1: there is no decision for such a key; 2: a file cannot be read");
  CLI::App* model =
      results_command->add_subcommand("model", "Show how good the times were that were expected before trials");
  for (CLI::App* each : {show, check, merge, diff, explain, model}) {
    each->add_option("FILE", results.files, "Results files")->required();
    each->add_flag("--json", results.json, "Print one JSON document on standard output, and nothing else there");
  }
  diff->get_option("FILE")->expected(2);
  diff->footer("Status 0: all choices and validators are the same; 1: some differ; 2: a file cannot be read");
  check->add_option("-n,--ranks", results.ranks, "Number of ranks of the job; otherwise any will do")
      ->check(number_from(1U, cli::most_ranks));
  check->footer(
      "Status 0: all are fine; 1: one is for another version, machine or world; 2: one cannot be read, or a line "
      "of it");
  merge->add_option("-o,--output", results.out, "File to add to; its own entries win. It is made when missing")
      ->required();

  if (const std::string_view word = argc > 1 ? argv[1] : "--help"; !word.starts_with('-')) {
    const auto all = app.get_subcommands([](const CLI::App*) { return true; });
    if (std::none_of(all.begin(), all.end(), [&](const CLI::App* one) { return one->get_name() == word; }))
      throw cli::text_error("parley: there is no command " + std::string(word) +
                            cli::suggestion(word, {"run", "tune", "doctor", "results"}) +
                            "; the commands are run, tune, doctor and results; `parley --help` describes them");
  }
  if (argc > 2 && std::string_view(argv[1]) == "results" && argv[2][0] != '-') name_unknown_results_command(argv[2]);
  if (argc > 2 && std::string_view(argv[1]) == "run" && std::string_view(argv[2]) == "-np")
    throw cli::text_error("parley: `-np` is not an option of `parley run`; say how many ranks with -n N");
  try {
    app.parse(static_cast<int>(dashes - argv), argv);
    const tune_words& given = tune_rank->parsed() ? rank_words : words;
    if ((tune->parsed() || tune_rank->parsed()) && given.spec.empty() && given.untuned.empty())
      throw CLI::RequiredError("SPEC");
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) name_unknown_option(app);
    return app.exit(e) == 0 ? 0 : status_wrong;
  }
  if (run->parsed() && !ran.rendezvous.empty() && !ran.hosts && ran.hostfile.empty())
    throw cli::text_error("parley: --rendezvous is for a job on several hosts: give --hosts and --host, or --hostfile");
  name_unknown_option(app);
  if (run->parsed() && !run->remaining().empty() && !behind.empty())
    throw cli::text_error("parley: `" + run->remaining().front() +
                          "` is not an option of `parley run`; `parley run --help` lists them, and PROGRAM comes last");
  if (!behind.empty() && !run->parsed())
    throw cli::text_error("parley: only `parley run -n N -- PROGRAM` takes words after --");
  if (run->parsed()) return run_ranks(ran, behind.empty() ? run->remaining() : behind);
  if (tune_rank->parsed()) return cli::tune_rank(settings_of(rank_words));
  const auto results_format = results.json ? cli::output_format::json : cli::output_format::table;
  if (show->parsed()) return cli::show_results(results.files, results_format);
  if (check->parsed()) return cli::check_results(results.files, results.ranks, results_format);
  if (diff->parsed()) return cli::diff_results(results.files[0], results.files[1], results_format);
  if (explain->parsed()) return cli::explain_results(results.key, results.files, results_format);
  if (model->parsed()) return cli::score_model(results.files, results_format);
  if (merge->parsed()) return cli::merge_results(results.files, results.out, results_format);
  if (doctor->parsed()) return cli::doctor(doctor_json ? cli::output_format::json : cli::output_format::table);
  if (!words.untuned.empty()) {
    return cli::tune_untuned({.files = words.untuned,
                              .results_path = words.results,
                              .no_results = words.no_results,
                              .on_gpu = words.device == "cuda",
                              .format = words.json ? cli::output_format::json : cli::output_format::table});
  }
  return cli::tune({.settings = settings_of(words),
                    .format = words.json ? cli::output_format::json : cli::output_format::table,
                    .trace_path = words.trace});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int status = command(argc, argv);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    std::fputs("parley: standard output could not be written to; is its disk full?\n", stderr);
    return status == 0 || status == cli::status_undecided ? 1 : status;
  } catch (const cli::text_error& e) {
    std::fprintf(stderr, "%s\n", e.what());  // begins with file:line:column, which editors follow
    return status_wrong;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "parley: %s\n", e.what());
    return 1;
  }
}

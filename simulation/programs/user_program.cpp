#include <parley/program.hpp>

#include <parley/config.hpp>
#include <parley/number_text.hpp>
#include <parley/ops/job/program_error.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/runtime/record/waiting_call.hpp>
#include <parley/scope.hpp>
#include <parley/simulation/checkers/checkers.hpp>
#include <parley/simulation/checkers/observer.hpp>
#include <parley/simulation/checkers/payload_book.hpp>
#include <parley/simulation/checkers/program_checkers.hpp>
#include <parley/simulation/mutants.hpp>
#include <parley/simulation/programs/idle_steps.hpp>
#include <parley/simulation/programs/run_guard.hpp>
#include <parley/simulation/scenarios/scenario.hpp>
#include <parley/simulation/world/guarded_memory.hpp>
#include <parley/task.hpp>
#include <parley/transports/launch/environment.hpp>
#include <parley/tunable_context.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::simulation {

namespace {

constexpr time_ns settling_ns = 1'000'000'000;
// How long a rank stays after its goodbye. Real ranks wait equally long for its last messages before they declare it gone
// (ops/job/run.cpp).
constexpr time_ns goodbye_ns = 250'000'000;
constexpr std::uint64_t most_ranks = 100'000;
// Calls that the checkers see: at most so many of each rank, and so many of all ranks together.
constexpr std::size_t most_records = std::size_t{1} << 17U;
constexpr std::size_t most_records_of_all = std::size_t{1} << 22U;

struct played {
  std::vector<bool> ended;
  std::vector<std::optional<runtime::error>> errors;
  std::vector<rank_id> failed;    // failed ranks; the others do not know yet
  std::vector<rank_id> returned;  // returned ranks; the others do not know yet
  std::vector<std::pair<rank_id, std::string>> undelivered;
  std::vector<std::pair<rank_id, std::string>> refused;
  std::vector<std::pair<rank_id, std::string>> warnings;
  bool strict = false;              // undelivered messages make the run fail
  std::optional<int> first_failed;  // the status of the first rank that did not end with 0
  time_ns last_end_ns = 0;
  std::vector<violation> violations;
  std::map<std::pair<std::uint64_t, std::uint64_t>, time_ns> usual_ns;
  std::set<std::string> ops;  // their names

  void end_with(int status) {
    if (status != 0 && !first_failed) first_failed = status;
  }
};

const runtime::error waits_in_vain(runtime::errc::timeout, "it waits for something that can never come");

void print_failure(rank_id r, const std::string& why) { std::fprintf(stderr, "rank %u: %s\n", r, why.c_str()); }

// A real rank prints its warnings; a virtual one keeps them until its run has ended.
void keep_warnings(const ops::rank& self, played& all) {
  for (const std::string& text : self.warnings()) all.warnings.emplace_back(self.id(), text);
  for (const std::string& text : self.kernels().warnings()) all.warnings.emplace_back(self.id(), text);
}

runtime::task<> whole_program(ops::rank_function rank_main, ops::rank* self, played* all) {
  std::exception_ptr thrown;
  try {
    co_await rank_main(*self);
  } catch (...) {
    thrown = std::current_exception();
  }
  all->last_end_ns = std::max(all->last_end_ns, self->where().precise_now());
  all->ended[self->id()] = true;
  if (thrown) {
    keep_warnings(*self, *all);
    all->errors[self->id()] = ops::error_of_program(thrown);
    all->failed.push_back(self->id());
    all->end_with(1);
    co_return;
  }
  co_await self->settle(std::chrono::nanoseconds(settling_ns));
  keep_warnings(*self, *all);
  for (const std::string& text : self->idle_masks()) all->warnings.emplace_back(self->id(), text);
  for (const std::string& text : self->idle_rules()) all->warnings.emplace_back(self->id(), text);
  // As in `job::leave`.
  const ops::left_over left = self->unfinished();
  for (const std::string& line : left.undelivered) all->undelivered.emplace_back(self->id(), line);
  for (const std::string& line : left.rejected) all->refused.emplace_back(self->id(), line);
  if (!left.rejected.empty()) all->end_with(1);
  if (!left.undelivered.empty() && all->strict) all->end_with(ops::undelivered_status);
  all->returned.push_back(self->id());
}

constexpr std::array flags{"--weather", "--control-weather", "--deaths", "--strict"};
constexpr std::array with_a_value{"--sim",     "--seed",      "--seeds",   "--links",          "--mutant",
                                  "--latency", "--bandwidth", "--sharing", "--ranks-per-host", "--time-limit"};

// `name`, or `name=` and a value.
bool is_option(std::string_view word, std::string_view name) {
  return word.starts_with(name) && (word.size() == name.size() || word[name.size()] == '=');
}
bool is_flag(std::string_view word) { return std::find(flags.begin(), flags.end(), word) != flags.end(); }
bool has_a_value(std::string_view word) {
  return std::any_of(with_a_value.begin(), with_a_value.end(), [&](const char* name) { return is_option(word, name); });
}

void take_out(int& argc, char** argv, int at, int words) {
  for (int rest = at + words; rest <= argc; ++rest) argv[rest - words] = argv[rest];
  argc -= words;
}

bool flag(int& argc, char** argv, const char* name) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], name) != 0) continue;
    take_out(argc, argv, i, 1);
    return true;
  }
  return false;
}

[[noreturn]] void refuse(const std::string& text) { runtime::raise({runtime::errc::bad_argument, text}); }

// `--seed 7` or `--seed=7`.
std::optional<std::string> text_option(int& argc, char** argv, const char* name, const char* needs = "a word") {
  std::optional<std::string> text;
  for (int i = 1; i < argc;) {
    if (!is_option(argv[i], name)) {
      ++i;
      continue;
    }
    if (text) refuse(std::string(name) + " is given twice; give it once");
    const char* const joined = std::strchr(argv[i], '=');
    if (joined == nullptr && i + 1 == argc) refuse(std::string(name) + " needs " + needs + " after it");
    text = joined != nullptr ? joined + 1 : argv[i + 1];
    take_out(argc, argv, i, joined != nullptr ? 1 : 2);
  }
  return text;
}

std::optional<std::uint64_t> option(int& argc, char** argv, const char* name, const char* needs = "a number") {
  const auto text = text_option(argc, argv, name, needs);
  if (!text) return std::nullopt;
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const auto value = runtime::read_number<std::uint64_t>(*text, {0, most});
  const bool too_large = !text->empty() && text->find_first_not_of("0123456789") == std::string::npos;
  if (!value)
    refuse(std::string(name) + " needs " + needs + " after it, not `" + *text + "`" +
           (too_large ? ": it is at most " + std::to_string(most) : ""));
  return value;
}

// Links on which messages take no time.
link_model free_links() {
  link_model l;
  l.latency_ns = l.landing_ns = 0;
  l.ns_per_byte = l.one_sided_ns_per_byte = 0;
  return l;
}

std::uint64_t number_between(std::uint64_t value, std::uint64_t least, std::uint64_t most, const char* name) {
  if (value >= least && value <= most) return value;
  refuse(std::string(name) + " takes " + std::to_string(least) + " to " + std::to_string(most) + ", not " +
         std::to_string(value));
}

double ns_per_byte_of(const std::string& gigabytes_per_second) {
  constexpr double slowest = 1e-6;
  constexpr double fastest = 1e6;
  double value = 0;
  const char* const last = gigabytes_per_second.data() + gigabytes_per_second.size();
  const auto [end, failed] = std::from_chars(gigabytes_per_second.data(), last, value, std::chars_format::fixed);
  if (failed != std::errc() || end != last || !(value >= slowest && value <= fastest))
    refuse("--bandwidth takes GB/s of one wire, 0.000001 to 1000000, not `" + gigabytes_per_second + "`");
  return 1 / value;
}

link_model links_of(int& argc, char** argv) {
  constexpr std::uint64_t longest_latency_ns = 1'000'000'000;
  const auto links = text_option(argc, argv, "--links");
  const auto latency = option(argc, argv, "--latency", "a number of nanoseconds");
  const auto bandwidth = text_option(argc, argv, "--bandwidth", "a number of GB/s");
  const auto sharing = text_option(argc, argv, "--sharing", "`wires` or `none`");
  const auto per_host = option(argc, argv, "--ranks-per-host", "a number of ranks");
  if (links) {
    if (*links != "free") refuse("--links takes `free`, not `" + *links + "`");
    if (latency || bandwidth || sharing || per_host)
      refuse("--links free has neither --latency nor --bandwidth nor wires; give one or the others");
    return free_links();
  }
  link_model l = usual_links();
  if (sharing && *sharing != "wires" && *sharing != "none")
    refuse("--sharing takes `wires` or `none`, not `" + *sharing + "`");
  if (sharing && *sharing == "none") l.shared_egress = l.shared_ingress = l.shared_one_sided = false;
  if (latency) l.latency_ns = static_cast<time_ns>(number_between(*latency, 0, longest_latency_ns, "--latency"));
  if (bandwidth) l.ns_per_byte = l.one_sided_ns_per_byte = ns_per_byte_of(*bandwidth);
  if (per_host) l.ranks_per_host = static_cast<rank_id>(number_between(*per_host, 1, most_ranks, "--ranks-per-host"));
  return l;
}

tape weather_of(rank_id ranks, std::uint64_t seed, const fault_limits& faults, time_ns faulty_ns = 2'000'000) {
  scenario s;
  s.ranks = ranks;
  s.faulty_ns = faulty_ns;
  s.faults = faults;
  return draw(s, seed);
}

}  // namespace

// Without deaths: a program that can continue after a death requests one itself.
tape rough_weather(rank_id ranks, std::uint64_t seed, time_ns faulty_ns) {
  return weather_of(ranks, seed,
                    {.lose = 100,
                     .double_control = 100,
                     .delay_control = 300,
                     .delay_data = 300,
                     .double_data = 100,
                     .clogs = 3,
                     .cuts = 3,
                     .pauses = 3,
                     .slow = 3,
                     .longest_mishap_ns = 5'000'000,
                     .inside = false},  // programs may start calls of one group from several coroutines
                    faulty_ns);
}

namespace {

// Rough weather for control messages alone.
tape rough_control(rank_id ranks, std::uint64_t seed) {
  return weather_of(ranks, seed,
                    {.lose = 300,
                     .double_control = 100,
                     .delay_control = 500,
                     .cuts = 3,
                     .longest_delay_ns = 20'000'000,
                     .longest_mishap_ns = 50'000'000,
                     .orders = false});
}

void tell_how_to_repeat(std::uint64_t seed) {
  std::fprintf(stderr, "repeat it: the same command with --seed %llu and without --seeds\n",
               static_cast<unsigned long long>(seed));
}

// Prints the warnings and errors, and returns the status as for real ranks: if several ranks failed, that of the first one.
int status_of(const played& all) {
  for (const auto& [r, text] : all.warnings) print_failure(r, "warning: " + text);
  for (rank_id r = 0; r < all.errors.size(); ++r) {
    if (all.errors[r]) print_failure(r, all.errors[r]->what());
  }
  for (const auto& [r, line] : all.refused) print_failure(r, line);
  for (const auto& [r, line] : all.undelivered) print_failure(r, "warning: " + line);
  return all.violations.empty() ? all.first_failed.value_or(0) : 1;
}

// The calls of programs that have not ended.
void print_what_waits(world& w, const played& all) {
  for (rank_id r = 0; r < all.ended.size(); ++r) {
    if (all.ended[r] || w.find(r) == nullptr) continue;
    const runtime::waiting_list waits = w[r].waiting();
    for (const runtime::waiting_call& call : waits.calls)
      print_failure(r, runtime::words_of(call, w[r].where().precise_now()));
    if (waits.calls.empty()) print_failure(r, "it is not waiting in any call");
  }
}

// While this object lives, std::exit calls `rest` and ends the process with the status that `rest` returns. A call of std::exit inside
// `rest` does the same.
class exit_watch {
 public:
  explicit exit_watch(std::function<int(int status)> rest) : rest_(std::move(rest)) {
    static const int registered = ::on_exit(&on_exit_called, nullptr);
    static_cast<void>(registered);
    latest = this;
  }
  exit_watch(const exit_watch&) = delete;
  exit_watch& operator=(const exit_watch&) = delete;
  ~exit_watch() { latest = nullptr; }

 private:
  static void on_exit_called(int status, void*) {
    if (latest == nullptr) return;
    static_cast<void>(::on_exit(&on_exit_called, nullptr));  // each handler is called once, so register another
    const int ends_with = latest->rest_(status);
    std::fflush(nullptr);
    std::_Exit(ends_with);
  }
  static inline exit_watch* latest = nullptr;
  std::function<int(int)> rest_;
};

// Plays one run. If the program of a rank fails, the other ranks learn that this rank is gone.
played play(const world_options& given, ops::rank_function rank_main, const program_options& p, const mishap* death,
            const played* undisturbed = nullptr) {
  world_options o = given;
  put_mutant(p.mutant, o);
  const bool rough = p.what == befalls::weather;
  tape faults = rough                                ? rough_weather(o.ranks, o.seed)
                : p.what == befalls::control_weather ? rough_control(o.ranks, o.seed)
                                                     : tape{};
  if (rough) {
    o.order = faults.order;
    o.starved = faults.starved;
  }
  weather sky(faults, o.seed, o.ranks);
  const std::unique_ptr<wire_tap> mutant = make_mutant(p.mutant);
  scenario as_played;
  as_played.ranks = o.ranks;
  as_played.link = o.link;
  as_played.detection_ns = o.detection_ns;
  as_played.must_decide = false;  // a program ends when it wants to
  run_record record;
  record.play = &as_played;
  record.faults = &faults;
  record.budget = given.settings.plan.budget_fraction;
  if (undisturbed != nullptr) {
    record.other_ops = undisturbed->ops;
    if (p.what == befalls::control_weather) record.usual_ns = undisturbed->usual_ns;
  }
  const std::size_t frames_before = runtime::frame_pool::live_frames;
  guarded_memory memory;
  const runtime::host_memory_instead instead(memory);
  payload_book payloads([&record](std::string text) { record.at_once.push_back({"S8", std::move(text)}); });
  world w(o, &sky);
  observer watching(record, w, given.settings.window);
  watching.listen(sky, mutant.get());
  sky.begin(w.stage());
  played all;
  all.ended.resize(o.ranks);
  all.errors.resize(o.ranks);
  all.strict = p.undelivered == ops::undelivered_messages::fail;
  w.start_all([&](rank_id r) {
    payloads.listen(w[r]);
    w[r].on_call_failed = [&record, &w, r](const runtime::error& why) {
      record.failed_calls.push_back({r, why, w.stage().now()});
    };
    w.programs_of(r).spawn(whole_program(rank_main, &w[r], &all));
  });
  for (const mishap& m : faults.mishaps) w.befall(m, w.stage().now());
  if (death != nullptr) {
    w.befall(*death, w.stage().now());
    faults.mishaps.push_back(*death);
  }
  run_guard::plays(o.seed, &w.stage());
  const runtime::finally run_ends([] { run_guard::plays(0, nullptr); });
  idle_steps idle(w);
  bool exited = false;
  // Does nothing if all other ranks have ended by then, because no rank would notice.
  const auto leave = [&](rank_id r) {
    if (w.all_ended() || w.find(r) == nullptr) return;
    record.left_ns[r] = w.stage().now();
    w.leave(r);
  };
  const auto over = [&] {
    for (const rank_id r : std::exchange(all.returned, {}))
      w.stage().at(w.stage().now() + goodbye_ns, nobody, [&leave, r] { leave(r); });
    for (const rank_id r : std::exchange(all.failed, {})) {
      faults.mishaps.push_back({.what = mishap::kind::crash, .rank = r, .at_ns = w.stage().now()});
      w.fail(r, *all.errors[r]);
    }
    return run_guard::time_is_over() || w.all_ended();
  };
  const auto play_to_the_end = [&] {
    const bool came_to_an_end = idle.run_until(over, runtime::never);
    if (run_guard::time_is_over()) {
      std::fflush(stdout);
      std::fprintf(stderr, "the time limit expired in the run of seed %llu, after %.3f ms of its virtual time:\n",
                   static_cast<unsigned long long>(o.seed), static_cast<double>(w.stage().now()) / 1e6);
      print_what_waits(w, all);
      all.first_failed = run_guard::status_of_limit;
      return;
    }
    if (!came_to_an_end) print_what_waits(w, all);
    if (!came_to_an_end && !idle.over()) {
      for (rank_id r = 0; r < o.ranks; ++r) {
        if (all.ended[r] || w.find(r) == nullptr) continue;
        all.errors[r] = waits_in_vain;
        all.end_with(1);
        ++record.programs_left;
      }
    }
    std::fflush(stdout);  // the ranks' output comes before the report, also if both go to one pipe
    const time_ns ended_ns = came_to_an_end ? all.last_end_ns : w.stage().now();
    std::fprintf(stderr, "%u virtual ranks, seed %llu: %.6f ms of virtual time, hash %016llx", o.ranks,
                 static_cast<unsigned long long>(o.seed), static_cast<double>(ended_ns) / 1e6,
                 static_cast<unsigned long long>(w.stage().hash()));
    for (const auto& [r, line] : all.undelivered) record.undelivered.push_back(line);
    sky.calm();
    idle.run_to(w.stage().now() + settling_ns);  // so that the last decision reaches all ranks
    watching.end_job();
    record.puts_outside = w.network().puts().outside;
    record.lost_reads = w.network().puts().lost_reads;
    record.frames_left = exited ? 0 : runtime::frame_pool::live_frames - frames_before;
    record.spoiled = memory.spoiled();
    all.violations = idle.violations(record);
    std::fprintf(stderr, ", checkers: %s\n", all.violations.empty() ? "no violation" : "violated");
    for (const violation& v : all.violations) {
      std::fprintf(stderr, "%s: %s\n", v.invariant.c_str(), v.text.c_str());
      if (p.violated) p.violated(v);
    }
    all.usual_ns = usual_times(record);
    for (const participant_view& v : record.participants) all.ops.insert(v.op);
    std::uint64_t lost = 0;
    for (const auto& [whose, n] : record.flights_lost) lost += n;
    if (lost != 0)
      std::fprintf(
          stderr,
          "N4, oracle and delivery were not looked at, nor S6 of the ops of %zu ranks: %llu calls had no room in "
          "their flight recorders\n",
          record.flights_lost.size(), static_cast<unsigned long long>(lost));
  };
  // If a rank's program calls std::exit, it ends its own process, which here is the process of all ranks. So the run continues inside that
  // call.
  const exit_watch watching_exits([&](int status) {
    const rank_id r = w.stage().acting();
    if (r == nobody || w.find(r) == nullptr) return status;
    print_failure(r, "it has called exit(" + std::to_string(status) + ") in the middle of its program");
    all.end_with(status & 0xff);  // the status that a parent process sees
    faults.mishaps.push_back({.what = mishap::kind::crash, .rank = r, .at_ns = w.stage().now()});
    exited = true;
    w.exit(r);
    play_to_the_end();
    const int ends_with = status_of(all);
    if (ends_with != 0) tell_how_to_repeat(o.seed);
    return ends_with;
  });
  play_to_the_end();
  return all;
}

bool names(const runtime::error& why, rank_id r) {
  return why.about().peer == r || (why.began_with() != nullptr && why.began_with()->rank == r);
}

// True if the error of rank `r` names another failed rank in place of the first cause: a rank that ends gives up its sends before
// their receivers learn why it ends.
bool was_given_up_by_another(const played& all, rank_id r) {
  if (all.errors[r]->code() != runtime::errc::send_failed) return false;
  for (rank_id other = 0; other < all.errors.size(); ++other) {
    if (other != r && all.errors[other] && names(*all.errors[r], other)) return true;
  }
  return false;
}

// True if all ranks that could not continue, because of the dead rank or of a rank that ended because of it, failed soon and
// named the dead rank.
bool ended_well(const played& all, const world_options& o, const mishap& death) {
  bool well = all.violations.empty();
  std::size_t told = 0;
  for (rank_id r = 0; r < o.ranks; ++r) {
    if (!all.errors[r]) continue;
    ++told;
    if (names(*all.errors[r], death.rank) && all.errors[r]->code() == runtime::errc::peer_failed) continue;
    if (was_given_up_by_another(all, r)) continue;
    well = false;
    print_failure(r, all.errors[r]->what());
  }
  const time_ns limit_ns = death.at_ns + o.ranks * o.detection_ns + settling_ns;  // the news may pass from rank to rank
  if (all.last_end_ns > limit_ns) {
    well = false;
    std::fprintf(stderr, "the last of them ended %.3f ms after the death\n",
                 static_cast<double>(all.last_end_ns - death.at_ns) / 1e6);
  }
  std::fprintf(stderr, "rank %u died after %.6f ms; %zu ended with an error that says so, %zu returned%s\n", death.rank,
               static_cast<double>(death.at_ns) / 1e6, told, o.ranks - 1 - told,
               well ? "" : ", but not all of them ended as expected");
  return well;
}

void check(const world_options& o, ops::rank_function rank_main, const program_options& p) {
  if (rank_main == nullptr) refuse("a simulated program needs a function; the one that it was given is null");
  if (o.ranks == 0 || o.ranks > most_ranks)
    refuse("a simulated program has 1 to " + std::to_string(most_ranks) + " ranks, not " + std::to_string(o.ranks));
  if (p.time_limit.count() < 0) refuse("a time limit must not be negative");
  if (p.what > befalls::death) refuse("the fault of the run is none of the values of `befalls`");
  if (o.detection_ns <= 0)
    refuse("the time within which deaths are noticed (detection_ns) must be positive, not " +
           std::to_string(o.detection_ns) + " ns");
  const link_model& l = o.link;
  if (l.latency_ns < 0 || l.per_message_ns < 0 || l.landing_ns < 0) refuse("the times of a link must not be negative");
  if (!(l.ns_per_byte >= 0 && l.ns_per_byte < 1e9) || !(l.one_sided_ns_per_byte >= 0 && l.one_sided_ns_per_byte < 1e9))
    refuse("the time of a link for a byte must be 0 to 1e9 ns");
  if (l.ranks_per_host == 0) refuse("a host must have at least one rank");
  if (o.starved >= o.ranks) refuse("the starved rank must be a rank of the world");
  if (!o.offsets.empty() && o.offsets.size() != o.ranks) refuse("give clock offsets for all ranks, or for none");
}

}  // namespace

int status_of_virtual(const world_options& o, ops::rank_function rank_main, const program_options& p) {
  check(o, rank_main, p);
  constexpr std::int64_t second_ns = 1'000'000'000;
  const run_guard guard(static_cast<unsigned>((p.time_limit.count() + second_ns - 1) / second_ns));
  program_options first = p;
  if (p.what != befalls::weather) first.what = befalls::nothing;
  const played undisturbed = play(o, rank_main, first, nullptr);
  const int status = status_of(undisturbed);
  if (status != 0) return status;
  if (p.what == befalls::control_weather) return status_of(play(o, rank_main, p, nullptr, &undisturbed));
  if (p.what != befalls::death) return 0;
  dice luck(o.seed, purpose::fault);
  mishap death;
  death.what = mishap::kind::crash;
  death.rank = static_cast<rank_id>(luck.below(o.ranks));
  death.at_ns = luck.between(0, undisturbed.last_end_ns);
  const played disturbed = play(o, rank_main, p, &death, &undisturbed);
  if (run_guard::time_is_over()) return run_guard::status_of_limit;
  return ended_well(disturbed, o, death) ? 0 : 1;
}

bool run_virtual(const world_options& o, ops::rank_function rank_main, const program_options& p) {
  return status_of_virtual(o, rank_main, p) == 0;
}

namespace {

[[noreturn]] void refuse_word(const std::string& word, bool simulated) {
  const std::string option = word.substr(0, word.find('='));
  if (is_flag(option)) refuse(option + (option == word ? " is given twice; give it once" : " takes no value"));
  std::string known;
  for (const char* name : with_a_value) known += std::string(name) + ", ";
  for (const char* name : flags) known += std::string(name) + (name == flags.back() ? "" : ", ");
  const std::string taken = simulated
                                ? "not an option of a simulated run, which takes " + known
                                : "not an option of this program, which takes --strict, and with --sim N also " + known;
  refuse("`" + word + "` is " + taken +
         "; correct it, or, if the program reads options of its own, let it call "
         "simulation::run(argc, argv, rank_main, simulation::program_words::own)");
}

void print_usage(const char* program) {
  std::printf("%s [--strict]            one rank, or with `parley run -n 4 %s` several\n"
              "%s --sim N [options]     N virtual ranks in this process, in virtual time\n"
              "\n"
              "  --strict                messages that no rank took are a failure, with status 3\n"
              "  --seed S, --seeds K     of runs in virtual time: the first, and how many\n"
              "  --weather               messages come late, out of order and twice, and ranks stop for a while\n"
              "  --control-weather       only control messages do\n"
              "  --deaths                in a second run a rank dies\n"
              "  --time-limit S          end after so many seconds of real time, with status 124\n"
              "  --latency, --bandwidth, --sharing, --ranks-per-host, --links\n"
              "                          of the links between virtual ranks (docs/simulation.md)\n"
              "  --mutant NAME           break the protocol on purpose\n",
              program, program, program);
}

bool asks_for_help(int argc, const char* const* argv) {
  return std::any_of(argv + std::min(argc, 1), argv + argc,
                     [](const char* word) { return std::strcmp(word, "--help") == 0 || std::strcmp(word, "-h") == 0; });
}

}  // namespace

std::vector<std::string> own_words(int argc, const char* const* argv) {
  std::vector<std::string> own;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (has_a_value(word)) {
      if (word.find('=') != std::string_view::npos) continue;
      const bool has_value =
          i + 1 < argc && (argv[i + 1][0] != '-' || (argv[i + 1][1] >= '0' && argv[i + 1][1] <= '9'));
      if (has_value) ++i;  // `run` reports a missing value
    } else if (!is_flag(word)) {
      own.emplace_back(argv[i]);
    }
  }
  return own;
}

int run(int argc, char** argv, ops::rank_function rank_main, program_words words,
        ops::undelivered_messages undelivered) {
  if (words == program_words::none && asks_for_help(argc, argv)) {
    print_usage(argv[0]);
    return 0;
  }
  try {
    if (flag(argc, argv, "--strict")) undelivered = ops::undelivered_messages::fail;
    undelivered = ops::heed_strict(undelivered);
    const auto seed = option(argc, argv, "--seed");
    const auto ranks = option(argc, argv, "--sim", "a number of ranks");
    if (!ranks) {
      for (int i = 1; i < argc || seed; ++i) {
        const std::string word = seed ? "--seed" : argv[i];
        if (is_flag(word) || has_a_value(word))
          refuse("`" + word + "` is for virtual ranks; say how many with --sim N");
      }
      if (words == program_words::none && argc > 1) refuse_word(argv[1], false);
      return ops::run(argc, argv, rank_main, {.undelivered = undelivered});
    }
    if (std::getenv(transports::variable::rank) != nullptr)
      refuse("--sim runs all ranks in one process, and PARLEY_RANK says that this is one of several; start the program "
             "by itself, not with parley run");
    const std::uint64_t first = seed.value_or(1);
    const std::uint64_t seeds = option(argc, argv, "--seeds").value_or(1);
    if (seeds == 0) refuse("--seeds takes 1 or more");
    if (seeds - 1 > std::numeric_limits<std::uint64_t>::max() - first)
      refuse("--seeds " + std::to_string(seeds) + " goes beyond the last seed when the first one is " +
             std::to_string(first));
    const bool weather = flag(argc, argv, "--weather");
    const bool control = flag(argc, argv, "--control-weather");
    const bool deaths = flag(argc, argv, "--deaths");
    if (int{weather} + int{control} + int{deaths} > 1)
      refuse("--weather, --control-weather and --deaths are three kinds of runs; give one of them");
    constexpr std::uint64_t longest_limit_s = 1'000'000;
    const auto limit_s = option(argc, argv, "--time-limit", "a number of seconds");
    if (limit_s) static_cast<void>(number_between(*limit_s, 1, longest_limit_s, "--time-limit"));
    program_options p;
    p.undelivered = undelivered;
    if (weather) p.what = befalls::weather;
    if (control) p.what = befalls::control_weather;
    if (deaths) p.what = befalls::death;
    static_cast<void>(number_between(*ranks, 1, most_ranks, "--sim"));
    p.mutant = text_option(argc, argv, "--mutant").value_or("");
    world_options o;
    o.ranks = static_cast<rank_id>(*ranks);
    o.link = links_of(argc, argv);
    o.settings.masked = ops::heed_masks({}, &ops::own_variable);
    o.settings.rules = ops::heed_rules({}, &ops::own_variable);
    for (const std::string& text : ops::masks_of_nobody(o.settings.masked, o.ranks))
      std::fprintf(stderr, "warning: %s\n", text.c_str());
    o.settings.flight_records = std::clamp<std::size_t>(most_records_of_all / *ranks, 16, most_records);
    if (words == program_words::none && argc > 1) refuse_word(argv[1], true);
    const run_guard guard(static_cast<unsigned>(limit_s.value_or(0)));
    for (std::uint64_t i = 0; i < seeds; ++i) {
      o.seed = first + i;
      const int status = status_of_virtual(o, rank_main, p);
      if (status == 0) continue;
      if (status == run_guard::status_of_limit && seeds > 1)
        std::fprintf(stderr, "%llu of %llu seeds have ended well; the limit covers all of them together\n",
                     static_cast<unsigned long long>(i), static_cast<unsigned long long>(seeds));
      else
        tell_how_to_repeat(o.seed);
      return status;
    }
    return 0;
  } catch (const runtime::failure& f) {
    std::fprintf(stderr, "%s\n", f.what());
    return 2;
  }
}

}  // namespace parley::simulation

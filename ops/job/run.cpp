#include <parley/run.hpp>

#include <parley/actors/services.hpp>
#include <parley/cuda_link.hpp>
#include <parley/cuda_space.hpp>
#include <parley/news.hpp>
#include <parley/ops/job/check_process.hpp>
#include <parley/ops/job/death_notices.hpp>
#include <parley/ops/job/flight_signal.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/ops/job/program_error.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/job/rank_peers.hpp>
#include <parley/ops/job/results_store.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/record/waiting_call.hpp>
#include <parley/runtime/wire/incarnations.hpp>
#include <parley/transports/files/file_storage.hpp>
#include <parley/transports/files/open_files.hpp>
#include <parley/transports/join/bootstrap_meeting.hpp>
#include <parley/transports/join/heartbeat.hpp>
#include <parley/transports/join/meeting.hpp>
#include <parley/transports/join/rendezvous.hpp>
#include <parley/transports/join/siphash.hpp>
#include <parley/transports/launch/environment.hpp>
#include <parley/transports/ucx/ucx_link.hpp>
#include <parley/tunable_context.hpp>

#include <boost/asio/io_context.hpp>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace parley::ops {

using runtime::errc;
using runtime::reactor;

namespace {

std::size_t processors(const std::vector<std::uint64_t>& mask) {
  std::size_t count = 0;
  for (const std::uint64_t word : mask) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

bool inside(const std::vector<std::uint64_t>& part, const std::vector<std::uint64_t>& whole) {
  for (std::size_t i = 0; i < part.size(); ++i) {
    if ((part[i] & ~(i < whole.size() ? whole[i] : 0)) != 0) return false;
  }
  return true;
}

constexpr time_ns longest_spin_beside_gpu_ns = 2'000'000;

// If ranks outnumber the processors that they may use, they must yield while they wait for each other.
reactor::sharing sharing_of(const std::vector<transports::member>& members, rank_id self) {
  const transports::member& me = members[self];
  if (members.size() == 1 || me.affinity.empty()) return reactor::sharing::own_core;
  const auto crowded = [&](const std::vector<std::uint64_t>& mask) {
    const auto within = std::count_if(members.begin(), members.end(), [&](const transports::member& m) {
      return m.host == me.host && inside(m.affinity, mask);
    });
    return static_cast<std::size_t>(within) > processors(mask);
  };
  const bool shared = std::any_of(members.begin(), members.end(), [&](const transports::member& m) {
    return m.host == me.host && inside(me.affinity, m.affinity) && crowded(m.affinity);
  });
  return shared ? reactor::sharing::shared_core : reactor::sharing::own_core;
}

std::string processor_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

/// Prints without the rank's number if it is not known yet.
void complain(std::optional<rank_id> rank, const std::string& what) {
  const std::string who = rank ? "rank " + std::to_string(*rank) + ": " : "";
  std::fprintf(stderr, "parley: %s%s\n", who.c_str(), what.c_str());
}

/// The names of the variables that are set and that parley reads.
std::vector<std::string> own_variables_set() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("PARLEY_") || text.starts_with("PYTORCH_TUNABLEOP_"))
      names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

void complain_of_unknown_variables(rank_id rank) {
  static bool done = false;
  if (std::exchange(done, true)) return;
  for (const std::string& w : unknown_variables(own_variables_set())) complain(rank, "warning: " + w);
}

int status_of(parting how) {
  switch (how) {
    case parting::in_peace: return 0;
    case parting::refused: return 1;
    case parting::undelivered: return undelivered_status;
  }
  return 1;
}

// A rank that ends with an error waits twice: if a send failed, until the cause of that failure is known; then until rank 0 has passed on
// the error.
struct farewell {
  static constexpr time_ns limit_ns = 1'000'000'000;  // rank 0 may be computing
  static constexpr time_ns look_every_ns = 2'000'000;
  static runtime::task<> until_traced(const rank* self, const runtime::error* why) {
    if (why->code() != errc::send_failed) co_return;
    runtime::scope& here = co_await runtime::this_scope;
    const time_ns until = here.where().deadline_in(limit_ns);
    while (self->traced(*why).began_with() == nullptr && here.where().now() < until) {
      auto slept = co_await runtime::sleep_until(std::min(here.where().deadline_in(look_every_ns), until));
      if (!slept) break;
    }
  }
  runtime::task<> until_heard() {
    runtime::scope& here = co_await runtime::this_scope;
    const time_ns until = here.where().deadline_in(limit_ns);
    while (!heard) {
      auto woken = co_await changed.next(until);
      if (!woken) break;
    }
  }
  bool heard = false;
  runtime::news changed;
};

}  // namespace

undelivered_messages heed_strict(undelivered_messages mine) {
  const auto on = heed_switch("PARLEY_STRICT", &own_variable);
  if (!on) return mine;
  return *on ? undelivered_messages::fail : undelivered_messages::warn;
}

struct job::state final : runtime::link::failure_handler, rank_peers {
  state(std::unique_ptr<reactor> made, job_options o)
      : loop(std::move(made)), detection_ns(heed_detection(o.detection.count(), &own_variable)),
        settle_limit(o.settle_limit), undelivered(heed_strict(o.undelivered)) {
    o.settings.masked = heed_masks(std::move(o.settings.masked), &own_variable);
    if (o.bootstrap) {
      join_through(o);
    } else {
      join_by_environment(o);
    }
    for (const transports::member& m : all.members) wire->connect(m.rank, m.address, restarts_of(m.rank));
    loop->set_sharing(sharing_of(all.members, place.rank));
    if (o.gpu != nullptr) {
      // A peer's copy engine takes longer to write here than any message, and waking up takes 0.1 ms. So the loop spins longer.
      loop->set_longest_spin(longest_spin_beside_gpu_ns);
      open_gpu(o);
    }
    make_rank(std::move(o));
    start_heart();
    for (const auto& news : std::exchange(early, {})) news();
    complain_of_warnings();
  }
  ~state() {
    // The order matters: none of these may call an object that is gone.
    heart.reset();
    alive.reset();
    meeting.reset();
    last_words.clear();
    goodbyes.clear();
    if (wire) wire->on_failure(nullptr);
    on_signal.reset();
    if (over_gpu) {
      if (over_gpu->nccl() != nullptr) loop->detach(*over_gpu->nccl());
      over_gpu->end_joint();
    }
    if (self) keep_results_of_unfinished();
    if (self) self->abandon_rehearsals();
    if (copies) copies->drain();
    notices.reset();
    self.reset();
    over_gpu.reset();
    if (wire) loop->detach(*wire);
    wire.reset();
    if (copies) loop->detach(*copies);
  }

  // For a job that ends without `write_results`, perhaps by an exception. By now the other ranks know of its end.
  void keep_results_of_unfinished() noexcept {
    if (::getpid() != process) return;  // a forked child, which lacks the thread that may be writing
    try {
      if (self->settings().write_results_soon && self->learned() != kept) static_cast<void>(self->write_results());
    } catch (const std::exception& e) {
      complain(place.rank, std::string("warning: the latest decisions are not written: ") + e.what());
    }
  }

  // Ranks of one host take its devices in turn.
  void open_gpu(const job_options& o) {
    const auto before = std::count_if(all.members.begin(), all.members.begin() + place.rank,
                                      [&](const auto& m) { return m.host == all.members[place.rank].host; });
    const auto count = static_cast<std::ptrdiff_t>(o.gpu->devices().size());
    const int device = o.device.value_or(static_cast<int>(before % count));
    // Set first: CUDA makes a context on the current device. If device 0 stayed current, every rank would make a context there.
    o.gpu->make_current(device);
    copies.emplace(*o.gpu, device, transports::cuda_copies::shared_by(*o.gpu, 1, o.copies));
    memory_of_gpu.emplace(*copies);
    loop->attach(*copies);
    transports::cuda_link::options planes = o.planes;
    has = machine::with_gpu(*o.gpu, copies->device(), o.planes.nccl);
    machine less = has;
    less.mask(o.settings.masked, place.rank);
    if (const auto nccl = less.has("nccl"); !nccl) {
      planes.nccl = nullptr;
      planes.no_nccl = nccl.reason().text();
    }
    if (const auto ipc = less.has("ipc"); !ipc) planes.no_ipc = ipc.reason().text();
    over_gpu.emplace(*wire, *copies, std::move(planes));
    if (over_gpu->nccl() != nullptr) loop->attach(*over_gpu->nccl());
  }
  runtime::link& net() noexcept {
    if (over_gpu) return *over_gpu;
    return *wire;
  }

  static std::uint64_t tag_of(void* seal, std::span<const std::byte> header, std::span<const std::byte> body) noexcept {
    return static_cast<transports::siphash*>(seal)->tag(header, body);
  }

  // UCX has to find CUDA's context on this thread. So this chooses a device before this rank knows its place among the ranks of this host.
  void open_wire(bool one_host, const job_options& with) {
    transports::ucx_link::options o;
    o.reach = one_host ? transports::ucx_reach::one_host : transports::ucx_reach::several_hosts;
    transports::allow_open_files(transports::files_of_rank(place.rank, place.world_size, o.reach)).value();
    const bool moves_devices = heed_switch("PARLEY_UCX_CUDA", own_variable).value_or(false);
    if (with.gpu != nullptr && moves_devices) {
      const auto count = static_cast<int>(with.gpu->devices().size());
      with.gpu->make_current(with.device.value_or(static_cast<int>(place.local_rank.value_or(0)) % count));
      o.memory = transports::ucx_memory_kinds::host_and_devices;
    }
    o.rank = place.rank;
    o.world_size = place.world_size;
    o.restarts = place.restarts;
    wire.emplace(o);
    loop->attach(*wire);
  }

  /// This process's entry in the list of members, for the other ranks.
  transports::member introduction(const job_options& o) const {
    transports::member me = transports::this_process(wire->address());
    me.kind = o.kind;
    if (me.kind.empty() && o.gpu != nullptr && !o.gpu->devices().empty()) {
      const auto& of_host = o.gpu->devices();
      const auto in_turn = static_cast<std::size_t>(place.local_rank.value_or(0));
      me.kind = of_host[(o.device ? static_cast<std::size_t>(*o.device) : in_turn) % of_host.size()].name;
    }
    if (me.kind.empty()) me.kind = processor_model();
    if (const std::string masked = text_of(o.settings.masked, place.rank); !masked.empty())
      me.kind += " without " + masked;
    if (me.kind.size() > transports::member::max_kind_bytes) me.kind.resize(transports::member::max_kind_bytes);
    return me;
  }

  void join_by_environment(const job_options& o) {
    const time_ns limit_ns = o.join_timeout.count();
    auto found = transports::find_meeting(transports::from_environment().value(), limit_ns).value();
    place = found.place;
    if (place.max_restarts > 0 && o.gpu != nullptr)
      runtime::raise({errc::unavailable,
                      "ranks with GPUs cannot be restarted yet; unset PARLEY_MAX_RESTARTS, or run without --restarts"});
    open_wire(transports::on_one_host(place), o);
    transports::rendezvous_options at = transports::options_for(found);
    at.reach = o.reach;
    at.is_address = &transports::ucx_link::is_address;
    meeting.emplace(loop->io(), std::move(at), std::move(found.key));
    std::optional<runtime::result<transports::joined>> outcome;
    meeting->on_member_lost([this](rank_id lost, const std::string& why) { on_dead(lost, why); });
    meeting->on_member_left([this](rank_id left, const runtime::root_cause& why) { on_left(left, why); });
    meeting->on_member_restarted([this](const transports::member& anew) { on_restarted(anew); });
    meeting->join(introduction(o), [&](runtime::result<transports::joined> j) { outcome.emplace(std::move(j)); });
    say_if_late(limit_ns, [&] { return outcome.has_value(); });
    all = std::move(*outcome).value();
    found.published.remove();
    if (place.rank == 0 && place.world_size > 1 && !all.authenticated && o.reach != transports::exposure::insecure)
      complain(place.rank, "warning: this job has no key, so other users of this host can take a rank's place; set "
                           "PARLEY_KEY_FILE on every rank to a 0600 file with 32 random bytes");
    loop->watch([this] { return meeting ? meeting->descriptors() : std::vector<int>(); });
  }

  /// Waits until `joined` returns true. If that takes long, rank 0 prints once what the job waits for; if rank 0 does not reply, rank 1
  /// prints it.
  template <class Joined>
  void say_if_late(time_ns limit_ns, Joined joined) {
    constexpr time_ns long_ns = 5'000'000'000;
    const time_ns late_ns = std::min(long_ns, limit_ns / 2);
    runtime::timer wakes([](runtime::timer&) noexcept {});
    loop->arm_in(wakes, late_ns);
    runtime::run_until(*loop, [&] { return joined() || !wakes.linked(); });
    const std::string awaited = place.rank <= 1 && !joined() ? meeting->awaited() : std::string();
    const bool ends = limit_ns < runtime::never / 2;
    if (!awaited.empty())
      complain(place.rank, "waiting for " + awaited +
                               (ends ? ", for " + runtime::span_in_words(limit_ns - late_ns) + " at most" : ""));
    runtime::run_until(*loop, joined);
  }

  void join_through(const job_options& o) {
    const transports::bootstrap& through = *o.bootstrap;
    place.rank = through.rank;
    place.world_size = through.world_size;
    transports::bootstrap_meeting exchange(through);
    place.job = exchange.job();
    open_wire(exchange.one_host(), o);
    all = exchange.join(introduction(o));
  }

  void make_rank(job_options o) {
    runtime::router::options mail;
    mail.job = place.job;
    if (all.authenticated) {
      seal.emplace(all.session_key);
      mail.seal = {&tag_of, &*seal};
    }
    std::vector<std::uint64_t> incarnations;
    std::vector<std::uint64_t> hosts;
    std::vector<std::string> kinds;
    for (const transports::member& m : all.members) {
      incarnations.push_back(m.incarnation);
      hosts.push_back(m.host);
      kinds.push_back(m.kind);
    }
    for (tuning::validator& v : machine_validators(o)) {
      const auto is_same = [&](const tuning::validator& mine) { return mine.name == v.name; };
      if (std::ranges::none_of(o.settings.validators, is_same)) o.settings.validators.push_back(std::move(v));
    }
    const rank_settings settings = with_environment(std::move(o));
    rank_foundation on{*loop, net(), &disk, std::move(incarnations), mail, std::move(hosts), std::move(kinds)};
    on.ranks_come_back = place.max_restarts > 0;
    on.detection_ns = detection_ns;
    on.has = std::move(has);
    on.held_dead = [this] { return why_fenced(); };
    on.stands_still = [this](rank_id peer) { return heart ? heart->stands_still(peer) : 0; };
    on.hear_news = [this] {
      loop->io().poll();
      for (const auto& word : last_words) word->hear();
      peers().hear_verdicts();
      for (rank_id peer = 0; peer < place.world_size; ++peer) {
        if (wire->has_cut(peer)) peers().hear(peer, actors::evidence::link_cut);
      }
    };
    // Posted, because the transport may be about to report the same death, and knows more about it.
    on.give_up = [this](rank_id lost, const std::string& why) {
      on_loop_of(lost, [this, lost, why] { hear_of_death(lost, actors::evidence::found_dead, why); });
    };
    self.emplace(std::move(on), settings);
    begin(place.world_size, *self);
    if (told.verbosity > 0) tell_line(std::to_string(self->remembered().entries().size()) + " results were remembered");
    warn_of_results_folder(settings);
    if (place.rank == 0) {  // masks are the same on all ranks
      for (const std::string& w : masks_of_nobody(settings.masked, place.world_size)) complain(0, "warning: " + w);
    }
    if (!settings.flight_dir.empty() && ::access(settings.flight_dir.c_str(), W_OK | X_OK) != 0)
      complain(place.rank, "warning: the flight recorder will not be written to " + settings.flight_dir + ": " +
                               std::strerror(errno) + "; make the folder or change PARLEY_FLIGHT_DIR");
    on_signal.emplace(loop->io(), [this, &folder = self->settings().flight_dir] { dump_on_signal(folder); });
    if (spans_hosts())
      notices.emplace(
          *loop, self->services().mail, all.members, place.rank, [this](rank_id r) { return newest_in(r); },
          [this](rank_id dead, const std::string& why) { on_dead(dead, why); });
    wire->on_failure(this);
    wire->ask_for_last_words([this](rank_id peer) { return is_word_due(peer); });
    wire->ask_whether_living([this](rank_id peer) { return may_go_on(peer); });
  }

  // Warns before the work begins if its results could not be written. A read-only folder causes no warning, because it may be intended.
  void warn_of_results_folder(const rank_settings& settings) const {
    if (settings.results_path.empty() || !settings.write_results_soon) return;
    const std::string path = tuning::name_with_ordinal(settings.results_path, place.rank);
    const std::string folder = missing_folder_of(path);
    if (!folder.empty())
      complain(place.rank, "warning: there is no folder " + folder + " for the results in " + path +
                               "; make the folder or change PARLEY_RESULTS");
  }

  // Without a named folder, makes a temporary one. The signal is handled in that case too, because its default action would end the
  // process.
  void dump_on_signal(const std::string& named) {
    if (named.empty() && signal_folder.empty()) {
      std::error_code none;
      std::string made = (std::filesystem::temp_directory_path(none) / "parley-flight-XXXXXX").string();
      if (::mkdtemp(made.data()) != nullptr) signal_folder = made;
    }
    const auto written = self->dump_flight("signal SIGUSR1", named.empty() ? signal_folder : named);
    complain(place.rank, written ? "the flight recorder is in " + *written + " (signal SIGUSR1)"
                                 : "warning: the flight recorder was not written: " + written.reason().text());
  }

  rank_settings with_environment(job_options o) {
    heeded_environment heeded = heed_environment(std::move(o.settings), &own_variable, own_variables_set());
    told = heeded.told;
    for (const std::string& w : heeded.warnings) complain(place.rank, "warning: " + w);
    complain_of_unknown_variables(place.rank);
    rank_settings& s = heeded.settings;
    if (told.verbosity > 0 && !s.tell) s.tell = [this](const std::string& line) { tell_line(line); };
    std::error_code none;
    if (s.spare_folder.empty()) s.spare_folder = std::filesystem::temp_directory_path(none).string();
    return std::move(s);
  }
  /// Prints the warnings that were not printed yet.
  void complain_of_warnings() {
    for (; warnings_printed < self->warnings().size(); ++warnings_printed)
      complain(place.rank, "warning: " + self->warnings()[warnings_printed]);
    const auto& of_kernels = self->kernels().warnings();
    for (; kernel_warnings_printed < of_kernels.size(); ++kernel_warnings_printed)
      complain(place.rank, "warning: " + of_kernels[kernel_warnings_printed]);
  }
  void tell_line(const std::string& line) {
    const std::string text = "parley: rank " + std::to_string(place.rank) + ": " + line + "\n";
    if (told.verbose_file == "err" || told.verbose_file == "out") {
      std::fputs(text.c_str(), told.verbose_file == "err" ? stderr : stdout);
    } else if (const auto written = disk.append(told.verbose_file, text); !written) {
      complain(place.rank, "warning: " + written.reason().what());
    }
  }

  void start_heart() {
    transports::heartbeat::options o;
    o.rank = place.rank;
    o.world_size = place.world_size;
    o.page = transports::heartbeat::page_name(place.job, all.session_key);
    o.detection_ns = detection_ns;
    for (const transports::member& m : all.members) {
      if (m.rank != place.rank && m.host == all.members[place.rank].host) o.watched.push_back(m.rank);
    }
    if (o.watched.empty() || detection_ns == 0) return;
    o.restarts = place.restarts;
    if (all.rejoined) o.comes = transports::heartbeat::arrival::rejoined;
    for (const rank_id r : o.watched) o.pids.push_back(pid_of(r));
    o.turns = [loop = &*loop] { return loop->turns_so_far(); };
    transports::heartbeat::events to;
    // Asks the heartbeat again on the loop, because a newer process may be in that place by then.
    to.on_lost = [this](rank_id, const std::string&) {
      on_loop([this] {
        for (const auto& [dead, why] : heart->lost()) hear_of_death(dead, actors::evidence::fell_silent, why);
        tell_other_hosts();
      });
    };
    to.on_fenced = [this](const std::string&) { on_loop([this] { peers().see_whether_fenced(); }); };
    auto started = transports::heartbeat::start(std::move(o), std::move(to));
    if (started) {
      heart = std::move(started).value();
      for (const transports::member& m : all.members) {
        if (restarts_of(m.rank) > 0) heart->expect(m.rank, restarts_of(m.rank), pid_of(m.rank));
      }
    } else {
      complain(place.rank, "warning: this rank cannot notice that another rank is stopped: " + started.reason().what());
    }
  }
  /// Tells other hosts of deaths in place of rank 0, which is gone. Two ranks of each host do this, because one may be about to leave.
  void tell_other_hosts() {
    if (!notices || !heart || (meeting && !without_rank_0)) return;
    const auto living = heart->living();
    if (std::count_if(living.begin(), living.end(), [&](rank_id r) { return r < place.rank; }) > 1) return;
    for (const auto& [dead, why] : heart->lost()) {
      if (peers().of(dead) == actors::standing::lost) notices->tell(dead, why);
    }
  }
  bool spans_hosts() const {
    const auto is_elsewhere = [&](const transports::member& m) { return m.host != all.members[place.rank].host; };
    return std::any_of(all.members.begin(), all.members.end(), is_elsewhere);
  }
  /// Runs `does` on this rank's thread, if this object still lives then. Called by the heartbeat's thread.
  template <class Does>
  void on_loop(Does does) {
    loop->post([does = std::move(does), still = std::weak_ptr<bool>(alive)] {
      if (!still.expired()) does();
    });
  }
  /// Like `on_loop`, for news about the process that is in a rank's place now. First reads unread messages, because that process may itself
  /// have sent news. If a newer process has come by then, drops the news.
  template <class Does>
  void on_loop_of(rank_id peer, Does does) {
    on_loop([this, peer, which = all.members[peer].incarnation, does = std::move(does)] {
      loop->io().poll();
      if (all.members[peer].incarnation == which) does();
    });
  }
  /// The process id of a rank; 0 if the id would name another process here, in another namespace of ids.
  std::uint32_t pid_of(rank_id r) const {
    const std::uint64_t here = all.members[place.rank].pids_of;
    return here != 0 && all.members[r].pids_of == here ? all.members[r].pid : 0;
  }
  std::uint64_t newest_in(rank_id r) const {
    const auto waits = coming.find(r);
    return waits == coming.end() ? all.members[r].incarnation : waits->second.incarnation;
  }
  std::uint32_t restarts_of(rank_id r) const { return runtime::restarts_of(all.members[r].incarnation); }

  // ---- evidence about other ranks (actors/membership) -----------------------------------------------------------------

  /// Called when the rendezvous, or a rank of another host, says that the rank is dead.
  void on_dead(rank_id dead, const std::string& why) {
    if (!self) {
      early.emplace_back([this, dead, why] { on_dead(dead, why); });
      return;
    }
    hear_of_death(dead, actors::evidence::said_dead, why);
  }
  void hear_of_death(rank_id dead, actors::evidence of, const std::string& why) {
    peers().hear(dead, of, {why, {}});
    if (dead != 0 || peers().of(0) != actors::standing::lost) return;
    lose_rank_0();
    if (!std::exchange(warned_of_host, true))
      complain(place.rank,
               "warning: rank 0, which hosts the rendezvous, is gone: " + why + "; ops without that rank continue");
  }
  void on_left(rank_id left, const runtime::root_cause& why) {
    if (!self) {
      early.emplace_back([this, left, why] { on_left(left, why); });
      return;
    }
    constexpr time_ns pause_ns = 20'000'000;  // UCX may be connecting, and keep a refusal for so long
    last_words.push_back(
        std::make_unique<late_news>(*this, left, pause_ns, 1, [this, left, why] { hear_left(left, why); }));
    if (left == 0) lose_rank_0();
  }
  /// Acts now on the news that a rank has sent of its own end.
  void hear_last_words(rank_id of) {
    for (const auto& word : last_words) {
      if (word->who == of) word->hear();
    }
  }
  /// Called when a new process is in the place of a rank whose loss was reported before.
  void on_restarted(const transports::member& anew) {
    if (!self) {
      early.emplace_back([this, anew] { on_restarted(anew); });
      return;
    }
    hear_last_words(anew.rank);
    coming.insert_or_assign(anew.rank, anew);
    peers().hear(anew.rank, actors::evidence::newer_process);
  }
  void on_peer_failed(rank_id peer) noexcept override {
    on_loop_of(peer, [this, peer] {
      hear_last_words(peer);
      if (over_gpu) over_gpu->on_peer_failed(peer);
      const bool replaced = peers().of(peer) == actors::standing::replaced;
      const bool cut = wire->has_cut(peer) && !replaced;
      // Rank 0 reports ranks that have returned, but not while it computes. The heartbeat also knows them.
      if (!replaced && heart && heart->has_returned(peer)) peers().hear(peer, actors::evidence::said_goodbye);
      peers().hear(peer, cut ? actors::evidence::link_cut : actors::evidence::link_broke,
                   {cut ? torn_down : "its connection broke", {}});
      if (peer == 0 && peers().of(0) == actors::standing::lost) lose_rank_0();
    });
  }
  /// True if the peer is about to say with which error it ends: most likely so if its connection broke while its process still runs.
  bool is_word_due(rank_id peer) const {
    const std::uint32_t pid = pid_of(peer);
    return peers().of(peer) == actors::standing::in_touch && !wire->has_cut(peer) && pid != 0 &&
           transports::heartbeat::runs(pid);
  }
  /// True if the peer's process may still read or write the buffers of operations that this rank gives up.
  bool may_go_on(rank_id peer) const {
    const std::uint32_t pid = pid_of(peer);
    if (pid == 0) return peers().of(peer) == actors::standing::in_touch;  // on another host
    const auto held_dead = verdicts();
    return transports::heartbeat::runs(pid) &&
           std::none_of(held_dead.begin(), held_dead.end(), [peer](const auto& v) { return v.first == peer; });
  }
  void lose_rank_0() {
    without_rank_0 = true;
    tell_other_hosts();
  }

  // ---- effects of that evidence ---------------------------------------------------------------------------------------

  void close_link(rank_id peer) noexcept override { wire->give_up(peer); }
  bool link_is_down(rank_id peer) const noexcept override { return wire->has_failed(peer); }
  /// A rank that has returned no longer replies. If this rank never connected to it, no connection breaks to show that, so the rank counts
  /// as gone after a pause.
  void await_goodbye(rank_id peer) override {
    constexpr time_ns pause_ns = 50'000'000;
    constexpr int looks = 5;
    const auto counts = [this, peer, process_then = all.members[peer].incarnation] {
      if (all.members[peer].incarnation == process_then) peers().hear(peer, actors::evidence::goodbye_is_over);
    };
    goodbyes.push_back(std::make_unique<late_news>(*this, peer, pause_ns, looks, counts));
  }
  void publish_death(rank_id peer) noexcept override {
    if (heart) heart->hold_dead(peer);
  }
  std::vector<std::pair<rank_id, std::string>> verdicts() const override {
    return heart ? heart->lost() : std::vector<std::pair<rank_id, std::string>>();
  }
  void pass_on(rank_id dead, const std::string& why) override {
    if (meeting && spans_hosts()) meeting->hold_dead(all.members[dead], why);
  }
  std::optional<std::uint64_t> meet(rank_id peer) override {
    const auto found = coming.find(peer);
    if (found == coming.end()) return std::nullopt;
    const transports::member came = std::move(found->second);
    coming.erase(found);
    // Rank 0 admits no such process.
    if (!transports::ucx_link::is_address(came.address)) {
      complain(place.rank, "warning: rank " + std::to_string(peer) +
                               " has restarted, but its entry has no UCX address; the rank stays lost until another "
                               "process takes its place");
      return std::nullopt;
    }
    all.members[peer] = came;
    wire->connect(peer, came.address, restarts_of(peer));
    if (heart) heart->expect(peer, restarts_of(peer), pid_of(peer));
    return came.incarnation;
  }
  std::string why_fenced() const override { return heart ? heart->fenced() : std::string(); }
  /// News that a rank ends. Messages that it sent before, such as a refusal, travel another way and may still be unread here. So the news
  /// takes effect only after `looks` pauses, in each of which this rank reads messages; or at once, if `hear` is called.
  struct late_news : runtime::timer {
    late_news(state& s, rank_id r, time_ns pause, int looks, std::function<void()> f)
        : timer(&on_pause), of(s), who(r), pause_ns(pause), looks_left(looks), counts(std::move(f)) {
      of.loop->arm_in(*this, pause_ns);
    }
    static void on_pause(timer& self) noexcept {
      auto& mine = static_cast<late_news&>(self);
      if (--mine.looks_left == 0) return mine.hear();
      mine.of.loop->arm_in(mine, mine.pause_ns);
    }
    void hear() {
      unlink();
      if (const auto f = std::exchange(counts, {})) f();
    }
    state& of;
    rank_id who;
    time_ns pause_ns;
    int looks_left;
    std::function<void()> counts;
  };

  std::unique_ptr<reactor> loop;
  transports::placement place;
  transports::joined all;
  transports::file_storage disk;
  std::optional<transports::cuda_copies> copies;  // ends after the link, for which it copies messages
  std::optional<transports::cuda_space> memory_of_gpu;
  machine has = machine::without_gpu();
  std::optional<transports::ucx_link> wire;
  std::optional<transports::cuda_link> over_gpu;
  std::optional<transports::rendezvous> meeting;
  std::optional<transports::siphash> seal;
  std::optional<rank> self;
  std::optional<death_notices> notices;  // to and from other hosts
  tuning::settings told;
  std::size_t warnings_printed = 0;
  std::size_t kernel_warnings_printed = 0;
  std::optional<flight_signal> on_signal;
  std::string signal_folder;
  std::vector<std::function<void()>> early;            // news of other ranks from before `self` was made
  std::map<rank_id, transports::member> coming;        // newer processes that this rank has not accepted yet
  std::vector<std::unique_ptr<late_news>> goodbyes;    // of ranks that have returned
  std::vector<std::unique_ptr<late_news>> last_words;  // news that ranks have sent of their own end
  farewell said;
  time_ns detection_ns;
  std::chrono::nanoseconds settle_limit;
  undelivered_messages undelivered;
  std::vector<tuning::result_entry> kept;  // the results that were last written to files
  pid_t process = ::getpid();
  bool warned_of_host = false;
  bool without_rank_0 = false;  // rank 0 is gone, and the rendezvous with it
  std::shared_ptr<bool> alive = std::make_shared<bool>(true);
  std::unique_ptr<transports::heartbeat> heart;
};

job::job(job_options o) : state_(std::make_unique<state>(std::make_unique<reactor>(), std::move(o))) {}
job::job(boost::asio::io_context& io, job_options o)
    : state_(std::make_unique<state>(std::make_unique<reactor>(io, reactor::options{}), std::move(o))) {}
// In a child process that fork() made, a job must not say goodbye, end threads that do not exist there, or close things that its parent
// uses.
job::~job() {
  if (state_->loop->forked()) static_cast<void>(state_.release());
}

rank& job::self() noexcept { return *state_->self; }
reactor& job::loop() noexcept { return *state_->loop; }
int job::report_descriptor() const noexcept { return state_->place.report_fd; }
bool job::authenticated() const noexcept { return state_->all.authenticated; }
const runtime::link& job::wire() const noexcept { return state_->net(); }
transports::cuda_copies* job::gpu() noexcept { return state_->copies ? &*state_->copies : nullptr; }
transports::cuda_space* job::gpu_memory() noexcept { return state_->memory_of_gpu ? &*state_->memory_of_gpu : nullptr; }

void job::write_results() {
  check_process(*state_->loop, "its results were to be written");
  state_->kept = state_->self->learned();
  const auto written = state_->self->write_results();
  state_->complain_of_warnings();
  if (!written && written.code() != errc::unavailable)
    complain(state_->place.rank, "warning: " + written.reason().what());
}

parting job::leave() {
  check_process(*state_->loop, "the job was left");
  runtime::run(*state_->loop, state_->self->settle(state_->settle_limit));
  // Writes decisions that have arrived since the last write. They were in flight then, perhaps from a leader to its own participant.
  if (state_->self->learned() != state_->kept) write_results();
  for (const std::string& w : state_->self->idle_pins()) complain(state_->place.rank, "warning: " + w);
  for (const std::string& w : state_->self->idle_masks()) complain(state_->place.rank, "warning: " + w);
  for (const std::string& w : state_->self->idle_rules()) complain(state_->place.rank, "warning: " + w);
  if (state_->place.rank == 0) {
    for (const std::string& w : idle_switches(own_variables_set(), state_->self->kernels()))
      complain(0, "warning: " + w);
  }
  for (const std::string& line : closing_lines(*state_->self, state_->told.verbosity)) state_->tell_line(line);
  const left_over left = state_->self->unfinished();
  for (const std::string& line : left.undelivered) complain(state_->place.rank, "warning: " + line);
  for (const std::string& line : left.rejected) complain(state_->place.rank, line);
  if (state_->heart) state_->heart->say_returned();
  if (state_->meeting) state_->meeting->leave();
  if (!left.rejected.empty()) return parting::refused;
  const bool strict = state_->undelivered == undelivered_messages::fail;
  return strict && !left.undelivered.empty() ? parting::undelivered : parting::in_peace;
}

// A rank that notices this rank's end only by a broken connection does not know the reason. So this rank keeps its connections until rank 0
// has told the others.
runtime::error job::leave_after(const runtime::error& why) {
  if (!state_->meeting || state_->loop->forked()) return why;
  runtime::run(*state_->loop, farewell::until_traced(&*state_->self, &why));
  const runtime::error traced = state_->self->traced(why);
  farewell& said = state_->said;
  state_->peers().leave();
  state_->meeting->leave(state_->self->cause_of(traced), [&said] {
    said.heard = true;
    said.changed.tell();
  });
  runtime::run(*state_->loop, said.until_heard());
  return traced;
}

std::vector<tuning::validator> machine_validators() {
  return {{"PARLEY_PROCESSOR", processor_model()}, {"PARLEY_UCX", transports::ucx_version()}};
}

std::vector<tuning::validator> machine_validators(const job_options& o) {
  std::vector<tuning::validator> all = machine_validators();
  if (o.gpu == nullptr) return all;
  for (tuning::validator& v : gpu_validators(*o.gpu)) all.push_back(std::move(v));
  if (o.planes.nccl != nullptr) all.push_back({"PARLEY_NCCL", transports::nccl_version_text(o.planes.nccl->version())});
  return all;
}

int run(const std::function<void(job&)>& program, job_options o) {
  std::optional<rank_id> id;
  if (o.bootstrap) id = o.bootstrap->rank;
  try {
    job here(std::move(o));
    id = here.self().id();
    try {
      program(here);
    } catch (...) {
      const runtime::error why = error_of_program(std::current_exception());
      if (!here.loop().forked()) static_cast<void>(here.self().dump_flight(why.what()));
      complain(id, here.leave_after(why).what());
      here.write_results();  // agreed results stay valid
      return 1;
    }
    if (here.loop().forked()) return 0;  // a forked child at its end: the job continues without it
    here.write_results();
    return status_of(here.leave());
  } catch (...) {
    if (const auto place = transports::from_environment(); place && !id) id = place->rank;
    complain(id, error_of_program(std::current_exception()).what());
    return 1;
  }
}

int run(int, char**, rank_function rank_main, job_options o) {
  return run([rank_main](job& here) { runtime::run(here.loop(), rank_main(here.self())); }, std::move(o));
}

}  // namespace parley::ops

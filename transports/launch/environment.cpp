#include <parley/transports/launch/environment.hpp>

#include <parley/number_text.hpp>

#include <boost/asio/ip/address.hpp>
#include <openssl/sha.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::rank_id;
using runtime::result;

namespace {

/// Looks variables up and keeps the first complaint, so that code which reads a placement need not check each step.
class reader {
 public:
  explicit reader(const variable_lookup& lookup) : lookup_(lookup) {}

  bool has(const char* name) const { return lookup_(name).has_value(); }
  std::string text(const char* name) const { return lookup_(name).value_or(""); }
  const variable_lookup& lookup() const { return lookup_; }
  const std::optional<error>& complaint() const { return complaint_; }

  void complain(const char* name, const std::string& advice) {
    if (complaint_) return;
    const auto value = lookup_(name);
    complaint_ = error(errc::malformed, value ? std::string(name) + "=" + shown(*value) + ": " + advice
                                              : std::string(name) + " is not set: " + advice);
  }

  /// A whole number in [low, high]; nothing if the variable is not set. Complains, and returns nothing, if it is anything else.
  std::optional<std::uint64_t> number(const char* name, std::uint64_t low, std::uint64_t high, int base = 10) {
    const auto value = lookup_(name);
    if (!value) return std::nullopt;
    const runtime::number_range<std::uint64_t> within{low, high};
    const auto parsed = base == 16 ? runtime::read_hexadecimal(*value, within) : runtime::read_number(*value, within);
    if (!parsed)
      complain(name, base == 16 ? "must be 1 to 16 hexadecimal digits" : "must be " + runtime::words_of(within));
    return parsed;
  }

  std::uint64_t required(const char* name, std::uint64_t low, std::uint64_t high, const char* beside) {
    if (!has(name))
      complain(name, std::string("it must be set together with ") + beside +
                         ", as the job's launcher does; start the program with that launcher, or unset both");
    return number(name, low, high).value_or(low);
  }

  int descriptor(const char* name) {
    const auto value = number(name, 3, static_cast<std::uint64_t>(std::numeric_limits<int>::max()));
    return value ? static_cast<int>(*value) : -1;
  }

 private:
  /// A value may come from anywhere and appears in a message for people. This keeps it from controlling or filling their terminal.
  static std::string shown(std::string value) {
    constexpr std::size_t most = 200;
    if (value.size() > most) value = value.substr(0, most) + "...";
    std::replace_if(
        value.begin(), value.end(), [](char c) { return static_cast<unsigned char>(c - 0x20) >= 0x5f; }, '?');
    return value;
  }

  const variable_lookup& lookup_;
  std::optional<error> complaint_;
};

/// The names that one launcher uses. The variables in `identity` distinguish its jobs.
struct dialect {
  launcher_kind launcher;
  const char* chosen_by;  ///< the value of PARLEY_LAUNCHER
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_size;
  const char* identity[4];
};

/// Launchers that are usually innermost come first: srun starts mpirun or torchrun more often than they start srun.
constexpr dialect dialects[] = {
    {launcher_kind::parley_run,
     "parley",
     variable::rank,
     variable::world,
     variable::local_rank,
     variable::local_size,
     {}},
    {launcher_kind::torchrun,
     "torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"}},
    {launcher_kind::open_mpi,
     "openmpi",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE"}},
    {launcher_kind::pmi, "pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {}},
    {launcher_kind::slurm,
     "slurm",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     nullptr,
     {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

/// True if variables of that launcher are set. Names that other tools use too need a second variable: RANK alone does not
/// mean torchrun, and a batch script has SLURM_PROCID although no srun started it.
bool speaks(const reader& in, const dialect& d) {
  switch (d.launcher) {
    case launcher_kind::torchrun:
      return (in.has("RANK") && (in.has("WORLD_SIZE") || in.has("MASTER_ADDR") || in.has("TORCHELASTIC_RUN_ID"))) ||
             (in.has("WORLD_SIZE") && (in.has("MASTER_ADDR") || in.has("TORCHELASTIC_RUN_ID")));
    case launcher_kind::pmi: return in.has("PMI_RANK") || in.has("PMI_SIZE") || in.has("PMI_FD");
    case launcher_kind::slurm:
      return in.has("SLURM_PROCID") && (in.has("SLURM_STEP_ID") || in.has("SLURM_STEP_NUM_TASKS"));
    default: return in.has(d.rank) || in.has(d.world);
  }
}

const char* world_of(const reader& in, const dialect& d) {
  // Older versions of srun set only the number of tasks of the allocation.
  return d.launcher == launcher_kind::slurm && !in.has(d.world) ? "SLURM_NTASKS" : d.world;
}

std::uint64_t hash_of(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(digest[i]) << (8 * i);
  return value;
}

void read_position(reader& in, const dialect& d, placement& place) {
  const char* const world = world_of(in, d);
  place.world_size = static_cast<rank_id>(in.required(world, 1, max_world_size, d.rank));
  place.rank = static_cast<rank_id>(in.required(d.rank, 0, max_world_size - 1, world));
  if (place.rank >= place.world_size) {
    in.complain(d.rank, "must be below " + std::string(world) + "=" + std::to_string(place.world_size));
  }
  if (auto rank = in.number(d.local_rank, 0, max_world_size - 1)) place.local_rank = static_cast<rank_id>(*rank);
  if (d.local_size == nullptr) {
    // srun gives the layout as a list such as 4(x2),3; only the case of one host is needed.
    if (in.text("SLURM_STEP_NUM_NODES") == "1") place.local_size = place.world_size;
  } else if (auto size = in.number(d.local_size, 1, max_world_size)) {
    place.local_size = static_cast<rank_id>(*size);
    if (*size > place.world_size) {
      in.complain(d.local_size, "more ranks on this host than " + std::string(world) + "=" +
                                    std::to_string(place.world_size) + " in all");
    }
  }
  if (place.local_rank && place.local_size && *place.local_rank >= *place.local_size) {
    in.complain(d.local_rank, "must be below the " + std::to_string(*place.local_size) + " ranks of this host");
  }
}

/// `host:port` or `[v6]:port`.
void read_address(reader& in, placement& place) {
  const std::string text = in.text(variable::rendezvous);
  const auto colon = text.rfind(':');
  const char* const advice = "must be host:port or [v6 address]:port, with a port from 1 to 65535";
  std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
  std::uint16_t port = 0;
  if (colon != std::string::npos)
    port = runtime::read_number<std::uint16_t>(std::string_view(text).substr(colon + 1), {1, 65'535}).value_or(0);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || port == 0 || (!bracketed && host.find(':') != std::string::npos)) {
    in.complain(variable::rendezvous, advice);
    return;
  }
  place.rendezvous_host = host;
  place.rendezvous_port = port;
}

/// The first host of a list such as `gpu[03-07,12],login1`; empty when it cannot be read.
std::string first_host(const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const auto close = list.find(']', i);
    const auto end = list.find_first_of("-,]", i);
    if (close == std::string::npos || end == i + 1) return "";
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  return host.find(']') == std::string::npos ? host : "";
}

void read_identity(reader& in, const dialect& d, placement& place) {
  std::string identity;
  for (const char* part : d.identity) {
    if (part != nullptr && in.has(part)) identity += std::string(part) + "=" + in.text(part) + ";";
  }
  if (!identity.empty()) place.job = hash_of(identity);
}

/// A port below the system's range for outgoing connections, so that it is rarely taken.
std::uint16_t port_of(std::uint64_t job) { return static_cast<std::uint16_t>(20'000 + job % 12'000); }

void read_meeting_place(reader& in, const dialect& d, placement& place) {
  if (place.world_size == 1) return;
  if (d.launcher == launcher_kind::pmi && in.has("PMI_FD")) {
    place.pmi_fd = in.descriptor("PMI_FD");
    place.meeting = meeting_kind::pmi;
    return;
  }
  const bool one_host = place.local_size == place.world_size;
  if (one_host && place.job != 0) {
    place.meeting = meeting_kind::file;
    // Open MPI removes its folder with its job, so it comes first; XDG_RUNTIME_DIR outlives jobs.
    for (const char* folder : {"PMIX_SERVER_TMPDIR", "XDG_RUNTIME_DIR"}) {
      if (in.has(folder)) place.private_folders.push_back(in.text(folder));
    }
    return;
  }
  place.meeting = meeting_kind::address;
  if (d.launcher == launcher_kind::torchrun) {
    place.rendezvous_host = in.text("MASTER_ADDR");
    if (place.rendezvous_host.empty()) in.complain("MASTER_ADDR", "must name the host of rank 0");
    // torchrun's own store listens on MASTER_PORT.
    const auto port = in.required("MASTER_PORT", 1, 65'535, "MASTER_ADDR");
    place.rendezvous_port = static_cast<std::uint16_t>(port < 65'535 ? port + 1 : port - 1);
    return;
  }
  if (d.launcher == launcher_kind::slurm && !one_host && place.job != 0) {
    for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
      if (!in.has(list)) continue;
      place.rendezvous_host = first_host(in.text(list));
      if (place.rendezvous_host.empty())
        in.complain(list, "must be a list of hosts such as gpu[01-04]; set PARLEY_RENDEZVOUS to host:port of rank 0");
      place.rendezvous_port = port_of(place.job);
      return;
    }
  }
  const bool by_hand = d.launcher == launcher_kind::parley_run;  // `parley run` always sets the address
  in.complain(
      variable::rendezvous,
      (by_hand ? std::string("PARLEY_RANK and PARLEY_WORLD are set, but not by their launcher, so the ranks do not "
                             "know where to meet; start them with parley run -n N, unset both for a world of one, or")
               : std::string(name(d.launcher)) + " does not say where its ranks can meet;") +
          " set it to host:port of rank 0, the same on every rank, and PARLEY_KEY_FILE to a 0600 file with 32 random "
          "bytes" +
          (one_host ? ""
                    : "; a program that runs MPI may hand over its communicator instead (job_options::bootstrap)"));
}

/// Reads the PARLEY_* variables for job, key and descriptors.
void read_own_variables(reader& in, placement& place) {
  if (auto job = in.number(variable::job, 0, std::numeric_limits<std::uint64_t>::max(), 16)) place.job = *job;
  place.listening_fd = in.descriptor(variable::rendezvous_fd);
  place.key_fd = in.descriptor(variable::key_fd);
  place.report_fd = in.descriptor(variable::report_fd);
  if (place.listening_fd >= 0 && place.rank != 0) {
    in.complain(variable::rendezvous_fd,
                "only rank 0 gets the listening socket, and this is rank " + std::to_string(place.rank) + "; unset it");
  }
  if (place.key_fd >= 0 && in.has(variable::key_file)) {
    in.complain(variable::key_file, "the key comes from PARLEY_KEY_FD already; unset one of the two");
  }
}

/// Reads the restart variables. A rank that comes back must find the others, so restarts need a fixed rendezvous address.
void read_restarts(reader& in, placement& place) {
  const auto number = [&](const char* name) {
    return static_cast<std::uint32_t>(in.number(name, 0, most_restarts_of_a_rank).value_or(0));
  };
  place.max_restarts = number(variable::max_restarts);
  place.restarts = number(variable::restart_count);
  if (place.restarts > place.max_restarts)
    in.complain(variable::restart_count,
                "no rank of this job may be restarted so often; set PARLEY_MAX_RESTARTS on all its ranks");
  if (place.restarts > 0 && place.rank == 0)
    in.complain(variable::restart_count,
                "rank 0 hosts the rendezvous and cannot be restarted alone; restart the whole job");
  if (place.max_restarts > 0 && place.world_size > 1 && place.meeting != meeting_kind::address)
    in.complain(variable::max_restarts, "PARLEY_RENDEZVOUS must also be set, because a rank that restarts needs it");
}

/// Complains if two launchers give this process different ranks in worlds of the same size, because it is unclear which of them counts.
void compare(reader& in, const dialect& counts, const placement& place, const dialect& other) {
  const variable_lookup& look = in.lookup();
  reader quiet(look);
  const auto rank = quiet.number(other.rank, 0, max_world_size - 1);
  const auto world = quiet.number(world_of(in, other), 1, max_world_size);
  if (!rank || !world || *world != place.world_size || *rank == place.rank) return;
  in.complain(counts.rank, std::string("contradicts ") + other.rank + "=" + std::to_string(*rank) + " in a world of " +
                               std::to_string(*world) + " ranks too (" + std::string(name(counts.launcher)) + " and " +
                               std::string(name(other.launcher)) +
                               "); unset the variables that are left over, or set PARLEY_LAUNCHER to " +
                               counts.chosen_by + " or " + other.chosen_by);
}

/// The launchers whose variables are set, in order of precedence.
std::vector<const dialect*> launchers_of(reader& in, bool& inside_parley_run) {
  std::vector<const dialect*> found;
  for (const dialect& d : dialects) {
    if (speaks(in, d)) found.push_back(&d);
  }
  // `parley run` hides the launchers around it, so other launchers were started inside it. Its key descriptor shows that `parley run`
  // set its variables, not a user by hand.
  inside_parley_run = found.size() > 1 && found[0]->launcher == launcher_kind::parley_run && in.has(variable::key_fd);
  if (inside_parley_run) found.erase(found.begin());
  if (!in.has(variable::launcher)) return found;

  const std::string wanted = in.text(variable::launcher);
  inside_parley_run = inside_parley_run && wanted != "parley";
  for (const dialect& d : dialects) {
    if (wanted != d.chosen_by) continue;
    if (!speaks(in, d)) in.complain(d.rank, std::string("it must be set when PARLEY_LAUNCHER=") + wanted);
    return {&d};
  }
  if (wanted != "none") in.complain(variable::launcher, "must be parley, torchrun, openmpi, pmi, slurm or none");
  return {};
}

void read(reader& in, placement& place) {
  bool inside_parley_run = false;
  const auto launchers = launchers_of(in, inside_parley_run);
  if (launchers.empty()) {
    if (in.has("RANK") && !in.has(variable::launcher) && !in.text("RANK").empty() &&
        in.text("RANK").find_first_not_of("0123456789") == std::string::npos)
      in.complain("WORLD_SIZE", "it must be set together with RANK=" + in.text("RANK") +
                                    ", with MASTER_ADDR and MASTER_PORT; if RANK means something else, set "
                                    "PARLEY_LAUNCHER=none");
    return;
  }
  const dialect& d = *launchers.front();
  place.launcher = d.launcher;
  read_position(in, d, place);
  for (const dialect* other : launchers) {
    if (other != &d) compare(in, d, place, *other);
  }
  if (!place.local_size && d.launcher == launcher_kind::pmi && in.text("SLURM_STEP_NUM_NODES") == "1")
    place.local_size = place.world_size;
  read_identity(in, d, place);
  if (!inside_parley_run) read_own_variables(in, place);
  place.key_file = in.text(variable::key_file);
  if (in.has(variable::key_file) && place.key_file.empty())
    in.complain(variable::key_file, "must name a file or be unset");
  if (in.has(variable::rendezvous) && !inside_parley_run) {
    place.meeting = place.world_size == 1 ? meeting_kind::alone : meeting_kind::address;
    read_address(in, place);
  } else {
    read_meeting_place(in, d, place);
  }
  if (!inside_parley_run) read_restarts(in, place);
}

}  // namespace

std::string_view name(launcher_kind launcher) noexcept {
  switch (launcher) {
    case launcher_kind::none: return "no launcher";
    case launcher_kind::parley_run: return "parley run";
    case launcher_kind::torchrun: return "torchrun";
    case launcher_kind::open_mpi: return "mpirun (Open MPI)";
    case launcher_kind::pmi: return "mpiexec (PMI)";
    case launcher_kind::slurm: return "srun";
  }
  return "unknown launcher";
}

bool tells_place(std::string_view variable, const variable_lookup& lookup) {
  const reader in(lookup);
  for (const dialect& d : dialects) {
    if (d.launcher == launcher_kind::parley_run || !speaks(in, d)) continue;
    for (const char* told : {d.rank, world_of(in, d), d.local_rank, d.local_size}) {
      if (told != nullptr && variable == told) return true;
    }
  }
  return variable == "SLURM_STEP_ID" || variable == "PMI_FD" || variable == "PMIX_RANK";
}

result<placement> from_environment(const variable_lookup& lookup) {
  reader in(lookup);
  placement place;
  read(in, place);
  if (in.complaint()) return *in.complaint();
  return place;
}

variable_lookup own_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

bool on_one_host(const placement& p) {
  if (p.local_size) return *p.local_size == p.world_size;
  if (p.world_size == 1 || p.rendezvous_host == "localhost") return true;
  boost::system::error_code not_a_number;
  return boost::asio::ip::make_address(p.rendezvous_host, not_a_number).is_loopback();
}

result<placement> from_environment() { return from_environment(own_environment()); }

result<job_key> read_key(const placement& place) {
  if (place.key_fd >= 0) return job_key::from_descriptor(place.key_fd);
  if (!place.key_file.empty()) return job_key::from_file(place.key_file);
  return job_key();
}

}  // namespace parley::transports

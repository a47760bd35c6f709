#include <parley/transports/environment.hpp>

#include <openssl/sha.h>

#include <charconv>
#include <cstdlib>
#include <limits>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::rank_id;
using runtime::result;

namespace {

/// Looks variables up and keeps the first complaint, so that reading a placement is one straight list.
class reader {
 public:
  explicit reader(const variable_lookup& lookup) : lookup_(lookup) {}

  bool has(const char* name) const { return lookup_(name).has_value(); }
  std::string text(const char* name) const { return lookup_(name).value_or(""); }
  const std::optional<error>& complaint() const { return complaint_; }

  void complain(const char* name, const std::string& advice) {
    if (complaint_) return;
    const auto value = lookup_(name);
    complaint_ = error(errc::malformed, value ? std::string(name) + "=" + *value + ": " + advice
                                              : std::string(name) + " is not set: " + advice);
  }

  /// A whole number in [low, high]; nothing when the variable is not set.
  std::optional<std::uint64_t> number(const char* name, std::uint64_t low, std::uint64_t high, int base = 10) {
    const auto value = lookup_(name);
    if (!value) return std::nullopt;
    std::uint64_t parsed = 0;
    const char* const end = value->data() + value->size();
    const auto [stop, fault] = std::from_chars(value->data(), end, parsed, base);
    if (fault != std::errc() || stop != end || parsed < low || parsed > high) {
      complain(name, base == 16 ? "must be 1 to 16 hexadecimal digits"
                                : "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high));
      return std::nullopt;
    }
    return parsed;
  }

  std::uint64_t required(const char* name, std::uint64_t low, std::uint64_t high, const char* beside) {
    if (!has(name)) complain(name, std::string("it must be set beside ") + beside + "; unset both or set both");
    return number(name, low, high).value_or(low);
  }

  int descriptor(const char* name) {
    const auto value = number(name, 3, static_cast<std::uint64_t>(std::numeric_limits<int>::max()));
    return value ? static_cast<int>(*value) : -1;
  }

 private:
  const variable_lookup& lookup_;
  std::optional<error> complaint_;
};

/// The names one launcher uses. `identity` names what tells its jobs apart.
struct dialect {
  launcher_kind launcher;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_size;
  const char* identity[2];
};

constexpr dialect dialects[] = {
    {launcher_kind::parley_run, variable::rank, variable::world, variable::local_rank, variable::local_size, {}},
    {launcher_kind::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", {"TORCHELASTIC_RUN_ID"}},
    {launcher_kind::open_mpi,
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE"}},
    {launcher_kind::pmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID"}},
    {launcher_kind::slurm,
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     nullptr,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

/// Names that other tools use too need a second sign: RANK alone is not torchrun, and a batch script has SLURM_PROCID
/// although no srun started it.
bool speaks(const reader& in, const dialect& d) {
  switch (d.launcher) {
    case launcher_kind::torchrun: return in.has("RANK") && in.has("MASTER_ADDR");
    case launcher_kind::slurm: return in.has("SLURM_PROCID") && in.has("SLURM_STEP_ID");
    default: return in.has(d.rank) || in.has(d.world);
  }
}

std::uint64_t hash_of(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(digest[i]) << (8 * i);
  return value;
}

void read_position(reader& in, const dialect& d, placement& place) {
  const char* world = d.world;
  // Older versions of srun name only the tasks of the allocation.
  if (d.launcher == launcher_kind::slurm && !in.has(world)) world = "SLURM_NTASKS";
  place.world_size = static_cast<rank_id>(in.required(world, 1, max_world_size, d.rank));
  place.rank = static_cast<rank_id>(in.required(d.rank, 0, max_world_size - 1, world));
  if (place.rank >= place.world_size) {
    in.complain(d.rank, "must be below " + std::string(world) + "=" + std::to_string(place.world_size));
  }
  if (auto rank = in.number(d.local_rank, 0, max_world_size - 1)) place.local_rank = static_cast<rank_id>(*rank);
  if (d.local_size == nullptr) {
    // srun tells the layout as a list such as 4(x2),3; only the case of one host is needed.
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
  unsigned port = 0;
  const char* const end = text.data() + text.size();
  if (colon != std::string::npos) {
    const auto [stop, fault] = std::from_chars(text.data() + colon + 1, end, port);
    if (fault != std::errc() || stop != end) port = 0;
  }
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || port == 0 || port > 65'535 || (!bracketed && host.find(':') != std::string::npos)) {
    in.complain(variable::rendezvous, advice);
    return;
  }
  place.rendezvous_host = host;
  place.rendezvous_port = static_cast<std::uint16_t>(port);
}

void read_meeting_place(reader& in, const dialect& d, placement& place) {
  std::string identity;
  for (const char* part : d.identity) {
    if (part != nullptr && in.has(part)) identity += std::string(part) + "=" + in.text(part) + ";";
  }
  if (!identity.empty()) place.job = hash_of(identity);
  if (auto job = in.number(variable::job, 0, std::numeric_limits<std::uint64_t>::max(), 16)) place.job = *job;

  if (in.has(variable::rendezvous)) return read_address(in, place);
  if (d.launcher == launcher_kind::torchrun) {
    place.rendezvous_host = in.text("MASTER_ADDR");
    if (place.rendezvous_host.empty()) in.complain("MASTER_ADDR", "must name the host of rank 0");
    const auto port = in.required("MASTER_PORT", 1, 65'535, "MASTER_ADDR");
    place.rendezvous_port = static_cast<std::uint16_t>(port < 65'535 ? port + 1 : port - 1);
    return;
  }
  if (place.world_size == 1) return;
  const bool one_host = place.local_size == place.world_size;
  if (!one_host || identity.empty()) {
    in.complain(variable::rendezvous,
                std::string(name(d.launcher)) +
                    " does not say where its ranks can meet; set it to host:port of rank 0, "
                    "the same on every rank" +
                    (one_host ? "" : ", and PARLEY_KEY_FILE to a 0600 file with 32 random bytes"));
    return;
  }
  // Below the range that the system gives to outgoing connections, so that a taken port is rare.
  place.rendezvous_port = static_cast<std::uint16_t>(20'000 + place.job % 12'000);
}

void read_descriptors(reader& in, placement& place) {
  place.listening_fd = in.descriptor(variable::rendezvous_fd);
  place.key_fd = in.descriptor(variable::key_fd);
  place.report_fd = in.descriptor(variable::report_fd);
  place.key_file = in.text(variable::key_file);
  if (place.listening_fd >= 0 && place.rank != 0) {
    in.complain(variable::rendezvous_fd,
                "only rank 0 gets the listening socket, and this is rank " + std::to_string(place.rank) + "; unset it");
  }
  if (place.key_fd >= 0 && in.has(variable::key_file)) {
    in.complain(variable::key_file, "the key comes from PARLEY_KEY_FD already; unset one of the two");
  }
  if (in.has(variable::key_file) && place.key_file.empty())
    in.complain(variable::key_file, "must name a file or be unset");
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

result<placement> from_environment(const variable_lookup& lookup) {
  reader in(lookup);
  placement place;
  for (const dialect& d : dialects) {
    if (!speaks(in, d)) continue;
    place.launcher = d.launcher;
    read_position(in, d, place);
    read_meeting_place(in, d, place);
    read_descriptors(in, place);
    break;
  }
  if (in.complaint()) return *in.complaint();
  return place;
}

result<placement> from_environment() {
  return from_environment([](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  });
}

result<job_key> read_key(const placement& place) {
  if (place.key_fd >= 0) return job_key::from_descriptor(place.key_fd);
  if (!place.key_file.empty()) return job_key::from_file(place.key_file);
  return job_key();
}

}  // namespace parley::transports

#pragma once
/// Where this process stands in its job, as its launcher tells through the environment. Reading only.
///
///     auto place = from_environment();                      // of this process, or pass a function that looks names up
///     if (!place) return place.reason();                    // names the variable, its value and what to do
///     place->rank, place->world_size, place->rendezvous_host ...
///
/// Understood, the innermost launcher first: `parley run` (PARLEY_RANK, PARLEY_WORLD, ...), torchrun (RANK, WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT), Open MPI (OMPI_COMM_WORLD_*), MPICH and others with PMI (PMI_RANK, PMI_SIZE) and srun
/// (SLURM_PROCID inside a step). Without any of them the world has one rank.
///
/// Where the ranks meet: PARLEY_RENDEZVOUS=host:port wins. torchrun's own store listens on MASTER_PORT, so the port after
/// it is used. Other launchers name no place; when all ranks share this host, a loopback port is derived from the job's
/// identity, otherwise PARLEY_RENDEZVOUS must be set. PARLEY_KEY_FILE names a 0600 file with the job's key.
#include <parley/runtime/error.hpp>
#include <parley/runtime/identifiers.hpp>
#include <parley/transports/job_key.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace parley::transports {

enum class launcher_kind : std::uint8_t { none, parley_run, torchrun, open_mpi, pmi, slurm };

/// `parley run`, `torchrun`, `mpirun (Open MPI)`, ...: for people.
std::string_view name(launcher_kind launcher) noexcept;

/// The variables of `parley run`, which both sides of it use.
namespace variable {
inline constexpr char rank[] = "PARLEY_RANK";
inline constexpr char world[] = "PARLEY_WORLD";
inline constexpr char local_rank[] = "PARLEY_LOCAL_RANK";
inline constexpr char local_size[] = "PARLEY_LOCAL_SIZE";
inline constexpr char rendezvous[] = "PARLEY_RENDEZVOUS";        ///< host:port, or [v6 address]:port
inline constexpr char rendezvous_fd[] = "PARLEY_RENDEZVOUS_FD";  ///< rank 0 only: the socket that listens there
inline constexpr char job[] = "PARLEY_JOB";                      ///< 1 to 16 hexadecimal digits
inline constexpr char key_fd[] = "PARLEY_KEY_FD";
inline constexpr char key_file[] = "PARLEY_KEY_FILE";
inline constexpr char report_fd[] = "PARLEY_REPORT_FD";  ///< where a rank writes what its launcher collects
}  // namespace variable

inline constexpr runtime::rank_id max_world_size = 65'536;

struct placement {
  launcher_kind launcher = launcher_kind::none;
  runtime::rank_id rank = 0;
  runtime::rank_id world_size = 1;
  std::optional<runtime::rank_id> local_rank;  ///< among the ranks of this host, where the launcher says so
  std::optional<runtime::rank_id> local_size;
  std::string rendezvous_host = "127.0.0.1";
  std::uint16_t rendezvous_port = 0;  ///< 0 only in a world of one, or beside `listening_fd`
  int listening_fd = -1;              ///< inherited by rank 0; whoever joins takes it over
  std::uint64_t job = 0;              ///< tells jobs apart; not a secret
  int key_fd = -1;
  std::string key_file;
  int report_fd = -1;
};

/// Returns nothing for a variable that is not set.
using variable_lookup = std::function<std::optional<std::string>(const char* name)>;

/// `malformed` when a value cannot be read, contradicts another one or is missing beside it.
runtime::result<placement> from_environment(const variable_lookup& lookup);
/// The same from this process's own environment.
runtime::result<placement> from_environment();

/// The key that the placement points to; an empty one when it points to none. A descriptor is closed by reading it, so
/// this works once per process.
runtime::result<job_key> read_key(const placement& place);

}  // namespace parley::transports

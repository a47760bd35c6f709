#pragma once
/// Where this process stands in its job, as its launcher tells through the environment. Reading only.
///
///     auto place = from_environment();                      // of this process, or pass a function that looks names up
///     if (!place) return place.reason();                    // names the variables, their values and what to do
///     place->rank, place->world_size, place->meeting ...
///
/// | launcher | position from | meets (`meeting_kind`) |
/// |---|---|---|
/// | `parley run` | PARLEY_RANK, PARLEY_WORLD, PARLEY_LOCAL_* | address: PARLEY_RENDEZVOUS, key by PARLEY_KEY_FD |
/// | torchrun | RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE | one host: file; else the port after MASTER_ADDR:MASTER_PORT |
/// | Open MPI's mpirun | OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE} | one host: file; else PARLEY_RENDEZVOUS |
/// | MPICH's mpiexec, srun --mpi=pmi2 | PMI_RANK, PMI_SIZE, MPI_LOCAL* | pmi: through PMI_FD |
/// | srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID | one host: file; else a port on the step's first node |
///
/// PARLEY_RENDEZVOUS=host:port, where it is set, wins over all of these; PARLEY_KEY_FILE names a 0600 file with the job's
/// key. PARLEY_MAX_RESTARTS and PARLEY_RESTART_COUNT go with it (rendezvous.hpp). Without any launcher the world has one
/// rank. transports/join/meeting.hpp carries out what is found here.
///
/// More than one launcher: the innermost counts, which by habit is the first of the list above. Two of them that tell
/// another rank in worlds of one size contradict each other, which is an error; PARLEY_LAUNCHER=parley|torchrun|openmpi|
/// pmi|slurm|none decides. `parley run` hides the variables of launchers around it, so one that is seen beside it was started
/// inside it and counts.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/join/job_key.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::transports {

enum class launcher_kind : std::uint8_t { none, parley_run, torchrun, open_mpi, pmi, slurm };

/// `parley run`, `torchrun`, `mpirun (Open MPI)`, ...: for people.
std::string_view name(launcher_kind launcher) noexcept;
enum class meeting_kind : std::uint8_t {
  alone,    ///< a world of one
  address,  ///< at rendezvous_host:rendezvous_port, which all ranks know
  pmi,      ///< rank 0 says where through the launcher's PMI_FD
  file,     ///< all ranks share a host: rank 0 says where in a 0600 file in a private folder
};

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
inline constexpr char report_fd[] = "PARLEY_REPORT_FD";          ///< where a rank writes what its launcher collects
inline constexpr char launcher[] = "PARLEY_LAUNCHER";            ///< whose variables count, where several disagree
inline constexpr char max_restarts[] = "PARLEY_MAX_RESTARTS";    ///< how often each rank but 0 may be started anew
inline constexpr char restart_count[] = "PARLEY_RESTART_COUNT";  ///< how often this one was; unset: never
inline constexpr std::array all{rank,   world,    local_rank, local_size, rendezvous,   rendezvous_fd, job,
                                key_fd, key_file, report_fd,  launcher,   max_restarts, restart_count};
}  // namespace variable

inline constexpr runtime::rank_id max_world_size = 65'536;
inline constexpr std::uint32_t most_restarts_of_a_rank = 1'000;

struct placement {
  launcher_kind launcher = launcher_kind::none;
  runtime::rank_id rank = 0;
  runtime::rank_id world_size = 1;
  std::optional<runtime::rank_id> local_rank;  ///< among the ranks of this host, where the launcher says so
  std::optional<runtime::rank_id> local_size;
  meeting_kind meeting = meeting_kind::alone;
  std::string rendezvous_host = "127.0.0.1";
  std::uint16_t rendezvous_port = 0;  ///< 0 until `find_meeting` has found it, or beside `listening_fd`
  int pmi_fd = -1;
  std::vector<std::string> private_folders;  ///< where a meeting's file may be, the first that is fit for it
  int listening_fd = -1;                     ///< inherited by rank 0; whoever joins takes it over
  std::uint64_t job = 0;                     ///< tells jobs apart; not a secret
  int key_fd = -1;
  std::string key_file;
  int report_fd = -1;
  std::uint32_t max_restarts = 0;
  std::uint32_t restarts = 0;  ///< at most `max_restarts`
};

/// Returns nothing for a variable that is not set.
using variable_lookup = std::function<std::optional<std::string>(const char* name)>;
/// Looks into this process's own environment.
variable_lookup own_environment();

/// Whether all ranks are on this rank's host: its launcher says so, or they meet where only this host gets to.
bool on_one_host(const placement& p);

/// Whether this variable tells a process its place in the job of a launcher other than `parley run`, given the others.
bool tells_place(std::string_view variable, const variable_lookup& lookup);

/// `malformed` when a value cannot be read, contradicts another one or is missing beside it.
runtime::result<placement> from_environment(const variable_lookup& lookup);
/// The same from this process's own environment.
runtime::result<placement> from_environment();

/// The key that the placement points to; an empty one when it points to none. A descriptor is closed by reading it, so
/// this works once per process.
runtime::result<job_key> read_key(const placement& place);

}  // namespace parley::transports

#pragma once
/// Finds this process's place in its job in the environment variables that its launcher set. Only reads them.
///
///     auto place = from_environment();                      // or pass a function that looks variables up
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
/// If PARLEY_RENDEZVOUS=host:port is set, it takes precedence over the meeting places above. PARLEY_KEY_FILE names a file of
/// mode 0600 with the job's key. PARLEY_MAX_RESTARTS and PARLEY_RESTART_COUNT need PARLEY_RENDEZVOUS (rendezvous.hpp). Without
/// a launcher the world has one rank. transports/join/meeting.hpp uses the result.
///
/// If variables of more than one launcher are set, the innermost launcher counts, which is usually the first one in the table.
/// Two launchers that give different ranks in worlds of the same size contradict each other, which is an error.
/// PARLEY_LAUNCHER=parley|torchrun|openmpi|pmi|slurm|none decides which one counts. `parley run` hides the variables of
/// launchers around it, so another launcher that is seen together with `parley run` was started inside it and counts.
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

/// A name for messages: `parley run`, `torchrun`, `mpirun (Open MPI)`, ...
std::string_view name(launcher_kind launcher) noexcept;
enum class meeting_kind : std::uint8_t {
  alone,    ///< a world of one
  address,  ///< at rendezvous_host:rendezvous_port, which all ranks know
  pmi,      ///< rank 0 sends the address through the launcher's PMI_FD
  file,     ///< all ranks share a host: rank 0 writes the address to a 0600 file in a private folder
};

/// The variables that `parley run` sets and ranks read.
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
inline constexpr char report_fd[] = "PARLEY_REPORT_FD";          ///< where a rank writes reports for its launcher
inline constexpr char launcher[] = "PARLEY_LAUNCHER";            ///< the launcher that counts, if several disagree
inline constexpr char max_restarts[] = "PARLEY_MAX_RESTARTS";    ///< how often each rank except 0 may be restarted
inline constexpr char restart_count[] = "PARLEY_RESTART_COUNT";  ///< how often this rank was restarted; unset: never
inline constexpr std::array all{rank,   world,    local_rank, local_size, rendezvous,   rendezvous_fd, job,
                                key_fd, key_file, report_fd,  launcher,   max_restarts, restart_count};
}  // namespace variable

inline constexpr runtime::rank_id max_world_size = 65'536;
inline constexpr std::uint32_t most_restarts_of_a_rank = 1'000;

struct placement {
  launcher_kind launcher = launcher_kind::none;
  runtime::rank_id rank = 0;
  runtime::rank_id world_size = 1;
  std::optional<runtime::rank_id> local_rank;  ///< among the ranks of this host, if the launcher sets it
  std::optional<runtime::rank_id> local_size;
  meeting_kind meeting = meeting_kind::alone;
  std::string rendezvous_host = "127.0.0.1";
  std::uint16_t rendezvous_port = 0;  ///< 0 until `find_meeting` has found it; may stay 0 with `listening_fd`
  int pmi_fd = -1;
  std::vector<std::string> private_folders;  ///< for the meeting's file: the first that is private is used
  int listening_fd = -1;                     ///< inherited by rank 0; the rendezvous takes it over
  std::uint64_t job = 0;                     ///< distinguishes jobs; not a secret
  int key_fd = -1;
  std::string key_file;
  int report_fd = -1;
  std::uint32_t max_restarts = 0;
  std::uint32_t restarts = 0;  ///< at most `max_restarts`
};

/// Returns nothing for a variable that is not set.
using variable_lookup = std::function<std::optional<std::string>(const char* name)>;
/// Looks variables up in this process's own environment.
variable_lookup own_environment();

/// True if all ranks are on this rank's host: the launcher says so, or the rendezvous address is a loopback address.
bool on_one_host(const placement& p);

/// True if this variable, given the others, gives a process its place in a job of another launcher than `parley run`.
bool tells_place(std::string_view variable, const variable_lookup& lookup);

/// `malformed` if a value cannot be read, contradicts another one, or is missing although another one needs it.
runtime::result<placement> from_environment(const variable_lookup& lookup);
/// Reads this process's own environment.
runtime::result<placement> from_environment();

/// The key that the placement names; an empty key if it names none. Reading closes the key's descriptor, so this works once
/// per process.
runtime::result<job_key> read_key(const placement& place);

}  // namespace parley::transports

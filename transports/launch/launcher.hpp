#pragma once
/// `parley run`: starts the ranks of one job on this host, or this host's part of them, forwards their output and ends all ranks when
/// one fails.
///
///     launch_options options;
///     options.ranks = 4;
///     options.command = {"./my-program", "--steps", "10"};
///     return launch(options).status;       // 0, 1: a rank failed, 2: the program could not be started
///
/// Each rank gets PARLEY_RANK, PARLEY_WORLD, PARLEY_LOCAL_*, PARLEY_RENDEZVOUS, PARLEY_JOB and a fresh job key, through an inherited
/// pipe whose number is PARLEY_KEY_FD. Rank 0 inherits the listening socket itself (PARLEY_RENDEZVOUS_FD), so that no other process can
/// take the port in between. Standard input is empty unless `input` is given. Output is forwarded in whole lines.
///
/// Failure: when a rank exits with another status than 0, or by a signal, the launcher reports that. The others have `grace_ns` to
/// notice and to print their own errors; then they get SIGTERM, and SIGKILL `kill_after_ns` later. SIGINT, SIGTERM and SIGHUP to the
/// launcher end the job without the grace: the ranks get SIGINT after SIGINT, otherwise SIGTERM, and then SIGKILL. SIGUSR1 is passed on to
/// the ranks. Ranks die with the launcher, even if it is killed. Processes that a rank starts (`sh -c './rank | tee log'`) end with the
/// rank or with the launcher, as long as they stay in the rank's process group.
///
/// With `restarts`, a rank other than 0 that fails while rank 0 runs is started again instead, up to that many times for all ranks
/// together. It gets PARLEY_RESTART_COUNT, all ranks get PARLEY_MAX_RESTARTS, and the rendezvous stays open for it (rendezvous.hpp).
/// Rank 0 hosts the rendezvous, so its failure always ends the job.
///
/// A job on several hosts has one launcher on each host, which knows only its own ranks; `among` says which ranks these are. The job's
/// key comes from PARLEY_KEY_FILE or from standard input (`told_by_input`), rank 0 listens at `rendezvous` itself, and PARLEY_JOB is not
/// set. When ranks of one host end, the ranks of the other hosts notice that themselves. No restarts.
///
/// Blocks until all ranks have ended; call it from a process with one thread. Until it returns, it blocks SIGCHLD; SIGINT, SIGTERM and
/// SIGHUP, except those that the caller ignores; and SIGUSR1, unless the caller handles or ignores it. Then it restores the mask.
#include <parley/identifiers.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::transports {

enum class output_stream : std::uint8_t { out, error };
enum class line_prefix : std::uint8_t {
  rank,  ///< `[rank 2] text`
  none,
};

/// How one rank ended.
struct rank_end {
  enum class how : std::uint8_t { not_started, exited, signalled };
  how kind = how::not_started;
  int code = 0;                ///< exit status or signal number
  bool by_launcher = false;    ///< the rank was still running when the launcher ended the job
  std::uint32_t restarts = 0;  ///< how many processes held its place before; the other fields describe the last process
};

/// This host's place in a job on several hosts. Each host starts `ranks` ranks, numbered after those of the hosts before it.
struct host_place {
  runtime::rank_id hosts = 1;
  runtime::rank_id host = 0;
  std::string rendezvous;  ///< host:port on the first host; the same on all hosts
  /// Reads the job's key from standard input, as a line of 64 hexadecimal digits, and ends the job when standard input ends. For a
  /// launcher that another machine started, and that must not outlive the connection to it.
  bool told_by_input = false;
};

struct launch_options {
  runtime::rank_id ranks = 1;                                    ///< on this host
  std::optional<host_place> among{};                             ///< nothing: the job runs on this host only
  std::vector<std::string> command;                              ///< program (searched in PATH) and its arguments
  std::vector<std::pair<std::string, std::string>> environment;  ///< added to the launcher's own
  line_prefix prefix = line_prefix::rank;
  /// Divides the processors that the launcher may run on among the ranks, in order, the same number for each.
  bool bind = false;
  std::string input{};             ///< each rank's standard input, which stays open after it; empty: /dev/null
  std::string_view noun = "rank";  ///< the word for a rank in the launcher's notices
  std::uint32_t restarts = 0;      ///< of all ranks together, at most `most_restarts_of_a_rank` (environment.hpp)
  runtime::time_ns timeout_ns = runtime::never;
  runtime::time_ns grace_ns = 2'000'000'000;
  runtime::time_ns kill_after_ns = 2'000'000'000;
  int out_fd = 1;    ///< where the ranks' standard output goes
  int error_fd = 2;  ///< where their standard error and the launcher's own notices go

  // The callbacks get a rank's number in the job.
  /// If set, it gets the ranks' lines, without newline and prefix, instead of the descriptors.
  std::function<void(runtime::rank_id, output_stream, std::string_view line)> on_line;
  /// If set, every rank gets the writing end of a pipe as PARLEY_REPORT_FD, and this gets what the rank writes to it.
  std::function<void(runtime::rank_id, std::span<const std::byte> bytes)> on_report;
  /// If set, it gets the launcher's own notices instead of `error_fd`.
  std::function<void(std::string_view text)> on_notice;
};

struct launch_end {
  int signal = 0;               ///< the signal that made the launcher end the job, or 0
  int status = 0;               ///< 0; 1 if a rank failed or the job was ended early; 2 if it could not be started
  bool out_of_time = false;     ///< the job was ended because of `timeout_ns`
  std::vector<rank_end> ranks;  ///< of this host
  std::optional<runtime::rank_id> first_failed{};  ///< the rank whose failure ended the job, if there is one
};

/// Lines longer than this are forwarded in pieces.
inline constexpr std::size_t max_line_bytes = 1U << 20U;

launch_end launch(const launch_options& options);

}  // namespace parley::transports

#pragma once
/// `parley run`: starts the ranks of one job on this host, or this host's part of them, passes their output on and ends all when one
/// fails.
///
///     launch_options options;
///     options.ranks = 4;
///     options.command = {"./my-program", "--steps", "10"};
///     return launch(options).status;       // 0, 1: a rank failed, 2: the program could not be started
///
/// Each rank gets PARLEY_RANK, PARLEY_WORLD, PARLEY_LOCAL_*, PARLEY_RENDEZVOUS, PARLEY_JOB and, through an inherited pipe
/// whose number is PARLEY_KEY_FD, a fresh job key. Rank 0 inherits the listening socket itself (PARLEY_RENDEZVOUS_FD), so
/// no port can be taken in between. Standard input is empty. Output is forwarded in whole lines.
///
/// Failure: when a rank exits non-zero or by a signal, that is reported; the others have `grace_ns` to notice and to print
/// their own errors, then get SIGTERM, and SIGKILL `kill_after_ns` later. SIGINT and SIGTERM to the launcher end the job
/// the same way without the grace. Ranks die with the launcher, even when that is killed, and so do those behind a script
/// (`sh -c './rank | tee log'`): what a rank starts is ended with it, or with the launcher, as long as it stays in its process group.
///
/// With `restarts` a rank other than 0 that fails while rank 0 runs is started again instead, that often in all; it gets
/// PARLEY_RESTART_COUNT, all get PARLEY_MAX_RESTARTS, and the job keeps its door open for it (rendezvous.hpp). Rank 0 hosts the
/// rendezvous and ends the job as always.
///
/// A job on several hosts has a launcher on each, which knows its own ranks alone; `among` says which they are. Their key is the one that
/// PARLEY_KEY_FILE names, or that comes by standard input (`told_by_input`), and rank 0 listens where `rendezvous` says. When ranks of one
/// host end, those of the others notice that themselves. No restarts.
///
/// Blocks until all ranks have ended; call it from a process with one thread. It blocks SIGINT, SIGTERM, SIGHUP and
/// SIGCHLD meanwhile and restores the mask, except for those that a caller already ignores.
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
  bool by_launcher = false;    ///< it still ran when the launcher ended the job
  std::uint32_t restarts = 0;  ///< how many processes were in its place before; the rest is about the last one
};

/// Which of a job's hosts this is: `ranks` start on each, and its ranks come behind those of the hosts before it.
struct host_place {
  runtime::rank_id hosts = 1;
  runtime::rank_id host = 0;
  std::string rendezvous;  ///< host:port on the first, the same on all
  /// The job's key comes as a line of 64 hexadecimal digits by standard input, and the job ends when that ends: for a launcher that
  /// another machine has started, and that must not outlive the connection.
  bool told_by_input = false;
};

struct launch_options {
  runtime::rank_id ranks = 1;                                    ///< on this host
  std::optional<host_place> among{};                             ///< nothing: the job is on this host alone
  std::vector<std::string> command;                              ///< program (searched in PATH) and its arguments
  std::vector<std::pair<std::string, std::string>> environment;  ///< added to the launcher's own
  line_prefix prefix = line_prefix::rank;
  /// Each rank may run on a share of the processors that the launcher may run on: as many as there are for each, in their order.
  bool bind = false;
  std::string input{};  ///< what each rank can read from its standard input, which stays open; empty: nothing is there
  std::string_view noun = "rank";  ///< what its notices call a rank
  std::uint32_t restarts = 0;      ///< of all ranks together, at most `most_restarts_of_a_rank` (environment.hpp)
  runtime::time_ns timeout_ns = runtime::never;
  runtime::time_ns grace_ns = 2'000'000'000;
  runtime::time_ns kill_after_ns = 2'000'000'000;
  int out_fd = 1;    ///< where the ranks' standard output goes
  int error_fd = 2;  ///< where their standard error and the launcher's own notices go

  // Whose it is these are told by its number in the job.
  /// When set, lines go here, without newline and prefix, instead of to the descriptors.
  std::function<void(runtime::rank_id, output_stream, std::string_view line)> on_line;
  /// When set, every rank gets the writing end of a pipe as PARLEY_REPORT_FD, and what it writes comes here.
  std::function<void(runtime::rank_id, std::span<const std::byte> bytes)> on_report;
  /// When set, the launcher's own notices go here instead of to `error_fd`.
  std::function<void(std::string_view text)> on_notice;
};

struct launch_end {
  int signal = 0;               ///< which one told the launcher to end the job, or 0
  int status = 0;               ///< 0; 1 when a rank failed or the job was ended early; 2 when it could not be started
  bool out_of_time = false;     ///< it was ended because of `timeout_ns`
  std::vector<rank_end> ranks;  ///< of this host
  std::optional<runtime::rank_id> first_failed{};  ///< whose failure ended the job, if one's did
};

/// Lines longer than this are forwarded in pieces.
inline constexpr std::size_t max_line_bytes = 1U << 20U;

launch_end launch(const launch_options& options);

}  // namespace parley::transports

#pragma once
/// Runs a program as a rank of a job: reads this process's place in the job from the environment, meets the other ranks, runs the program,
/// and leaves.
///
///     parley::task<> rank_main(parley::rank& self);
///     int main(int argc, char** argv) { return parley::run(argc, argv, rank_main); }
///
/// A process that is started alone is a world of one rank. `run` returns the exit status: 0, or 1 after it has printed the error, with op,
/// rank and what to do, to standard error. A refused declaration also makes the status 1. Messages that no rank has received cause a
/// warning on standard error. If the program (`job_options::undelivered`) or PARLEY_STRICT=1 makes them a failure, the status is 3.
/// simulation::run returns the same status for the same program. An engine that owns its loop makes a `job` instead and polls the loop.
///
/// If a rank dies or is stopped, the other ranks of its host notice it within two seconds (transports/join/heartbeat.hpp) and tell the
/// ranks of other hosts. If a host vanishes, ranks notice it within ten seconds. On all other ranks the ops with the lost rank end with
/// `peer_failed`. If a stopped rank continues after that, its own calls end with `fenced`. If a rank that is alone on its host is stopped,
/// not killed, no rank declares it dead: calls that are matched with it wait until it continues or its process ends.
/// PARLEY_DETECTION=SECONDS sets the two seconds; 0 switches heartbeats off, for debuggers, and then ranks wait for any stopped rank.
///
/// A job belongs to the process that joined it. In a child process made by fork(), every call throws `bad_argument`; the end of the child
/// does not affect the job. If the limit on open files is too low, joining fails with `unavailable` before anything else has begun.
///
/// Under `parley run --restarts N` a rank that has failed comes back as a new process; `rank::until_restart` shows what the other ranks
/// do then. Ranks with GPUs cannot restart (`unavailable`).
///
/// PARLEY_RESULTS=FILE reads and writes results, PARLEY_TUNING=0 switches trials off; docs/settings.md lists all variables. With
/// PARLEY_FLIGHT_DIR=DIR a rank writes its flight recorder to DIR when something fails. SIGUSR1 makes a rank write its flight recorder at
/// any time, unless the program handles that signal itself. The recorder is written to DIR, or without DIR to a new folder among the
/// temporary files. A line on standard error says where.
#include <parley/bootstrap.hpp>
#include <parley/cuda_link.hpp>
#include <parley/error.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/task.hpp>
#include <parley/transports/join/exposure.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace parley::transports {
class cuda_space;
}

namespace boost::asio {
class io_context;
}

namespace parley::ops {

/// The treatment of messages that no rank has received when their sender leaves.
enum class undelivered_messages : std::uint8_t { warn, fail };
/// The exit status of a rank that leaves such messages, has met no other error, and has the setting `fail`.
inline constexpr int undelivered_status = 3;
/// Returns the setting of PARLEY_STRICT=0|1; if it is not set, returns `mine`, the program's setting.
undelivered_messages heed_strict(undelivered_messages mine);

struct job_options {
  rank_settings settings{};
  undelivered_messages undelivered = undelivered_messages::warn;
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(30);
  /// How long a rank that returns waits for other ranks to acknowledge its messages. It does not wait for ranks that are gone.
  std::chrono::nanoseconds settle_limit = std::chrono::seconds(1);
  /// A rank of this host that is silent for that long counts as dead; 0: never. PARLEY_DETECTION overrides this.
  std::chrono::nanoseconds detection = std::chrono::seconds(2);
  /// The program's own way to exchange bytes among all ranks, such as MPI (parley/bootstrap.hpp). It replaces a launcher's environment and
  /// a rendezvous.
  std::optional<transports::bootstrap> bootstrap{};
  /// `insecure`, set on every rank: other hosts may reach the rendezvous of a job without a key. Then anyone who can connect to the
  /// rendezvous while the ranks join can take a rank's place, and control messages are not sealed. No environment variable sets this.
  transports::exposure reach = transports::exposure::loopback_without_key;
  /// Buffers may lie on this GPU (parley/cuda_link.hpp); null: host memory only. Ranks of a host use its devices in turn, unless `device`
  /// names one.
  transports::cuda_driver* gpu = nullptr;
  std::optional<int> device{};
  /// The hardware that this rank computes on, by which ranks recognise equal ranks (`rank::kind_of`). Empty: the name of its GPU, or else
  /// of its processor.
  std::string kind{};
  transports::cuda_copies::options copies{};
  transports::cuda_link::options planes{};  ///< planes between processes, such as NCCL
};

enum class parting : std::uint8_t {
  in_peace,
  refused,      ///< declarations of this rank were refused
  undelivered,  ///< messages of this rank were not received, and `job_options::undelivered` is `fail`
};

/// A rank over UCX that has joined its job.
class job {
 public:
  /// Joins the job, and waits for the other ranks to join. Throws `failure` that names the missing ranks, the rank that refused another
  /// rank, or the fault of the environment.
  explicit job(job_options o = {});
  /// Like the other constructor, on the caller's context, which must outlive the job. The caller may also run the context.
  job(boost::asio::io_context& io, job_options o = {});
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  /// If `leave` was not called before, the other ranks see this rank as dead.
  ~job();

  rank& self() noexcept;
  runtime::reactor& loop() noexcept;
  /// Adds decisions to the results files, and prints warnings about these files. `run` calls it.
  void write_results();
  /// Leaves the job without an error: settles what other ranks still need from this rank, and says goodbye. Decisions that were made during
  /// that time are also added to the results files. Prints the reports that VERBOSE asks for. Prints the messages that were not received
  /// and the refused declarations to standard error, a line for each op.
  parting leave();
  /// Leaves the job because of an error: tells the other ranks which error ends this rank, or which rank's end caused it. Waits up to two
  /// seconds to learn and to send that. Returns `why`, with its cause added if this rank has learned it by then (`rank::traced`).
  runtime::error leave_after(const runtime::error& why);
  /// The descriptor on which a launcher collects reports; -1: none.
  int report_descriptor() const noexcept;
  bool authenticated() const noexcept;
  const runtime::link& wire() const noexcept;
  /// This rank's copies on its GPU; null without one.
  transports::cuda_copies* gpu() noexcept;
  /// The memory of that GPU, for `.memory` of ops. It outlives the job's ops, because an op may need the memory while this rank leaves, for
  /// calls that other ranks still make. Null without a GPU.
  transports::cuda_space* gpu_memory() noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

using rank_function = runtime::task<> (*)(rank& self);

int run(int argc, char** argv, rank_function rank_main, job_options o = {});
/// Like the other `run`, with a function object, which must live until `run` returns.
int run(const std::function<void(job&)>& program, job_options o = {});

/// Versions and hardware that results of this process depend on.
std::vector<tuning::validator> machine_validators();
/// Like the other function, and also the validators of the job's GPUs and NCCL, if it has any. A job uses these validators if its settings
/// have none.
std::vector<tuning::validator> machine_validators(const job_options& o);

}  // namespace parley::ops

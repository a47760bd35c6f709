#pragma once
/// From `main` to a rank: reads where this process stands in its job, meets the others, runs the program, and leaves.
///
///     parley::task<> rank_main(parley::rank& self);
///     int main(int argc, char** argv) { return parley::run(argc, argv, rank_main); }
///
/// Started alone it is a world of one rank. Returns the exit status: 0, or 1 after printing the error, with op, rank and what
/// to do, to standard error. A declaration that was refused makes it 1, too. Messages that no rank has taken are warned of there; where
/// the program (`job_options::undelivered`) or PARLEY_STRICT=1 says so, they make the status 3. simulation::run returns the same status
/// for the same program. An engine that owns its loop makes a `job` instead and polls it.
///
/// A rank of this host that dies or is stopped is noticed within two seconds (transports/join/heartbeat.hpp), and, but for rank 0, told to
/// those on other hosts; a host that vanishes, within ten. Its ops end with `peer_failed` on all others; if it comes back, its own
/// calls end with `fenced`. A rank that is alone on its host and is stopped, not killed, nobody holds dead: calls that are matched with it
/// wait until it goes on or its process ends. PARLEY_DETECTION=SECONDS sets the time; 0 switches heartbeats off, for debuggers, and then
/// any stopped rank is waited for.
///
/// A job belongs to the process that joined it: in a child that fork() made every call throws `bad_argument`, and the job goes on however the
/// child ends. Too low a limit on open files is `unavailable`, before anything else has begun.
///
/// Under `parley run --restarts N` a rank that has failed comes back as a new process; `rank::until_restart` says what the others do
/// then. Ranks with GPUs cannot (`unavailable`).
///
/// PARLEY_RESULTS=FILE reads and writes results, PARLEY_TUNING=0 switches trials off; docs/settings.md has all variables.
/// PARLEY_FLIGHT_DIR=DIR has the flight recorder written there when something fails. On SIGUSR1, unless the program handles that
/// itself, it is written in any case, without DIR to a new folder among the temporary files, and a line says where.
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

/// What messages mean that a rank has sent and no rank has taken when their sender leaves.
enum class undelivered_messages : std::uint8_t { warn, fail };
/// The exit status of a rank that leaves such messages, has met no other error, and was told `fail`.
inline constexpr int undelivered_status = 3;
/// What the program says, unless PARLEY_STRICT=0|1 says otherwise.
undelivered_messages heed_strict(undelivered_messages mine);

struct job_options {
  rank_settings settings{};
  undelivered_messages undelivered = undelivered_messages::warn;
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(30);
  /// How long a rank that returns waits for others to acknowledge what it said; those that are gone are not waited for.
  std::chrono::nanoseconds settle_limit = std::chrono::seconds(1);
  /// How soon the silence of a rank of this host means its death; 0: never. PARLEY_DETECTION wins.
  std::chrono::nanoseconds detection = std::chrono::seconds(2);
  /// Instead of a launcher's environment and a rendezvous: the program's own way in which all ranks exchange bytes, such as
  /// MPI (parley/bootstrap.hpp).
  std::optional<transports::bootstrap> bootstrap{};
  /// `insecure`, on every rank: where the job has no key its rendezvous may be reached from other hosts all the same. Whoever can connect
  /// to it while the ranks join can then take a rank's place, and control messages are not sealed. Said here only; no variable says it.
  transports::exposure reach = transports::exposure::loopback_without_key;
  /// With a GPU its buffers may lie there (parley/cuda_link.hpp); null: host memory only. Ranks of a host take its devices
  /// in turn unless `device` says which.
  transports::cuda_driver* gpu = nullptr;
  std::optional<int> device{};
  /// What this rank computes on, so that others know whether they are alike (`rank::kind_of`); empty: its GPU or its processor.
  std::string kind{};
  transports::cuda_copies::options copies{};
  transports::cuda_link::options planes{};  ///< between processes: whether NCCL is one of them
};

enum class parting : std::uint8_t {
  in_peace,
  refused,      ///< declarations of this rank were
  undelivered,  ///< messages of this rank were not taken, and `job_options::undelivered` says that this is a failure
};

/// A rank over UCX that has joined its job.
class job {
 public:
  /// Joins, which waits for the others. Throws `failure`: who never came, who refused whom, what is wrong with the
  /// environment.
  explicit job(job_options o = {});
  /// The same on the caller's context, which the caller may also run; it outlives the job.
  job(boost::asio::io_context& io, job_options o = {});
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  /// Without `leave` the others are told that this rank died.
  ~job();

  rank& self() noexcept;
  runtime::reactor& loop() noexcept;
  /// Adds what was learned to results files, and prints warnings about them. `run` does it.
  void write_results();
  /// Lets go of the others in peace: settles what they still need, says bye. What has been learned meanwhile is added to results files,
  /// too. Prints what VERBOSE asks for and, to standard error, a line for each op, what was not delivered and which declarations were
  /// refused.
  parting leave();
  /// Instead: tells the others with which error this rank ends, or because of whose end; for that it waits a moment. Answers that error, with
  /// what has become known of it meanwhile (`rank::traced`).
  runtime::error leave_after(const runtime::error& why);
  /// Where a launcher collects reports, or -1.
  int report_descriptor() const noexcept;
  bool authenticated() const noexcept;
  const runtime::link& wire() const noexcept;
  /// This rank's copies on its GPU; null without one.
  transports::cuda_copies* gpu() noexcept;
  /// The memory of that GPU, for `.memory` of ops: it is there as long as they are, and they may need it for what other ranks
  /// still try while this one leaves. Null without a GPU.
  transports::cuda_space* gpu_memory() noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

using rank_function = runtime::task<> (*)(rank& self);

int run(int argc, char** argv, rank_function rank_main, job_options o = {});
/// The same with a function object that lives until it returns, and with settings.
int run(const std::function<void(job&)>& program, job_options o = {});

/// Versions and hardware that results of this process depend on.
std::vector<tuning::validator> machine_validators();
/// The same with those of its GPUs, if it has some, and of NCCL. A job whose settings have none takes these.
std::vector<tuning::validator> machine_validators(const job_options& o);

}  // namespace parley::ops

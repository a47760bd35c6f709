#pragma once
/// Lets the ranks of a job find each other and notice when one of them dies. Rank 0 hosts a TCP rendezvous inside its own
/// process. Every rank proves that it holds the job's key, sends its `member` entry and receives the roster of all entries.
///
///     rendezvous meeting(io, options_for(place), std::move(key));
///     meeting.on_member_lost([&](runtime::rank_id rank, const std::string& why) { ... });
///     meeting.join(this_process(ucx_address), [&](runtime::result<joined> all) {
///       if (!all) { report(all.reason()); return; }       // names the ranks that never came, or who refused whom
///       connect(all->members);
///     });
///     io.run();            // or poll(); an epoll loop of your own must watch `descriptors()`
///     meeting.leave();     // a normal end; without it the others learn that this rank died
///     meeting.leave(why, told);  // an error ends this rank: tells the others the error, or the rank whose end caused it
///
/// Everything happens on the thread that runs the `io_context`, which must outlive this object. Callbacks are called from
/// there, never from inside a call, and may destroy the rendezvous. No threads. `join` looks up a host *name*, which may
/// block; addresses from launchers are numeric and need no look-up.
///
/// If `max_restarts` allows it, a rank other than 0 that has died, or was declared dead while stopped, may come back as a new
/// process. This requires a key:
///
///     meeting.on_member_restarted([&](const member& anew) { ... });      // on all others, after its loss
///
/// With restarts the rendezvous stays open. The new process says how many processes held its place before (`restarts`) and proves that
/// it holds the key. It then gets the current roster, the session key, and a notice of each rank that is gone. Rank 0 refuses a process
/// that is not newer than the known one in its place, has been restarted too often, or runs on another host or kind of machine; the join of
/// a refused process fails with the reason. If an older process still runs in that place, it gets a notice: its `on_member_lost` is called
/// with its own rank.
///
/// Failure: rank 0 drops garbage, slow, oversized, duplicate or unauthenticated clients, and the rendezvous continues for the
/// others. A join ends in bounded time: with the roster, or with `timeout` (which ranks never came), `unauthenticated`,
/// `protocol_version`, `malformed` (two ranks contradict each other), `fenced` (the process in its place is as new or newer),
/// `bad_argument` (options, or a refused restart), `peer_failed` (rank 0 ended), `unavailable` (the host name has no address) or `io`.
/// Afterwards the connections stay open as a death watch: rank 0 tells all others when a connection ends without a bye. Each rank itself
/// notices when rank 0 is lost; other means must then detect later deaths (heartbeat.hpp, ops/job/death_notices.hpp).
/// Cancellation: destroying the object closes everything, and no callback is called any more.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/join/job_key.hpp>
#include <parley/transports/join/joining.hpp>
#include <parley/transports/launch/environment.hpp>

#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace parley::transports {

/// The entry of this process, with a fresh incarnation.
member this_process(std::vector<std::byte> address = {});
/// A random incarnation other than 0, with a restart count of 0.
std::uint64_t fresh_incarnation();
/// A number that is the same in every process of this host (and container), until it reboots.
std::uint64_t host_identity();

rendezvous_options options_for(const placement& place);

class rendezvous_core;  // a rendezvous_host on rank 0, else a rendezvous_guest

class rendezvous {
 public:
  using join_handler = std::function<void(runtime::result<joined>)>;
  using loss_handler = std::function<void(runtime::rank_id rank, const std::string& why)>;
  using farewell_handler = std::function<void(runtime::rank_id rank, const runtime::root_cause& why)>;
  using restart_handler = std::function<void(const member& anew)>;

  rendezvous(boost::asio::io_context& io, rendezvous_options options, job_key key);
  rendezvous(const rendezvous&) = delete;
  rendezvous& operator=(const rendezvous&) = delete;
  ~rendezvous();

  /// Once per object. `done` is called once, from the `io_context`.
  void join(member me, join_handler done);
  /// Sets the handler that is called at most once for each process that dies after the join. It gets this rank's own number when
  /// another process has taken this rank's place. Set it before joining, so that it misses no death.
  void on_member_lost(loss_handler handler);
  /// Sets the handler that is called once for each rank that leaves, with the reason that the rank gave; empty at a normal end. Ranks
  /// other than 0 learn of each other's leaving only while rank 0 is there.
  void on_member_left(farewell_handler handler);
  /// Sets the handler that is called when a rank has come back as a new process, after its loss was reported.
  void on_member_restarted(restart_handler handler);
  /// Reports that a process on this host is dead or was stopped, which ranks on other hosts cannot see. Rank 0 tells all ranks, and the
  /// process itself if it still listens. Ignored for rank 0's own process, and if a newer process has the place.
  void hold_dead(const member& dead, const std::string& why);
  /// Says bye and closes; no callback is called afterwards.
  void leave();
  /// Like `leave()`, with the reason why this rank ends. `told` is called once, possibly from inside this call: when all others have the
  /// reason, or when rank 0, which would pass it on, is gone. Keep this process's other connections open until then: a rank that saw them
  /// break earlier would not know why.
  void leave(const runtime::root_cause& why, const std::function<void()>& told);

  /// What this rank waits for before its join can end, in words: `ranks 1 and 2 of 4 to come to 127.0.0.1:4711`, `rank 0 to answer at …`.
  /// Empty: nothing that this rank knows of.
  std::string awaited() const;
  /// The open sockets, for an event loop that polls the `io_context` when they are ready. The `io_context` also has timers. The list may
  /// change at each poll.
  std::vector<int> descriptors() const;
  /// How many clients rank 0 has dropped so far: garbage, wrong keys, duplicates, too many at once.
  std::uint64_t dropped_clients() const;

 private:
  std::shared_ptr<rendezvous_core> core_;
};

}  // namespace parley::transports

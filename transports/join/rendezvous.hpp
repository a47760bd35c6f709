#pragma once
/// How the ranks of a job find each other, and how they notice that one has died. Rank 0 hosts a TCP rendezvous inside its
/// own process; every rank proves that it holds the job's key, gives its `member` entry and gets the `roster` of all.
///
///     rendezvous meeting(io, options_for(place), std::move(key));
///     meeting.on_member_lost([&](runtime::rank_id rank, const std::string& why) { ... });
///     meeting.join(this_process(ucx_address), [&](runtime::result<joined> all) {
///       if (!all) { report(all.reason()); return; }       // names the ranks that never came, or who refused whom
///       connect(all->members);
///     });
///     io.run();            // or poll(); `descriptors()` are what an epoll loop of one's own has to watch
///     meeting.leave();     // a normal end; without it the others are told that this rank died
///     meeting.leave(why, told);  // an error ends this rank: the others are told which, or because of whose end
///
/// Everything happens on the thread that runs the `io_context`, which must outlive this object; callbacks come from
/// there, never from inside a call, and may destroy the rendezvous. No threads. A host *name* is looked up when joining,
/// which may block; the addresses that launchers give do not.
///
/// A rank other than 0 that has died, or was stopped for good, may come back as a new process where `max_restarts` allows it, which
/// takes a key:
///
///     meeting.on_member_restarted([&](const member& anew) { ... });      // on all others, after its loss
///
/// The rendezvous then stays open. The new process says how many were before it in its place (`restarts`), proves itself as all
/// do, and gets the roster as it is now, the session key that all have, and word of each rank that is gone. One that is not
/// newer than what is known in its place, comes too often, or runs elsewhere is refused, and says so. What may still run in its
/// place is told that it is lost: `on_member_lost` with its own rank.
///
/// Failure: garbage, slow, oversized, duplicate or unauthenticated clients are dropped and the rendezvous goes on for the
/// others. A join ends in bounded time: with the roster, or with `timeout` (which ranks never came), `unauthenticated`,
/// `protocol_version`, `malformed` (two ranks contradict each other), `fenced` (a newer process is in its place), `bad_argument` (options)
/// or `io`. Afterwards the
/// connections stay open as a death watch: rank 0 tells all others when a connection ends without a bye. When rank 0
/// itself is lost, each rank notices that, and later deaths must be noticed by other means (heartbeat.hpp, ops/job/death_notices.hpp).
/// Cancellation: destroying the object closes everything, and no callback comes any more.
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

/// This process, with a fresh incarnation, as the first one in its place.
member this_process(std::vector<std::byte> address = {});
/// Of the first process in its place: chance, other than 0.
std::uint64_t fresh_incarnation();
/// The same number in every process of this host (and container), until it reboots.
std::uint64_t host_identity();

rendezvous_options options_for(const placement& place);

class rendezvous_core;  // of rank 0, or of another rank

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
  /// Called once per process that dies after the join, at most once each; with this rank's own number when another process has
  /// taken its place. Set it before joining to miss none.
  void on_member_lost(loss_handler handler);
  /// Called once per rank that leaves, with what it said it ends because of; nothing at a normal end. Of two ranks other than 0
  /// only while rank 0 is there.
  void on_member_left(farewell_handler handler);
  /// Called whenever a rank has come back as a new process; its loss was told before.
  void on_member_restarted(restart_handler handler);
  /// This rank has seen that a process on its own host is dead, or was stopped, which no rank on another host can see: rank 0, unless it
  /// is the one, tells all, and that one, if it still listens. Counts for nothing where a newer process is in its place.
  void hold_dead(const member& dead, const std::string& why);
  /// Says bye and closes; no callback comes after it.
  void leave();
  /// The same with what ends this rank. `told` is called, once, when all others have been told of it or nobody is there to do that,
  /// perhaps from inside here: until then one that sees this process's connections break would not know why.
  void leave(const runtime::root_cause& why, const std::function<void()>& told);

  /// Open sockets, for an event loop that wants to know when to poll the `io_context`, which has timers of its own besides. Changes
  /// whenever it is polled.
  std::vector<int> descriptors() const;
  /// How many clients rank 0 has dropped so far: garbage, wrong keys, duplicates, too many at once.
  std::uint64_t dropped_clients() const;

 private:
  std::shared_ptr<rendezvous_core> core_;
};

}  // namespace parley::transports

#pragma once
/// Whether the other ranks of this host still run, told by a small thread of its own: also of one that was stopped (SIGSTOP),
/// whose connections stay open, and never of one that merely computes for long without polling.
///
///     heartbeat::options o{.rank = 1, .world_size = 4, .watched = {0, 2, 3}, .page = heartbeat::page_name(job, key)};
///     auto heart = heartbeat::start(o, {.on_lost = tell_the_loop, .on_fenced = …});     // called on the heart's thread
///     if (!heart) warn(heart.reason());
///     heart->reset();                                 // a normal end: the others stop watching this rank
///
/// The ranks of one job and host share a page of memory with a counter and a verdict for each. Each heart adds to its own
/// counter eight times within the detection time and reads the others'. A counter that stands still for so long makes its
/// reader write the verdict, once and for all: the first writer decides, and every other rank follows within an eighth of the
/// detection time, so that all survivors hold the same ranks dead. A rank that comes back finds the verdict: it is fenced.
///
/// - Time during which the reader itself did not run counts against nobody, so that a job that was suspended as a whole, or
///   a machine that slept, goes on.
/// - A rank that never beat is judged by its process alone, where `pids` says which that is: one that is stopped, or has ended, for so
///   long is held dead, as it may have got no further than the roster. One that runs is not: its heart may be switched off, or beat in
///   other memory than this rank sees.
/// - The page lies in /dev/shm under a name that follows from the session's key, with mode 0600, and has no name any more
///   once all have found it: nothing of it is left when its ranks are gone, whatever ended them. Where ranks end before all have found
///   it the name may stay; whoever starts a heart removes what is ten seconds old and nobody's.
/// - A verdict is on one process. A newer one in the place of a rank (`options::restarts`) finds the page among the files that the others
///   hold open, takes the rank's place on it, and fences the older one. The others watch it once they `expect` it.
///
/// Failure: `start` answers `io`, `unauthenticated` (somebody else's page), `unavailable` (no other rank shows it) or `malformed`;
/// the job goes on without. But for `fenced` one thread calls it.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::transports {

class heartbeat {
 public:
  static constexpr runtime::time_ns default_detection_ns = 2'000'000'000;
  static constexpr runtime::time_ns shortest_detection_ns = 8'000'000;  ///< of eight beats a millisecond each

  enum class arrival : std::uint8_t {
    at_first,
    rejoined,  ///< in a job that ran already: one of `pids` shows the page, and none is made
  };
  struct options {
    runtime::rank_id rank = 0;
    runtime::rank_id world_size = 1;
    std::vector<runtime::rank_id> watched;  ///< the other ranks of this host
    std::string page;
    runtime::time_ns detection_ns = default_detection_ns;
    std::uint32_t restarts = 0;  ///< how many processes have been in this rank's place before
    /// Of the watched ranks' processes; 0 for one that this rank cannot see. Who leaves takes the page's name along unless one of these
    /// still has to find it; empty: nobody does.
    std::vector<std::uint32_t> pids{};
    arrival comes = arrival::at_first;
    /// How often this rank's loop has turned, which the heart looks at with each beat; called on its thread. Empty: nobody says.
    std::function<std::uint64_t()> turns{};
  };
  /// Both are called on the heart's thread, at most once per process, and must not destroy the heart.
  struct events {
    std::function<void(runtime::rank_id lost, const std::string& why)> on_lost;
    std::function<void(const std::string& why)> on_fenced;
  };

  /// The name of one session's page: whoever does not hold the key cannot guess it.
  static std::string page_name(std::uint64_t job, std::span<const std::byte> session_key);
  /// Whether a process of this host is there, and is not stopped.
  static bool runs(std::uint32_t pid);
  static runtime::result<std::unique_ptr<heartbeat>> start(options o, events to);
  heartbeat(const heartbeat&) = delete;
  heartbeat& operator=(const heartbeat&) = delete;
  ~heartbeat();

  /// Why others hold this rank dead; empty when they do not. From any thread, and without waiting for the next beat.
  std::string fenced() const;
  /// All ranks of this host that are held dead, and why, in the order of their deaths: the first one may be why others ended. Not
  /// those in whose places newer processes are expected.
  std::vector<std::pair<runtime::rank_id, std::string>> lost() const;
  /// Those that have been heard and are neither held dead nor have left.
  std::vector<runtime::rank_id> living() const;
  /// For how long the loop of a rank that lives has not turned, as its heart has seen it; 0: it turns, or nobody says.
  runtime::time_ns stands_still(runtime::rank_id rank) const;
  /// This rank has done all that its program does: the others read it here before its connections end.
  void say_returned();
  /// Whether the process that counts in that place has said so.
  bool has_returned(runtime::rank_id rank) const;
  /// This rank has found out otherwise, by a connection that broke. Changes nothing for one that left or was judged before.
  void hold_dead(runtime::rank_id lost);
  /// A process before which there were so many others is the one that counts in that place from here on; `pid` as above.
  void expect(runtime::rank_id rank, std::uint32_t restarts, std::uint32_t pid = 0);

 private:
  class page;
  class watch;
  heartbeat(options o, events to, std::unique_ptr<page> shared);
  std::unique_ptr<page> page_;
  std::unique_ptr<watch> watch_;
};

}  // namespace parley::transports

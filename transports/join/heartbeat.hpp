#pragma once
/// A small thread that detects when another rank of this host no longer runs. It also detects a stopped process (SIGSTOP), whose
/// connections stay open, and it never reports a rank that merely computes for long without polling.
///
///     heartbeat::options o{.rank = 1, .world_size = 4, .watched = {0, 2, 3}, .page = heartbeat::page_name(job, key)};
///     auto heart = heartbeat::start(o, {.on_lost = tell_the_loop, .on_fenced = …});     // called on the heart's thread
///     if (!heart) warn(heart.reason());
///     heart->reset();                                 // a normal end: the others stop watching this rank
///
/// The ranks of one job and host share a page of memory, which has a counter and a verdict for each rank. Each heart increments its own
/// counter eight times per detection time and reads the others' counters. When a counter has stood still for the detection time, its
/// reader writes the verdict that the rank is dead. The first writer's verdict is final, and every other rank reads it within an eighth of
/// the detection time, so that all survivors declare the same ranks dead. A dead rank that runs again finds its verdict: it is fenced.
///
/// - Time during which the reader itself did not run does not count, so that a job survives when it is suspended as a whole, or
///   its machine sleeps.
/// - A rank that never beat may have come no further than the roster. It is judged by its process alone, if `pids` names the process. If
///   the process has been stopped or gone for the detection time, the rank is declared dead. If the process runs, the rank is not, because
///   its heart may be switched off, or may beat in memory that this rank does not see.
/// - The page is a file in /dev/shm with mode 0600; its name is derived from the session's key. The name is removed once all ranks have
///   opened the page, so that nothing is left when the ranks are gone, even if they were killed. If ranks end before all have opened
///   the page, its name may stay; each new heart removes pages that are older than ten seconds and that no process holds.
/// - A verdict applies to one process. A newer process of a rank (`options::restarts`) finds the page among the files that the other
///   ranks hold open, takes the rank's place on it, and fences the older process. The others watch it once they `expect` it.
///
/// Failure: `start` returns `io`, `unauthenticated` (another user's page), `unavailable` (no other rank has the page open),
/// `malformed` or `bad_argument`; the job continues without heartbeats. One thread; only `fenced` may be called from any thread.
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
  static constexpr runtime::time_ns shortest_detection_ns = 8'000'000;  ///< eight beats, one per millisecond

  enum class arrival : std::uint8_t {
    at_first,
    rejoined,  ///< in a running job: opens the page of one of `pids`, and creates none
  };
  struct options {
    runtime::rank_id rank = 0;
    runtime::rank_id world_size = 1;
    std::vector<runtime::rank_id> watched;  ///< the other ranks of this host
    std::string page;
    runtime::time_ns detection_ns = default_detection_ns;
    std::uint32_t restarts = 0;  ///< how many processes held this rank's place before
    /// Process ids of the `watched` ranks, in their order; 0 for a process that this rank cannot see. When this rank ends it removes the
    /// page's name, unless one of these processes is alive and has not opened the page yet. May be empty.
    std::vector<std::uint32_t> pids{};
    arrival comes = arrival::at_first;
    /// Returns how often this rank's loop has turned. The heart calls it at each beat, on its own thread. Empty: unknown.
    std::function<std::uint64_t()> turns{};
  };
  /// The heart's thread calls both, at most once per process. They must not destroy the heart.
  struct events {
    std::function<void(runtime::rank_id lost, const std::string& why)> on_lost;
    std::function<void(const std::string& why)> on_fenced;
  };

  /// The name of a session's page. It cannot be guessed without the key.
  static std::string page_name(std::uint64_t job, std::span<const std::byte> session_key);
  /// True if a process of this host exists and is not stopped.
  static bool runs(std::uint32_t pid);
  static runtime::result<std::unique_ptr<heartbeat>> start(options o, events to);
  heartbeat(const heartbeat&) = delete;
  heartbeat& operator=(const heartbeat&) = delete;
  ~heartbeat();

  /// The reason why this rank is fenced: another rank has declared it dead, or a newer process has its place. Empty if it is not fenced.
  /// From any thread. Reads the page now, without waiting for the next beat.
  std::string fenced() const;
  /// All watched ranks that were declared dead, with the reasons, in the order of their deaths: the first death may have caused the others.
  /// Leaves out ranks for which a newer process is expected.
  std::vector<std::pair<runtime::rank_id, std::string>> lost() const;
  /// The watched ranks with hearts that have beaten, except ranks that were declared dead or have left.
  std::vector<runtime::rank_id> living() const;
  /// How long the loop of a living rank has not turned, as its heart reports; 0: it turns, or the time is unknown.
  runtime::time_ns stands_still(runtime::rank_id rank) const;
  /// Announces that this rank's program has returned. The others can read that here before this rank's connections end.
  void say_returned();
  /// True if the current process of that rank has announced that its program returned.
  bool has_returned(runtime::rank_id rank) const;
  /// Declares a rank dead because its connection broke. Does nothing if the rank has left or has a verdict already.
  void hold_dead(runtime::rank_id lost);
  /// From now on watches the process of `rank` with that restart count; `pid` as in `options::pids`.
  void expect(runtime::rank_id rank, std::uint32_t restarts, std::uint32_t pid = 0);

 private:
  class page;
  class watch;
  heartbeat(options o, events to, std::unique_ptr<page> shared);
  std::unique_ptr<page> page_;
  std::unique_ptr<watch> watch_;
};

}  // namespace parley::transports

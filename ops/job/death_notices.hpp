#pragma once
/// Notices of dead ranks, sent by ranks of the dead rank's host to those of other hosts. Ranks of other hosts cannot see that a process was
/// stopped, or died before it had sent them anything. While rank 0 lives, it tells all hosts (`rendezvous::hold_dead`). Without rank 0,
/// ranks on the dead rank's host send notices, each over its own link.
///
///     death_notices notices(executor, mail, members, self, newest, [&](rank_id dead, const std::string& why) { … });
///     notices.tell(2, "rank 2 was stopped");       // rank 2 is of this host; sent once per process, even if called again
///
/// A rank accepts a notice if its sender runs on the host of the dead process, and if the rank knows of no newer process in that place. (A
/// newer process counts even while it still waits until the link has finished with the previous one.) A notice is held back while its
/// receiver's window is full. Internal to ops.
#include <parley/identifiers.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/time/timers.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/runtime/wire/wire.hpp>
#include <parley/transports/join/rendezvous.hpp>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace parley::ops {

struct death_notice {
  static constexpr std::uint16_t message_type = 60;
  std::uint32_t rank = 0;
  std::uint64_t incarnation = 0;
  std::string why;
  PARLEY_FIELDS(rank, incarnation, why)
};

class death_notices {
 public:
  using rank_id = runtime::rank_id;
  using heard_function = std::function<void(rank_id dead, const std::string& why)>;
  /// Returns the incarnation of the newest process that this rank knows of in a rank's place.
  using newest_function = std::function<std::uint64_t(rank_id)>;

  /// `members` has one entry per rank and may change when a rank comes back. It and the other references must outlive this object.
  death_notices(runtime::executor& ex, runtime::router& mail, const std::vector<transports::member>& members,
                rank_id self, newest_function newest, heard_function heard);
  ~death_notices();
  void tell(rank_id dead, const std::string& why);

 private:
  struct letter {
    rank_id to = 0;
    death_notice says;
  };
  void send_rest() noexcept;
  void hear(rank_id from, const death_notice& m) const;

  runtime::executor& executor_;
  runtime::router& mail_;
  const std::vector<transports::member>& members_;
  rank_id self_;
  newest_function newest_;
  heard_function heard_;
  std::set<std::uint64_t> told_;  // incarnations of dead processes
  std::vector<letter> unsent_;
  runtime::timer_of<&death_notices::send_rest> timer_{*this};
};

}  // namespace parley::ops

#pragma once
/// The parts that a rank is made of, for code that makes ranks (`job`, the simulator, tests), and the rank's reports to them and to tools.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/clock_book.hpp>
#include <parley/agreement.hpp>
#include <parley/machine.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/incarnations.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/runtime/wire/router.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace parley::ops {

/// The parts below a rank. `ex`, `net` and `disk` must outlive the rank.
struct rank_foundation {
  runtime::executor& ex;
  runtime::link& net;
  runtime::storage* disk = nullptr;  ///< null: no results files
  runtime::incarnations incarnations;
  runtime::router::options mail{};
  std::vector<std::uint64_t> hosts{};  ///< equal for ranks on one host, which share a clock; empty: all do
  std::vector<std::string> kinds{};    ///< what each rank computes on; empty: all are alike
  machine has{};                       ///< the machine of this rank, which configs may require
  actors::clock_skew skew{};           ///< gives each rank its own clock, in a world with one clock
  /// Declares a peer dead. The rank calls it when one of its ops cannot continue with that peer. It ends the connection to the peer, tells
  /// the other ranks and the peer, and then has `rank::on_lost` called. For this rank itself, it ends all connections, so that the others
  /// declare this rank dead, and then has `rank::on_fenced` called. Empty: only `on_lost` or `on_fenced` is called.
  std::function<void(rank_id peer, const std::string& why)> give_up{};
  bool ranks_come_back = false;                   ///< whether ranks that have died are started again
  runtime::time_ns detection_ns = 2'000'000'000;  ///< how long a silent rank may still live; 0: for ever
  /// Returns the reason why the others have declared this rank dead, if that can be known before `rank::on_fenced` is called; otherwise "".
  /// The rank calls it when a call is about to fail. Empty: the reason is never known earlier.
  std::function<std::string()> held_dead{};
  /// Delivers news about other ranks that has arrived and is unread. The rank calls it before a call fails because a peer is gone. Empty:
  /// all news is delivered at once.
  std::function<void()> hear_news{};
  /// Returns how long the loop of another, living rank has not turned; 0: unknown. The rank calls it when that rank has not replied to a
  /// question in time. Empty: never known.
  std::function<runtime::time_ns(rank_id peer)> stands_still{};
};

/// Unfinished business of a rank that leaves, a line for each op.
struct left_over {
  /// Messages that were not received or were refused, and calls that the program dropped without joining them.
  std::vector<std::string> undelivered;
  std::vector<std::string> rejected;  ///< declarations that were refused, with the reason
};

/// The agreement of one edge or group, for tables and `--json`. Only its sender or leader knows all of it.
struct edge_agreement {
  std::string op;
  rank_id sender = 0;    ///< of a group: its leader
  rank_id receiver = 0;  ///< of a group: its last worker
  const actors::assignment* assigned = nullptr;
  const std::vector<std::string>* warm_errors = nullptr;
  std::string no_common_config;
  std::vector<rank_id> group{};  ///< of a group: all its ranks
  /// The decisions that this rank has received, with the evidence. They match `assigned`, except for decisions in flight.
  const std::vector<actors::decision_record>* decisions = nullptr;
};

/// A decision as one participant of an edge or group learned it; all participants learn the same.
struct edge_decision {
  std::string op;
  rank_id sender = 0;    ///< of a group: its leader
  rank_id receiver = 0;  ///< of a group: its last participant
  actors::decision_record decision;
};

}  // namespace parley::ops

#pragma once
/// What a rank is made of, for those who make one (`job`, the simulator, tests), and what it reports to tools.
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

/// What a rank stands on. All of it outlives the rank.
struct rank_foundation {
  runtime::executor& ex;
  runtime::link& net;
  runtime::storage* disk = nullptr;  ///< null: no results files
  runtime::incarnations incarnations;
  runtime::router::options mail{};
  std::vector<std::uint64_t> hosts{};  ///< equal for ranks that share a host, and with it a clock; empty: all do
  std::vector<std::string> kinds{};    ///< what each computes on; empty: all are alike
  machine has{};                       ///< what configs may require of this rank
  actors::clock_skew skew{};           ///< a world on one clock may give each rank one of its own
  /// Rids the rank of a peer that one of its ops has found to be as good as dead: ends their connection, lets the others and the
  /// peer itself know, and brings about `rank::on_lost`. Of this rank itself: ends all its connections, so that the others hold it dead,
  /// and brings about `rank::on_fenced`. Empty: `on_lost`, or `on_fenced`, is all that happens.
  std::function<void(rank_id peer, const std::string& why)> give_up{};
  bool ranks_come_back = false;                   ///< whether somebody starts ranks anew that have died
  runtime::time_ns detection_ns = 2'000'000'000;  ///< how long a silent one may still live; 0: for ever
  /// Why the others hold this rank dead, where that may be known before `rank::on_fenced` is called; "" while they do not. Asked
  /// when a call is about to fail. Empty: nothing is known before.
  std::function<std::string()> held_dead{};
  /// Takes in what is here unread of what became of other ranks. Called before a call fails as a peer is gone. Empty: all is
  /// told at once.
  std::function<void()> hear_news{};
  /// For how long the loop of another rank, whose process lives, has not turned; 0: that is not known. Asked when it has not answered a
  /// question in time. Empty: it is never known.
  std::function<runtime::time_ns(rank_id peer)> stands_still{};
};

/// What one edge or group has agreed on, for tables and `--json`; only its sender or leader knows all of it.
struct edge_agreement {
  std::string op;
  rank_id sender = 0;    ///< of a group: its leader
  rank_id receiver = 0;  ///< of a group: its last worker
  const actors::assignment* assigned = nullptr;
  const std::vector<std::string>* warm_errors = nullptr;
  std::string no_common_config;
  std::vector<rank_id> group{};  ///< of a group: all of it
  /// As this rank was told, with the evidence; in step with `assigned` but for what is on its way.
  const std::vector<actors::decision_record>* decisions = nullptr;
};

/// A decision as one participant of an edge or group learned it; all have the same.
struct edge_decision {
  std::string op;
  rank_id sender = 0;    ///< of a group: its leader
  rank_id receiver = 0;  ///< of a group: its last participant
  actors::decision_record decision;
};

}  // namespace parley::ops

#pragma once
/// Keeps track of the ranks of the job that are still alive, on one rank. A `membership` receives evidence, keeps the standing of each peer
/// (standing.hpp), and has the effects carried out. It does not use a link, heartbeat or rendezvous itself: these pass evidence to it, and
/// `outside` carries out the effects.
///
///     membership peers(world_size, self, outside);
///     peers.hear(2, evidence::said_dead, {"it was killed"});
///     peers.of(2);                                             // standing::lost
///
/// Once the others have declared this rank dead, the next evidence ends all of its ops with `fenced`, and later evidence is ignored.
/// Evidence of a newer process in this rank's own place has the same effect. After `leave`, a rank ignores all evidence.
#include <parley/actors/membership/standing.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <string>
#include <utility>
#include <vector>

namespace parley::actors {

/// The evidence in words; if the peer ended with an error, also the rank and the error with which that failure began.
struct peer_report {
  std::string why{};
  runtime::root_cause began_with{};
};

class membership {
 public:
  using rank_id = runtime::rank_id;

  /// Carries out the effects. The functions of `outside` may call `hear` again.
  struct outside {
    virtual void close_link(rank_id peer) noexcept = 0;
    /// True if the link's connection to the process that it knows in that peer's place is down.
    virtual bool link_is_down(rank_id peer) const noexcept = 0;
    /// Receives the peer's last messages for a while, then calls `hear` with `goodbye_is_over`.
    virtual void await_goodbye(rank_id peer) = 0;
    /// Ends this rank's ops with `peer`. `how` is one of the `tell_` effects.
    virtual void tell_ops(rank_id peer, effect how, const peer_report& what) noexcept = 0;
    virtual void publish_death(rank_id peer) noexcept = 0;
    /// The ranks of this host that were declared dead in the heartbeat's page, each with the reason.
    virtual std::vector<std::pair<rank_id, std::string>> verdicts() const = 0;
    virtual void pass_on(rank_id dead, const std::string& why) = 0;
    /// Connects to the newer process and lets ops continue; returns false if that process has no address that the link can use.
    virtual bool take_in(rank_id peer) = 0;
    /// Why the others have declared this rank dead; empty: they have not.
    virtual std::string why_fenced() const = 0;
    /// Ends all connections and ops of this rank.
    virtual void end_fenced(const std::string& why) noexcept = 0;

   protected:
    ~outside() = default;
  };

  /// The table; a test may break it.
  using rules = step (*)(standing now, evidence of) noexcept;

  membership(rank_id world_size, rank_id self, outside& out, rules table = &next)
      : out_(out), self_(self), next_(table), peers_(world_size) {}

  void hear(rank_id peer, evidence of, const peer_report& what = {});
  /// Reads the verdicts that other ranks have published in the heartbeat's page, as evidence.
  void hear_verdicts();
  /// Ends this rank's ops if the others have declared it dead.
  bool see_whether_fenced();
  /// This rank has announced its end, so the others close their connections to it. This rank must not take that for their deaths.
  void leave() noexcept { is_over_ = true; }
  standing of(rank_id peer) const noexcept { return peers_[peer]; }

 private:
  void act(rank_id peer, effect does, const peer_report& what);
  void end_fenced(const std::string& why);

  outside& out_;
  rank_id self_;
  rules next_;
  bool is_over_ = false;
  std::vector<standing> peers_;
};

}  // namespace parley::actors

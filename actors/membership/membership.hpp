#pragma once
/// The ranks of the job that are still there, as one rank knows it. A `membership` receives evidence,
/// keeps the standing of each peer (standing.hpp), and carries out the effects. It knows no link,
/// heartbeat or rendezvous: they hand in evidence, and `outside` carries out what the effects say.
///
///     membership peers(world_size, self, outside);
///     peers.hear(2, evidence::said_dead, {"it was killed"});
///     peers.of(2);                                             // standing::lost
///
/// When the others hold this rank dead, the first evidence after that ends all of its ops with `fenced`, once, and later evidence is
/// ignored. Evidence of a newer process in this rank's own place has the same effect. After `leave`, a rank ignores all evidence.
#include <parley/actors/membership/standing.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <string>
#include <utility>
#include <vector>

namespace parley::actors {

/// The evidence in words; if the peer ended with an error, also the rank and error with which that began.
struct peer_report {
  std::string why{};
  runtime::root_cause began_with{};
};

class membership {
 public:
  using rank_id = runtime::rank_id;

  /// Carries out the effects. Its functions may call `hear` again.
  struct outside {
    virtual void close_link(rank_id peer) noexcept = 0;
    /// True if the link is done with the process that it knows in that peer's place.
    virtual bool link_is_down(rank_id peer) const noexcept = 0;
    /// Looks for the peer's last messages for a while, then hands in `goodbye_is_over`.
    virtual void await_goodbye(rank_id peer) = 0;
    /// Ends this rank's ops with `peer`. `how` is one of the `tell_` effects.
    virtual void tell_ops(rank_id peer, effect how, const peer_report& what) noexcept = 0;
    virtual void publish_death(rank_id peer) noexcept = 0;
    /// The ranks of this host that their host holds dead, each with the reason, from the heartbeat's page.
    virtual std::vector<std::pair<rank_id, std::string>> verdicts() const = 0;
    virtual void pass_on(rank_id dead, const std::string& why) = 0;
    /// Connects to the newer process and lets ops go on; false: that process has no address that the link can use.
    virtual bool take_in(rank_id peer) = 0;
    /// Why the others hold this rank dead; empty: they do not.
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
  /// Hears the verdicts that other ranks have published in the heartbeat's page.
  void hear_verdicts();
  /// Ends this rank's ops if the others hold it dead.
  bool see_whether_fenced();
  /// This rank has said that it ends, so the others close their connections to it. It must not hold them dead for that.
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
